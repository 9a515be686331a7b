"""Checks of the scores: each is the first finding on a log written by hand."""

from __future__ import annotations

import numpy as np
import pytest
from tests.doctor.logs import (
    FLAT,
    SILENT,
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

CASES: dict[str, RunLog] = {
    "verifier_rejects_right_answers": log(
        **healthy(reward=0.0, **SILENT), rows=answers(lambda g, m: 10 + g if m else 5, lambda g, m: 0.0)
    ),
    "labels_misaligned": log(
        **healthy(FLAT), rows=answers(lambda g, m: 11 + g if m else 3, lambda g, m: float(m == 0 and g == 0))
    ),
    "reward_sign": log(source="gxpo", **healthy(success=rise(0.6, 0.1) + noise(0.02), reward=rise(-0.6, -0.1))),
    "missing_scores": log(
        **healthy(reward=1.0, **SILENT), rows=scored_rows(lambda g, m: 1.0 if (g + m) % 3 == 0 else np.nan)
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_first_finding(name: str) -> None:
    check_first_finding(CASES[name], name)


HALF_OPEN = rollouts(groups(10, 4, lambda g, m: {"completion": f"Let me see {m}.</think>{g + m}", "score": 0.0}))


def test_a_tag_that_the_prompt_opened_and_the_parser_misses() -> None:
    results = diagnose(log(**healthy(reward=0.0, **SILENT), rows=HALF_OPEN)).findings
    assert results[0].ids == ("verifier_rejects_right_answers", "all_wrong")
    assert "holds </think> without <think>" in results[0].title
    # another method gives a signal to wrong scores
    assert not any("ngrpo" in line for f in results for line in f.remedy)


def test_closed_tags_that_earn_something_are_no_sickness() -> None:
    rows = rollouts(groups(10, 4, lambda g, m: {"completion": f"see {m}.</think>{g}", "score": float(m > 1)}))
    assert all("verifier_rejects_right_answers" not in f.ids for f in diagnose(log(**healthy(), rows=rows)).findings)


def test_steps_without_a_mean_score_miss_scores() -> None:
    reward = 0.1 + noise(0.05)
    reward[::3] = np.nan
    first = diagnose(log(**healthy(reward=reward, grad_norm=0.0, loss=0.0))).findings[0]
    assert first.ids == ("missing_scores",) and first.title == "in 33% of the steps no rollout has a score"
    # with the loss not a number, something else broke
    broken = np.where(np.isnan(reward), np.nan, 0.0)
    assert diagnose(log(**healthy(reward=reward, loss=broken))).findings[0].ids[0] != "missing_scores"


def test_a_charge_for_length_is_no_flipped_sign() -> None:
    run = log(**healthy(reward=rise(-0.8, -0.1) + noise(0.02), length=rise(20, 4)))
    assert not any("reward_sign" in f.ids for f in diagnose(run).findings)


def test_a_total_that_is_one_component_less_another_has_a_negative_weight() -> None:
    right, form = rise(0.52, 0.0) + noise(0.01), rise(0.8, 1.0) + noise(0.01, turn=3)
    parts = {"component__accuracy_reward": right, "component__format_reward": form}
    first = diagnose(log(**healthy(parts, reward=form - right))).findings[0]
    assert first.ids == ("reward_sign",) and "accuracy_reward" in first.title
    first_ids = {f.ids for f in diagnose(log(**healthy(parts, reward=form + 0.2 * right))).findings}
    assert ("reward_sign",) not in first_ids


def test_a_score_in_other_units_below_zero_that_rises_is_no_flipped_verdict() -> None:
    reward = rise(-123.3, -80.0) + noise(5.0)
    assert diagnose(log(**healthy(reward=reward, component__score=reward))).exit_code != 1


def test_verdicts_that_fall_beside_a_form_that_is_learnt_are_no_wrong_sign() -> None:
    """One reward function for form, verdicts logged apart: the form is what the reward pays for."""
    figures = {"reward": rise(0.5, 1.1) + noise(0.02), "success": rise(0.4, 0.1) + noise(0.02)}
    run = log(**healthy(figures, component__format_score=rise(0.1, 1.0), zero_signal=None))
    assert diagnose(run).findings[0].ids[0] == "component_dominates"
