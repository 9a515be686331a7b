"""FIPO's factor: the card's numbers, a loop with its gradient, on policy, far off policy."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.objectives.conftest import figures_of
from tests.algorithms.objectives.coupled_rows import ROWS, agrees, diagonal, evaluate

import gxpo
from gxpo.algorithms.objectives import Clip, DualClip, Entries, PolicyGradient
from gxpo.algorithms.objectives.surrogate_clips import FutureDrift, future_drift
from gxpo.base.errors import ConfigError

F64 = torch.float64
OWNER = torch.tensor([0, 0, 1, 1, 1])


def column(*x):
    return torch.tensor(x, dtype=F64)


def test_cards_numbers(toy):
    drift = future_drift(column(0.3, -0.1, -0.4, 0.2, 0.5), OWNER, 32.0, 10.0)
    assert drift.tolist() == pytest.approx([0.202143, -0.1, 0.274516, 0.689286, 0.5], abs=1e-6)
    x = toy.logprob.detach()
    gap = x - toy.old
    entries = Entries(x, toy.old, gap, gap.exp(), toy.credit, OWNER, OWNER)
    assert FutureDrift().factor(entries).tolist() == pytest.approx([1.2, 1.0, 1.2, 1.2, 1.2])
    assert FutureDrift(factor_low=0.8).factor(entries).tolist() == pytest.approx(
        [1.2, 0.904837, 1.2, 1.2, 1.2], abs=1e-6
    )
    # DAPO's per-token losses, -1.28 -.904837 .8 1.221403 1.648721, times f, over 5
    value, gradient = toy.loss(PolicyGradient(surrogate=FutureDrift(clip_high=0.28), aggregate="token_mean"))
    assert value == pytest.approx((-1.28 * 1.2 - 0.904837 + 1.2 * (0.8 + 1.221403 + 1.648721)) / 5, abs=1e-6)
    assert gradient == pytest.approx([0, -0.180967, 0, 1.2 * 0.244281, 1.2 * 0.329744], abs=1e-6)


def by_hand(surrogate):
    def loop(unit):
        losses, slopes = [], []
        for i, t in enumerate(unit):
            later = [(k, u["gap"]) for k, u in enumerate(unit[i:]) if u["gap"] <= math.log(surrogate.ratio_max)]
            drift = sum(gap * 2 ** (-k / surrogate.half_life) for k, gap in later)
            f = min(max(math.exp(min(drift, 50.0)), surrogate.factor_low), surrogate.factor_high)
            a, rho = t["credit"], math.exp(t["gap"])
            if a < 0 and rho > surrogate.safe_ratio:
                f = min(max(f, 0.8), 1.0)
            clipped_ratio = rho if a >= 0 else min(rho, surrogate.ratio_max)
            low, high = 1 - surrogate.clip_low, 1 + surrogate.clip_high
            losses.append(f * max(-a * clipped_ratio, -a * min(max(clipped_ratio, low), high)))
            free = rho <= high if a >= 0 else low <= rho <= surrogate.ratio_max
            slopes.append(-f * a * rho if free else 0.0)
        return losses, diagonal(slopes)

    return loop


@settings(max_examples=60, deadline=None)
@given(ROWS, st.sampled_from([0.5, 4.0, 32.0]), st.sampled_from([0.6, 1.0]), st.sampled_from([2.1, 10.0]))
def test_it_equals_a_loop(rows, half_life, low, bound):
    surrogate = FutureDrift(0.21, 0.28, bound, half_life, low, 1.2, 4.0, None)
    agrees(PolicyGradient(surrogate=surrogate, aggregate="token_mean"), rows, by_hand(surrogate))


@settings(max_examples=60, deadline=None)
@given(ROWS, st.sampled_from([0, 1, 2]), st.sampled_from(["token_mean", "sequence_mean"]))
def test_what_is_dropped_might_not_be_there(rows, most, aggregate):
    """Value and gradient are those of the rows that stay, alone; a row that is dropped has no gradient."""
    rows = [[dict(t) for t in row] for row in rows]
    kept_rows = [
        row
        for row in rows
        if sum(t["trainable"] and t["credit"] < 0 and math.exp(t["gap"]) > 1.5 for t in row) <= most
        or not any(t["credit"] and t["weight"] and t["trainable"] for t in row)
    ]
    value, slope = evaluate(
        PolicyGradient(surrogate=FutureDrift(ratio_max=1.5, dual_clipped_max=most), aggregate=aggregate), rows
    )
    free = PolicyGradient(surrogate=FutureDrift(ratio_max=1.5, dual_clipped_max=None), aggregate=aggregate)
    loss_of_kept, slopes = evaluate(free, kept_rows) if kept_rows else (0.0, torch.zeros(0))
    assert value == pytest.approx(loss_of_kept, rel=1e-12, abs=1e-12)
    is_kept_P = torch.tensor([any(row is k for k in kept_rows) for row in rows for _ in row])
    torch.testing.assert_close(slope[is_kept_P], slopes.to(slope), rtol=1e-12, atol=1e-12)
    assert not slope[~is_kept_P].any()


def test_a_row_is_dropped_from_the_denominator_too(toy):
    """Four tokens, two of them dual-clipped in the second row: the first row's loss is over its own two."""
    forest = gxpo.Forest.from_completions([[1]] * 2, [[[2, 3]], [[4, 5]]], [1.0, 0.0])
    gap, credit, ones = column(0.0, 0.0, 3.0, 4.0), column(1.0, 1.0, -1.0, -1.0), torch.ones(4, dtype=F64)

    def loss(most, gap):
        x = (gap - 1.0).requires_grad_()
        term = PolicyGradient(surrogate=FutureDrift(dual_clipped_max=most), aggregate="token_mean")
        value = term(forest, gxpo.PolicyTokens(x, -ones), credit, ones, {}, 0)[0]
        metrics = figures_of(term, forest, gxpo.PolicyTokens(x.detach(), -ones), credit, ones)
        return float(value.detach()), torch.autograd.grad(value, x)[0].tolist(), metrics.get("dual_clip_dropped")

    assert loss(1, gap) == (-1.0, [-0.5, -0.5, 0.0, 0.0], 0.5)
    assert loss(None, gap) == (pytest.approx((-2 + 20) / 4), [-0.25, -0.25, 0.0, 0.0], None)
    assert loss(1, column(0.0, 0.0, 3.0, 1.0))[2] == 0.0  # one such token is tolerated
    assert loss(0, column(0.0, 0.0, 3.0, 1.0))[2] == 0.5


