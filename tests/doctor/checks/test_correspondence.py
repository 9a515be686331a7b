"""Checks of what belongs together: each is the first finding on a log written by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.doctor.logs import (
    FLAT,
    WORDS,
    check_first_finding,
    groups,
    healthy,
    log,
    noise,
    rise,
    rollouts,
)

from gxpo.doctor import RunLog, diagnose

VERIFIED = {
    "cause": "temperature",
    "finding": "the records say temperature 1, and their log-probs are the policy's at temperature 1.4",
    "remedy": "sample and train at one temperature",
    "largest": 0.83,
    "tolerance": 1e-4,
    "place": {"step": 4, "rollout": "a/0", "token": 7},
}
CASES: dict[str, RunLog] = {
    "advantage_sign": log(
        **healthy(reward=rise(0.5, 0.2) + noise(0.02)),
        rows=rollouts(
            groups(10, 4, lambda g, m: {"completion": WORDS[m], "score": m % 2, "advantage": 1.0 - 2 * (m % 2)})
        ),
    ),
    "wrong_groups": log(
        source="verl",
        **healthy(advantage_min=0.0, advantage_max=1.0, advantage_mean=rise(0.3, 0.7) + noise(0.03)),
    ),
    "too_off_policy": log(
        **healthy(reward=rise(0.5, 0.3) + noise(0.02), clip_fraction=0.4 + noise(0.05), grad_norm=None),
        config={"epochs": 16},
    ),
    "sampler_mismatch": log(**healthy(FLAT, gap_mean=0.15 + noise(0.01)) | {"entropy": rise(0.5, 0.3)}),
    "stale_sampler": log(**healthy(gap_mean=rise(0.001, 0.5) + noise(0.002))),
    "recorded_logprobs": replace(log(**healthy(FLAT)), verified={"steps": [VERIFIED, {**VERIFIED, "cause": None}]}),
    "logprob_shift": log(**healthy(gap_mean=2.5 + noise(0.1), gap_pearson=0.03 + noise(0.02))),
}


@pytest.mark.parametrize("name", CASES)
def test_first_finding(name: str) -> None:
    check_first_finding(CASES[name], name)


def test_what_verify_wrote_is_proved_and_explains_the_gap() -> None:
    run = replace(CASES["sampler_mismatch"], verified={"steps": [VERIFIED]})
    first, second = diagnose(run).findings[:2]
    assert (first.ids, first.severity, first.grade) == (("recorded_logprobs",), "critical", "proved")
    assert "(temperature)" in first.title and "0.83 nats at step 4, rollout 'a/0', token 7" in first.evidence[1]
    assert second.ids == ("sampler_mismatch",) and second.follows_from == "recorded_logprobs"
    changed = replace(run, verified={"steps": [{**VERIFIED, "cause": "records"}]})
    assert diagnose(changed).findings[0].ids[0] in ("sampler_mismatch", "recorded_logprobs")
    assert not any(f.ids[0] == "recorded_logprobs" for f in diagnose(CASES["sampler_mismatch"]).findings)


def test_rollouts_of_a_bounded_age_are_too_far_off_policy() -> None:
    age = np.minimum(2 * np.arange(60.0), 40)
    run = log("areal", **healthy(FLAT, staleness_mean=age))
    first = diagnose(run).findings[0]
    assert first.ids == ("too_off_policy", "stale_sampler") and "40 updates old" in first.title
    run = log("areal", **healthy(FLAT, staleness_mean=np.arange(60.0)))
    assert diagnose(run).findings[0].ids == ("stale_sampler",)


def test_a_gap_above_the_usual_from_the_first_step_is_a_mismatch_though_it_grows() -> None:
    run = log("unknown", gap_kl=np.geomspace(0.033, 2.1, 12), grad_norm=np.geomspace(0.2, 14, 12))
    assert diagnose(run).findings[0].ids == ("sampler_mismatch",)


def test_a_gap_that_grows_between_fresh_rollouts_is_a_mismatch() -> None:
    run = log("areal", **healthy(gap_kl=np.geomspace(0.001, 0.5, 60), staleness_mean=0.3, reward=rise(0.55, 0.0)))
    first = diagnose(run).findings[0]
    assert first.ids == ("sampler_mismatch", "stale_sampler") and "fresh" in first.title


def test_a_kl_of_nats_before_any_update() -> None:
    run = log(**healthy(kl=np.concatenate([[10833.0, 9211.0], np.full(58, 12000.0)]), reward=rise(0.3, 0.02)))
    assert "logprob_shift" in diagnose(run).findings[0].ids


def test_clipped_tokens_in_a_run_that_is_past_its_best() -> None:
    """A seventh of the tokens clipped; reward and held-out answers fall from 0.86 and 0.95."""
    reward = np.concatenate([rise(0.4, 0.86, 10), rise(0.86, 0.65, 50)]) + noise(0.02)
    held_out = np.array([0.3, 0.93, 0.95, 0.93, 0.88, 0.8, 0.78])
    run = log(**healthy(reward=reward, clip_fraction=0.14 + noise(0.01), zero_signal=None, eval__accuracy=held_out))
    first = diagnose(run).findings[0]
    assert (first.ids[0], first.severity) == ("too_off_policy", "critical")
    # harder tasks leave the held-out ones as they are
    kept = np.array([0.3, 0.8, 0.86, 0.9, 0.92, 0.94, 0.95])
    assert not diagnose(log(**healthy(reward=reward, clip_fraction=0.14, eval__accuracy=kept))).sick


def test_a_gap_of_old_rollouts_is_no_mismatch() -> None:
    gap = healthy(gap_kl=0.008 + noise(0.001), staleness_mean=2.0)
    assert diagnose(log("areal", **gap)).exit_code == 0
    assert diagnose(log("areal", **gap | {"staleness_mean": 0.0})).findings[0].ids == ("sampler_mismatch",)
    assert diagnose(log("areal", **gap | {"gap_kl": 0.1 + noise(0.01)})).findings[0].ids == ("sampler_mismatch",)


def off_centre(source: str, credit: Mapping[str, Any], **row: Any) -> RunLog:
    """A run that gains; in ten groups of scores 0 and 1 the advantages are 0 and 1.5, so that they add up to 3."""
    rows = groups(10, 4, lambda g, m: {"completion": WORDS[m], "score": m % 2, "advantage": 1.5 * (m % 2), **row})
    return log(source, {"credit": credit}, rollouts(rows), **healthy())


def wrong_groups_in(run: RunLog) -> bool:
    return any(f.ids[0] == "wrong_groups" for f in diagnose(run).findings)


GROUP_MEAN = {"credit": "relative", "credit.center": "mean", "credit.value": "outcome", "credit.group_by": ["group"]}
SILENT_CREDITS: dict[str, dict[str, Any]] = {
    "imitation": {"credit": "constant_advantage", "credit.origin": "demonstration"},
    "a value baseline": {"credit": "gae", "credit.lam": 0.9},
    "a baseline signal": {**GROUP_MEAN, "credit.center": "baseline", "credit.scale": "none"},
    "per token": {**GROUP_MEAN, "credit.unit": "token"},
    "a shift": {**GROUP_MEAN, "credit.shift": -0.1},
    "a sum with a constant": {**GROUP_MEAN, "credit.add.for_origin": "constant_advantage"},
    "a user's function": {"credit": "no_such_file.py:advantage"},
    "a user's value": {**GROUP_MEAN, "credit.value": "no_such_file.py:value"},
    "a part of another version": {"credit": "no_such_part"},
    "an option of another version": {**GROUP_MEAN, "credit.among": ["group"]},
    "no credit on record": {},
}


def test_a_sum_that_the_credit_promises_is_missed_in_gxpo() -> None:
    first = diagnose(off_centre("gxpo", GROUP_MEAN)).findings[0]
    assert first.ids == ("wrong_groups",) and first.grade == "likely"
    assert wrong_groups_in(off_centre("trl", {}))


@pytest.mark.parametrize("kind", SILENT_CREDITS)
def test_no_sum_is_missed_where_the_credit_promises_none(kind: str) -> None:
    assert not wrong_groups_in(off_centre("gxpo", SILENT_CREDITS[kind]))


def test_value_models_of_other_trainers_promise_no_sum() -> None:
    run = off_centre("verl", {})
    run.raw["critic/vf_loss"] = replace(run.series["loss"], key="critic/vf_loss")
    assert not wrong_groups_in(run)


def test_rollouts_outside_of_the_statistics_and_without_training_are_in_no_sum() -> None:
    """Scores 0 1 with advantages -1 1, and a third rollout, a reference answer, of score 1 and advantage 4."""

    def run(**of_the_third: Any) -> RunLog:
        rows = groups(10, 3, lambda g, m: {"completion": WORDS[m], "score": m > 0, "advantage": [-1.0, 1.0, 4.0][m]})
        changed = [{**row, **of_the_third} if row["advantage"] == 4.0 else row for row in rows]
        return log("gxpo", {"credit": GROUP_MEAN}, rollouts(changed), **healthy())

    assert wrong_groups_in(run())
    assert not wrong_groups_in(run(compared=False))
    assert not wrong_groups_in(run(advantage=np.nan))


@pytest.mark.parametrize("credit, speaks", [(GROUP_MEAN, True), (SILENT_CREDITS["imitation"], False)])
def test_advantages_against_the_scores_are_wrong_of_a_centred_credit_alone(
    credit: dict[str, Any], speaks: bool
) -> None:
    rows = groups(10, 4, lambda g, m: {"completion": WORDS[m], "score": m % 2, "advantage": 1.0 - 2 * (m % 2)})
    diagnosis = diagnose(log("gxpo", {"credit": credit}, rollouts(rows), **healthy()))
    assert any(f.ids[0] == "advantage_sign" for f in diagnosis.findings) is speaks
