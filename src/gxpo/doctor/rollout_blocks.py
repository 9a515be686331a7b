"""Groups of TRL's tables, whose rows have no group id but come in blocks of `num_generations`.

A table is the last generation batch. After an evaluation its end, or all of it, is rows of the evaluation, which have a
block size of their own; what was before them is cut at its beginning, so blocks are counted from the end.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

ZERO = 5e-3  # TRL leaves up to 6e-4 of advantage in groups of equal rewards
ENOUGH = 3  # blocks with advantages, before these may contradict the prompts


@dataclass(frozen=True)
class Table:
    """Columns of a table that show where its blocks are."""

    step: int
    prompts: Sequence[str]
    advantage: NDArray[np.float64]


def runs(prompts: Sequence[str]) -> list[int]:
    """Lengths of the stretches of equal consecutive prompts."""
    ends = [i for i in range(1, len(prompts)) if prompts[i] != prompts[i - 1]]
    edges = [0, *ends, len(prompts)] if prompts else [0]
    return [b - a for a, b in pairwise(edges)]


def block_size(tables: Sequence[Table], configured: int | None = None) -> int:
    """Find the number of rows of a group; 1 if nothing shows groups.

    The largest size that divides all stretches of equal prompts in at least half of the tables; where neighbouring
    groups have one prompt (a single prompt fills the table) it is too large, and then the smallest divisor over which
    all advantages sum to 0. A configured size is taken if it divides a table.
    """
    tables = [t for t in tables if len(t.prompts)]
    if configured and any(len(t.prompts) % configured == 0 for t in tables):
        return configured
    if not tables:
        return 1
    # in half of the tables suffices: the others may have a cut beginning or an evaluation in them
    gcds = [int(np.gcd.reduce(runs(t.prompts))) for t in tables]
    sizes = sorted({d for g in gcds for d in range(1, g + 1) if g % d == 0}, reverse=True)
    largest = next(d for d in sizes if 2 * sum(g % d == 0 for g in gcds) >= len(gcds))
    if largest == 1:
        # all prompts differ from their neighbours: groups can only show in advantages that sum to 0
        common = int(np.gcd.reduce([len(t.prompts) for t in tables]))
        return next((d for d in range(2, common + 1) if common % d == 0 and _is_centred(tables, d)), 1)
    agreeing = [t for t, g in zip(tables, gcds, strict=True) if g % largest == 0]
    smaller = [d for d in range(2, largest) if largest % d == 0]
    return next((d for d in smaller if _is_centred(agreeing, d)), largest)


def _is_centred(tables: Sequence[Table], d: int) -> bool:
    """True if the advantages of every block of d rows sum to 0, and enough blocks have any."""
    with_signal = 0
    for t in tables:
        # whole blocks from the end: the beginning may be cut
        blocks = t.advantage[len(t.advantage) % d :].reshape(-1, d)
        live = np.nanmax(np.abs(blocks), axis=1, initial=0) > ZERO
        if np.any(np.abs(np.nanmean(blocks[live], axis=1)) > ZERO / 5):
            return False
        with_signal += int(live.sum())
    return with_signal >= ENOUGH


def held_out_from(tables: Sequence[Table], size: int, evaluated: Collection[int] | None = None) -> list[int]:
    """Find for each table the first row of an evaluation; its number of rows if it holds none.

    evaluated  steps with an evaluation, if known. Else a table holds one if it was written before the first step; if
               its blocks do not fit `size`; or if it ends with the same prompts in the same order as another, or with
               prompts that no training table has, while training tables share theirs.
    """
    ends = [len(t.prompts) for t in tables]
    homes = _homes(tables)
    evaluation_tables = {i for i, t in enumerate(tables) if t.step == 0 and len(tables) > 1}
    if evaluated is not None:
        evaluated_steps = {float(s) for s in evaluated}
        evaluation_tables |= {i for i, t in enumerate(tables) if t.step in evaluated_steps}
        evaluation_tables |= {
            i
            for i in _repeated_ends(tables, homes)
            if any(_end(tables[i]) == _end(tables[j]) for j in evaluation_tables)
        }
    else:
        evaluation_tables |= {i for i, t in enumerate(tables) if any(n % size for n in runs(t.prompts)[1:])}
        evaluation_tables |= _repeated_ends(tables, homes) or _strangers(tables, homes)
        # a rule that marks every table has told nothing
        if len(evaluation_tables) == len(tables):
            return ends
    for i in evaluation_tables:
        ends[i] = _begin(tables, i, evaluation_tables, homes)
    return ends


def _homes(tables: Sequence[Table]) -> dict[str, set[int]]:
    """Map each prompt to the tables that hold it."""
    homes: dict[str, set[int]] = {}
    for i, t in enumerate(tables):
        for p in set(t.prompts):
            homes.setdefault(p, set()).add(i)
    return homes


def _end(table: Table, n: int = 6) -> tuple[str, ...]:
    """The last `n` distinct prompts of a table, the last first."""
    return tuple(list(dict.fromkeys(reversed(table.prompts)))[:n])


def _repeated_ends(tables: Sequence[Table], homes: Mapping[str, set[int]]) -> set[int]:
    """Tables that end like another, with prompts of these tables alone: an evaluation repeats its data set, whereas
    training draws anew."""
    alike: dict[tuple[str, ...], set[int]] = {}
    for i, t in enumerate(tables):
        alike.setdefault(_end(t), set()).add(i)
    return {
        i
        for end, members in alike.items()
        if 2 <= len(members) <= len(tables) / 2 and all(homes[p] <= members for p in end)
        for i in members
    }


def _strangers(tables: Sequence[Table], homes: Mapping[str, set[int]]) -> set[int]:
    """The only table whose last prompts no other has, if the others share nearly all of theirs; else empty."""
    unshared = {i for i, t in enumerate(tables) if all(len(homes[p]) == 1 for p in _end(t))}
    other_prompts = [p for p in homes if not homes[p] & unshared]
    n_shared = sum(len(homes[p]) > 1 for p in other_prompts)
    return unshared if len(unshared) == 1 and len(tables) >= 5 and n_shared >= 0.9 * len(other_prompts) else set()


def _begin(tables: Sequence[Table], i: int, evaluation_tables: Collection[int], homes: Mapping[str, set[int]]) -> int:
    """Find the first row of the evaluation that a table ends with.

    It is where the end that the table shares with another evaluation begins, or, for the only one, the stretch of
    prompts that no training table has. If neither is there, all rows are of the evaluation.
    """
    prompts = tables[i].prompts
    common_ends = [_common_end(prompts, tables[j].prompts) for j in evaluation_tables if j != i]
    if common_ends and max(common_ends):
        return len(prompts) - max(common_ends)
    begin = len(prompts)
    while begin and homes[prompts[begin - 1]] <= set(evaluation_tables):
        begin -= 1
    return begin if begin < len(prompts) else 0


def _common_end(a: Sequence[str], b: Sequence[str]) -> int:
    """Length of the longest common end of two lists of prompts."""
    n = 0
    while n < min(len(a), len(b)) and a[-1 - n] == b[-1 - n]:
        n += 1
    return n
