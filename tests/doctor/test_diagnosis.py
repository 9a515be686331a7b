"""Diagnosis: progress in a line, sicknesses that could not be checked, verdicts of short runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.doctor.logs import groups, healthy, log, noise, rise, rollouts

from gxpo.doctor import Finding, RunLog, Series, diagnose, diagnosis
from gxpo.doctor.diagnosis import progress, unchecked
from gxpo.doctor.sickness import SICKNESSES


def series(values: list[float], key: str, steps: list[float] | None = None) -> Series:
    return Series(np.array(steps or range(1, len(values) + 1), dtype=float), np.array(values), key)


def test_what_no_setting_can_show_is_not_listed():
    rows = {n: series([0.1, 0.2, 0.3], n) for n in ("reward", "grad_norm", "entropy", "length", "truncated")}
    log = RunLog("trl", ["x"], {**rows, "loss": series([float("nan")] * 3, "loss")})
    ids = {u.id for u in unchecked(log)}
    assert not ids & {"tool_failures", "slow_tail", "kl_too_high", "non_finite", "too_off_policy"}
    assert {"wrong_template", "memorising", "stale_sampler"} <= ids
    log.source = "unknown"
    assert {u.enable for u in unchecked(log)} == {
        "keep the completions of some steps beside the metrics: prompt, completion, reward, step",
        "evaluate on held-out prompts every few steps",
    }
    log.read = []
    assert unchecked(log) == []


def test_progress_in_a_line():
    assert progress(RunLog("trl", ["x"], {"reward": series([0.5], "reward")})) == (
        "1 step: too few to say whether the reward gains"
    )
    flat = RunLog("trl", ["x"], {"reward": series([0.0] * 40, "reward")})
    assert progress(flat) == "reward = 0 in all 40 steps"
    noise = [0.0, 0.1] * 10
    unsure = RunLog("trl", ["x"], {"reward": series([n + i * 0.0054 for i, n in enumerate(noise)], "reward")})
    assert progress(unsure).endswith("may gain, but by less than three standard errors")
    assert "gains" in diagnose(RunLog("trl", ["x"], {"reward": series([i / 40 for i in range(40)], "reward")})).progress


FLAT = {"reward": 0.4 + noise(0.03), "entropy": 0.5 + noise(0.004, turn=2), "length": 100 + noise(3)}


SILENT = {"zero_signal": 1.0, "reward_std": 0.0, "grad_norm": 0.0}


WORDS = ["red", "blue", "green", "black", "white", "brown", "pink", "grey"]


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
    result = diagnose(log(reward=[reward] * 2, zero_signal=[1.0] * 2))
    assert result.findings[0].ids == first and result.findings[0].severity == "warning"
    assert result.verdict.startswith("no group has had a signal") and "in the 2 steps so far" in result.verdict
    assert result.exit_code == 1


@pytest.mark.parametrize("n", [1, 9])
def test_few_steps_with_a_signal_are_no_verdict(n: int) -> None:
    result = diagnose(log(reward=[0.0] * n, zero_signal=[0.5] * n, reward_max=[1.0] * n, reward_min=[0.0] * n))
    assert (result.exit_code, result.points) == (2, n)
    assert result.advice == ["reward: run on, to 10 logged steps"]


def test_a_reward_that_neither_gains_nor_is_done_is_no_health() -> None:
    flat = {k: v[:10] if np.ndim(v) else np.full(10, v) for k, v in healthy(FLAT).items()}
    stalled = diagnose(log(**flat))
    assert stalled.exit_code == 2 and stalled.verdict.startswith("no verdict: reward ")
    assert "no clear gain" in stalled.verdict and "learning rate" in stalled.advice[-1]
    assert diagnose(log(**flat | {"reward": 0.9 + noise(0.03, 10)})).exit_code == 0
    assert diagnose(log(**flat | {"eval__accuracy": rise(0.3, 0.6, 6)})).exit_code == 0


def test_a_reward_below_zero_may_have_a_flipped_sign() -> None:
    charged = healthy(reward=rise(-0.8, -0.3) + noise(0.02), reward_std=None)
    assert "flipped sign" in diagnose(log(**charged)).doubt
    assert diagnose(log(**charged, eval__accuracy=rise(0.3, 0.6, 6))).doubt == ""


def test_held_out_accuracy_of_zero_is_no_health() -> None:
    result = diagnose(log(**healthy(eval__accuracy=[0.0] * 5)))
    assert result.exit_code == 2 and "0 in all 5 evaluations" in result.verdict


def test_a_log_without_a_reward_names_what_would_enable_a_verdict() -> None:
    run = log(length=100 + noise(3))
    run.raw = {k: series([0.5] * 60, k) for k in ("train/rewards_mean", "train/rewards_std", "perf/time")}
    result = diagnose(run)
    assert result.exit_code == 2 and result.unknown_keys == ["train/rewards_mean", "train/rewards_std"]
    assert result.advice == [
        "'train/rewards_mean' looks like the reward: --map reward=train/rewards_mean",
        "logging_steps=1, with save_steps=50, which writes trainer_state.json",
    ]


def test_a_verdict_names_truncation_and_its_consequence() -> None:
    rows = rollouts(groups(10, 4, lambda g, m: {"completion": f"{WORDS[m]} and then the", "score": 0.0}))
    cut = healthy(reward=0.0, **SILENT) | {"truncated": 0.9 + noise(0.02)}
    result = diagnose(log(**cut, rows=rows))
    assert [f.ids[0] for f in result.findings] == ["truncation", "all_wrong"]
    assert result.findings[1].follows_from == "truncation"
    assert result.verdict == (
        "90% of the completions are cut at the length limit (likely); in consequence every answer is scored as wrong "
        "from the first step on"
    )


def test_a_run_without_a_reward_has_no_progress_to_tell():
    length = RunLog("trl", ["x"], {"length": series([80.0] * 40, "length")})
    assert progress(length) == "no reward was logged in 40 steps"
    assert progress(RunLog("trl", ["x"])) == ""


def test_a_consequence_stands_after_its_cause_and_names_no_other():
    falls = log(**healthy(reward=rise(0.5, 0.2) + noise(0.02), clip_fraction=0.6), config={"epochs": 16})
    findings = diagnose(falls).findings
    assert findings[0].ids[0] == "too_off_policy"
    places = {f.ids[0]: i for i, f in enumerate(findings)}
    for f in findings:
        assert f.follows_from is None or places[f.follows_from] < places[f.ids[0]]
    titles = {f.ids[0]: f.title for f in findings}
    assert titles.get("advantage_sign", "the reward falls steadily") == "the reward falls steadily"


def test_methods_that_give_equal_groups_a_signal_are_counted():
    score = [[0, 0]] * 10 + [[0, 1]] * 2
    sample = rollouts(groups(12, 2, lambda g, m: {"completion": f"{g} {m}", "score": score[g][m], "step": 1 + g}))
    pairs = log(**healthy(reward=0.1 + noise(0.03), zero_signal=0.8 + noise(0.05)), rows=sample)
    counts = {"grpo": (0, 10), "ngrpo": (10, 10)}
    [first] = diagnose(pairs, recompute=lambda rollouts: counts).findings
    assert first.ids == ("group_too_small",)
    line = "computed on these rollouts: ngrpo would give a signal to 10 of 10 zero-signal groups (100%)"
    assert [x for x in first.remedy if x.startswith("computed")] == [line]


def test_progress_of_one_metric_stays_in_one_line():
    """The text of a diagnosis breaks progress at "; "."""
    flat = RunLog("trl", ["x"], {"reward": series([0.5, 0.4] * 20, "reward")})
    assert progress(flat).endswith("or more would have been visible)") and "; " not in progress(flat)


def test_a_guess_of_which_one_is_proved_is_left_out() -> None:
    proved = Finding(("verifier_rejects_right_answers",), "critical", "proved", "rejected")
    guess = Finding(("labels_misaligned", "verifier_rejects_right_answers"), "critical", "possible", "either")
    assert diagnosis._without_repeats([guess, proved]) == [proved]


@pytest.mark.parametrize(
    "figures",
    [
        {"kl": np.geomspace(0.01, 2.0, 60)},
        {"entropy": np.geomspace(0.6, 0.001, 60)},
        {"approx_kl": 0.4},
        {"staleness_mean": 20.0},
        {"repetition": rise(0.0, 0.6)},
        {"length": np.geomspace(100, 1.2, 60), "length_min": 1.0},
        {"length": rise(100, 600), "reward": rise(0.3, 1.8)},
        {"eval__accuracy": np.linspace(0.8, 0.4, 9)},
    ],
)
def test_a_rising_reward_is_not_healthy_beside_other_signs(figures: dict[str, Any]) -> None:
    assert diagnose(log(**healthy(reward=rise(0.3, 0.7) + noise(0.03)) | figures)).exit_code == 1


def test_slower_steps_are_a_note_and_no_doubt_of_a_gain() -> None:
    figures = healthy(reward=rise(0.3, 0.7) + noise(0.03)) | {"seconds": np.geomspace(10, 200, 60)}
    diagnosis = diagnose(log(**figures))
    assert diagnosis.doubt == "" and any("five times as long" in note for note in diagnosis.notes)


def test_a_guess_of_less_weight_explains_no_critical_finding() -> None:
    truncated = {"truncated": [0.3, 0.29, 0.45, 0.3, 0.31], "kl": [0.04, 2.18, 1.75, 2.25, 2.4]}
    run = log("unknown", reward=[0.69, 0.75, 0.39, 0.6, 0.55], length=[386.0, 372, 408, 370, 370], **truncated)
    for series in run.series.values():
        object.__setattr__(series, "steps", np.array([10.0, 300, 600, 1050, 1200]))
    found = diagnose(run).findings
    assert [f.ids[0] for f in found[:2]] == ["truncation", "kl_runaway"] and found[0].follows_from is None


def test_answers_at_a_limit_that_is_not_written_are_no_health() -> None:
    """The longest answer has 256 tokens in each step, and the mean one 240."""
    result = diagnose(log(**healthy(length=240 + noise(3), length_max=256.0, truncated=None)))
    assert result.exit_code == 1 and "a limit cuts many" in result.findings[0].title


def test_more_and_more_groups_without_a_right_answer_are_no_health() -> None:
    result = diagnose(log(**healthy(zero_wrong=rise(0.1, 0.5))))
    assert result.exit_code == 1 and "have no right answer" in result.findings[0].title


@pytest.mark.parametrize(("evaluated", "code"), [([-3.0, -1.0], 2), ([0.2, 0.9], 0)])
def test_two_evaluations_of_a_reward_differ_by_chance(evaluated: list[float], code: int) -> None:
    assert diagnose(log(**healthy(FLAT, eval__reward=evaluated))).exit_code == code


def test_a_flat_sum_of_parts_is_not_near_its_top_by_its_own_noise() -> None:
    """1.02 to 1.1 of a sum of which one part pays 0.1 of a largest 1, and nothing gains."""
    parts = {"component__a": 0.95 + noise(0.04), "component__b": 0.1 + noise(0.05, turn=3)}
    run = log(reward=1.05 + noise(0.05, turn=2), **parts, grad_norm=0.3)
    assert [finding.ids for finding in diagnose(run).findings] == [("no_gain",)]


UNTRAINED = {"optimiser_steps": 0.0, "empty_steps": np.arange(1.0, 61.0), "weights_crc": 7.0, "grad_norm": None}


def untrained(update: str | None, rows: Any = None, **figures: Any) -> Any:
    """A run of 60 steps with a flat reward, whose weights are the same throughout."""
    return diagnose(log("gxpo", {"update": update}, rows, **healthy(FLAT, UNTRAINED, loss=None, **figures)))


def test_a_run_that_trains_nothing_by_design_is_not_sick_for_it() -> None:
    for figures in ({}, {"grad_norm": 0.0}, {"reward": rise(0.5, 0.4)}):
        diagnosis = untrained("none", **figures)
        assert not diagnosis.sick and diagnosis.exit_code == 0, diagnosis.findings
        assert "update=none trains nothing, and no gain is looked for" in diagnosis.notes
        assert not any(SICKNESSES[u.id].of_training for u in diagnosis.unchecked)
    # the same figures of an update that trains, of an unknown one, and of one that took a step
    for name in ("epochs", "mine.py:update", None):
        assert untrained(name).findings[0].ids[0] == "weights_do_not_move"
    assert untrained("none", optimiser_steps=1.0).findings[0].ids[0] == "weights_do_not_move"


@pytest.mark.parametrize(
    "expected, figures",
    [
        ("no_eos", {"truncated": 1.0, "length_max": 180.0, "length_min": 180.0, "length": 180.0}),
        ("all_wrong", {"reward": 0.0, "reward_std": 0.0, "zero_signal": 1.0, "entropy": 0.6}),
        ("all_right", {"reward": 1.0, "reward_std": 0.0, "zero_signal": 1.0, "entropy": 0.6}),
    ],
)
def test_what_is_wrong_with_the_data_is_told_of_a_run_that_trains_nothing(
    expected: str, figures: dict[str, Any]
) -> None:
    findings = untrained("none", **figures).findings
    assert findings and expected in findings[0].ids
    assert not any(SICKNESSES[i].of_training for f in findings for i in f.ids)


def test_equal_answers_are_told_of_a_run_that_trains_nothing() -> None:
    rows = rollouts(groups(10, 4, lambda g, m: {"completion": "one answer", "score": 0.5}))
    assert untrained("none", rows).findings[0].ids[0] == "no_diversity"
