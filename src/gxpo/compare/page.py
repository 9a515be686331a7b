"""`compare.html`: one self-contained page of a comparison, or of several, that can be sent to a colleague."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from gxpo.base.page import (
    Html,
    charts,
    folded,
    key_figures,
    masthead,
    page,
    paragraph,
    preformatted,
    section,
    table,
)
from gxpo.base.page import verdict as verdict_part
from gxpo.base.page.forest_plot import Interval, forest_plot
from gxpo.base.page.text import join
from gxpo.compare import page_sections
from gxpo.compare.results import Comparison
from gxpo.compare.sentences import OverSettings, differences_of_arms, over_settings, verdict
from gxpo.compare.wording import (
    UNITS,
    caption,
    count,
    duration,
    interval,
    join_words,
    places,
    probability,
)
from gxpo.training.checkpoint import write_atomic

# ---------------------------------------------------------------- page suite
# The head of a suite's page: in which settings arms differ from the base, and the mean over the settings.
COLUMNS = ("setting", "arm", "less base", "p (Holm)", "seeds", "verdict", "budget of a run", "measure")
FIGURES = ("less base", "p (Holm)", "seeds", "budget of a run")


def summary(comparisons: Sequence[Comparison]) -> Html:
    """Summary of a suite: verdict over the settings, a table of all differences, a forest plot for each arm."""
    arms = over_settings(comparisons)
    sentences = [line for a in arms for line in a.sentences]
    single = [d for c in comparisons for d in differences_of_arms(c)]
    decided = any(d.verdict in ("better", "worse") for d in (*single, *arms))
    head = verdict_part(
        "healthy" if decided else "note",
        sentences[0] if sentences else "nothing is compared",
        sentences[1:],
        label="verdict",
    )
    shared_caption = "; ".join(dict.fromkeys(caption(c, setting=False) for c in comparisons))
    table_caption = (
        f"{shared_caption}. p is corrected for the number of arms within each setting, and again for the means."
    )
    plots = charts([(_summary_plot(a, comparisons), shared_caption) for a in arms if a.difference]) if arms else ""
    return head + section(
        "All settings",
        table(COLUMNS, _summary_rows(comparisons, arms), numbers=FIGURES, caption=table_caption, wide=True),
        plots,
    )


def _summary_rows(comparisons: Sequence[Comparison], arms: Sequence[OverSettings]) -> list[Sequence[object]]:
    rows: list[Sequence[object]] = [
        (c.setting, d.arm, interval(d.end, places(c.arms), sign=True), probability(d.p_adjusted), d.end.n, d.verdict,
         c.budget, c.measure)
        for c in comparisons
        for d in differences_of_arms(c)
    ]  # fmt: skip
    # One precision for all rows of the table.
    digits = max((places(c.arms) for c in comparisons), default=3)
    return rows + [
        (f"mean of {a.settings}", a.arm, interval(a.difference, digits, sign=True), probability(a.p), "", a.verdict,
         "", comparisons[0].measure)
        for a in arms
        if a.difference
    ]  # fmt: skip


def _summary_plot(arm: OverSettings, comparisons: Sequence[Comparison]) -> Html:
    rows = [
        page_sections.row_of(c.setting, d, d.end, places(c.arms))
        for c in comparisons
        for d in differences_of_arms(c)
        if d.arm == arm.arm
    ]
    mean = arm.difference
    if mean:
        label, digits = f"mean of {arm.settings} settings", max(places(c.arms) for c in comparisons)
        label_interval = interval(mean, digits, sign=True)
        rows.append(Interval(label, mean.mean, mean.low, mean.high, label_interval, page_sections.SIDES[arm.verdict]))
    return forest_plot(
        rows,
        title=f"{arm.arm} less {arm.against}",
        y_label=f"{comparisons[0].measure}, mean and 95 % interval",
        below="\u2190 worse",
        above="better \u2192",
    )


# ---------------------------------------------------------------- page
STYLE = (
    ".scroll+.charts,details>section{margin-top:1.7rem}.charts+.scroll{margin-top:1.6rem}.scroll+details{margin-top:.8rem}table{min-width:min(38rem,100%)}"
    "td:first-child{overflow-wrap:anywhere;min-width:7rem}details>.verdict{margin-top:.8rem}"
    ".said,summary,li{overflow-wrap:anywhere}caption{max-width:min(60rem,calc(100vw - 1.8rem))}"
)


def page_of(comparisons: Sequence[Comparison], out: str | Path) -> Path:
    """Write the page of one or several comparisons, and return its path.

    comparisons  one, or those of a suite: then a summary comes first and each comparison is folded
    out          the file

    All text from users, models and files is escaped; the page fetches nothing. `ValueError` without a comparison,
    `CheckpointError` if the file can't be written.
    """
    if not comparisons:
        raise ValueError("no comparison to make a page of")
    if len(comparisons) == 1:
        c = comparisons[0]
        # One comparison is shown open; of several only their verdicts, with the rest folded below.
        title = _title(c)
        body = masthead(title, _facts(c)) + _verdict(c) + join(_body(c))
    else:
        title = f"{_arms(comparisons)} in {len(comparisons)} settings"
        sections = [folded(f"{c.setting}: {verdict(c)[0]}", _verdict(c), *_body(c)) for c in comparisons]
        body = masthead(title, _shared_facts(comparisons)) + summary(comparisons) + join(sections)
    path = Path(out)
    write_atomic(path, page(f"gxpo compare: {title}", body, style=STYLE).encode("utf-8", "replace"))
    return path


def _body(comparison: Comparison) -> list[Html]:
    """Sections of a comparison below its verdict."""
    task_sections = page_sections.tasks(comparison)
    absent = paragraph("The runs recorded no verdicts of held-out tasks.", soft=True)
    versions = ", ".join(f"{name} {version}" for name, version in comparison.versions.items())
    return [
        _key_figures(comparison),
        section("Differences", page_sections.differences(comparison), *page_sections.figures(comparison)),
        section("Curves", page_sections.curves(comparison)),
        section("Held-out tasks", *(task_sections or [absent])),
        section("Cost", page_sections.cost(comparison)),
        section("Collapsed and failed runs", page_sections.trouble(comparison), page_sections.runs(comparison)),
        section("Settings", *page_sections.settings(comparison)),
        section(
            "To make it again",
            preformatted("\n".join(comparison.commands), boxed=True)
            if comparison.commands
            else paragraph("No command is known."),
            paragraph(versions or "Versions unknown.", soft=True),
        ),
    ]


def _title(comparison: Comparison) -> str:
    base = next((a.arm.label for a in comparison.arms if a.arm.kind == "base"), "")
    arms = [a.arm.label for a in comparison.arms if a.arm.kind == "arm"]
    subject = join_words(arms) if len(arms) <= 3 else f"{len(arms)} methods"
    return f"{subject} against {base}: {comparison.setting}" if arms and base else comparison.setting


def _arms(comparisons: Sequence[Comparison]) -> str:
    arms = list(dict.fromkeys(a.arm.label for c in comparisons for a in c.arms if a.arm.kind == "arm"))
    return join_words(arms) if len(arms) <= 3 else f"{len(arms)} methods"


def _facts(comparison: Comparison) -> list[str]:
    out = [f"model {comparison.keys['model']}"] if "model" in comparison.keys else []
    out += (
        [f"task {comparison.keys['task']}"]
        if "task" in comparison.keys and comparison.keys["task"] != comparison.setting
        else []
    )
    out.append(caption(comparison))
    return [
        *out,
        *(f"{name} {comparison.versions[name]}" for name in ("gxpo", "commit") if name in comparison.versions),
    ]


def _shared_facts(comparisons: Sequence[Comparison]) -> list[str]:
    """Facts that all comparisons have in common."""
    first = _facts(comparisons[0])
    return [fact for fact in first if all(fact in _facts(c) for c in comparisons)]


def _verdict(comparison: Comparison) -> Html:
    """The verdict, then the caveats."""
    headline, *sentences = verdict(comparison)
    decided = {d.verdict for d in differences_of_arms(comparison)} & {"better", "worse"}
    kind: Literal["healthy", "warning", "note"] = "healthy" if "better" in decided else "warning" if decided else "note"
    return verdict_part(kind, headline, [*sentences, *comparison.notes], label="verdict")


def _key_figures(comparison: Comparison) -> Html:
    seeds = sorted({a.end.n for a in comparison.arms})
    tasks = {len(r.after) for a in comparison.arms for r in a.runs} - {0}
    runs = sum(len(a.runs) for a in comparison.arms)
    n_collapsed, n_failed = sum(a.collapsed for a in comparison.arms), sum(len(a.failed) for a in comparison.arms)
    amount = (
        duration(comparison.budget.amount) if comparison.budget.unit == "seconds" else count(comparison.budget.amount)
    )
    troubles = [f"{n} {word}" for n, word in ((n_collapsed, "collapsed"), (n_failed, "ended early")) if n]
    return key_figures(
        [
            ("seeds of each arm", "\u2013".join(map(str, dict.fromkeys([seeds[0], seeds[-1]]))) if seeds else "0"),
            (
                "budget of a run",
                amount,
                "of training" if comparison.budget.unit == "seconds" else UNITS[comparison.budget.unit],
            ),
            *([("held-out tasks", f"{max(tasks):,}")] if tasks else []),
            ("runs", f"{runs:,}", join_words(troubles) if troubles else ""),
        ]
    )
