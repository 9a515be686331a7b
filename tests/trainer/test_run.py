"""What a finished run says of itself."""

import json

import pytest

import gxpo
from gxpo.errors import ConfigError
from gxpo.trainer.lock import locked
from gxpo.trainer.run import Run


def run_with(path, **evaluations):
    (path / "evaluations").mkdir(parents=True)
    for step, verdicts in evaluations.items():
        (path / "evaluations" / f"{step.replace('_', '-')}.json").write_text(json.dumps(verdicts))
    return Run(path, None)  # type: ignore[arg-type]  # the trainer has no part in it


def test_the_gain_pairs_the_same_tasks(tmp_path):
    """Differences 1, 0, 0, 0: mean 1/4, deviation 1/2, standard error 1/4, t(3, 0.975) = 3.182446."""
    before, after = {"a": 0.0, "b": 1.0, "c": 0.0, "d": 1.0}, {"d": 1.0, "c": 0.0, "b": 1.0, "a": 1.0}
    run = run_with(tmp_path, step_000000=before, step_000005={**before, "a": 0.5}, step_000010=after)
    mean, low, high = run.gain
    assert mean == 0.25
    assert (low, high) == pytest.approx((0.25 - 3.182446 / 4, 0.25 + 3.182446 / 4), abs=1e-6)


def test_one_evaluation_has_no_gain(tmp_path):
    assert run_with(tmp_path, step_000000={"a": 1.0}).gain is None


def test_a_directory_that_is_being_written_is_left_alone(tmp_path):
    keys = {"tasks.per_step": 2, "rollout.group_size": 2, "eval.tasks": 2, "sampling.max_new_tokens": 2}
    run = gxpo.train("tiny:cold", "arithmetic", steps=1, out=tmp_path / "run", set=keys)
    before = {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()}
    with locked(run.path), pytest.raises(ConfigError, match="is being written by another process"):
        gxpo.resume(run.path)
    assert {p: p.read_bytes() for p in run.path.rglob("*") if p.is_file()} == before
    assert gxpo.resume(run.path).trainer.step_number == 1  # the lock is gone
