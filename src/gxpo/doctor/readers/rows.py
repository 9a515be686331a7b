"""Readers of data in rows: JSON documents and lines (`trainer_state.json`, metrics of any trainer), delimited tables.

Delimited are CSV and TSV (exports of wandb, too) and tables in Markdown or copied from a notebook.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gxpo.base.errors import RecordError
from gxpo.doctor.readers import keys
from gxpo.doctor.readers.table import STEP_KEYS, Row, Table, figures, flat, number, of_group, step_of

# Texts of a rollout: a file whose rows have them is a dump, which `gxpo.doctor.rollout_files` reads.
ROLLOUT_KEYS = {
    "prompt",
    "completion",
    "completions",
    "input",
    "output",
    "response",
    "messages",
    "nodes",
    "trajectories",
    "gts",
    "turns",
    "responses",
    "content",  # NeMo-RL's train_data_step1.jsonl, which is large and has no figures of steps
    "token_ids",
}
_RULE = re.compile(r"[\s|:+\u2500-\u257f=-]+$")
_BARS = str.maketrans("\u2502\u2503\u2551\uff5c", "||||")  # of boxes
_REMARK = re.compile(r"\s*[(\uff08\[][^()\uff08\uff09\[\]]*[)\uff09\]]")
_EDGE = re.compile(r"^[^\w.+-]+|[^\w.%]+$")  # emphasis, signs that stand for "about", pictures
_SPAN = re.compile(r"(.*?\d[\d.]*%?\+?)\s*(?:-|\u2013|\u2014|\u2192|->|=>|to|~)\s*([+-]?\d.*)$")
_UNITS = re.compile(r"(?<=\d)\s*(?:s|ms|sec|nats?|tok|tokens?|chars?|x)$")
_THOUSAND = {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9}
_STAGE = re.compile(r"checkpoint|ckpt|stage|phase|steps?[ _]range", re.I)  # heads of columns with names of steps
_STEP_CELL = re.compile(r"(?:(?:global[ _]?)?steps?|iter(?:ation)?|ckpt|checkpoint|s|@)?\s*[-_ ]?#?(\d+)$", re.I)
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
MOST_ABORTED = 12  # rows of starts that were given up
_BOUNDS = ("__MIN", "__MAX")  # wandb exports three columns for each figure


def from_text(text: str) -> Table | None:
    """Read a JSON document; of one that is cut short the complete rows. None if it has no figures and no settings."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        if '"log_history"' not in text:
            return None
        at = text.index('"log_history"')
        table = _state({"log_history": list(_objects(text, at))})
        table.is_torn = True
        return table
    return from_document(document)


def from_document(document: Any) -> Table | None:
    """Make a table of parsed JSON: a trainer's state, a list of rows, or settings; None for anything else."""
    if isinstance(document, Mapping):
        if isinstance(document.get("log_history"), list):
            return _state(document)
        if isinstance(document.get("history"), list):
            return from_document(document["history"])
        lists = [value for value in document.values() if isinstance(value, list)]
        if len(lists) == 1 and len(lists[0]) >= 3 and all(map(_is_row, lists[0][:3])):
            return _rows(lists[0])
        if document and all(map(_is_curve, document.values())):
            return _curves(document)
        if (rows := _of_columns(document)) is not None:
            return _rows(rows)
        settings = flat(document)
        return Table("config", settings=settings) if settings else None
    if isinstance(document, list) and document and all(isinstance(row, Mapping) for row in document[:10]):
        if is_rollout(document[0]):
            return None
        return _rows(document)
    return None


def _of_columns(document: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Rows of a mapping of lists of figures of one length, as notebooks save them; None for anything else."""
    lists = {key: value for key, value in document.items() if isinstance(value, list)}
    sizes = {len(value) for value in lists.values()}
    is_figures = all(number(v) is not None for value in lists.values() for v in value)
    if len(lists) < 2 or len(sizes) != 1 or min(sizes) < 3 or not is_figures or not keys.is_training(list(lists)):
        return None
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


def _is_row(value: Any) -> bool:
    """True for a mapping with a step and a metric."""
    return isinstance(value, Mapping) and step_of(value)[0] is not None and any(map(keys.is_metric, map(str, value)))


def _is_curve(value: Any) -> bool:
    """True for figures by step, as NeMo-RL's metrics.json has them: {"1": 0.5, "2": 0.25}."""
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(str(k).isdigit() and number(v) is not None for k, v in value.items())
    )


