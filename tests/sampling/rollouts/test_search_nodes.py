"""Nodes of a tree search: backups, scores, and the way from the root."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gxpo.sampling.rollouts.search_nodes import Node, backed_up, depth_weight, puct, uct


@pytest.mark.parametrize("outcomes", [(1.0, -1.0), (-1.0, 1.0)])
def test_the_card_of_values(outcomes):
    # root and three pieces: weights (d + 1) / 4
    values = [0.0] * 4
    for outcome in outcomes:
        values = [backed_up(v, outcome, depth_weight(d, 3, 0.1)) for d, v in enumerate(values)]
    assert values == [0.25, 0.5, 0.75, 1.0]


@given(st.lists(st.sampled_from([1.0, -1.0]), max_size=6))
def test_the_order_of_outcomes_does_not_matter(outcomes):
    actual = set()
    for order in itertools.islice(itertools.permutations(outcomes), 12):
        value = 0.0
        for outcome in order:
            value = backed_up(value, outcome, 0.25)
        actual.add(value)
    won = outcomes.count(1.0)
    assert actual == {0.25 * (won or -len(outcomes))}


def test_the_card_of_uct():
    assert uct(0.2, 3, 10, 2.0) == pytest.approx(1.952174, abs=1e-6)
    assert uct(0.0, 0, 10, 2.0) == math.inf and uct(0.3, 1, 1, 2.0) == 0.3


def test_a_weight_is_never_below_the_floor() -> None:
    # (0 + 1) / (9 + 1) = 0.1 at the root of a leaf of depth 9, 1 at the leaf itself
    assert depth_weight(0, 9, 0.25) == 0.25 and depth_weight(9, 9, 0.25) == 1.0


def test_puct_prefers_likely_pieces_and_those_without_visits() -> None:
    # 0 + 2 * 0.5 * sqrt(9) / (1 + 0) = 3; after two visits 2 * 0.5 * 3 / 3 = 1
    assert puct(0.0, 0, 9, 2.0, 0.5) == 3.0 and puct(0.0, 2, 9, 2.0, 0.5) == 1.0


def test_a_child_adds_its_tokens_and_surprise_to_its_parents() -> None:
    root = Node()
    child = root.add("ab", [-1.0, -3.0], terminal=False, is_cut=False)
    leaf = child.add("c", [-0.5], terminal=True, is_cut=True)
    assert (child.path, child.tokens, child.length, child.surprise, child.total) == ((0,), 2, 2, 2.0, 4.0)
    assert (leaf.path, leaf.length, leaf.surprise, leaf.total) == ((0, 0), 3, 0.5, 4.5)
    assert (leaf.terminal, leaf.is_closed, leaf.is_cut, child.is_closed) == (True, True, True, False)


def test_the_way_to_a_node_leaves_out_the_root() -> None:
    root = Node()
    first = root.add("a", [], terminal=False, is_cut=False)
    second = root.add("b", [], terminal=False, is_cut=False)
    leaf = second.add("c", [], terminal=True, is_cut=False)
    assert leaf.way() == [second, leaf] and root.way() == []
    assert list(root.below()) == [root, first, second, leaf]
