"""`read`: a file or a directory that a training run left -> `RunLog`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from gxpo.doctor.readers import keys, runs, validation
from gxpo.doctor.readers.files import candidates, recognised
from gxpo.doctor.readers.found import Found
from gxpo.doctor.rollout_files import rollouts
from gxpo.doctor.runlog import RunLog, Series
from gxpo.errors import RecordError

LOOKED_FOR = "trainer_state.json, metrics as JSON lines, CSV or TensorBoard events, console texts, dumps of rollouts"


def read(path: str | Path) -> RunLog:
    """What is in a file, or in a directory and those below it.

    Raises `RecordError` where there is nothing at `path`, or several runs. A path in which nothing can be read gives a
    log with an empty `read` and a note.
    """
    root = Path(path)
    if not root.exists():
        raise RecordError(f"{path}: no such file or directory")
    log = RunLog()
    files, log.notes = candidates(root)
    base = root if root.is_dir() else root.parent
    found: dict[str, Found] = {}
    left: list[Path] = []
    for file in files:
        one = recognised(file)
        name = file.relative_to(base).as_posix()
        if one is None:
            left.append(file)
        else:
            found[name] = one
    figures = {name: one for name, one in found.items() if one.rows}
    members = runs.one_run(figures, str(path))
    _fill(log, members)
    log.read = sorted(members)
    _rollouts(log, left, base)
    for name in sorted(members):
        one = found[name]
        if one.unreadable:
            log.notes.append(f"{name}: {one.unreadable:,} lines or rows could not be read")
        if one.torn:
            log.notes.append(f"{name}: the end is cut short and was left out")
        log.notes += [f"{name}: {note}" for note in one.notes]
    if not log.read:
        many = f"{len(files):,} files, none of which" if root.is_dir() else "a file that"
        log.notes.append(f"{path}: {many} could be read; looked for: {LOOKED_FOR}")
    return log


def _fill(log: RunLog, members: Mapping[str, Found]) -> None:
    """Series of the files of one run."""
    log.source = keys.source({keys.own(key) for one in members.values() for _, row in one.rows for key in row})
    merged = runs.merged(members)
    named = keys.names(merged, log.source)
    for key, (steps, values) in merged.items():
        series = Series(np.array(steps, dtype=float), np.array(values, dtype=float), key)
        if key in named:
            log.series[named[key]] = series
        else:
            log.raw[key] = series
    evaluations, notes = validation.evaluations(merged) if log.source == "verl" else ({}, [])
    for name, (steps, values, key) in evaluations.items():
        log.series[name] = Series(np.array(steps, dtype=float), np.array(values, dtype=float), key)
        log.raw.pop(key, None)
    log.notes += notes


def _rollouts(log: RunLog, left: list[Path], base: Path) -> None:
    size, weights = log.config.get("group_size"), log.config.get("reward_weights")
    log.rollouts, taken, notes = rollouts(
        left,
        base,
        group_size=size if isinstance(size, int) else None,
        reward_weights=weights if isinstance(weights, list) else None,
        components=log.components() or None,
        evaluated={int(s) for n in log.series if n.startswith("eval/") for s in log.steps(n)} or None,
    )
    log.read = sorted({*log.read, *(f.relative_to(base).as_posix() for f in taken)})
    log.notes += notes
