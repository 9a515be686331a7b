"""The pictures of `compare.html`: differences, curves, changes of held-out tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gxpo.base.page import Html, charts, folded, paragraph, svg_chart, table
from gxpo.base.page.forest_plot import Interval, cut, forest_plot
from gxpo.base.page.text import join, visible
from gxpo.compare.curves import MeanCurve, counted, mean_curve
from gxpo.compare.results import ArmSummary, Comparison, Difference, Estimate, RunResult, Unit
from gxpo.compare.wording import UNITS, caption, interval, marked, number, ordered, places


# ---------------------------------------------------------------- task changes
# What changed from base to arm, task by held-out task.
@dataclass(frozen=True)
class TaskChange:
    """A held-out task in the last evaluation: its mean verdict over the paired seeds."""

    task: str
    base: float
    arm: float

    @property
    def change(self) -> float:
        return self.arm - self.base


def task_changes(arm: Sequence[RunResult], base: Sequence[RunResult]) -> list[TaskChange]:
    """Every task that a run of the arm and the base's run of the same seed both recorded, from the largest gain to the
    largest loss; equal ones by name."""
    others = {run.seed: run for run in base}
    sums: dict[str, tuple[float, float, int]] = {}
    for run in arm:
        other = others[run.seed].after if run.seed in others else {}
        for task in run.after.keys() & other.keys():
            before, after, n = sums.get(task, (0.0, 0.0, 0))
            sums[task] = (before + other[task], after + run.after[task], n + 1)
    found = [TaskChange(task, before / n, after / n) for task, (before, after, n) in sums.items()]
    return sorted(found, key=lambda c: (-c.change, c.task))


# ---------------------------------------------------------------- page figures
TOGETHER = 3  # bands of more curves than this would hide one another: each arm has a picture of its own
CHANGED = 10
LEGEND = 48  # letters of a name in a legend
SIDES: Mapping[str, Literal["above", "below", "neither"]] = {
    "better": "above", "worse": "below", "undecided": "neither"
}  # fmt: skip


def row_of(label: str, found: Difference, estimate: Estimate, digits: int, *, control: bool = False) -> Interval:
    """A row of a forest plot: which side it is told to be on is the verdict's, not the interval's."""
    said = interval(estimate, digits, sign=True)
    side = SIDES[found.verdict] if estimate is found.end else "neither"
    return Interval(label, estimate.mean, estimate.low, estimate.high, said, side, control)


def differences(c: Comparison) -> Html:
    """Forest plots of the difference at the end and over the whole budget."""
    found = {d.arm: d for d in c.differences}
    every = [(a, found[a.arm.label]) for a in ordered(c) if a.arm.label in found]
    shown = [(a, d) for a, d in every if a.arm.kind != "control"] or every  # a control's distance would set the scale
    if not shown:
        return paragraph("There is no arm beside the base.")
    against, digits = shown[0][1].against, places(c)
    plots = []
    for title, field in ((f"At the end, less {against}", "end"), (f"Mean over the budget, less {against}", "area")):
        rows = [row_of(marked(a), d, getattr(d, field), digits, control=a.arm.kind == "control") for a, d in shown]
        plot = forest_plot(
            rows,
            title=title,
            y_label=f"{c.measure}, {c.better} is better; mean and 95 % interval",
            below="\u2190 worse" if c.better == "more" else "\u2190 worse (more)",
            above="better \u2192" if c.better == "more" else "better (less) \u2192",
        )
        plots.append((plot, f"{caption(c)}; paired by seed{' and held-out task' if _by_task(c) else ''}."))
    filled = "Filled: told from 0 at 5 %, corrected for the number of arms. Hollow: not." if len(shown) > 1 else ""
    return charts([(plots[0][0], f"{plots[0][1]} {filled}"), plots[1]])


def curves(c: Comparison) -> Html:
    """Mean of the measure over the runs against what was spent, with bands; with many arms each by itself as well."""
    arms = ordered(c)
    names = _names(arms)
    drawn = {n: mean_curve(a.runs, c.budget) for a, n in zip(arms, names, strict=True)}
    scale, x_label = axis(c.budget.unit, max((p[0] for m in drawn.values() for p in m.points), default=0.0))
    dashed = [n for a, n in zip(arms, names, strict=True) if a.arm.kind == "control"]
    heights = [y for m in drawn.values() for row in (*m.points, *m.band) for y in row[1:]]

    def chart(names: Sequence[str], title: str, *, bands: bool) -> Html:
        return svg_chart(
            {n: [(x / scale, y) for x, y in drawn[n].points] for n in names},
            title=title,
            y_label=visible(f"{c.measure}, mean of the seeds"),
            x_label=x_label,
            bands={n: _scaled(drawn[n], scale) for n in names} if bands else {},
            dashed=dashed,
            y_range=(min(heights), max(heights)) if heights else None,  # one scale for all pictures
        )

    together = len(names) <= TOGETHER
    note = " Runs that ended early are left out." if any(a.failed for a in arms) else ""
    band = "band: 95 % of the mean"
    title = visible(f"{c.measure} against {UNITS[c.budget.unit]}")
    out = [(chart(names, title, bands=together), f"{caption(c)}{f'; {band}' if together else ''}.{note}")]
    if not together:
        base = [n for a, n in zip(arms, names, strict=True) if a.arm.kind == "base"]
        for name in (n for n in names if n not in base):
            out.append((chart([*base, name], cut(name, 50), bands=True), f"{caption(c)}; {band}."))
    return charts(out)


def tasks(c: Comparison) -> list[Html]:
    """Held-out tasks that the arms get right more or less often than the base; empty where runs recorded none."""
    base = next((a for a in c.arms if a.arm.kind == "base"), None)
    others = [a for a in ordered(c) if a is not base]
    names = dict(zip((a.arm.label for a in others), _names(others), strict=True))
    changes = {names[a.arm.label]: task_changes(counted(a.runs), counted(base.runs)) for a in others} if base else {}
    changes = {name: found for name, found in changes.items() if found}
    if base is None or not changes:
        return []
    rows = [(name, *_counts(found)) for name, found in changes.items()]
    columns = ("arm", "tasks", "right more often", "less often", "as often", "from never to always",
               "from always to never")  # fmt: skip
    drawn = svg_chart(
        {name: [(i, t.change) for i, t in enumerate(found, 1)] for name, found in changes.items()},
        title=visible(f"Change of each held-out task, less {base.arm.label}"),
        y_label="share of seeds right, arm less base",
        x_label="tasks, from the largest gain to the largest loss",
        dashed=[names[a.arm.label] for a in others if a.arm.kind == "control"],
    )
    under = f"Last evaluation; {caption(c)}. Chance alone gives both gains and losses: the area between them counts."
    return [
        charts([(drawn, under)]),
        table(columns, rows, numbers=columns[1:], caption=f"Held-out tasks against {base.arm.label}; {caption(c)}"),
        *(
            folded(f"{name}: the tasks that changed most", _most(f, base), open=len(changes) == 1)
            for name, f in changes.items()
        ),
    ]


def axis(unit: Unit, largest: float) -> tuple[float, str]:
    """What the horizontal axis is divided by, and what it is called.

    >>> axis("tokens", 250_000), axis("seconds", 90.0)
    ((1000.0, 'thousand generated tokens'), (1.0, 'seconds of training'))
    """
    if unit == "seconds":
        return (60.0, "minutes of training") if largest >= 1200 else (1.0, UNITS[unit])
    for size, name in ((1e6, "million"), (1e3, "thousand")):
        if largest >= 10 * size:
            return size, f"{name} {UNITS[unit]}"
    return 1.0, UNITS[unit]


def _names(arms: Sequence[ArmSummary]) -> list[str]:
    """Labels short enough for a legend, unless two would be one."""
    full = [visible(marked(a)) for a in arms]
    short = [cut(n, LEGEND) for n in full]
    return short if len(set(short)) == len(full) else full


def _scaled(curve: MeanCurve, scale: float) -> list[tuple[float, float, float]]:
    return [(x / scale, low, high) for x, low, high in curve.band]


def _by_task(c: Comparison) -> bool:
    return any(r.after for a in c.arms for r in a.runs)


def _counts(found: Sequence[TaskChange]) -> tuple[int, ...]:
    return (
        len(found),
        sum(t.change > 0 for t in found),
        sum(t.change < 0 for t in found),
        sum(t.change == 0 for t in found),
        sum(t.base == 0 and t.arm == 1 for t in found),
        sum(t.base == 1 and t.arm == 0 for t in found),
    )


def _most(found: Sequence[TaskChange], base: ArmSummary) -> Html:
    most = sorted(found, key=lambda t: (-abs(t.change), t.task))[:CHANGED]
    rows = [(t.task[:200], number(t.base, 2), number(t.arm, 2), number(t.change, 2, sign=True)) for t in most]
    columns = ("task", base.arm.label, "arm", "change")
    return join([table(columns, rows, numbers=columns[1:], caption="share of seeds right in the last evaluation")])
