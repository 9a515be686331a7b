"""Records of one row, and walks over a forest node by node."""

from __future__ import annotations

import torch
from hypothesis import settings
from hypothesis import strategies as st

from gxpo.forest.forest import Forest

few = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**32 - 1)


def partition(ids: torch.Tensor) -> list[int]:
    """Ids renamed by first appearance; -1 stays."""
    names: dict[int, int] = {}
    return [-1 if i < 0 else names.setdefault(i, len(names)) for i in ids.tolist()]


def record(id: str = "t0", group: str = "g", turns: list | None = None, **more: object) -> dict:
    turns = [{"action": [1, 2]}] if turns is None else turns
    return {"schema": "gxpo.rollouts/1", "group": group, "id": id, "turns": turns, **more}


# ---------------------------------------------------------------- trees
def naive_ancestors(forest: Forest, node: int) -> list[int]:
    return [] if node < 0 else [*naive_ancestors(forest, int(forest.parent[node])), node]


def naive_visits(forest: Forest) -> set[tuple[int, int]]:
    return {
        (int(forest.step_trajectory[s]), n)
        for s in range(forest.n_steps)
        for n in naive_ancestors(forest, int(forest.step_action[s]))
    }
