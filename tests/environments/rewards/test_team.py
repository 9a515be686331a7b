"""Rewards of teams: facts of turns, shaped outcomes of attempts, utilities of turns."""

from __future__ import annotations

import math

import pytest
import torch

from gxpo.base.errors import ConfigError
from gxpo.environments.rewards.team import TeamShape, Turn, TurnUtility, turns_of
from gxpo.environments.rewards.team_outcomes import family_format, readable_and_short
from gxpo.environments.rewards.turn_utilities import call_price
from gxpo.forest.forest import Forest


def called(reward: float | None = 1.0) -> Forest:
    """A planner of two tokens, who calls a worker of three, and goes on with one; formats 1, 0 and none."""
    turns = [
        {"agent": "planner", "action": [1, 2], "logprob": [-1.0, -2.0], "reward": 1.0},
        {"agent": "worker", "context": [9], "action": [3, 4, 5], "logprob": [-0.5] * 3, "reward": 0.0, "caller": 0},
        {"agent": "planner", "observation": [8], "action": [6], "logprob": [-1.0]},
    ]
    line = {"schema": "gxpo.rollouts/1", "group": "g", "prompt": [7], "reward": reward, "turns": turns}
    return Forest.from_records([line | {"id": "a"}, line | {"id": "b"}])


def test_facts_of_turns() -> None:
    expected = [("planner", 1.0, 2, 1.5, -1), ("worker", 0.0, 3, 0.5, 0), ("planner", math.nan, 1, 1.0, -1)]
    for attempt in turns_of(called()):
        assert [tuple(t)[:1] + tuple(t)[2:] for t in attempt] == [x[:1] + x[2:] for x in expected]
        assert [t.reward for t in attempt[:2]] == [1.0, 0.0] and math.isnan(attempt[2].reward)


def test_a_missing_format_of_the_lead_counts_nothing() -> None:
    # the lead's last turn has no reward: accuracy alone
    shape = TeamShape("family_format")
    assert shape(called()).tolist() == [0.9, 0.9]
    assert shape(called(None)).isnan().all()


def test_a_gate_pays_the_format_of_right_answers_alone() -> None:
    turns = [[Turn("lead", 1.0)]] * 2
    assert family_format(torch.tensor([1.0, 0.0]), turns, gate=True).tolist() == pytest.approx([0.95, 0.0])


def test_a_very_likely_text_pays_a_bounded_bonus() -> None:
    # .7 / .1 for a text that repeats itself, -1 without tokens and beyond the longest
    turns = [[Turn("a", tokens=10, nll=1e-9)], [Turn("a", tokens=0)], [Turn("a", tokens=20, nll=1.0)]]
    value = readable_and_short(torch.zeros(3), turns, torch.zeros(3).long(), cost=0.0, longest=15)
    assert value.tolist() == pytest.approx([7.0, -1.0, -1.0])


def test_a_utility_takes_the_place_of_the_roles_own_reward() -> None:
    forest = called()
    total = forest.step_reward.nan_to_num(0.0) + TurnUtility(lambda outcome, turns: [outcome + 2] * len(turns))(forest)
    assert total.tolist() == [3.0] * 6
    assert TurnUtility("call_price")(called(None)).isnan().all()


def test_each_caller_pays_for_its_own_calls() -> None:
    turns = [Turn("a"), Turn("b", caller=0), Turn("c", caller=1), Turn("b"), Turn("d", caller=3), Turn("a")]
    assert call_price(0.0, turns, free=1, price=0.5) == [0.0, -0.5, 0.0, -0.5, 0.0, 0.0]


def test_an_unknown_function_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="family_format"):
        TeamShape("famly_format")
