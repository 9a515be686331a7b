"""MT-GRPO's credit of turns that call a tool, restated from the authors' code."""

from __future__ import annotations

import statistics
from typing import Any

import pytest

import gxpo
from gxpo.forest.forest import Forest

ANSWER = "Grey Sea"
# by group: what came back after the first turn (None: the answer was given at once), its error, the outcome
GROUPS: list[list[tuple[str | None, str | None, float]]] = [
    [("the GREY SEA", None, 2.0), ("nothing", None, 0.0), ("Error: no", "illegal", 0.25), ("by grey sea", None, 2.0)],
    [("nothing", None, 1.0), ("grey sea", None, 1.0), ("x", "malformed", 1.0)],
    [("grey sea", None, 1.5), ("grey sea", None, 0.5)],
]
ENDED_EARLY: list[tuple[str | None, str | None, float]] = [
    ("grey sea", None, 1.0), ("nothing", None, 0.0), (None, None, 1.0),
]  # fmt: skip


def forest(groups: list[list[tuple[str | None, str | None, float]]]) -> Forest:
    def turns(came: str | None, error: str | None) -> list[dict[str, Any]]:
        first = {"observation": [2], "action": [3, 4], "info": {} if error is None else {"action_error": error}}
        return [first] if came is None else [first, {"observation": [2], "observation_text": came, "action": [5]}]

    return Forest.from_records(
        [
            {
                "schema": "gxpo.rollouts/1",
                "group": str(g),
                "id": f"{g}/{i}",
                "prompt": [1],
                "turns": turns(came, error),
                "reward": outcome,
                "info": {"expected": ANSWER},
            }
            for g, group in enumerate(groups)
            for i, (came, error, outcome) in enumerate(group)
        ]
    )


def found(groups: list[list[tuple[str | None, str | None, float]]]) -> list[float]:
    method = gxpo.method("mt_grpo")
    return method.advantages(method.shaped(forest(groups))).tolist()


def turn_reward(came: str | None, error: str | None) -> float:
    if came is None:
        return 0.0
    return 0.2 * (error is None) + 0.5 * (ANSWER.lower() in came.lower())


def z(values: list[float]) -> list[float]:
    mean, std = statistics.mean(values), statistics.stdev(values)
    return [(x - mean) / (std + 1e-4) for x in values]


def test_two_turns_are_credited_as_in_the_authors_code() -> None:
    """SiliangZeng/Multi-Turn-RL-Agent@7dbdd08, verifiers/trainers/mt_grpo_env_trainer.py _assign_advantages (outcome +
    turn advantage before the result, the outcome's after it), grpo_env_trainer.py _compute_normalized_advantages;
    rubrics/tool_rubric.py and triviaqa_rubric.py (.2 for a tool that ran, .5 for the answer in its result)."""
    expected = []
    for group in GROUPS:
        full_value = z([outcome for _, _, outcome in group])
        turn = z([turn_reward(received_value, error) for received_value, error, _ in group])
        for a, b in zip(full_value, turn, strict=True):
            expected += [a + b, a + b, a]
    assert found(GROUPS) == pytest.approx(expected, abs=1e-9)


def test_where_a_completion_has_no_result_the_code_differs() -> None:
    """There it has the z of both rewards' sum, and its turn reward of 0 is in the turns' statistics; here it has the
    outcome's part and is in none of them."""
    outcome_z = z([outcome for _, _, outcome in ENDED_EARLY])
    rewards = [turn_reward(received_value, error) for received_value, error, _ in ENDED_EARLY]
    z_of_two, z_of_all = z(rewards[:2]), z(rewards)
    both = z([r + outcome for r, (_, _, outcome) in zip(rewards, ENDED_EARLY, strict=True)])
    expected = (
        [outcome_z[0] + z_of_two[0]] * 2
        + [outcome_z[0]]
        + [outcome_z[1] + z_of_two[1]] * 2
        + [outcome_z[1]]
        + [outcome_z[2]] * 2
    )
    assert found([ENDED_EARLY]) == pytest.approx(expected, abs=1e-9)
    assert abs(z_of_two[0] - z_of_all[0]) > 0.1 and abs(outcome_z[2] - both[2]) > 0.1
