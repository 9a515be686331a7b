"""Rewards for what a tool gave."""

from __future__ import annotations

from typing import Any

import pytest

from gxpo.environments.rewards.tool_calls import ToolResult
from gxpo.forest.forest import Forest


def episode(i: int, turns: list[tuple[str, str | None, float | None]], expected: str | None) -> dict[str, Any]:
    """Turns as (what was seen before it, its error, what the environment paid)."""
    return {
        "schema": "gxpo.rollouts/1",
        "group": "g",
        "id": f"t{i}",
        "prompt": [1],
        "turns": [
            {
                "observation": [2],
                "observation_text": seen_value,
                "action": [3],
                "reward": paid,
                "info": {} if error is None else {"action_error": error},
            }
            for seen_value, error, paid in turns
        ],
        "reward": 1.0,
        "info": {} if expected is None else {"expected": expected},
    }


def test_a_tool_that_ran_and_an_answer_in_its_result() -> None:
    """Ran, and "the Grey Sea" holds the answer: .7; failed: 0; failed, though the text holds it: .5; the last: none."""
    turns = [
        ("q", None, None),
        ("Into the Grey Sea", "illegal", None),
        ("no", "malformed", None),
        ("grey sea", None, None),
    ]
    actual = ToolResult()(Forest.from_records([episode(0, turns, "grey sea")]))
    assert actual[:3].tolist() == pytest.approx([0.7, 0.0, 0.5]) and actual.isnan().tolist() == [False] * 3 + [True]


@pytest.mark.parametrize(
    ("seen", "inside"),
    [
        ("56-18=38\n>", True), ("18-56=-38\n>", False), ("a3=138", False), ("b38?", False), ("38.5", False),
        ("It is 38.", True), ("(41-3)=38", True),
    ],
)  # fmt: skip
def test_whole_words_skip_an_answer_inside_a_longer_number(seen: str, inside: bool) -> None:
    forest = Forest.from_records([episode(0, [("q", None, None), (seen, None, None)], "38")])
    assert float(ToolResult(whole_words=True)(forest)[0]) == pytest.approx(0.7 if inside else 0.2)
    assert float(ToolResult()(forest)[0]) == pytest.approx(0.7)
    below = Forest.from_records([episode(0, [("q", None, None), ("18-56=-38\n>", None, None)], "-38")])
    assert float(ToolResult(whole_words=True)(below)[0]) == pytest.approx(0.7)


def test_only_execution_counts_without_an_expected_answer() -> None:
    forest = Forest.from_records(
        [episode(0, [("q", None, None), ("7", None, None)], None), episode(1, [("q", None, None)], "7")]
    )
    actual = ToolResult(executed=0.3)(forest)
    assert float(actual[0]) == 0.3 and actual.isnan().tolist() == [False, True, True]


def test_what_the_environment_paid_for_the_turn_gives_way() -> None:
    forest = Forest.from_records([episode(0, [("q", None, 0.25), ("7", None, 1.0)], "7")])
    total = forest.step_reward + ToolResult()(forest).nan_to_num(0.0)
    assert total.tolist() == pytest.approx([0.7, 1.0])
