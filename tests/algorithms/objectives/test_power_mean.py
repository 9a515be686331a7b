"""APMPO's power mean: the card's numbers, a loop with its gradient, what it reduces to."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.objectives.conftest import figures_of, grow_forest

import gxpo
from gxpo.algorithms.objectives import Clip, PolicyGradient
from gxpo.algorithms.objectives.power_mean import PowerMean, feedback, log_power_mean
from gxpo.base.errors import ConfigError
from gxpo.parts.protocols import PolicyTokens

F64 = torch.float64


def column(*x):
    return torch.tensor(x, dtype=F64)


# ---------------------------------------------------------------- the power mean
def test_the_cards_numbers():
    # p = exp(-.4) = .670320; (mean of 1 1.2 .8 to the p)^(1/p) = .995561; p to 0: 1.2 * .8 = .96, cube root .986485
    phi = column(1.0, 1.2, 0.8)
    one = torch.zeros(3, dtype=torch.int64)
    means = [float(log_power_mean(phi.log(), one, 1, p).exp()) for p in (math.exp(-0.4), 1.0, 1e-9)]
    assert means == pytest.approx([0.995561, 1.0, 0.986485], abs=1e-6)
    power, clip = PowerMean().adapt(grow_forest([("a", 1, {"reward": 1.0}), ("a", 1, {"reward": 0.0})]))
    assert power == pytest.approx(0.670320, abs=1e-6)  # mu = sigma = .5: .2 + .2 tanh 1
    assert clip.clip_high == pytest.approx(0.352319, abs=1e-6) and clip.clip_low == 0.2


@pytest.mark.parametrize("power", [1e-12, 1e-3, 1.0, 40.0])
def test_it_is_stable_and_its_slopes_sum_to_one(power):
    """Slopes in log terms are shares, e^(p x) over their sum."""
    x = column(-300.0, 0.0, 1.0, 300.0, 2.0).requires_grad_()
    unit = torch.tensor([0, 0, 0, 0, 2])
    means = log_power_mean(x, unit, 3, power)
    (slope,) = torch.autograd.grad(means.sum(), x)
    means = means.detach()
    assert bool(means.isfinite().all()) and float(means[1]) == 0.0 and float(means[2]) == pytest.approx(2.0)
    assert float(slope[:4].sum()) == pytest.approx(1.0) and float(slope[4]) == pytest.approx(1.0)
    raised = [math.exp(power * (v - 300.0)) for v in (-300.0, 0.0, 1.0, 300.0)]
    assert slope[:4].tolist() == pytest.approx([r / sum(raised) for r in raised])


def test_feedback_of_equal_and_of_no_rewards():
    assert feedback(column()) == (0.0, 0.0)
    mean, signal = feedback(column(0.3, 0.3))
    assert mean == pytest.approx(0.3) and math.tanh(signal) == pytest.approx(1.0)
    worse = grow_forest([("a", 1, {"reward": -1.0}), ("a", 1, {"reward": 0.0})])
    power, clip = PowerMean().adapt(worse)
    assert power == pytest.approx(math.exp(0.4)) and clip.clip_high == 0.2


ROW = st.lists(
    st.fixed_dictionaries(
        {
            "lp": st.floats(-3, -0.01),
            "below": st.floats(-3, -0.01),
            "credit": st.sampled_from([-1.5, 0.0, 0.4, 1.0]),
            "weight": st.sampled_from([0.0, 0.5, 1.0]),
            "trainable": st.booleans(),
        }
    ),
    min_size=1,
    max_size=4,
)


def by_hand(term, rows, rewards):
    """Value, and the slope of every token's log-prob."""
    mu = sum(rewards) / len(rewards)
    sigma = math.sqrt(sum((r - mu) ** 2 for r in rewards) / len(rewards))
    p = math.exp(-term.gamma * mu)
    high = term.clip_min + (term.clip_max - term.clip_min) * max(0.0, math.tanh(mu / (sigma + 1e-6)))
    n = sum(any(t["trainable"] for t in row) for row in rows)
    loss, slopes = 0.0, []
    for row in rows:
        trained = [t for t in row if t["trainable"]]
        moves = any(t["weight"] and t["credit"] for t in trained)
        slope_by_token = dict.fromkeys(range(len(row)), 0.0)
        for sign in (1, -1) if moves else ():
            side = [i for i, t in enumerate(row) if t["trainable"] and t["credit"] * sign > 0]
            phi, free = {}, {}
            for i in side:
                rho, a = math.exp(row[i]["lp"] - row[i]["below"]), row[i]["credit"]
                phi[i] = abs(min(rho * a, min(max(rho, 1 - term.clip_low), 1 + high) * a))
                free[i] = rho <= 1 + high if sign > 0 else rho >= 1 - term.clip_low
            if not side:
                continue
            mean = (sum(x**p for x in phi.values()) / len(side)) ** (1 / p)
            part = len(side) / len(trained) / n
            loss -= sign * part * mean
            for i in side:
                share = phi[i] ** p / sum(x**p for x in phi.values())
                slope_by_token[i] = -sign * part * mean * share * row[i]["weight"] if free[i] else 0.0
        slopes += slope_by_token.values()
    return loss, slopes


