"""Curves of token weights: the papers' numbers, loops, limits."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.objectives.conftest import grow_forest
from tests.algorithms.weighting.verdict_rows import forest_of, group_of, part_of, weighted
from tests.battery import battery, made_up, policy_of
from tests.strategies import forests

import gxpo
from gxpo.algorithms.weighting import TokenWeight
from gxpo.algorithms.weighting.scores import position
from gxpo.algorithms.weighting.token_curves import (
    at_maximum,
    by_sign,
    drop_median,
    exponential,
    largest,
    largest_size,
    u_shape,
)
from gxpo.base.errors import ConfigError
from gxpo.environments.rewards.shape import Shape
from gxpo.forest.forest import Forest


# ---------------------------------------------------------------- CPPO
# The card's numbers, a loop, who competes, what it reduces to
def largest_credit_weight(**options):
    return part_of("cppo", "largest_credit", **options)


A = torch.tensor([1, -1, 0.2, -0.2, 0.577, 0.577, 0.577, -1.732], dtype=torch.float64)
G = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])


@pytest.mark.parametrize(("scope", "kept"), [("batch", [0, 1, 4, 7]), ("group", [0, 1, 4, 7])])
def test_largest_card(scope: str, kept: list[int]) -> None:
    weights = largest_size(A, G if scope == "group" else 0 * G, G >= 0)
    assert weights.tolist() == [2.0 if i in kept else 0.0 for i in range(8)]


def test_scopes_differ_where_a_group_has_little() -> None:
    a = torch.tensor([0.0, 0.0, 0.1, 0.1, 1.0, -1.0, 2.0, -2.0])
    assert largest_size(a, 0 * G, G >= 0).tolist() == [0, 0, 0, 0, 2, 2, 2, 2]
    assert largest_size(a, G, G >= 0).tolist() == [0, 0, 2, 2, 0, 0, 2, 2]


ROWS_LARGEST = st.lists(
    st.tuples(st.integers(-1, 2), st.sampled_from([-1.5, -0.5, 0.0, 0.5, 1.0]), st.booleans()), min_size=1, max_size=12
)


@settings(max_examples=100, deadline=None)
@given(ROWS_LARGEST, st.sampled_from([0.0, 0.3, 0.5, 0.875]), st.sampled_from(["group", "batch"]))
def test_largest_equals_a_loop(rows, prune, scope):
    unit = [g if scope == "group" else 0 for g, _, _ in rows]
    expected = []
    for i, (_, a, counts) in enumerate(rows):
        peers = [j for j, (_, _, c) in enumerate(rows) if c and unit[j] == unit[i] and unit[i] >= 0]
        if not peers:
            expected.append(1.0)
            continue
        k = max(1, int(len(peers) * (1 - prune) + 1e-9))
        best = sorted(peers, key=lambda j: (-abs(rows[j][1]), j))[:k]
        stays = i in best if counts else abs(a) >= min(abs(rows[j][1]) for j in best)
        expected.append(len(peers) / k if stays else 0.0)
    group, credit = torch.tensor([r[0] for r in rows]), torch.tensor([r[1] for r in rows], dtype=torch.float64)
    unit = group if scope == "group" else 0 * group
    weights = largest_size(credit, unit, torch.tensor([r[2] for r in rows]), prune=prune)
    assert weights.tolist() == pytest.approx(expected)


def test_of_equal_scores_the_earlier_is_kept() -> None:
    one = torch.zeros(3, dtype=torch.int64)
    assert largest(torch.ones(3), one, one + 2, one == 0).tolist() == [True, True, False]
    order = torch.tensor([5, 2, 7, 0, 3, 6, 1, 4])
    distinct = torch.linspace(0.1, 1, 8)
    assert torch.equal(largest_size(distinct, G, G >= 0)[order], largest_size(distinct[order], G[order], G >= 0))


def test_of_scores_that_differ_by_rounding_the_earlier_is_kept() -> None:
    score, one = torch.tensor([0.3, 0.1 + 0.2, 0.1], dtype=torch.float64), torch.zeros(3, dtype=torch.int64)
    assert largest(score, one, one + 1, one == 0).tolist() == [True, False, False]
    assert largest(score, one, one + 1, torch.tensor([False, True, True])).tolist() == [True, True, False]


def test_largest_the_loss_is_that_of_the_kept_ones_alone() -> None:
    """Rewards .9 .6 .5 0 about their mean .5: the second and third have the least."""
    forest = forest_of(group_of(0.9, 0.6, 0.5, 0.0))
    m = gxpo.method("cppo", {"credit.scale": "none"})
    logprob = torch.tensor([-1.1, -1.0, -0.8, -0.9], dtype=torch.float64, requires_grad=True)
    loss = m.loss(forest, gxpo.PolicyTokens(logprob, forest.path_behaviour_logprob)).value
    (slope,) = torch.autograd.grad(loss, logprob)
    rho = [2.718281828459045**x for x in (-0.1, 0.1)]
    assert float(loss.detach()) == pytest.approx((-0.4 * rho[0] + 0.5 * rho[1]) / 2)
    assert slope.tolist() == pytest.approx([-0.4 * rho[0] / 2, 0, 0, 0.5 * rho[1] / 2])
    credit = m.advantages(forest)
    assert m.active(forest, credit, m.token_weights(forest, credit)).tolist() == [True, False, False, True]


def test_nothing_pruned_is_the_base_and_a_group_of_one_stays() -> None:
    rows = group_of(1, 0, 0) + group_of(1, name="b")
    assert weighted("cppo", forest_of(rows), {"weight.largest_credit.prune": 0.0}) == weighted("grpo", forest_of(rows))
    assert largest_size(torch.tensor([0.3]), torch.tensor([0]), torch.tensor([True]), prune=0.9).tolist() == [1.0]


def test_bad_options() -> None:
    for bad in ({"prune": 1.0}, {"prune": -0.1}, {"scope": "step"}):
        with pytest.raises(ConfigError, match="largest_credit"):
            largest_credit_weight(**bad)


# ---------------------------------------------------------------- MC-GRPO
# The median rollout is compared and not trained
def drop_median_weight(**options):
    return part_of("mc_grpo", "drop_median", **options)


ROWS_DROP_MEDIAN = st.lists(
    st.tuples(st.integers(-1, 2), st.sampled_from([0.0, 1.0, 0.3, 0.7]), st.booleans()), min_size=1, max_size=14
)


@settings(max_examples=80, deadline=None)
@given(ROWS_DROP_MEDIAN)
def test_drop_median_it_equals_a_loop(rows):
    group, reward, compared = (torch.tensor(c) for c in zip(*rows, strict=True))
    expected = [1.0] * len(rows)
    for g in {g for g, _, _ in rows if g >= 0}:
        members = [i for i, (h, _, c) in enumerate(rows) if h == g and c]
        if len(members) > 1:
            ordered = sorted(members, key=lambda i: (rows[i][1], i))
            value = rows[ordered[(len(members) - 1) // 2]][1]
            dropped = next(i for i in members if rows[i][1] == value)
            for i in members:
                expected[i] = 0.0 if i == dropped else len(members) / (len(members) - 1)
    weights = drop_median(reward, group, compared)
    assert weights.tolist() == pytest.approx(expected) and weights.dtype == torch.float64


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([0.0, 1.0, 0.3, 0.7]), min_size=1, max_size=9))
def test_the_weights_without_the_median_sum_to_the_group_size(rewards):
    r, one = torch.tensor(rewards, dtype=torch.float64), torch.zeros(len(rewards)).long()
    weight = drop_median(r, one, one == 0)
    assert float(weight.sum()) == pytest.approx(len(rewards))
    credit = gxpo.credit.group_relative(r, one, "lower_median", "median_absolute", eps=1e-3)
    assert bool((credit[weight == 0] == 0).all()) and int((weight == 0).sum()) == (len(rewards) > 1)


def test_drop_median_the_loss_is_that_of_the_kept_ones_alone():
    m = gxpo.method("mc_grpo", {"objective.kl.coef": 0.0})
    forest = battery(2, sizes=(5, 5, 5))
    signals = made_up(m, forest, 2)
    noise = torch.randn(forest.n_entries, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    logprob = signals["proximal_logprob"] + 0.3 * noise
    credit = m.advantages(forest, signals)
    weighted_loss = m.loss(forest, policy_of(forest, {"logprob": logprob}, signals), advantages=credit, signals=signals)
    kept_rows = (
        (m.token_weights(forest, credit)[[int(forest.path_of(r)[0]) for r in range(15)]] > 0).nonzero().squeeze(1)
    )
    entries, few = forest.entries_of(kept_rows.tolist()), forest.select(kept_rows)
    assert few.n_trajectories == 12
    narrow = {k: v[entries] for k, v in signals.items()}
    plain = gxpo.method("grpo")
    loss_of_kept = plain.loss(few, policy_of(few, {"logprob": logprob[entries]}, narrow), advantages=credit[entries])
    assert (
        float(weighted_loss.value) == pytest.approx(float(loss_of_kept.value), rel=1e-12)
        and abs(float(loss_of_kept.value)) > 0
    )


def test_the_method():
    m = gxpo.method("mc_grpo")
    assert list(m.weights) == ["drop_median"] and m.weights["drop_median"] == TokenWeight(
        "outcome", "drop_median", "trajectory", "group"
    )
    assert m.credit == gxpo.credit.GroupRelative(center="lower_median", scale="median_absolute", eps=1e-3)
    paper = gxpo.method("mc_grpo@paper")
    assert paper.rollout.group_size == 9 and "kl" in paper.terms


# ----------------------------------------------------------------
# Weights by the sign of the credit, and W-REINFORCE, which is made of them
def by_sign_weight(**options):
    return part_of("psr_nsr", "by_sign", **options)


VALUES = st.lists(st.sampled_from([-2.0, -1e-9, 0.0, 1e-9, 3.0]), max_size=12)


@settings(max_examples=40, deadline=None)
@given(VALUES, st.floats(0, 3), st.floats(0, 3))
def test_by_sign_it_equals_a_loop(credit, positive, negative):
    weights = by_sign(torch.tensor(credit, dtype=torch.float64), positive=positive, negative=negative)
    expected = [positive if a > 0 else negative if a < 0 else 1.0 for a in credit]
    assert weights.tolist() == pytest.approx(expected) and weights.dtype == torch.float64


def shaped(rewards, verdicts):
    """The rewards as the method's shape leaves them."""
    random_forest = battery(0, sizes=(len(rewards),))
    scores = torch.tensor([math.nan if r is None else r for r in rewards], dtype=torch.float64)
    forest = random_forest.replace(outcome=scores, success=torch.tensor(verdicts, dtype=torch.float64))
    return gxpo.method("psr_nsr").shaped(forest)


