"""Checks of sampler and learner: each is the first finding on a log written by hand."""

from __future__ import annotations

import pytest
from tests.doctor.logs import (
    FLAT,
    check_first_finding,
    healthy,
    log,
    noise,
    rise,
)

from gxpo.doctor import RunLog

CASES: dict[str, RunLog] = {
    "too_off_policy": log(
        **healthy(reward=rise(0.5, 0.3) + noise(0.02), clip_fraction=0.4 + noise(0.05), grad_norm=None),
        config={"epochs": 16},
    ),
    "sampler_mismatch": log(**healthy(FLAT, gap_mean=0.15 + noise(0.01)) | {"entropy": rise(0.5, 0.3)}),
    "stale_sampler": log(**healthy(gap_mean=rise(0.001, 0.5) + noise(0.002))),
    "logprob_shift": log(**healthy(gap_mean=2.5 + noise(0.1), gap_pearson=0.03 + noise(0.02))),
}


@pytest.mark.parametrize("name", CASES)
def test_first_finding(name: str) -> None:
    check_first_finding(CASES[name], name)