def _curves(document: Mapping[str, Mapping[str, Any]]) -> Table:
    """Make a table of figures by key, then by step."""
    rows: dict[float, dict[str, float]] = {}
    for key, curve in document.items():
        for step, value in curve.items():
            rows.setdefault(float(step), {})[key] = number(value) or 0.0
    return Table("rows", sorted(rows.items()))


def is_rollout(row: Any) -> bool:
    """True if a row is a rollout, not figures of a step."""
    if not isinstance(row, Mapping):
        return False
    if str(row.get("schema", row.get("format", ""))).startswith("gxpo.sampling.rollouts"):
        return True
    return any(isinstance(row.get(key), (str, list, dict)) for key in ROLLOUT_KEYS & set(map(str, row)))


_TEXTS = re.compile(
    r"\{\"(?:schema|prompt|completion|input|output|response|messages|request_id|(?:\w*_)?step)\": ?[\"\[{]"
)


def is_dump(first: str) -> bool:
    """True if the first line of a text is a rollout; a long line may be cut short."""
    try:
        return is_rollout(json.loads(first))
    except (ValueError, RecursionError):
        return _TEXTS.match(first) is not None


def from_lines(lines: Iterable[str]) -> Table | None:
    """Read JSON Lines; None if the first objects are rollouts or messages of a chat.

    The last line of a run that is still going may be cut: the table is torn, and the line not counted as unreadable.
    """
    rows: list[Mapping[str, Any]] = []
    unreadable, torn, n_lines = 0, False, 0
    for line in lines:
        line = line.strip()
        if not line or line in "[],":
            continue
        n_lines += 1
        torn = False
        try:
            row = json.loads(line.rstrip(","))
        except (ValueError, RecursionError):
            # a text that begins like JSON Lines and is not: given up once half of its lines are unreadable
            unreadable, torn = unreadable + 1, True
            if unreadable >= 20 and unreadable > n_lines / 2:
                return None
            continue
        if not isinstance(row, Mapping):
            unreadable += 1
            continue
        if len(rows) < 3 and is_rollout(row):
            return None
        rows.append(row)
    if not rows:
        return None
    # a file of one line may be a whole document: settings, or a state
    nested = any(isinstance(v, Mapping) and k not in ("data", "metrics") for k, v in rows[0].items())
    if len(rows) == 1 and (nested or "log_history" in rows[0] or not any(key in rows[0] for key in STEP_KEYS)):
        return from_document(rows[0])
    table = _rows(rows)
    table.n_unreadable += unreadable - torn
    table.is_torn = torn
    return table if table.rows else None


def _rows(rows: list[Any]) -> Table:
    """Make a table of rows; those without a step are counted, or are of the step before if others have one."""
    table = Table("rows")
    # verl's FileLogger writes {"step": n, "data": {...}} (verl/utils/tracking.py, 0.9.1)
    if any(isinstance(row, Mapping) and isinstance(row.get("data"), Mapping) for row in rows[:3]):
        table.hints.add("verl")
    padded = _padded(rows)
    for row in rows:
        if not isinstance(row, Mapping):
            table.n_unreadable += 1
            continue
        step, values = _row(row)
        if step is None:
            table.is_numbered = False
        values = {k: v for k, v in values.items() if not (k in padded and math.isnan(v))} if padded else values
        if values:
            table.rows.append((math.nan if step is None else step, values))
    if not table.is_numbered:
        count = iter(range(1, len(table.rows) + 1))
        table.is_numbered = any(not math.isnan(step) for step, _ in table.rows)
        last = 0.0  # a row without a number among numbered ones belongs to the step before it
        renumbered: list[Row] = []
        for step, values in table.rows:
            last = step if not math.isnan(step) else last if table.is_numbered else float(next(count))
            renumbered.append((last, values))
        table.rows = renumbered
    steps = [step for step, _ in table.rows]
    # starts that were given up after a few rows, in a file that every start appends to
    begins = [i for i in range(1, min(len(steps), MOST_ABORTED)) if steps[i] == steps[0] < steps[i - 1]]
    if begins and begins[-1] < len(steps) / 10:
        table.rows = table.rows[begins[-1] :]
        table.notes.append(f"{begins[-1]} rows of starts that were given up were left out")
    return table


