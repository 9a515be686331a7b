"""Checks of the scores: each is the first finding on a log written by hand."""

from __future__ import annotations

import numpy as np
import pytest
from tests.doctor.logs import (
    FLAT,
    SILENT,
    answers,
    check_first_finding,
    healthy,
    log,
    noise,
    rise,
    scored_rows,
)

from gxpo.doctor import RunLog

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
