"""`gxpo methods`: entries, conditions, what merges, and what is tried on made-up rollouts."""

import json
import random
import re

import pytest
from tests.battery import battery, kinds_of_parts, made_up
from tests.thorough import cover_in_lists

import gxpo
from gxpo.base.errors import ConfigError, MethodConflict
from gxpo.explain import method_text
from gxpo.explain.catalogue import citations, conflicts, entries, home, select, tiers
from gxpo.explain.effect import Answer, Effect, effect, obstacle, on_equal, push, rollouts
from gxpo.methods import METHODS
from gxpo.parts.definition import EVIDENCE, STAGES

UNDECLARED = {"gigpo", "hgpo", "graph_gpo", "graft"}  # steps of one group may differ where its outcomes do not


@pytest.fixture(scope="module")
def rows():
    return entries()


# ---------------------------------------------------------------- entries
def test_entries_are_json_and_the_weakest_evidence_is_last(rows):
    assert {r["name"] for r in json.loads(json.dumps(rows))} == set(METHODS)
    assert [EVIDENCE.index(r["evidence"]) for r in rows] == sorted(EVIDENCE.index(r["evidence"]) for r in rows)
    assert sum(tiers(rows).values()) == len(METHODS) and list(tiers(rows))[-1] == "reconstruction"


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        ("grpo", "base"),
        ("dr_grpo", "credit"),  # sets credit.scale and objective.aggregate, no part
        ("two_grpo", "credit"),  # beside it the group's size, which is a key of rollout
        ("pvpo", "credit"),  # its rollouts only serve the signal that its credit reads
        ("grpo_lead", "credit"),
        ("dapo", "rollout"),
        ("luffy", "rollout"),  # replaces rollout and surrogate, and sets credit.scale
        ("gspo", "objective"),
        ("vppo", "weight"),
        ("papo", "objective"),
        ("sfpo", "update"),
    ],
)
def test_a_method_is_listed_under_what_it_replaces_first(name, stage):
    assert home(METHODS[name]) == stage
    assert stage == "base" or stage in METHODS[name].stages


def test_every_method_has_a_section(rows):
    found = method_text.sections(rows)
    assert sum(map(len, found.values())) == len(METHODS)
    assert next(iter(found)) == "base" and [*found][-1] == "reconstruction"
    assert {r["evidence"] for section in [*found][:-1] for r in found[section]} == set(EVIDENCE[:-1])
    assert set(method_text.SECTIONS) == {"base", *STAGES, "reconstruction"}


def test_reconstructions_are_never_called_verified(rows):
    for row in rows:
        if row["evidence"] == "reconstruction":
            text = method_text.one(row["name"])
            assert "not verified" in text and not re.search(r"(?<!not )verified", text)


# ---------------------------------------------------------------- what merges
def test_conflicts_are_those_that_composing_finds():
    """Pairs at random: where no key is in conflict, composing may still refuse for what the methods say they refuse,
    for a signal that both provide, or for a credit that nobody reads."""
    names = sorted(METHODS)
    rng = random.Random(0)
    merged = refused = 0
    for _ in range(150):
        a, b = rng.sample(names, 2)
        clash = [key for key, others in conflicts(METHODS[a], list(METHODS.values())).items() if b in others]
        try:
            gxpo.method(f"{a}+{b}")
        except MethodConflict as error:
            assert any(key in str(error) for key in clash), f"{a}+{b}: {error}, not {clash}"
            refused += 1
        except ConfigError as error:
            assert clash or "does not have" not in str(error), f"{a}+{b}: {error}"
        else:
            assert not clash, f"{a}+{b} compose, and {clash} are in conflict"
            merged += 1
    assert merged > 10 and refused > 10


def test_a_conflict_is_the_same_from_both_sides():
    found = {name: conflicts(d, list(METHODS.values())) for name, d in METHODS.items()}
    for a, keys in found.items():
        for key, others in keys.items():
            assert all(a in found[b][key] for b in others) and a not in others


