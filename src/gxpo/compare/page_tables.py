"""The tables of `compare.html`: figures, cost, runs in trouble, settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gxpo.base.page import Html, folded, paragraph, table
from gxpo.compare.conclude import collapsed
from gxpo.compare.curves import area, counted, known
from gxpo.compare.results import Comparison
from gxpo.compare.wording import caption, count, duration, interval, marked, number, ordered, places, probability


def figures(c: Comparison) -> list[Html]:
    """End points and differences; the other statistics folded."""
    found, digits = {d.arm: d for d in c.differences}, places(c)
    rows, more = [], []
    for a in ordered(c):
        d = found.get(a.arm.label)
        rows.append((
            marked(a), a.end.n, number(a.start.mean, digits), interval(a.end, digits),
            interval(d.end, digits, sign=True) if d else "", probability(d.end.p) if d else "",
            probability(d.p_adjusted) if d else "", interval(d.improves, 2) if d else "",
            d.verdict if d else "",
        ))  # fmt: skip
        more.append((
            marked(a), interval(a.middle, digits), interval(a.gain, digits, sign=True), interval(a.area, digits),
            interval(d.area, digits, sign=True) if d else "", number(d.end.by_seed, digits) if d else "",
            number(d.end.by_task, digits) if d else "", (d.seeds_needed or "unknown") if d else "",
        ))  # fmt: skip
    columns = ("arm", "seeds", "start", "end", "less base", "p", "p (Holm)", "chance of ending above", "verdict")
    others = ("arm", "interquartile mean of the end", "end less start", "mean over the budget", "less base",
              "error by seed", "error by task", "seeds needed")  # fmt: skip
    said = f"Means over seeds with 95 % intervals; {caption(c)}"
    return [
        table(columns, rows, numbers=columns[1:-1], caption=said, wide=True),
        folded("More figures", table(others, more, numbers=others[1:], caption=said, wide=True)),
    ]


def cost(c: Comparison) -> Html:
    """What a run of each arm spent, mean over the seeds."""
    rows = []
    for a in ordered(c):
        judged = [r.judge_tokens for r in counted(a.runs) if math.isfinite(r.judge_tokens)]
        judge = count(sum(judged) / len(judged)) if judged else "unknown"
        rows.append((marked(a), count(a.tokens), count(a.discarded), judge, count(a.updates), duration(a.seconds)))
    columns = ("arm", "generated tokens", "rollouts discarded", "tokens of judges and teachers", "updates", "time")
    said = f"Mean of a run; tokens of discarded rollouts are among the generated ones; {caption(c)}"
    return table(columns, rows, numbers=columns[1:], caption=said)


def trouble(c: Comparison) -> Html:
    """Runs that collapsed, and those that ended before their budget."""
    digits = places(c)
    counts, rows = [], []
    for a in ordered(c):
        counts.append((marked(a), len(a.runs), a.collapsed, len(a.failed)))
        fallen = [r for r in counted(a.runs) if collapsed(r, c.better)]
        for run in fallen if len(fallen) == a.collapsed else ():
            said = f"collapsed: best {number(run.best, digits)}, end {number(run.end, digits)}"
            rows.append((a.arm.label, run.seed, said, run.path))
        paths = {run.seed: run.path for run in a.runs}
        rows += [(a.arm.label, seed, f"ended early: {why}", paths.get(seed, "")) for seed, why in a.failed.items()]
    if not rows and not any(n for *_, n, m in counts for n in (n, m)):
        return paragraph(f"None of {sum(n for _, n, *_ in counts)} runs collapsed or ended before its budget.")
    columns = ("arm", "runs", "collapsed", "ended early")
    said = f"Collapsed: ended below half of its best evaluation; {caption(c)}"
    out = table(columns, counts, numbers=columns[1:], caption=said)
    listed = table(("arm", "seed", "what", "run"), rows, numbers=("seed",)) if rows else ""
    return out + (folded("These runs", listed, open=len(rows) <= 5) if rows else "")


def runs(c: Comparison) -> Html:
    """Every run, folded."""
    digits = places(c)
    rows = [
        (marked(a), r.seed, *(number(x, digits) for x in (known(r, "start"), known(r, "end"), area(r, c.budget))),
         count(known(r, "tokens")), count(known(r, "updates")), duration(known(r, "seconds")), r.path)
        for a in ordered(c)
        for r in a.runs
    ]  # fmt: skip
    columns = ("arm", "seed", "start", "end", "mean over the budget", "tokens", "updates", "time", "run")
    return folded(f"All {len(rows)} runs", table(columns, rows, numbers=columns[1:-1], caption=caption(c)))


def settings(c: Comparison) -> list[Html]:
    """The keys in which the arms differ, and those that they share."""
    arms = ordered(c)
    stated = {a.arm.label: {**a.arm.keys, **c.tuned.get(a.arm.label, {})} for a in arms}
    tuned = {key for keys in c.tuned.values() for key in keys}
    rows = []
    for key in sorted({k for keys in stated.values() for k in keys}, key=lambda k: (k != "method", k)):
        values = [keys.get(key, c.keys.get(key, "default")) for keys in stated.values()]
        if any(v != values[0] for v in values):
            rows.append((f"{key} (tuned)" if key in tuned else key, *map(_value, values)))
    shared: Mapping[str, Any] = {**c.keys, **_alike(list(stated.values()))}
    differ = {r[0].removesuffix(" (tuned)") for r in rows}
    common = [(k, _value(v)) for k, v in shared.items() if k not in differ]
    said = f"Keys in which arms differ; default: the method's or gxpo's own; {caption(c)}"
    return [
        table(("key", *(marked(a) for a in arms)), rows, caption=said)
        if rows
        else paragraph("The arms do not differ."),
        folded(f"The {len(common)} keys that all arms share", table(("", ""), common)) if common else Html(""),
    ]


def _alike(stated: list[dict[str, Any]]) -> dict[str, Any]:
    first, *others = stated or [{}]
    return {k: v for k, v in first.items() if all(k in o and o[k] == v for o in others)}


def _value(value: Any) -> str:
    """A key's value in a cell."""
    said = f"{value:g}" if isinstance(value, float) else str(value)
    return said if len(said) <= 200 else f"{said[:200]}\u2026"
