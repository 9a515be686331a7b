"""Select, flatten and concatenate forests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gxpo.forest.columns import ACTION, COLUMNS, NAN, Columns, Self, with_ancestors
from gxpo.forest.grouped import distinct, runs_of


def select(forest: Self, rows: Tensor) -> Self:
    """Subset of trajectories, distinct and in this order, with only the nodes they need."""
    rows_by_axis = kept_rows(forest, rows)
    new_row_by_axis = {axis: _inverse(index, forest._size(axis)) for axis, index in rows_by_axis.items()}
    return _take(forest, rows_by_axis, lambda axis, into, column: new_row_by_axis[into][column])


def kept_rows(forest: Columns, rows: Tensor) -> dict[str, Tensor]:
    """Rows of every axis (N, T, S, P, R) that `select(forest, rows)` keeps, in its order."""
    if torch.equal(rows, torch.arange(forest.n_trajectories)):
        return {axis: torch.arange(forest._size(axis)) for axis in "NTSPR"}
    steps = runs_of(forest._step_begin, rows)
    end_nodes = torch.cat([forest.step_action[steps], forest.prompt_node[rows]])
    _, nodes = _reached(forest, torch.zeros_like(end_nodes), end_nodes)
    return {
        "N": nodes,
        "T": runs_of(forest.first_token, nodes),
        "S": steps,
        "P": runs_of(forest._entry_begin, rows),
        "R": rows,
    }


def in_sampled_context(forest: Self) -> Self:
    """Forest with every action under the context that it was sampled in, where that differs.

    Such a context comes before the action among the nodes, so parents still come before children. For reading the
    policy only: prompts stay what they were, so the forest can't be written as records.
    """
    # only the first node of an action is moved: the others follow it
    parent_or_root = forest.parent.clamp_min(0)
    continues_action = (
        (forest.parent >= 0) & (forest.kind[parent_or_root] == ACTION) & (forest.turn[parent_or_root] == forest.turn)
    )
    differs = (forest.sampled_under >= 0) & ~continues_action
    return forest.replace(parent=torch.where(differs, forest.sampled_under, forest.parent))


def flatten(forest: Self) -> Self:
    """Copy shared nodes: each trajectory has its own; a node shared by m trajectories is stored m times."""
    # every (trajectory, node) pair becomes a node; pairs are sorted, so parents still come first
    trajectories = torch.arange(forest.n_trajectories)
    owner, nodes = _reached(
        forest, torch.cat([forest.step_trajectory, trajectories]), torch.cat([forest.step_action, forest.prompt_node])
    )
    n, keys = max(forest.n_nodes, 1), owner * max(forest.n_nodes, 1) + nodes
    rows_by_axis = {
        "N": nodes,
        "T": runs_of(forest.first_token, nodes),
        "S": torch.arange(forest.n_steps),
        "P": torch.arange(forest.n_entries),
        "R": trajectories,
    }
    # references are found again by their pair: the node of a trajectory is at its key's place
    owners = {"N": owner, "S": forest.step_trajectory, "P": forest.path_trajectory, "R": trajectories}
    sizes = forest.first_token.diff()[nodes]
    begins = sizes.cumsum(0) - sizes

    def node_of(axis: str, column: Tensor) -> Tensor:
        return torch.searchsorted(keys, owners[axis] * n + column)

    def new_row(axis: str, into: str, column: Tensor) -> Tensor:
        if into == "N":
            return node_of(axis, column)
        if into == "T":
            node = forest.token_node[column]
            return begins[node_of(axis, node)] + column - forest.first_token[node]
        return column

    return _take(forest, rows_by_axis, new_row)


def _reached(forest: Columns, owner: Tensor, node: Tensor) -> tuple[Tensor, Tensor]:
    """Close (owner, node) pairs over root paths and over the other contexts in which nodes were sampled."""
    owner, node = owner[node >= 0], node[node >= 0]
    n = max(forest.n_nodes, 1)
    # a context that is reached may have been sampled under yet another: until nothing is added
    while True:
        owner, node = with_ancestors(forest.parent, owner, node)
        under = forest.sampled_under[node]
        nodes = torch.cat([node, under[under >= 0]])
        owners = torch.cat([owner, owner[under >= 0]])
        if len(nodes) == len(node) or len(distinct(owners * n + nodes)) == len(node):
            return owner, node
        owner, node = owners, nodes


def _take(forest: Self, rows_by_axis: dict[str, Tensor], new_row: Callable[[str, str, Tensor], Tensor]) -> Self:
    """Take rows of every axis; `new_row(axis, into, column)` gives references (none of them -1) their new rows."""
    # lists are indexed by Python integers, columns by tensors
    rows_as_lists = {axis: index.tolist() for axis, index in rows_by_axis.items() if axis in "RS"}
    changes: dict[str, Any] = {}
    for name, (axis, into) in COLUMNS.items():
        column = getattr(forest, name)
        if isinstance(column, list):
            changes[name] = [column[i] for i in rows_as_lists[axis]]
            continue
        column = column[rows_by_axis[axis]]
        if into is not None:
            has_target = column >= 0
            column = torch.where(has_target, new_row(axis, into, column.clamp_min(0)), -1) if len(column) else column
        changes[name] = column
    sizes = forest.first_token.diff()[rows_by_axis["N"]]
    changes["first_token"] = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    changes["extras"] = {name: value[rows_by_axis["T"]] for name, value in forest.extras.items()}
    if forest.media:
        changes["media"] = {
            new: forest.media[old] for new, old in enumerate(rows_by_axis["N"].tolist()) if old in forest.media
        }
    return forest.replace(**changes)


def concat(forests: Sequence[Self]) -> Self:
    """Concatenate forests: all trajectories, in order; nothing is shared between them.

    Names are merged; an id that an earlier forest has already gets "+1", "+2"... appended.
    """
    if len(forests) == 1:
        return forests[0]
    # row numbers are shifted by the rows of the forests before
    offsets = {axis: [0] for axis in "NTSPR"}
    for axis, begins in offsets.items():
        for part in forests:
            begins.append(begins[-1] + part._size(axis))
    out: dict[str, Any] = {}
    for name, (_, into) in COLUMNS.items():
        columns = [getattr(part, name) for part in forests]
        if isinstance(columns[0], list):
            out[name] = [x for column in columns for x in column]
        elif name != "components":
            if into is not None:
                begins = offsets[into]
                columns = [torch.where(c >= 0, c + b, -1) for c, b in zip(columns, begins, strict=False)]
            out[name] = torch.cat(columns)
    sizes = torch.cat([part.first_token.diff() for part in forests])
    out["first_token"] = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    # indices into names are translated to the merged names
    name_tables = {"agent": ("agent", "step_agent"), "policy": ("policy",), "state": ("state", "step_state")}
    for kind, fields in name_tables.items():
        merged = _merge(getattr(part, f"{kind}_names") for part in forests)
        out[f"{kind}_names"] = tuple(merged)
        for name in fields:
            renumbered = [_rename(getattr(part, name), getattr(part, f"{kind}_names"), merged) for part in forests]
            out[name] = torch.cat(renumbered)
    # a component that a forest lacks is nan there
    merged = _merge(part.component_names for part in forests)
    out["component_names"] = tuple(merged)
    out["components"] = torch.full((offsets["R"][-1], len(merged)), float("nan"), dtype=torch.float64)
    for part, offset in zip(forests, offsets["R"], strict=False):
        for k, name in enumerate(part.component_names):
            out["components"][offset : offset + part.n_trajectories, merged[name]] = part.components[:, k]
    # outcomes shaped by different rewards have no one description
    out["shaped_by"] = forests[0].shaped_by if len({part.shaped_by for part in forests}) == 1 else ()
    out["id"] = _distinct(out["id"])
    out["media"] = {
        n + offset: m for part, offset in zip(forests, offsets["N"], strict=False) for n, m in part.media.items()
    }
    out["biases"] = {key: bias for part in forests for key, bias in part.biases.items()}
    out["extras"] = {}
    for name in _merge(part.extras for part in forests):
        blocks = [
            (offset, part.extras[name])
            for part, offset in zip(forests, offsets["T"], strict=False)
            if name in part.extras
        ]
        out["extras"][name] = _merge_extra(name, blocks, offsets["T"][-1])
    return type(forests[0])(**out)


def _merge_extra(name: str, blocks: list[tuple[int, Tensor]], rows: int) -> Tensor:
    """One named tensor of `rows` rows from those of the forests that have it. ValueError where their types differ."""
    if len({(block.dtype, block.dim()) for _, block in blocks}) > 1:
        kinds = ", ".join(sorted({f"{block.dtype} with {block.dim()} dimensions" for _, block in blocks}))
        raise ValueError(f"extras[{name!r}] differ between the forests: {kinds}")
    return scatter_blocks(blocks, rows)


def _merge(names: Any) -> dict[str, int]:
    """Merge lists of names: each with its index by first appearance."""
    return {name: i for i, name in enumerate(dict.fromkeys(n for some in names for n in some))}


def _rename(column: Tensor, names: Sequence[str], merged: dict[str, int]) -> Tensor:
    """Translate indices into `names` to indices into `merged`; -1 stays."""
    table = torch.tensor([merged[n] for n in names] or [-1], dtype=torch.int64)
    return torch.where(column >= 0, table[column.clamp_min(0)], -1)


def _distinct(ids: list[str]) -> list[str]:
    """Make ids distinct by "+1", "+2"...; a suffix never makes one that stands elsewhere in the list."""
    original_ids, names_so_far, count, out = set(ids), set(), dict.fromkeys(ids, 0), []
    for name in ids:
        candidate = name
        while candidate in names_so_far or (candidate != name and candidate in original_ids):
            count[name] += 1
            candidate = f"{name}+{count[name]}"
        names_so_far.add(candidate)
        out.append(candidate)
    return out


def _inverse(rows: Tensor, size: int) -> Tensor:
    """Inverse index: new row of each old row, -1 where dropped."""
    out = torch.full((size,), -1)
    out[rows] = torch.arange(rows.numel())
    return out


# ---------------------------------------------------------------- named tensors
def blank_value(dtype: torch.dtype) -> float:
    """Fill value of a named tensor: nan, -1, or 0 in types that have neither."""
    if dtype.is_floating_point:
        return NAN
    return -1 if dtype.is_signed else 0


def scatter_blocks(blocks: Sequence[tuple[int, Tensor]], rows: int) -> Tensor:
    """One tensor of `rows` rows from (first row, block)s whose trailing sizes may differ; blank where nothing is."""
    widths = [max(sizes) for sizes in zip(*(block.shape[1:] for _, block in blocks), strict=True)]
    dtype = blocks[0][1].dtype
    out = torch.full((rows, *widths), blank_value(dtype), dtype=dtype)
    for first_row, block in blocks:
        out[(slice(first_row, first_row + block.shape[0]), *(slice(0, n) for n in block.shape[1:]))] = block
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
