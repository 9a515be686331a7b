"""A run ends after the step in which its budget is spent, and evaluates after equal shares of it."""

import json

import pytest

import gxpo
from gxpo.base.errors import ConfigError

KEYS = {
    "tasks.per_step": 2,
    "rollout.group_size": 2,
    "sampling.max_new_tokens": 5,
    "eval.tasks": 4,
    "eval.every": 0,
    "doctor.every": 0,
}


def parity(completion):
    return float(sum(map(ord, completion)) % 2)


def trained(out, **keys):
    return gxpo.train("tiny:cold", "arithmetic", "grpo", 50, parity, out=out, set={**KEYS, **keys})


def test_ends_after_the_step_that_spends_the_tokens(tmp_path):
    run = trained(tmp_path / "run", **{"trainer.max_tokens": 70})
    tokens = [row["generated_tokens"] for row in run.metrics]
    assert tokens[-1] >= 70 > tokens[-2]
    assert run.trainer.is_finished


@pytest.mark.slow
def test_ends_after_so_many_updates(tmp_path):
    keys = {"trainer.max_updates": 6, "update.epochs": 2, "update.minibatches": 2}
    run = trained(tmp_path / "run", **keys)
    updates = [row["optimiser_steps"] for row in run.metrics]
    assert sum(updates) >= 6 > sum(updates[:-1])


def test_steps_without_a_signal_count_towards_max_updates(tmp_path):
    with pytest.warns(UserWarning, match="nothing is learned"):
        run = gxpo.train(
            "tiny:cold",
            "arithmetic",
            "grpo",
            50,
            lambda completion: 0.0,
            out=tmp_path / "run",
            set={**KEYS, "trainer.max_updates": 3},
        )
    assert [row["optimiser_steps"] for row in run.metrics] == [0, 0, 0]
    assert run.trainer.is_finished


@pytest.mark.slow
def test_run_ends_after_max_seconds_counted_over_resumes(tmp_path):
    run = trained(tmp_path / "run", **{"trainer.max_seconds": 1e-6})
    assert len(run.metrics) == 1
    again = gxpo.resume(tmp_path / "run", reward=parity)
    assert len(again.metrics) == 1  # what the first part took counts


@pytest.mark.slow
def test_the_first_limit_ends_the_run(tmp_path):
    run = trained(tmp_path / "run", **{"trainer.max_tokens": 10**9, "trainer.max_updates": 3})
    assert len(run.metrics) < 50


@pytest.mark.slow
@pytest.mark.parametrize("points", [1, 3])
def test_evaluates_after_equal_shares_of_the_budget(tmp_path, points):
    run = trained(tmp_path / "run", **{"trainer.max_tokens": 120, "eval.points": points})
    spent = {0: 0, **{row["step"]: row["generated_tokens"] for row in run.metrics}}
    at = [row["step"] for row in run.evaluations]
    expected = [0]
    for step in range(1, len(run.metrics) + 1):
        crossed = any(spent[step - 1] < share * 120 / points <= spent[step] for share in range(1, points + 1))
        if crossed:
            expected.append(step)
    assert at == expected
    assert at[-1] == len(run.metrics)


@pytest.mark.slow
def test_a_stopped_run_with_a_budget_goes_on_to_the_same_end(tmp_path):
    keys = {"trainer.max_tokens": 120, "eval.points": 3}
    full_trained = trained(tmp_path / "whole", **keys)
    stop = lambda row: row["step"] == 3  # noqa: E731
    gxpo.train("tiny:cold", "arithmetic", "grpo", 50, parity, out=tmp_path / "part", set={**KEYS, **keys}, watch=stop)
    part = gxpo.resume(tmp_path / "part", reward=parity)
    machine = ("time_", "memory_")

    def rows(run, name):
        lines = [json.loads(line) for line in (run.path / name).read_text().splitlines()]
        return [{k: v for k, v in row.items() if not k.startswith(machine)} for row in lines]

    for name in ("metrics.jsonl", "evaluations.jsonl"):
        assert rows(part, name) == rows(full_trained, name)


def test_a_budget_of_nothing_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="max_tokens"):
        trained(tmp_path / "run", **{"trainer.max_tokens": 0})
