"""Reader of saved pages: the outputs of a notebook (`.ipynb`), and HTML with tables, as trainers draw them there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

from gxpo.base.errors import RecordError
from gxpo.doctor.readers import console, delimited, keys
from gxpo.doctor.readers.table import Table

SUFFIXES = (".ipynb", ".html", ".htm")
OPENINGS = ("<!doctype html", "<html", "<table")  # of an HTML page in lower case, whatever its file is called
_ENDS = {"br", "p", "div", "tr", "li", "pre", "h1", "h2", "h3", "h4", "table"}  # tags at which a line ends
LEAST_ROWS = 5  # with a reward, of a table that is worth a mention
_HIDDEN = {"script", "style", "head"}


def read(text: str, name: str, run: str | None = None) -> Table | None:
    """Read a page: of its tables and its printed lines what has most figures of a reward; None without any."""
    parts = list(_outputs(text)) if text.lstrip()[:1] == "{" else [_Text.text_of(text)]
    tables = [table for part in parts if (table := _read_delimited(part, name, run)) is not None and table.is_known]
    console_table = console.read(["\n".join(parts) + "\n"])
    read_tables = [table for table in [*tables, console_table] if table.rows and table.is_known]
    if not read_tables:
        return console_table if console_table.messages else None
    best = max(read_tables, key=_n_rewards)
    n_others = sum(_n_rewards(table)[0] >= LEAST_ROWS for table in tables if table is not best)
    if n_others:
        best.notes.append(
            f"the longest of {n_others + 1} tables with a reward was read: give another as a file of its own"
        )
    best.messages = console_table.messages
    return best


def _n_rewards(table: Table) -> tuple[int, int]:
    """Rows with a reward and rows at all: what a run's own table has more of."""
    names = {key: keys.by_words(key) for _, row in table.rows for key in row}
    return sum(any(names[key] == "reward" for key in row) for _, row in table.rows), len(table.rows)


def _read_delimited(part: str, name: str, run: str | None) -> Table | None:
    """Table of one output; None where it has none, or columns of several runs."""
    try:
        return delimited.from_delimited(part, name, run)
    except RecordError:
        return None


def _outputs(text: str) -> Iterator[str]:
    """Outputs of a notebook's cells as texts, a table before what was printed beside it."""
    try:
        cells = json.loads(text).get("cells", [])
    except (ValueError, RecursionError, AttributeError):
        return
    for cell in cells if isinstance(cells, list) else []:
        outputs = cell.get("outputs", []) if isinstance(cell, dict) else []
        # pieces of one stream are saved apart
        yield "".join(_join(output.get("text")) for output in outputs if isinstance(output, dict))
        for output in outputs:
            data = output.get("data") if isinstance(output, dict) else None
            if isinstance(data, dict):
                page = _join(data.get("text/html"))
                yield _Text.text_of(page) if page else _join(data.get("text/plain"))


def _join(value: Any) -> str:
    """Text of an output, which notebooks save whole or as a list of lines."""
    return value if isinstance(value, str) else "".join(map(str, value)) if isinstance(value, list) else ""


class _Text(HTMLParser):
    """Text of an HTML page, each row of a table as a line of cells between bars."""

    def __init__(self) -> None:
        super().__init__()
        self.text_parts: list[str] = []
        self.cells: list[str] | None = None
        self.n_hidden = 0
        self.is_in_table = False  # where blanks between the rows are none of the text

    @classmethod
    def text_of(cls, page: str) -> str:
        """Text of a page."""
        parser = cls()
        parser.feed(page)
        parser.close()
        return "".join(parser.text_parts)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag == "tr":
            self.cells = []
        elif tag in ("td", "th") and self.cells is not None:
            self.cells.append("")
        elif tag in _HIDDEN:
            self.n_hidden += 1
        self.is_in_table = self.is_in_table or tag == "table"

    def handle_endtag(self, tag: str) -> None:
        if tag == "tr" and self.cells is not None:
            self.text_parts.append("| " + " | ".join(" ".join(cell.split()) for cell in self.cells) + " |")
            self.cells = None
        self.is_in_table = self.is_in_table and tag != "table"
        if tag in _ENDS:
            self.text_parts.append("\n" if tag != "table" else "\n\n")
        elif tag in _HIDDEN:
            self.n_hidden -= 1

    def handle_data(self, data: str) -> None:
        if self.n_hidden > 0:
            return
        if self.cells:
            self.cells[-1] += data.replace("|", "/")
        elif self.cells is None and (data.strip() or not self.is_in_table):
            self.text_parts.append(data)
