"""Matching of tool calls: likeness by hand, assignments against brute force, and the turns' rewards."""

from __future__ import annotations

import math
from itertools import permutations
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gxpo.base.errors import ConfigError, GxpoError
from gxpo.environments.rewards.matched_calls import MatchedCalls, call_similarity, greedy, optimal, transported, word_f1
from gxpo.forest.forest import Forest
from gxpo_worlds.toolqa import ToolQA


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


# ---------------------------------------------------------------- likeness
@pytest.mark.parametrize(
    ("predicted", "gold", "worth"),
    [
        (call("f", a=1, b=2), call("f", a=1, b=2), 1.0),  # (1 + 1 + 2) / 4
        (call("f"), call("f"), 1.0),  # (1 + 1 + 0) / 2: two calls without arguments
        (call("f", a=1, b=2), call("f", a=1, c=2), (1 + 1 / 3 + 1) / 4),  # one name of three, one equal value
        (call("f", a=1), call("f", a=2), 2 / 3),  # the names alone
        (call("f"), call("f", a=2), 1 / 3),
        (call("f", a=2), call("f"), 1 / 2),  # J = 0 of one name
        (call("F", a=1), call("f", a=1), 1.0),
        (call("f", A=1), call("f", a=1), 1 / 3),  # names of arguments are taken as they stand
        (call("g", a=1), call("f", a=1), 0.0),
    ],
)
def test_likeness_by_hand(predicted: dict[str, Any], gold: dict[str, Any], worth: float) -> None:
    assert call_similarity(predicted, gold) == pytest.approx(worth)


def test_f1_of_words() -> None:
    """2 of 3 words said, 2 of 2 expected: 2 * (2/3) / (5/3) = .8; a word said twice counts once."""
    assert word_f1("the Grey Sea", "grey sea!") == pytest.approx(0.8)
    assert word_f1("7 7", "7") == word_f1("(1,143)", "1 143") == 1.0
    assert word_f1("", "") == word_f1("", "7") == word_f1("8", "7") == word_f1("...", "...") == 0.0


# ---------------------------------------------------------------- assignment
SCORES = st.integers(1, 4).flatmap(
    lambda columns: st.lists(
        st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.8, 1.0]), min_size=columns, max_size=columns),
        min_size=1,
        max_size=4,
    )
)


def total(scores: list[list[float]], partner: list[int]) -> float:
    taken = [j for j in partner if j >= 0]
    assert len(set(taken)) == len(taken)
    return sum(scores[i][j] for i, j in enumerate(partner) if j >= 0)


def best(scores: list[list[float]]) -> float:
    """The largest total over all ways, by trying them."""
    rows, columns = len(scores), len(scores[0])
    n = max(rows, columns)
    ways = permutations(range(n), rows)
    return max(sum(scores[i][j] for i, j in enumerate(way) if j < columns) for way in ways)


@settings(max_examples=200, deadline=None)
@given(scores=SCORES)
def test_the_optimal_assignment_is_the_best_of_all(scores: list[list[float]]) -> None:
    partner = optimal(scores)
    assert total(scores, partner) == pytest.approx(best(scores))
    assert all(j < 0 or scores[i][j] > 0 for i, j in enumerate(partner))


@settings(max_examples=100, deadline=None)
@given(scores=SCORES)
def test_greedy_takes_the_largest_that_is_free(scores: list[list[float]]) -> None:
    partner, left = greedy(scores), {(i, j): s for i, row in enumerate(scores) for j, s in enumerate(row) if s > 0}
    expected = [-1] * len(scores)
    while left:
        i, j = max(left, key=lambda pair: (left[pair], -pair[0], -pair[1]))
        expected[i] = j
        left = {(a, b): s for (a, b), s in left.items() if a != i and b != j}
    assert partner == expected and total(scores, partner) <= best(scores) + 1e-12


def test_transport_by_hand_and_its_margins() -> None:
    """[[1, 0], [0, 1]]: a = T_11 + ..., T_12 / T_11 = e^-10, rows add up to 1/2: T_11 = .5 / (1 + e^-10)."""
    actual = transported([[1.0, 0.0], [0.0, 1.0]], 0.1)
    assert actual == pytest.approx([0.5 / (1 + math.exp(-10))] * 2, abs=1e-9)
    assert transported([[0.6], [0.6], [0.0]], 0.1) == pytest.approx([0.2, 0.2, 0.0])  # one column: T = 1/3 each


