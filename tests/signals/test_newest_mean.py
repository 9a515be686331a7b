"""The mean of a task's newest outcomes: worked steps, who is remembered, runs that are resumed."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import pytest

from gxpo.errors import CheckpointError, ConfigError
from gxpo.forest import Forest
from gxpo.signals.newest_mean import NewestMean

TOOLS: Any = SimpleNamespace()


def forest_of(*rows: tuple[str, float | None], **fields: list[Any]) -> Forest:
    """(task, outcome) a trajectory."""
    turn = {"action": [3], "logprob": [-1.0]}
    return Forest.from_records(
        [
            {"schema": "gxpo.rollouts/1", "group": task, "id": f"t{i}", "task": task, "prompt": [1], "turns": [turn]}
            | {"reward": outcome}
            | {k: v[i] for k, v in fields.items()}
            for i, (task, outcome) in enumerate(rows)
        ]
    )


def stepped(part: NewestMean, forest: Forest) -> list[float]:
    found = part.compute(forest, {}, TOOLS)["baseline"].tolist()
    part.learn(forest, {}, TOOLS)
    return found


def test_worked_steps() -> None:
    """Window 3. Nothing is known of a task before it was seen; then the newest three of it, the step's own not among
    them: (1 + 0) / 2, then of [1, 0, 1, 1] the last three."""
    part = NewestMean(window=3)
    assert all(math.isnan(x) for x in stepped(part, forest_of(("a", 1.0), ("a", 0.0))))
    found = stepped(part, forest_of(("a", 1.0), ("b", 0.5), ("a", 1.0)))
    assert found[0] == found[2] == 0.5 and math.isnan(found[1])
    assert stepped(part, forest_of(("b", 0.0), ("a", 0.0))) == pytest.approx([0.5, 2 / 3])
    assert part.memory == {"a": [1.0, 1.0, 0.0], "b": [0.5, 0.0]}


def test_only_what_the_policy_did_and_was_compared_for_is_remembered() -> None:
    part = NewestMean()
    rows = (("a", 1.0), ("a", 0.0), ("a", None), ("a", 0.25))
    part.learn(
        forest_of(*rows, origin=["policy", "replay", "policy", "policy"], compared=[True, True, True, False]), {}, TOOLS
    )
    assert part.memory == {"a": [1.0]}


def test_a_resumed_run_goes_on_exactly() -> None:
    first, second = NewestMean(window=2), NewestMean(window=2)
    stepped(first, forest_of(("a", 1.0), ("b", 1 / 3)))
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for rows in ((("a", 0.1), ("b", 0.7)), (("a", 0.2), ("a", 0.3))):
        assert stepped(first, forest_of(*rows)) == stepped(second, forest_of(*rows))
    assert first.state_dict() == second.state_dict()
    with pytest.raises(CheckpointError, match="newest_mean holds"):
        second.load_state_dict({"rows": {}})
    with pytest.raises(ConfigError, match="window 0"):
        NewestMean(window=0)
