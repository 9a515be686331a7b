"""Forests from a few words: one trajectory a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from gxpo.forest.forest import Forest


def _trajectory(i: int, group: str, reward: float | None, turns: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    return {
        "schema": "gxpo.rollouts/1",
        "group": group,
        "id": f"t{i}",
        "prompt": [1],
        "turns": [{"observation": [2], "logprob": [-1.0] * len(t["action"]), **t} for t in turns],
        "reward": reward,
        **fields,
    }


@pytest.fixture(scope="session")
def grow() -> Callable[..., Forest]:
    """`grow([(group, reward, lengths of its turns), ...])`, with further fields of the record in a fourth place."""

    def make(rows: Sequence[tuple[Any, ...]]) -> Forest:
        records = []
        for i, (group, reward, lengths, *rest) in enumerate(rows):
            fields = dict(rest[0]) if rest else {}
            states, rewards = fields.pop("states", None), fields.pop("step_rewards", None)
            turns = [
                {
                    "action": [3] * n,
                    "state": None if states is None else states[k],
                    "reward": None if rewards is None else rewards[k],
                    "trainable": fields.get("trainable", True),
                }
                for k, n in enumerate(lengths)
            ]
            fields.pop("trainable", None)
            records.append(_trajectory(i, group, reward, turns, **fields))
        return Forest.from_records(records)

    return make
