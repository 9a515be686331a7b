"""Checks of a collapse: the first finding on a log written by hand, breaks at once and slow falls."""

from __future__ import annotations

import numpy as np
import pytest
from tests.doctor.logs import N, check_first_finding, collapse, healthy, log, noise, rise

from gxpo.doctor import RunLog, diagnose

CASES: dict[str, RunLog] = {
    "lr_too_high": log(
        **healthy(reward=collapse(20), entropy=np.where(np.arange(N) < 20, 0.6, 4.0), length=collapse(20, 5.0) * 10)
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_first_finding(name: str) -> None:
    check_first_finding(CASES[name], name)


def test_a_reward_that_falls_is_no_healthy_run() -> None:
    """It falls by four standard errors, with nothing else to see."""
    results = diagnose(log(**healthy(reward=rise(0.5, 0.44) + noise(0.03)))).findings
    assert results[0].ids == ("lr_too_high", "reward_noise", "advantage_sign")
    assert (results[0].severity, results[0].grade) == ("warning", "possible")


def test_a_policy_that_breaks_in_the_first_steps_is_told_by_what_is_left() -> None:
    """One answer for all is learnt later: the reward ends above its start."""
    reward = np.concatenate([[0.3, 0.3], np.full(10, 0.02), rise(0.1, 0.4, 48)]) + noise(0.02)
    entropy = np.concatenate([[1.5, 1.4], np.full(58, 0.05)])
    first = diagnose(log(**healthy(reward=reward, entropy=entropy, kl=2.0))).findings[0]
    assert first.ids[0] == "lr_too_high" and any("is left" in line for line in first.evidence)


def test_a_reward_that_falls_while_evaluations_hold_is_a_note() -> None:
    run = log(**healthy(reward=rise(0.7, 0.4) + noise(0.02), eval__accuracy=[0.5, 0.5, 0.52, 0.5, 0.52, 0.53]))
    assert [f.severity for f in diagnose(run).findings if f.ids[0] == "lr_too_high"] in ([], ["note"])


def test_answers_that_shrink_before_the_reward_falls() -> None:
    """Length 350 to 5 from the third step on, score up to 0.6 and then to 0.03, with an ordinary gradient at first."""
    length = np.concatenate([[351, 353, 275, 286, 263, 214, 165, 180, 177, 178], rise(155, 75, 20), rise(74, 5, 18)])
    score = np.concatenate([[0.37, 0.36, 0.5, 0.51, 0.6, 0.54, 0.52, 0.48, 0.62, 0.5], rise(0.5, 0.37, 20)])
    score = np.concatenate([score, rise(0.37, 0.03, 18)])
    grad = np.concatenate([np.full(10, 1.2), rise(2, 6, 20), rise(6, 40, 18)])
    first = diagnose(log("verl", reward=score, length=length, grad_norm=grad, entropy=0.15)).findings[0]
    assert first.ids[0] == "length_collapse" and "lr_too_high" in first.ids


def test_answers_that_grow_into_their_limit_before_the_reward_falls() -> None:
    cut = np.concatenate([np.full(15, 0.01), rise(0.05, 0.9, 45)])
    reward = np.concatenate([rise(0.45, 0.6, 30), rise(0.6, 0.1, 30)]) + noise(0.01)
    first = diagnose(log("roll", reward=reward, truncated=cut, length=rise(380, 1000), grad_norm=0.3)).findings[0]
    assert first.ids[0] == "truncation" and "lr_too_high" in first.ids


def test_first_rows_of_a_short_table_that_alone_are_higher_are_no_fall() -> None:
    reward = [0.9, 0.7, *(0.5 + noise(0.01, 10))]
    assert all("lr_too_high" not in f.ids for f in diagnose(log(reward=reward)).findings)


def test_a_few_answers_fewer_of_solved_tasks_are_no_collapse() -> None:
    """1 and in single steps 0.97, with one long gradient beside many of next to 0."""
    reward = np.where(np.arange(N) % 20 == 19, 0.97, 1.0)
    grad = np.where(np.arange(N) % 20 == 19, 0.12, 2e-4)
    run = log(**healthy(reward=reward, zero_signal=np.where(reward < 1, 0.9, 1.0), grad_norm=grad))
    assert all("lr_too_high" not in f.ids for f in diagnose(run).findings)


def test_a_gradient_that_stays_three_times_as_long_beside_a_lost_third() -> None:
    reward = np.concatenate([rise(0.5, 0.9, 20), rise(0.9, 0.4, 40)]) + noise(0.03)
    figures = {"reward": reward, "grad_norm": rise(0.1, 0.4), "length": rise(300, 600), "entropy": rise(0.4, 0.5)}
    assert diagnose(log(**healthy(figures, zero_signal=None))).findings[0].ids[0] == "lr_too_high"
    # the same with an ordinary gradient may be harder tasks
    calm = diagnose(log(**healthy(figures, zero_signal=None, grad_norm=0.1 + noise(0.01), length=300 + noise(5))))
    assert calm.findings == [] or calm.findings[0].grade == "possible"


def test_one_word_that_is_fully_paid_and_not_right() -> None:
    """A majority's vote: every answer is the same word, its reward 1, and held-out answers are no longer right."""
    reward = np.concatenate([[0.5, 0.4, 0.1, 0.1, 0.2], np.full(55, 1.0)])
    figures = {
        "reward": reward,
        "length": np.r_[5.0, 4.0, 2.0, np.ones(57)],
        "entropy": np.r_[0.5, 0.1, np.full(58, 1e-3)],
    }
    run = log("verl", **figures, eval__accuracy=np.array([0.5, 0.5, 0.0, 0.0]))
    assert diagnose(run).findings[0].ids[0] == "length_collapse"


def test_spikes_of_the_kl_beside_answers_that_shrink() -> None:
    kl = np.where(np.arange(N) < 5, 0.01, np.where(np.arange(N) % 6 == 0, 200.0, 2.0))
    figures = {"reward": rise(4, 8) + noise(1), "kl": kl, "length": rise(200, 60) + noise(3), "zero_signal": None}
    first = diagnose(log(**healthy(figures, length_max=None, length_min=None))).findings[0]
    assert (first.ids[0], first.severity) == ("kl_runaway", "warning")


def test_single_right_answers_are_no_level_to_fall_from() -> None:
    reward = np.where(np.isin(np.arange(N), [9, 30, 41]), 0.02, 0.0)
    run = log(reward=reward, grad_norm=np.where(reward > 0, 0.3, 2e-5), truncated=1.0, length=256.0)
    assert all("lr_too_high" not in f.ids for f in diagnose(run).findings)
