"""The list of methods that work elsewhere is what the adapters take, and what they refuse."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.adapters.llama_trl import trainer
from tests.battery import kinds_of_parts
from tests.thorough import ALL, few
from typer.testing import CliRunner

from gxpo.adapters import asks, available
from gxpo.adapters.verl_asks import why_not
from gxpo.base.errors import ConfigError
from gxpo.cli.app import app
from gxpo.methods import METHODS


@pytest.fixture(scope="module")
def rows():
    return {row.name: row for row in available.available("trl")}


def row_and_terms(row):
    """What the list says of a method, and the terms that a trainer is made of."""
    yield row.works, row.given, row.reason.partition(":")[0]
    yield from (kind for kind in kinds_of_parts(row.name) if kind[0] == "terms" and len(kind) == 2)


@pytest.mark.slow
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=ALL)], ids=["each kind", "each method"])
def test_the_list_says_what_can_be_made(rows, every):
    assert list(rows) == list(METHODS)
    tried = rows if every else few(rows, lambda name: row_and_terms(rows[name]))
    for name in tried:
        row = rows[name]
        if row.works:
            # room for thinking and a summary, which some rollouts take
            built_trainer = trainer(name, max_completion_length=32)
            assert built_trainer.gxpo_method.name == name and not row.reason
        else:
            with pytest.raises(ConfigError) as refused:
                trainer(name)
            # counts, and what there is instead, are of other rollouts and rewards
            reason = re.sub(r"\d+", "N", row.reason.split(": it has")[0])
            assert reason in re.sub(r"\d+", "N", str(refused.value))


@pytest.mark.parametrize("name", ["e_grpo", "grpo_d", "fipo", "mdpo", "step_grpo_r1vl", "trpa", "nft", "copg"])
def test_arguments_that_the_list_names_are_required(name):
    """Each thing alone is missed: the trainer names it."""
    need = available.needs_in_trl(name)[1]
    assert need.words()
    for thing in (*need.settings, *need.arguments, *need.rewards):
        if thing == "answers":
            continue  # a column of the data, which has a usual name
        with pytest.raises(ConfigError, match=thing):
            trainer(name, without=thing)


def test_a_row_of_verl_says_what_why_not_says():
    rows = available.available("verl", ["grpo", "gigpo", "grpo_lead", "gvpo", "dapo", "clip_cov"])
    for row in rows:
        reasons = [why_not(row.name, part) for part in ("advantage", "loss")]
        assert row.parts == tuple(p for p, r in zip(("advantage", "loss"), reasons, strict=True) if r is None)
        assert all(r is None or r in row.reason for r in reasons)
    (psr,) = [row for row in rows if row.name == "grpo_lead"]
    assert psr.given == ("+algorithm.gxpo_success_at=1.0",)


def test_the_printed_list_is_the_rows():
    rows = available.available("trl", ["grpo", "grpo_lead", "slate", "capo_genprm"])
    text = available.as_text("trl", rows)
    assert text.splitlines()[0].startswith("3 of 4 methods work in TRL, 1 of them as they are")
    assert "grpo_lead    give success_at=1.0" in text and "signal.step_judge.function=..." in text
    assert "slate        rollout=step_candidates: TRL samples the groups itself" in text
    read = json.loads(available.as_json("trl", rows))
    assert read["counts"] == {"methods": 4, "work": 3, "as_they_are": 1}
    assert read["methods"][2] == {"name": "slate", "works": False, "parts": [], "given": [], "reason": rows[2].reason}


def test_a_composition_has_a_row_too_and_another_trainer_none():
    (row,) = available.available("trl", ["rloo+gspo@trl"])
    assert row.works and row.parts == ("method",) and row.given == ()
    with pytest.raises(ConfigError, match="trainer is 'skyrl'; it is one of trl, verl"):
        available.available("skyrl")


@pytest.mark.slow
def test_the_list_imports_neither_trainer():
    code = (
        "import sys; from gxpo.adapters.available import available; available('verl', ['grpo']); "
        "available('trl', ['grpo']); assert not {'trl', 'verl', 'transformers'} & set(sys.modules), sys.modules.keys()"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stderr == ""


@pytest.mark.slow
def test_the_command_and_the_docs_count_the_rows(rows, monkeypatch):
    counts = available.counts(list(rows.values()))
    assert counts["methods"] == len(METHODS) and counts["work"] >= 150
    text = (Path(__file__).parents[2] / "docs" / "adapters.md").read_text()
    assert f"`gxpo methods --in trl` lists the {counts['work']} of {counts['methods']} that work" in text
    called = CliRunner().invoke(app, ["methods", "--in", "trl", "grpo_lead"])
    assert called.output.splitlines()[2:] == ["  grpo_lead  give success_at=1.0"]
    monkeypatch.setattr(available, "in_trl", rows.__getitem__)  # the rows of all methods take seconds
    listed = json.loads(CliRunner().invoke(app, ["methods", "--in", "trl", "--json"]).output)
    assert listed["counts"] == counts
    advised = CliRunner().invoke(app, ["methods", "--in", "trl", "--for", "all-wrong groups"]).output
    assert 'GRPOTrainer(model, method="lens", ...) of gxpo.adapters.trl; give success_at=1.0' in advised
    assert "ngrpo" in advised and "ghpo" in advised and "solutions='solution'" in advised
    refused = CliRunner().invoke(app, ["methods", "--in", "trl", "--cheap"])
    assert refused.exit_code == 2 and "--in goes with a NAME" in refused.output


def test_the_list_is_silent_about_its_own_trials(recwarn):
    asks._TRIALS.clear()
    assert [row.name for row in available.available("trl", ["adhint"])] == ["adhint"]  # its hints are tried, too
    assert [str(w.message) for w in recwarn] == []
