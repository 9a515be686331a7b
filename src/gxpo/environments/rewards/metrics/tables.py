"""TEDS: tree edit distance similarity of two tables, in HTML or LaTeX."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import Any

from rapidfuzz.distance import Levenshtein

from gxpo.base.errors import need
from gxpo.environments.rewards.metrics import Unreadable

CELLS = 300  # rows and cells; the time of the distance goes with their square: one to two seconds for two such tables
OPENED = re.compile(r"\\begin\{(tabular[x*]?|array)\}")
RULES = re.compile(
    r"\\(?:hline|toprule|midrule|bottomrule|centering)\b|\\(?:cline|cmidrule)\s*(?:\([^()]*\)\s*)?\{[^{}]*\}"
)
SPAN = re.compile(r"\\(multicolumn|multirow)\s*\{(\d+)\}\s*\{[^{}]*\}\s*\{((?:[^{}]|\{[^{}]*\})*)\}")


@dataclass
class Node:
    """A node of a table's tree: the table, a row or a cell."""

    tag: str
    text: str = ""
    columns: int = 1
    rows: int = 1
    children: list[Node] = field(default_factory=list)


def table_of(text: str) -> Node | None:
    """Read the first table of a text, HTML (`<table>`) or LaTeX (`tabular`); None without one."""
    opening = OPENED.search(text)
    end = text.find(f"\\end{{{opening[1]}}}", opening.end()) if opening else -1
    if opening and end >= 0:
        return _latex(text[opening.end() : end])
    reader = _Html()
    reader.feed(text)
    return reader.finish()


class _Html(HTMLParser):
    """Parser of the first table's rows and cells; header and body are treated alike."""

    def __init__(self) -> None:
        super().__init__()
        self.table: Node | None = None
        self._open = self._inside = False
        self._pieces: list[str] = []  # of the cell that is being read
        self._texts: dict[int, list[str]] = {}  # pieces by the id of their cell

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        if tag == "table" and self.table is None:
            # The first table counts: later ones are not what was asked for.
            self.table, self._open = Node("table"), True
        elif self._open and tag == "tr" and self.table is not None:
            self.table.children.append(Node("tr"))
            self._inside = False
        elif self._open and tag in ("td", "th") and self.table is not None:
            # A cell without a row opens one, as in browsers.
            if not self.table.children:
                self.table.children.append(Node("tr"))
            columns, rows = (_span(next((v for k, v in attrs if k == name), None)) for name in ("colspan", "rowspan"))
            self.table.children[-1].children.append(Node("td", "", columns, rows))
            self._inside = True
            self._pieces = []

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th", "tr"):
            self._inside = False
        elif tag == "table":
            self._open = False

    def handle_data(self, data: str) -> None:
        if self._open and self._inside and self.table is not None:
            self._pieces.append(data)
            self._texts[id(self.table.children[-1].children[-1])] = self._pieces

    def finish(self) -> Node | None:
        """Return the table with the texts of its cells; None without rows."""
        if self.table is None:
            return None
        for row in self.table.children:
            for cell in row.children:
                cell.text = " ".join(" ".join(self._texts.get(id(cell), ())).split())
        return self.table if self.table.children else None


def _span(attribute: str | None) -> int:
    """Read a span of 1 to 999; 1 for anything else."""
    return int(attribute) if attribute is not None and attribute.isdecimal() and 0 < len(attribute) < 4 else 1


def _latex(inner: str) -> Node | None:
    """Build the tree of a tabular's text, laid out as LaTeX sets it.

    Its first group is the columns' specification, and that of tabularx the second, which no cell shows. Rows with fewer
    cells than the widest end in empty ones, and the place below a cell of several rows is none of its own.
    """
    body = re.sub(r"(?<!\\)%.*", "", inner)
    body = RULES.sub(
        "", re.sub(r"\\\\\s*\[[^\[\]\\]*\]", r"\\\\", _specification(body).replace(r"\tabularnewline", r"\\"))
    )
    rows = [row for row in re.split(r"\\\\", body) if row.strip()]
    return Node("table", children=_laid_out([_latex_cells(row) for row in rows])) if rows else None


