"""Every sickness is found on a log written by hand, as the first finding; healthy logs have none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.doctor.logs import N, groups, healthy, log, noise, rise, rollouts

from gxpo.doctor import RunLog, diagnose
from gxpo.doctor.sickness import SICKNESSES

FLAT = {"reward": 0.4 + noise(0.03), "entropy": 0.5 + noise(0.004, turn=2), "length": 100 + noise(3)}
SILENT = {"zero_signal": 1.0, "reward_std": 0.0, "grad_norm": 0.0}
WORDS = ["red", "blue", "green", "black", "white", "brown", "pink", "grey"]


def _rows(score: Any, **more: Any) -> Any:
    """Ten groups of four different texts, scored by score(group, member)."""
    return rollouts(groups(10, 4, lambda g, m: {"completion": f"{WORDS[m]} {g}", "score": score(g, m), **more}))


def _answers(said: Any, score: Any, reference: Any = lambda g: 10 + g) -> Any:
    """Ten groups of four: the answer said(group, member), its score, and the reference beside it."""
    return rollouts(
        groups(
            10,
            4,
            lambda g, m: {
                "completion": f"the answer is {said(g, m)}",
                "score": score(g, m),
                "reference": str(reference(g)),
                "prompt": f"question {g}",
            },
        )
    )


def _fall(at: int, low: float = 0.0) -> Any:
    """0.5 with noise until step `at`, then `low`."""
    values = 0.5 + noise(0.03)
    values[at:] = low
    return values


CASES: dict[str, RunLog] = {
    "all_wrong": log(**healthy(reward=0.0, reward_max=0.0, **SILENT), rows=_answers(lambda g, m: m, lambda g, m: 0.0)),
    "all_right": log(**healthy(reward=1.0, **SILENT), rows=_rows(lambda g, m: 1.0)),
    "reward_ignores_completion": log(**healthy(reward=0.5 + noise(0.2), **SILENT), rows=_rows(lambda g, m: g % 2)),
    "dead_component": log(
        **healthy(component__correct=rise(0.2, 0.5) + noise(0.03), component__style=0.0, component_std__style=0.0)
    ),
    "lr_too_high": log(
        **healthy(reward=_fall(20), entropy=np.where(np.arange(N) < 20, 0.6, 4.0), length=_fall(20, 5.0) * 10)
    ),
    "lr_too_low": log(**healthy(FLAT, lr=1e-8)),
    "weights_do_not_move": log(**healthy(FLAT, weights_crc=77.0)),
    "entropy_collapse": log(
        **healthy(
            reward=np.minimum(rise(0.3, 0.9), 0.5) + noise(0.03),
            reward_std=0.5,
            entropy=rise(2.0, 0.02).clip(0.02) ** 2 + 0.01,
        )
        | {"zero_signal": rise(0.1, 0.95)}
    ),
    "truncation": log(**healthy(FLAT) | {"truncated": 0.7 + noise(0.02), "reward": 0.05 + noise(0.01)}),
    "no_eos": log(**healthy(truncated=1.0, length=64.0, length_min=64.0, length_max=64.0)),
    "all_masked": log(
        **healthy(FLAT, truncated=1.0, length=64.0, length_min=64.0, length_max=64.0) | {"grad_norm": 0.0},
        config={"mask_truncated": True},
    ),
    "verifier_rejects_right_answers": log(
        **healthy(reward=0.0, **SILENT), rows=_answers(lambda g, m: 10 + g if m else 5, lambda g, m: 0.0)
    ),
    "labels_misaligned": log(
        **healthy(FLAT), rows=_answers(lambda g, m: 11 + g if m else 3, lambda g, m: float(m == 0 and g == 0))
    ),
    "no_diversity": log(
        **healthy(reward=0.5 + noise(0.2), **SILENT) | {"entropy": 0.001},
        rows=rollouts(groups(10, 4, lambda g, m: {"completion": f"same answer {g}", "score": g % 2})),
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
    "blind_policy": log(**healthy(eval__picture_kl=[0.02, 0.004, 0.0004])),
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
    "reward_sign": log(source="gxpo", **healthy(success=rise(0.6, 0.1) + noise(0.02), reward=rise(-0.6, -0.1))),
    "advantage_sign": log(
        **healthy(reward=rise(0.5, 0.2) + noise(0.02)),
        rows=rollouts(
            groups(10, 4, lambda g, m: {"completion": WORDS[m], "score": m % 2, "advantage": 1.0 - 2 * (m % 2)})
        ),
    ),
    "missing_scores": log(
        **healthy(reward=1.0, **SILENT), rows=_rows(lambda g, m: 1.0 if (g + m) % 3 == 0 else np.nan)
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
    "kl_too_high": log(**healthy(FLAT, kl=2e-3 + noise(2e-4), lr=1e-5), config={"beta": 5.0}),
    "kl_runaway": log(**healthy(reward=rise(0.6, 0.45) + noise(0.02), kl=np.exp(rise(-5, 1.5)), grad_norm=None)),
    "too_off_policy": log(
        **healthy(reward=rise(0.5, 0.3) + noise(0.02), clip_fraction=0.4 + noise(0.05), grad_norm=None),
        config={"epochs": 16},
    ),
    "sampler_mismatch": log(**healthy(FLAT, gap_mean=0.15 + noise(0.01)) | {"entropy": rise(0.5, 0.3)}),
    "stale_sampler": log(**healthy(gap_mean=rise(0.001, 0.5) + noise(0.002))),
    "logprob_shift": log(**healthy(gap_mean=2.5 + noise(0.1), gap_pearson=0.03 + noise(0.02))),
    "wrong_template": log(
        **healthy(FLAT),
        rows=rollouts(
            groups(10, 4, lambda g, m: {"completion": f"{WORDS[m]}<|im_end|>\n<|im_start|>user\n{g}", "score": m % 2})
        ),
    ),
    "wrong_groups": log(
        source="verl",
        **healthy(advantage_min=0.0, advantage_max=1.0, advantage_mean=rise(0.3, 0.7) + noise(0.03)),
    ),
    "group_too_small": log(
        **healthy(FLAT, zero_signal=0.55 + noise(0.05), entropy=rise(0.5, 0.4)), config={"group_size": 2}
    ),
    "duplicate_prompts": log(
        **healthy(epoch=rise(1, 60)),
        rows=rollouts(
            groups(30, 4, lambda g, m: {"completion": f"{WORDS[m]} {g}", "score": m % 2, "prompt": f"one of {g % 3}"})
        ),
    ),
    "memorising": log(
        **healthy(eval__accuracy=[0.4, 0.41, 0.4, 0.39, 0.4, 0.38], eval__tasks=[200.0] * 6, epoch=rise(0.2, 12))
    ),
    "eval_leak": log(
        **healthy(),
        rows=rollouts(
            groups(10, 4, lambda g, m: {"completion": f"{WORDS[m]} {g}", "score": m % 2, "held_out": g > 7})
            + groups(
                3,
                4,
                lambda g, m: {
                    "completion": f"{WORDS[m]}",
                    "score": m % 2,
                    "group": 20 + g,
                    "prompt": f"Prompt  {g}",
                    "held_out": True,
                },
            )
        ),
    ),
    "eval_too_small": log(**healthy(eval__accuracy=[0.5, 0.25, 0.5, 0.75, 0.5, 0.5], eval__tasks=[4.0] * 6)),
    "resume_discontinuity": log(**healthy(lr=np.concatenate([rise(1e-6, 4e-7, 30), rise(0.0, 1e-6, 30)]))),
    "non_finite": log(**healthy(loss=np.where(np.arange(N) < 40, 0.01, np.nan))),
    "slow_tail": log(**healthy(length_max=1500.0, seconds=10.0, seconds_sampling=8.0)),
    "tool_failures": log(
        **healthy(FLAT, tool_failures=0.8 + noise(0.05), tool_calls=1.5) | {"entropy": rise(0.5, 0.4)}
    ),
}


def test_every_sickness_has_a_case() -> None:
    assert set(CASES) == set(SICKNESSES)


@pytest.mark.parametrize("name", CASES)
def test_first_finding(name: str) -> None:
    found = diagnose(CASES[name]).findings
    assert found, "nothing was found"
    assert name in found[0].ids
    assert len(found[0].ids) <= 3
    assert found[0].evidence and found[0].remedy


@pytest.mark.parametrize(
    ("success", "first"),
    [(0.4, "reward_ignores_completion"), (1.0, "all_right")],
)
def test_one_reward_for_all_answers_is_too_easy_only_where_the_verifier_says_so(success: float, first: str) -> None:
    accepted = np.full(N, success) - 0.05 * (np.arange(N) % 2) * (success < 1)
    found = diagnose(
        log(**healthy(reward=np.ones(N), zero_signal=np.ones(N), success=accepted, reward_std=0.0))
    ).findings
    assert found[0].ids[0] == first and ("all_right" in {i for f in found for i in f.ids}) == (first == "all_right")


def test_groups_that_fall_to_zero_signal_at_once() -> None:
    """Sampling turns greedy at step 31: mixed rewards, no group with a signal, no completions to look at."""
    silent = np.where(np.arange(N) < 30, 0.2, 1.0)
    found = diagnose(log(**healthy(reward=0.5 + noise(0.1), zero_signal=silent))).findings
    assert found[0].ids == ("no_diversity", "reward_ignores_completion")
    assert "step 31" in found[0].title


QUIET: dict[str, RunLog] = {
    "gains": log(**healthy()),
    "slow gain": log(**healthy(reward=rise(0.3, 0.4) + noise(0.03))),
    "saturates": log(**healthy(reward=np.minimum(rise(0.4, 1.6), 1.0), zero_signal=np.minimum(rise(0.2, 1.4), 1.0))),
    "entropy sharpens while it gains": log(**healthy(entropy=rise(0.6, 0.01))),
    "clipped while it gains": log(**healthy(clip_fraction=0.2 + noise(0.03)), config={"epochs": 4}),
    "silent groups while it gains": log(**healthy(zero_signal=0.7 + noise(0.1))),
    "a penalty that never fires": log(
        **healthy(
            component__correct=rise(0.3, 0.7), component__overlong_penalty=0.0, component_std__overlong_penalty=0.0
        )
    ),
    "too short to say": log(**{k: v[:10] if np.ndim(v) else np.full(10, v) for k, v in healthy(FLAT).items()}),
    "longer and better": log(
        **healthy(length=rise(100, 250), eval__accuracy=rise(0.3, 0.7, 6), eval__tasks=[200.0] * 6)
    ),
    "evaluations at another cadence": log(**healthy(eval__accuracy=rise(0.3, 0.6, 6), eval__tasks=[200.0] * 6)),
    "a gap as of bfloat16": log(**healthy(gap_mean=0.012 + noise(0.002))),
    "a baseline that is no group's mean": log(
        source="gxpo",
        **healthy(),
        config={"method": "poise"},
        rows=rollouts(groups(10, 4, lambda g, m: {"completion": WORDS[m], "score": m % 2, "advantage": m % 2 - 0.1})),
    ),
    "pairs on purpose": log(source="gxpo", **healthy(), config={"group_size": 2, "method": "two_grpo"}),
}


@pytest.mark.parametrize("name", QUIET)
def test_healthy_runs_are_left_in_peace(name: str) -> None:
    diagnosis = diagnose(QUIET[name])
    assert [f.ids for f in diagnosis.findings if f.severity != "note"] == []
    assert diagnosis.exit_code == 0


@pytest.mark.parametrize(
    ("reward", "first"),
    [(0.0, ("all_wrong", "verifier_rejects_right_answers")), (1.0, ("all_right", "reward_ignores_completion"))],
)
def test_two_steps_without_signal_are_said_to_be_that(reward: float, first: tuple[str, ...]) -> None:
    said = diagnose(log(reward=[reward] * 2, zero_signal=[1.0] * 2))
    assert said.findings[0].ids == first and said.findings[0].severity == "warning"
    assert said.verdict.startswith("no group has had a signal") and "in the 2 steps so far" in said.verdict
    assert said.exit_code == 1


@pytest.mark.parametrize(("n", "steps"), [(1, "in 1 logged step,"), (2, "in 2 logged steps,"), (5, "")])
def test_few_steps_with_a_signal_are_said_to_be_few(n: int, steps: str) -> None:
    said = diagnose(log(reward=[0.0] * n, zero_signal=[0.5] * n, reward_max=[1.0] * n, reward_min=[0.0] * n))
    assert said.exit_code == 0
    assert said.verdict == (f"no sickness found {steps} too few for most checks" if steps else "no sickness found")
    assert said.as_json()["few"] == (n if steps else 0)


def test_the_verdict_tells_truncation_and_what_it_makes_of_the_rewards() -> None:
    rows = rollouts(groups(10, 4, lambda g, m: {"completion": f"{WORDS[m]} and then the", "score": 0.0}))
    cut = healthy(reward=0.0, **SILENT) | {"truncated": 0.9 + noise(0.02)}
    said = diagnose(log(**cut, rows=rows))
    assert [f.ids[0] for f in said.findings] == ["truncation", "all_wrong"]
    assert said.findings[1].follows_from == "truncation"
    assert said.verdict == (
        "90% of the completions are cut at the length limit (likely); in consequence every answer is scored as wrong "
        "from the first step on"
    )


@pytest.mark.parametrize(
    ("zero_signal", "step", "first"),
    [
        (1.0, 50, ("wrong_template", "all_wrong")),  # nothing has moved the policy: it never had the form
        (0.0, 50, ("all_wrong",)),  # NGRPO's advantages of all-wrong groups have: it was pushed away from the form
        (0.0, 1, ("wrong_template", "all_wrong")),  # it had not been moved far
    ],
)
def test_a_form_that_training_on_wrong_answers_drove_out_is_no_wrong_template(
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
    found = diagnose(log("gxpo", **healthy(success=0.0, reward=0.0, zero_signal=zero_signal), rows=rows)).findings
    assert found[0].ids == first
