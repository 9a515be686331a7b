"""Assemble the columns of a forest from token runs and turns collected by a reader."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gxpo.forest.columns import ACTION, NAN
from gxpo.forest.reshape import scatter_blocks

Reference = tuple["Node", int]  # a node and a position in it: the (part of the) node that ends there


@dataclass(eq=False, slots=True)
class Node:
    """Run of tokens under one parent, before it is cut where forks leave it."""

    parent: Reference | None
    kind: int
    token: list[int]
    turn: int = -1
    agent: int = -1
    policy: int = -1
    policy_version: int = -1
    state: int = -1
    previous: Reference | None = None
    caller: Reference | None = None
    sampled_under: Reference | None = None
    logprob: Sequence[float] = ()
    trainable: Sequence[bool] = ()
    segment: Sequence[int] = ()
    extras: Mapping[str, Tensor] = field(default_factory=dict)
    media: tuple[str, ...] = ()
    cuts: set[int] | None = None  # positions at which forks leave it
    bounds: tuple[int, ...] = ()  # where its parts begin and end, once all forks are known
    first: int = -1  # index of its first part in the finished forest

    @property
    def size(self) -> int:
        return len(self.token)

    @property
    def end(self) -> Reference:
        return self, self.size

    def index(self, position: int) -> int:
        """Index of the finished node that ends at `position` of this one."""
        return self.first + max(bisect_left(self.bounds, position) - 1, 0)


@dataclass(eq=False, slots=True)
class Step:
    """One turn of a trajectory; forks of it share its leading nodes."""

    nodes: list[Reference]
    turn: int
    agent: int
    policy: int
    policy_version: int
    state: int
    reward: float
    finish: str | None
    previous: int  # step within the trajectory
    caller: int | None
    info: dict[str, Any]
    observation_text: str | None
    action_text: str | None
    text_only: bool

    @property
    def length(self) -> int:
        return sum(size for _, size in self.nodes)


def assemble(nodes: list[Node], trajectories: list[list[Step]]) -> dict[str, Any]:
    """Assemble the columns of N, T, S and P, and `last_action` and `media`; nodes are cut where forks leave them."""
    # all forks are known by this time: number the parts of every node before anything refers to them
    total = 0
    for node in nodes:
        node.first, node.bounds = total, (0, *sorted(node.cuts or ()), node.size)
        total += len(node.bounds) - 1
    columns: dict[str, Any] = {**_node_columns(nodes), **_token_columns(nodes)}
    columns |= _step_columns(trajectories, columns["first_token"].tolist())
    return columns | {"media": {n.first: n.media for n in nodes if n.media}}


def _node_columns(nodes: list[Node]) -> dict[str, Tensor]:
    """Columns of N, a row for each part of a node."""
    plain_columns = ("kind", "agent", "policy", "policy_version", "turn", "state")
    values: dict[str, list[int]] = {k: [] for k in (*plain_columns, "parent", "previous", "caller", "sampled_under")}
    sizes: list[int] = []
    for node in nodes:
        # parts of a cut node follow one another: each is the parent and the past of the next
        parts = len(node.bounds) - 1
        inner = list(range(node.first, node.first + parts - 1))
        values["parent"] += [_node_index(node.parent), *inner]
        values["previous"] += [_node_index(node.previous), *inner]
        values["caller"] += [_node_index(node.caller)] * parts
        values["sampled_under"] += [_node_index(node.sampled_under)] * parts
        for name in plain_columns:
            values[name] += [getattr(node, name)] * parts
        sizes += [b - a for a, b in zip(node.bounds, node.bounds[1:], strict=False)]
    first_token = torch.tensor([0, *sizes], dtype=torch.int64).cumsum(0)
    return {"first_token": first_token, **{k: torch.tensor(v, dtype=torch.int64) for k, v in values.items()}}


def _token_columns(nodes: list[Node]) -> dict[str, Any]:
    """Columns of T, and named tensors; context tokens have the values of none."""

    def column(name: str, absent: Any, dtype: torch.dtype) -> Tensor:
        parts = (getattr(n, name) if n.kind == ACTION else [absent] * n.size for n in nodes)
        return torch.tensor([x for part in parts for x in part], dtype=dtype)

    token = torch.tensor([x for n in nodes for x in n.token], dtype=torch.int64)
    blocks_by_name: dict[str, list[tuple[int, Tensor]]] = {}
    first_token = 0
    for node in nodes:
        for name, value in node.extras.items():
            blocks_by_name.setdefault(name, []).append((first_token, value))
        first_token += node.size
    return {
        "token": token,
        "behaviour_logprob": column("logprob", NAN, torch.float64),
        "trainable": column("trainable", False, torch.bool),
        "segment": column("segment", -1, torch.int64),
        "extras": {name: scatter_blocks(blocks, token.numel()) for name, blocks in blocks_by_name.items()},
    }


def _step_columns(trajectories: list[list[Step]], first_token: list[int]) -> dict[str, Any]:
    """Columns of S and P, and `last_action`."""
    steps = [(r, begin, step) for r, begin, step in _all_steps(trajectories)]
    # action tokens of a step are those of its nodes, of the last one (where a fork leaves) the leading ones
    path_token: list[int] = []
    for _, _, step in steps:
        for node, size in step.nodes:
            start = first_token[node.first]
            path_token += range(start, start + size)
    lengths = torch.tensor([step.length for _, _, step in steps], dtype=torch.int64)
    # `previous` counts within the trajectory, the column within the forest
    integer_columns = {
        "step_trajectory": [r for r, _, _ in steps],
        "step_turn": [s.turn for _, _, s in steps],
        "step_action": [_node_index(s.nodes[-1]) for _, _, s in steps],
        "step_state": [s.state for _, _, s in steps],
        "step_agent": [s.agent for _, _, s in steps],
        "step_previous": [begin + s.previous if s.previous >= 0 else -1 for _, begin, s in steps],
        "last_action": [_node_index(steps[-1].nodes[-1]) for steps in trajectories],
        "path_token": path_token,
    }
    columns: dict[str, Any] = {k: torch.tensor(v, dtype=torch.int64) for k, v in integer_columns.items()}
    columns["step_reward"] = torch.tensor([s.reward for _, _, s in steps], dtype=torch.float64)
    columns["path_step"] = torch.repeat_interleave(torch.arange(len(steps)), lengths)
    columns["path_trajectory"] = columns["step_trajectory"][columns["path_step"]]
    for name, source in (
        ("step_finish", "finish"),
        ("step_info", "info"),
        ("observation_text", None),
        ("action_text", None),
    ):
        columns[name] = [getattr(s, source or name) for _, _, s in steps]
    return columns


def _all_steps(trajectories: list[list[Step]]) -> list[tuple[int, int, Step]]:
    """All steps in order: (trajectory, index of its first step, step)."""
    out: list[tuple[int, int, Step]] = []
    for r, steps in enumerate(trajectories):
        begin = len(out)
        out += [(r, begin, step) for step in steps]
    return out


def _node_index(reference: Reference | None) -> int:
    """Index of the finished node that a reference names, -1 for None."""
    return -1 if reference is None else reference[0].index(reference[1])
