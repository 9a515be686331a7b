"""Clips by advantage, trajectory and entropy (ETR, nested, FiberPO, DHPO, HAPO): numbers, loops, limits."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.objectives.by_position import ElasticClip, EntropyAdaptiveClip, HybridClip, NestedClip
from tests.algorithms.objectives.conftest import figures_of
from tests.algorithms.objectives.coupled_rows import ROWS, agrees, diagonal, evaluate

import gxpo
from gxpo.algorithms.objectives import Clip, DualClip, Entries, PolicyGradient, Surrogate
from gxpo.algorithms.objectives.surrogate_clips import binary_variance, entropy_score, relative_entropy
from gxpo.base.errors import ConfigError, MissingSignal

# ----------------------------------------------------------------
# Clips by the trajectory and by the entropy (nested, FiberPO, DHPO, HAPO): numbers, loops with gradients, limits
# ----------------------------------------------------------------
# Clips that look at the trajectory as well (nested, FiberPO, DHPO): numbers of cards, loops with gradients, limits
F64_NESTED = torch.float64


def column_nested(*x):
    return torch.tensor(x, dtype=F64_NESTED)


# ---------------------------------------------------------------- two levels
def test_cards_numbers_with_the_mean_held(toy):
    """Means .1 held at .05, residuals [.2 -.2 | -.5 .1 .4]. Those of sequence 0 stand on the edge: there the card's
    central difference is the mean of free, -(e^.25 - e^-.15) / 8 = -.052915, and held, 0."""
    (value, free), (_, clipped_loss) = (
        toy.loss(PolicyGradient(surrogate=NestedClip(0.05, 0.2 + e))) for e in (1e-9, -1e-9)
    )
    assert value == pytest.approx(0.014911, abs=1e-6)
    assert free[:2] == pytest.approx([-0.052915, 0.052915], abs=1e-6) and clipped_loss[:2] == [0.0, 0.0]
    between = [(a + b) / 2 for a, b in zip(free, clipped_loss, strict=True)]
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
def test_a_clipped_mean_makes_the_gradient_sum_to_zero(rows):
    for row in rows:
        row[:] = [{**t, "gap": 0.3 + t["gap"] % 0.5, "credit": row[0]["credit"], "weight": 1.0} for t in row]
    _, slope = evaluate(PolicyGradient(surrogate=NestedClip(0.05, 0.1)), rows)
    start = 0
    for row in rows:
        assert float(slope[start : start + len(row)].sum()) == pytest.approx(0.0, abs=1e-14)
        start += len(row)


def test_without_bounds_the_nested_clip_is_the_free_ratio(toy):
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
    gaps = column_nested(math.log(1e6), math.log(1e-6), math.log(1e6), 0.0)
    x = gaps.clone().requires_grad_()
    owner = torch.tensor([0, 0, 1, 1])
    entries = Entries(x, column_nested(0, 0, 0, 0), x, x.exp(), column_nested(1.0, -1.0, 2.0, 1.0), owner, owner)
    loss = NestedClip(0.2, 0.3).loss(entries)
    # means 0 and 6.9; residuals +-13.8 and +-6.9, all held
    assert loss.tolist() == pytest.approx([-math.exp(0.3), math.exp(-0.3), -2 * math.exp(0.5), -math.exp(-0.1)])
    # of the trajectory whose mean is 0 the mean moves on: (-e^.3 + e^-.3) / 2 each; the other stands still
    expected = [(-math.exp(0.3) + math.exp(-0.3)) / 2] * 2 + [0.0, 0.0]
    assert torch.autograd.grad(loss.sum(), x)[0].tolist() == pytest.approx(expected)
    assert NestedClip(0.2, 0.3).clipped(entries).all()


# ---------------------------------------------------------------- two branches
def test_cards_numbers_of_the_mixture(toy):
    surrogate = HybridClip(sequence_clip_low=0.05, sequence_clip_high=0.05)
    value, gradient = toy.loss(PolicyGradient(surrogate=surrogate))
    assert value == pytest.approx(0.003562, abs=1e-6)
    assert gradient == pytest.approx([0, -0.113105, 0, 0, 0], abs=1e-6)


def hybrid_loop(surrogate, entropies=False):
    def clip_value(ratio, low, high, a):
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
            a, token_ratio = t["credit"], math.exp(t["gap"])
            token, alive = clip_value(token_ratio, 1 - surrogate.clip_low, 1 + surrogate.clip_high, a)
            clipped_sequence, moves = clip_value(
                mean, 1 - surrogate.sequence_clip_low, 1 + surrogate.sequence_clip_high, a
            )
            losses.append(-a * (share * token + (1 - share) * clipped_sequence))
            slopes.append(-a * (share * token_ratio * alive + (1 - share) * mean * moves))
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
        metrics, expected = (figures_of(t, toy.forest, policy, toy.credit, toy.weight) for t in (term, plain))
        assert metrics["clip_fraction"] == expected["clip_fraction"]


def test_on_policy_both_are_reinforce(toy):
    logprob_now = toy.logprob.detach()
    for surrogate in (NestedClip(), HybridClip(), HybridClip(mixing="entropy")):
        value, gradient = toy.loss(
            PolicyGradient(surrogate=surrogate, aggregate="token_mean"),
            behaviour_logprob=logprob_now,
            entropy=logprob_now.abs(),
        )
        assert value == pytest.approx(0.2) and gradient == pytest.approx([-0.2, -0.2, 0.2, 0.2, 0.2])


def test_nested_entropies_are_detached_and_asked_for(toy):
    assert HybridClip().outputs == () and HybridClip(mixing="entropy").outputs == ("entropy",)
    h = column_nested(1.0, 2.0, 0.5, 3.0, 1.0).requires_grad_()
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


# ---------------------------------------------------------------- HAPO's clip and credit
# The card's numbers, a loop with its gradient, what they reduce to
F64_ENTROPY_ADAPTIVE = torch.float64


def column_entropy_adaptive(*x):
    return torch.tensor(x, dtype=F64_ENTROPY_ADAPTIVE)


def signals_of_scores(*score):
    """Entropies whose scores these are, where 0, 1 and -1 are among them and the pivot is the one of score 0."""
    return column_entropy_adaptive(*(math.exp(s) for s in score))


def entries_with_entropy(ratio, credit, entropy):
    return replace(Entries.of(ratio, credit), entropy=entropy)


def test_cards_bounds():
    # h = [-.8 0 .6] between extremes of -1 and 1; of five log-entropies the median is 0
    entropy = signals_of_scores(-0.8, 0.0, 0.6, -1.0, 1.0)
    assert entropy_score(entropy, 0.5).tolist() == pytest.approx([-0.8, 0.0, 0.6, -1.0, 1.0])
    one, surrogate = (
        torch.ones(5, dtype=F64_ENTROPY_ADAPTIVE),
        EntropyAdaptiveClip(entropy_quantile=0.5, credit_gain=0.0),
    )
    low, high = (
        surrogate.loss(entries_with_entropy(0.01 * one, -one, entropy)),
        -surrogate.loss(entries_with_entropy(9 * one, one, entropy)),
    )
    assert low.tolist()[:3] == pytest.approx([0.64, 0.8, 0.8])
    assert high.tolist()[:3] == pytest.approx([1.2, 1.2, 1.32])


def test_credit_by_region():
    """h = .6: half the region is (.9, 1.16); h = -.8: (.82, 1.1). Outside, inside, outside, inside."""
    entropy = signals_of_scores(0.6, 0.6, -0.8, -0.8, 0.0, -1.0, 1.0)
    ratio = column_entropy_adaptive(1.17, 1.15, 0.81, 0.83, 1.0, 1.0, 1.0)
    surrogate = EntropyAdaptiveClip(entropy_quantile=0.5)
    scale = surrogate.loss(entries_with_entropy(ratio, 1 + 0 * ratio, entropy)) / -ratio
    assert scale.tolist() == pytest.approx([1.6, 1.0, 1.0, 0.2, 1.0, 0.0, 1.0])
    loss = surrogate.loss(entries_with_entropy(ratio, 1 + 0 * ratio, entropy))
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
                clipped_ratio, free = min(rho, 1 + high), rho <= 1 + high
            else:
                clipped_ratio = max(min(rho, surrogate.ratio_max), 1 - low)
                free = 1 - low <= rho <= surrogate.ratio_max
            losses.append(-a * clipped_ratio)
            slopes.append(-a * rho if free else 0.0)
        return losses, diagonal(slopes)

    return loop


@settings(max_examples=60, deadline=None)
@given(ROWS, st.sampled_from([0.0, 0.33, 0.8, 1.0]), st.sampled_from([0.0, 0.7]), st.sampled_from([0.0, 0.9]))
def test_it_equals_a_loop(rows, quantile, by_clip, by_credit):
    surrogate = EntropyAdaptiveClip(0.23, 0.29, 4.1, quantile, by_clip, by_credit)
    agrees(PolicyGradient(surrogate=surrogate, aggregate="token_mean"), rows, by_hand(surrogate))


def test_without_gains_it_is_the_dual_clip(toy):
    h = column_entropy_adaptive(0.1, 2.0, 0.5, 3.0, 1.0)
    plain = toy.loss(PolicyGradient(surrogate=DualClip(ratio_max=1.5)))
    rigid = EntropyAdaptiveClip(ratio_max=1.5, clip_gain=0.0, credit_gain=0.0)
    assert toy.loss(PolicyGradient(surrogate=rigid), entropy=h) == plain
    equal = PolicyGradient(surrogate=EntropyAdaptiveClip(ratio_max=1.5))
    assert toy.loss(equal, entropy=0 * h + 0.7) == plain
    assert entropy_score(0 * h + 0.7).tolist() == [0.0] * 5


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0.0, 4.0), min_size=1, max_size=12), st.floats(0.0, 1.0))
def test_scores_fill_the_interval(entropies, quantile):
    entropy_scores = entropy_score(column_entropy_adaptive(*entropies), quantile)
    assert bool((entropy_scores.abs() <= 1).all()) and bool(entropy_scores.isfinite().all())
    assert entropy_scores.tolist() == pytest.approx(scores(entropies, quantile), abs=1e-6)


def test_entropy_adaptive_entropies_are_detached_and_asked_for(toy):
    surrogate = EntropyAdaptiveClip()
    h = column_entropy_adaptive(0.1, 2.0, 0.5, 3.0, 1.0).requires_grad_()
    term = PolicyGradient(surrogate=surrogate)
    assert term.outputs == ("logprob", "entropy") and term.couples == "step"
    value = term(toy.forest, toy.policy(entropy=h), toy.credit, toy.weight, {}, 0)[0]
    assert torch.autograd.grad(value, h, allow_unused=True) == (None,)
    with pytest.raises(MissingSignal, match="entropy"):
        toy.loss(term)


def test_far_off_policy_and_what_counts_as_clipped():
    entropy = signals_of_scores(-1.0, 0.0, 1.0, 0.0, 0.0)
    ratio = column_entropy_adaptive(1e6, 1e-6, 1e6, 10.5, 0.7).requires_grad_()
    credit = column_entropy_adaptive(1.0, -1.0, -1.0, -1.0, 0.0)
    x, surrogate = entries_with_entropy(ratio, credit, entropy), EntropyAdaptiveClip(entropy_quantile=0.5)
    loss = surrogate.loss(x)
    assert loss.tolist()[:2] == pytest.approx([-1.2, 0.8])
    (slope,) = torch.autograd.grad(loss.sum(), ratio)
    assert slope.tolist() == [0.0] * 5 and surrogate.clipped(x).tolist() == [True] * 4 + [False]


def test_bad_options():
    for wrong in ({"entropy_quantile": 1.5}, {"clip_gain": -1.0}, {"credit_gain": 1.5}, {"ratio_max": 0.5}):
        with pytest.raises(ConfigError, match="objective"):
            EntropyAdaptiveClip(**wrong)


# ---------------------------------------------------------------- ETR's clip and APMPO's power mean
# The cards' numbers, loops with their gradients, what they reduce to
F64 = torch.float64


def column(*x):
    return torch.tensor(x, dtype=F64)


# ---------------------------------------------------------------- the elastic clip
@pytest.mark.parametrize(("right", "size"), [(1, 2), (1, 4), (3, 4), (1, 10), (7, 8)])
def test_the_variance_is_read_off_the_credit(right, size):
    p = right / size
    credit = column(math.sqrt((1 - p) / p), -math.sqrt(p / (1 - p)))  # z-scores by the population std
    assert binary_variance(credit).tolist() == pytest.approx([4 * p * (1 - p)] * 2)


def test_worked_bounds():
    """A = 1: tanh 1 = .761594, p = 1/2: .2 * 1.380797 * 1.5 = .414239. A = 0: .2."""
    surrogate = ElasticClip()
    far = surrogate.loss(Entries.of(column(9.0, 0.1), column(1.0, -1.0)))
    assert far.tolist() == pytest.approx([-1 - 0.2 * 2.071196, 1 - 0.2 * 2.071196], abs=1e-6)
    ratio = column(1.3, 1.5, 0.7, 0.5)
    credit = column(1.0, 1.0, -1.0, -1.0)
    loss = surrogate.loss(Entries.of(ratio, credit))
    assert loss.tolist() == pytest.approx([-1.3, -1.414239, 0.7, 0.585761], abs=1e-6)
    assert surrogate.clipped(Entries.of(ratio, credit)).tolist() == [False, True, False, True]


TOKEN = st.tuples(st.floats(0.2, 3.0), st.sampled_from([-3.0, -1.0, -0.1, 0.0, 0.4, 1.7]))


@settings(max_examples=60, deadline=None)
@given(st.lists(TOKEN, min_size=1, max_size=6), st.floats(0, 2), st.floats(0, 2))
def test_loss_and_gradient_equal_a_loop(tokens, by_credit, by_variance):
    surrogate = ElasticClip(0.1, 0.3, by_credit, by_variance)
    ratio = column(*(r for r, _ in tokens)).requires_grad_()
    credit = column(*(a for _, a in tokens))
    loss = surrogate.loss(Entries.of(ratio, credit))
    (slope,) = torch.autograd.grad(loss.sum(), ratio)
    cut = surrogate.clipped(Entries.of(ratio, credit))
    for i, (r, a) in enumerate(tokens):
        room = (1 + by_credit * math.tanh(abs(a))) * (1 + by_variance * 4 * a * a / (1 + a * a) ** 2)
        low, high = 1 - 0.1 * room, 1 + 0.3 * room
        clipped_ratio = min(max(r, low), high)
        assert float(loss[i].detach()) == pytest.approx(max(-a * r, -a * clipped_ratio))
        free = r <= high if a > 0 else r >= low
        assert float(slope[i]) == pytest.approx(-a if free else 0.0)
        assert bool(cut[i]) == (not free and a != 0)


def test_without_elasticity_it_is_the_plain_clip():
    ratio, credit = torch.linspace(0.3, 2, 30, dtype=F64), torch.linspace(-2, 2, 30, dtype=F64)
    rigid = ElasticClip(0.2, 0.28, 0.0, 0.0)
    assert torch.equal(rigid.loss(Entries.of(ratio, credit)), Clip(0.2, 0.28).loss(Entries.of(ratio, credit)))
    assert torch.equal(rigid.clipped(Entries.of(ratio, credit)), Clip(0.2, 0.28).clipped(Entries.of(ratio, credit)))
    credit = torch.linspace(0, 3, 21, dtype=F64)[1:]
    clip_loss = ElasticClip(elastic_variance=0.0).loss(Entries.of(torch.full_like(credit, 99.0), credit)) / -credit
    room = (clip_loss - 1) / 0.2
    assert bool((room.diff() > 0).all()) and float(room.max()) < 1.5
    m = gxpo.method("etr+dapo")
    assert m.terms["policy"].surrogate == ElasticClip(clip_high=0.28)
    with pytest.raises(ConfigError, match="elastic_credit"):
        ElasticClip(elastic_credit=-1.0)
