"""TEDS of tables in HTML and LaTeX."""

from __future__ import annotations

import math

import pytest

from gxpo.environments.rewards.metrics import Unreadable
from gxpo.environments.rewards.metrics.tables import table_of, teds

close = lambda x: pytest.approx(x, abs=1e-6)  # noqa: E731


# ---------------------------------------------------------------- tables
GRID = r"\begin{tabular}{ll}\hline a & b \\ c & d \\ \hline\end{tabular}"


def test_rows_of_a_latex_table_are_as_wide_as_the_widest():
    """The authors' conversion fills a grid: a short row ends in empty cells, one cell too many is one in every row."""
    wide = r"\begin{tabular}{lll} %s \end{tabular}"
    full = wide % r"a & b & c \\ d & & \\ e & f & g"
    assert teds(wide % r"a & b & c \\ d \\ e & f & g", full, structure_only=True) == 1.0
    # twelve places for nine: 3 of 3 + 12 nodes are too many
    assert teds(wide % r"a & b & c & x \\ d & & \\ e & f & g", full, structure_only=True) == close(1 - 3 / 15)
    # the place below a cell of two rows is none of its own, whether it is written or not
    below = r"\multirow{2}{*}{a} & b \\ %s c"
    one, two = (table_of(r"\begin{tabular}{ll} " + below % x + r" \end{tabular}") for x in ("&", ""))
    shape = [[(c.text, c.rows, c.columns) for c in row.children] for row in one.children]
    assert shape == [[("a", 2, 1), ("b", 1, 1)], [("c", 1, 1)]]
    assert [[c.text for c in row.children] for row in two.children] == [["a", "b"], ["c"]]
    span = table_of(r"\begin{tabular}{lll} \multicolumn{2}{c}{a} & b \\ c \end{tabular}")
    assert [[(c.text, c.columns) for c in row.children] for row in span.children] == [
        [("a", 2), ("b", 1)], [("c", 1), ("", 1), ("", 1)],
    ]  # fmt: skip


def test_teds():
    # table, 2 rows, 4 cells: 6 nodes below the table; one cell of another text costs 1, one cell less costs 1
    html = "<table><tr><td>a</td><th>b</th></tr><tr><td>c</td><td>{}</td></tr></table>"
    assert teds(html.format("d"), GRID) == 1.0 and teds(html.format("x"), GRID) == close(1 - 1 / 6)
    assert teds(html.format("x"), GRID, structure_only=True) == 1.0
    assert teds(r"\begin{tabular}{l|l} a & b \\ c \end{tabular}", GRID) == close(1 - 1 / 6)
    assert teds("<table><tr><td>a</td></tr></table>", GRID) == close(1 - 4 / 6)  # a row and three cells less


def test_spans_and_arguments_of_tables():
    rows = r"\multicolumn{2}{c}{\textbf{a}} & \multirow{2}{*}{b} \\ c & d & "
    wide = rf"\begin{{tabular*}}{{\textwidth}}{{@{{}}lll}} {rows}\end{{tabular*}}"
    table = table_of(wide)
    assert table is not None
    assert [[(c.text, c.columns, c.rows) for c in row.children] for row in table.children] == [
        [(r"\textbf{a}", 2, 1), ("b", 1, 2)],
        [("c", 1, 1), ("d", 1, 1)],  # b takes the third place
    ]
    other = wide.replace("multicolumn{2}", "multicolumn{3}")
    assert teds(other, wide, structure_only=True) == close(
        1 - 2 / 7
    )  # the span, and a cell more: of 2 rows and 5 cells
    kept_table = table_of("\\begin{tabular}{l} a \\& b \\\\[2pt] % no & cell\n c \\end{tabular}")
    assert kept_table is not None and [c.text for row in kept_table.children for c in row.children] == [r"a \& b", "c"]


def test_answer_without_a_table_or_with_a_huge_one_is_unreadable():
    huge = "<table>" + "<tr><td>x</td></tr>" * 200 + "</table>"
    for text in ("no table", "<table></table>", huge):
        with pytest.raises(Unreadable):
            teds(text, GRID)
    assert math.isnan(teds(GRID, "no table"))
