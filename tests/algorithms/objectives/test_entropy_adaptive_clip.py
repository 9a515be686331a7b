"""HAPO's clip and credit: the card's numbers, a loop with its gradient, what they reduce to."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.objectives.by_position import EntropyAdaptiveClip
from tests.algorithms.objectives.coupled_rows import ROWS, agrees, diagonal

from gxpo.algorithms.objectives import DualClip, Entries, PolicyGradient
from gxpo.algorithms.objectives.surrogate_clips import entropy_score
from gxpo.base.errors import ConfigError, MissingSignal

F64 = torch.float64


def column(*x):
    return torch.tensor(x, dtype=F64)


def given_scores(*score):
    """Entropies whose scores these are, where 0, 1 and -1 are among them and the pivot is the one of score 0."""
    return column(*(math.exp(s) for s in score))


def seen(ratio, credit, entropy):
    return replace(Entries.of(ratio, credit), entropy=entropy)


def test_cards_bounds():
    # h = [-.8 0 .6] between extremes of -1 and 1; of five log-entropies the median is 0
    entropy = given_scores(-0.8, 0.0, 0.6, -1.0, 1.0)
    assert entropy_score(entropy, 0.5).tolist() == pytest.approx([-0.8, 0.0, 0.6, -1.0, 1.0])
    one, surrogate = torch.ones(5, dtype=F64), EntropyAdaptiveClip(entropy_quantile=0.5, credit_gain=0.0)
    low, high = surrogate.loss(seen(0.01 * one, -one, entropy)), -surrogate.loss(seen(9 * one, one, entropy))
    assert low.tolist()[:3] == pytest.approx([0.64, 0.8, 0.8])
    assert high.tolist()[:3] == pytest.approx([1.2, 1.2, 1.32])


def test_credit_by_region():
    """h = .6: half the region is (.9, 1.16); h = -.8: (.82, 1.1). Outside, inside, outside, inside."""
    entropy = given_scores(0.6, 0.6, -0.8, -0.8, 0.0, -1.0, 1.0)
    ratio = column(1.17, 1.15, 0.81, 0.83, 1.0, 1.0, 1.0)
    surrogate = EntropyAdaptiveClip(entropy_quantile=0.5)
    scale = surrogate.loss(seen(ratio, 1 + 0 * ratio, entropy)) / -ratio
    assert scale.tolist() == pytest.approx([1.6, 1.0, 1.0, 0.2, 1.0, 0.0, 1.0])
    loss = surrogate.loss(seen(ratio, 1 + 0 * ratio, entropy))
    assert loss.tolist() == pytest.approx([-1.6 * 1.17, -1.15, -0.81, -0.2 * 0.83, -1.0, 0.0, -1.0])


def scores(entropies, q):
    logs = sorted(math.log(max(h, 1e-8)) for h in entropies)
    pivot = logs[round(q * (len(logs) - 1))]
    gaps = [math.log(max(h, 1e-8)) - pivot for h in entropies]
    gaps = [0.0 if abs(g) < 1e-11 else g for g in gaps]
    top, bottom = max(gaps), min(gaps)
    return [g / top if g > 0 else g / -bottom if g < 0 else 0.0 for g in gaps]


def by_hand(surrogate):
    def loop(unit):
        losses, slopes = [], []
        for t, h in zip(unit, scores([t["entropy"] for t in unit], surrogate.entropy_quantile), strict=True):
            low = surrogate.clip_low * (1 - surrogate.clip_gain * min(h, 0))
            high = surrogate.clip_high * (1 + surrogate.clip_gain * max(h, 0))
            rho, a = math.exp(t["gap"]), t["credit"]
            inside = 1 - low / 2 < rho < 1 + high / 2
            if (h > 0 and not inside) or (h <= 0 and inside):
                a *= 1 + surrogate.credit_gain * h
            if t["credit"] >= 0:
                held, free = min(rho, 1 + high), rho <= 1 + high
            else:
                held = max(min(rho, surrogate.ratio_max), 1 - low)
                free = 1 - low <= rho <= surrogate.ratio_max
            losses.append(-a * held)
            slopes.append(-a * rho if free else 0.0)
        return losses, diagonal(slopes)

    return loop


@settings(max_examples=60, deadline=None)
@given(ROWS, st.sampled_from([0.0, 0.33, 0.8, 1.0]), st.sampled_from([0.0, 0.7]), st.sampled_from([0.0, 0.9]))
def test_it_equals_a_loop(rows, quantile, by_clip, by_credit):
    surrogate = EntropyAdaptiveClip(0.23, 0.29, 4.1, quantile, by_clip, by_credit)
    agrees(PolicyGradient(surrogate=surrogate, aggregate="token_mean"), rows, by_hand(surrogate))


def test_without_gains_or_with_equal_entropies_it_is_the_dual_clip(toy):
    h = column(0.1, 2.0, 0.5, 3.0, 1.0)
    plain = toy.loss(PolicyGradient(surrogate=DualClip(ratio_max=1.5)))
    rigid = EntropyAdaptiveClip(ratio_max=1.5, clip_gain=0.0, credit_gain=0.0)
    assert toy.loss(PolicyGradient(surrogate=rigid), entropy=h) == plain
    equal = PolicyGradient(surrogate=EntropyAdaptiveClip(ratio_max=1.5))
    assert toy.loss(equal, entropy=0 * h + 0.7) == plain
    assert entropy_score(0 * h + 0.7).tolist() == [0.0] * 5


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0.0, 4.0), min_size=1, max_size=12), st.floats(0.0, 1.0))
def test_scores_fill_the_interval(entropies, quantile):
    found = entropy_score(column(*entropies), quantile)
    assert bool((found.abs() <= 1).all()) and bool(found.isfinite().all())
    assert found.tolist() == pytest.approx(scores(entropies, quantile), abs=1e-6)


def test_entropies_are_detached_and_asked_for(toy):
    surrogate = EntropyAdaptiveClip()
    h = column(0.1, 2.0, 0.5, 3.0, 1.0).requires_grad_()
    term = PolicyGradient(surrogate=surrogate)
    assert term.outputs == ("logprob", "entropy") and term.couples == "step"
    value = term(toy.forest, toy.policy(entropy=h), toy.credit, toy.weight, {}, 0)[0]
    assert torch.autograd.grad(value, h, allow_unused=True) == (None,)
    with pytest.raises(MissingSignal, match="entropy"):
        toy.loss(term)


def test_far_off_policy_and_what_counts_as_clipped():
    entropy = given_scores(-1.0, 0.0, 1.0, 0.0, 0.0)
    ratio = column(1e6, 1e-6, 1e6, 10.5, 0.7).requires_grad_()
    credit = column(1.0, -1.0, -1.0, -1.0, 0.0)
    x, surrogate = seen(ratio, credit, entropy), EntropyAdaptiveClip(entropy_quantile=0.5)
    loss = surrogate.loss(x)
    assert loss.tolist()[:2] == pytest.approx([-1.2, 0.8])
    (slope,) = torch.autograd.grad(loss.sum(), ratio)
    assert slope.tolist() == [0.0] * 5 and surrogate.clipped(x).tolist() == [True] * 4 + [False]


def test_bad_options():
    for wrong in ({"entropy_quantile": 1.5}, {"clip_gain": -1.0}, {"credit_gain": 1.5}, {"ratio_max": 0.5}):
        with pytest.raises(ConfigError, match="objective"):
            EntropyAdaptiveClip(**wrong)
