"""DisCO: the card's numbers, its limit DisCO-b, the constraint, a loop."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.objectives import labelled_groups as groups
from tests.algorithms.objectives.conftest import figures_of

from gxpo.algorithms.objectives.sequence_losses import Discriminative, discriminative, hinge
from gxpo.base.errors import ConfigError, GxpoError
from gxpo.parts.protocols import PolicyTokens


def column(*x: float) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


GOOD = torch.tensor([True, True, False, False, False])
ONE = torch.zeros(5, dtype=torch.int64)


@pytest.mark.parametrize(
    ("tau", "gain", "failures"),
    [
        (math.inf, 0.2, [1 / 3] * 3),  # mean(-.4, -.6) - mean(-.5, -.9, -.7)
        (10.0, 0.198667, [0.340022, 0.326689, 0.333289]),
        (1.0, 0.186711, [0.401760, 0.269307, 0.328933]),
    ],
)
def test_card(tau: float, gain: float, failures: list[float]) -> None:
    score = column(-0.4, -0.6, -0.5, -0.9, -0.7).requires_grad_()
    loss = discriminative(score, ONE, GOOD, ~GOOD, tau)
    assert -float(loss.detach()) == pytest.approx(gain, abs=6e-7)
    loss.backward()
    assert score.grad is not None  # -1 / |P| of the successes, the softmax of the failures
    assert score.grad.tolist() == pytest.approx([-0.5, -0.5, *failures], abs=6e-7)


def test_card_of_the_constraint() -> None:
    # D = 3e-4, delta 1e-4, beta 1e3: beta (D - delta) = 0.2 for each of 4 tokens / 4; value 500 * 4e-8
    kl = column(1e-4, 5e-4, 3e-4, 3e-4).requires_grad_()
    loss = hinge(kl, 1e-4, 1e3)
    assert float(loss.detach()) == pytest.approx(2e-5)
    loss.backward()
    assert kl.grad is not None and kl.grad.tolist() == pytest.approx([0.05] * 4)
    inside = column(1e-4, 5e-5).requires_grad_()
    (slope,) = torch.autograd.grad(hinge(inside, 1e-4, 1e3), inside)
    assert not slope.any()


def by_hand(term, forest, x):
    gap = x["logprob"] - x["proximal_logprob"]
    tau = {"logprob": 10.0, "ratio": 1.0}[term.score] if term.tau is None else term.tau
    value, found = 0.0, groups.members(forest)
    gradient = torch.zeros(forest.n_entries, dtype=torch.float64)
    read = []
    both = [{row["good"] for row in rows if row["compared"]} == {True, False} for rows in found.values()]
    for rows, mixed in zip(found.values(), both, strict=True):
        if not groups.moves(rows):
            continue
        if mixed or (term.beta and term.constrained == "all" and any(both)):
            read += rows
        if not mixed:
            continue
        for row in rows:
            each = [
                math.exp(float(gap[p])) if term.score == "ratio" else float(x["logprob"][p]) for p in row["entries"]
            ]
            row["s"] = sum(each) / len(each)
        good, bad = [r for r in rows if r["good"]], [r for r in rows if not r["good"]]
        value -= sum(r["s"] for r in good) / len(good) / len(found)
        slopes = {id(r): -1 / len(good) for r in good}
        if math.isinf(tau):
            value += sum(r["s"] for r in bad) / len(bad) / len(found)
            slopes |= {id(r): 1 / len(bad) for r in bad}
        else:
            theirs = [r for r in bad if r["compared"]]
            total = sum(math.exp(r["s"] / tau) for r in theirs)
            value += tau * math.log(total / len(theirs)) / len(found)
            for r in bad:
                mine = math.exp(r["s"] / tau)
                whole = total if r["compared"] else total + mine
                value += 0.0 if r["compared"] else tau * math.log(whole / total) / len(found)
                slopes[id(r)] = mine / whole
        for row in rows:
            for p, w in zip(row["entries"], row["weight"], strict=True):
                inner = math.exp(float(gap[p])) if term.score == "ratio" else 1.0
                gradient[p] += w * slopes[id(row)] * inner / len(row["entries"]) / len(found)
    moved = [-float(gap[p]) for row in read if row["compared"] for p in row["entries"]]
    excess = max(0.0, sum(moved) / len(moved) - term.delta) if moved else 0.0
    for row in read:
        for p, w in zip(row["entries"], row["weight"], strict=True):
            gradient[p] -= w * term.beta * excess / len(moved)
    return value + term.beta / 2 * excess**2, gradient


TERMS = [
    Discriminative(),
    Discriminative(score="ratio", beta=10.0, delta=0.01),
    Discriminative(tau=math.inf, beta=5.0),
    Discriminative(tau=0.3, beta=0.0),
    Discriminative(constrained="contrasted", delta=0.02),
]


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.sampled_from(TERMS))
def test_agrees_with_a_loop(seed, term):
    forest = groups.random_labelled(seed)
    x = groups.policies(forest, seed)
    value, gradient = groups.graded(term, forest, x)
    expected, slopes = by_hand(term, forest, x)
    assert value == pytest.approx(expected, rel=1e-10, abs=1e-12)
    torch.testing.assert_close(gradient, slopes, rtol=1e-9, atol=1e-12)


@settings(max_examples=12)
@given(st.integers(0, 10**6), st.sampled_from(TERMS))
def test_rules(seed, term):
    groups.keeps_the_rules(term, seed)
    groups.weights_scale_derivatives(term, seed)


@pytest.mark.parametrize("term", TERMS[1:])
def test_the_gradient_is_the_same_however_the_step_is_cut(term):
    assert term.couples == ("step" if term.beta else "group")
    groups.same_however_cut(term)


@given(st.lists(st.floats(-3, 0), min_size=5, max_size=5))
def test_large_tau_is_the_plain_mean_of_failures(score):
    plain, near = (float(discriminative(column(*score), ONE, GOOD, ~GOOD, tau)) for tau in (math.inf, 1e5))
    assert near == pytest.approx(plain, abs=1e-4)
    assert near >= plain - 1e-9  # log mean exp is above the mean


def test_no_question_weighs_more_by_its_difficulty():
    """One success among four, and three among four: the successes are pulled up as much in all."""
    rows = [("hard", 1, g) for g in (1, 0, 0, 0)] + [("easy", 1, g) for g in (1, 1, 1, 0)]
    forest = groups.forest_of(rows)
    x = groups.policies(forest, 0)
    _, gradient = groups.graded(Discriminative(beta=0.0), forest, x)
    up = [float(gradient[:4].clamp_max(0).sum()), float(gradient[4:].clamp_max(0).sum())]
    assert up == pytest.approx([-0.5, -0.5])
    assert float(gradient.sum()) == pytest.approx(0.0, abs=1e-12)


def test_the_constraint_is_one_number_for_the_step():
    """A group that has not moved is pulled back with the one that has, and shares the mean with it."""
    forest = groups.forest_of([("a", 1, 1), ("a", 1, 0), ("b", 1, 1), ("b", 1, 0)])
    proximal = column(-1, -1, -1, -1)
    x = {"logprob": proximal - column(0.4, 0.4, 0, 0), "behaviour_logprob": proximal, "proximal_logprob": proximal}
    free, held = Discriminative(beta=0.0), Discriminative(beta=1.0, delta=0.05)
    pull = groups.graded(held, forest, x)[1] - groups.graded(free, forest, x)[1]
    assert pull.tolist() == pytest.approx([-0.15 / 4] * 4)  # D = 0.2


def test_the_constraint_is_over_all_groups_or_over_those_with_both_labels():
    """The mixed group has moved by .4 a token, the group of successes alone by .1: D is .25, or .4."""
    forest = groups.forest_of([("a", 1, 1), ("a", 1, 0), ("b", 1, 1), ("b", 1, 1)])
    proximal = column(-1, -1, -1, -1)
    x = {"logprob": proximal - column(0.4, 0.4, 0.1, 0.1), "behaviour_logprob": proximal, "proximal_logprob": proximal}
    free = groups.graded(Discriminative(beta=0.0), forest, x)[1]
    for where, expected in (("all", [-0.2 / 4] * 4), ("contrasted", [-0.35 / 2] * 2 + [0.0, 0.0])):
        held = Discriminative(beta=1.0, delta=0.05, constrained=where)
        assert (groups.graded(held, forest, x)[1] - free).tolist() == pytest.approx(expected)
        ones = torch.ones(4, dtype=torch.float64)
        assert held.active(forest, ones, ones).tolist() == [True, True, where == "all", where == "all"]


def test_on_the_first_update_the_constraint_does_nothing():
    forest = groups.forest_of([("a", 2, 1), ("a", 1, 0)])
    x = groups.policies(forest, 1)
    x["proximal_logprob"] = x["logprob"]
    free, held = (groups.graded(Discriminative(beta=b), forest, x) for b in (0.0, 1e3))
    assert free[0] == held[0] and torch.equal(free[1], held[1])
    ratio = groups.graded(Discriminative(score="ratio"), forest, x)
    assert ratio[0] == pytest.approx(0.0, abs=1e-15)  # all ratios are 1
    assert ratio[1].tolist() == pytest.approx([-0.5, -0.5, 1.0])


def test_groups_without_both_labels_are_not_run_and_counted():
    forest = groups.forest_of([("a", 2, 1), ("a", 2, 0), ("b", 2, 1), ("b", 1, 1)])
    x = groups.policies(forest, 2)
    value, gradient = groups.graded(Discriminative(beta=0.0), forest, x)
    alone = groups.forest_of([("a", 2, 1), ("a", 2, 0)])
    assert value == pytest.approx(
        groups.graded(Discriminative(beta=0.0), alone, {k: v[:4] for k, v in x.items()})[0] / 2
    )
    assert not gradient[4:].any()
    equal, ones = groups.forest_of([("a", 2, 1), ("a", 3, 1)]), torch.ones(5, dtype=torch.float64)
    assert not Discriminative().active(equal, ones, ones).any()
    with pytest.raises(GxpoError, match="verdicts"):
        groups.graded(Discriminative(), forest.replace(success=forest.success * torch.nan), x)


def test_metrics_and_settings():
    forest = groups.forest_of([("a", 1, 1), ("a", 1, 0)])
    proximal = column(-1.0, -2.0)
    policy = PolicyTokens(proximal + column(0.5, -0.25), proximal, proximal_logprob=proximal)
    found = figures_of(Discriminative(), forest, policy, 0 * proximal, 1 + 0 * proximal)
    assert found["score_gap"] == pytest.approx(-0.5 + 2.25) and found["constraint_kl"] == pytest.approx(-0.125)
    assert found["approx_kl"] == pytest.approx((math.exp(0.5) - 1.5 + math.exp(-0.25) - 0.75) / 2)
    for wrong in ({"score": "loss"}, {"tau": 0.0}, {"beta": -1.0}, {"constrained": "b"}, {"ratio_over": "reference"}):
        with pytest.raises(ConfigError, match="objective"):
            Discriminative(**wrong)  # type: ignore[arg-type]
