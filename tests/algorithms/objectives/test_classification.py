"""REAL: the card's numbers, bounded gradients, a loop, who moves whom."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.objectives import labelled_groups as groups
from tests.algorithms.objectives.conftest import figures_of

from gxpo.algorithms.objectives.sequence_losses import Classification, classification
from gxpo.base.errors import ConfigError, GxpoError, MissingSignal
from gxpo.parts.protocols import PolicyTokens


def column(*x: float) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


def test_card() -> None:
    # exp of s / .5: negatives .05, .3 -> 1.105171, 1.822119; of -s / .5: positives .1, -.2 -> .818731, 1.491825
    # log(1 + 2.927290) + log(1 + 2.310556) = 1.367950 + 1.197115
    score = column(0.1, -0.2, 0.05, 0.3).requires_grad_()
    good = torch.tensor([True, True, False, False])
    loss = classification(score, torch.zeros(4, dtype=torch.int64), good, ~good, 0.5)
    assert float(loss.detach()) == pytest.approx(2.565065, abs=6e-7)
    loss.backward()
    assert score.grad is not None
    assert score.grad.tolist() == pytest.approx([-0.494618, -0.901253, 0.562816, 0.927927], abs=6e-7)


def by_hand(forest, x, tau):
    gap = x["logprob"] - x["proximal_logprob"]
    found, value, slopes = groups.members(forest), 0.0, []
    for rows in found.values():
        for row in rows:
            row["s"] = sum(float(gap[p]) for p in row["entries"]) / len(row["entries"])
        verdicts = {row["good"] for row in rows if row["compared"]}
        if verdicts != {True, False} or not groups.moves(rows):
            continue
        for good, sign in ((True, -1.0), (False, 1.0)):
            own = [row for row in rows if row["good"] == good]
            anchored = 1 + sum(math.exp(sign * row["s"] / tau) for row in own if row["compared"])
            value += math.log(anchored) / len(found)
            for row in own:
                mine = math.exp(sign * row["s"] / tau)
                whole = anchored if row["compared"] else anchored + mine
                value += 0.0 if row["compared"] else math.log(whole / anchored) / len(found)
                slopes.append((row, sign * mine / whole / tau / len(found)))
    return value, groups.spread_over(forest, slopes, "mean")


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from([0.1, 0.5, 2.0]))
def test_agrees_with_a_loop(seed, tau):
    forest = groups.random_labelled(seed)
    x = groups.policies(forest, seed)
    value, gradient = groups.graded(Classification(tau=tau), forest, x)
    expected, slopes = by_hand(forest, x, tau)
    assert value == pytest.approx(expected, rel=1e-10, abs=1e-13)
    torch.testing.assert_close(gradient, slopes, rtol=1e-9, atol=1e-13)


@settings(max_examples=12)
@given(st.integers(0, 10**6))
def test_rules(seed):
    groups.keeps_the_rules(Classification(), seed)
    groups.weights_scale_derivatives(Classification(), seed)


def test_the_gradient_is_the_same_however_the_step_is_cut():
    groups.same_however_cut(Classification())


@given(st.lists(st.tuples(st.floats(-50, 50), st.booleans()), min_size=2, max_size=8), st.floats(0.05, 5))
def test_gradient_weights_are_bounded_and_rise_with_the_mistake(rows, tau):
    score = column(*(s for s, _ in rows)).requires_grad_()
    good = torch.tensor([g for _, g in rows])
    loss = classification(score, torch.zeros(len(rows), dtype=torch.int64), good, ~good, tau)
    (slope,) = torch.autograd.grad(loss, score)
    assert math.isfinite(float(loss.detach())) and bool((slope.abs() <= (1 + 1e-12) / tau).all())
    if good.any() and not good.all():
        assert bool((slope[good] <= 0).all()) and bool((slope[~good] >= 0).all())
        for side in (good, ~good):  # the higher a failure scores, or the lower a success, the more it is asked to move
            order = torch.argsort(score.detach()[side])
            sizes = slope[side][order].abs()
            steps = sizes.diff() if side is not good else -sizes.diff()
            assert bool((steps >= -1e-12).all())
    else:
        assert not slope.any()


def test_groups_without_both_labels_are_not_run_and_counted():
    mixed = [("a", 2, 1), ("a", 3, 0)]
    forest = groups.forest_of([*mixed, ("b", 2, 1), ("b", 1, 1), ("c", 2, 0)])
    x = groups.policies(forest, 2)
    value, gradient = groups.graded(Classification(), forest, x)
    alone = groups.graded(Classification(), groups.forest_of(mixed), {k: v[:5] for k, v in x.items()})
    assert value == pytest.approx(alone[0] / 3) and gradient[:5].tolist() == pytest.approx((alone[1] / 3).tolist())
    ones = torch.ones(forest.n_entries, dtype=torch.float64)
    assert Classification().active(forest, 0 * ones, ones).tolist() == [True] * 5 + [False] * 5
    equal = groups.forest_of([("a", 2, 1), ("a", 3, 1)])
    assert not Classification().active(equal, ones[:5], ones[:5]).any()


def test_a_group_is_contrasted_by_those_that_are_compared():
    """The only failure is not compared: nobody learns anything from it."""
    forest = groups.forest_of([("a", 2, 1), ("a", 2, 0, {"compared": False})])
    ones = torch.ones(4, dtype=torch.float64)
    assert not Classification().active(forest, ones, ones).any()


def test_weight_zero_only_counts():
    rows = [("a", 2, 1), ("a", 2, 0), ("a", 2, 0)]
    forest = groups.forest_of([*rows[:2], (*rows[2], {"weight": 0.0})])
    x = groups.policies(forest, 3)
    value, gradient = groups.graded(Classification(), forest, x)
    full, moved = groups.graded(Classification(), groups.forest_of(rows), x)
    assert value == full and torch.equal(gradient[:4], moved[:4]) and not gradient[4:].any() and moved[4:].all()


def test_verdicts_are_labels_and_rewards_are_not():
    forest = groups.forest_of([("a", 2, 1, {"reward": 0.2}), ("a", 2, 0, {"reward": 0.9})])
    x = groups.policies(forest, 4)
    _, gradient = groups.graded(Classification(), forest, x)
    assert bool((gradient[:2] < 0).all()) and bool((gradient[2:] > 0).all())
    _, swapped = groups.graded(Classification(success_at=0.5), forest, x)
    assert bool((swapped[:2] > 0).all()) and bool((swapped[2:] < 0).all())
    unknown = forest.replace(success=torch.tensor([1.0, torch.nan], dtype=torch.float64))
    with pytest.raises(GxpoError, match=r"1 of 2 trajectories have none.*objective\.success_at"):
        groups.graded(Classification(), unknown, x)
    assert groups.graded(Classification(success_at=0.5), unknown, x)[0] > 0


def test_what_is_unknown_and_settings():
    forest = groups.forest_of([("a", 1, 1), ("a", 1, 0)])
    x = groups.policies(forest, 5)
    reference = Classification(ratio_over="reference")
    assert reference.needs == ("reference_logprob",)
    broken = {**x, "reference_logprob": column(-1.0, math.nan)}
    with pytest.raises(MissingSignal, match="nan for 1 of 2 trained tokens"):
        groups.graded(reference, forest, broken)
    with pytest.raises(ConfigError, match=r"objective\.tau"):
        Classification(tau=0.0)
    proximal = column(-1.0, -1.0)
    policy = PolicyTokens(proximal + column(0.5, -0.25), proximal, proximal_logprob=proximal)
    found = figures_of(Classification(), forest, policy, 0 * proximal, 1 + 0 * proximal)
    assert found["score_gap"] == pytest.approx(0.75)
    assert found["approx_kl"] == pytest.approx((math.exp(0.5) - 1.5 + math.exp(-0.25) - 0.75) / 2)
