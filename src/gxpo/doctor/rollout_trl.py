"""Reader of TRL's tables of rollouts, which `log_completions` writes: `completions/completions_00010.parquet`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gxpo.base.errors import need
from gxpo.base.parquet_files import fault_of
from gxpo.doctor.rollout_blocks import Table, block_size, held_out_from
from gxpo.doctor.rollout_credit import Floats, reward_columns, total
from gxpo.doctor.rollout_sample import KEPT, Dump, share, spread, whole_groups
from gxpo.doctor.rollout_tables import values
from gxpo.doctor.rollouts import NAN, Row, completion_text, first_reference, integer, number, reference, text

REQUIRED = {"step", "prompt", "completion", "advantage"}
MOST_FILES = 250  # tables that are opened
_HELD_OUT = 10**9  # group numbers of held-out rows begin here


@dataclass(frozen=True)
class Hints:
    """Facts from the rest of the run that tables do not hold; None: unknown.

    group_size      rows of a group
    reward_weights  weights of the reward functions, in the order of their columns
    components      names of the reward functions
    evaluated       steps with an evaluation
    """

    group_size: int | None = None
    reward_weights: Sequence[float] | None = None
    components: Collection[str] | None = None
    evaluated: Collection[int] | None = None


@dataclass
class Tables:
    """Rows sampled from tables.

    total    number of rows in all tables; `exact`: counted, not estimated
    unread   tables that could not be read
    repeats  tables that hold the rollouts of the table before them
    partial  rows of groups that an evaluation cut
    """

    rows: list[Row] = field(default_factory=list)
    total: float = 0.0
    exact: bool = True
    unread: int = 0
    repeats: int = 0
    partial: int = 0
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _File:
    """Columns of one table: the texts, the float columns between the required ones, all others, the advantages."""

    dump: Dump
    step: int
    prompts: list[str]
    completions: list[str]
    floats: dict[str, Floats]
    columns: dict[str, list[Any]]
    advantage: Floats


def read_trl(files: Sequence[Dump], hints: Hints, budget: int = KEPT) -> Tables:
    """Sample about `budget` rows: whole groups of tables spread over the run."""
    sample = Tables()
    ordered = sorted(files, key=lambda d: (d.step, d.name))
    opened = {ordered[0]: _open(ordered[0])} if ordered else {}
    # one table tells the rows of all: opening each to count would cost as much as reading it
    typical = next((len(f.prompts) for f in opened.values() if f is not None), 64)
    dumps = _choose_tables(ordered, hints, max(typical, budget / MOST_FILES), budget)
    tables: list[_File] = []
    previous: tuple[list[str], list[str]] | None = None
    for dump in dumps:
        file = opened.get(dump) or _open(dump)
        if file is None:
            sample.unread += 1
        elif (file.prompts, file.completions) == previous:
            # no rollouts were made since: the table holds the same ones again
            sample.repeats += 1
        else:
            previous = (file.prompts, file.completions)
            tables.append(file)
    rows_read = sum(len(t.prompts) for t in tables)
    readable = len(dumps) - sample.unread
    # of unread tables the number of rows is that of the read ones on average
    sample.exact = len(dumps) == len(ordered)
    sample.total = rows_read if sample.exact else rows_read * len(ordered) / max(readable, 1)
    if tables:
        _rows(tables, hints, sample, max(budget // len(tables), 1))
    return sample


def _choose_tables(ordered: Sequence[Dump], hints: Hints, typical: float, budget: int) -> list[Dump]:
    """Choose tables spread over the run, a fifth of them of known evaluations."""
    evaluated = set(hints.evaluated or ())
    held_out = [d for d in ordered if d.step in evaluated]
    train = [d for d in ordered if d.step not in evaluated]
    if not held_out or not train:
        return share(ordered, typical, budget)[0]
    dumps = set(share(train, typical, budget * 4 // 5)[0])
    dumps |= {held_out[i] for i in spread(len(held_out), max(len(dumps) // 4, 2))}
    return [d for d in ordered if d in dumps]


def _open(dump: Dump) -> _File | None:
    """Read a table's columns; None if it is damaged or not one of TRL's."""
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
    # `extra` columns of a reward function are floats, too: `_rewards` tells them from rewards
    extra_names = [n for n in names if n not in REQUIRED and not n.startswith("__")]
    floats = {
        n: _numbers(table.column(n).to_pylist()) for n in extra_names if types.is_floating(table.schema.field(n).type)
    }
    columns = {n: values(table.column(n)) for n in extra_names if n not in floats}
    return _File(
        dump,
        integer(column["step"][0], dump.step),
        [text(p) for p in column["prompt"]],
        [completion_text(c) for c in column["completion"]],
        floats,
        columns,
        _numbers(column["advantage"]),
    )


def _numbers(column: Sequence[Any]) -> Floats:
    """Convert a column to floats, nan for what is no number."""
    return np.array([number(v) for v in column], dtype=np.float64)


def _rows(tables: Sequence[_File], hints: Hints, sample: Tables, rows_per_table: int) -> None:
    """Add to the sample about `each` rows of every table, grouped by blocks."""
    views = [Table(table.step, table.prompts, table.advantage) for table in tables]
    evaluated = None if hints.evaluated is None else set(hints.evaluated)
    # blocks of training are measured on tables without an evaluation, where those are known
    size = block_size([v for v in views if evaluated is None or v.step not in evaluated] or views, hints.group_size)
    begins = held_out_from(views, size, evaluated)
    if size == 1 and len(tables) > 1:
        sample.notes.append("no block size fits prompts and advantages: each rollout is taken as its own group")
    # rows of an evaluation have a block size of their own
    tails = [Table(v.step, v.prompts[b:], v.advantage[b:]) for v, b in zip(views, begins, strict=True)]
    tail_size = block_size(tails)
    groups = [
        np.concatenate([_from_end(b, size), _from_end(len(table.prompts) - b, tail_size) + _HELD_OUT])
        for table, b in zip(tables, begins, strict=True)
    ]
    names, weights = _rewards(tables, size, begins, groups, hints, sample)
    for table, begin, group in zip(tables, begins, groups, strict=True):
        partial = np.zeros(len(group), dtype=bool)
        # what is left of a block of which the evaluation's rows pushed out the beginning
        partial[: begin % size] = True
        sample.partial += int(partial.sum())
        usable = np.flatnonzero(~partial)
        row_index = usable[whole_groups([int(g) for g in group[usable]], rows_per_table, table.dump.name)]
        sample.rows += _rows_of_table(table, row_index, group, begin, names, weights)


def _from_end(n: int, size: int) -> Any:
    """Number n rows by blocks of `size`, whole blocks counted from the end."""
    return (np.arange(n) + (-n) % size) // size


def _rewards(
    tables: Sequence[_File], size: int, begins: Sequence[int], groups: Sequence[Any], hints: Hints, sample: Tables
) -> tuple[list[str], Floats]:
    """Find the columns that are reward functions, and their weights.

    From the configuration where it names them; else from the advantages, which are made of the rewards alone.
    """
    names = list(dict.fromkeys(n for t in tables for n in t.floats))
    if hints.components and (functions := [n for n in names if n in set(hints.components)]):
        unused_names, names = [n for n in names if n not in functions], functions
    else:
        unused_names = []
    # a configuration with weights for fewer columns than there are names the leading ones
    configured = None if hints.reward_weights is None else np.asarray(hints.reward_weights, dtype=float)
    if configured is not None and len(configured) <= len(names):
        return names[: len(configured)], configured
    if not names:
        return [], np.empty(0)
    # complete blocks of training alone: only there advantages are made of the scores beside them
    rows = [slice(b % size, b) for b in begins]
    components = np.concatenate([_stack(t, names)[r] for t, r in zip(tables, rows, strict=True)])
    advantage = np.concatenate([t.advantage[r] for t, r in zip(tables, rows, strict=True)])
    # group numbers begin anew in each table
    numbered = np.concatenate([g[r] + i * 2 * _HELD_OUT for i, (g, r) in enumerate(zip(groups, rows, strict=True))])
    dense = np.unique(numbered, return_inverse=True)[1]
    if len(dense) == 0:
        return names, np.ones(len(names))
    n, weights = reward_columns(names, components, advantage, dense)
    # names that the metrics have are reward functions, whatever the advantages say
    if hints.components:
        n = len(names)
    unused_names += names[n:]
    if unused_names:
        sample.notes.append(
            f"not taken for reward functions, as they are no part of the advantages: {', '.join(unused_names)}"
        )
    if weights is not None and len(weights) == n:
        sample.notes.append(
            "the advantages are those of rewards weighted "
            + ", ".join(f"{name} {w:g}" for name, w in zip(names, weights, strict=False))
        )
        return names[:n], weights
    return names[:n], np.ones(n)


def _stack(t: _File, names: Sequence[str]) -> Floats:
    """Stack columns to [rows, components]; nan for a column that the table lacks."""
    return np.stack([t.floats.get(n, np.full(len(t.prompts), NAN)) for n in names], axis=1)


def _rows_of_table(
    table: _File, row_index: Any, group: Any, begin: int, names: Sequence[str], weights: Floats
) -> list[Row]:
    """Make the chosen rows of a table; those from `begin` on are of an evaluation."""
    score = total(_stack(table, names), weights) if names else np.full(len(table.prompts), NAN)
    answer = first_reference(list(table.columns))
    return [
        Row(
            step=table.step,
            prompt=table.prompts[i],
            completion=table.completions[i],
            score=float(score[i]),
            group=int(group[i]),
            components={n: float(table.floats[n][i]) for n in names if n in table.floats},
            advantage=float(table.advantage[i]),
            reference=reference(table.columns[answer][i]) if answer else None,
            held_out=bool(i >= begin),
            where=f"{table.dump.name}:{i}",
        )
        for i in map(int, row_index)
    ]
