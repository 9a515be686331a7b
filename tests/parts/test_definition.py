"""Definitions of methods, and how stated keys merge, conflict and are shown."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from gxpo.algorithms.credit.relative import Relative
from gxpo.base.errors import ConfigError, MethodConflict
from gxpo.parts.definition import (
    Definition,
    Paper,
    SettingValue,
    check_allowed,
    check_refusals,
    finite,
    is_schedule,
    is_section,
    merge,
    same,
    show,
    stage_of,
    unknown_key,
)

DOC = """NAME: Subtract the mean
    of the group.

    A = r - mean(r)
    w = 1.

    Choices. The paper leaves ddof
    open."""


def definition(name: str, keys: dict[str, Any], **more: Any) -> Definition:
    return Definition(f"{name}: An idea.", name=name, evidence="paper", keys=keys, **more)


def merged(*methods: Definition, known: tuple[Definition, ...] = (), **overrides: Any) -> dict[str, tuple[Any, str]]:
    stated_values = {key.replace("__", "."): SettingValue(value, "--set") for key, value in overrides.items()}
    names = {m.name: m for m in (*methods, *known)}
    return {
        k: (s.value, s.origin) for k, s in merge([(m.name, m, m.keys) for m in methods], stated_values, names).items()
    }


class Mine:
    pass


# ---------------------------------------------------------------- a definition
def test_idea_formula_and_choices_are_read_from_the_doc():
    read = Definition(DOC, evidence="paper")
    assert read.idea == "Subtract the mean of the group"
    assert read.formula == "A = r - mean(r)\nw = 1"
    assert read.choices == "The paper leaves ddof open"
    bare = Definition("NAME: One line.", evidence="paper")
    assert (bare.idea, bare.formula, bare.choices) == ("One line", "", "")


def test_unknown_evidence_and_unpinned_code_are_refused():
    with pytest.raises(ValueError, match=r"NAME: An idea\.: evidence is one of .*, not 'rumour'"):
        Definition("NAME: An idea.", evidence="rumour")
    for code in ("owner/name", "owner/name@main file.py", "name@0123456"):
        with pytest.raises(ValueError, match=r"code is 'OWNER/NAME@COMMIT PATH\.\.\.'"):
            Definition("NAME: An idea.", evidence="reference-code", code=code)


def test_code_links_lead_to_the_files_at_the_commit():
    linked = Definition("NAME: An idea.", evidence="reference-code", code="o/n@0123456 a.py b/c.py")
    assert linked.code_links == (
        "https://github.com/o/n/blob/0123456/a.py",
        "https://github.com/o/n/blob/0123456/b/c.py",
    )
    full_definition = Definition("NAME: An idea.", evidence="reference-code", code="o/n@0123456")
    assert full_definition.code_links == ("https://github.com/o/n/tree/0123456",)
    assert Definition("NAME: An idea.", evidence="paper").code_links == ()


def test_stages_are_in_their_order_and_without_settings_of_the_run():
    keys = {"objective.clip_high": 0.28, "tasks.per_step": 4, "credit.scale": "none", "tasks.sampler": "variance"}
    assert definition("x", keys).stages == ("credit", "objective", "tasks.sampler")


def test_the_paper_is_cited_by_key_or_stated():
    paper = Paper("A title", "DOE, JANE", 2024, "2401.00001")
    cited = definition("x", {}, cite="doe2024", papers={"doe2024": paper})
    assert (cited.title, cited.authors, cited.year, cited.arxiv) == ("A title", "DOE, JANE", 2024, "2401.00001")
    assert definition("x", {}, cite=paper).paper is paper and definition("x", {}).paper == Paper()
    with pytest.raises(KeyError):
        _ = definition("x", {}, cite="nobody").paper


def test_bibtex_leaves_out_what_is_not_known():
    assert definition("x", {}, cite=Paper("A title", "DOE, JANE", 2024, "2401.00001")).bibtex == (
        "@misc{x,\n  title = {A title},\n  author = {DOE, JANE},\n  year = {2024},\n  eprint = {2401.00001},\n"
        "  archivePrefix = {arXiv}\n}"
    )
    assert Paper("A title").bibtex("y") == "@misc{y,\n  title = {A title}\n}"


# ---------------------------------------------------------------- keys and values
@pytest.mark.parametrize(
    ("key", "stage"),
    [
        ("credit", "credit"),
        ("credit.add.state", "credit"),
        ("credits", None),
        ("tasks.sampler.key", "tasks.sampler"),
        ("tasks.per_step", None),
        ("reward.shape.length", "reward"),
    ],
)
def test_a_key_belongs_to_the_stage_that_it_begins_with(key, stage):
    assert stage_of(key) == stage


def test_values_are_the_same_by_number_or_by_the_name_of_a_part():
    assert same(1, 1.0) and same("none", "none") and same(["a"], ["a"])
    assert not same(True, 1) and not same(0, False) and not same(["a"], ("a",)) and not same("1", 1)
    assert same("relative", Relative) and same(Relative, "relative") and not same("opo", Relative)


def test_values_are_shown_as_they_are_typed():
    output = [show(x) for x in (None, True, 0.5, "x", [1], Relative, Relative())]
    assert output == ["null", "true", "0.5", "x", "[1]", "relative", "relative"]
    assert show(Mine) == f"{__file__}:Mine" and show(merged) == f"{__file__}:merged"


def test_finite_looks_into_lists_and_mappings():
    assert finite({"a": [1.0, (2, "x")]}) and not finite({"a": [1.0, (math.nan,)]})
    assert not finite([math.inf]) and finite([math.inf, -math.inf], unbounded=True)
    assert not finite(math.nan, unbounded=True)


def test_a_schedule_is_a_mapping_with_an_end():
    assert is_schedule({"schedule": "linear", "from": 1.0}) and is_schedule({"schedule": "cosine", "to": 0.0})
    assert not is_schedule({"schedule": "linear"}) and not is_schedule({"from": 1.0}) and not is_schedule("schedule")


def test_a_section_has_keys_below_it():
    assert is_section("credit", ["credit.scale"])
    assert not is_section("credit", ["credit", "credits.x"])


def test_an_unknown_key_gets_the_nearest_and_rewards_a_hint():
    assert str(unknown_key("credit.scal", ["credit.scale"])) == (
        "unknown key 'credit.scal'; did you mean 'credit.scale'?"
    )
    assert str(unknown_key("reward.zzz", [])) == (
        "unknown key 'reward.zzz'; weights of several rewards are scoring.weights"
    )


def test_silent_values_state_nothing():
    assert SettingValue({}, "x").is_silent and SettingValue("grpo", "x", by_method=True).is_silent
    assert not any(SettingValue(value, "x").is_silent for value in ({"a": 1}, None, 0, "", []))


# ---------------------------------------------------------------- merging
ONE = definition("one", {"credit.scale": "none", "objective.clip_high": 0.28})
TWO = definition("two", {"credit.scale": "std", "rollout.group_size": 4})


def test_different_keys_and_equal_values_merge_under_the_first():
    other = definition("other", {"credit.scale": "none", "credit.ddof": 0})
    assert merged(ONE, other) == {
        "credit.scale": ("none", "one"),
        "objective.clip_high": (0.28, "one"),
        "credit.ddof": (0, "other"),
    }


def test_different_values_conflict_until_the_caller_decides():
    message = r"one sets credit\.scale=none and two sets credit\.scale=std: decide with --set credit\.scale=one"
    with pytest.raises(MethodConflict, match=message):
        merged(ONE, TWO)
    assert merged(ONE, TWO, credit__scale="range")["credit.scale"] == ("range", "--set")
    assert merged(ONE, TWO, credit__scale="two")["credit.scale"] == ("std", "--set (as in two)")


def test_a_stage_as_in_another_method_brings_all_its_keys():
    lender = definition("lender", {"credit": "batch_whiten", "credit.ddof": 0, "rollout.group_size": 4})
    assert merged(ONE, known=(lender,), credit="lender") == {
        "objective.clip_high": (0.28, "one"),
        "credit": ("batch_whiten", "--set (as in lender)"),
        "credit.ddof": (0, "--set (as in lender)"),
    }


def test_a_stage_as_in_a_method_without_it_is_silent():
    names = {"one": ONE, "two": TWO}
    out = merge([("one", ONE, ONE.keys)], {"weight": SettingValue("two", "--set")}, names)
    assert out["weight"] == SettingValue("two", "--set", by_method=True) and out["weight"].is_silent


def test_parts_added_to_a_replaced_part_go_with_it():
    both = definition("both", {"credit": "relative", "credit.add.state": "state_relative"})
    assert merged(both, credit="mine") == {"credit": ("mine", "--set")}
    added = definition("added", {"credit.add.state": "state_relative"})  # added to any credit
    assert merged(added, credit="mine") == {
        "credit.add.state": ("state_relative", "added"),
        "credit": ("mine", "--set"),
    }


def test_options_of_rewards_are_joined_entry_by_entry():
    options = {"judge": {"mode": "pairwise", "workers": 1}}
    judged = definition("judged", {"scoring.options": options})
    own_value = SettingValue({"judge": {"workers": 4}, "math": {"strict": True}}, "--set")
    out = merge([("judged", judged, judged.keys)], {"scoring.options": own_value}, {"judged": judged})
    assert out["scoring.options"].value == {"judge": {"mode": "pairwise", "workers": 4}, "math": {"strict": True}}
    assert SettingValue("text", "x").over_options(options).value == "text"


def test_values_that_a_method_refuses_are_errors():
    strict = definition("strict", {}, refuses={"objective.aggregate": ("token_mean",)})
    check_refusals([("strict", strict, {})], {"objective.aggregate": "sequence_mean"})
    with pytest.raises(ConfigError, match=r"strict can't work with objective\.aggregate=token_mean"):
        check_refusals([("strict", strict, {})], {"objective.aggregate": "token_mean"})


def test_values_that_a_part_does_not_allow_are_errors():
    part = SimpleNamespace(allows={"env.context": (("full", "window"), "reads every turn")}, label="mine")
    check_allowed(part, {"env.context": SettingValue("window", "x")})
    check_allowed(part, {})
    with pytest.raises(ConfigError, match=r"env\.context=summary: .* reads every turn: .* to full or window"):
        check_allowed(part, {"env.context": SettingValue("summary", "x")})