def test_on_policy_the_factor_is_exactly_one(toy):
    logprob_now = toy.logprob.detach()
    mine, plain = (PolicyGradient(surrogate=g, aggregate="token_mean") for g in (FutureDrift(), Clip()))
    assert toy.loss(mine, behaviour_logprob=logprob_now) == toy.loss(plain, behaviour_logprob=logprob_now)
    metrics = figures_of(mine, toy.forest, toy.policy(behaviour_logprob=logprob_now), toy.credit, toy.weight)
    assert metrics["future_factor"] == 1.0 and metrics["on_policy"] == 1.0
    off = figures_of(mine, toy.forest, toy.policy(), toy.credit, toy.weight)
    assert off["future_factor"] == pytest.approx((1.2 * 4 + 1.0) / 5)


def test_with_bounds_of_one_it_is_the_dual_clip(toy):
    rigid = PolicyGradient(surrogate=FutureDrift(0.2, 0.28, 1.4, factor_high=1.0))
    assert toy.loss(rigid) == toy.loss(PolicyGradient(surrogate=DualClip(0.2, 0.28, 1.4)))


def test_the_factor_carries_no_gradient_and_is_bounded():
    gap = column(math.log(1e6), math.log(1e-6), math.log(1e6), -0.05, 700.0).requires_grad_()
    entries = Entries(gap, 0 * gap.detach(), gap, gap.exp(), column(1.0, 1.0, -1.0, -1.0, 1.0), OWNER, OWNER)
    surrogate = FutureDrift(factor_low=0.8)
    # 0 for ratios above 10: drifts -13.5, -13.8, -.049, -.05, 0; the third is wrong and beyond 10: at most 1
    assert surrogate.factor(entries).tolist() == pytest.approx(
        [0.8, 0.8, math.exp(-0.05 * 2 ** (-1 / 32)), math.exp(-0.05), 1]
    )
    assert not surrogate.factor(entries).requires_grad
    (slope,) = torch.autograd.grad(surrogate.loss(entries).sum(), gap)
    assert slope.tolist() == pytest.approx([0.0, -0.8 * 1e-6, 0.0, math.exp(-0.1), 0.0])


def test_method_and_bad_options():
    m = gxpo.method("fipo+dapo")
    assert m.terms["policy"].surrogate == FutureDrift(clip_high=0.28) and m.couples == "step"
    assert gxpo.method("fipo", {"objective.dual_clipped_max": None}).couples == "trajectory"
    for wrong in (
        {"factor_low": 1.1},
        {"factor_high": math.inf},
        {"half_life": 0.0},
        {"safe_ratio": -1.0},
        {"dual_clipped_max": -1},
    ):
        with pytest.raises(ConfigError, match="objective"):
            FutureDrift(**wrong)
