"""Running statistics over a trajectory, and the ratios made of them (MinPRO, KPO, TOPR): numbers, loops, limits."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.objectives.by_position import Filtered, Prefix, SequenceSum, Truncate, Unclipped
from tests.algorithms.objectives.coupled_rows import ROWS, agrees, diagonal

import gxpo
from gxpo.algorithms.objectives import Clip, PolicyGradient
from gxpo.algorithms.objectives.ratio_trajectory import (
    kalman_filter,
    kalman_gains,
    prefix_ratio,
    previous_value,
    run_positions,
    run_recursion,
    running_minimum,
)
from gxpo.base.errors import ConfigError
from gxpo.parts.protocols import PolicyTokens

# ----------------------------------------------------------------
# Running statistics, and the ratios made of them (MinPRO, KPO): the cards' numbers, loops, limits
F64 = torch.float64
CARD = torch.tensor([0.1, -0.3, 0.2, 0.05], dtype=F64)
ONE = torch.zeros(4, dtype=torch.int64)


# ---------------------------------------------------------------- scans
RUNS = st.lists(st.lists(st.tuples(st.floats(-3, 3), st.floats(-1.2, 1.2)), min_size=1, max_size=40), max_size=5)


@settings(max_examples=40, deadline=None)
@given(RUNS)
def test_scans_equal_loops(runs):
    x = torch.tensor([v for run in runs for v, _ in run], dtype=F64)
    coefficient = torch.tensor([c for run in runs for _, c in run], dtype=F64)
    owner = torch.tensor([7 + 2 * i for i, run in enumerate(runs) for _ in run], dtype=torch.int64)
    forward, backward, least, place = [], [], [], []
    for run in runs:
        total, values = 0.0, []
        for v, c in run:
            total = v + c * total
            values.append(total)
        forward += values
        total, values = 0.0, []
        for v, c in reversed(run):
            total = v + c * total
            values.insert(0, total)
        backward += values
        least += [min(v for v, _ in run[: i + 1]) for i in range(len(run))]
        place += range(len(run))
    assert run_recursion(x, coefficient, owner).tolist() == pytest.approx(forward, rel=1e-9, abs=1e-9)
    assert run_recursion(x, coefficient, owner, reverse=True).tolist() == pytest.approx(backward, rel=1e-9, abs=1e-9)
    assert running_minimum(x, owner).tolist() == least and run_positions(owner).tolist() == place
    assert previous_value(x, owner, 9.0).tolist() == [x[i - 1].item() if p else 9.0 for i, p in enumerate(place)]


def test_a_run_knows_nothing_of_the_others():
    x, owner = torch.randn(12, generator=torch.Generator().manual_seed(0), dtype=F64), torch.arange(12) // 4
    wild = x.clone()
    wild[4:8] = torch.inf
    for scan in (
        running_minimum,
        lambda v, o: run_recursion(v, 0.5, o),
        lambda v, o: run_recursion(v, 0.5, o, reverse=True),
    ):
        assert torch.equal(scan(wild, owner)[8:], scan(x[8:], owner[8:]))
        assert torch.equal(scan(wild, owner)[:4], scan(x[:4], owner[:4]))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(-3, 3), min_size=1, max_size=60),
    st.one_of(st.just(0.0), st.floats(1e-14, 1e-3), st.floats(1e-3, 1e6)),
    st.sampled_from([1e-3, 1.0, 7.0]),
    st.one_of(st.just(0.0), st.floats(1e-6, 1e8)),
)
def test_the_filter_equals_its_recursion(z, q, v, p0):
    x, p, expected, gained = 0.0, p0, [], []
    for value in z:
        p = p + q
        gain = p / (p + v)
        x, p = x + gain * (value - x), p * v / (p + v)  # (1 - gain) p, which cancels where p is far above v
        expected.append(x)
        gained.append(gain)
    gains = kalman_gains(torch.arange(len(z)), q, v, p0)
    assert gains.tolist() == pytest.approx(gained, rel=1e-6, abs=1e-12)
    filtered = kalman_filter(torch.tensor(z, dtype=F64), torch.zeros(len(z)).long(), q, v, p0)
    assert filtered.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-9)


# ---------------------------------------------------------------- the prefix's ratio
def test_cards_numbers_of_the_prefix():
    def factor_of(prefix):
        return prefix_ratio(CARD, ONE, prefix).exp()

    assert factor_of("min").tolist() == pytest.approx([1, 1.105171, 0.740818, 0.740818], abs=1e-6)
    weight = CARD.exp() * factor_of("min")
    assert weight.tolist() == pytest.approx([1.105171, 0.818731, 0.904837, 0.778801], abs=1e-6)
    product = CARD.exp() * factor_of("sum")
    assert product.tolist() == pytest.approx([1.105171, 0.818731, 1.000000, 1.051271], abs=1e-6)
    # exclusive means of the log-ratios: 0, .1, -.2 / 2, 0 / 3
    assert factor_of("mean").log().tolist() == pytest.approx([0, 0.1, -0.1, 0.0], abs=1e-12)


def prefix_loop(how, ratio_max):
    def loop(unit):
        weights = []
        for t, token in enumerate(unit):
            earlier = [u["gap"] for u in unit[:t]]
            prefix_log_ratio = (
                {"min": min, "sum": sum, "mean": lambda x: sum(x) / len(x)}[how](earlier) if earlier else 0.0
            )
            weights.append(min(math.exp(token["gap"] + min(max(prefix_log_ratio, -60.0), 60.0)), ratio_max))
        losses = [-w * t["credit"] * t["lp"] for w, t in zip(weights, unit, strict=True)]
        return losses, diagonal([-w * t["credit"] for w, t in zip(weights, unit, strict=True)])

    return loop


@settings(max_examples=40, deadline=None)
@given(ROWS, st.sampled_from(["min", "mean", "sum"]), st.sampled_from(["sequence_mean", "token_mean"]))
def test_the_prefix_weight_equals_a_loop(rows, how, aggregate):
    term = PolicyGradient(ratio=Prefix(how), surrogate=Truncate(1.28), aggregate=aggregate)
    agrees(term, rows, prefix_loop(how, 1.28))


def test_inside_a_clip_the_prefix_is_a_factor_of_the_ratio(toy):
    # seq 1: rho = e^[-.4 .2 .5], prefix minima 1, e^-.4, e^-.4: w = e^[-.4, -.2, .1]; A < 0 is cut below .8
    term = PolicyGradient(ratio=Prefix(), surrogate=Clip())
    value, gradient = toy.loss(term)
    w = [math.exp(0.3), math.exp(-0.1), 0.8, math.exp(-0.2), math.exp(0.1)]
    w[1] = math.exp(-0.1 + 0.3)  # after e^.3, above 1.2: cut, as w[0]
    assert value == pytest.approx((-1.2 - 1.2) / 4 + (w[2] + w[3] + w[4]) / 6)
    assert gradient == pytest.approx([0, 0, 0, w[3] / 6, w[4] / 6])


def test_on_policy_the_prefix_ratio_is_one(toy, grow):
    logprob_now = toy.logprob.detach()
    for ratio in (Prefix(), Prefix("sum"), Filtered(), Filtered(0.1, 1.0, 1.0)):
        _, gradient = toy.loss(PolicyGradient(ratio=ratio, aggregate="token_mean"), behaviour_logprob=logprob_now)
        assert gradient == pytest.approx([-0.2, -0.2, 0.2, 0.2, 0.2], abs=1e-15)
    x = torch.tensor([0.3, -0.2], dtype=F64)
    assert prefix_ratio(x, torch.tensor([0, 1])).tolist() == [0.0, 0.0]


def test_a_long_product_stays_finite():
    x = torch.full((500,), math.log(1e6), dtype=F64, requires_grad=True)
    level = Prefix("sum").level(x, torch.zeros(500).long(), torch.zeros(500).long())
    assert float(level.max().detach()) == pytest.approx(60 + math.log(1e6))
    loss = Clip().loss(gxpo.objectives.Entries.of(level.exp(), torch.ones(500, dtype=F64)))
    assert bool(torch.autograd.grad(loss.sum(), x)[0].isfinite().all())


# ---------------------------------------------------------------- the filtered ratio
def test_cards_numbers_of_the_filter():
    z, one = torch.tensor([-0.4, 0.2, 0.5], dtype=F64), torch.zeros(3, dtype=torch.int64)
    assert kalman_gains(torch.arange(3), 0.1, 1.0, 1.0).tolist() == pytest.approx(
        [0.523810, 0.384164, 0.326220], abs=1e-6
    )
    level = Filtered(0.1, 1.0, 1.0).level(z, one, one)
    assert level.tolist() == pytest.approx([-0.209524, -0.052199, 0.127939], abs=1e-6)
    assert level.exp().tolist() == pytest.approx([0.810970, 0.949140, 1.136484], abs=1e-6)


def filter_loop(noise, width):
    q, v, p0 = noise
    low = high = width

    def loop(unit):
        x, p, losses, slopes = 0.0, p0, [], []
        for t in unit:
            p += q
            gain = p / (p + v)
            x, p = x + gain * (t["gap"] - x), (1 - gain) * p
            a, s = t["credit"], math.exp(x)
            losses.append(max(-a * s, -a * min(max(s, 1 - low), 1 + high)))
            free = s <= 1 + high if a > 0 else s >= 1 - low
            slopes.append(-a * s if free else 0.0)  # in its own log-prob only
        return losses, diagonal(slopes)

    return loop


@settings(max_examples=40, deadline=None)
@given(ROWS, st.sampled_from([(1e-6, 1.0, 0.0), (0.1, 1.0, 1.0), (0.0, 2.0, 5.0)]), st.sampled_from([3e-4, 0.2]))
def test_the_filtered_ratio_equals_a_loop(rows, noise, width):
    term = PolicyGradient(ratio=Filtered(*noise), surrogate=Clip(width, width))
    agrees(term, rows, filter_loop(noise, width))


def test_its_limits_are_the_token_and_the_prefix_mean():
    z = torch.tensor([0.4, -0.7, 0.2, 1.3, 0.3], dtype=F64)
    owner = torch.tensor([0, 0, 0, 1, 1])
    assert Filtered(1e12).level(z, owner, owner).tolist() == pytest.approx(z.tolist(), abs=1e-9)
    means = Filtered(0.0, 1.0, 1e12).level(z, owner, owner)
    assert means.tolist() == pytest.approx([0.4, -0.15, -0.1 / 3, 1.3, 0.8], abs=1e-9)


def test_defaults_and_bad_options():
    # K rises to the fixed point of K = (K + q) / (K + q + 1): about sqrt(q) = 1e-3
    gains = kalman_gains(torch.tensor([0, 1, 9, 10**5]), 1e-6, 1.0, 0.0)
    assert gains.tolist() == pytest.approx([1e-6, 2e-6, 1e-5, 1e-3], rel=2e-3)
    m = gxpo.method("kpo", {"objective.process_noise": 0.1})
    assert m.terms["policy"].ratio == Filtered(0.1) and m.couples == "trajectory"
    assert gxpo.method("minpro", {"objective.prefix": "sum"}).terms["policy"].ratio == Prefix("sum")
    for make in (
        lambda: Filtered(0.0, 1.0, 0.0),
        lambda: Filtered(observation_noise=0.0),
        lambda: Prefix("max"),  # type: ignore[arg-type]  # not one of the words
    ):
        with pytest.raises(ConfigError, match="objective"):
            make()


# ---------------------------------------------------------------- The ratio of whole trajectories
# A loop, its gradient, its bound
@given(st.lists(st.lists(st.floats(-4, 4), min_size=1, max_size=4), min_size=1, max_size=4))
def test_value_and_gradient_equal_a_loop(rows) -> None:
    """Every token has its own slope, 1, in the sum of the values, whatever the others are."""
    flat = torch.tensor([x for row in rows for x in row], dtype=torch.float64, requires_grad=True)
    trajectory = torch.tensor([i for i, row in enumerate(rows) for _ in row])
    level = SequenceSum().level(flat, trajectory, trajectory)
    expected = [min(max(sum(row), -20.0), 20.0) for row in rows for _ in row]
    assert level.detach().tolist() == pytest.approx(expected, abs=1e-12)
    weight = torch.arange(1.0, len(flat) + 1, dtype=torch.float64)
    (slope,) = torch.autograd.grad((weight * level).sum(), flat)
    assert slope.tolist() == weight.tolist()


def test_summed_over_a_trajectory_it_has_the_product_gradient(toy) -> None:
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
