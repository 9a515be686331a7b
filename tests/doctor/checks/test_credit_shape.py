"""Checks of the advantages: each is the first finding on a log written by hand."""

from __future__ import annotations

import pytest
from tests.doctor.logs import (
    WORDS,
    check_first_finding,
    groups,
    healthy,
    log,
    noise,
    rise,
    rollouts,
)

from gxpo.doctor import RunLog

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
}


@pytest.mark.parametrize("name", CASES)
def test_first_finding(name: str) -> None:
    check_first_finding(CASES[name], name)
