"""Write a comparison to files: JSON of everything, CSV of runs, rows for a results table shared by studies."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gxpo.base.errors import RecordError
from gxpo.compare.conclude import area, has_collapsed
from gxpo.compare.curves import figure_or_nan
from gxpo.compare.results import Arm, ArmSummary, Comparison, Difference, Estimate, RunResult
from gxpo.compare.wording import settings
from gxpo.training.checkpoint import write_atomic

SCHEMA = "gxpo.compare/1"
RUN_COLUMNS = (
    "setting", "arm", "kind", "seed", "start", "end", "area", "tokens", "discarded_rollouts", "judge_tokens", "updates",
    "seconds", "collapsed", "trouble", "path",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """Result of one arm of a study, a line of the results table (docs/results.csv).

    seeds        runs in the estimates
    keys         what is set over the setting's keys besides the method, `KEY=VALUE KEY=VALUE`
    difference   less `against`, with its 95% interval, positive in the arm's favour; nan for the base
    verdict      better, worse or undecided; empty for the base
    commit, version   of gxpo
    """

    study: str
    setting: str
    task: str
    model: str
    method: str
    keys: str
    budget: float
    unit: str
    seeds: int
    measure: str
    start: float
    end: float
    difference: float
    low: float
    high: float
    against: str
    verdict: str
    commit: str
    version: str


COLUMNS = tuple(f.name for f in dataclasses.fields(Row))


def to_json(comparison: Comparison) -> dict[str, Any]:
    """The comparison in JSON's own types, without the verdicts of held-out tasks, which stay in the runs' directories.
    Numbers that are not finite are null."""
    c = comparison
    return plain(
        {
            "schema": SCHEMA,
            "setting": c.setting,
            "measure": c.measure,
            "better": c.better,
            "budget": dataclasses.asdict(c.budget),
            "keys": c.keys,
            "tuned": c.tuned,
            "differences": [_fields(d) for d in c.differences],
            "arms": [_arm(a) for a in c.arms],
            "commands": c.commands,
            "notes": c.notes,
            "versions": c.versions,
        }
    )


def write_json(comparison: Comparison, path: str | Path) -> Path:
    """Write `to_json` to a file; `CheckpointError` if that fails."""
    write_atomic(Path(path), json.dumps(to_json(comparison), indent=1, allow_nan=False) + "\n")
    return Path(path)


def write_csv(comparisons: Comparison | Sequence[Comparison], path: str | Path) -> Path:
    """Write a CSV line for each run under `RUN_COLUMNS`; numbers that are not finite are left empty."""
    comparison_list = [comparisons] if isinstance(comparisons, Comparison) else comparisons
    lines = [_run_line(c, a, r) for c in comparison_list for a in c.arms for r in a.runs]
    write_atomic(Path(path), "".join(_lines([RUN_COLUMNS, *lines])).encode("utf-8", "replace"))
    return Path(path)


def rows_of(comparison: Comparison, study: str) -> list[Row]:
    """Rows of the results table, one for each arm, base and controls included."""
    differences = {d.arm: d for d in comparison.differences}
    return [_row(comparison, study, a, differences.get(a.arm.label)) for a in comparison.arms]


def row(comparison: Comparison, study: str) -> list[str]:
    """CSV lines for the results table (docs/results.csv), one for each arm, without the heading."""
    return [line.rstrip("\n") for line in _lines(map(_cells, rows_of(comparison, study)))]


def heading() -> str:
    """First line of the results table."""
    return ",".join(COLUMNS)


def read_rows(path: str | Path) -> list[Row]:
    """Read a results table.

    Raises `RecordError` with the line if the heading differs, a cell is missing, or a number can't be parsed.
    """
    path = Path(path)
    try:
        lines = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8"), newline="")))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RecordError(f"{path}: can't be read as CSV ({error})") from error
    if not lines or tuple(lines[0]) != COLUMNS:
        raise RecordError(f"{path}, line 1: the columns are {heading()}")
    return [_parse_row(cells, f"{path}, row {i}") for i, cells in enumerate(lines[1:], 1) if cells]


def plain(value: Any) -> Any:
    """Convert a value to JSON's own types: string keys, lists, null for numbers that are not finite, text for all other
    objects.

    >>> plain({1: (float("nan"), 2.5), "path": Path("a/b")})
    {'1': [None, 2.5], 'path': 'a/b'}
    """
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v) for v in value]
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    # Scalars of numpy and torch have `item`.
    return plain(value.item()) if hasattr(value, "item") else str(value)


def _fields(record: Difference | Estimate) -> dict[str, Any]:
    values = {f.name: getattr(record, f.name) for f in dataclasses.fields(record)}
    return {k: _fields(v) if isinstance(v, Estimate) else v for k, v in values.items()}


def _arm(summary: ArmSummary) -> dict[str, Any]:
    values = {f.name: getattr(summary, f.name) for f in dataclasses.fields(summary) if f.name not in ("arm", "runs")}
    out = {k: _fields(v) if isinstance(v, Estimate) else v for k, v in values.items()}
    arm = summary.arm
    runs = [_run(r) for r in summary.runs]
    return {"label": arm.label, "kind": arm.kind, "keys": arm.keys, "seeds": summary.end.n, **out, "runs": runs}


def _run(run: RunResult) -> dict[str, Any]:
    fields = ("seed", "path", "start", "end", "best", "tokens", "updates", "seconds", "discarded_rollouts",
             "judge_tokens", "figures", "trouble")  # fmt: skip
    return {**{k: figure_or_nan(run, k) for k in fields}, "points": [dataclasses.asdict(p) for p in run.points]}


def _run_line(comparison: Comparison, summary: ArmSummary, run: RunResult) -> list[Any]:
    values = {
        "setting": comparison.setting,
        "kind": summary.arm.kind,
        "area": area(run, comparison.budget),
        "collapsed": int(has_collapsed(run, comparison.better)),
    }
    return [values[c] if c in values else figure_or_nan(run, c) for c in RUN_COLUMNS]


def _row(comparison: Comparison, study: str, summary: ArmSummary, difference: Difference | None) -> Row:
    c, arm, end = comparison, summary.arm, difference.end if difference else None
    # Tuned values lie over the arm's own.
    changed_keys = {k: v for k, v in {**arm.keys, **c.tuned.get(arm.label, {})}.items() if k != "method"}
    return Row(
        study=study,
        setting=c.setting,
        task=str(c.keys.get("task", "")),
        model=str(c.keys.get("model", "")),
        method=_method(arm, c.keys),
        keys=settings(changed_keys),
        budget=c.budget.amount,
        unit=c.budget.unit,
        seeds=summary.end.n,
        measure=c.measure,
        start=summary.start.mean,
        end=summary.end.mean,
        difference=end.mean if end else math.nan,
        low=end.low if end else math.nan,
        high=end.high if end else math.nan,
        against=difference.against if difference else "",
        verdict=difference.verdict if difference else "",
        commit=c.versions.get("commit", ""),
        version=c.versions.get("gxpo", ""),
    )


def _method(arm: Arm, keys: Mapping[str, Any]) -> str:
    return str(arm.keys.get("method", keys.get("method", arm.label)))


def _cells(row: Row) -> list[Any]:
    return [getattr(row, c) for c in COLUMNS]


def _parse_row(cells: Sequence[str], source: str) -> Row:
    if len(cells) != len(COLUMNS):
        raise RecordError(f"{source}: {len(cells)} cells; a row has {len(COLUMNS)}: {heading()}")
    values: dict[str, Any] = {}
    for field, cell in zip(dataclasses.fields(Row), cells, strict=True):
        try:
            values[field.name] = _parse_cell(str(field.type), cell)
        except ValueError:
            raise RecordError(f"{source}: {field.name} is {cell!r}; write a number") from None
    return Row(**values)


def _parse_cell(kind: str, cell: str) -> Any:
    if kind == "float":
        return float(cell) if cell else math.nan
    return int(cell) if kind == "int" else cell


def _lines(rows: Iterable[Sequence[Any]]) -> list[str]:
    """CSV lines, with numbers in 6 significant digits and nothing for those that are not finite."""
    out = []
    for cells in rows:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerow([_cell(cell) for cell in cells])
        out.append(text.getvalue())
    return out


def _cell(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    if not math.isfinite(value):
        return ""
    return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else f"{value:.6g}"
