"""Plan of a trial: what its arms change, and what its runs cost."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from tests.compare.test_trial import COMMAND, OTHER, make_trial

from gxpo.compare.trial import Trial, run
from gxpo.compare.trial_arms import arms_of
from gxpo.compare.trial_plan import Cost, cost_of, plan_lines


def test_plan_states_changes_and_cost(folder: Path) -> None:
    trial = make_trial(folder, ("learning_rate=/10",))
    lines = plan_lines(trial, cost_of(trial, step_seconds=2.0, step_tokens=500.0))
    assert lines == [
        "base: as it is",
        "learning_rate=/10: learning_rate = the script's own divided by 10",
        # 6 runs of 10 steps: 120 s, 30,000 tokens
        "2 arms x 3 seeds = 6 runs of 10 steps, 6 to make: about 2 min 0 s at 2 s a step, 30 k generated tokens",
        "stops after 3 seeds, a fixed budget with one look at its end: at most 5 % false positives",
    ]


def test_cost_in_gpu_hours_counts_the_gpus_in_use(folder: Path) -> None:
    trial = make_trial(folder, ("learning_rate=/10",), jobs=2)
    # 6 runs of 10 steps of 60 s, two at a time: half an hour on two of the eight GPUs
    assert cost_of(trial, step_seconds=60.0, gpus=8).gpu_hours == pytest.approx(1.0)
    assert cost_of(trial, step_seconds=60.0).gpu_hours is None
    assert str(cost_of(trial, 60.0, gpus=8)) == "about 30 min 0 s at 60 s a step, 1 GPU-hours"
    assert cost_of(trial).seconds is None


def test_finished_run_tells_what_a_step_costs(folder: Path) -> None:
    (folder / "other.py").write_text(OTHER)
    trial = Trial(arms_of(["lr=2"], None), range(1), 10, folder / "runs", command=COMMAND)
    run(trial)
    more = dataclasses.replace(trial, seeds=range(3))
    # a step takes .5 s by the log: four runs of ten steps are left
    assert cost_of(more) == Cost(4, pytest.approx(20.0), None, None, pytest.approx(0.5))
