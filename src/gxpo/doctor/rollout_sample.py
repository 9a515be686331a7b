"""Sampling of a run's rollouts by a budget of rows: steps spread over the run, whole groups."""

from __future__ import annotations

import re
import zlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

KEPT = 4_000  # rollouts in the sample
STEPS = 64  # least number of steps that are sampled, however few rows of each the budget then allows
_STEP = re.compile(r"(\d{1,18})(?!.*\d)")
_HELD_OUT = re.compile(
    r"(?:^|[^a-z])(?:val(?:id(?:ation)?)?|eval(?:uation)?s?|held[-_ ]?out)(?:$|[^a-z])", re.IGNORECASE
)


@dataclass(frozen=True)
class Dump:
    """A file of rollouts. `step`: the last number in its name, -1 if there is none."""

    path: Path
    name: str
    step: int
    size: int
    held_out: bool


def dump(path: Path, root: Path) -> Dump:
    """Describe a file of rollouts: its name relative to `root`, and held out if its name or its folder's says so."""
    try:
        name = path.relative_to(root).as_posix() if path != root else path.name
    except ValueError:
        name = path.name
    step = _STEP.search(path.stem)
    held_out = bool(_HELD_OUT.search(f"{path.parent.name}/{path.name}"))
    return Dump(path, name, int(step[1]) if step else -1, path.stat().st_size, held_out)


def spread(n: int, k: int) -> list[int]:
    """Choose k of n indices: the first, the last, and one in each of k - 2 equal stretches.

    The position within a stretch moves by the golden ratio from one to the next, so that nothing periodic (an
    evaluation every 50 steps) is hit always or never.
    """
    if n <= k:
        return list(range(n))
    if k < 2:
        return [0][:k]
    inner = [int((i + (0.5 + i * 0.6180339887) % 1.0) * (n - 2) / (k - 2)) + 1 for i in range(k - 2)]
    return sorted({0, *inner, n - 1})


def whole_groups(keys: Sequence[Hashable], budget: int, salt: str) -> list[int]:
    """Choose the rows of adjacent whole groups, at least one group, about `budget` rows in all.

    The first group depends on `salt`; with a fixed one the same prompts would be kept of every epoch.
    """
    groups: dict[Hashable, list[int]] = {}
    for i, key in enumerate(keys):
        groups.setdefault(key, []).append(i)
    if len(keys) <= budget or len(groups) < 2:
        return list(range(len(keys)))
    sizes = np.array([len(rows) for rows in groups.values()])
    # the latest first group that leaves as many groups behind it as the budget could ever hold, were they the smallest
    room = max(len(sizes) - int(np.searchsorted(np.cumsum(np.sort(sizes)), budget, side="right")), 0)
    begin = zlib.crc32(salt.encode()) % (room + 1)
    places: list[int] = []
    for rows in list(groups.values())[begin:]:
        if places and len(places) + len(rows) > budget:
            break
        places += rows
    return sorted(places)


def by_step(steps: Sequence[Hashable], keys: Sequence[Hashable], budget: int, salt: str) -> list[int]:
    """Choose rows of a table with several steps: `whole_groups` of steps spread over it."""
    members: dict[Hashable, list[int]] = {}
    for i, step in enumerate(steps):
        members.setdefault(step, []).append(i)
    if len(members) < 2 or len(keys) <= budget:
        return whole_groups(keys, budget, salt)
    # rather few rows of many steps than many rows of few: checks look for changes over the run
    typical = len(keys) / len(members)
    step_places = spread(len(members), max(min(STEPS, budget), int(budget / typical)))
    rows_per_step = max(budget // len(step_places), 1)
    places: list[int] = []
    for step in (list(members)[i] for i in step_places):
        rows = members[step]
        places += [rows[i] for i in whole_groups([keys[i] for i in rows], rows_per_step, f"{salt}{step}")]
    return sorted(places)


def share(files: Sequence[Dump], rows_in_file: float, budget: int) -> tuple[list[Dump], int]:
    """Choose the files to read and the number of rows to keep of each."""
    ordered = sorted(files, key=lambda d: (d.step, d.name))
    k = min(len(ordered), max(STEPS, int(budget / max(rows_in_file, 1.0))))
    dumps = [ordered[i] for i in spread(len(ordered), k)]
    return dumps, max(budget // max(len(dumps), 1), 1)
