"""Values of the nodes of a search: the worked example, sums in any order, a loop, and what is exactly zero."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import strategies

from gxpo.algorithms.credit.search_value import against_ends, search_value
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.forest.reshape import pieces_of
from gxpo.parts.registry import CREDITS

SearchValue = CREDITS["search_value"]

F64 = torch.float64


def tree(*rows: tuple[Any, ...]) -> Forest:
    """(name, right, lengths of its own pieces, (base, tokens kept) or None, group) each."""
    records = []
    for name, right, lengths, base, *group in rows:
        begins = [sum(lengths[:i]) for i in range(len(lengths))]
        records.append(
            {
                "schema": "gxpo.rollouts/1",
                "group": group[0] if group else "g",
                "id": name,
                "reward": None if right is None else float(right),
                "success": None if right is None else bool(right),
                "turns": [{"action": [5] * sum(lengths), "segments": begins}],
                **({"prompt": [1]} if base is None else {"fork": {"of": base[0], "turn": 0, "token": base[1]}}),
            }
        )
    return Forest.from_records(records)


# ---------------------------------------------------------------- pieces
def test_pieces_are_segments_and_turns_without_them(grow):
    forest = tree(("a", 1, [2, 3], None), ("b", 0, [1, 2], ("a", 2)))
    pieces = pieces_of(forest)
    assert pieces.piece.tolist() == [0, 0, 1, 1, 1, 2, 2, 3, 4, 4]
    assert pieces.number.tolist() == [0, 0, 1, 1, 1, 0, 0, 1, 2, 2]
    assert pieces.first.tolist() == [0, 2, 5, 7, 8] and pieces.last.tolist() == [1, 4, 6, 7, 9]
    assert pieces.trajectory.tolist() == [0, 0, 1, 1, 1]
    turns = pieces_of(grow([("g", 1.0, [2, 1]), ("g", 0.0, [3])]))
    assert turns.number.tolist() == [0, 0, 1, 0, 0, 0] and turns.trajectory.tolist() == [0, 0, 1]
    nothing = pieces_of(grow([("g", 1.0, [2])]).select([]))
    assert nothing.piece.tolist() == nothing.first.tolist() == nothing.last.tolist() == []


# ---------------------------------------------------------------- the value
@pytest.mark.parametrize("signs", [[1.0, -1.0], [-1.0, 1.0]])
def test_the_card(signs):
    # a path of root and three pieces, both outcomes at its end: (d + 1) / 4 of the success, the failure is ignored
    sign = torch.tensor(signs, dtype=F64).repeat_interleave(3)
    depth = torch.tensor([1, 2, 3, 1, 2, 3])
    value = search_value(sign, depth, torch.full((6,), 3), depth - 1, torch.ones(6, dtype=torch.bool))
    assert value.tolist() == [0.5, 0.75, 1.0, 0.5, 0.75, 1.0]


def test_failures_sum_below_zero_with_a_floor_of_weight():
    # depth 1 of 30: 2 / 31 is below 0.1; twice
    sign, one = -torch.ones(2, dtype=F64), torch.ones(2, dtype=torch.int64)
    value = search_value(sign, one, 30 * one, 0 * one, one > 0)
    assert value.tolist() == pytest.approx([-0.2, -0.2])
    assert search_value(sign, one, 30 * one, 0 * one, one > 0, floor=0.0).tolist() == pytest.approx([-4 / 31, -4 / 31])


@given(st.lists(st.sampled_from([1.0, -1.0]), min_size=1, max_size=6))
def test_a_node_with_a_success_is_positive_in_any_order(signs):
    n = len(signs)
    actual = set()
    for order in itertools.islice(itertools.permutations(signs), 24):
        value = search_value(
            torch.tensor(order, dtype=F64),
            torch.ones(n, dtype=torch.int64),
            torch.full((n,), 4),
            torch.zeros(n, dtype=torch.int64),
            torch.ones(n, dtype=torch.bool),
        )
        actual.add(round(float(value[0]), 12))
    won = signs.count(1.0)
    assert actual == {round(0.4 * (won if won else -n), 12)}


# ---------------------------------------------------------------- the credit
def loop(forest: Forest, temperature: float = 1.0, bound: float = 1.0, scale: bool = True) -> list[float]:
    """Over dictionaries."""
    ways = {}
    for r in range(forest.n_trajectories):
        numbers, last, number = [], None, -1
        for p in forest.path_of(r).tolist():
            key = (int(forest.path_step[p]), int(forest.segment[forest.path_token[p]]))
            number += key != last
            last = key
            numbers.append((p, number))
        ways[r] = numbers
    right = {}
    for r in range(forest.n_trajectories):
        known_value = float(forest.success[r])
        right[r] = 1.0 if (known_value >= 1 if known_value == known_value else float(forest.outcome[r]) > 0) else -1.0

    def value(p: int, r: int, number: int) -> float:
        token, won, lost, any_one = int(forest.path_token[p]), 0.0, 0.0, False
        for other, way in ways.items():
            if forest.group[other] != forest.group[r] or not bool(forest.compared[other]):
                continue
            for q, own_value in way:
                if int(forest.path_token[q]) == token:
                    w = max((own_value + 2) / (way[-1][1] + 2), 0.1)
                    any_one = True
                    won += w * (right[other] > 0)
                    lost += w * (right[other] < 0)
        if not any_one:
            return right[r] * max((number + 2) / (ways[r][-1][1] + 2), 0.1)
        return won if won > 0 else -lost

    out = [0.0] * forest.n_entries
    for r, way in ways.items():
        ends = [right[o] for o in ways if forest.group[o] == forest.group[r] and bool(forest.compared[o])]
        if len(ends) < 2 or len(set(ends)) == 1:
            continue
        mean = sum(ends) / len(ends)
        std = math.sqrt(sum((e - mean) ** 2 for e in ends) / len(ends)) + 1e-6 if scale else 1.0
        for p, number in way:
            last = number == way[-1][1]
            score = right[r] if last else bound * math.tanh(value(p, r, number) / temperature)
            out[p] = (score - mean) / std
    return out


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from([(1.0, 1.0, True), (0.5, 2.0, False)]))
def test_it_agrees_with_a_loop(seed, options):
    forest = strategies.random_forest(seed, groups=3, rollouts=6, unscored=False)
    temperature, bound, scale = options
    actual = SearchValue(temperature=temperature, bound=bound, scale=scale)(forest, {}, 0)
    assert actual.tolist() == pytest.approx(loop(forest, *options), abs=1e-9)


def test_a_tree_by_hand():
    # root - x (2 tokens) - a (right, 1 token) and b (wrong); c wrong alone. D = 2, 2, 1. On x: a's success counts
    # (1+1)/3, b's failure nothing: tanh(2/3) = .582783; ends 1, -1, -1: mean -1/3, std sqrt(8)/3 = .942809
    forest = tree(("a", 1, [2, 1], None), ("b", 0, [1], ("a", 2)), ("c", 0, [2], None))
    first, won, lost = (0.582783 + 1 / 3) / 0.942809, (1 + 1 / 3) / 0.942809, (-1 + 1 / 3) / 0.942809
    expected = [first, first, won, first, first, lost, lost, lost]
    assert SearchValue()(forest, {}, 0).tolist() == pytest.approx(expected, abs=1e-5)


def test_chains_of_one_piece_are_grpo_of_the_verdicts():
    forest = tree(*((f"t{i}", right, [2], None) for i, right in enumerate((1, 0, 0, 0))))
    credit = SearchValue()(forest, {}, 0)
    assert credit[::2].tolist() == pytest.approx([math.sqrt(3)] + [-1 / math.sqrt(3)] * 3, abs=1e-5)


@settings(max_examples=15)
@given(st.integers(0, 10**6))
def test_the_order_of_the_attempts_does_not_matter(seed):
    forest = strategies.random_forest(seed, groups=2, rollouts=6, unscored=False)
    order = torch.randperm(forest.n_trajectories, generator=torch.Generator().manual_seed(seed))
    credit = SearchValue()(forest, {}, 0)
    assert torch.allclose(SearchValue()(forest.select(order), {}, 0), credit[forest.entries_of(order)], atol=1e-9)


def test_shaped_rewards_do_not_enter_search_values():
    forest = tree(("a", 1, [2, 1], None), ("b", 0, [1], ("a", 2)))
    credit = SearchValue()(forest, {}, 0)
    assert torch.equal(SearchValue()(forest.replace(outcome=forest.outcome - 5.0), {}, 0), credit)
    bare = forest.replace(success=torch.full((2,), torch.nan, dtype=F64))
    assert torch.equal(SearchValue()(bare, {}, 0), credit)


def test_refusals():
    for bad in ({"temperature": 0.0}, {"bound": 0.0}, {"floor": 1.5}):
        with pytest.raises(ConfigError, match=r"credit\.(temperature|bound|floor) is"):
            SearchValue(**bad)
    assert SearchValue.requires == ("forks",)


# ---------------------------------------------------------------- errata
def test_a_tree_that_failed_as_a_whole_has_no_credit():
    # as released, the std of the ends is 0, and the first piece has ((tanh(-2/3)) + 1) / 1e-6 = 417217
    forest = tree(("a", 0, [2, 1], None), ("b", 0, [2, 1], None))
    assert SearchValue()(forest, {}, 0).tolist() == [0.0] * 6
    one = tree(("a", 1, [2, 1], None))
    assert SearchValue()(one, {}, 0).tolist() == [0.0] * 3  # there its raw scores


def test_by_itself_the_statistics_are_of_the_ends():
    zero = torch.zeros(3, dtype=torch.int64)
    actual = against_ends(
        torch.tensor([0.2, 1.0, -1.0], dtype=F64),
        torch.tensor([1.0, -1.0, 9.0], dtype=F64),
        zero,
        torch.tensor([0, 0, 1]),
        torch.tensor([True, True, False]),
        scale=False,
    )
    assert actual.tolist() == pytest.approx([0.2, 1.0, -1.0])
