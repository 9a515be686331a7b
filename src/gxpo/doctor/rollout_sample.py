"""Choice of the rollouts of a run that are kept: steps spread over the run, whole groups, by a budget of rows."""

from __future__ import annotations

import re
import zlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

KEPT = 4_000  # rollouts in the sample
STEPS = 64  # steps that are looked at where the budget would give fewer
_STEP = re.compile(r"(\d{1,18})(?!.*\d)")
_HELD_OUT = re.compile(
    r"(?:^|[^a-z])(?:val(?:id(?:ation)?)?|eval(?:uation)?s?|held[-_ ]?out)(?:$|[^a-z])", re.IGNORECASE
)


@dataclass(frozen=True)
class Dump:
    """A file of rollouts. `step`: of its name, -1 where that has none."""

    path: Path
    name: str
    step: int
    size: int
    held_out: bool


def dump(path: Path, root: Path) -> Dump:
    """The file under its name relative to `root`; held out where its own name or its folder's says so."""
    try:
        name = path.relative_to(root).as_posix() if path != root else path.name
    except ValueError:
        name = path.name
    found = _STEP.search(path.stem)
    held_out = bool(_HELD_OUT.search(f"{path.parent.name}/{path.name}"))
    return Dump(path, name, int(found[1]) if found else -1, path.stat().st_size, held_out)


def spread(n: int, k: int) -> list[int]:
    """k of n places, one in each of k equal stretches, the first and the last among them.

    Where in its stretch a place lies moves from stretch to stretch, so that nothing periodic (an evaluation every 50
    steps) is hit always or never.
    """
    if n <= k:
        return list(range(n))
    if k < 2:
        return [0][:k]
    inner = [int((i + (0.5 + i * 0.6180339887) % 1.0) * (n - 2) / (k - 2)) + 1 for i in range(k - 2)]
    return sorted({0, *inner, n - 1})


def whole_groups(keys: Sequence[Hashable], budget: int, salt: str) -> list[int]:
    """Rows of adjacent whole groups (in order of their first rows), at least one group, about `budget` rows in all.

    Where the stretch begins depends on `salt`, or the same prompts would be kept of every epoch.
    """
    groups: dict[Hashable, list[int]] = {}
    for i, key in enumerate(keys):
        groups.setdefault(key, []).append(i)
    if len(keys) <= budget or len(groups) < 2:
        return list(range(len(keys)))
    sizes = np.array([len(rows) for rows in groups.values()])
    room = max(len(sizes) - int(np.searchsorted(np.cumsum(np.sort(sizes)), budget, side="right")), 0)
    begin = zlib.crc32(salt.encode()) % (room + 1)
    kept: list[int] = []
    for rows in list(groups.values())[begin:]:
        if kept and len(kept) + len(rows) > budget:
            break
        kept += rows
    return sorted(kept)


def by_step(steps: Sequence[Hashable], keys: Sequence[Hashable], budget: int, salt: str) -> list[int]:
    """Rows of a table with several steps: `whole_groups` of steps spread over it."""
    members: dict[Hashable, list[int]] = {}
    for i, step in enumerate(steps):
        members.setdefault(step, []).append(i)
    if len(members) < 2 or len(keys) <= budget:
        return whole_groups(keys, budget, salt)
    typical = len(keys) / len(members)
    chosen = spread(len(members), max(min(STEPS, budget), int(budget / typical)))
    each = max(budget // len(chosen), 1)
    kept: list[int] = []
    for step in (list(members)[i] for i in chosen):
        rows = members[step]
        kept += [rows[i] for i in whole_groups([keys[i] for i in rows], each, f"{salt}{step}")]
    return sorted(kept)


def share(files: Sequence[Dump], rows_in_file: float, budget: int) -> tuple[list[Dump], int]:
    """The files to read, and the rows to keep of each."""
    ordered = sorted(files, key=lambda d: (d.step, d.name))
    k = min(len(ordered), max(STEPS, int(budget / max(rows_in_file, 1.0))))
    chosen = [ordered[i] for i in spread(len(ordered), k)]
    return chosen, max(budget // max(len(chosen), 1), 1)
