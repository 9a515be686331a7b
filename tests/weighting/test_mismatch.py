"""Truncated importance weights: the card's numbers, what is unknown, products."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gxpo.errors import ConfigError
from gxpo.forest import Forest
from gxpo.weighting import Truncated, WeightProduct, truncated

NAN, INF = float("nan"), float("inf")


def forest_of(n: int) -> Forest:
    turn = {"action": [1] * n, "logprob": [-1.0] * n}
    return Forest.from_records([{"schema": "gxpo.rollouts/1", "group": "a", "id": "t", "prompt": [1], "turns": [turn]}])


def test_card() -> None:
    behaviour = torch.tensor([-1.0, -0.5, -2.0, -0.1, -0.9], dtype=torch.float64)
    wanted = torch.tensor([0.25, 0.8, 1.0, 1.5, 4.0], dtype=torch.float64)
    proximal = behaviour + wanted.log()
    assert truncated(proximal, behaviour).tolist() == pytest.approx([0.25, 0.8, 1.0, 1.5, 2.0])
    assert truncated(proximal, behaviour, cap=8.0).tolist() == pytest.approx(wanted.tolist())


def test_the_same_policy_weighs_exactly_one_and_so_does_an_unknown_one() -> None:
    x = torch.tensor([-0.3, -7.0, -1e-9])
    assert torch.equal(truncated(x, x), torch.ones(3, dtype=torch.float64))
    unknown = torch.tensor([NAN, -7.0, NAN])
    assert torch.equal(truncated(x, unknown), torch.ones(3, dtype=torch.float64))
    assert torch.equal(truncated(unknown, x), torch.ones(3, dtype=torch.float64))


LOGPROB = st.one_of(st.floats(-1e5, 0), st.sampled_from([-INF, NAN, 0.0]))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(LOGPROB, LOGPROB), min_size=1, max_size=8), st.sampled_from([0.5, 1.0, 2.0, 1e6]))
def test_weights_are_finite_bounded_and_the_capped_ratio(pairs: list[tuple[float, float]], cap: float) -> None:
    found = truncated(torch.tensor([p for p, _ in pairs]), torch.tensor([b for _, b in pairs]), cap).tolist()
    for weight, (p, b) in zip(found, pairs, strict=True):
        assert 0 <= weight <= cap or math.isnan(p) or math.isnan(b) or p == b == -INF
        if math.isfinite(p) and math.isfinite(b) and p - b < 20:
            p, b = (float(torch.tensor(v)) for v in (p, b))  # as float32 holds them
            assert weight == pytest.approx(min(math.e ** (p - b), cap), rel=1e-9)


def test_the_part_reads_its_signals_and_multiplies() -> None:
    forest = forest_of(3)
    signals = {
        "proximal_logprob": torch.tensor([-1.0, -1.0, -1.0], requires_grad=True),
        "behaviour_logprob": torch.tensor([-1.0, -3.0, -0.5]),
    }
    weight = Truncated()(forest, torch.ones(3), signals, 0)
    assert weight.tolist() == pytest.approx([1.0, 2.0, math.exp(-0.5)]) and not weight.requires_grad
    assert weight.dtype == torch.float64
    both = Truncated() * Truncated(cap=1.0) * Truncated(cap=4.0)
    assert isinstance(both, WeightProduct) and len(both.parts) == 3
    assert both(forest, torch.ones(3), signals, 0).tolist() == pytest.approx([1.0, 2.0 * 1.0 * 4.0, math.exp(-1.5)])

    def positive(forest: Forest, credit: torch.Tensor, signals, step: int) -> torch.Tensor:
        return (credit > 0).double()

    credit = torch.tensor([1.0, -1.0, 0.0])
    for product in (Truncated() * positive, positive * Truncated()):
        assert product(forest, credit, signals, 0).tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("cap", [0.0, -1.0, INF, NAN])
def test_a_cap_is_finite_and_positive(cap: float) -> None:
    with pytest.raises(ConfigError, match=r"weight\.cap is"):
        Truncated(cap=cap)
