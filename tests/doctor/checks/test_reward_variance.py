"""Checks of the variance of rewards: each is the first finding on a log written by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.doctor.logs import (
    FLAT,
    SILENT,
    WORDS,
    N,
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

CASES: dict[str, RunLog] = {
    "reward_ignores_completion": log(
        **healthy(reward=0.5 + noise(0.2), **SILENT), rows=scored_rows(lambda g, m: g % 2)
    ),
    "dead_component": log(
        **healthy(component__correct=rise(0.2, 0.5) + noise(0.03), component__style=0.0, component_std__style=0.0)
    ),
    "verifier_outage": log(
        **healthy(reward=np.where((np.arange(N) >= 20) & (np.arange(N) < 28), 0.0, rise(0.4, 0.6) + noise(0.03)))
    ),
    "reward_noise": log(
        **healthy(FLAT),
        rows=rollouts(groups(10, 6, lambda g, m: {"completion": f"{WORDS[m // 3]} {g}", "score": m % 2})),
    ),
    "near_constant_reward": log(
        **healthy(FLAT) | {"reward": 0.5 + noise(1e-4), "reward_std": 3e-4, "zero_signal": 0.0}
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_first_finding(name: str) -> None:
    check_first_finding(CASES[name], name)


@pytest.mark.parametrize(("shift", "is_told"), [(7, True), (0, False)])
def test_rewards_of_other_rollouts(shift: int, is_told: bool) -> None:
    """In each of three steps as many rewards as right answers, but seven rows further on."""
    rows = []
    for step in (1, 2, 3):
        right = [(5 * i + step) % 4 == 0 for i in range(24)]
        rows += [
            {
                "step": step, "group": 3 * step + i // 8, "completion": f"{WORDS[i % 3]} {step} {i}",
                "score": float(right[(i + shift) % 24]), "success": float(right[i]),
            }
            for i in range(24)
        ]  # fmt: skip
    results = diagnose(log(**healthy(FLAT), rows=rollouts(rows))).findings
    titles = [f.title for f in results if "reward_noise" in f.ids and f.grade == "proved"]
    assert any(title.startswith("rewards belong to other rollouts") for title in titles) == is_told
    if is_told:
        assert "reward_noise" in results[0].ids


def test_a_reward_for_something_else_is_not_that_of_other_rollouts() -> None:
    """The form is paid, about as often as answers are right, but not as often in every step."""
    rows = [
        {
            "step": step, "group": 3 * step + i // 8, "completion": f"{WORDS[i % 3]} {step} {i}",
            "score": float((i + step) % 3 == 0), "success": float((5 * i + step) % (3 + step % 2) == 0),
        }
        for step in (1, 2, 3) for i in range(24)
    ]  # fmt: skip
    results = diagnose(log(**healthy(FLAT), rows=rollouts(rows))).findings
    assert not any(f.title.startswith("rewards belong to other rollouts") for f in results)


@pytest.mark.parametrize(
    ("success", "first"),
    [(0.4, "reward_ignores_completion"), (1.0, "all_right")],
)
def test_one_reward_for_all_is_easy_only_if_the_verifier_agrees(success: float, first: str) -> None:
    accepted = np.full(N, success) - 0.05 * (np.arange(N) % 2) * (success < 1)
    results = diagnose(
        log(**healthy(reward=np.ones(N), zero_signal=np.ones(N), success=accepted, reward_std=0.0))
    ).findings
    assert results[0].ids[0] == first and ("all_right" in {i for f in results for i in f.ids}) == (first == "all_right")


@pytest.mark.parametrize(
    ("figures", "severity", "grade"),
    [
        ({"advantage_max": np.where(np.arange(N) == 9, 875_000.0, 2.0)}, "critical", "likely"),
        ({"grad_norm": np.where(np.arange(N) == 9, 85_902.0, 0.45)}, "warning", "possible"),
    ],
)
def test_rewards_divided_by_a_deviation_near_0(figures: dict[str, Any], severity: str, grade: str) -> None:
    first = diagnose(log(**healthy(FLAT, figures, entropy=rise(0.6, 0.5)))).findings[0]
    assert (first.ids[0], first.severity, first.grade) == ("near_constant_reward", severity, grade)


def test_an_advantage_of_2_and_a_gradient_of_30_are_usual() -> None:
    figures = {"advantage_max": 2.5, "grad_norm": np.where(np.arange(N) == 9, 30.0, 0.45)}
    assert all("near_constant_reward" not in f.ids for f in diagnose(log(**healthy(FLAT, figures))).findings)


def test_an_outage_comes_at_once() -> None:
    """Right answers decline to none while the reference runs away: the policy broke, not the verifier."""
    figures = {"reward": np.clip(rise(0.6, -0.3), 0, 1) + 0.0, "kl": np.exp(rise(-7.0, 2.0))}
    assert all("verifier_outage" not in f.ids for f in diagnose(log(**healthy(figures))).findings)


def test_what_follows_a_gradient_that_is_not_finite() -> None:
    gone = np.arange(N) >= 40
    figures = {"grad_norm": np.where(gone, np.nan, 0.5), "reward": np.where(gone, 0.0, 0.5 + noise(0.03))}
    results = diagnose(log(**healthy(figures))).findings
    assert results[0].ids == ("non_finite",)
    assert all(f.follows_from for f in results[1:] if f.severity == "critical")


def test_advantages_without_a_recorded_spread_of_the_reward() -> None:
    flat = {"reward": 0.731 + noise(2e-4), "reward_std": None, "zero_signal": None, "advantage_max": 2.0}
    assert diagnose(log(**healthy(flat))).findings[0].ids == ("near_constant_reward",)
    ends = {"reward_max": 0.732, "reward_min": 0.73}
    assert diagnose(log(**healthy(flat, ends))).findings[0].ids == ("near_constant_reward",)
    # nearly all right: a step without a wrong answer is chance
    solved = diagnose(log(**healthy(flat, reward=0.999 + noise(2e-4)))).findings
    assert not any("near_constant_reward" in f.ids for f in solved)


def test_equal_groups_of_an_unsure_model_may_be_greedy() -> None:
    silent = healthy(reward=0.5 + noise(0.2), zero_signal=1.0, grad_norm=0.0, entropy=1.2, reward_std=0.5)
    assert diagnose(log(**silent)).findings[0].ids == ("reward_ignores_completion", "no_diversity")
    warm = diagnose(log(config={"temperature": 1.0}, **silent)).findings[0]
    assert warm.ids == ("reward_ignores_completion",)


def test_rewards_of_a_hundredth_that_only_shorten_the_answers() -> None:
    """BLEU as the only reward: 0.009 to 0.02, a deviation of 0.008, and half of the length is gone."""
    run = log(**healthy(reward=rise(0.009, 0.02), reward_std=0.008, length=rise(199, 80), zero_signal=0.02))
    first = diagnose(run).findings[0]
    assert first.ids == ("near_constant_reward", "length_collapse") and first.grade == "possible"


def test_one_reward_that_is_no_usual_largest_one() -> None:
    """Half a point for form, and a task's reward that is always 0."""
    run = log(reward=0.5, component__reward_fn=0.5, zero_signal=1.0, reward_std=0.0, grad_norm=0.1, kl=0.03)
    first = diagnose(run).findings[0]
    assert first.ids == ("reward_ignores_completion", "all_right") and "earns 0.5" in first.title