def _row(row: Mapping[str, Any]) -> tuple[float | None, dict[str, float]]:
    """Split a row into step and figures, which may stand in an object of their own."""
    inner = row.get("data", row.get("metrics"))
    step, step_key = step_of(row)
    if isinstance(inner, Mapping):
        return step, figures(inner)
    return step, (of_group(row) if step is not None else {}) | figures(row, leave=step_key)


def _padded(rows: list[Any]) -> set[str]:
    """Keys whose null stands for "not measured in this row": a table whose columns have several cadences.

    A figure that becomes NaN stays so; one that comes and goes, mostly null, was measured now and then.
    """
    changes: dict[str, int] = {}
    nulls: dict[str, int] = {}
    for row in rows:
        if isinstance(row, Mapping):
            for key, value in row.items():
                if value is None or (type(value) is float and math.isnan(value)):
                    nulls[key] = nulls.get(key, 0) + 1
                    changes[key] = changes.get(key, 0) | 1
                elif key in changes and changes[key] % 2:
                    changes[key] += 1
    return {k for k, n in nulls.items() if n >= len(rows) / 2 and changes[k] >= 4}


def _state(state: Mapping[str, Any]) -> Table:
    """Read transformers' `trainer_state.json`: rows of training and evaluation, without the summary at the end."""
    table = Table("state")
    for row in state["log_history"]:
        # ROLL's state has the step under a key of its own
        step, key = step_of(row) if isinstance(row, Mapping) else (None, None)
        if step is None:
            table.n_unreadable += 1
            continue
        if "train_runtime" in row:
            continue  # means over the whole run
        values = figures(row, leave=key)
        if values:
            table.rows.append((step, values))
    table.settings = {
        f"trainer_state.{k}": state[k]
        for k in ("max_steps", "logging_steps", "eval_steps", "global_step", "num_train_epochs")
        if isinstance(state.get(k), (int, float))
    }
    return table


def _objects(text: str, at: int) -> Iterator[Any]:
    """Parse the complete objects of a list in JSON that is cut short, from index `at` of the text on."""
    decoder = json.JSONDecoder()
    at = text.find("[", at) + 1
    while at:
        start = text.find("{", at)
        if start < 0:
            return
        try:
            value, at = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            return
        yield value