def times(m, forest):
    credit = m.advantages(forest)
    product = credit * m.token_weights(forest, credit)
    return [float(product[forest.path_of(r)[0]]) for r in range(forest.n_trajectories)]


def test_the_cards_numbers():
    forest = shaped([1.0, 0.0, 0.0, 0.0], [1, 0, 0, 0])
    assert times(gxpo.method("psr_nsr"), forest) == pytest.approx([0.1, -1, -1, -1])
    positive = gxpo.method("psr_nsr", {"weight.by_sign.positive": 1.0, "weight.by_sign.negative": 0.0})
    assert times(positive, forest) == [1.0, 0.0, 0.0, 0.0]
    negative = gxpo.method("psr_nsr", {"weight.by_sign.positive": 0.0})
    assert times(negative, forest) == [0.0, -1.0, -1.0, -1.0]


def test_the_sign_is_that_of_the_verdict():
    forest = shaped([0.2, None, 7.0], [1, math.nan, 0])
    assert forest.outcome[0] == 1.0 and forest.outcome[1].isnan() and forest.outcome[2] == -1.0
    graded = battery(0, sizes=(2,)).replace(success=torch.tensor([1.0, 0.0], dtype=torch.float64))
    assert Shape("signed", {"right": 2.0, "wrong": -0.5})(graded).tolist() == [2.0, -0.5]
    with pytest.raises(ConfigError, match="signed needs verdicts"):
        Shape("signed")(battery(0, sizes=(2,)).replace(success=torch.tensor([1.0, math.nan], dtype=torch.float64)))
    with pytest.raises(ConfigError, match="finite"):
        gxpo.method("psr_nsr", {"reward.shape.signed.wrong": -math.inf})


