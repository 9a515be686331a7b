"""`gxpo best-of` as typed: on a log, on samples, refusals."""

import json

import pytest
from tests.cli.small_run import run

import gxpo
from gxpo.cli.best_of import _text


@pytest.fixture(scope="module")
def value_run(tmp_path_factory):
    """A run with a value head, and the rollouts of its steps."""
    out = tmp_path_factory.mktemp("values") / "run"
    keys = {"tasks.per_step": 2, "rollout.group_size": 2, "sampling.max_new_tokens": 4, "eval.tasks": 2}
    keys |= {"trainer.rollouts_every": 1, "trainer.checkpoint_every": 1}
    gxpo.train("tiny:cold", "arithmetic", "gae", 1, out=out, set=keys)
    return out


@pytest.mark.slow
def test_the_command_ranks_a_log(value_run):
    code, text, err = run("best-of", value_run, value_run / "rollouts", "--json")
    figures = json.loads(text)
    assert code == 0 and figures["answers"] == 4 and [row["n"] for row in figures["table"]] == [1, 2], err
    assert figures["fitted_to_these"] is False


@pytest.mark.slow
def test_the_command_samples_and_prints_a_table(value_run):
    code, text, err = run("best-of", value_run, "--samples", 2, "--tasks", 3)
    assert (
        code == 0 and " ".join(text.split("\n")[0].split()) == "of n by lot by value by likelihood best there is groups"
    ), err
    assert "by value less by lot, of 2: +0.000" in text


def test_records_and_a_policy_at_once_are_refused(tmp_path):
    code, _, err = run("best-of", tmp_path, tmp_path, "--policy", tmp_path)
    assert code == 2 and "leave one of them out" in err and err.count("\n") == 1


def test_the_table_and_what_is_said_below_it():
    row = {"n": 2, "groups": 3, "by_lot": 0.5, "by_value": 0.75, "best": 1.0}
    figures = {"table": [row], "gain": 0.25, "gain_low": 0.1, "gain_high": 0.4, "ordered_pairs": 0.8, "pairs": 5}
    lines = _text({**figures, "fitted_to_these": True}).split("\n")
    assert lines[1].split() == ["2", "0.500", "0.750", "-", "1.000", "3"]
    assert lines[2] == "by value less by lot, of 2: +0.250 (+0.100 to +0.400)"
    assert lines[3] == "the better of two answers has the higher value in 0.800 of 5 pairs (lot: .5)"
    assert lines[4].startswith("the value was fitted to these answers")
