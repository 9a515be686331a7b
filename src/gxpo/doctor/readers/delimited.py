"""Reader of delimited tables: CSV and TSV (exports of wandb, too), tables in Markdown or copied from a notebook."""

from __future__ import annotations

import csv
import io
import math
import re

from gxpo.base.errors import RecordError
from gxpo.doctor.readers import keys
from gxpo.doctor.readers.table import NUMBER, Table, number

_RULE = re.compile(r"[\s|:+\u2500-\u257f=-]+$")
_BARS = str.maketrans("\u2502\u2503\u2551\uff5c", "||||")  # of boxes
_REMARK = re.compile(r"\s{0,40}[(\uff08\[][^()\uff08\uff09\[\]]*[)\uff09\]]")
_EDGE = re.compile(r"^[^\w.+-]+|[^\w.%]+$")  # emphasis, signs that stand for "about", pictures
_SPAN = re.compile(
    r"(?P<low>.{0,80}?\d[\d.]{0,40}%?\+?)\s{0,40}(?P<sign>->|-|\u2013|\u2014|\u2192|=>|to|~)\s*(?P<high>[+-]?\d.*)$"
)
_CHANGES = ("\u2192", "->", "=>")
_UNITS = re.compile(r"(?<=\d)\s*(?:s|ms|sec|nats?|tok|tokens?|chars?|x)$")
_THOUSAND = {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9}
# Heads of columns of steps.
_STAGE = re.compile(r"checkpoint|ckpt|stage|phase|window|steps?[ _]range|calls|\u9636\u6bb5", re.I)
_OPEN = re.compile(r"(\d+)\s*[-\u2013\u2014~]\s*(?:end|last|\u672b|\u7ec8|\u6700\u540e|\ub05d)?$", re.I)  # "600-end"
_PAIR = re.compile(rf"[-*`\s]{{0,40}}([\w./@-]{{1,200}})`?\s{{0,40}}[:=]\s{{0,40}}`?({NUMBER})`?,?")
_ASIAN = re.compile(r"[\u2e80-\u9fff\uac00-\ud7af\uff00-\uffef]+")  # words beside a figure
_STEP_CELL = re.compile(r"(?i)(?:(?:global[ _]?)?steps?|iter(?:ation)?|ckpt|checkpoint|s|@)?[-_\s]*#?(\d+)(?:/\d+)?$")
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_WINDOW = re.compile(r"(?:steps?\s*)?(\d+)\s*(?:-|\u2013|~|to)\s*\d+", re.I)
_BEGIN = re.compile(r"start|begin|first|early|before|initial|baseline|\u521d|\u524d|\u5f00\u59cb|\ucd08\ubc18", re.I)
_END = re.compile(r"end|final|recent|last|late|after|now|current|\u672b|\u540e|\u6700[\u7ec8\u7d42]|\ucd5c\uadfc", re.I)
_DECIMAL = re.compile(r"[-+]?\d*,\d+(?:[eE][-+]?\d+)?")
_BOUNDS = ("__MIN", "__MAX")  # wandb exports three columns for each figure


