"""Surrogates and ratios on their bounds, without credit, far out, and in float32."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from tests.algorithms.objectives.by_position import (
    CovarianceClip,
    DivergenceMask,
    ElasticClip,
    EntropyAdaptiveClip,
    HybridClip,
    NestedClip,
    PreservingClip,
    RatioMask,
    SequenceSum,
    Truncate,
    slopes,
)
from torch import Tensor

from gxpo.algorithms.objectives import Entries, PolicyGradient, surrogate
from gxpo.algorithms.objectives.ratio_trajectory import prefix_ratio, run_recursion, running_minimum
from gxpo.algorithms.objectives.surrogate_clips import (
    FutureDrift,
    covariance,
    entropy_score,
    future_drift,
    relative_entropy,
    token_hash,
)
from gxpo.algorithms.objectives.surrogate_penalties import RatioVariance
from gxpo.algorithms.objectives.surrogate_weights import gamma_kernel
from gxpo.parts.protocols import PolicyTokens
from gxpo.parts.registry import RATIOS, SURROGATES

LOG2 = math.log(2.0)


def column(*x: float) -> Tensor:
    return torch.tensor(x, dtype=torch.float64)


def entries(log_ratio, credit, **changes) -> Entries:
    """Tokens of one trajectory, by their log-ratios."""
    x = column(*log_ratio)
    one = torch.zeros(len(x), dtype=torch.int64)
    return dataclasses.replace(Entries(x, 0 * x, x, x.exp(), column(*credit), one, one), **changes)


def by_ratio(ratio, credit, **changes) -> Entries:
    return entries([math.log(r) for r in ratio], credit, ratio=column(*ratio), **changes)


# ---------------------------------------------------------------- bounds
def test_on_a_bound_nothing_is_cut() -> None:
    edges = by_ratio([1.5, 0.5, 2.0], [1.0, -1.0, -1.0], entropy=column(1, 1, 1))
    assert not surrogate.DualClip(0.5, 0.5, 2.0).clipped(edges).any()
    assert not EntropyAdaptiveClip(0.5, 0.5, 2.0, clip_gain=0.0).clipped(edges).any()
    assert not ElasticClip(0.5, 0.5, 0.0, 0.0).clipped(by_ratio([1.5, 0.5], [1.0, -1.0])).any()
    assert not surrogate.LogClip(0.5, 0.5).clipped(entries([0.5, -0.5], [1.0, -1.0])).any()
    assert not Truncate(1.5).clipped(by_ratio([1.5], [1.0])).any()
    for x in (entries([0.5, 0.5], [1.0, 1.0]), entries([0.5, -0.5], [1.0, 1.0])):  # by the mean, by the residual
        assert not NestedClip(0.5, 0.5).clipped(x).any()
    for sides in ("both", "improving"):
        assert not HybridClip(0.0, 0.0, 0.0, 0.0, sides=sides).clipped(entries([0.0, 0.0], [1.0, -1.0])).any()
    # the bound .5 times the slope .5 is the ratio, so the gradient is -A rho's
    assert not PreservingClip(0.5, 0.5, slope_low=0.5).clipped(by_ratio([0.25], [-1.0])).any()


def test_on_a_bound_masks_let_pass() -> None:
    assert slopes(RatioMask(clip_low=0.5), by_ratio([0.5], [-1.0])).all()
    ring = RatioMask("ring", clip_low=0.5, clip_high=0.5, ring_low=0.75, ring_high=1.0)
    assert slopes(ring, by_ratio([0.25, 2.0], [1.0, -1.0])).all()
    # probabilities 1 and .5, before .5 and 1: both moved by .5
    moved = entries([LOG2, -LOG2], [1.0, -1.0], logprob=column(0.0, -LOG2), below=column(-LOG2, 0.0))
    weight = slopes(DivergenceMask(divergence_low=0.5, divergence_high=0.5), moved)
    assert weight.tolist() == pytest.approx([2.0, 0.5])


def test_a_ratio_on_the_bound_of_the_future_still_counts() -> None:
    one = torch.zeros(1, dtype=torch.int64)
    assert future_drift(column(LOG2), one, 32.0, 2.0).tolist() == pytest.approx([LOG2])


def test_on_the_middle_of_the_clip_a_token_is_outside() -> None:
    """H 1, 1 and 2 with h -1, -1, 0; low / 2 = high / 2 = .25, so ratios .75 and 1.25 are on the open interval's ends.

    A token of h <= 0 is scaled by 1 - .5 only inside.
    """
    x = by_ratio([0.75, 1.25, 1.0], [1.0, 1.0, 1.0], entropy=column(1, 1, 2))
    term = EntropyAdaptiveClip(0.5, 0.5, entropy_quantile=1.0, clip_gain=0.0, credit_gain=0.5)
    assert (term.loss(x) / -x.ratio).tolist() == [1.0, 1.0, 1.0]
    inside = by_ratio([0.76, 1.24, 1.0], [1.0, 1.0, 1.0], entropy=column(1, 1, 2))
    assert (term.loss(inside) / -inside.ratio).tolist() == [0.5, 0.5, 1.0]


def test_covariances_on_the_bounds_are_not_drawn() -> None:
    x = entries([0.0, 0.0], [1.0, -1.0], logprob=column(-1.0, -3.0))  # both have covariance 1
    for low, high, dropped in ((1.0, 5.0, 0), (0.0, 1.0, 0), (0.0, 5.0, 1)):
        is_clipped = CovarianceClip(covariance_low=low, covariance_high=high).clipped(x)
        assert int(is_clipped.sum()) == dropped, (low, high)


# ---------------------------------------------------------------- what is cut, and what is not
def test_an_absolute_bound_concerns_negative_credit_alone() -> None:
    x = by_ratio([1.4, 1.4], [0.5, -0.5], entropy=column(1, 1))
    for part in (surrogate.DualClip(0.5, 0.5, 1.2), EntropyAdaptiveClip(0.5, 0.5, 1.2, clip_gain=0.0)):
        assert part.loss(x).tolist() == pytest.approx([-0.7, 0.6])


def test_without_credit_nothing_is_cut() -> None:
    x = by_ratio([3.0, 1.0, 0.1], [0.0, 1.0, 0.0], entropy=column(1, 1, 1))
    assert EntropyAdaptiveClip().clipped(x).tolist() == [False, False, False]
    assert RatioVariance(penalty=0.0).clipped(by_ratio([2.0], [1.0])).tolist() == [False]


@pytest.mark.parametrize(
    ("credit", "both", "improving"),
    [
        ((1.0, 1.0, 1.0), (True, True, False), (True, False, False)),
        ((-1.0, -1.0, -1.0), (True, True, False), (False, True, False)),
        ((0.5, 0.5, 0.5), (True, True, False), (True, False, False)),
        ((0.0, 0.0, 0.0), (False, False, False), (False, False, False)),
    ],
)
def test_sides_of_the_hybrid_clip(credit, both, improving) -> None:
    x = entries([LOG2, -LOG2, 0.0], credit)  # ratios 2, .5, 1
    assert HybridClip(token_share=1.0, sides="both").clipped(x).tolist() == list(both)
    assert HybridClip(token_share=1.0, sides="improving").clipped(x).tolist() == list(improving)


def test_the_lower_bound_of_a_truncated_weight() -> None:
    x = by_ratio([0.25, 1.0, 9.0], [2.0, 2.0, 2.0], logprob=column(-1, -1, -1))
    assert Truncate(1.5, 0.5).loss(x).tolist() == [1.0, 2.0, 3.0]


def test_the_factor_of_the_future_where_it_is_unsafe() -> None:
    """Ratios 5 and e^-5: F of the first is log 5 - 5 / 2^(1/32), far below log .5."""
    bad = entries([math.log(5.0), -5.0], [-1.0, -1.0])
    surrogate = FutureDrift(safe_ratio=4.0)
    assert FutureDrift(factor_low=0.5, safe_ratio=4.0).factor(bad).tolist() == pytest.approx([0.8, 0.5])
    assert surrogate.factor(by_ratio([4.0], [-1.0])).tolist() == pytest.approx([1.2])  # on the bound it is safe
    assert surrogate.factor(by_ratio([4.1], [-1.0])).tolist() == pytest.approx([1.0])
    assert surrogate.factor(by_ratio([4.1], [0.0])).tolist() == pytest.approx([1.2])


def test_far_out() -> None:
    one = column(1.0)
    assert float(gamma_kernel(column(math.inf), 2 * one, 3 * one)) == 0.0
    assert prefix_ratio(column(-100.0, 0.0), torch.zeros(2).long()).tolist() == [0.0, -60.0]
    none = torch.empty(0, dtype=torch.int64)
    assert SequenceSum().level(column(), none, none).shape == (0,)


# ---------------------------------------------------------------- defaults of functions
def test_defaults() -> None:
    x = column(0.1, -0.3, 0.2)
    assert surrogate.shaped(column(math.log(0.1)), column(2.0)).tolist() == pytest.approx(
        [-1.0]
    )  # pi / (pi + .1) = 1 / 2
    assert prefix_ratio(x, torch.zeros(3).long()).tolist() == pytest.approx([0.0, 0.1, -0.3])  # the smallest so far
    entropy = column(0.3, 2.0, 1.0, 0.5)
    assert torch.equal(entropy_score(entropy), entropy_score(entropy, 0.8))


def test_draws_are_integers_and_read_credit_to_a_4096th() -> None:
    x = entries([0.0] * 9, [k / 9 for k in range(9)])
    grid = dataclasses.replace(x, credit=(x.credit * 4096).round() / 4096)
    near = dataclasses.replace(x, credit=grid.credit + 0.3 / 4096)
    assert token_hash(x, 3).dtype == torch.int64
    assert torch.equal(token_hash(grid, 3), token_hash(near, 3))


# ---------------------------------------------------------------- float32
def test_statistics_of_float32_are_those_of_the_same_numbers() -> None:
    """Loops over the float32 numbers as they are, in Python's float64."""
    a, b = torch.tensor([-0.1, -0.7, -1.3, -2.1]), torch.tensor([0.3, -0.1, 0.9, -0.7])
    xs, ys = a.tolist(), b.tolist()
    means = sum(xs) / 4, sum(ys) / 4
    expected = [(y - means[1]) * (x - means[0]) for x, y in zip(xs, ys, strict=True)]
    assert covariance(a, b).tolist() == pytest.approx(expected, rel=1e-12)
    e = (-a).tolist()
    score = [math.log(h / max(e)) / math.log(max(e) / min(e)) for h in e]
    assert entropy_score(-a, 1.0).tolist() == pytest.approx(score, rel=1e-12, abs=1e-12)
    relative_entropies = relative_entropy(-a, torch.zeros(4).long()).tolist()
    assert relative_entropies == pytest.approx([(h - min(e)) / (max(e) - min(e)) for h in e], rel=1e-12)
    one = torch.zeros(4, dtype=torch.int64)
    sums = run_recursion(a, 0.1, one)
    y = 0.0
    for x, s in zip(xs, sums.tolist(), strict=True):
        y = x + 0.1 * y
        assert s == pytest.approx(y, rel=1e-12)
    assert sums.dtype == running_minimum(a, one).dtype == torch.float64


@pytest.mark.parametrize("name", [*SURROGATES, *RATIOS, "uncertain tokens"])
def test_a_loss_has_the_dtype_of_the_log_probs(toy, name) -> None:
    term = PolicyGradient(surrogate=HybridClip(mixing="entropy"))
    if name in SURROGATES:
        term = PolicyGradient(surrogate=SURROGATES[name]())
    elif name in RATIOS:
        term = PolicyGradient(ratio=RATIOS[name]())
    single = toy.logprob.detach().float().requires_grad_()
    policy = PolicyTokens(single, toy.old, entropy=toy.old.abs())
    loss = term(toy.forest, policy, toy.credit, toy.weight, {}, 0)[0]
    assert loss.dtype == torch.float32 and bool(loss.isfinite())