# ---------------------------------------------------------------- conditions
def test_each_condition_keeps_what_it_says(rows):
    for stage in STAGES:
        assert {r["name"] for r in select(rows, stage=stage)} == {n for n, d in METHODS.items() if stage in d.stages}
    for tier in EVIDENCE:
        assert {r["name"] for r in select(rows, evidence=[tier])} == {
            n for n, d in METHODS.items() if d.evidence == tier
        }
    assert {r["name"] for r in select(rows, cheap=True)} == {
        n for n, d in METHODS.items() if d.cost.split(";")[0] == "none beyond the base"
    }
    nothing = {r["name"] for r in select(rows, needs="none")}
    for name in METHODS:
        m = gxpo.method(name)
        assert (name in nothing) == (not m.needs and not m.signals), name
    both = [r["name"] for z in ("zero", "signal") for r in select(rows, zero_variance=z)]
    assert sorted(both) == sorted(METHODS)


def test_conditions_that_do_not_exist_say_what_does(rows):
    with pytest.raises(ConfigError, match="did you mean 'entropy'"):
        select(rows, needs="entropies")
    with pytest.raises(ConfigError, match="--stage is 'advantage'; it is one of credit"):
        select(rows, stage="advantage")
    with pytest.raises(ConfigError, match="unknown method 'gspo2'"):
        citations("grpo+gspo2")
    assert select(rows, evidence=["paper"], cheap=True, stage="update") == []
    assert method_text.counted([]) == "0 methods: no method meets these conditions"


def test_citations_of_a_composition_are_those_of_its_methods():
    text = citations("dr_grpo+gspo@paper+dr_grpo")
    assert text == METHODS["dr_grpo"].bibtex + "\n\n" + METHODS["gspo"].bibtex


# ---------------------------------------------------------------- made-up rollouts
def test_grpo_on_nine_groups():
    """c of 8 right: mean c / 8, sample std sqrt(8 / 7 p (1 - p)), eps 1e-6.

    c = 1: std .353553, .875 / .353554 = 2.474867, -.125 / .353554 = -.353552;   c = 4: std .534522, .935413
    """
    found = effect(gxpo.method("grpo"))
    assert isinstance(found, Effect) and not found.by_gradient
    assert found.right[0] is None and found.wrong[8] is None and found.wrong[0] == found.right[8] == 0
    assert found.right[1] == pytest.approx(2.474867, abs=1e-6) and found.wrong[1] == pytest.approx(-0.353552, abs=1e-6)
    assert found.right[4] == -found.wrong[4] == pytest.approx(0.935413, abs=1e-6)
    assert found.wrong[7] == -found.right[1]


def test_methods_that_change_no_credit_push_as_grpo_does():
    base = effect(gxpo.method("grpo"))
    for name in ("gspo", "dapo", "cispo", "papo"):
        assert effect(gxpo.method(name)).same_as(base), name
    assert not effect(gxpo.method("rloo")).same_as(base)
    assert effect(gxpo.method("rloo")).wrong[1] == pytest.approx(-1 / 7)


def test_an_objective_without_credit_is_shown_by_its_gradient():
    """GVPO at D = 0, beta .1: -dL / dlogp = (r - mean) beta / (G - 1) / groups; 9 groups of 8 times 4 tokens are 288
    entries: (r - mean) .1 / 7 / 9 * 288 = .457143 (r - mean), at c = 1 .4 and -.057143."""
    found = effect(gxpo.method("gvpo"))
    assert isinstance(found, Effect) and found.by_gradient
    assert found.right[1] == pytest.approx(0.4) and found.wrong[1] == pytest.approx(-0.4 / 7)


def test_own_rewards_take_the_place_of_the_given_ones():
    # lengths 2 and 6 of the right ones: mean 4, std sqrt(8), z = -+.707107, exp(-.05 z) = 1.035988, .965263; wrong: -1
    answers = [Answer("g", 1.0, 2), Answer("g", 1.0, 6), Answer("g", 0.0)]
    forest = gxpo.method("grpo_lead").shaped(rollouts(answers))
    assert forest.outcome.tolist() == pytest.approx([1.035988, 0.965263, -1.0], abs=1e-6)
    assert forest.component_names == ("correct", "concise") and forest.success.tolist() == [1, 1, 0]
    taxed = gxpo.method("dapo").fill(max_length=10).shaped(rollouts([Answer("g", 1.0, 9), Answer("g", 1.0, 8)]))
    assert taxed.outcome.tolist() == [0.5, 1.0]  # (9 - 8) / 2 over the last fifth of 10


