"""Rollouts from the tables that TRL writes with `log_completions`: `completions/completions_00010.parquet`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gxpo.base.errors import need
from gxpo.base.parquet_files import fault_of
from gxpo.doctor.rollout_blocks import Table, block_size, held_out_from
from gxpo.doctor.rollout_credit import Floats, reward_columns, total
from gxpo.doctor.rollout_rows import NAN, Row, completion_text, first_reference, number, reference, text, whole
from gxpo.doctor.rollout_sample import KEPT, Dump, share, spread, whole_groups
from gxpo.doctor.rollout_tables import values

REQUIRED = {"step", "prompt", "completion", "advantage"}
MOST_FILES = 250  # tables that are opened
_HELD_OUT = 10**9  # group numbers of held-out rows begin here


@dataclass(frozen=True)
class Hints:
    """Knowledge from the rest of the run: rows of a group, weights and names of the reward functions, steps with an
    evaluation. None: not known."""

    group_size: int | None = None
    reward_weights: Sequence[float] | None = None
    components: Collection[str] | None = None
    evaluated: Collection[int] | None = None


@dataclass
class Tables:
    """Rows of the sample, number of rows there are, of tables that could not be read or repeat another, and remarks."""

    rows: list[Row] = field(default_factory=list)
    of: float = 0.0
    exact: bool = True
    unread: int = 0
    repeats: int = 0
    partial: int = 0
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _File:
    dump: Dump
    step: int
    prompts: list[str]
    completions: list[str]
    floats: dict[str, Floats]
    other: dict[str, list[Any]]
    advantage: Floats


def read_trl(files: Sequence[Dump], hints: Hints, budget: int = KEPT) -> Tables:
    """Whole groups of tables spread over the run, about `budget` rows."""
    found = Tables()
    ordered = sorted(files, key=lambda d: (d.step, d.name))
    opened = {ordered[0]: _open(ordered[0])} if ordered else {}
    typical = next((len(f.prompts) for f in opened.values() if f is not None), 64)
    chosen = _chosen(ordered, hints, max(typical, budget / MOST_FILES), budget)
    tables: list[_File] = []
    before: tuple[list[str], list[str]] | None = None
    for dump in chosen:
        file = opened.get(dump) or _open(dump)
        if file is None:
            found.unread += 1
        elif (file.prompts, file.completions) == before:
            found.repeats += 1  # no rollouts were made since: the table holds the same ones again
        else:
            before = (file.prompts, file.completions)
            tables.append(file)
    rows_read = sum(len(t.prompts) for t in tables)
    readable = len(chosen) - found.unread
    found.exact = len(chosen) == len(ordered)
    found.of = rows_read if found.exact else rows_read * len(ordered) / max(readable, 1)
    if tables:
        _rows(tables, hints, found, max(budget // len(tables), 1))
    return found


def _chosen(ordered: Sequence[Dump], hints: Hints, typical: float, budget: int) -> list[Dump]:
    """Tables spread over the run, of the known evaluations a fifth of the whole."""
    known = set(hints.evaluated or ())
    held = [d for d in ordered if d.step in known]
    train = [d for d in ordered if d.step not in known]
    if not held or not train:
        return share(ordered, typical, budget)[0]
    some = set(share(train, typical, budget * 4 // 5)[0])
    some |= {held[i] for i in spread(len(held), max(len(some) // 4, 2))}
    return [d for d in ordered if d in some]


def _open(dump: Dump) -> _File | None:
    """A table's columns; None where it is not one of TRL's or damaged."""
    parquet = need("pyarrow.parquet", "doctor")
    types = need("pyarrow", "doctor").types
    try:
        if fault_of(parquet.read_metadata(dump.path), dump.path.stat().st_size):
            return None
        table = parquet.read_table(dump.path, use_threads=False)
    except Exception:  # pyarrow raises its own errors, OSError and ValueError on damaged files
        return None
    names = table.column_names
    if not names or not set(names) >= REQUIRED or table.num_rows == 0:
        return None
    column = {n: values(table.column(n)) for n in REQUIRED}
    between = [n for n in names if n not in REQUIRED and not n.startswith("__")]
    floats = {
        n: _numbers(table.column(n).to_pylist()) for n in between if types.is_floating(table.schema.field(n).type)
    }
    other = {n: values(table.column(n)) for n in between if n not in floats}
    return _File(
        dump,
        whole(column["step"][0], dump.step),
        [text(p) for p in column["prompt"]],
        [completion_text(c) for c in column["completion"]],
        floats,
        other,
        _numbers(column["advantage"]),
    )


def _numbers(found: Sequence[Any]) -> Floats:
    return np.array([number(v) for v in found], dtype=np.float64)


def _rows(tables: Sequence[_File], hints: Hints, found: Tables, each: int) -> None:
    views = [Table(t.step, t.prompts, t.advantage) for t in tables]
    known = None if hints.evaluated is None else set(hints.evaluated)
    size = block_size([v for v in views if known is None or v.step not in known] or views, hints.group_size)
    begins = held_out_from(views, size, known)
    if size == 1 and len(tables) > 1:
        found.notes.append("no block size fits prompts and advantages: each rollout is taken as its own group")
    tails = [Table(v.step, v.prompts[b:], v.advantage[b:]) for v, b in zip(views, begins, strict=True)]
    tail_size = block_size(tails)
    groups = [
        np.concatenate([_from_end(b, size), _from_end(len(t.prompts) - b, tail_size) + _HELD_OUT])
        for t, b in zip(tables, begins, strict=True)
    ]
    names, weights = _rewards(tables, size, begins, groups, hints, found)
    for t, begin, group in zip(tables, begins, groups, strict=True):
        partial = np.zeros(len(group), dtype=bool)
        partial[: begin % size] = True  # the beginning of a block that the evaluation's rows pushed out
        found.partial += int(partial.sum())
        usable = np.flatnonzero(~partial)
        kept = usable[whole_groups([int(g) for g in group[usable]], each, t.dump.name)]
        found.rows += _made(t, kept, group, begin, names, weights)


def _from_end(n: int, size: int) -> Any:
    """Block numbers of n rows, whole blocks counted from the end."""
    return (np.arange(n) + (-n) % size) // size


def _rewards(
    tables: Sequence[_File], size: int, begins: Sequence[int], groups: Sequence[Any], hints: Hints, found: Tables
) -> tuple[list[str], Floats]:
    """The reward functions' columns and their weights."""
    names = list(dict.fromkeys(n for t in tables for n in t.floats))
    if hints.components and (named := [n for n in names if n in set(hints.components)]):
        left_out, names = [n for n in names if n not in named], named
    else:
        left_out = []
    given = None if hints.reward_weights is None else np.asarray(hints.reward_weights, dtype=float)
    if given is not None and len(given) <= len(names):
        return names[: len(given)], given
    if not names:
        return [], np.empty(0)
    rows = [slice(b % size, b) for b in begins]
    components = np.concatenate([_stacked(t, names)[r] for t, r in zip(tables, rows, strict=True)])
    advantage = np.concatenate([t.advantage[r] for t, r in zip(tables, rows, strict=True)])
    numbered = np.concatenate([g[r] + i * 2 * _HELD_OUT for i, (g, r) in enumerate(zip(groups, rows, strict=True))])
    dense = np.unique(numbered, return_inverse=True)[1]
    if len(dense) == 0:
        return names, np.ones(len(names))
    n, weights = reward_columns(names, components, advantage, dense)
    if hints.components:
        n = len(names)
    left_out += names[n:]
    if left_out:
        found.notes.append(
            f"not taken for reward functions, as they are no part of the advantages: {', '.join(left_out)}"
        )
    if weights is not None and len(weights) == n:
        found.notes.append(
            "the advantages are those of rewards weighted "
            + ", ".join(f"{name} {w:g}" for name, w in zip(names, weights, strict=False))
        )
        return names[:n], weights
    return names[:n], np.ones(n)


def _stacked(t: _File, names: Sequence[str]) -> Floats:
    return np.stack([t.floats.get(n, np.full(len(t.prompts), NAN)) for n in names], axis=1)


def _made(t: _File, kept: Any, group: Any, begin: int, names: Sequence[str], weights: Floats) -> list[Row]:
    score = total(_stacked(t, names), weights) if names else np.full(len(t.prompts), NAN)
    answer = first_reference(list(t.other))
    return [
        Row(
            step=t.step,
            prompt=t.prompts[i],
            completion=t.completions[i],
            score=float(score[i]),
            group=int(group[i]),
            components={n: float(t.floats[n][i]) for n in names if n in t.floats},
            advantage=float(t.advantage[i]),
            reference=reference(t.other[answer][i]) if answer else None,
            held_out=bool(i >= begin),
            where=f"{t.dump.name}:{i}",
        )
        for i in map(int, kept)
    ]
