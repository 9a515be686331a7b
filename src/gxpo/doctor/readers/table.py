"""Tables: CSV and TSV (exports of wandb, too), and tables in Markdown or copied from a notebook."""

from __future__ import annotations

import csv
import io
import math
import re

from gxpo.base.errors import RecordError
from gxpo.doctor.readers import keys
from gxpo.doctor.readers.found import STEP_KEYS, Found, number

_RULE = re.compile(r"[\s|:-]+$")
_BOUNDS = ("__MIN", "__MAX")  # wandb exports three columns for each figure


def read(text: str, name: str) -> Found | None:
    """The table whose header names figures of training; None where there is none."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    for at, line in enumerate(lines[:2000]):
        for mark in ("\t", ",", "|", ";"):
            if mark in line and len(line) < 50_000 and "{" not in line and "step:" not in line:
                header = _cells(line, mark)
                if len(header) > 1 and len(set(header)) == len(header) and _is_header(header):
                    found = _rows(header, lines[at + 1 :], mark, name)
                    if found is not None:
                        return found
    return None


def _is_header(header: list[str]) -> bool:
    return all(h and number(h) is None and "{" not in h for h in header[1:]) and any(
        keys.known(_bare(h)) for h in header
    )


def _bare(column: str) -> str:
    return keys.own(column)


def _cells(line: str, mark: str) -> list[str]:
    if mark == "|":
        return [c.strip() for c in line.strip().removeprefix("|").removesuffix("|").split("|")]
    try:
        return [c.strip() for c in next(csv.reader(io.StringIO(line), delimiter=mark), [])]
    except csv.Error:
        return []


def _rows(header: list[str], lines: list[str], mark: str, name: str) -> Found | None:
    steps = [i for i, h in enumerate(header) if keys.own(h) in STEP_KEYS]
    counts = sorted(steps, key=lambda i: STEP_KEYS.index(keys.own(header[i])))
    columns = {
        i: keys.own(h) for i, h in enumerate(header) if i not in steps and not h.endswith(_BOUNDS) and h and h != "_"
    }
    _one_run(header, columns, name)
    found = Found("table", numbered=bool(counts))
    for line in lines:
        if not line.strip() or _RULE.match(line):
            if found.rows and mark == "|" and not line.strip():
                break
            continue
        cells = _cells(line, mark)
        if len(cells) != len(header):
            if mark == "|":
                break
            found.unreadable += 1
            continue
        step = next((s for i in counts if (s := number(cells[i])) is not None and math.isfinite(s)), None)
        if step is None and counts:
            found.unreadable += 1
            continue
        figures = {key: v for i, key in columns.items() if cells[i] and (v := number(cells[i])) is not None}
        if figures:
            found.rows.append((float(len(found.rows) + 1) if step is None else step, figures))
    return found if found.rows else None


def _one_run(header: list[str], columns: dict[int, str], name: str) -> None:
    """A comparison of several runs, as wandb exports it, is no log of one."""
    if len(set(columns.values())) < len(columns):
        runs = sorted({h.rsplit(" - ", 1)[0] for i, h in enumerate(header) if i in columns and " - " in h})
        if len(runs) > 1:
            shown = ", ".join(runs[:8]) + ", ..." * (len(runs) > 8)
            raise RecordError(f"{name} holds {len(runs)} runs: {shown}: export one of them")