def test_equal_groups_learn_and_nothing_is_compared():
    m = gxpo.method("psr_nsr")
    assert m.credit.learns_from_equal_groups and list(m.shapes) == ["signed"]
    assert times(m, shaped([1.0] * 3, [1] * 3)) == pytest.approx([0.1] * 3)
    assert times(m, shaped([0.0] * 3, [0] * 3)) == pytest.approx([-1.0] * 3)


def test_it_goes_on_any_credit():
    forest = battery(1)
    plain = gxpo.method("grpo").advantages(forest)
    m = gxpo.method("grpo", {"weight.half": "token_weight", "weight.half.score": "credit",
                             "weight.half.curve": "by_sign", "weight.half.positive": 0.5})  # fmt: skip
    assert m.weights == {"half": TokenWeight("credit", "by_sign", options={"positive": 0.5})}
    assert torch.equal(m.advantages(forest), plain)
    weight_P = m.token_weights(forest, plain)
    assert torch.equal(weight_P, torch.where(plain > 0, 0.5, 1.0).double())


def test_errors():
    for wrong in ({"positive": -0.1}, {"negative": math.inf}, {"positive": math.nan}):
        with pytest.raises(ConfigError, match=rf"weight\.by_sign\.{next(iter(wrong))}(=| is)"):
            by_sign_weight(**wrong)


# ---------------------------------------------------------------- Weights by the exponential of the credit
def exponential_credit_weight(**options):
    keys = RED | {f"weight.red.{k}": v for k, v in options.items()}
    return gxpo.method("rec", keys).weights["red"]


