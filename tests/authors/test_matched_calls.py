"""MatchTIR's turn rewards and credit, restated from the authors' code."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

import gxpo
from gxpo.environments.rewards.matched_calls import MatchedCalls
from gxpo.forest.forest import Forest

PUNCTUATION = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"
EPS = 1e-6


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def words(text: str) -> set[str]:
    return set("".join(" " if c in PUNCTUATION else c for c in text.lower()).split())


def f1(said: str, expected: str) -> float:
    own_words, target = words(said), words(expected)
    common = len(own_words & target)
    precision = common / len(own_words) if own_words else 0
    recall = common / len(target) if target else 0
    return 2 * precision * recall / (precision + recall) if precision + recall > 0 else 0.0


def likeness(predicted: dict[str, Any], gold: dict[str, Any]) -> float:
    if predicted["name"].lower() != gold["name"].lower():
        return 0.0
    own_arguments, target = predicted["arguments"], gold["arguments"]
    shared = sum(1 for key in own_arguments if key in target)
    names = (
        1.0
        if list(own_arguments) == list(target)
        else shared / (len(own_arguments) + len(target) - shared)
        if own_arguments and target
        else 0.0
    )
    values = sum(1 for key in target if key in own_arguments and own_arguments[key] == target[key])
    return (1 + names + values) / (2 + len(target))


def turn_rewards(turns: list[dict[str, Any]], gold: list[dict[str, Any]], expected: str) -> list[float]:
    """Calls of turns without an answer, the most alike pair first, each call and each gold one once; then the means."""
    calls = [(t, c) for t, turn in enumerate(turns) if "answer" not in turn for c in turn["calls"]]
    pairs = sorted(
        ((likeness(c, g), i, j) for i, (_, c) in enumerate(calls) for j, g in enumerate(gold)),
        key=lambda pair: (-pair[0], pair[1], pair[2]),
    )
    worth, taken = [0.0] * len(calls), set[int]()
    placed = set[int]()
    for score, i, j in pairs:
        if score > 0 and i not in placed and j not in taken:
            worth[i] = score
            placed.add(i)
            taken.add(j)
    out = []
    for t, turn in enumerate(turns):
        own_worths = [w for w, (at, _) in zip(worth, calls, strict=True) if at == t]
        out.append(
            f1(turn["answer"], expected)
            if "answer" in turn
            else sum(own_worths) / len(own_worths)
            if own_worths
            else 0.0
        )
    return out


GOLD = [call("lookup", row="a", column="x"), call("Sum", x="1+2"), call("lookup", row="b")]
EPISODES: list[list[dict[str, Any]]] = [
    [
        {"calls": [call("LOOKUP", row="a", column="x"), call("lookup", row="c")]},
        {"calls": [call("sum", x="1+2")]},
        {"calls": [], "answer": "1143."},
    ],
    [
        {"calls": [call("lookup", column="x", row="b"), call("lookup", row="a")]},  # greedy and optimal differ here
        {"calls": [call("lookup", row="b")], "answer": "It is 1,143"},  # the call takes part in no matching
    ],
    [{"calls": []}, {"calls": [call("sum")]}, {"calls": [call("none", x=1)]}, {"calls": [], "answer": "?!"}],
]
EXPECTED = "1143"


def forest() -> Forest:
    return Forest.from_records(
        [
            {
                "schema": "gxpo.rollouts/1",
                "group": "g",
                "id": str(i),
                "prompt": [1],
                "turns": [{"observation": [2], "action": [3, 4], "info": turn} for turn in turns],
                "reward": 1.0,
                "info": {"gold_calls": GOLD, "expected": EXPECTED},
            }
            for i, turns in enumerate(EPISODES)
        ]
    )


def test_turns_are_paid_as_in_the_authors_code() -> None:
    """quchangle1/MatchTIR@f614ce1, Code/verl/utils/reward_score/tool.py: preprocess_text, compute_process_KM (answers
    are sets of words, names of tools in lower case, answering turns have no calls), hungarian_assignment (greedy)."""
    target = [turn_rewards(turns, GOLD, EXPECTED) for turns in EPISODES]
    actual = MatchedCalls(matching="greedy")(forest())
    assert actual.tolist() == pytest.approx([r for turns in target for r in turns], abs=1e-12)
    assert target[0][2] == 1.0 and target[1][1] == 0.0 and target[2][3] == 0.0  # "1143."; "1 143"; no word at all


def test_an_answering_turns_calls_take_no_partner() -> None:
    """Were the second turn's call matched, its exact likeness would leave the first turn's call alone."""
    turns: list[dict[str, Any]] = [
        {"calls": [call("lookup", row="z")]},
        {"calls": [call("lookup", row="b")], "answer": "7"},
    ]
    record = {
        "schema": "gxpo.rollouts/1", "group": "g", "id": "0", "prompt": [1], "reward": 1.0,
        "turns": [{"observation": [2], "action": [3], "info": turn} for turn in turns],
        "info": {"gold_calls": [call("lookup", row="b")], "expected": "7"},
    }  # fmt: skip
    actual = MatchedCalls()(Forest.from_records([record])).tolist()
    assert actual == pytest.approx(turn_rewards(turns, [call("lookup", row="b")], "7"))
    assert actual == pytest.approx([2 / 3, 1.0])


def test_credit_is_the_authors() -> None:
    """The same repository, Code/verl/trainer/ppo/core_algos.py compute_grpo_outcome_advantage: z of the sum of a
    trajectory's rewards and, by the number of the turn, of returns at .9, each with one degree of freedom and 1e-6; a
    turn alone at its number keeps its return; both halves weigh the same."""
    rewards = [turn_rewards(turns, GOLD, EXPECTED) for turns in EPISODES]
    totals = [sum(own_reward) for own_reward in rewards]
    coarse = [(x - statistics.mean(totals)) / (statistics.stdev(totals) + EPS) for x in totals]
    returns = [
        [sum(0.9**k * r for k, r in enumerate(own_reward[t:])) for t in range(len(own_reward))]
        for own_reward in rewards
    ]
    target = []
    for i, own_reward in enumerate(returns):
        for t, x in enumerate(own_reward):
            peers = [other[t] for other in returns if t < len(other)]
            mean, std = (statistics.mean(peers), statistics.stdev(peers)) if len(peers) > 1 else (0.0, 1.0)
            target += [(coarse[i] + (x - mean) / (std + EPS)) / 2] * 2
    keys = {"credit.singleton": "raw", "credit.add.turn.singleton": "raw"}
    keys |= {"reward.step.matched_calls.matching": "greedy"}
    method = gxpo.method("matchtir", keys)
    assert method.advantages(method.shaped(forest())).tolist() == pytest.approx(target, abs=1e-9)
