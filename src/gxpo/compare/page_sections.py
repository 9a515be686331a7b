"""Sections of `compare.html`: figures of differences, curves and held-out tasks; tables of cost, runs, settings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gxpo.base.page import Html, charts, folded, paragraph, svg_chart, table
from gxpo.base.page.forest_plot import Interval, cut, forest_plot
from gxpo.base.page.text import join, visible
from gxpo.compare.conclude import area, has_collapsed, usable_runs
from gxpo.compare.curves import MeanCurve, figure_or_nan, mean_curve
from gxpo.compare.results import ArmSummary, Comparison, Difference, Estimate, RunResult, Unit
from gxpo.compare.wording import (
    UNITS,
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


# ---------------------------------------------------------------- task changes
# Changes from base to arm by held-out task.
@dataclass(frozen=True)
class TaskChange:
    """Mean verdict of a held-out task in the last evaluation, over the paired seeds."""

    task: str
    base: float
    arm: float

    @property
    def change(self) -> float:
        return self.arm - self.base


def task_changes(arm: Sequence[RunResult], base: Sequence[RunResult]) -> list[TaskChange]:
    """Changes of all tasks that paired runs recorded, from the largest gain to the largest loss, ties by name."""
    base_by_seed = {run.seed: run for run in base}
    sums: dict[str, tuple[float, float, int]] = {}
    for run in arm:
        base_verdicts = base_by_seed[run.seed].after if run.seed in base_by_seed else {}
        for task in run.after.keys() & base_verdicts.keys():
            base_sum, arm_sum, n = sums.get(task, (0.0, 0.0, 0))
            sums[task] = (base_sum + base_verdicts[task], arm_sum + run.after[task], n + 1)
    changes = [TaskChange(task, base_sum / n, arm_sum / n) for task, (base_sum, arm_sum, n) in sums.items()]
    return sorted(changes, key=lambda c: (-c.change, c.task))


# ---------------------------------------------------------------- page figures
TOGETHER = 3  # most curves with bands in one picture: more would hide one another
MOST_CHANGED = 10
LEGEND = 48  # letters of a name in a legend
SIDES: Mapping[str, Literal["above", "below", "neither"]] = {
    "better": "above", "worse": "below", "undecided": "neither", "equal": "neither"
}  # fmt: skip


def row_of(label: str, difference: Difference, estimate: Estimate, digits: int, *, control: bool = False) -> Interval:
    """Row of a forest plot, coloured by the verdict: the interval alone ignores the correction for several arms."""
    text = interval(estimate, digits, sign=True)
    side = SIDES[difference.verdict] if estimate is difference.end else "neither"
    return Interval(label, estimate.mean, estimate.low, estimate.high, text, side, control)


def differences(comparison: Comparison) -> Html:
    """Section of forest plots: the difference at the end and over the whole budget."""
    difference_by_arm = {d.arm: d for d in comparison.differences}
    arm_differences = [
        (a, difference_by_arm[a.arm.label]) for a in sort_arms(comparison) if a.arm.label in difference_by_arm
    ]
    plotted = [
        (a, d) for a, d in arm_differences if a.arm.kind != "control"
    ] or arm_differences  # a control's distance would set the scale
    if not plotted:
        return paragraph("There is no arm beside the base.")
    against, digits = plotted[0][1].against, places(comparison.arms)
    # The figure at the end has verdicts; the one over the budget is for the eye alone, and has none.
    plots = []
    for title, field in ((f"At the end, less {against}", "end"), (f"Mean over the budget, less {against}", "area")):
        rows = [
            row_of(label_with_kind(a), d, getattr(d, field), digits, control=a.arm.kind == "control")
            for a, d in plotted
        ]
        plot = forest_plot(
            rows,
            title=title,
            y_label=f"{comparison.measure}, {comparison.better} is better; mean and 95 % interval",
            below="\u2190 worse" if comparison.better == "more" else "\u2190 worse (more)",
            above="better \u2192" if comparison.better == "more" else "better (less) \u2192",
        )
        plots.append(
            (plot, f"{caption(comparison)}; paired by seed{' and held-out task' if _by_task(comparison) else ''}.")
        )
    filled = "Filled: told from 0 at 5 %, corrected for the number of arms. Hollow: not." if len(plotted) > 1 else ""
    return charts([(plots[0][0], f"{plots[0][1]} {filled}"), plots[1]])


def curves(comparison: Comparison) -> Html:
    """Section of mean curves over the budget, with bands; with many arms also one picture for each."""
    arms = sort_arms(comparison)
    names = _names(arms)
    curve_by_name = {n: mean_curve(a.runs, comparison.budget) for a, n in zip(arms, names, strict=True)}
    # Budgets may be millions of tokens: the axis has a unit of its own.
    scale, x_label = axis(
        comparison.budget.unit, max((p[0] for m in curve_by_name.values() for p in m.points), default=0.0)
    )
    dashed = [n for a, n in zip(arms, names, strict=True) if a.arm.kind == "control"]
    heights = [y for m in curve_by_name.values() for row in (*m.points, *m.band) for y in row[1:]]

    def chart(names: Sequence[str], title: str, *, bands: bool) -> Html:
        return svg_chart(
            {n: [(x / scale, y) for x, y in curve_by_name[n].points] for n in names},
            title=title,
            y_label=visible(f"{comparison.measure}, mean of the seeds"),
            x_label=x_label,
            bands={n: _scale_band(curve_by_name[n], scale) for n in names} if bands else {},
            dashed=dashed,
            y_range=(min(heights), max(heights)) if heights else None,  # one scale for all pictures
        )

    # All curves in one picture, with bands only while these can be told apart; then each arm beside the base.
    together = len(names) <= TOGETHER
    note = " Runs that ended early are left out." if any(a.failed for a in arms) else ""
    band = "band: 95 % of the mean"
    title = visible(f"{comparison.measure} against {UNITS[comparison.budget.unit]}")
    out = [(chart(names, title, bands=together), f"{caption(comparison)}{f'; {band}' if together else ''}.{note}")]
    if not together:
        base = [n for a, n in zip(arms, names, strict=True) if a.arm.kind == "base"]
        for name in (n for n in names if n not in base):
            out.append((chart([*base, name], cut(name, 50), bands=True), f"{caption(comparison)}; {band}."))
    return charts(out)


def tasks(comparison: Comparison) -> list[Html]:
    """Section of held-out tasks that arms solve more or less often than the base; empty if runs recorded none."""
    base = next((a for a in comparison.arms if a.arm.kind == "base"), None)
    other_arms = [a for a in sort_arms(comparison) if a is not base]
    names = dict(zip((a.arm.label for a in other_arms), _names(other_arms), strict=True))
    changes = (
        {names[a.arm.label]: task_changes(usable_runs(a.runs), usable_runs(base.runs)) for a in other_arms}
        if base
        else {}
    )
    changes = {name: task_list for name, task_list in changes.items() if task_list}
    if base is None or not changes:
        return []
    # Sorted from gain to loss, an arm that only adds noise draws as much area above 0 as below.
    rows = [(name, *_counts(task_list)) for name, task_list in changes.items()]
    columns = ("arm", "tasks", "right more often", "less often", "as often", "from never to always",
               "from always to never")  # fmt: skip
    chart = svg_chart(
        {name: [(i, t.change) for i, t in enumerate(task_list, 1)] for name, task_list in changes.items()},
        title=visible(f"Change of each held-out task, less {base.arm.label}"),
        y_label="share of seeds right, arm less base",
        x_label="tasks, from the largest gain to the largest loss",
        dashed=[names[a.arm.label] for a in other_arms if a.arm.kind == "control"],
    )
    chart_caption = (
        f"Last evaluation; {caption(comparison)}. Chance alone gives both gains and losses: the area between them "
        "counts."
    )
    return [
        charts([(chart, chart_caption)]),
        table(
            columns,
            rows,
            numbers=columns[1:],
            caption=f"Held-out tasks against {base.arm.label}; {caption(comparison)}",
        ),
        *(
            folded(f"{name}: the tasks that changed most", _most_changed(f, base), open=len(changes) == 1)
            for name, f in changes.items()
        ),
    ]


def axis(unit: Unit, largest: float) -> tuple[float, str]:
    """Divisor and label of the horizontal axis.

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
    """Labels shortened for a legend, unless two would become equal."""
    full = [visible(label_with_kind(a)) for a in arms]
    short = [cut(n, LEGEND) for n in full]
    return short if len(set(short)) == len(full) else full


