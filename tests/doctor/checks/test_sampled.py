"""Checks of the samples: each is the first finding on a log written by hand."""

from __future__ import annotations

import pytest
from tests.doctor.logs import (
    FLAT,
    WORDS,
    check_first_finding,
    groups,
    healthy,
    log,
    noise,
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