def from_delimited(text: str, name: str, run: str | None = None) -> Table | None:
    """Read a delimited table; None where no line is a header.

    A header names figures of training, or it is the first line and names steps: then no trainer is known to write it.

    run  of a table with the columns of several runs, the one to read
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n").translate(_BARS).split("\n")
    unknown: Table | None = None
    for at, line in enumerate(lines[:2000]):
        for mark in ("\t", ",", "|", ";", "  "):
            if mark.strip(" ") in line and len(line) < 50_000 and "{" not in line and "step:" not in line:
                header = _cells(line, mark)
                if len(header) < 2 or len(set(header)) < len(header):
                    continue
                if mark == "|" and (turned := _turned(header, lines[at + 1 :])):
                    return turned
                if not _are_names(header):
                    continue
                # blanks alone are between words, too
                is_known = keys.is_training(header) and (mark != "  " or any(map(keys.is_step, header)))
                if is_known or (at == 0 and mark != "  " and any(map(keys.is_step, header))):
                    table = _delimited_rows(header, lines[at + 1 :], mark, name, run)
                    if table is not None and is_known:
                        if mark == "|":
                            _add_further(table, lines[at + 1 + len(table.rows) :], name, run)
                        return table
                    if table is not None:
                        unknown = unknown or table
                        unknown.is_known = False
    return unknown


def _add_further(table: Table, lines: list[str], name: str, run: str | None) -> None:
    """Add the columns of later tables of a text that have the same steps: reports split a wide one."""
    row_of_step = dict(table.rows)
    names = {key for row in row_of_step.values() for key in row}
    for at, line in enumerate(lines[:2000]):
        header = _cells(line, "|") if line.count("|") > 1 else []
        if len(header) < 2 or len(set(header)) < len(header) or not any(map(keys.is_step, header)):
            continue
        other = _delimited_rows(header, lines[at + 1 :], "|", name, run) if _are_names(header) else None
        if other is None or [step for step, _ in other.rows] != list(row_of_step):
            continue
        for step, row in other.rows:
            row_of_step[step].update({key: v for key, v in row.items() if key not in names})


def _turned(header: list[str], lines: list[str]) -> Table | None:
    """Read a table whose columns are steps and whose rows are figures: "| metric | step 1 | step 50 |"."""
    steps = [_step_number(head) if not head.isdigit() or keys.is_step(header[0]) else None for head in header[1:]]
    if len(steps) < 3 or None in steps:
        return None
    columns: dict[str, list[float | None]] = {}
    for line in lines:
        if _RULE.match(line) and line.strip():
            continue
        cells = _cells(line, "|")
        if len(cells) != len(header):
            break
        columns[cells[0]] = [number(cell) for cell in cells[1:]]
    if not any(keys.is_metric(key) or keys.by_words(key) for key in columns):
        return None
    rows = [
        (float(step), {key: v for key, values in columns.items() if (v := values[i]) is not None})
        for i, step in enumerate(steps)
        if step is not None
    ]
    return Table("table", rows=rows)


def _are_names(header: list[str]) -> bool:
    """True if the cells are names; the first may be empty (a notebook's index)."""
    return all(h and number(h) is None and "{" not in h for h in header[1:])


def _step_number(text: str) -> float | None:
    """Number of a step: "40", "step 40", "ckpt-40"; of a range its end; None for all else."""
    value = number(text)
    if value is not None or (match := _STEP_CELL.fullmatch(text)) is None:
        return value
    return float(match[1])


def _cells(line: str, mark: str) -> list[str]:
    """Split a line at its delimiter; in tables for readers, cells are figures without what stands around them."""
    if mark == "|":
        return [_plain(c) for c in line.strip().removeprefix("|").removesuffix("|").split("|")]
    if mark == "  ":
        cells = [_plain(c) for c in re.split(r"\s{2,}|\t", line.strip())]
        return cells if len(cells) > 1 else line.split()
    try:
        return [c.strip() for c in next(csv.reader(io.StringIO(line), delimiter=mark), [])]
    except csv.Error:
        return []


def _plain(cell: str) -> str:
    """Cell of a table in Markdown without emphasis, remark and unit: "**0.94**", "`kl`", "6 (late)", "4,172*", "51 s",
    "~0.5"; "41%" is 0.41, "1.2k" 1200, and a range its middle."""
    text = cell.strip().strip("*`_ ").replace("\u2212", "-")
    bare = _REMARK.sub("", text)
    if not any(c.isdigit() for c in bare):
        return text[: text.index(" (")].strip("*`_ ") if text.endswith(")") and " (" in text else text
    bare = _UNITS.sub("", _EDGE.sub("", bare).strip("*`_ "))
    if (value := _figure(bare)) is not None:
        return value
    if (span := _SPAN.match(bare)) is not None:
        low, high = (_figure(part.strip("*`~ ")) for part in span.groups())
        if low is not None and high is not None:
            return f"{(float(low) + float(high)) / 2:.6g}"
    # words of another script around one figure
    figures = re.findall(r"[+-]?\d+(?:\.\d+)?%?", bare)
    if len(figures) == 1 and not re.search(r"[A-Za-z]", bare):
        return _figure(figures[0]) or text
    return text


def _figure(text: str) -> str | None:
    """Number as a text that `number` reads; None for all else."""
    text = text.removesuffix("+")
    if _THOUSANDS.fullmatch(text):
        return text.replace(",", "")
    scale = 0.01 if text.endswith("%") else _THOUSAND.get(text[-1:], 1.0)
    value = number(text if scale == 1.0 else text[:-1].rstrip())
    if value is None:
        return None
    return text if scale == 1.0 else f"{value * scale:.10g}"


def _split(header: list[str], cells: list[str]) -> dict[str, str]:
    """Cells by their heads; "5.0/5/0" under "staleness avg/max/dropped" is three."""
    row: dict[str, str] = {}
    for head, cell in zip(header, cells, strict=True):
        parts, names = [c.strip("*` ") for c in cell.split("/")], head.split("/")
        if not 1 < len(parts) == len(names) <= 4 or any(number(p) is None for p in parts):
            row[head] = cell
            continue
        # what stands before the first name is before all: "reward min", "reward max"
        stem = re.match(r"(.*[\s_])?\S+?$", names[0].strip())
        before = (stem[1] if stem is not None else "") or ""
        row |= {(n if i == 0 else before + n.strip()): p for i, (n, p) in enumerate(zip(names, parts, strict=True))}
    return row


def _delimited_rows(header: list[str], lines: list[str], mark: str, name: str, run: str | None) -> Table | None:
    """Read the rows under a header; None if there are none."""
    order = {key: i for i, key in enumerate(keys.STEP_KEYS)}
    of_run = [run is None or _run_of(h) in ("", run) for h in header]
    counts = sorted(
        (i for i, h in enumerate(header) if (keys.is_step(h) or (i == 0 and _STAGE.fullmatch(h))) and of_run[i]),
        key=lambda i: order.get(keys.written_key(header[i]), len(order)),
    )
    # bounds of wandb's exports are no figures of their own
    columns = {
        h: keys.written_key(h)
        for i, h in enumerate(header)
        if i not in counts and not h.endswith(_BOUNDS) and h and h != "_" and of_run[i]
    }
    if not columns and run is None:
        return None  # steps and clocks alone, as an export of `rollout/step`
    if not columns:
        raise RecordError(
            f"{name} holds no run {run!r}: it holds {', '.join(sorted({_run_of(h) for h in header} - {''}))}"
        )
    _refuse_several_runs(header, columns, name)
    table = Table("table", is_numbered=bool(counts))
    is_written = mark in ("|", "  ")
    for line in lines:
        if not line.strip() or _RULE.match(line):
            if table.rows and is_written and not line.strip():
                break
            continue
        cells = _cells(line, mark)
        if mark == "  " and len(cells) != len(header):
            cells = [_plain(c) for c in line.split()]
        # a table in Markdown ends with the first other line; a CSV may have a torn one
        if len(cells) != len(header):
            if is_written:
                break
            table.n_unreadable += 1
            continue
        step = next((s for i in counts if (s := _step_of(cells[i], line, i, mark)) is not None), None)
        if step is None and counts:
            table.n_unreadable += 1
            continue
        row = _split(header, cells) if mark == "|" else dict(zip(header, cells, strict=True))
        values = {
            columns.get(head, head): v
            for head, cell in row.items()
            if (head in columns or head not in header) and cell and (v := number(cell)) is not None
        }
        if values:
            table.rows.append((float(len(table.rows) + 1) if step is None else step, values))
    return table if table.rows else None


def _step_of(cell: str, line: str, at: int, mark: str) -> float | None:
    """Finite step of a row; of rows that stand for a range of steps its end."""
    if mark == "|":
        raw = _REMARK.sub("", line.strip().removeprefix("|").split("|")[at]).strip("*`_~ ")
        span = _SPAN.match(raw)
        cell = raw if span is None else span[2]
    step = _step_number(cell.replace(",", ""))
    return step if step is not None and math.isfinite(step) else None


def _run_of(head: str) -> str:
    """Name of the run that a column of wandb's exports is of; "" without one."""
    return head.rsplit(" - ", 1)[0] if " - " in head else ""


def _refuse_several_runs(header: list[str], columns: dict[str, str], name: str) -> None:
    """Raise `RecordError` for a comparison of several runs, as wandb exports it."""
    if len(set(columns.values())) < len(columns):
        runs = sorted({_run_of(h) for h in columns} - {""})
        if len(runs) > 1:
            listed = ", ".join(runs[:8]) + ", ..." * (len(runs) > 8)
            raise RecordError(f"{name} holds {len(runs)} runs: {listed}: choose one, --run {runs[-1]!r}")