RED = {"weight.red": "token_weight", "weight.red.score": "credit", "weight.red.curve": "exponential"}


@given(st.lists(st.floats(-50, 1e6), min_size=1, max_size=8), st.floats(0.1, 10), st.floats(0.5, 1e6))
def test_a_loop_gives_the_same(credit, temperature, most) -> None:
    weights = exponential(torch.tensor(credit, dtype=torch.float64), temperature=temperature, max_weight=most)
    for w, a in zip(weights.tolist(), credit, strict=True):
        expected = most if a / temperature > 700 else min(math.exp(a / temperature), most)
        assert w == pytest.approx(expected) and 0 <= w <= most


def test_it_multiplies_the_credit_that_is_there_already() -> None:
    forest = grow_forest([("a", 1, {"reward": 1.0}), ("a", 1, {"reward": 0.0})])
    m = gxpo.method("rec", RED)
    lp = torch.full((2,), -1.0, dtype=torch.float64, requires_grad=True)
    m.loss(forest, gxpo.PolicyTokens(lp, lp.detach())).value.backward()
    assert lp.grad is not None  # A = +-.5: -A e^A / 2
    assert lp.grad.tolist() == pytest.approx([-0.25 * math.exp(0.5), 0.25 * math.exp(-0.5)])
    for wrong in ({"temperature": 0.0}, {"max_weight": math.inf}, {"max_weight": 0.0}):
        with pytest.raises(ConfigError, match=r"weight\.red"):
            exponential_credit_weight(**wrong)


# ---------------------------------------------------------------- U-shaped weights
# The card's five tokens, one token, a loop, and what they average to
def u_shape_weight(**options):
    return part_of("avatar_tas", "u_shape", **options)


def test_u_shape_card() -> None:
    one = torch.zeros(5, dtype=torch.int64)
    assert u_shape(position(torch.arange(5), one)).tolist() == pytest.approx([1.3, 1.075, 1, 1.075, 1.3])
    assert u_shape(position(torch.tensor([0]), one[:1])).tolist() == pytest.approx([1.3])


def test_u_shape_averages_one_plus_a_third_of_the_strength() -> None:
    n = 10_001
    assert float(u_shape(torch.linspace(0, 1, n)).mean()) == pytest.approx(1.1, abs=1e-4)


@settings(max_examples=30, deadline=None)
@given(forest=forests(), strength=st.sampled_from([0.0, 0.3, 2.0]))
def test_u_shape_equals_a_loop(forest: Forest, strength: float) -> None:
    weights = u_shape_weight(strength=strength)(forest, torch.zeros(forest.n_entries), {}, 0)
    for r in range(forest.n_trajectories):
        trained = [p for p in forest.path_of(r).tolist() if bool(forest.path_trainable[p])]
        for p in forest.path_of(r).tolist():
            t = trained.index(p) / max(len(trained) - 1, 1) if p in trained else 0.5
            assert float(weights[p]) == pytest.approx(1 + strength * (2 * t - 1) ** 2)


def test_bad_strengths_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"weight\.u_shape\.strength is -1"):
        u_shape_weight(strength=-1.0)


# ----------------------------------------------------------------
# Which tokens the newest version wrote, by a loop; with one version it changes nothing
def newest_version_weight(**options):
    return part_of("t_ppo", "newest_version", **options)


def test_worked() -> None:
    """Trajectory 0 over three steps, trajectory 1 from one, trajectory 2 begun later than it ends in the batch."""
    version, trajectory = torch.tensor([1, 1, 2, 3, 3, 1, 1, 5]), torch.tensor([0, 0, 0, 0, 0, 1, 1, 2])
    assert at_maximum(version, trajectory).tolist() == [0, 0, 0, 1, 1, 1, 1, 1]


@settings(max_examples=25, deadline=None)
@given(forest=forests(), same=st.booleans())
def test_newest_version_equals_a_loop(forest: Forest, same: bool) -> None:
    if same:
        forest = forest.replace(policy_version=torch.zeros_like(forest.policy_version))
    weights = newest_version_weight()(forest, torch.zeros(forest.n_entries), {}, 0).tolist()
    for r in range(forest.n_trajectories):
        entries = forest.path_of(r).tolist()
        wrote = [int(forest.policy_version[forest.token_node[forest.path_token[p]]]) for p in entries]
        trained = forest.path_trainable[entries].tolist()
        newest = max((v for v, is_trained in zip(wrote, trained, strict=True) if is_trained), default=0)
        assert [weights[p] for p in entries] == [
            float(v == newest or not is_trained) for v, is_trained in zip(wrote, trained, strict=True)
        ]
    assert not same or weights == [1.0] * forest.n_entries