def _scale_band(curve: MeanCurve, scale: float) -> list[tuple[float, float, float]]:
    return [(x / scale, low, high) for x, low, high in curve.band]


def _by_task(c: Comparison) -> bool:
    return any(r.after for a in c.arms for r in a.runs)


def _counts(changes: Sequence[TaskChange]) -> tuple[int, ...]:
    return (
        len(changes),
        sum(t.change > 0 for t in changes),
        sum(t.change < 0 for t in changes),
        sum(t.change == 0 for t in changes),
        sum(t.base == 0 and t.arm == 1 for t in changes),
        sum(t.base == 1 and t.arm == 0 for t in changes),
    )


def _most_changed(changes: Sequence[TaskChange], base: ArmSummary) -> Html:
    largest_changes = sorted(changes, key=lambda t: (-abs(t.change), t.task))[:MOST_CHANGED]
    rows = [
        (t.task[:200], number(t.base, 2), number(t.arm, 2), number(t.change, 2, sign=True)) for t in largest_changes
    ]
    columns = ("task", base.arm.label, "arm", "change")
    return join([table(columns, rows, numbers=columns[1:], caption="share of seeds right in the last evaluation")])


# ---------------------------------------------------------------- tables
def figures(comparison: Comparison) -> list[Html]:
    """Table of end points and differences, and a folded one of the other statistics."""
    difference_by_arm, digits = {d.arm: d for d in comparison.differences}, places(comparison.arms)
    rows, other_rows = [], []
    for summary in sort_arms(comparison):
        d = difference_by_arm.get(summary.arm.label)
        rows.append((
            label_with_kind(summary), summary.end.n, number(summary.start.mean, digits), interval(summary.end, digits),
            interval(d.end, digits, sign=True) if d else "", probability(d.end.p) if d else "",
            probability(d.p_adjusted) if d else "", interval(d.improves, 2) if d else "",
            d.verdict if d else "",
        ))  # fmt: skip
        other_rows.append((
            label_with_kind(summary), interval(summary.middle, digits), interval(summary.gain, digits, sign=True),
            interval(summary.area, digits), interval(d.area, digits, sign=True) if d else "",
            number(d.end.by_seed, digits) if d else "",
            number(d.end.by_task, digits) if d else "", (d.seeds_needed or "unknown") if d else "",
        ))  # fmt: skip
    columns = ("arm", "seeds", "start", "end", "less base", "p", "p (Holm)", "chance of ending above", "verdict")
    other_columns = ("arm", "interquartile mean of the end", "end less start", "mean over the budget", "less base",
              "error by seed", "error by task", "seeds needed")  # fmt: skip
    note = f"Means over seeds with 95 % intervals; {caption(comparison)}"
    return [
        table(columns, rows, numbers=columns[1:-1], caption=note, wide=True),
        folded("More figures", table(other_columns, other_rows, numbers=other_columns[1:], caption=note, wide=True)),
    ]


