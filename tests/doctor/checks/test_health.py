"""Evidence for health and against it: what is said where no other check finds anything."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.doctor.logs import check_first_finding, healthy, log, noise, rise

from gxpo.doctor import RunLog, diagnose
from gxpo.doctor.checks.health import AGAINST

LEVEL = healthy(reward=0.4 + noise(0.03), length=rise(100, 120) + noise(3))
CASES: dict[str, RunLog] = {"no_gain": log(**LEVEL)}


@pytest.mark.parametrize("name", CASES)
def test_the_first_finding(name: str) -> None:
    check_first_finding(CASES[name], name)


def test_a_reward_that_stays_is_no_health() -> None:
    [level] = diagnose(log(**LEVEL)).findings
    assert level.severity == "warning" and level.title.startswith("reward is where it was after 60 logged points")
    assert any("log what is missing" in line for line in level.remedy)


@pytest.mark.parametrize(
    "figures",
    [
        {"reward": 0.4 + noise(0.5)},  # a gain would not have been seen
        {"reward": 0.9 + noise(0.03)},  # near its top
        {"reward": rise(0.3, 0.7) + noise(0.03)},
        {"eval__accuracy": rise(0.3, 0.6, 6), "eval__tasks": [200.0] * 6},  # held-out answers get better
        {"reward": -0.4 + noise(0.03)},  # charges alone: its sign is not known
    ],
)
def test_a_level_reward_is_no_finding_where_it_proves_nothing(figures: dict[str, Any]) -> None:
    findings = diagnose(log(**LEVEL | {"reward_std": 0.0} | figures)).findings
    assert "no_gain" not in [i for f in findings for i in f.ids]


def test_a_cause_stands_instead_of_no_gain() -> None:
    ids = [i for f in diagnose(log(**LEVEL | {"reward": 0.0, "zero_signal": 1.0})).findings for i in f.ids]
    assert ids and "no_gain" not in ids


@pytest.mark.parametrize(
    ("figures", "ids"),
    [
        ({"kl": np.geomspace(0.01, 2.0, 60)}, ("kl_runaway", "lr_too_high")),
        ({"approx_kl": 0.4}, ("too_off_policy", "lr_too_high", "sampler_mismatch")),
        ({"repetition": rise(0.0, 0.6)}, ("length_hack", "no_eos")),
        ({"clip_fraction": 0.25, "entropy": np.geomspace(0.8, 0.1, 60)}, ("too_off_policy", "sampler_mismatch")),
        (
            {
                "truncated": rise(0.0, 0.3),
                "length": rise(100, 200),
                "reward": np.minimum(rise(0.3, 1.1), 0.7) + noise(0.02),
            },
            ("length_hack", "truncation"),
        ),
        (
            {"reward": rise(0.4, 0.6) + noise(0.01), "component__ndcg": rise(0.3, 0.1), "component__bonus": None}
            | {"component__bonus": rise(0.4, 0.6) + noise(0.01) - rise(0.3, 0.1)},
            ("component_dominates", "judge_hacked"),
        ),
        (
            {"reward": rise(0.08, 0.16) + noise(0.01), "eval__reward": [0.06, 0.1, 0.1, 0.109, 0.1, 0.1, 0.1]},
            ("all_wrong", "component_dominates", "memorising"),
        ),
    ],
)
def test_a_sign_against_health_is_a_finding(figures: dict[str, Any], ids: tuple[str, ...]) -> None:
    diagnosis = diagnose(log(**healthy(reward=rise(0.3, 0.7) + noise(0.02)) | figures))
    assert diagnosis.exit_code == 1
    first = diagnosis.findings[0]
    assert first.ids == ids and (first.severity, first.grade) == ("warning", "possible") and first.evidence


def test_a_run_of_silent_groups_is_not_healthy_because_it_gains() -> None:
    silent = healthy(reward=rise(0.02, 0.12) + noise(0.01), zero_signal=None, zero_wrong=rise(0.97, 0.8))
    assert diagnose(log(**silent)).findings[0].ids[0] in ("group_too_small", "all_wrong")
    assert diagnose(log(**silent | {"zero_wrong": rise(0.9, 0.5)})).exit_code == 0
    done = {"reward": rise(0.8, 0.95) + noise(0.01), "zero_wrong": 0.02, "zero_signal": 0.9, "zero_right": 0.88}
    assert diagnose(log(**silent | done)).exit_code == 0


def test_every_sign_against_health_names_its_series() -> None:
    assert all(ids and words for ids, _, words, _ in AGAINST)


def test_a_component_near_0_that_is_not_paid_is_a_doubt() -> None:
    paid = rise(0.2, 0.7) + noise(0.02)
    run = log("unknown", reward=paid, component__g=paid, component__f=np.abs(noise(0.01)))
    assert "component" in diagnose(run).doubt and "but not paid" in diagnose(run).doubt
    assert diagnose(run).exit_code == 2
