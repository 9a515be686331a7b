"""Readers of trackers' stores: MLflow's folders and its SQLite file, trackio's SQLite files; they write nothing."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gxpo.base.errors import RecordError
from gxpo.doctor.readers.table import Table, figures, flat, number, step_of

MAGIC = b"SQLite format 3\0"
METRICS = "metrics"  # MLflow's folder of a run's figures, a file for each key: "timestamp value step" a line
_AT = re.compile(r"\b(mean|std|best|worst|pass|maj)_at_(\d+)")  # MLflow allows no @ in a key: trainers write _at_


def is_mlflow_run(folder: Path) -> bool:
    """True for the folder of a run in MLflow's file store."""
    return (folder / "meta.yaml").is_file() and (folder / METRICS).is_dir()


def read_mlflow_run(metrics: Path) -> Table:
    """Read a run of MLflow's file store, by its folder of metrics; parameters are settings."""
    table = Table("rows")
    points: list[tuple[str, float, float]] = []
    for path in sorted(p for p in metrics.rglob("*") if p.is_file()):
        key = path.relative_to(metrics).as_posix()
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            parts = line.split()
            value, step = (number(parts[1]), number(parts[2])) if len(parts) >= 3 else (None, None)
            if value is None or step is None:
                table.n_unreadable += 1
            else:
                points.append((key, step, value))
    _add_points(table, points)
    parameters = metrics.parent / "params"
    if parameters.is_dir():
        names = [p for p in parameters.rglob("*") if p.is_file()]
        _add_parameters(table, ((p.relative_to(parameters).as_posix(), p.read_text(errors="replace")) for p in names))
    if not table.rows:
        table.notes.append("MLflow's folder holds no metrics")
    return table


@cache
def _with_at(key: str) -> str:
    """Key as the trainer has it: "mean_at_4" of MLflow is "mean@4"."""
    return _AT.sub(r"\1@\2", key)


def _add_points(table: Table, points: Iterable[tuple[str, float, float]]) -> None:
    """Add figures given as (key, step, value)."""
    rows: dict[float, dict[str, float]] = {}
    for key, step, value in points:
        rows.setdefault(step, {})[_with_at(key)] = value
    table.rows = sorted(rows.items(), key=lambda row: row[0])


def _add_parameters(table: Table, parameters: Iterable[tuple[str, Any]]) -> None:
    """Add MLflow's parameters as settings: texts, nested keys joined by dots or strokes."""
    texts = {"True": True, "False": False, "None": None}
    table.settings = {key.replace("/", "."): texts.get(str(v).strip(), str(v).strip()) for key, v in parameters}


def read_sqlite(path: Path, run: str | None = None) -> Table | None:
    """Read MLflow's or trackio's SQLite file; None for any other. Raises `RecordError` where it holds several runs.

    run  name or id of the one to read
    """
    # immutable: the file's folder stays untouched; a journal that is not merged yet needs the ordinary way
    journal = path.with_name(f"{path.name}-wal")
    flags = "mode=ro" if journal.is_file() and journal.stat().st_size else "immutable=1"
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path.resolve()))}?{flags}", uri=True)) as store:
            names = {name for _, name, *_ in store.execute("PRAGMA table_info(metrics)")}
            if {"key", "value", "run_uuid", "step"} <= names:
                return _read_mlflow_store(store, path.name, run)
            if {"run_name", "step", "metrics"} <= names:
                return _read_trackio(store, path.name, run)
            return None
    except (sqlite3.Error, ValueError) as error:
        return Table("config", notes=[f"can't be read: {error}"])


def _choose_run(runs: dict[str, str], file: str, run: str | None) -> str | None:
    """Id of the run to read, of id -> name; None where there is none."""
    if run is not None:
        match = next((i for i, name in runs.items() if run in (i, name)), None)
        if match is None:
            raise RecordError(f"{file} holds no run {run!r}: it holds {', '.join(list(runs.values())[:8])}")
        return match
    if len(runs) > 1:
        names_text = ", ".join(list(runs.values())[:8]) + ", ..." * (len(runs) > 8)
        raise RecordError(f"{file} holds {len(runs)} runs: {names_text}: choose one, --run {list(runs.values())[-1]}")
    return next(iter(runs), None)


def _read_mlflow_store(store: sqlite3.Connection, file: str, run: str | None) -> Table:
    """Read a run of MLflow's SQLite store."""
    table = Table("rows")
    name_rows = store.execute("SELECT run_uuid, name FROM runs WHERE lifecycle_stage = 'active' ORDER BY start_time")
    name_of = {i: name or i for i, name in name_rows}
    keys_of: dict[str, set[str]] = {}
    for run_id, key in store.execute("SELECT DISTINCT run_uuid, key FROM metrics"):
        keys_of.setdefault(str(run_id), set()).add(key)
    name_by_run = {i: name for i, name in name_of.items() if i in keys_of}
    # runs without a key in common are processes of one training, as Trinity-RFT's explorer and trainer
    keys = [key for i in name_by_run for key in keys_of[i]]
    is_one = run is None and len(keys) == len(set(keys))
    run_ids = list(name_by_run) if is_one else [_choose_run(name_by_run, file, run)]
    if not name_by_run:
        table.notes.append("MLflow's store holds no metrics")
        return table
    marks = ", ".join("?" * len(run_ids))
    rows = store.execute(f"SELECT key, step, value, is_nan FROM metrics WHERE run_uuid IN ({marks})", run_ids)
    _add_points(table, ((k, float(step), float("nan") if is_nan else float(v)) for k, step, v, is_nan in rows))
    _add_parameters(table, store.execute(f"SELECT key, value FROM params WHERE run_uuid IN ({marks})", run_ids))
    return table


def _read_trackio(store: sqlite3.Connection, file: str, run: str | None) -> Table:
    """Read a run of trackio's SQLite file: a row of JSON for each call of `log`."""
    table = Table("rows")
    names = [name for (name,) in store.execute("SELECT run_name FROM metrics GROUP BY run_name ORDER BY MIN(rowid)")]
    run_id = _choose_run({name: name for name in names}, file, run)
    if run_id is None:
        table.notes.append("trackio's file holds no metrics")
        return table
    for step, text in store.execute("SELECT step, metrics FROM metrics WHERE run_name = ? ORDER BY rowid", (run_id,)):
        try:
            row = json.loads(text)
        except (TypeError, ValueError):
            table.n_unreadable += 1
            continue
        # a trainer that logs its own step counts by it: trackio's counts calls
        own_step, key = step_of(row)
        if values := figures(row, leave=key):
            table.rows.append((float(step) if own_step is None else own_step, values))
    if any(name == "config" for _, name, *_ in store.execute("PRAGMA table_info(configs)")):
        for (text,) in store.execute("SELECT config FROM configs WHERE run_name = ?", (run_id,)):
            table.settings |= flat(json.loads(text))
    return table
