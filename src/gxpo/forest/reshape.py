"""Select, flatten and concatenate forests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gxpo.forest.columns import ACTION, COLUMNS, Columns, Self, scatter_blocks, with_ancestors
from gxpo.forest.grouped import distinct, runs_of


def select(forest: Self, rows: Tensor) -> Self:
    """Subset of trajectories, distinct and in this order, with only the nodes they need."""
    held = kept(forest, rows)
    place = {axis: _inverse(index, forest._size(axis)) for axis, index in held.items()}
    return _take(forest, held, lambda axis, into, column: place[into][column])


def kept(forest: Columns, rows: Tensor) -> dict[str, Tensor]:
    """Rows of every axis (N, T, S, P, R) that `select(forest, rows)` keeps, in its order."""
    if torch.equal(rows, torch.arange(forest.n_trajectories)):
        return {axis: torch.arange(forest._size(axis)) for axis in "NTSPR"}
    steps = runs_of(forest._step_begin, rows)
    needed = torch.cat([forest.step_action[steps], forest.prompt_node[rows]])
    _, nodes = _reached(forest, torch.zeros_like(needed), needed)
    return {
        "N": nodes,
        "T": runs_of(forest.first_token, nodes),
        "S": steps,
        "P": runs_of(forest._entry_begin, rows),
        "R": rows,
    }


def in_sampled_context(forest: Self) -> Self:
    """The forest with every action after the context that it was sampled under, where that differs.

    Such a context comes before the action among the nodes, so parents still come before children. For reading the
    policy only: prompts stay what they were, so the forest can't be written as records.
    """
    up = forest.parent.clamp_min(0)
    inside = (forest.parent >= 0) & (forest.kind[up] == ACTION) & (forest.turn[up] == forest.turn)
    moved = (forest.sampled_under >= 0) & ~inside
    return forest.replace(parent=torch.where(moved, forest.sampled_under, forest.parent))


def flatten(forest: Self) -> Self:
    """Copy shared nodes: each trajectory has its own; a node shared by m trajectories is stored m times."""
    trajectories = torch.arange(forest.n_trajectories)
    owner, nodes = _reached(
        forest, torch.cat([forest.step_trajectory, trajectories]), torch.cat([forest.step_action, forest.prompt_node])
    )
    n, keys = max(forest.n_nodes, 1), owner * max(forest.n_nodes, 1) + nodes
    kept = {
        "N": nodes,
        "T": runs_of(forest.first_token, nodes),
        "S": torch.arange(forest.n_steps),
        "P": torch.arange(forest.n_entries),
        "R": trajectories,
    }
    owners = {"N": owner, "S": forest.step_trajectory, "P": forest.path_trajectory, "R": trajectories}
    sizes = forest.first_token.diff()[nodes]
    begins = sizes.cumsum(0) - sizes

    def node_of(axis: str, column: Tensor) -> Tensor:
        return torch.searchsorted(keys, owners[axis] * n + column)

    def moved(axis: str, into: str, column: Tensor) -> Tensor:
        if into == "N":
            return node_of(axis, column)
        if into == "T":
            node = forest.token_node[column]
            return begins[node_of(axis, node)] + column - forest.first_token[node]
        return column

    return _take(forest, kept, moved)


def _reached(forest: Columns, owner: Tensor, node: Tensor) -> tuple[Tensor, Tensor]:
    """(owner, node) pairs that these need: their root paths, and the other contexts in which they were sampled."""
    owner, node = owner[node >= 0], node[node >= 0]
    n = max(forest.n_nodes, 1)
    while True:
        owner, node = with_ancestors(forest.parent, owner, node)
        under = forest.sampled_under[node]
        more = torch.cat([node, under[under >= 0]])
        whose = torch.cat([owner, owner[under >= 0]])
        if len(more) == len(node) or len(distinct(whose * n + more)) == len(node):
            return owner, node
        owner, node = whose, more


def _take(forest: Self, kept: dict[str, Tensor], moved: Callable[[str, str, Tensor], Tensor]) -> Self:
    """The rows `kept` of every axis; `moved(axis, into, column)` gives references (none of them -1) their new rows."""
    listed = {axis: index.tolist() for axis, index in kept.items() if axis in "RS"}
    changes: dict[str, Any] = {}
    for name, (axis, into) in COLUMNS.items():
        column = getattr(forest, name)
        if isinstance(column, list):
            changes[name] = [column[i] for i in listed[axis]]
            continue
        column = column[kept[axis]]
        if into is not None:
            known = column >= 0
            column = torch.where(known, moved(axis, into, column.clamp_min(0)), -1) if len(column) else column
        changes[name] = column
    sizes = forest.first_token.diff()[kept["N"]]
    changes["first_token"] = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    changes["extras"] = {name: value[kept["T"]] for name, value in forest.extras.items()}
    if forest.media:
        changes["media"] = {new: forest.media[old] for new, old in enumerate(kept["N"].tolist()) if old in forest.media}
    return forest.replace(**changes)


def concat(forests: Sequence[Self]) -> Self:
    """Concatenate forests: all trajectories, in order; nothing is shared between them. Names are merged; an id that an
    earlier forest has already gets "+1", "+2"... appended."""
    if len(forests) == 1:
        return forests[0]
    base = {axis: [0] for axis in "NTSPR"}
    for axis, begins in base.items():
        for f in forests:
            begins.append(begins[-1] + f._size(axis))
    out: dict[str, Any] = {}
    for name, (_, into) in COLUMNS.items():
        columns = [getattr(f, name) for f in forests]
        if isinstance(columns[0], list):
            out[name] = [x for column in columns for x in column]
        elif name != "components":
            if into is not None:
                begins = base[into]
                columns = [torch.where(c >= 0, c + b, -1) for c, b in zip(columns, begins, strict=False)]
            out[name] = torch.cat(columns)
    sizes = torch.cat([f.first_token.diff() for f in forests])
    out["first_token"] = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    named = {"agent": ("agent", "step_agent"), "policy": ("policy",), "state": ("state", "step_state")}
    for kind, fields in named.items():
        merged = _merge(getattr(f, f"{kind}_names") for f in forests)
        out[f"{kind}_names"] = tuple(merged)
        for name in fields:
            renamed = [_rename(getattr(f, name), getattr(f, f"{kind}_names"), merged) for f in forests]
            out[name] = torch.cat(renamed)
    merged = _merge(f.component_names for f in forests)
    out["component_names"] = tuple(merged)
    out["components"] = torch.full((base["R"][-1], len(merged)), float("nan"), dtype=torch.float64)
    for f, at in zip(forests, base["R"], strict=False):
        for k, name in enumerate(f.component_names):
            out["components"][at : at + f.n_trajectories, merged[name]] = f.components[:, k]
    out["shaped_by"] = forests[0].shaped_by if len({f.shaped_by for f in forests}) == 1 else ()
    out["id"] = _distinct(out["id"])
    out["media"] = {n + at: m for f, at in zip(forests, base["N"], strict=False) for n, m in f.media.items()}
    out["extras"] = {}
    for name in _merge(f.extras for f in forests):
        blocks = [(at, f.extras[name]) for f, at in zip(forests, base["T"], strict=False) if name in f.extras]
        out["extras"][name] = _joined(name, blocks, base["T"][-1])
    return type(forests[0])(**out)


def _joined(name: str, blocks: list[tuple[int, Tensor]], rows: int) -> Tensor:
    if len({(block.dtype, block.dim()) for _, block in blocks}) > 1:
        kinds = ", ".join(sorted({f"{block.dtype} with {block.dim()} dimensions" for _, block in blocks}))
        raise ValueError(f"extras[{name!r}] differ between the forests: {kinds}")
    return scatter_blocks(blocks, rows)


def _merge(names: Any) -> dict[str, int]:
    """All names in order of appearance, with their places."""
    return {name: i for i, name in enumerate(dict.fromkeys(n for some in names for n in some))}


def _rename(column: Tensor, names: Sequence[str], merged: dict[str, int]) -> Tensor:
    table = torch.tensor([merged[n] for n in names] or [-1], dtype=torch.int64)
    return torch.where(column >= 0, table[column.clamp_min(0)], -1)


def _distinct(ids: list[str]) -> list[str]:
    given, seen, count, out = set(ids), set(), dict.fromkeys(ids, 0), []
    for name in ids:
        new = name
        while new in seen or (new != name and new in given):
            count[name] += 1
            new = f"{name}+{count[name]}"
        seen.add(new)
        out.append(new)
    return out


def _inverse(kept: Tensor, size: int) -> Tensor:
    """Old row -> new row, -1 where dropped."""
    out = torch.full((size,), -1)
    out[kept] = torch.arange(kept.numel())
    return out


# ---------------------------------------------------------------- pieces of trajectories
class Pieces(NamedTuple):
    """Pieces (turns or segments) of all trajectories, by trajectory, then time.

    piece       [P] piece of each action token
    number      [P] of the piece within its trajectory, from 0
    first       [K] first action token of each piece (row of P); `last`: the last one
    trajectory  [K]
    """

    piece: Tensor
    number: Tensor
    first: Tensor
    last: Tensor
    trajectory: Tensor


def pieces_of(forest: Columns) -> Pieces:
    """Pieces of a forest: a new one begins with every turn and with every change of `segment`."""
    step, segment, owner = forest.path_step, forest.segment[forest.path_token], forest.path_trajectory
    begins = torch.ones(len(step), dtype=torch.bool)
    begins[1:] = (step[1:] != step[:-1]) | (segment[1:] != segment[:-1])
    piece = begins.cumsum(0) - 1
    first = begins.nonzero().squeeze(1)
    last = torch.cat([first[1:], torch.tensor([len(step)])])[: len(first)] - 1
    trajectory = owner[first]
    lowest = torch.zeros(forest.n_trajectories, dtype=torch.int64)
    lowest = lowest.scatter_reduce_(0, trajectory, torch.arange(len(first)), "amin", include_self=False)
    return Pieces(piece, piece - lowest[owner], first, last, trajectory)