@settings(max_examples=80, deadline=None)
@given(
    rows=st.lists(ROW, min_size=1, max_size=4),
    gamma=st.sampled_from([0.0, 0.8, 3.0]),
    rewards=st.lists(st.sampled_from([0.0, 0.5, 1.0]), min_size=4, max_size=4),
)
def test_power_mean_equals_a_loop_with_its_gradient(rows, gamma, rewards):
    rewards = rewards[: len(rows)]
    forest = grow_forest(
        [("a", len(row), {"trainable": [t["trainable"] for t in row], "reward": r})
         for row, r in zip(rows, rewards, strict=True)]
    )  # fmt: skip
    c = {k: column(*(float(t[k]) for row in rows for t in row)) for k in ("lp", "below", "credit", "weight")}
    logprob, term = c["lp"].clone().requires_grad_(), PowerMean(gamma)
    value = term(forest, PolicyTokens(logprob, c["below"]), c["credit"], c["weight"], {}, 0)[0]
    (slope,) = torch.autograd.grad(value, logprob, allow_unused=True)
    expected, slopes = by_hand(term, rows, rewards)
    assert float(value.detach()) == pytest.approx(expected, abs=1e-9)
    assert (torch.zeros_like(logprob) if slope is None else slope).tolist() == pytest.approx(slopes, abs=1e-9)
    active = term.active(forest, c["credit"], c["weight"])
    blind = torch.where(active, c["lp"], torch.nan)
    assert torch.equal(
        term(forest, PolicyTokens(blind, c["below"]), c["credit"], c["weight"], {}, 0)[0], value.detach()
    )


def test_at_exponent_one_it_is_the_clipped_sequence_mean(toy):
    forest = toy.forest.replace(outcome=column(1.0, 0.0))
    term = PowerMean(gamma=0.0)
    plain = PolicyGradient(surrogate=Clip(0.2, term.adapt(forest)[1].clip_high))
    same = toy._replace(forest=forest)
    for weight in (toy.weight, column(0.5, 0.5, 2.0, 2.0, 2.0)):
        mine, theirs = same.loss(term, weight=weight), same.loss(plain, weight=weight)
        assert mine[1] == pytest.approx(theirs[1])
    assert same.loss(term)[0] == pytest.approx(same.loss(plain)[0])


def test_unscored_and_uncompared_rewards_adapt_nothing(toy):
    rows = [("a", 1, {"reward": r, "compared": c}) for r, c in ((1.0, True), (0.0, True), (9.0, False))]
    assert PowerMean().adapt(grow_forest(rows)) == PowerMean().adapt(grow_forest(rows[:2]))
    metrics = figures_of(PowerMean(), toy.forest, toy.policy(), toy.credit, toy.weight)
    # ratios e^[.3 -.1 -.4 .2 .5]; all rewards 1: upper bound .4; of the negatives e^-.4 = .67 is below .8
    assert metrics["clip_fraction"] == pytest.approx(1 / 5) and metrics["ratio_max"] == pytest.approx(math.exp(0.5))
    assert metrics["on_policy"] == 0.0
    still = figures_of(PowerMean(), toy.forest, toy.policy(), 0 * toy.credit, toy.weight)
    assert still["clip_fraction"] == 0.0 and still["on_policy"] == 1.0


def test_bad_options_and_what_it_does_not_have():
    for wrong in ({"gamma": -1.0}, {"clip_low": 1.0}, {"clip_min": 0.5}):
        with pytest.raises(ConfigError, match=r"^objective\."):
            replace(PowerMean(), **wrong)
    with pytest.raises(ConfigError, match="apmpo"):
        gxpo.method("apmpo+gspo")
    assert gxpo.method("apmpo").couples == "trajectory"
