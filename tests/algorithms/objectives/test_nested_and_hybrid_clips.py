"""Clips that look at the trajectory as well (nested, FiberPO, DHPO): numbers of cards, loops with gradients, limits."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.objectives.by_position import HybridClip, NestedClip
from tests.algorithms.objectives.conftest import figures_of
from tests.algorithms.objectives.coupled_rows import ROWS, agrees, diagonal, evaluate

import gxpo
from gxpo.algorithms.objectives import Clip, Entries, PolicyGradient, Surrogate
from gxpo.algorithms.objectives.surrogate_clips import relative_entropy
from gxpo.base.errors import ConfigError, MissingSignal

F64 = torch.float64


def column(*x):
    return torch.tensor(x, dtype=F64)


# ---------------------------------------------------------------- two levels
def test_cards_numbers_with_the_mean_held(toy):
    """Means .1 held at .05, residuals [.2 -.2 | -.5 .1 .4]. Those of sequence 0 stand on the edge: there the card's
    central difference is the mean of free, -(e^.25 - e^-.15) / 8 = -.052915, and held, 0."""
    (value, free), (_, held) = (toy.loss(PolicyGradient(surrogate=NestedClip(0.05, 0.2 + e))) for e in (1e-9, -1e-9))
    assert value == pytest.approx(0.014911, abs=1e-6)
    assert free[:2] == pytest.approx([-0.052915, 0.052915], abs=1e-6) and held[:2] == [0.0, 0.0]
    between = [(a + b) / 2 for a, b in zip(free, held, strict=True)]
    assert between == pytest.approx([-0.026457, 0.026457, -0.064546, 0.129093, -0.064546], abs=1e-6)


def nested_loop(base_clip, own_clip):
    def loop(unit):
        n, mean = len(unit), sum(t["gap"] for t in unit) / len(unit)
        base, moves = min(max(mean, -base_clip), base_clip), float(abs(mean) <= base_clip)
        losses, table = [], []
        for i, t in enumerate(unit):
            residual = t["gap"] - mean
            gated = math.exp(base + min(max(residual, -own_clip), own_clip))
            free = float(abs(residual) <= own_clip)
            losses.append(-t["credit"] * gated)
            table.append([-t["credit"] * gated * (moves / n + free * ((i == j) - 1 / n)) for j in range(n)])
        return losses, table

    return loop


@settings(max_examples=40, deadline=None)
@given(ROWS, st.sampled_from([(0.05, 0.2), (0.2, 0.2), (0.0, 0.7), (20.0, 0.3)]), st.booleans())
def test_nested_clip_equals_a_loop(rows, widths, by_tokens):
    # a residual that is 0 but for rounding stands on no edge, widths here are not round sums of the drawn gaps
    aggregate = "token_mean" if by_tokens else "sequence_mean"
    widths = (widths[0] + 1e-7, widths[1] + 1e-7)
    agrees(PolicyGradient(surrogate=NestedClip(*widths), aggregate=aggregate), rows, nested_loop(*widths))


@settings(max_examples=40, deadline=None)
@given(ROWS)
def test_where_the_mean_is_held_a_trajectorys_gradient_sums_to_zero(rows):
    for row in rows:
        row[:] = [{**t, "gap": 0.3 + t["gap"] % 0.5, "credit": row[0]["credit"], "weight": 1.0} for t in row]
    _, slope = evaluate(PolicyGradient(surrogate=NestedClip(0.05, 0.1)), rows)
    start = 0
    for row in rows:
        assert float(slope[start : start + len(row)].sum()) == pytest.approx(0.0, abs=1e-14)
        start += len(row)


def test_without_bounds_it_is_the_free_ratio_and_without_residuals_a_held_sequence(toy):
    free, plain = PolicyGradient(surrogate=NestedClip(99.0, 99.0)), PolicyGradient(surrogate=Surrogate())
    assert toy.loss(free)[0] == pytest.approx(toy.loss(plain)[0])
    assert toy.loss(free)[1] == pytest.approx(toy.loss(plain)[1])
    flat, sequence = (
        PolicyGradient(surrogate=NestedClip(99.0, 0.0)),
        PolicyGradient(ratio="sequence", surrogate=Surrogate()),
    )
    assert toy.loss(flat)[0] == pytest.approx(toy.loss(sequence)[0])  # in value and, residuals held, in gradient
    assert toy.loss(flat)[1] == pytest.approx(toy.loss(sequence)[1])


def test_far_off_policy_both_levels_bound_the_ratio():
    gaps = column(math.log(1e6), math.log(1e-6), math.log(1e6), 0.0)
    x = gaps.clone().requires_grad_()
    owner = torch.tensor([0, 0, 1, 1])
    seen = Entries(x, column(0, 0, 0, 0), x, x.exp(), column(1.0, -1.0, 2.0, 1.0), owner, owner)
    loss = NestedClip(0.2, 0.3).loss(seen)
    # means 0 and 6.9; residuals +-13.8 and +-6.9, all held
    assert loss.tolist() == pytest.approx([-math.exp(0.3), math.exp(-0.3), -2 * math.exp(0.5), -math.exp(-0.1)])
    # of the trajectory whose mean is 0 the mean moves on: (-e^.3 + e^-.3) / 2 each; the other stands still
    wanted = [(-math.exp(0.3) + math.exp(-0.3)) / 2] * 2 + [0.0, 0.0]
    assert torch.autograd.grad(loss.sum(), x)[0].tolist() == pytest.approx(wanted)
    assert NestedClip(0.2, 0.3).clipped(seen).all()


# ---------------------------------------------------------------- two branches
def test_cards_numbers_of_the_mixture(toy):
    surrogate = HybridClip(sequence_clip_low=0.05, sequence_clip_high=0.05)
    value, gradient = toy.loss(PolicyGradient(surrogate=surrogate))
    assert value == pytest.approx(0.003562, abs=1e-6)
    assert gradient == pytest.approx([0, -0.113105, 0, 0, 0], abs=1e-6)


def hybrid_loop(surrogate, entropies=False):
    def held(ratio, low, high, a):
        if surrogate.sides == "both":
            return min(max(ratio, low), high), low <= ratio <= high
        return (min(ratio, high), ratio <= high) if a >= 0 else (max(ratio, low), ratio >= low)

    def loop(unit):
        mean = math.exp(sum(t["gap"] for t in unit) / len(unit))
        h = [t["entropy"] for t in unit]
        losses, slopes = [], []
        for t in unit:
            share = surrogate.token_share
            if entropies:
                share = 0.5 if max(h) == min(h) else (t["entropy"] - min(h)) / (max(h) - min(h))
            a, own = t["credit"], math.exp(t["gap"])
            token, alive = held(own, 1 - surrogate.clip_low, 1 + surrogate.clip_high, a)
            whole, moves = held(mean, 1 - surrogate.sequence_clip_low, 1 + surrogate.sequence_clip_high, a)
            losses.append(-a * (share * token + (1 - share) * whole))
            slopes.append(-a * (share * own * alive + (1 - share) * mean * moves))
        return losses, diagonal(slopes)

    return loop


@settings(max_examples=40, deadline=None)
@given(ROWS, st.sampled_from(["both", "improving"]), st.sampled_from([0.0, 0.3, 1.0]), st.booleans())
def test_hybrid_clip_equals_a_loop(rows, sides, share, by_entropy):
    surrogate = HybridClip(0.21, 0.27, 0.11, 0.13, "entropy" if by_entropy else "average", share, sides)
    agrees(PolicyGradient(surrogate=surrogate), rows, hybrid_loop(surrogate, by_entropy))


def test_its_limits_are_grpo_and_gspo(toy):
    token = PolicyGradient(surrogate=HybridClip(0.2, 0.28, token_share=1.0, sides="improving"))
    assert toy.loss(token) == toy.loss(PolicyGradient(surrogate=Clip(0.2, 0.28)))
    sequence = PolicyGradient(surrogate=HybridClip(token_share=0.0, sides="improving"))
    gspo = toy.loss(PolicyGradient(ratio="sequence", surrogate=Clip(3e-4, 4e-4)))
    assert toy.loss(sequence)[0] == pytest.approx(gspo[0]) and toy.loss(sequence)[1] == pytest.approx(gspo[1])
    policy = toy.policy()
    for term, same in ((token, Clip(0.2, 0.28)), (sequence, None)):
        plain = PolicyGradient(surrogate=same) if same else PolicyGradient(ratio="sequence", surrogate=Clip(3e-4, 4e-4))
        found, wanted = (figures_of(t, toy.forest, policy, toy.credit, toy.weight) for t in (term, plain))
        assert found["clip_fraction"] == wanted["clip_fraction"]


def test_on_policy_both_are_reinforce(toy):
    here = toy.logprob.detach()
    for surrogate in (NestedClip(), HybridClip(), HybridClip(mixing="entropy")):
        value, gradient = toy.loss(
            PolicyGradient(surrogate=surrogate, aggregate="token_mean"), behaviour_logprob=here, entropy=here.abs()
        )
        assert value == pytest.approx(0.2) and gradient == pytest.approx([-0.2, -0.2, 0.2, 0.2, 0.2])


def test_entropies_are_detached_and_asked_for(toy):
    assert HybridClip().outputs == () and HybridClip(mixing="entropy").outputs == ("entropy",)
    h = column(1.0, 2.0, 0.5, 3.0, 1.0).requires_grad_()
    assert relative_entropy(h, torch.tensor([0, 0, 1, 1, 1])).tolist() == [0.0, 1.0, 0.0, 1.0, 0.2]
    term = PolicyGradient(surrogate=HybridClip(mixing="entropy"))
    value = term(toy.forest, toy.policy(entropy=h), toy.credit, toy.weight, {}, 0)[0]
    assert torch.autograd.grad(value, h, allow_unused=True) == (None,)
    with pytest.raises(MissingSignal, match="entropy"):
        toy.loss(term)


def test_methods_and_bad_options():
    m = gxpo.method("dhpo", {"objective.mixing": "entropy", "objective.clip_high": 0.28})
    assert m.terms["policy"].surrogate == HybridClip(clip_high=0.28, mixing="entropy") and m.couples == "trajectory"
    assert (
        "entropy" in m.outputs
        and gxpo.method("fiberpo", {"objective.surrogate": "nested_clip"}).terms["policy"].surrogate == NestedClip()
    )
    for name in ("fiberpo", "dhpo"):
        for other in ("gspo", "kpo", "minpro"):
            with pytest.raises(ConfigError):
                gxpo.method(f"{name}+{other}")
    for make in (
        lambda: NestedClip(-0.1),
        lambda: HybridClip(token_share=1.5),
        lambda: HybridClip(sequence_clip_low=-1.0),
        lambda: HybridClip(mixing="product"),  # type: ignore[arg-type]  # not one of the words
        lambda: HybridClip(sides="harmful"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigError, match="objective"):
            make()
