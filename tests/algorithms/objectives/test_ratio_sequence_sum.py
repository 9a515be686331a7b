"""The ratio of whole trajectories: a loop, its gradient, its bound."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.objectives.by_position import SequenceSum, Unclipped

from gxpo.algorithms.objectives import Clip, PolicyGradient
from gxpo.base.errors import ConfigError
from gxpo.parts.protocols import PolicyTokens


@given(st.lists(st.lists(st.floats(-4, 4), min_size=1, max_size=4), min_size=1, max_size=4))
def test_value_and_gradient_equal_a_loop(rows) -> None:
    """Of the values' sum: every token's entry has its own slope 1, whatever the others are."""
    flat = torch.tensor([x for row in rows for x in row], dtype=torch.float64, requires_grad=True)
    trajectory = torch.tensor([i for i, row in enumerate(rows) for _ in row])
    level = SequenceSum().level(flat, trajectory, trajectory)
    wanted = [min(max(sum(row), -20.0), 20.0) for row in rows for _ in row]
    assert level.detach().tolist() == pytest.approx(wanted, abs=1e-12)
    weight = torch.arange(1.0, len(flat) + 1, dtype=torch.float64)
    (slope,) = torch.autograd.grad((weight * level).sum(), flat)
    assert slope.tolist() == weight.tolist()


def test_summed_over_the_answer_it_has_the_gradient_of_the_product(toy) -> None:
    term = PolicyGradient(ratio=SequenceSum(), surrogate=Unclipped(), aggregate="sequence_sum", horizon=1.0)
    assert term.couples == "trajectory"
    _, gradient = toy.loss(term)
    lp = toy.logprob.detach().clone().requires_grad_()
    d = lp - toy.old
    (-(d[:2].sum().exp() - d[2:].sum().exp()) / 2).backward()
    assert lp.grad is not None and gradient == pytest.approx(lp.grad.tolist(), abs=1e-15)


def test_single_tokens_are_token_ratios(grow) -> None:
    forest = grow([("a", 1)] * 3)
    lp = torch.tensor([-0.5, -1.5, -1.0], dtype=torch.float64)
    args = (forest, PolicyTokens(lp, torch.full_like(lp, -1.0)), torch.tensor([1.0, -1.0, 2.0]), torch.ones(3), {}, 0)
    assert float(PolicyGradient(ratio=SequenceSum())(*args)[0]) == pytest.approx(float(PolicyGradient()(*args)[0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_long_answer_far_away_has_finite_losses_and_gradients(grow, dtype) -> None:
    forest = grow([("a", 60), ("a", 60)])
    old = torch.full((120,), -9.0, dtype=dtype)
    change = torch.cat([torch.full((60,), 8.0, dtype=dtype), torch.full((60,), -8.0, dtype=dtype)])
    lp, credit = (old + change).requires_grad_(), torch.ones(120)
    for surrogate in (Clip(), Unclipped()):
        value = PolicyGradient(ratio=SequenceSum(), surrogate=surrogate)(
            forest, PolicyTokens(lp, old), credit, credit, {}, 0
        )[0]
        (slope,) = torch.autograd.grad(value, lp)
        assert bool(value.isfinite()) and bool(slope.isfinite().all())
        cut = isinstance(surrogate, Clip)
        assert float(slope[0]) == pytest.approx(0.0 if cut else -math.exp(20.0) / 120, rel=1e-5)
        assert float(slope[60]) == pytest.approx(-math.exp(-20.0) / 120, rel=1e-5)


def test_the_bound_leaves_float32_room() -> None:
    for wrong in (0.0, -1.0, 90.0, math.nan):
        with pytest.raises(ConfigError, match="log_ratio_max"):
            SequenceSum(wrong)
