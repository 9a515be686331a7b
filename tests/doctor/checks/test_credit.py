"""Checks of the learning signal: each is the first finding on a log written by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.doctor.logs import (
    FLAT,
    SILENT,
    N,
    answers,
    check_first_finding,
    groups,
    healthy,
    log,
    noise,
    rise,
    rollouts,
    scored_rows,
)

from gxpo.doctor import RunLog, diagnose
from gxpo.doctor.series import Series

CASES: dict[str, RunLog] = {
    "all_wrong": log(**healthy(reward=0.0, reward_max=0.0, **SILENT), rows=answers(lambda g, m: m, lambda g, m: 0.0)),
    "all_right": log(**healthy(reward=1.0, **SILENT), rows=scored_rows(lambda g, m: 1.0)),
    "no_diversity": log(
        **healthy(reward=0.5 + noise(0.2), **SILENT) | {"entropy": 0.001},
        rows=rollouts(groups(10, 4, lambda g, m: {"completion": f"same answer {g}", "score": g % 2})),
    ),
    "group_too_small": log(
        **healthy(FLAT, zero_signal=0.55 + noise(0.05), entropy=rise(0.5, 0.4)), config={"group_size": 2}
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_first_finding(name: str) -> None:
    check_first_finding(CASES[name], name)


def test_groups_that_fall_to_zero_signal_at_once() -> None:
    """Sampling turns greedy at step 31: mixed rewards, no group with a signal, no completions to look at."""
    silent = np.where(np.arange(N) < 30, 0.2, 1.0)
    results = diagnose(log(**healthy(reward=0.5 + noise(0.1), zero_signal=silent))).findings
    assert results[0].ids == ("no_diversity", "reward_ignores_completion")
    assert "step 31" in results[0].title


@pytest.mark.parametrize("reward", [0.0, -1.0])
def test_a_reward_that_never_differs_says_nothing_of_group_sizes(reward: float) -> None:
    run = log(**healthy(reward=reward, **SILENT), config={"group_size": 2})
    assert all("group_too_small" not in f.ids for f in diagnose(run).findings)


def test_right_answers_of_rewards_from_minus_one_to_one() -> None:
    """Mean 0 between -1 and 1 is a half: .5^2 + .5^2 of pairs have equal rewards."""
    figures = healthy(FLAT, reward=noise(0.05), reward_max=1.0, reward_min=-1.0, zero_signal=0.55, reward_std=1.0)
    results = diagnose(log(**figures, config={"group_size": 2})).findings
    evidence = next(f for f in results if "group_too_small" in f.ids).evidence
    assert evidence[0].startswith("group size 2, share of right answers 0.50: 50% of groups")


def test_pairs_are_told_by_denominators() -> None:
    """Rewards are multiples of 1/16, shares of zero-signal groups of 1/8: two rollouts a prompt."""
    reward = np.round(16 * (0.4 + noise(0.15))) / 16
    figures = {"reward": reward, "reward_std": np.sqrt(reward * (1 - reward)), "entropy": rise(0.5, 0.4)}
    figures["zero_signal"] = np.round(8 * (0.6 + noise(0.3, turn=3))) / 8
    run = log(**healthy(figures))
    assert run.group_size == 2
    assert any("group_too_small" in f.ids for f in diagnose(run).findings)


def test_groups_of_which_hardly_any_has_a_signal_are_named_by_their_rewards() -> None:
    flat = {"reward": 0.05 + noise(0.03), "zero_signal": 0.93 + noise(0.05), "reward_std": None, "entropy": None}
    assert diagnose(log(**healthy(flat))).findings[0].ids == ("group_too_small", "all_wrong")
    flat["reward"] = 0.5 + noise(0.05)
    assert diagnose(log(**healthy(flat))).findings[0].ids[0] in ("no_diversity", "weights_do_not_move")


def test_one_right_answer_in_a_thousand_without_a_gain_is_none() -> None:
    reward = np.where(np.arange(60) % 9 == 4, 0.004, 0.0)
    assert diagnose(log(**healthy(reward=reward, reward_std=None, zero_signal=None))).findings[0].ids[0] == "all_wrong"


def test_charges_that_hardly_any_answer_has_are_all_right() -> None:
    reward = np.where(np.arange(60) % 3 == 1, -0.01, 0.0)
    run = log(**healthy(reward=reward, reward_std=None, zero_signal=0.95))
    assert "all_right" in [f.ids[0] for f in diagnose(run).findings]


def test_pairs_are_told_by_their_advantages() -> None:
    """A group of two has advantages of +-0.707 or none, and most have none where few or most answers are right."""
    pairs = {"advantage_max": 0.5**0.5, "advantage_min": -(0.5**0.5), "zero_signal": 0.8, "reward_max": 1.0}
    run = log("roll", **healthy(FLAT, pairs, reward=0.86 + noise(0.01)))
    assert run.group_size == 2 and diagnose(run).findings[0].ids == ("group_too_small",)
    assert log("roll", **healthy(FLAT, pairs, advantage_max=2.47)).group_size is None


def test_groups_are_no_baseline_where_a_value_model_is() -> None:
    """Rewards of 0 and 1 for single answers of PPO: a critic gives each of them an advantage."""
    run = log("verl", **healthy(zero_signal=1.0, reward_std=None))
    run.raw["critic/vf_explained_var"] = Series(np.arange(1.0, 61.0), np.full(60, 0.4), "critic/vf_explained_var")
    assert diagnose(run).exit_code == 0


def test_most_of_a_run_without_a_signal_at_the_top() -> None:
    reward = np.concatenate([rise(4.0, 10.5, 20), np.full(180, 10.5)])
    silent = np.concatenate([np.full(20, 0.2), np.full(180, 0.84)])
    first = diagnose(log(reward=reward, zero_signal=silent, grad_norm=np.full(200, 0.1))).findings[0]
    assert (first.ids[0], first.severity) == ("all_right", "warning")


def test_one_reward_for_nearly_every_answer() -> None:
    """A part for form is always paid, the task's never: 0.5 but for four steps of sixty."""
    reward = np.concatenate([[0.36, 0.42, 0.5, 0.5], np.full(40, 0.5), [0.4], np.full(14, 0.5), [0.1]])
    silent = np.where(reward == 0.5, 1.0, 0.5)
    first = diagnose(log("unsloth", reward=reward, zero_signal=silent, grad_norm=0.1, kl=0.03)).findings[0]
    assert first.ids[0] == "reward_ignores_completion"


