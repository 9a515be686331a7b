"""Checks of the samples: each is the first finding on a log written by hand."""

from __future__ import annotations

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
)

from gxpo.doctor import RunLog, diagnose

CASES: dict[str, RunLog] = {
    "truncation": log(**healthy(FLAT) | {"truncated": 0.7 + noise(0.02), "reward": 0.05 + noise(0.01)}),
    "no_eos": log(**healthy(truncated=1.0, length=64.0, length_min=64.0, length_max=64.0)),
    "all_masked": log(
        **healthy(FLAT, truncated=1.0, length=64.0, length_min=64.0, length_max=64.0) | {"grad_norm": 0.0},
        config={"mask_truncated": True},
    ),
    "wrong_template": log(
        **healthy(FLAT),
        rows=rollouts(
            groups(10, 4, lambda g, m: {"completion": f"{WORDS[m]}<|im_end|>\n<|im_start|>user\n{g}", "score": m % 2})
        ),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_first_finding(name: str) -> None:
    check_first_finding(CASES[name], name)


@pytest.mark.parametrize(
    ("zero_signal", "step", "first"),
    [
        (1.0, 50, ("wrong_template", "all_wrong")),  # nothing has moved the policy: it never had the form
        (0.0, 50, ("all_wrong",)),  # NGRPO's advantages of all-wrong groups have: it was pushed away from the form
        (0.0, 1, ("wrong_template", "all_wrong")),  # it had not been moved far
    ],
)
def test_a_form_that_training_drove_out_is_no_wrong_template(
    zero_signal: float, step: int, first: tuple[str, ...]
) -> None:
    row = {"score": 0.0, "advantage": -0.3, "step": step}
    rows = rollouts(
        groups(
            20,
            4,
            lambda g, m: (
                row | {"completion": f"{WORDS[m]} {WORDS[g % 8]}", "reference": str(10 + g), "prompt": f"{g}?"}
            ),
        )
    )
    results = diagnose(log("gxpo", **healthy(success=0.0, reward=0.0, zero_signal=zero_signal), rows=rows)).findings
    assert results[0].ids == first


def test_cut_completions_are_counted_over_the_run() -> None:
    """All are cut in step 1 and three quarters later: neither the worst step nor the last names the share."""
    cut = np.where(np.arange(N) == 0, 1.0, 0.75 + noise(0.02))
    first = diagnose(log(**healthy(FLAT, truncated=cut))).findings[0]
    assert (first.ids[0], first.title) == ("truncation", "75% of the completions are cut at the length limit")


def test_rollouts_that_contradict_the_logged_share_are_named() -> None:
    rows = rollouts(
        groups(20, 4, lambda g, m: {"completion": f"{g} {m}", "score": 0.0, "truncated": float(m == 0), "step": g})
    )
    first = diagnose(log(**healthy(FLAT, truncated=0.75), rows=rows)).findings[0]
    assert "of the rollouts that were read 25% are cut, by truncated 75%: the latter counts" in first.evidence


def test_a_gradient_that_ends_with_the_collapse_is_not_masked() -> None:
    """Entropy .96 to .03, length 53 to 3, then gradient 0: one answer is left."""
    gone = np.arange(N) >= 30
    figures = {
        "entropy": np.where(gone, 0.03, 0.96) + noise(0.002),
        "length": np.where(gone, 3.0, 53.0) + noise(0.2),
        "grad_norm": np.where(np.arange(N) >= 32, 0.0, 0.4),
        "reward": np.where(gone, 0.1, 0.4) + noise(0.02),
    }
    results = diagnose(log(**healthy(figures))).findings
    assert {"lr_too_high", "entropy_collapse"} & set(results[0].ids)
    assert all("all_masked" not in f.ids for f in results)


def test_single_steps_without_a_gradient_mask_nothing() -> None:
    """Only the spread over the whole step is known, which may lie between groups."""
    figures = {"grad_norm": np.where(np.arange(N) % 10 < 7, 0.0, 0.4), "zero_signal": None}
    assert all("all_masked" not in f.ids for f in diagnose(log(**healthy(figures))).findings)


def test_lengths_at_the_limit_in_every_step_are_cut() -> None:
    run = log(config={"max_tokens": 40}, **healthy(reward=0.0, **SILENT, length=40.0, length_min=None, truncated=0.2))
    first, second = diagnose(run).findings[:2]
    assert first.ids == ("no_eos", "truncation") and second.follows_from == "no_eos"


def test_a_gain_near_the_floor_does_not_excuse_cut_answers() -> None:
    cut = {"truncated": rise(0.7, 0.4) + noise(0.03), "reward": rise(0.003, 0.03) + noise(0.003)}
    severity = {r: diagnose(log(**healthy(cut, reward=cut["reward"] + r))).findings[0].severity for r in (0.0, 0.3)}
    assert severity == {0.0: "warning", 0.3: "note"}


def test_a_mean_length_near_the_limit_is_possibly_cut() -> None:
    run = log(**healthy(reward=0.2 + noise(0.03), truncated=None, length=900 + noise(20), length_max=1024.0))
    findings = [f for f in diagnose(run).findings if f.ids[0] == "truncation"]
    assert [f.grade for f in findings] == ["possible"] and "88%" in findings[0].title


def test_a_loss_that_keeps_no_rollout() -> None:
    first = diagnose(log("roll", kept=np.zeros(6), entropy=np.zeros(6))).findings[0]
    assert (first.ids, first.grade) == (("all_masked",), "proved")


def test_cut_answers_that_training_cures() -> None:
    cut = [0.271, 0.287, 0.102, 0.115, 0.166, 0.168, 0.172, 0.17, 0.217, 0.186, 0.125, 0.107, 0.098, 0.082]
    score = [0.416, 0.438, 0.531, 0.49, 0.525, 0.604, 0.506, 0.537, 0.449, 0.543, 0.592, 0.539, 0.545, 0.545]
    assert diagnose(log("verl", truncated=cut, reward=score, grad_norm=[0.7] * 14)).exit_code != 1


def test_two_rows_without_a_gradient_although_rewards_differ() -> None:
    """Half of the answers are whole: a mask of the others leaves a gradient."""
    figures = {"reward": [0.707, 0.765], "zero_signal": [0.516, 0.547], "truncated": [0.516, 0.555]}
    first = diagnose(log("ms-swift", grad_norm=[0.0, 0.0], kl=[0.0, 0.0], **figures)).findings[0]
    assert first.ids[:2] == ("all_masked", "weights_do_not_move")


def test_cuts_that_come_and_go_are_no_sickness() -> None:
    cut = np.concatenate([0.1 + noise(0.05, 50), np.full(10, 0.22)])
    assert all("truncation" not in f.ids for f in diagnose(log(**healthy(FLAT, truncated=cut))).findings)


def test_cuts_of_few_answers_leave_the_others_to_learn_from() -> None:
    cut = np.concatenate([0.14 + noise(0.05, 50), np.full(10, 0.3)])
    results = diagnose(log(**healthy(FLAT, truncated=cut))).findings
    assert [f.severity for f in results if "truncation" in f.ids] == ["warning"]


def test_steps_without_a_gradient_near_the_top_are_of_silent_groups() -> None:
    reward = np.concatenate([rise(0.5, 1.0, 20), np.full(40, 0.99)])
    grad = np.concatenate([np.full(20, 5.0), np.zeros(40)])
    run = log("verl", reward=reward, grad_norm=grad, advantage_max=0.5, advantage_min=-0.5)
    assert all("all_masked" not in f.ids for f in diagnose(run).findings)
