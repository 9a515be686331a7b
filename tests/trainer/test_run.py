"""What a finished run says of itself."""

import json

import pytest

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