def test_right_answers_that_begin_late_are_a_beginning() -> None:
    reward = np.where(np.isin(np.arange(N), [40, 45, 50, 53, 57]), 0.01, 0.0)
    run = log(reward=reward, success=reward, zero_signal=np.where(reward > 0, 0.9, 1.0))
    assert all("all_wrong" not in f.ids for f in diagnose(run).findings)


def test_few_right_answers_are_not_said_to_be_none() -> None:
    reward = np.where(np.isin(np.arange(N), [7, 21, 45]), 0.01, 0.0)
    first = diagnose(log(reward=reward, success=reward)).findings[0]
    assert first.ids[0] == "all_wrong" and "in 95% of the steps" in first.title


def test_pairs_that_hardly_learn_and_their_size_in_the_key() -> None:
    """SkyRL's avg_pass_at_2 is of groups of two; nine in ten stay without a right answer."""
    run = log("skyrl", reward=rise(0.05, 0.12) + noise(0.02), zero_wrong=rise(0.92, 0.84), grad_norm=0.03)
    run.series["zero_wrong"] = replace(run.series["zero_wrong"], key="1 - reward/avg_pass_at_2")
    first = diagnose(run).findings[0]
    assert (first.ids, first.severity) == (("group_too_small",), "warning")
    assert first.evidence[0] == "group size 2"


def test_a_largest_mean_is_no_share_of_right_answers() -> None:
    run = log(reward=np.array([0.182]), zero_signal=np.array([0.767]), config={"group_size": 2})
    assert diagnose(run).findings[0].evidence[0] == "group size 2"
