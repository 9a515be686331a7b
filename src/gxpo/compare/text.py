"""Print a comparison in a terminal: verdict, a table as wide as the screen, notes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gxpo.compare.results import ArmSummary, Comparison, Difference
from gxpo.compare.sentences import verdict
from gxpo.compare.wording import (
    caption,
    count,
    duration,
    interval,
    label_with_kind,
    number,
    places,
    probability,
    sort_arms,
)

GAP = 2  # cells between two columns
LISTED = 5  # runs that ended early are named up to so many
STYLES = {"better": "bold green", "worse": "bold red", "undecided": "", "equal": ""}


@dataclass(frozen=True)
class Column:
    """A column of the table.

    rank  1 stays on the narrowest screen, the largest goes first
    cell  its text for an arm and, but for the base, its difference; the last argument is the measure's decimals
    """

    title: str
    rank: int
    cell: Callable[[ArmSummary, Difference | None, int], str]


COLUMNS = (
    Column("arm", 1, lambda a, d, n: label_with_kind(a)),
    Column("seeds", 5, lambda a, d, n: str(a.end.n)),
    Column("start", 8, lambda a, d, n: number(a.start.mean, n)),
    Column("end (95 %)", 3, lambda a, d, n: interval(a.end, n)),
    Column("less base (95 %)", 2, lambda a, d, n: interval(d.end, n, sign=True) if d else ""),
    Column("p", 4, lambda a, d, n: _p(d) if d else ""),
    Column("area", 9, lambda a, d, n: number(a.area.mean, n)),
    Column("chance", 7, lambda a, d, n: number(d.improves.mean, 2) if d else ""),
    Column("collapsed", 6, lambda a, d, n: str(a.collapsed)),
    Column("tokens", 10, lambda a, d, n: count(a.tokens)),
    Column("time", 11, lambda a, d, n: duration(a.seconds)),
)


def _p(d: Difference) -> str:
    return probability(d.p_adjusted if math.isfinite(d.p_adjusted) else d.end.p)


def show(comparison: Comparison, console: Console) -> None:
    """Print the verdict, the arms (base first, controls last) and the notes.

    Columns that do not fit the console's width are left out by rank, and named below.
    """
    sentences = verdict(comparison)
    for sentence in sentences:
        console.print(Text(sentence, style="bold"))
    arms = sort_arms(comparison)
    table, hidden_columns = _table(comparison, arms, console.width)
    console.print()
    console.print(Text(caption(comparison)))
    console.print(table)
    console.print(Text(_legend(comparison, hidden_columns), style="dim"))
    collapsed_arms = [f"{a.arm.label} {a.collapsed} of {len(a.runs)}" for a in arms if a.collapsed]
    if collapsed_arms and "collapsed" in hidden_columns:
        console.print(Text(f"runs that ended below half of their best: {', '.join(collapsed_arms)}", style="yellow"))
    for note in comparison.notes:
        console.print(Text(note, style="yellow"))
    # Failed runs are listed, for their cause may be the method's.
    failure_lines = [f"{a.arm.label}, seed {seed}: {reason}" for a in arms for seed, reason in sorted(a.failed.items())]
    for line in failure_lines[:LISTED]:
        console.print(Text(f"ended before its budget: {line}", style="yellow"))
    if len(failure_lines) > LISTED:
        console.print(Text(f"ended before their budget: {len(failure_lines) - LISTED} more", style="yellow"))


def _table(comparison: Comparison, arms: list[ArmSummary], width: int) -> tuple[Table, list[str]]:
    """Build the table; also returns the titles of the columns that did not fit."""
    differences = {d.arm: d for d in comparison.differences}
    digits = places(comparison.arms)
    rows = [[c.cell(a, differences.get(a.arm.label), digits) for c in COLUMNS] for a in arms]
    widest = [max(map(cell_len, (c.title, *(r[i] for r in rows)))) for i, c in enumerate(COLUMNS)]
    # Columns go by rank until the rest fits; arm and difference always stay.
    widest[0] = min(widest[0], max(18, width // 4))  # a long label takes several lines
    columns = sorted(range(len(COLUMNS)), key=lambda i: COLUMNS[i].rank)
    while len(columns) > 2 and sum(widest[i] + GAP for i in columns) > width:
        columns.pop()
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for i in sorted(columns):
        right = i > 0  # figures to the right, unbroken; labels to the left, folded
        table.add_column(
            COLUMNS[i].title,
            justify="right" if right else "left",
            overflow="fold",
            no_wrap=right,
            max_width=widest[i],
        )
    for arm, row in zip(arms, rows, strict=True):
        difference = differences.get(arm.arm.label)
        # Only a verdict is coloured: a difference that is not told apart should not look like one.
        decided = STYLES[difference.verdict] if difference and arm.arm.kind == "arm" else ""
        style = "dim" if arm.arm.kind == "control" else ""
        cells = [Text(row[i], style=decided if COLUMNS[i].rank == 2 else style) for i in sorted(columns)]
        table.add_row(*cells)
    return table, [c.title for i, c in enumerate(COLUMNS) if i not in columns]


def _legend(comparison: Comparison, hidden_columns: list[str]) -> str:
    arms = sum(a.arm.kind == "arm" for a in comparison.arms)
    legend = "less base: paired by seed and held-out task, + in the arm's favour; p: two-sided"
    if arms > 1:
        legend += f", of arms Holm's over {arms}"
    if "chance" not in hidden_columns:
        legend += "; chance: that a run of the arm ends above one of the base"
    return f"{legend}. Not shown for width: {', '.join(hidden_columns)}" if hidden_columns else legend