def cost(comparison: Comparison) -> Html:
    """Table of the cost of a run of each arm, mean over the seeds."""
    rows = []
    for a in sort_arms(comparison):
        judged = [r.judge_tokens for r in usable_runs(a.runs) if math.isfinite(r.judge_tokens)]
        judge = count(sum(judged) / len(judged)) if judged else "unknown"
        rows.append(
            (label_with_kind(a), count(a.tokens), count(a.discarded), judge, count(a.updates), duration(a.seconds))
        )
    columns = ("arm", "generated tokens", "rollouts discarded", "tokens of judges and teachers", "updates", "time")
    note = f"Mean of a run; tokens of discarded rollouts are among the generated ones; {caption(comparison)}"
    return table(columns, rows, numbers=columns[1:], caption=note)


def trouble(comparison: Comparison) -> Html:
    """Table of runs that collapsed or ended before their budget."""
    digits = places(comparison.arms)
    counts, rows = [], []
    for summary in sort_arms(comparison):
        counts.append((label_with_kind(summary), len(summary.runs), summary.collapsed, len(summary.failed)))
        collapsed_runs = [r for r in usable_runs(summary.runs) if has_collapsed(r, comparison.better)]
        # Counts come from the comparison, and paths only where they agree with it: an old file may lack its runs.
        for run in collapsed_runs if len(collapsed_runs) == summary.collapsed else ():
            description = f"collapsed: best {number(run.best, digits)}, end {number(run.end, digits)}"
            rows.append((summary.arm.label, run.seed, description, run.path))
        paths = {run.seed: run.path for run in summary.runs}
        rows += [
            (summary.arm.label, seed, f"ended early: {reason}", paths.get(seed, ""))
            for seed, reason in summary.failed.items()
        ]
    if not rows and not any(n for *_, n, m in counts for n in (n, m)):
        return paragraph(f"None of {sum(n for _, n, *_ in counts)} runs collapsed or ended before its budget.")
    columns = ("arm", "runs", "collapsed", "ended early")
    description = f"Collapsed: ended below half of its best evaluation; {caption(comparison)}"
    count_table = table(columns, counts, numbers=columns[1:], caption=description)
    run_table = table(("arm", "seed", "what", "run"), rows, numbers=("seed",)) if rows else ""
    return count_table + (folded("These runs", run_table, open=len(rows) <= 5) if rows else "")


