"""`read`: a file or a directory that a training run left -> `RunLog`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from gxpo.doctor.readers import configs, keys, numbering, runs, validation
from gxpo.doctor.readers.files import candidates, dump_source, recognised
from gxpo.doctor.readers.found import Found
from gxpo.doctor.rollout_files import rollouts
from gxpo.doctor.runlog import RunLog
from gxpo.doctor.series import Series
from gxpo.errors import RecordError

LOOKED_FOR = "trainer_state.json, metrics as JSON lines, CSV or TensorBoard events, console texts, dumps of rollouts"


def read(path: str | Path) -> RunLog:
    """What is in a file, or in a directory and those below it.

    Raises `RecordError` where there is nothing at `path`, or several runs. A path in which nothing can be read gives a
    log with an empty `read` and a note.
    """
    root = Path(path)
    try:
        there = root.is_dir() or root.is_file()
    except (OSError, ValueError):
        there = False
    if not there:
        raise RecordError(f"{path}: no such file or directory")
    files, notes = candidates(root)
    base = root if root.is_dir() else root.parent
    found: dict[str, Found] = {}
    left: list[Path] = []
    for file in files:
        one = recognised(file)
        if one is None:
            left.append(file)
        else:
            found[file.relative_to(base).as_posix()] = one
    log = RunLog(notes=notes)
    others = {name: one for name, one in found.items() if not one.rows}
    if not root.is_dir():
        others |= _beside(root, base)
    _number(found, others)
    members = runs.one_run({name: one for name, one in found.items() if one.rows}, str(path))
    log.source = keys.source({keys.own(key) for one in members.values() for _, row in one.rows for key in row})
    _settings(log, members, others)
    add_series(log, members)
    _rollouts(log, left, base)
    used = {name: one for name, one in {**members, **others}.items() if name in log.read or one.notes}
    for name, one in used.items():
        if one.unreadable:
            log.notes.append(f"{name}: {one.unreadable:,} lines or rows could not be read")
        if one.torn:
            log.notes.append(f"{name}: the end is cut short and was left out")
        log.notes += [f"{name}: {note}" for note in one.notes]
    log.messages = list(dict.fromkeys(m for one in used.values() for m in one.messages))[:50]
    if not log.read:
        what = f"none of {len(files):,} files" if root.is_dir() else "nothing"
        log.notes.append(f"{path}: {what} could be read; looked for: {LOOKED_FOR}")
    return log


def _beside(file: Path, base: Path) -> dict[str, Found]:
    """Configurations in the directory of a file that was asked for."""
    out = {}
    for name in ("config.yaml", "config.yml", "config.json", "args.json", "args.yaml", ".hydra/config.yaml"):
        path = base / name
        if path != file and path.is_file():
            one = recognised(path)
            if one is not None and not one.rows and one.settings:
                out[name] = one
    return out


def _number(found: Mapping[str, Found], others: Mapping[str, Found]) -> None:
    """Steps of the rows that carry none."""
    every = {configs.value(one.settings, "logging_steps") for one in (*found.values(), *others.values())}
    said = [v for v in every if isinstance(v, (int, float)) and v >= 1]
    for one in found.values():
        if one.rows and not one.numbered:
            one.notes += numbering.renumber(one, said[0] if len(said) == 1 else None)


def _settings(log: RunLog, members: Mapping[str, Found], others: Mapping[str, Found]) -> None:
    """`config` from all files that set anything, the nearest to the root first, and from what consoles print."""
    whose = log.source
    ordered = sorted(others.items(), key=lambda item: (item[0].count("/"), item[0])) + list(members.items())
    for name, one in ordered:
        trainer = configs.trainer(one.settings) if one.settings else None
        if isinstance(phases := one.settings.get("phases"), list) and phases:  # of gxpo: see `_last_phase`
            one.settings |= phases[-1]
        if whose == "unknown" and trainer is not None:
            whose = trainer
        named = configs.named(one.settings, whose) if one.settings and trainer in (whose, None, "trl") else {}
        state = one.settings.get("trainer_state.max_steps")
        if isinstance(state, (int, float)) and state > 0:
            named.setdefault("max_steps", state)
        for key, value in named.items():
            if key in log.config and log.config[key] != value:
                log.notes.append(f"{name}: {key} is {value!r} there, but {log.config[key]!r} elsewhere, which counts")
            log.config.setdefault(key, value)
        if named or one.messages:
            log.read.append(name)
    log.source = whose
    hints = set().union(*(one.hints for one in members.values())) if members else set()
    if log.source == "trl" and "unsloth" in hints:
        log.source = "unsloth"
    log.read = sorted({*log.read, *members})


def add_series(log: RunLog, members: Mapping[str, Found]) -> None:
    """Series of the files of one run."""
    merged = _last_phase(log, runs.merged(members))
    if log.config.get("scale") == "batch" and "frac_reward_zero_std" in merged:
        log.notes.append("frac_reward_zero_std is of the whole batch with this scaling, not of groups: not used")
        steps, values = merged.pop("frac_reward_zero_std")
        log.raw["frac_reward_zero_std"] = Series(np.array(steps), np.array(values), "frac_reward_zero_std")
    named = keys.names(merged, log.source)
    for key, (steps, values) in merged.items():
        series = Series(np.array(steps, dtype=float), np.array(values, dtype=float), key)
        if key in named:
            log.series[named[key]] = series
        else:
            log.raw[key] = series
    evaluations, notes = validation.evaluations(merged, log.source)
    for name, (steps, values, key) in evaluations.items():
        if name in log.series:
            continue
        log.series[name] = Series(np.array(steps, dtype=float), np.array(values, dtype=float), key)
        log.raw.pop(key, None)
    log.notes += notes


def _last_phase(log: RunLog, merged: runs.Columns) -> runs.Columns:
    """Of a run of gxpo with phases the rows of the last one, with the evaluation before it: its settings are known, and
    what changes from one phase to the next is no sickness."""
    steps, values = merged.get("phase", ([], []))
    if not values or max(values) == 1:
        return merged
    begin = min(s for s, v in zip(steps, values, strict=True) if v == max(values))
    log.notes.append(f"phase {max(values):.0f}, from step {begin:.0f}, is looked at, not those before it")
    out = {}
    for key, (at, of) in merged.items():
        first = begin - 1 if key.startswith("eval_") else begin
        kept = [(s, v) for s, v in zip(at, of, strict=True) if s >= first]
        if kept:
            out[key] = ([s for s, _ in kept], [v for _, v in kept])
    return out


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
    if log.source == "unknown" and taken:
        log.source = dump_source(taken[0])