def from_delimited(text: str, name: str, run: str | None = None) -> Table | None:
    """Read a delimited table; None where no line is a header.

    A header names figures of training, or it is the first line and names steps: then no trainer is known to write it.

    run  of a table with the columns of several runs, the one to read
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n").translate(_BARS).split("\n")
    unknown_table: Table | None = None
    for row, line in enumerate(lines[:2000]):
        for mark in ("\t", ",", "|", ";", "  "):
            if mark.strip(" ") in line and len(line) < 50_000 and "{" not in line and "step:" not in line:
                header = _cells(line, mark)
                lines_below = lines[row + 1 :]
                if mark == "|" and len(set(header)) < len(header):
                    header, lines_below = _unfold(header, lines_below)
                if len(header) < 2 or len(set(header)) < len(header):
                    continue
                if mark == "|" and (turned := _transpose(header, lines_below)):
                    return turned
                if not _are_names(header):
                    continue
                # blanks alone are between words, too
                has_steps = any(_is_count(head, i) for i, head in enumerate(header))
                is_training = keys.is_training(header) or (has_steps and any(map(keys.by_words, header)))
                is_known = is_training and (mark != "  " or has_steps)
                if is_known or (row == 0 and mark != "  " and has_steps):
                    table = _delimited_rows(header, lines_below, mark, name, run)
                    if table is not None and is_known:
                        if mark == "|":
                            _add_further(table, lines[row + 1 + len(table.rows) :], name, run)
                        return table
                    if table is not None:
                        unknown_table = unknown_table or table
                        unknown_table.is_known = False
    return unknown_table


def pairs_alone(lines: list[str]) -> Table | None:
    """Read lines of nothing but "key: figure" as one row, as a report quotes a step; None for any other text."""
    pairs = [_PAIR.fullmatch(part) for line in lines for part in re.split(r"\s{2,}|,\s", line.strip()) if part]
    row = {m[1]: float(m[2]) for m in pairs if m}
    is_log = len(row) == len(pairs) and sum(map(keys.is_metric, row)) >= 3
    return Table("table", rows=[(1.0, row)], is_numbered=False) if is_log else None


def _is_count(head: str, column: int) -> bool:
    """True if a column counts steps: by its name, also beside a word of another script, or as the first of stages."""
    return (
        keys.is_step(head)
        or keys.is_step(_ASIAN.sub("", head).strip())
        or (column == 0 and bool(_STAGE.fullmatch(head)))
    )


def _unfold(header: list[str], lines: list[str]) -> tuple[list[str], list[str]]:
    """Header and lines of a table that is folded, the later steps beside the earlier ones: "| Step | KL | Step | KL |".

    Any other header comes back as it is.
    """
    first = header[0]
    width = header.index(first, 1) if first and header.count(first) > 1 else len(header)
    unit = [head for head in header[:width] if head]
    places = [header[column : column + width] for column in range(0, len(header), width)]
    if width < 2 or width == len(header) or any([h for h in place if h] != unit for place in places):
        return header, lines
    cells = []
    for line in lines:
        row = line.strip().removeprefix("|").removesuffix("|").split("|")
        if len(row) != len(header):
            break
        cells.append(row)
    columns = [column for column, head in enumerate(header[:width]) if head]
    lines_below = [
        "|" + "|".join(row[start + column] for column in columns) + "|"
        for start in range(0, len(header), width)
        for row in cells
        if not _RULE.match("|".join(row)) and any(row[start + column].strip() for column in columns)
    ]
    return unit, [*lines_below, ""]


def _add_further(table: Table, lines: list[str], name: str, run: str | None) -> None:
    """Add the columns of later tables of a text that have the same steps: reports split a wide one."""
    row_of_step = dict(table.rows)
    names = {key for row in row_of_step.values() for key in row}
    for line_number, line in enumerate(lines[:2000]):
        header = _cells(line, "|") if line.count("|") > 1 else []
        if len(header) < 2 or len(set(header)) < len(header) or not any(map(keys.is_step, header)):
            continue
        further_table = (
            _delimited_rows(header, lines[line_number + 1 :], "|", name, run) if _are_names(header) else None
        )
        if further_table is None or [step for step, _ in further_table.rows] != list(row_of_step):
            continue
        for step, row in further_table.rows:
            row_of_step[step].update({key: v for key, v in row.items() if key not in names})


def _transpose(header: list[str], lines: list[str]) -> Table | None:
    """Read a table whose columns are steps and whose rows are figures: "| metric | step 1 | step 50 |", also without
    the word in all but the first, and of two columns for the beginning and the end of a run."""
    numbers = [float(h) for h in header[1:] if h.isdigit()]
    are_steps = len(numbers) == len(header) - 1 > 2 and numbers == sorted(set(numbers))
    is_step = _STEP_CELL.fullmatch(header[1]) is not None and not header[1].isdigit()
    is_named = are_steps or is_step or keys.is_step(header[0])
    steps: list[float | None] = [_step_number(h) if not h.isdigit() or is_named else None for h in header[1:]]
    while len(steps) > 3 and steps[-1] is None:
        steps.pop()  # remarks
    # a row of figures is no head
    is_two = (len(steps) < 3 or None in steps) and 2 < len(header) < 6 and not keys.is_metric(header[0])
    is_two = is_two and _are_ends(header[1], header[2])
    steps = [1.0, 2.0] if is_two else steps
    # a table of keys and one figure each is a row
    is_one = len(header) == 2 or (len(header) == 3 and not is_two and len(steps) == 2 and steps[1] is None)
    if is_one and not is_step and not keys.is_metric(header[0]) and _are_names(header):
        return _single(lines, len(header))
    if None in steps or len(steps) < 3 - is_two:
        return None
    columns: dict[str, list[float | None]] = {}
    for line in lines:
        if _RULE.match(line) and line.strip():
            continue
        cells = _cells(line, "|")
        if len(cells) != len(header):
            break
        columns[cells[0]] = [number(cell) for cell in cells[1 : len(steps) + 1]]
    if not any(keys.is_metric(key) or keys.by_words(key) for key in columns):
        return None
    rows = [
        (float(step), {key: v for key, values in columns.items() if (v := values[i]) is not None})
        for i, step in enumerate(steps)
        if step is not None
    ]
    return Table("table", rows=rows, is_numbered=not is_two)


def _single(lines: list[str], width: int) -> Table | None:
    """Read a table of keys and one figure each, with or without a remark, as a row; None for any other."""
    row: dict[str, float | None] = {}
    for cells in (_cells(line, "|") for line in lines if not line.strip() or not _RULE.match(line)):
        if len(cells) != width or any(number(cell) is not None for cell in cells[2:]):
            break
        row[cells[0]] = number(cells[1])
    values = {key: v for key, v in row.items() if v is not None}
    is_log = sum(map(keys.is_metric, values)) >= 2 and len(values) == len(row)
    return Table("table", rows=[(1.0, values)], is_numbered=False) if is_log else None


def _are_ends(first: str, last: str) -> bool:
    """True if two heads stand for the beginning of a run and its end: words for them, or ranges of steps."""
    words = [bool(pattern.search(head)) for pattern, head in ((_BEGIN, first), (_END, last))]
    ranges = [_WINDOW.fullmatch(head) for head in (first, last)]
    numbers = [_step_number(head) for head in (first, last)]
    in_order = [[float(m[1]) for m in ranges if m], [n for n in numbers if n is not None]]
    return all(words) or any(len(pair) == 2 and pair[0] < pair[1] for pair in in_order)


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
        cells = [c.strip() for c in next(csv.reader(io.StringIO(line), delimiter=mark), [])]
    except csv.Error:
        return []
    # a comma within a cell parts thousands, or decimals where cells end with a semicolon
    if "," not in line or mark not in ",;":
        return cells
    if mark == ";":
        return [c.replace(",", ".") if _DECIMAL.fullmatch(c) else c for c in cells]
    return [c.replace(",", "") if _THOUSANDS.fullmatch(c) else c for c in cells]


def _plain(cell: str) -> str:
    """Cell of a table in Markdown without emphasis, remark and unit: "**0.94**", "`kl`", "6 (late)", "4,172*", "51 s",
    "~0.5"; "41%" is 0.41, "1.2k" 1200, and a range its middle."""
    text = cell.strip().strip("*`_ ").replace("\u2212", "-")
    bare = _REMARK.sub("", text)
    if not any(c.isdigit() for c in bare):
        return text[: text.index(" (")].strip("*`_ ") if text.endswith(")") and " (" in text else text
    bare = _UNITS.sub("", _EDGE.sub("", _ASIAN.sub(" ", bare)).strip("*`_ "))
    if (value := _figure(bare)) is not None:
        return value
    if (span := _SPAN.match(bare)) is not None:
        low, high = (_figure(span[side].strip("*`~ ")) for side in ("low", "high"))
        if low is not None and high is not None:
            # of a change its end, of a range its middle
            return high if span["sign"] in _CHANGES else f"{(float(low) + float(high)) / 2:.6g}"
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
        prefix = (stem[1] if stem is not None else "") or ""
        row |= {(n if i == 0 else prefix + n.strip()): p for i, (n, p) in enumerate(zip(names, parts, strict=True))}
    return row


def _delimited_rows(header: list[str], lines: list[str], mark: str, name: str, run: str | None) -> Table | None:
    """Read the rows under a header; None if there are none."""
    order = {key: i for i, key in enumerate(keys.STEP_KEYS)}
    of_run = [run is None or _run_of(h) in ("", run) for h in header]
    counts = sorted(
        (i for i, h in enumerate(header) if _is_count(h, i) and of_run[i]),
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
        if mark == "|" and len(cells) == len(header) + 1 and not line.rstrip().endswith("|"):
            cells.pop()  # a remark behind the row
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


def _step_of(cell: str, line: str, column: int, mark: str) -> float | None:
    """Finite step of a row; of rows that stand for a range of steps its end."""
    if mark == "|":
        raw = _REMARK.sub("", line.strip().removeprefix("|").split("|")[column]).strip("*`_~ ")
        span = _SPAN.match(raw)
        cell = raw if span is None else span["high"]
        if (open_end := _OPEN.fullmatch(raw)) is not None:
            cell = open_end[1] + "+"
    step = _step_number(cell.replace(",", "").rstrip("+ "))
    if step is not None and cell.rstrip().endswith("+"):
        step += 1  # of "300+" after "200-300"
    return step if step is not None and math.isfinite(step) else None


def _run_of(head: str) -> str:
    """Name of the run that a column of wandb's exports is of; "" without one."""
    return head.rsplit(" - ", 1)[0] if " - " in head else ""


def _refuse_several_runs(header: list[str], columns: dict[str, str], name: str) -> None:
    """Raise `RecordError` for a comparison of several runs, as wandb exports it."""
    if len(set(columns.values())) < len(columns):
        runs = sorted({_run_of(h) for h in columns} - {""})
        if len(runs) > 1:
            runs_text = ", ".join(runs[:8]) + ", ..." * (len(runs) > 8)
            raise RecordError(f"{name} holds {len(runs)} runs: {runs_text}: choose one, --run {runs[-1]!r}")