def test_what_a_model_has_to_give_is_said():
    assert obstacle(gxpo.method("grpo")) == ""
    assert "baseline" in obstacle(gxpo.method("poise")) and "value" in obstacle(gxpo.method("gae"))
    assert "states" in obstacle(gxpo.method("gigpo"))
    assert effect(gxpo.method("poise")) == obstacle(gxpo.method("poise"))


def test_the_mean_over_tokens_and_groups_of_their_own():
    forest = rollouts([Answer("b", 1.0, 3), Answer("a", 0.0), Answer("b", 0.0, 5), Answer("a", 1.0)])
    assert forest.group == ["b", "b", "a", "a"] and forest.lengths().tolist() == [3, 5, 4, 4]
    assert push(gxpo.method("rloo"), forest).tolist() == [1, -1, -1, 1]


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "gspo", "dapo", "opo", "disco", "gdpo_multi", "tis"])
def test_equal_groups_teach_nothing(name):
    assert on_equal(gxpo.method(name)) == "zero"


@pytest.mark.parametrize("name", ["reinforce_pp", "gae", "poise", "gvpo", "papo", "grpo_lead", "spectral_po"])
def test_equal_groups_teach_something(name):
    """The last two say so nowhere: length tells right answers apart, and the first error wrong ones."""
    assert on_equal(gxpo.method(name)) == "signal"


@pytest.mark.parametrize("names", cover_in_lists(sorted(set(METHODS) - UNDECLARED), kinds_of_parts))
def test_who_learns_from_equal_groups_says_so(names):
    assert [name for name in names if learns_in_silence(name)] == []


def learns_in_silence(name):
    """A method that does not say that it learns from equal groups, and does on unequal lengths and log-probs and
    whatever else it reads, drawn at random."""
    m = gxpo.method(name).fill(horizon=12.0, max_length=12)
    forest = battery(5, sizes=(4, 4), rewards=(0.0, 1.0))
    scores = {"correct": forest.outcome}
    parts = (*m.shapes.values(), *m.rewards.values())
    scores |= {name: 0.05 * forest.lengths() for part in parts for name in getattr(part, "reads", ())}
    forest = forest.replace(
        action_text=["so <aux>"] * forest.n_steps,
        step_info=[{**info, "calls": [{"name": "search"}] * (n % 3)} for n, info in enumerate(forest.step_info)],
        info=[{**info, "needed_calls": 1} for info in forest.info],
    )
    forest = m.shaped(forest.with_rewards(forest.outcome, components=scores))
    signals = made_up(m, forest, 1)
    return m.reads_credit and bool((m.advantages(forest, signals) != 0).any()) and on_equal(m) != "signal"


# ---------------------------------------------------------------- text
def test_one_method_has_all_that_is_known_of_it():
    text = method_text.one("gspo")
    for word in ("formula", "evidence", "paper: ", "objective.ratio=sequence", "gspo@paper", "cost", "equal groups",
                 "merges with", "refuses", "try it", "gxpo train CONFIG --set method=gspo", "method gspo"):  # fmt: skip
        assert word in text, word
    assert all(len(line) <= 120 for line in text.split("\nmethod gspo")[0].splitlines())
    assert "grpo@trl" in method_text.one("grpo")
    assert method_text.one("dr_grpo+gspo") == repr(gxpo.method("dr_grpo+gspo"))


def test_conditions_on_the_table_show_in_its_count(rows):
    text = method_text.table(select(rows, stage="update"))
    assert "sfpo" in text and "gspo" not in text.split("methods: ")[0]
    assert re.search(r"^\d+ methods: .*reference-code", text, re.M)
