"""The summary of a suite at the head of its page: in which settings the arms are told from the base, and their mean."""

from __future__ import annotations

from collections.abc import Sequence

from gxpo.base.page import Html, charts, section, table
from gxpo.base.page import verdict as verdict_part
from gxpo.base.page.forest_plot import Interval, forest_plot
from gxpo.compare import page_figures
from gxpo.compare.results import Comparison
from gxpo.compare.sentences import OverSettings, compared, over_settings
from gxpo.compare.wording import caption, interval, places, probability

COLUMNS = ("setting", "arm", "less base", "p (Holm)", "seeds", "verdict", "budget of a run", "measure")
FIGURES = ("less base", "p (Holm)", "seeds", "budget of a run")


def summary(comparisons: Sequence[Comparison]) -> Html:
    """Verdict over the settings, a table of all differences, a forest plot for each arm."""
    arms = over_settings(comparisons)
    said = [line for a in arms for line in a.said]
    single = [d for c in comparisons for d in compared(c)]
    decided = any(d.verdict != "undecided" for d in (*single, *arms))
    head = verdict_part(
        "healthy" if decided else "note", said[0] if said else "nothing is compared", said[1:], label="verdict"
    )
    shared = "; ".join(dict.fromkeys(caption(c, setting=False) for c in comparisons))
    under = f"{shared}. p is corrected for the number of arms within each setting, and again for the means."
    plots = charts([(_plot(a, comparisons), shared) for a in arms if a.difference]) if arms else ""
    return head + section(
        "All settings", table(COLUMNS, _rows(comparisons, arms), numbers=FIGURES, caption=under, wide=True), plots
    )


def _rows(comparisons: Sequence[Comparison], arms: Sequence[OverSettings]) -> list[Sequence[object]]:
    rows: list[Sequence[object]] = [
        (c.setting, d.arm, interval(d.end, places(c), sign=True), probability(d.p_adjusted), d.end.n, d.verdict,
         c.budget, c.measure)
        for c in comparisons
        for d in compared(c)
    ]  # fmt: skip
    digits = max((places(c) for c in comparisons), default=3)
    return rows + [
        (f"mean of {a.settings}", a.arm, interval(a.difference, digits, sign=True), probability(a.p), "", a.verdict,
         "", comparisons[0].measure)
        for a in arms
        if a.difference
    ]  # fmt: skip


def _plot(arm: OverSettings, comparisons: Sequence[Comparison]) -> Html:
    rows = [
        page_figures.row_of(c.setting, d, d.end, places(c))
        for c in comparisons
        for d in compared(c)
        if d.arm == arm.arm
    ]
    mean = arm.difference
    if mean:
        label, digits = f"mean of {arm.settings} settings", max(places(c) for c in comparisons)
        said = interval(mean, digits, sign=True)
        rows.append(Interval(label, mean.mean, mean.low, mean.high, said, page_figures.SIDES[arm.verdict]))
    return forest_plot(
        rows,
        title=f"{arm.arm} less {arm.against}",
        y_label=f"{comparisons[0].measure}, mean and 95 % interval",
        below="\u2190 worse",
        above="better \u2192",
    )
