"""Checks of evaluation and data: each is the first finding on a log written by hand."""

from __future__ import annotations

import numpy as np
import pytest
from tests.doctor.logs import (
    FLAT,
    WORDS,
    N,
    check_first_finding,
    groups,
    healthy,
    log,
    noise,
    rise,
    rollouts,
)

from gxpo.doctor import RunLog, diagnose
from gxpo.doctor.series import Series

CASES: dict[str, RunLog] = {
    "blind_policy": log(**healthy(eval__picture_kl=[0.02, 0.004, 0.0004])),
    "duplicate_prompts": log(
        **healthy(epoch=rise(1, 60)),
        rows=rollouts(
            groups(30, 4, lambda g, m: {"completion": f"{WORDS[m]} {g}", "score": m % 2, "prompt": f"one of {g % 3}"})
        ),
    ),
    "eval_leak": log(
        **healthy(),
        rows=rollouts(
            groups(40, 4, lambda g, m: {"completion": f"{WORDS[m]} {g}", "score": m % 2, "held_out": g > 37})
            + groups(
                3,
                4,
                lambda g, m: {
                    "completion": f"{WORDS[m]}",
                    "score": m % 2,
                    "group": 50 + g,
                    "prompt": f"Prompt  {g}",
                    "held_out": True,
                },
            )
        ),
    ),
    "eval_too_small": log(**healthy(eval__accuracy=[0.5, 0.25, 0.5, 0.75, 0.5, 0.5], eval__tasks=[4.0] * 6)),
    "resume_discontinuity": log(**healthy(lr=np.concatenate([rise(1e-6, 4e-7, 30), rise(0.0, 1e-6, 30)]))),
    "slow_tail": log(**healthy(length_max=1500.0, seconds=10.0, seconds_sampling=8.0)),
    "tool_failures": log(
        **healthy(FLAT, tool_failures=0.8 + noise(0.05), tool_calls=1.5) | {"entropy": rise(0.5, 0.4)}
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_first_finding(name: str) -> None:
    check_first_finding(CASES[name], name)


def test_a_world_of_few_tasks_has_no_others_to_hold_out() -> None:
    rows = [
        {"group": g, "completion": f"{WORDS[m]} {g}", "score": m % 2, "prompt": f"task {g % 6}", "held_out": g > 11}
        for g in range(18)
        for m in range(4)
    ]
    leak = next(f for f in diagnose(log(**healthy(), rows=rollouts(rows))).findings if "eval_leak" in f.ids)
    assert leak.severity == "note"
    assert leak.evidence[1] == "there are only 6 different prompts in all: are there others to hold out?"


def test_old_weights_show_in_entropy_and_reward_at_once() -> None:
    back = {"reward": np.concatenate([rise(0.2, 0.9, 40), rise(0.35, 0.6, 20)]) + noise(0.03)}
    entropy = np.concatenate([rise(1.4, 0.9, 40), rise(1.3, 1.1, 20)]) + noise(0.01, turn=2)
    first = diagnose(log(**healthy(back, entropy=entropy))).findings[0]
    assert first.ids == ("resume_discontinuity",) and first.severity == "warning"
    assert first.title.startswith("at step 41 reward and entropy are back")
    # a reward that falls alone is of the verifier or the tasks
    assert not any("resume_discontinuity" in f.ids for f in diagnose(log(**healthy(back))).findings)


@pytest.mark.parametrize(("fall", "severity"), [(0.0, "note"), (0.2, "warning")])
def test_steps_made_again_lose_nothing_unless_the_reward_falls(fall: float, severity: str) -> None:
    """Steps 36 to 40 come twice, as after any resume from a checkpoint at 35."""
    reward = np.concatenate([rise(0.3, 0.6, 40), rise(0.57, 0.75, 20) - fall]) + noise(0.03)
    entropy = np.concatenate([rise(0.6, 0.4, 40), rise(0.42, 0.3, 20)]) + noise(0.005, turn=2)
    run = log(**healthy(reward=reward, entropy=entropy))
    steps = np.concatenate([np.arange(1.0, 41), np.arange(36.0, 56)])
    run.series = {n: Series(steps, s.values, n) for n, s in run.series.items()}
    (again,) = [f for f in diagnose(run).findings if "resume_discontinuity" in f.ids]
    assert again.severity == severity and again.evidence[0] == "step 40 is followed by step 36"


@pytest.mark.parametrize(("longest", "severity"), [(4000.0, "warning"), (1000.0, "note")])
def test_sampling_that_waits_for_one_answer_is_a_warning_where_it_is_extreme(longest: float, severity: str) -> None:
    run = log(**healthy(length_max=longest, seconds=100.0, seconds_sampling=80.0))
    assert [(f.ids, f.severity) for f in diagnose(run).findings] == [(("slow_tail",), severity)]


def test_tools_that_fail_from_one_step_on_come_before_the_fall() -> None:
    """A sandbox that dies in the middle: the reward is gone with it, and no rate is to blame."""
    alive, dead = [0.028, 0.023, 0.020, 0.030, 0.056, 0.093], [0.967, 0.98, 0.985, 0.985, 0.981, 0.968]
    rewards = [0.594, 0.641, 0.516, 0.484, 0.391, 0.5], [0.0, 0.016, 0.0, 0.0, 0.0, 0.0]
    run = log(tool_failures=alive * 5 + dead * 5, tool_calls=3.2, reward=rewards[0] * 5 + rewards[1] * 5, entropy=0.4)
    first = diagnose(run).findings[0]
    assert first.ids == ("tool_failures",) and "from step 31 on" in first.title


def test_rollouts_that_take_ten_times_the_mean() -> None:
    """Answers are of usual length; what is waited for is one trajectory."""
    run = log(**healthy(seconds=551.1, seconds_sampling=508.9, rollout_seconds=43.5, rollout_seconds_max=508.9))
    first = diagnose(run).findings[0]
    assert (first.ids, first.severity) == (("slow_tail",), "warning")


def test_many_passes_of_a_run_that_gains_and_is_not_evaluated_are_a_note() -> None:
    run = log(**healthy(epoch=rise(0, 39)))
    assert [f.severity for f in diagnose(run).findings if f.ids[0] == "duplicate_prompts"] == ["note"]


def test_a_schedule_that_came_to_its_end_and_begins_anew() -> None:
    rates = np.concatenate([rise(1e-5, 1e-8, 20), rise(5e-6, 1e-8, 40)])
    resumed = {f.ids[0]: f.severity for f in diagnose(log(**healthy(lr=rates))).findings}
    assert resumed.get("resume_discontinuity") == "note"
    # in the middle of a schedule it was no end
    broken = np.concatenate([rise(1e-5, 4e-6, 20), rise(1e-5, 1e-8, 40)])
    assert diagnose(log(**healthy(lr=broken))).findings[0].ids[0] == "resume_discontinuity"


def test_steps_that_are_made_again_have_their_pass_again() -> None:
    """Steps 31 to 40 come twice, each with its part of the pass: a resume from a checkpoint."""
    order = np.r_[0:40, 30:N]
    run = log(**healthy(epoch=rise(0.0, 2.0)))
    run.series = {n: Series(s.steps[order], s.values[order], n) for n, s in run.series.items()}
    assert [f.severity for f in diagnose(run).findings if f.ids[0] == "resume_discontinuity"] == ["note"]
    # the same steps with the data from the beginning
    passes = run.series["epoch"]
    anew = Series(
        passes.steps, np.where(np.arange(len(order)) < 40, passes.values, rise(0.0, 0.9, len(order))), "epoch"
    )
    run.series["epoch"] = anew
    assert [f.severity for f in diagnose(run).findings if f.ids[0] == "resume_discontinuity"] == ["warning"]


def test_steps_that_are_numbered_again_while_the_policy_goes_on() -> None:
    """Steps 31 to 40 come twice; entropy falls on from where it was, and does not come back to its level at step 31."""
    steps = np.r_[1.0:41.0, 31.0:51.0]
    run = log(**healthy(entropy=rise(0.6, 0.3) + noise(0.01)))
    run.series = {n: Series(steps, s.values, n) for n, s in run.series.items()}
    assert [f.severity for f in diagnose(run).findings if f.ids[0] == "resume_discontinuity"] == ["note"]
