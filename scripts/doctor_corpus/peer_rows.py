"""Read the rows of a finished run under its trainer's own keys, for tools that can't open what the trainer left."""

from __future__ import annotations

import json
import math
import re
from ast import literal_eval
from pathlib import Path
from typing import Any


def trl_rows(text: str) -> list[dict[str, Any]]:
    """Read rows of a console text: dictionaries, a step each where the text names none."""
    rows: list[dict[str, Any]] = []
    for literal in re.findall(r"\{'[^{}]*\}", text):
        try:
            row = literal_eval(re.sub(r"(?<=: )(nan|inf|-inf)(?=[,}])", r"'\1'", literal))
        except (ValueError, SyntaxError):
            continue
        if any(k in row for k in ("reward", "loss", "eval_reward")):
            numbers = {k: number(v) for k, v in row.items()}
            step = sum("reward" in r for r in rows) + ("reward" in row)
            rows.append({"step": step, **{k: v for k, v in numbers.items() if v is not None}})
    return rows


def verl_rows(text: str) -> list[dict[str, Any]]:
    rows = []
    for step, rest in re.findall(r"step:(\d+) - (.*)", text):
        row: dict[str, Any] = {"step": int(step)}
        for key, value in re.findall(r"([\w/@.\-]+):(\S+)", rest):
            if number(value) is not None:
                row[key] = number(value)
        rows.append(row)
    return rows


def number(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def lines(file: Path) -> list[dict[str, Any]]:
    rows = []
    for text in file.read_text(errors="replace").splitlines():
        try:
            rows.append(json.loads(text))
        except ValueError:
            continue
    return [r for r in rows if isinstance(r, dict)]


def rows_of(run: dict[str, Any]) -> tuple[list[dict[str, Any]], Path | None]:
    """Return the run's rows under the trainer's keys, and the file that rldoctor opens by itself (None: there is
    none)."""
    d: Path = run["directory"]
    states = sorted(d.rglob("trainer_state.json"), key=lambda p: (len(p.parts) > len(d.parts) + 1, -p.stat().st_mtime))
    if states:
        return json.loads(states[0].read_text())["log_history"], states[0]
    if run["trainer"] == "gxpo":
        files = [f for f in (d / "metrics.jsonl", d / "evaluations.jsonl") if f.exists()]
        return [r for f in files for r in lines(f)], None
    for file in sorted(d.rglob("*.jsonl")):
        rows = lines(file)
        if rows and "step" in rows[0] and isinstance(rows[0].get("data"), dict):
            return [{"step": r["step"], **r["data"]} for r in rows], file
    for file in sorted([*d.rglob("*.txt"), *d.rglob("*.log"), *d.rglob("*.md")]):
        text = file.read_text(errors="replace")
        rows = trl_rows(text) if run["trainer"] == "trl" else verl_rows(text)
        if rows:
            return rows, None
    return [], None


def clean(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keep numbers only; what is not finite becomes text, which JSON can carry."""
    out = []
    for r in rows:
        numbers = {k: number(v) for k, v in r.items()}
        out.append({k: v if math.isfinite(v) else str(v) for k, v in numbers.items() if v is not None})
    return out