def test_a_level_that_single_groups_reach_by_chance_is_no_outage() -> None:
    """One prompt a step: all of its answers are wrong in three steps of ten, and three times in a row once."""
    reward = np.resize([0.0, 0.5, 0.0, 0.25, 0.0, 0.75, 0.5, 1.0, 0.5, 0.25], N)
    reward[31] = 0.0
    assert all("verifier_outage" not in f.ids for f in diagnose(log(reward=reward, length=100 + noise(3))).findings)


def test_a_rule_of_form_that_no_answer_breaks_is_a_note_while_the_run_gains() -> None:
    figures = {"component__correct": rise(0.2, 0.5) + noise(0.03), "component_std__format": 0.0}
    results = diagnose(log(**healthy(figures, component__format=0.0))).findings
    assert [f.severity for f in results if f.ids[0] == "dead_component"] == ["note"]
    # a reward that is never paid is none, unless another part of the form is
    figures = {"component__correct": rise(0.2, 0.5) + noise(0.03), "component__format_reward": 0.0}
    assert diagnose(log(**healthy(figures))).findings[0].severity == "warning"
    assert not diagnose(log(**healthy(figures, component__xml_tags=rise(0.1, 0.4) + noise(0.02)))).sick


def test_a_function_that_pays_next_to_nothing_in_a_run_that_does_not_gain() -> None:
    parts = {"component__relevance": 0.9 + noise(0.05), "component__json_format": np.where(np.arange(N) % 9, 0.0, 0.02)}
    run = log(reward=0.91 + noise(0.05), **parts, grad_norm=0.3)
    first = diagnose(run).findings[0]
    assert first.ids == ("dead_component",) and "json_format pays next to nothing" in first.title
