"""Checks of the update: each is the first finding on a log written by hand."""

from __future__ import annotations

import numpy as np
import pytest
from tests.doctor.logs import (
    FLAT,
    N,
    check_first_finding,
    collapse,
    healthy,
    log,
    noise,
)

from gxpo.doctor import RunLog

CASES: dict[str, RunLog] = {
    "lr_too_high": log(
        **healthy(reward=collapse(20), entropy=np.where(np.arange(N) < 20, 0.6, 4.0), length=collapse(20, 5.0) * 10)
    ),
    "lr_too_low": log(**healthy(FLAT, lr=1e-8)),
    "weights_do_not_move": log(**healthy(FLAT, weights_crc=77.0)),
    "kl_too_high": log(**healthy(FLAT, kl=2e-3 + noise(2e-4), lr=1e-5), config={"beta": 5.0}),
    "non_finite": log(**healthy(loss=np.where(np.arange(N) < 40, 0.01, np.nan))),
}


@pytest.mark.parametrize("name", CASES)
def test_first_finding(name: str) -> None:
    check_first_finding(CASES[name], name)
