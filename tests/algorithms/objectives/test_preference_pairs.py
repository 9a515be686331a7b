"""DPO and TRPA on pairs from groups: the numbers of the papers, which pairs there are, loops, weights by gap."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.credit.test_search_value import tree
from tests.algorithms.objectives import labelled_groups as groups
from tests.algorithms.objectives.conftest import figures_of

import gxpo
from gxpo.algorithms.objectives.preference_pairs import FORMS, PreferencePairs, pairs
from gxpo.base.errors import ConfigError, GxpoError, MissingSignal
from gxpo.parts.protocols import PolicyTokens


# ---------------------------------------------------------------- DPO and TRPA on pairs from groups
# The cards' numbers, which pairs there are, a loop over pairs
def column(*x: float) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


@pytest.mark.parametrize(
    ("settings", "loss", "slope"),
    [
        # h = (-10 + 11) - (-14 + 13) = 2; sigmoid(.2) = .549834
        ({}, 0.598139, -0.1 * (1 - 0.549834)),
        ({"label_smoothing": 0.1}, 0.618139, -0.1 * (0.9 * (1 - 0.549834) - 0.1 * 0.549834)),
        ({"form": "ipo"}, 9.0, 2 * (2 - 5)),
    ],
)
def test_card(settings: dict, loss: float, slope: float) -> None:
    margin = column(2.0).requires_grad_()
    value = FORMS[settings.pop("form", "sigmoid")](margin, 0.0, 0.1, **settings)
    assert float(value.detach()) == pytest.approx(loss, abs=6e-7)
    (gradient,) = torch.autograd.grad(value, margin)
    assert float(gradient) == pytest.approx(slope, abs=6e-7)


def test_card_through_the_term() -> None:
    """Five tokens of log-prob -10 in all against -11, six of -14 against -13; per-token means give h = .366667."""
    forest = groups.forest_of([("a", 5, 1), ("a", 6, 0)])
    x = {"logprob": torch.cat([column(-2.0).expand(5), column(-14 / 6).expand(6)])}
    x |= {"reference_logprob": torch.cat([column(-2.2).expand(5), column(-13 / 6).expand(6)])}
    x |= {"behaviour_logprob": x["logprob"] * torch.nan}  # nobody asks who sampled
    value, gradient = groups.graded(PreferencePairs(), forest, x)
    assert value == pytest.approx(0.598139, abs=6e-7)
    assert gradient.tolist() == pytest.approx([-0.0450166] * 5 + [0.0450166] * 6, abs=6e-7)
    assert groups.graded(PreferencePairs(label_smoothing=0.1), forest, x)[0] == pytest.approx(0.618139, abs=6e-7)
    assert groups.graded(PreferencePairs(form="ipo"), forest, x)[0] == pytest.approx(9.0)
    mean = PreferencePairs(form="ipo", length_mean=True)
    assert groups.graded(mean, forest, x)[0] == pytest.approx(21.467778, abs=6e-7)


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("bw-")), max_size=14))
def test_pairs_are_the_product_inside_each_group(rows):
    group = torch.tensor([g for g, _ in rows], dtype=torch.int64)
    better, worse = (torch.tensor([side == c for _, side in rows], dtype=torch.bool) for c in "bw")
    left, right = pairs(group, better, worse)
    expected = [(i, j) for i, (g, a) in enumerate(rows) for j, (h, b) in enumerate(rows) if (g, a, b) == (h, "b", "w")]
    assert sorted(zip(left.tolist(), right.tolist(), strict=True)) == expected


WEIGHTED = PreferencePairs(pairs="ordered", length_mean=True, success_weight=2.5, unpaired=True)
TRPA = PreferencePairs(pairs="ordered", length_mean=True, success_slope=2.5, unpaired=True, unpaired_beta=1.0)


def test_card_of_levels() -> None:
    """z = .05 of the better, -.02 of the worse: -log sigmoid(.1 * .07) = .689653, times 2.5 where that is right."""
    for right, loss in ((1, 1.724133), (0, 0.689653)):
        forest = groups.forest_of([("a", 2, right, {"reward": 1.0}), ("a", 1, 0, {"reward": 0.5})])
        reference = column(-1.0, -1.0, -1.0)
        x = {"logprob": reference + column(0.03, 0.07, -0.02), "reference_logprob": reference}
        value, gradient = groups.graded(WEIGHTED, forest, x | {"behaviour_logprob": reference})
        assert value == pytest.approx(loss, abs=6e-7)
        slope = -0.1 * (2.5 if right else 1.0) * (1 - 1 / (1 + math.exp(-0.007)))
        assert gradient.tolist() == pytest.approx([slope / 2, slope / 2, -slope], abs=1e-12)


def by_hand(term, forest, x):
    gap = x["logprob"] - x["reference_logprob"]
    value, members_by_group, slopes = 0.0, groups.members(forest), []
    for rows in members_by_group.values():
        for row in rows:
            row["s"] = sum(float(gap[p]) for p in row["entries"]) / (len(row["entries"]) if term.length_mean else 1)
            row["good"] = row["good"] if term.success_at is None else row["reward"] >= term.success_at
        compared = [row for row in rows if row["compared"]]
        better, worse = [r for r in rows if r["good"]], [r for r in rows if not r["good"]]
        high = max((r["reward"] for r in compared), default=0.0)
        low = min((r["reward"] for r in compared), default=0.0)
        if term.pairs == "outcome":
            better = [r for r in rows if r["reward"] >= high > low]
            worse = [r for r in rows if r["reward"] <= low < high]
        elif term.pairs == "ordered":
            better = worse = rows if high > low else []
        both = any(r["compared"] for r in better) and any(r["compared"] for r in worse)
        if not groups.moves(better + worse if both else rows):
            continue
        pairs = [(b, w) for b in better for w in worse if b["compared"] or w["compared"]] if both else []
        if term.pairs == "ordered":
            pairs = [(b, w) for b, w in pairs if b["reward"] > w["reward"]]
        moved = [(b["s"] - w["s"], [(b, 1)] * w["compared"] + [(w, -1)] * b["compared"], b["good"]) for b, w in pairs]
        if not pairs and term.unpaired:
            moved = [(r["s"] * (1 if r["good"] else -1), [(r, 1 if r["good"] else -1)], False) for r in rows]
        for h, sides, good in moved:
            share = (term.success_weight if good else 1.0) / len(moved) / len(members_by_group)
            beta = term.beta * (term.success_slope if good else 1.0)
            if not pairs and term.unpaired_beta is not None:
                beta = term.unpaired_beta
            if term.form == "ipo":
                value += share * (h - 1 / (2 * beta)) ** 2
                slope = share * 2 * (h - 1 / (2 * beta))
            else:
                up, e = 1 / (1 + math.exp(-beta * h)), term.label_smoothing
                value -= share * ((1 - e) * math.log(up) + e * math.log(1 - up))
                slope = -share * beta * ((1 - e) * (1 - up) - e * up)
            slopes += [(row, sign * slope) for row, sign in sides]
    return value, groups.spread_over(forest, slopes, "mean" if term.length_mean else "sum")


TERMS = [
    PreferencePairs(),
    PreferencePairs(pairs="outcome", label_smoothing=0.2),
    PreferencePairs(form="ipo", beta=0.5, length_mean=True),
    WEIGHTED,
    TRPA,
    PreferencePairs(pairs="ordered", success_at=0.3, success_weight=0.5),
    PreferencePairs(pairs="outcome", form="ipo", success_slope=3.0, unpaired=True, unpaired_beta=0.4),
    PreferencePairs(unpaired=True),
]


@settings(max_examples=60)
@given(st.integers(0, 10**6), st.sampled_from(TERMS))
def test_agrees_with_a_loop(seed, term):
    forest = groups.random_labelled(seed)
    x = groups.policies(forest, seed)
    value, gradient = groups.graded(term, forest, x)
    expected, slopes = by_hand(term, forest, x)
    assert value == pytest.approx(expected, rel=1e-10, abs=1e-13)
    torch.testing.assert_close(gradient, slopes, rtol=1e-9, atol=1e-13)


@settings(max_examples=20)
@given(st.integers(0, 10**6), st.sampled_from(TERMS))
def test_rules(seed, term):
    groups.keeps_the_rules(term, seed)
    groups.weights_scale_derivatives(term, seed)


@pytest.mark.slow
@pytest.mark.parametrize("term", [*TERMS[:2], WEIGHTED])
def test_the_gradient_is_the_same_however_the_step_is_cut(term):
    groups.same_however_cut(term)


def test_at_the_reference_every_pair_weighs_the_same():
    forest = groups.forest_of([("a", 1, 1), ("a", 1, 0), ("a", 1, 0)])
    x = groups.policies(forest, 0)
    x["reference_logprob"] = x["logprob"]
    value, gradient = groups.graded(PreferencePairs(beta=0.2), forest, x)
    assert value == pytest.approx(math.log(2))
    assert gradient.tolist() == pytest.approx([-0.1, 0.05, 0.05])  # -beta sigmoid(0), shared by two failures


def test_the_unit_is_the_group():
    """Four pairs in one group, one in another, none in a third: each of three groups weighs a third."""
    forest = groups.forest_of([("a", 1, g) for g in (1, 1, 0, 0)] + [("b", 1, g) for g in (1, 0)] + [("c", 1, 1)])
    x = groups.policies(forest, 0)
    x["reference_logprob"] = x["logprob"]
    value, gradient = groups.graded(PreferencePairs(), forest, x)
    assert value == pytest.approx(2 / 3 * math.log(2))
    per_group = [float(gradient[rows].abs().sum()) for rows in (slice(0, 4), slice(4, 6), slice(6, 7))]
    assert per_group == pytest.approx([0.1 / 3, 0.1 / 3, 0.0])


def test_outcome_pairs_ignore_verdicts_and_those_in_between():
    rows = [("a", 1, 0, {"reward": r}) for r in (0.1, 0.9, 0.5, 0.9)] + [("b", 1, 1, {"reward": 1 / 3})] * 2
    forest = groups.forest_of(rows).replace(success=column(*[math.nan] * 6))
    ones = torch.ones(6, dtype=torch.float64)
    term = PreferencePairs(pairs="outcome")
    assert term.active(forest, ones, ones).tolist() == [True, True, False, True, False, False]
    x = groups.policies(forest, 1)
    x["reference_logprob"] = x["logprob"]
    _, gradient = groups.graded(term, forest, x)
    assert gradient.tolist() == pytest.approx([0.025, -0.0125, 0, -0.0125, 0, 0])
    with pytest.raises(GxpoError, match="verdicts"):
        groups.graded(PreferencePairs(), forest, x)
    by_threshold = PreferencePairs(success_at=0.5)
    assert by_threshold.active(forest, ones, ones).tolist() == [True] * 4 + [False] * 2


def test_pairs_that_are_nearer_than_the_least_gap_are_left_out():
    """Outcomes .9, .1 | .6, .4: gaps .8 and .2. With tau .5 the second group has no pair, and counts as 0."""
    forest = groups.forest_of([("a", 1, 1), ("a", 1, 0), ("b", 1, 1), ("b", 1, 0)])
    forest = forest.with_rewards(column(0.9, 0.1, 0.6, 0.4), success=forest.success)
    x = {"logprob": column(-1, -2, -1, -2), "reference_logprob": column(-2, -1, -2, -1)}
    x |= {"behaviour_logprob": x["logprob"]}
    both, far = (groups.graded(PreferencePairs(pairs="outcome", min_gap=g), forest, x) for g in (0.0, 0.5))
    assert both[0] == pytest.approx(0.598139, abs=6e-7)  # h = 2 twice
    assert far[0] == pytest.approx(0.598139 / 2, abs=6e-7) and far[1].tolist()[2:] == [0.0, 0.0]


def test_equal_verdicts_move_nothing():
    forest, ones = groups.forest_of([("a", 2, 1), ("a", 3, 1)]), torch.ones(5, dtype=torch.float64)
    for term in TERMS:
        if term.unpaired:
            continue
        assert not term.active(forest, ones, ones).any()
        value, gradient = groups.graded(term, forest, groups.policies(forest, 0))
        assert value == 0.0 and not gradient.any()


def test_levels_are_distinct_outcomes():
    """Levels 1, .5 and 0: five pairs, of which three are won by the right one."""
    rows = [("a", 1, r == 1.0, {"reward": r}) for r in (0.5, 1.0, 0.0, 0.5)]
    forest = groups.forest_of(rows)
    x = groups.policies(forest, 1)
    x["reference_logprob"] = x["logprob"]
    value, gradient = groups.graded(WEIGHTED, forest, x)
    assert value == pytest.approx(math.log(2) * (3 * 2.5 + 2) / 5)
    # wins less losses: .5: 1 - 2.5; 1: 3 * 2.5; 0: -2.5 - 1 - 1; each times -beta sigmoid(0) / 5
    assert gradient.tolist() == pytest.approx([-0.01 * w for w in (-1.5, 7.5, -4.5, -1.5)])
    policy = PolicyTokens(x["logprob"] + column(0, 0.1, 0, 0.2), x["behaviour_logprob"], x["logprob"])
    metrics = figures_of(WEIGHTED, forest, policy, 0 * x["logprob"], 1 + 0 * x["logprob"])
    assert metrics["pairs"] == 5 and metrics["pair_accuracy"] == pytest.approx(
        3 / 5
    )  # not 1 > .5 (second), .5 (first) > 0


def test_groups_of_one_level_are_set_against_zero():
    forest = groups.forest_of([("a", 1, 1), ("a", 1, 1), ("b", 1, 0), ("c", 1, 0, {"reward": 0.2})])
    x = groups.policies(forest, 1)
    x["reference_logprob"] = x["logprob"]
    value, gradient = groups.graded(WEIGHTED, forest, x)
    assert value == pytest.approx(math.log(2))
    assert gradient.tolist() == pytest.approx([-0.05 / 2 / 3, -0.05 / 2 / 3, 0.05 / 3, 0.05 / 3])
    policy = PolicyTokens(x["logprob"], x["behaviour_logprob"], x["logprob"])
    assert figures_of(WEIGHTED, forest, policy, 0 * x["logprob"], 1 + 0 * x["logprob"]) == {"pairs": 0.0}
    assert WEIGHTED.learns_from_equal_groups and not PreferencePairs().learns_from_equal_groups


@given(st.lists(st.integers(0, 3), min_size=1, max_size=7))
def test_every_two_levels_make_a_pair(outcomes):
    forest = groups.forest_of([("a", 1, 0, {"reward": float(r)}) for r in outcomes])
    term = PreferencePairs(pairs="ordered")
    logprob = torch.zeros(len(outcomes), dtype=torch.float64)
    metrics = figures_of(term, forest, PolicyTokens(logprob, logprob, logprob), logprob, logprob + 1)
    assert metrics["pairs"] == sum(a > b for a in outcomes for b in outcomes)


@pytest.mark.parametrize("ratio", [1e-6, 1e6])
def test_far_off_policy(ratio):
    forest = groups.forest_of([("a", 1, 1), ("a", 1, 0)])
    reference, d = column(-20, -20), math.log(ratio)
    x = {"logprob": reference + column(d, 0), "behaviour_logprob": reference, "reference_logprob": reference}
    value, gradient = groups.graded(WEIGHTED, forest, x)
    up = 1 / (1 + math.exp(-0.1 * d))
    assert value == pytest.approx(-2.5 * math.log(up))
    assert gradient.tolist() == pytest.approx([-0.25 * (1 - up), 0.25 * (1 - up)])


@pytest.mark.parametrize("length_mean", [True, False])
def test_what_two_forward_passes_may_differ_by_is_no_preference(length_mean):
    forest = groups.forest_of([("a", 3, 1), ("a", 3, 0), ("b", 1, 1), ("b", 1, 0)])
    reference = torch.full((8,), -1.0, dtype=torch.float64)
    noise = column(1, 1, 1, -1, -1, -1, 200, 0) * 1e-6
    policy = PolicyTokens(reference + noise, reference * torch.nan, reference)
    metrics = figures_of(PreferencePairs(length_mean=length_mean), forest, policy, 0 * reference, 1 + 0 * reference)
    assert metrics["pair_accuracy"] == 0.5  # of b alone


def test_metrics_and_settings():
    forest = groups.forest_of([("a", 1, 1), ("a", 1, 0), ("a", 1, 0)])
    reference = column(-1.0, -1.0, -1.0)
    policy = PolicyTokens(column(-0.5, -0.25, -2.0), reference * torch.nan, reference)
    metrics = figures_of(PreferencePairs(beta=0.5), forest, policy, 0 * reference, 1 + 0 * reference)
    assert metrics == pytest.approx({"pair_accuracy": 0.5, "pair_margin": 0.5 * (-0.25 + 1.5) / 2, "pairs": 2.0})
    assert PreferencePairs.needs == ("reference_logprob",)
    with pytest.raises(MissingSignal, match="reference_logprob"):
        groups.graded(PreferencePairs(), forest, {"logprob": reference, "behaviour_logprob": reference})
    wrongs = [{"beta": 0.0}, {"label_smoothing": 0.5}, {"pairs": "all"}, {"form": "ipo", "label_smoothing": 0.1}]
    for wrong in [*wrongs, {"success_weight": 0.0}, {"success_slope": -1.0}, {"unpaired_beta": 0.0}]:
        with pytest.raises(ConfigError, match="objective"):
            PreferencePairs(**wrong)  # type: ignore[arg-type]


# ----------------------------------------------------------------
# Pairs that are weighted by how far apart their outcomes are
F64 = torch.float64


def test_a_pair_counts_as_much_as_its_outcomes_differ():
    # outcomes 1, .75, 0 with scores .4, .1, -.2 (one token each): pairs (a, b) .25, (a, c) 1, (b, c) .75; all right
    forest = tree(("a", 1, [1], None), ("b", 0, [1], None), ("c", 0, [1], None))
    forest = forest.replace(outcome=torch.tensor([1.0, 0.75, 0.0], dtype=F64), success=torch.ones(3, dtype=F64))
    x = torch.tensor([0.4, 0.1, -0.2], dtype=F64, requires_grad=True)
    zero = torch.zeros(3, dtype=F64)
    out = gxpo.method("steporlm").loss(forest, gxpo.PolicyTokens(x, zero, reference_logprob=zero)).value
    logistic = lambda h: math.log1p(math.exp(-0.1 * h))  # noqa: E731
    expected = (0.25 * logistic(0.3) + logistic(0.6) + 0.75 * logistic(0.3)) / 3
    assert float(out.detach()) == pytest.approx(expected, abs=1e-12)
    (gradient,) = torch.autograd.grad(out, x)
    s = lambda h: 0.1 / (1 + math.exp(0.1 * h)) / 3  # noqa: E731
    expected_slopes = [-0.25 * s(0.3) - s(0.6), 0.25 * s(0.3) - 0.75 * s(0.3), s(0.6) + 0.75 * s(0.3)]
    assert gradient.tolist() == pytest.approx(expected_slopes, abs=1e-12)


def test_of_verdicts_against_a_frozen_policy_it_is_dpo():
    forest = tree(("a", 1, [2], None), ("b", 0, [1], None), ("c", 0, [2], None), ("d", 1, [1], None))
    x = torch.linspace(-1, 1, forest.n_entries, dtype=F64)
    pol = gxpo.PolicyTokens(x, x, reference_logprob=torch.zeros_like(x))
    anchored = gxpo.method("steporlm", {"objective.reference": "start"})
    one, other = (float(m.loss(forest, pol).value) for m in (anchored, gxpo.method("dpo")))
    assert one == pytest.approx(other, abs=1e-12)


def test_pairs_of_verdicts_have_no_gap():
    with pytest.raises(ConfigError, match="by_gap"):
        PreferencePairs(weight_by_gap=True)
    with pytest.raises(ConfigError, match="verdict_first"):
        PreferencePairs(verdict_first=True)


def test_gaps_and_the_weight_of_successes_multiply():
    forest = tree(("a", 1, [1], None), ("b", 0, [1], None))
    alike = torch.ones(2, dtype=F64)  # both right, told apart by their process
    forest = forest.replace(outcome=torch.tensor([1.0, 0.25], dtype=F64), success=alike)
    zero = torch.zeros(2, dtype=F64)
    pol = gxpo.PolicyTokens(zero, zero, reference_logprob=zero)
    m = gxpo.method("steporlm", {"objective.success_weight": 2.0})
    assert float(m.loss(forest, pol).value) == pytest.approx(2 * 0.75 * math.log(2), abs=1e-12)