def _laid_out(rows: Sequence[Sequence[Node]]) -> list[Node]:
    """Lay rows out on a grid as wide as the widest row.

    An empty cell below one of several rows is left out, one with a text there goes to the next free place, and places
    that no cell takes have empty ones.
    """
    width = max(sum(cell.columns for cell in row) for row in rows)
    rows_taken: list[int] = [0] * width  # rows that a cell above still takes, by column
    grid = []
    for cells in rows:
        column, is_free, row = 0, [n == 0 for n in rows_taken], Node("tr")
        # Cells of several rows take their places in the rows below.
        rows_taken = [max(0, n - 1) for n in rows_taken]
        for cell in cells:
            # LaTeX needs an empty cell below one of several rows: it is a place holder, not a cell of the table.
            if not cell.text and column < width and not is_free[column]:
                column += cell.columns
                continue
            while column < width and not is_free[column]:
                column += 1
            if column >= width:
                break
            row.children.append(cell)
            for k in range(column, min(width, column + cell.columns)):
                is_free[k], rows_taken[k] = False, cell.rows - 1
            column += cell.columns
        row.children += [Node("td") for empty in is_free[column:] if empty]
        grid.append(row)
    return grid


def _specification(body: str) -> str:
    """Text of a tabular after its arguments in brackets or braces."""
    begin = _after_blanks(body, 0)
    while body[begin : begin + 1] in ("{", "["):
        opening = body[begin]
        depth, closing = 0, {"{": "}", "[": "]"}[opening]
        for i in range(begin, len(body)):
            depth += (body[i] == opening) - (body[i] == closing)
            if depth == 0:
                break
        else:
            break
        begin = _after_blanks(body, i + 1)
    return body[begin:]


def _after_blanks(text: str, index: int) -> int:
    while index < len(text) and text[index].isspace():
        index += 1
    return index


def _latex_cells(row: str) -> list[Node]:
    return [_latex_cell(text) for text in re.split(r"(?<!\\)&", row)]


def _latex_cell(text: str) -> Node:
    """Build a cell, without its span commands: at most one of each, which may be nested."""
    spans = {"multicolumn": 1, "multirow": 1}
    for _ in spans:
        span = SPAN.search(text)
        if span is None:
            break
        spans[span[1]] = _span(span[2])
        text = text[: span.start()] + span[3] + text[span.end() :]
    return Node("td", " ".join(text.split()), spans["multicolumn"], spans["multirow"])


def _size(table: Node) -> int:
    """Number of nodes below the table's own."""
    return sum(1 + len(row.children) for row in table.children)


def teds(answer: str, reference: Any, *, structure_only: bool = False) -> float:
    """TEDS, 1 - (tree edit distance) / (nodes of the larger table), of trees table, rows, cells.

    structure_only  cells differ by their spans alone; else also by 1 for the share of their text that differs
                    (Levenshtein distance / longer text)

    A node that is inserted or deleted costs 1, as does a cell with another span. HTML and LaTeX may be compared with
    each other. An answer without a table, or with more than 300 rows and cells and more than the reference has, can't
    be read; nan without a table in the reference.
    Source: TEDS, arXiv 1911.10683; the distance by apted.
    """
    reference_table = table_of(str(reference)) if reference is not None else None
    if reference_table is None:
        return math.nan
    # The distance takes time quadratic in the nodes, so a policy must not be able to make it long.
    answer_table = table_of(answer)
    if answer_table is None or _size(answer_table) > max(CELLS, _size(reference_table)):
        raise Unreadable("no table" if answer_table is None else f"more than {CELLS} rows and cells")
    apted = need("apted", "rewards")

    class Costs(apted.Config):
        def rename(self, node1: Node, node2: Node) -> float:
            a, b = node1, node2
            # Tag and spans first: cells that span differently are different places.
            if (a.tag, a.columns, a.rows) != (b.tag, b.columns, b.rows):
                return 1.0
            return 0.0 if structure_only or a.tag != "td" else Levenshtein.normalized_distance(a.text, b.text)

        def children(self, node: Node) -> list[Node]:
            return node.children

    distance = apted.APTED(answer_table, reference_table, Costs()).compute_edit_distance()
    return 1 - distance / max(_size(answer_table), _size(reference_table))
