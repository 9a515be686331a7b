"""A leaf against the leaves below each of its ancestors."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import strategies
from tests.algorithms.credit.test_node_value import PLAIN, tree

from gxpo.algorithms.credit import advantage
from gxpo.algorithms.credit.node_value import ancestor_groups, by_ancestors, visits_of
from gxpo.algorithms.credit.relative import group_relative
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import ACTION, Forest

# leaves 1, 0 below one step of the prompt, 1, 1 below another
CARD = [("a", 1.0, [2, 3], None), ("b", 0.0, [4], ("a", 1)), ("c", 1.0, [5, 6], None), ("d", 1.0, [7], ("c", 1))]


def by_leaf(forest: Forest, **options) -> list[float]:
    visits, _ = visits_of(forest)
    group, action = forest.ids("group", axis="R"), forest.kind[forest.visits[1]] == ACTION
    return ancestor_groups(forest.outcome, group, visits, action, where=forest.compared, **options).tolist()


def test_the_card() -> None:
    # all: mean .75, four leaves; below the steps: means .5 and 1, two leaves each
    # a: (4 * .25 + 2 * .5) / 6; c: (4 * .25 + 0) / 6; plain: (.25 + .5) / 2, .125; c's step dropped: 4 * .25 / 4
    forest = tree(*CARD)
    assert by_leaf(forest) == pytest.approx([1 / 3, -2 / 3, 1 / 6, 1 / 6], abs=1e-12)
    assert by_leaf(forest, weight="equal") == pytest.approx([0.375, -0.625, 0.125, 0.125], abs=1e-12)
    assert by_leaf(forest, drop_equal=True) == pytest.approx([1 / 3, -2 / 3, 0.25, 0.25], abs=1e-12)


def loop(forest: Forest, weight: str, drop_equal: bool) -> list[float]:
    """Over sets of leaves: those below each action on the way, each set once, and all of the prompt."""
    below = defaultdict(set)
    for s in range(forest.n_steps):
        r = int(forest.step_trajectory[s])
        for node in forest.path(int(forest.step_action[s])).tolist():
            if forest.kind[node] == ACTION:
                below[forest.group[r], node].add(r)
    out = []
    for r in range(forest.n_trajectories):
        g = forest.group[r]
        everybody = frozenset(q for q in range(forest.n_trajectories) if forest.group[q] == g)
        sets = {frozenset(q for q in own if forest.compared[q]) for (h, _), own in below.items() if h == g and r in own}
        sets.add(frozenset(q for q in everybody if forest.compared[q]))
        top = bottom = 0.0
        for leaves in sets:
            outcomes = [float(forest.outcome[q]) for q in sorted(leaves)]
            others = leaves - {r}
            equal = not outcomes or max(outcomes) == min(outcomes)
            if not others or (drop_equal and equal):
                continue
            w = len(leaves) if weight == "size" else 1
            top += w * (float(forest.outcome[r]) - statistics.fmean(outcomes))
            bottom += w
        out.append(top / bottom if bottom else 0.0)
    return out


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["size", "equal"]), st.booleans())
def test_it_agrees_with_a_loop(seed: int, weight: str, drop_equal: bool) -> None:
    forest = strategies.random_forest(seed, groups=2, rollouts=7, unscored=False, **PLAIN)
    forest = forest.replace(outcome=forest.outcome.round())
    expected = loop(forest, weight, drop_equal)
    assert by_leaf(forest, weight=weight, drop_equal=drop_equal) == pytest.approx(expected, abs=1e-12)
    order = torch.randperm(forest.n_trajectories, generator=torch.Generator().manual_seed(seed))
    moved = by_leaf(forest.select(order), weight=weight, drop_equal=drop_equal)
    assert moved == pytest.approx([expected[i] for i in order.tolist()], abs=1e-12)
    shifted = by_leaf(forest.replace(outcome=forest.outcome + 2.0), weight=weight, drop_equal=drop_equal)
    assert shifted == pytest.approx(expected, abs=1e-12)


@given(st.integers(0, 10**6))
def test_without_forks_it_is_the_outcome_less_the_groups_mean(seed: int) -> None:
    forest = strategies.random_forest(seed, groups=2, rollouts=5, unscored=False, forks=False, **PLAIN)
    group = forest.ids("group", axis="R")
    expected = group_relative(forest.outcome, group, scale="none", where=forest.compared)
    assert by_leaf(forest) == pytest.approx(expected.tolist(), abs=1e-12)


def test_a_step_on_the_way_that_nobody_leaves_counts_once() -> None:
    """TreePO's code counts a depth for every segment: with a second segment before the fork, a's step of two leaves
    would count twice, (4 * .25 + 2 * .5 + 2 * .5) / 8 = .375."""
    longer = [("a", 1.0, [2, 9, 3], None), ("b", 0.0, [4], ("a", 2)), *CARD[2:]]
    cut = tree(*longer, ("e", 0.5, [8], ("a", 1))).select([0, 1, 2, 3])  # the node is cut, and no branch left
    assert by_leaf(cut) == pytest.approx([1 / 3, -2 / 3, 1 / 6, 1 / 6], abs=1e-12)


def test_nothing_to_compare_is_exactly_zero() -> None:
    alone = tree(("a", 1.0, [2, 3], None))
    equal = tree(*[(name, 0.1, own, base) for name, _, own, base in CARD])
    for forest in (alone, equal):
        assert by_leaf(forest) == [0.0] * forest.n_trajectories
        assert advantage(by_ancestors)(forest, {}, 0).tolist() == [0.0] * forest.n_entries


def test_the_credit_is_whitened_over_tokens_of_whole_paths() -> None:
    forest = tree(*CARD)
    own = [1 / 3, -2 / 3, 1 / 6, 1 / 6]  # two tokens on each path
    over = [x for x in own for _ in range(2)]
    mean, spread = statistics.fmean(over), math.sqrt(statistics.variance(over) + 1e-8)
    assert advantage(by_ancestors, whiten="none")(forest, {}, 0).tolist() == pytest.approx(over, abs=1e-12)
    assert advantage(by_ancestors)(forest, {}, 0).tolist() == pytest.approx(
        [(x - mean) / spread for x in over], abs=1e-9
    )


def test_refusals() -> None:
    for field in ("weight", "whiten"):
        with pytest.raises(ConfigError, match=rf"credit\.{field} is 'x'"):
            advantage(by_ancestors, **{field: "x"})
    assert advantage(by_ancestors).requires == ("forks",)
