"""Forests from a few words, one trajectory of one turn a row, and what a method makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

import gxpo
from gxpo.forest.forest import Forest

# (group, reward, tokens, fields of the record)
rows_of_verdicts = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from([0.0, 1.0]), st.integers(1, 4), st.booleans()).map(
        lambda row: (*row[:3], {"compared": row[3]})
    ),
    min_size=1,
    max_size=12,
)


def forest_of(rows: Sequence[tuple[Any, ...]]) -> Forest:
    records = []
    for i, (group, reward, n, *rest) in enumerate(rows):
        turn = {"action": [5] * n, "logprob": [-1.0] * n}
        record = {"schema": "gxpo.rollouts/1", "group": group, "id": f"t{i}", "prompt": [1, 2], "turns": [turn]}
        verdict = {} if reward is None else {"success": bool(reward)}
        records.append(record | {"reward": reward} | verdict | (dict(rest[0]) if rest else {}))
    return Forest.from_records(records)


def group_of(*rewards: float | None, name: str = "a", n: int = 1) -> list[tuple[str, float | None, int]]:
    return [(name, r, n) for r in rewards]


def weighted(spec: str, forest: Forest, overrides: dict[str, Any] | None = None) -> list[float]:
    """Credit times weights of each trajectory's first token."""
    m = gxpo.method(spec, overrides)
    credit = m.advantages(forest)
    signals = {name: forest.path_behaviour_logprob for name in ("proximal_logprob", "behaviour_logprob")}
    weights = credit * m.token_weights(forest, credit, signals)
    return [float(weights[forest.path_of(r)[0]]) for r in range(forest.n_trajectories)]


def part_of(method: str, slot: str, **options: Any) -> Any:
    """The part that a method has under `weight.SLOT`, with other options."""
    return gxpo.method(method, {f"weight.{slot}.{k}": v for k, v in options.items()}).weights[slot]


def peers_of(rows: Sequence[tuple[Any, ...]], group: str) -> list[float]:
    """Rewards of the group's compared members."""
    return [row[1] for row in rows if row[0] == group and (len(row) < 4 or row[3].get("compared", True))]
