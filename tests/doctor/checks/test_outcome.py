"""Checks of the outcome: each is the first finding on a log written by hand."""

from __future__ import annotations

import numpy as np
import pytest
from tests.doctor.logs import (
    check_first_finding,
    healthy,
    log,
    noise,
    rise,
)

from gxpo.doctor import RunLog, diagnose

CASES: dict[str, RunLog] = {
    "entropy_collapse": log(
        **healthy(
            reward=np.minimum(rise(0.3, 0.9), 0.5) + noise(0.03),
            reward_std=0.5,
            entropy=rise(2.0, 0.02).clip(0.02) ** 2 + 0.01,
        )
        | {"zero_signal": rise(0.1, 0.95)}
    ),
    "length_hack": log(
        **healthy(
            reward=rise(0.5, 1.4) + noise(0.03),
            component__correct=0.5 + noise(0.03),
            component__thoughts=rise(0.0, 0.9),
            length=rise(100, 300),
        )
    ),
    "length_collapse": log(
        **healthy(
            reward=rise(0.5, 0.9) + noise(0.02),
            component__correct=rise(0.5, 0.1) + noise(0.02),
            component__brevity=rise(0.0, 0.8),
            length=rise(100, 12),
        )
    ),
    "judge_hacked": log(
        **healthy(
            reward=rise(0.3, 0.9) + noise(0.02),
            component__judge=rise(0.3, 0.9) + noise(0.02),
            component__held_out=rise(0.5, 0.1) + noise(0.02),
            component__exploitation=rise(0.1, 0.8) + noise(0.02),
        )
    ),
    "component_dominates": log(
        **healthy(
            reward=rise(0.7, 1.2) + noise(0.02),
            component__correct=rise(0.5, 0.2) + noise(0.02),
            component__form=rise(0.2, 1.0) + noise(0.01),
        )
    ),
    "kl_runaway": log(**healthy(reward=rise(0.6, 0.45) + noise(0.02), kl=np.exp(rise(-5, 1.5)), grad_norm=None)),
    "memorising": log(
        **healthy(eval__accuracy=[0.4, 0.41, 0.4, 0.39, 0.4, 0.38], eval__tasks=[200.0] * 6, epoch=rise(0.2, 12))
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_first_finding(name: str) -> None:
    check_first_finding(CASES[name], name)


def test_prompts_seen_once_are_not_memorised() -> None:
    accuracy = [0.5, 0.45, 0.4, 0.3, 0.2, 0.1]
    figures = {"eval__accuracy": accuracy, "eval__tasks": [200.0] * 6, "epoch": rise(0.0, 0.9)}
    assert diagnose(log(**healthy(figures))).findings[0].ids[0] == "component_dominates"


def test_few_rows_of_a_policy_that_is_gone() -> None:
    """Five rows of a console: one short answer is left."""
    figures = {"entropy": [0.96, 0.6, 0.04, 0.03, 0.03], "length": [53.0, 40.0, 4.0, 3.0, 3.0], "reward": [0.4] * 5}
    first = diagnose(log(**figures, grad_norm=[0.5, 0.4, 0.0, 0.0, 0.0], reward_std=[0.3] * 5)).findings[0]
    assert first.ids == ("entropy_collapse", "lr_too_high")


def test_a_loss_that_is_the_entropy_pays_for_certainty() -> None:
    entropy = rise(1.3, 0.05)
    run = log(**healthy(reward=rise(0.1, 0.0) + noise(0.01), entropy=entropy, loss=0.8 * entropy + noise(0.001)))
    first = diagnose(run).findings[0]
    assert first.ids == ("entropy_collapse",) and first.grade == "proved"
    assert first.evidence[0] == "loss / entropy = 0.8 at most steps"


def test_equal_evaluations_are_no_sign_of_memorising() -> None:
    run = log(**healthy(eval__accuracy=[0.4] * 4, eval__tasks=[200.0] * 4, epoch=rise(0.2, 12)))
    assert not any("memorising" in f.ids for f in diagnose(run).findings)


def test_answers_that_grow_are_paid_for_their_length() -> None:
    run = log(
        **healthy(reward=rise(0.5, 1.4) + noise(0.03), success=rise(0.5, 0.1) + noise(0.02), length=rise(100, 300))
    )
    assert diagnose(run).findings[0].ids == ("length_hack",)


def test_answers_that_shrink_to_a_few_words_in_four_rows() -> None:
    run = log(reward=[0.335, 0.481, 0.459, 0.438], length=[69.0, 29.5, 14.3, 8.9], grad_norm=[0.66, 1.14, 2.49, 4.11])
    first = diagnose(run).findings[0]
    assert first.ids == ("length_collapse",) and first.grade == "possible"


@pytest.mark.parametrize(("right", "is_paid_for_form"), [(rise(0.3, 0.3), True), (rise(0.3, 0.6), False)])
def test_one_component_beside_verdicts_that_stand_still(right: np.ndarray, is_paid_for_form: bool) -> None:
    figures = {"success": right + noise(0.03), "component__form": rise(0.2, 0.9), "reward": right + rise(0.2, 0.9)}
    ids = [x for f in diagnose(log(**healthy(figures))).findings for x in f.ids]
    assert ("component_dominates" in ids) == is_paid_for_form


@pytest.mark.parametrize(("late", "has_collapsed"), [(0.55, True), (0.9, False)])
def test_entropy_gone_early_below_the_top(late: float, has_collapsed: bool) -> None:
    """A gain in the first third, and nothing after it; a run that goes on to .9 has only become certain."""
    reward = np.concatenate([rise(0.3, 0.55, 20), rise(0.55, late, 40)]) + noise(0.03)
    figures = {"reward": reward, "entropy": np.concatenate([rise(0.6, 0.03, 12), np.full(48, 0.03)])}
    figures |= {"eval__reward": [0.4, 0.54, 0.55, late, late - 0.01, late], "zero_signal": None, "reward_max": 1.0}
    ids = [x for f in diagnose(log(**healthy(figures, zero_wrong=0.3 + noise(0.05)))).findings for x in f.ids]
    assert ("entropy_collapse" in ids) == has_collapsed


def test_entropy_that_is_gone_early_with_fewer_solved_groups_is_a_collapse() -> None:
    """The reward has gained at first; ever fewer groups have a right answer."""
    entropy = np.concatenate([np.geomspace(0.6, 0.05, 15), rise(0.05, 0.028, 45)])
    reward = np.concatenate([rise(0.45, 0.56, 15), np.full(45, 0.56)]) + noise(0.03)
    wrong = rise(0.31, 0.375) + noise(0.005)
    run = log("skyrl", **healthy(reward=reward, entropy=entropy, zero_wrong=wrong, reward_max=1.0, zero_signal=None))
    assert diagnose(run).findings[0].ids[0] == "entropy_collapse"


@pytest.mark.parametrize(("held_out", "has_collapsed"), [([0.22, 0.4, 0.52], False), ([0.22, 0.2, 0.21], True)])
def test_silent_groups_of_a_run_that_solves_more_are_no_collapse(held_out: list[float], has_collapsed: bool) -> None:
    """Groups of 4 on a small language model: four of five are silent in the end, and half of these are right."""
    early, late = np.zeros(25), np.zeros(35)
    figures = {
        "reward": np.concatenate([rise(0.24, 0.6, 25), late + 0.6]) + noise(0.05),
        "entropy": np.concatenate([np.geomspace(0.9, 0.15, 25), late + 0.12]),
        "zero_signal": np.concatenate([early + 0.62, late + 0.84]) + noise(0.04),
        "zero_wrong": np.concatenate([early + 0.56, late + 0.3]) + noise(0.04, turn=2),
        "reward_max": 1.0,
    }
    run = log(**healthy(figures, eval__accuracy=held_out, eval__tasks=[400.0] * 3))
    assert any("entropy_collapse" in f.ids for f in diagnose(run).findings) == has_collapsed


def test_a_judge_is_told_by_its_name() -> None:
    parts = {"component__llm_judge_reward": rise(0.37, 0.67), "component__accuracy_reward": rise(0.5, 0.28)}
    parts = {name: values + noise(0.01) for name, values in parts.items()}
    run = log(**healthy(parts, reward=rise(0.37, 0.67) + noise(0.01), length=rise(1200, 1800) + noise(20)))
    assert diagnose(run).findings[0].ids == ("judge_hacked",)


def test_answers_that_shrink_as_held_out_ones_get_worse() -> None:
    held_out = [0.64, 0.56, 0.45, 0.35, 0.28, 0.2]
    run = log("areal", **healthy(reward=rise(1.6, 2.0) + noise(0.02), length=rise(530, 156), eval__reward=held_out))
    assert diagnose(run).findings[0].ids == ("length_collapse", "memorising")


def test_answers_that_shrink_while_the_policy_leaves_its_reference() -> None:
    kl = -np.geomspace(0.003, 1.0, 60)
    run = log("unknown", **healthy(length=np.geomspace(80, 13, 60), kl=kl, reward=rise(-1.9, -1.5) + noise(0.02)))
    first = diagnose(run).findings[0]
    assert first.ids == ("length_collapse", "kl_runaway") and first.grade == "possible"


def test_a_form_that_is_learnt_first_and_right_answers_that_sink() -> None:
    right = np.concatenate([rise(0.14, 0.12, 30), rise(0.12, 0.09, 30)]) + noise(0.02)
    form = np.concatenate([rise(0.03, 0.95, 20), np.full(40, 0.97)])
    run = log(**healthy(reward=right + form, component__accuracy_reward=right, component__format_reward=form))
    assert diagnose(run).findings[0].ids == ("component_dominates",)


def test_solved_training_tasks_and_held_out_answers_that_get_worse() -> None:
    figures = {"reward": 0.94 + noise(0.02), "eval__reward": rise(0.904, 0.867, 33) + noise(0.003, 33)}
    first = diagnose(
        log("verl", **figures, reward_max=1.0, reward_min=0.0, grad_norm=2.0, entropy=rise(0.04, 0.02))
    ).findings[0]
    assert first.ids == ("memorising",)
