"""`gxpo parts`: every part with its options, needs and users."""

from __future__ import annotations

import dataclasses
import json

import pytest
from typer.testing import CliRunner

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.cli.app import app
from gxpo.explain.parts import entries, show_parts
from gxpo.methods import METHODS
from gxpo.parts import registry
from gxpo.parts.definition import show
from gxpo.training.phase_plan import expand


def run(*words):
    return CliRunner().invoke(app, ["parts", *words])


def test_every_part_of_every_table_is_listed_once():
    listed = [(row["slot"], row["name"]) for row in entries()]
    assert sorted(listed) == sorted((slot, name) for _, slot, table in registry.PLACES for name in table)
    text = run().output
    assert f"{len(listed)} parts" in text and all(f"\n  {name} " in text for _, name in listed)
    assert all(row["summary"] and "\n" not in row["summary"] for row in entries())


def test_options_are_the_fields_with_their_defaults():
    kinds = {(slot, name): kind for _, slot, table in registry.PLACES for name, kind in table.items()}
    for row in entries():
        fields = [f for f in dataclasses.fields(kinds[row["slot"], row["name"]]) if f.init and f.name[0] != "_"]
        assert [o["name"] for o in row["options"]] == [f.name for f in fields]
        for option, field in zip(row["options"], fields, strict=True):
            if isinstance(field.default, (int, float, str)):
                assert option["default"] == field.default
            assert option["required"] == (
                field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            )


def test_one_part_whole():
    text = run("epochs").output
    assert "a part for update (gxpo/learning/base.py)" in text
    assert "  update.epochs       = 1     integer, 1 or more" in text
    assert "used by:" in text and "every method that names no other" in text
    text = run("kl").output
    assert "k1|abs|k2|k3|k3+" in text


def test_json():
    (row,) = json.loads(run("epochs", "--json").output)
    assert row["options"][0] == {
        "key": "update.epochs", "name": "epochs", "type": "integer", "range": "1 or more", "choices": None,
        "default": 1, "required": False}  # fmt: skip
    assert row["stage"] == "update" and row["default"] is True
    assert len(json.loads(run("--json").output)) == len(entries())


def test_users_of_a_part_are_methods_whose_composition_has_it():
    """Against what the methods resolve to, not against their definitions."""
    by_name = {row["name"]: row for row in entries() if row["stage"] == "rollout"}
    for name in METHODS:
        method = gxpo.method(name)
        used = by_name[show(method.rollout)]
        assert used["default"] or name in used["methods"], name


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["epoch"], "no part 'epoch'; did you mean 'epochs'?"),
        (["grpo"], "grpo is a method: gxpo methods grpo"),
        (["pass_atk"], "no part 'pass_atk'; did you mean 'pass_at_k'?"),
        (["--stage", "wieght"], "no stage 'wieght'; did you mean 'weight'?"),
    ],
)
def test_unknown_names_say_what_is_close(words, said):
    result = run(*words)
    assert result.exit_code != 0 and said in str(result.exception)


def test_a_stage_goes_by_every_name_that_the_pages_write():
    """By the keys of its parts, by `registry.part`, and by its folder."""
    slots = {
        "credit": {"credit"}, "advantage": {"credit"}, "credit.add": {"credit"},
        "weight": {"weight.NAME"}, "weighting": {"weight.NAME"}, "rollout": {"rollout"}, "rollouts": {"rollout"},
        "reward": {"reward.add.NAME"}, "reward.shape": {"reward.add.NAME"}, "reward.step": {"reward.add.NAME"},
        "surrogate": {"objective.surrogate"}, "objective.surrogate": {"objective.surrogate"},
        "ratio": {"objective.ratio"}, "control": {"objective.kl.control"}, "term": {"objective.add.NAME"},
        "objective": {"objective.surrogate", "objective.ratio", "objective.kl.control", "objective.add.NAME"},
        "segment": {"segment"}, "signal": {"signal.NAME"}, "update": {"update"}, "learners": {"update"},
        "sampler": {"tasks.sampler"}, "tasks.sampler": {"tasks.sampler"},
        "likelihood": {"likelihood"}, "likelihoods": {"likelihood"},
    }  # fmt: skip
    for stage, expected in slots.items():
        assert {row["slot"] for row in json.loads(show_parts(None, stage, as_json=True))} == expected, stage
    assert set(registry.STAGES) <= set(slots)


def test_stages():
    stages = {row["stage"] for row in entries()}
    assert stages == {
        "credit",
        "weight",
        "objective",
        "reward",
        "rollout",
        "segment",
        "signal",
        "update",
        "tasks.sampler",
        "likelihood",
    }
    text = show_parts(None, "update", as_json=False)
    assert "epochs" in text and "relative" not in text
    with pytest.raises(ConfigError):
        show_parts("relative", "update", as_json=False)
    assert "Example: gxpo parts relative" in run("--help").output


def test_a_part_inside_phases_counts_its_method():
    rows = {(row["slot"], row["name"]): row for row in entries()}
    phased = {name: d for name, d in METHODS.items() if "phases" in d.keys}
    assert phased
    for name, definition in phased.items():
        for phase in expand(definition.keys["phases"]):
            for key, value_of_key in phase.keys.items():
                part = registry.part_at(key, value_of_key.value)
                if isinstance(part, type):
                    (row,) = [r for (_, n), r in rows.items() if n == show(part) and name in r["methods"]]
                    assert row["methods"].count(name) == 1
