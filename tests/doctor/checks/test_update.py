"""Checks of the update: each is the first finding on a log written by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.doctor.logs import (
    FLAT,
    N,
    check_first_finding,
    healthy,
    log,
    noise,
    rise,
)

from gxpo.doctor import RunLog, Series, diagnose, read
from gxpo.doctor.checks.update import implied_beta

CASES: dict[str, RunLog] = {
    "lr_too_low": log(**healthy(FLAT, lr=1e-8)),
    "weights_do_not_move": log(**healthy(FLAT, weights_crc=77.0)),
    "kl_too_high": log(**healthy(FLAT, kl=2e-3 + noise(2e-4), lr=1e-5), config={"beta": 5.0}),
    "non_finite": log(**healthy(loss=np.where(np.arange(N) < 40, 0.01, np.nan))),
}


@pytest.mark.parametrize("name", CASES)
def test_first_finding(name: str) -> None:
    check_first_finding(CASES[name], name)


def test_a_coefficient_of_5_holds_a_policy_at_a_tenth_of_a_nat() -> None:
    """The loss is 5 x the KL at every step: the coefficient is told by it."""
    kl = 0.08 + noise(0.02)
    first = diagnose(log(**healthy(FLAT, {"kl": kl, "loss": 5 * kl, "entropy": rise(0.6, 0.55)}))).findings[0]
    assert first.ids == ("kl_too_high",)


@pytest.mark.parametrize("reward", [None, 0.0])
def test_no_rest_without_a_reward_to_learn_from(reward: float | None) -> None:
    run = log(**healthy(FLAT, kl=0.0, reward=reward, reward_std=None, zero_signal=None, lr=1e-8))
    assert not {"weights_do_not_move", "lr_too_low"} & {i for f in diagnose(run).findings for i in f.ids}


def test_a_rate_of_a_billionth_needs_no_proof_of_rest() -> None:
    run = log("slime", **healthy(FLAT, reward=-0.1 + noise(0.08), entropy=rise(0.48, 0.47) + noise(0.03), lr=1e-9))
    assert diagnose(run).findings[0].ids == ("lr_too_low",)


def test_a_run_in_which_nothing_moves_is_possibly_too_slow() -> None:
    figures = healthy(FLAT, kl=rise(1e-4, 2.8e-3), entropy=0.5 + noise(0.05), zero_signal=None, reward_std=None)
    first = diagnose(log("verl", **figures)).findings[0]
    assert first.ids == ("lr_too_low", "weights_do_not_move", "kl_too_high") and first.grade == "possible"
    moving = diagnose(log("verl", **(figures | {"kl": rise(1e-4, 0.03)})))
    assert [finding.ids for finding in moving.findings] == [("no_gain",)]


def test_a_part_of_the_loss_tells_no_coefficient_of_the_kl() -> None:
    run = log("verl", **healthy(FLAT, kl=0.03, loss=0.039))
    assert implied_beta(run) == pytest.approx(1.3)
    run.series["loss"] = replace(run.series["loss"], key="actor/pg_loss")
    assert implied_beta(run) is None


def test_a_kl_in_the_reward_that_outweighs_it() -> None:
    """Rewards of -1 to 1 with 13 of KL taken off: the empty answer is the best one."""
    score = np.concatenate([[-0.68, -0.72, -0.84, -0.91, -0.92, -0.94, -0.97, -0.99], np.full(52, -1.0)])
    length = np.concatenate([[1759, 1921, 1751, 1353, 1233, 1014, 623, 278], np.full(52, 1.0)])
    charge = np.concatenate([[12.9, 13.4, 12.6, 9.8, 10.6, 14.2, 8.0, 2.5], np.full(52, 0.34)])
    run = log("verl", reward=score, reward_max=1.0, reward_min=-1.0, kl_charge=charge, length=length, grad_norm=1.0)
    first = diagnose(run).findings[0]
    assert first.ids == ("kl_too_high", "length_collapse") and first.severity == "critical"


def test_a_coefficient_is_told_through_noise_larger_than_its_term() -> None:
    """KL of at most 0.0005, a loss of 8 x the KL and noise of 0.005: no ratio is steady, their line through 0 is."""
    kl = rise(1e-4, 5e-4, 300)
    figures = {"kl": kl, "loss": 8 * kl + noise(5e-3, 300), "reward": 0.4 + noise(0.05, 300)}
    run = log(**figures, entropy=0.5 + noise(0.02, 300), grad_norm=np.full(300, 0.5))
    assert diagnose(run).findings[0].ids == ("kl_too_high",)
    assert implied_beta(log(kl=kl, loss=noise(5e-3, 300))) is None


def test_the_first_steps_of_a_long_warm_up_are_no_rate_that_is_too_low() -> None:
    """60 of 1,200 steps are logged: the rate may well rise to the end of them."""
    run = log(**healthy(reward=0.4 + noise(0.05), lr=rise(1e-8, 5e-7)), config={"max_steps": 1200})
    assert all("lr_too_low" not in f.ids for f in diagnose(run).findings)


@pytest.mark.parametrize(
    "figures",
    [
        # between -1 and 1, near its reference
        {"reward": -0.2 + noise(0.2, 400), "kl": rise(5e-4, 3e-3, 400), "entropy": 1.3 + noise(0.05, 400)},
        # at a nat from its reference from the first step to the last
        {"reward": -0.3 + noise(0.6, 200), "kl": 1.0 + noise(0.1, 200), "entropy": 0.6 + noise(0.03, 200)},
        # few rows, too noisy to see a gain, and within a thousandth of a nat
        {"reward": np.tile([-1.0, 0.7, -0.2], 110), "kl": rise(1e-4, 9e-4, 330)},
    ],
)
def test_a_policy_that_stays_where_it_is(figures: dict[str, np.ndarray]) -> None:
    first = diagnose(log("trl", **figures, grad_norm=np.full(len(figures["kl"]), 0.5))).findings[0]
    assert (first.ids[0], first.severity, first.grade) == ("lr_too_low", "warning", "possible")


def test_a_kl_that_is_no_number_in_any_row() -> None:
    steps = np.arange(1.0, 5.0)
    run = log(reward=np.array([13.0, 7.0, 6.0, 6.5]), loss=np.array([-0.28, -0.15, -0.11, -0.01]))
    run.series["kl"] = Series(steps, np.full(4, np.nan), "kl")
    first = diagnose(run).findings[0]
    assert first.ids == ("non_finite",) and first.title == "kl is not finite in any of 4 rows"


def test_a_kl_of_0_that_nobody_computed_proves_no_rest() -> None:
    """OpenRLHF logs 0 where the KL has no coefficient."""
    figures = {"reward": 0.5 + noise(0.1, 160), "kl": np.zeros(160), "length": 380 + noise(20, 160)}
    for source, is_proof in (("openrlhf", False), ("trl", True)):
        run = log(source, **figures, grad_norm=np.full(160, 0.1), lr=np.full(160, 1e-6))
        assert any("weights_do_not_move" in f.ids for f in diagnose(run).findings) == is_proof


def test_a_loss_of_the_critic_that_is_no_number(tmp_path: Path) -> None:
    line = "step:{} - critic/score/mean:0.594 - critic/vf_loss:{} - actor/pg_loss:-0.013 - actor/grad_norm:9.8\n"
    (tmp_path / "train.log").write_text(line.format(1, "nan"))
    assert diagnose(read(tmp_path)).findings[0].ids == ("non_finite",)
    (tmp_path / "train.log").write_text(line.format(1, "0.2"))
    assert diagnose(read(tmp_path)).exit_code == 2