# errata
def test_what_is_called_hungarian_is_greedy() -> None:
    """S = [[.9, .8], [.8, 0]]: the released code takes .9 and leaves the second call alone; .8 + .8 is more."""
    scores = [[0.9, 0.8], [0.8, 0.0]]
    assert greedy(scores) == [0, -1] and optimal(scores) == [1, 0]
    assert (total(scores, greedy(scores)), total(scores, optimal(scores))) == pytest.approx((0.9, 1.6))


# ---------------------------------------------------------------- the part
GOLD = [call("lookup", row="a"), call("lookup", row="b"), call("sum", x="1+2")]


def episode(i: int, turns: list[dict[str, Any]], paid: list[float | None] | None = None, **info: Any) -> dict[str, Any]:
    return {
        "schema": "gxpo.rollouts/1",
        "group": "g",
        "id": f"t{i}",
        "prompt": [1],
        "turns": [
            {"observation": [2], "action": [3], "info": turn, "reward": None if paid is None else paid[k]}
            for k, turn in enumerate(turns)
        ],
        "reward": 1.0,
        "info": info,
    }


def test_turns_earn_their_matched_calls_and_the_answer_its_words() -> None:
    """Turn 0: row a (1) and row z, whose partner is row b: (1 + 1 + 0) / 3; turn 1: a again, nobody left: 0; turn 2
    says nothing; turn 3 answers "3 or so" for "3": F1 1/2."""
    turns: list[dict[str, Any]] = [
        {"calls": [call("lookup", row="a"), call("lookup", row="z")]},
        {"calls": [call("lookup", row="a")]},
        {"calls": []},
        {"calls": [], "answer": "3 or so"},
    ]
    forest = Forest.from_records([episode(0, turns, gold_calls=GOLD, expected="3")])
    assert MatchedCalls()(forest).tolist() == pytest.approx([(1 + 2 / 3) / 2, 0.0, 0.0, 0.5])
    punished = MatchedCalls(unmatched=-0.5)(forest)
    assert punished.tolist() == pytest.approx([(1 + 2 / 3) / 2, -0.5, 0.0, 0.5])
    soft = MatchedCalls(matching="sinkhorn")(forest)
    own_transported = transported([[call_similarity(c, g) for g in GOLD] for t in turns for c in t["calls"]])
    assert soft.tolist() == pytest.approx([(own_transported[0] + own_transported[1]) / 2, own_transported[2], 0.0, 0.5])


def test_what_the_environment_paid_gives_way() -> None:
    turns = [{"calls": [call("sum", x="1+2")]}, {"calls": [], "answer": "3"}]
    forest = Forest.from_records([episode(0, turns, [0.0, 1.0], gold_calls=GOLD, expected="3")])
    assert (MatchedCalls()(forest) + forest.step_reward).tolist() == [1.0, 1.0]


def test_episodes_without_gold_calls_are_unscored_or_refused() -> None:
    listed_episode = episode(0, [{"calls": [GOLD[2]]}], gold_calls=GOLD)
    forest = Forest.from_records([listed_episode, episode(1, [{}])])
    assert MatchedCalls()(forest).isnan().tolist() == [False, True]
    with pytest.raises(GxpoError, match="choose a task"):
        MatchedCalls()(Forest.from_records([episode(0, [{}])]))
    unscored = {**episode(0, [{}]), "reward": None}
    assert MatchedCalls()(Forest.from_records([unscored])).isnan().all()


@pytest.mark.parametrize("style", ["chat", "bare"])
def test_the_expert_of_toolqa_earns_one_in_every_turn(style: str) -> None:
    for seed in range(6):
        env = ToolQA(style=style, kinds=("calculator", "table"))
        about, turns = env.reset(seed).info, []
        while (action := env.expert()) is not None:
            turns.append(dict(env.step(action).info))
        forest = Forest.from_records([episode(0, turns, **about)])
        assert len(turns) == len(about["gold_calls"]) + 1
        assert MatchedCalls()(forest).tolist() == [1.0] * len(turns)


def test_bad_settings_are_refused() -> None:
    for wrong in ({"matching": "random"}, {"unmatched": 0.5}, {"regulariser": 0.0}):
        with pytest.raises(ConfigError, match="matched_calls"):
            MatchedCalls(**wrong)  # type: ignore[arg-type]
    assert MatchedCalls()(Forest.from_records([])).shape == torch.Size([0])