def runs(comparison: Comparison) -> Html:
    """Folded table of all runs."""
    digits = places(comparison.arms)
    rows = [
        (label_with_kind(a), r.seed, number(figure_or_nan(r, "start"), digits), number(figure_or_nan(r, "end"), digits),
         number(area(r, comparison.budget), digits), count(figure_or_nan(r, "tokens")),
         count(figure_or_nan(r, "updates")), duration(figure_or_nan(r, "seconds")), r.path)
        for a in sort_arms(comparison)
        for r in a.runs
    ]  # fmt: skip
    columns = ("arm", "seed", "start", "end", "mean over the budget", "tokens", "updates", "time", "run")
    return folded(f"All {len(rows)} runs", table(columns, rows, numbers=columns[1:-1], caption=caption(comparison)))


def settings(comparison: Comparison) -> list[Html]:
    """Tables of the keys in which the arms differ, and of those that they share."""
    arms = sort_arms(comparison)
    keys_by_arm = {a.arm.label: {**a.arm.keys, **comparison.tuned.get(a.arm.label, {})} for a in arms}
    tuned = {key for keys in comparison.tuned.values() for key in keys}
    rows = []
    for key in sorted({k for keys in keys_by_arm.values() for k in keys}, key=lambda k: (k != "method", k)):
        values = [keys.get(key, comparison.keys.get(key, "default")) for keys in keys_by_arm.values()]
        # A key in which arms do not differ goes to the table of shared keys.
        if any(v != values[0] for v in values):
            rows.append((f"{key} (tuned)" if key in tuned else key, *map(_value, values)))
    shared_keys: Mapping[str, Any] = {**comparison.keys, **_shared_keys(list(keys_by_arm.values()))}
    differ = {r[0].removesuffix(" (tuned)") for r in rows}
    shared_rows = [(k, _value(v)) for k, v in shared_keys.items() if k not in differ]
    note = f"Keys in which arms differ; default: the method's or gxpo's own; {caption(comparison)}"
    return [
        table(("key", *(label_with_kind(a) for a in arms)), rows, caption=note)
        if rows
        else paragraph("The arms do not differ."),
        folded(f"The {len(shared_rows)} keys that all arms share", table(("", ""), shared_rows))
        if shared_rows
        else Html(""),
    ]


def _shared_keys(keys_of_arms: list[dict[str, Any]]) -> dict[str, Any]:
    first, *other_keys = keys_of_arms or [{}]
    return {k: v for k, v in first.items() if all(k in o and o[k] == v for o in other_keys)}


def _value(value: Any) -> str:
    """Value of a key, cut to fit a cell."""
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 200 else f"{text[:200]}\u2026"
