"""The diagnosis as one self-contained HTML page: `gxpo doctor --html FILE`."""

from __future__ import annotations

import math
import re

from gxpo.base.page import (
    Html,
    bullets,
    charts,
    finding,
    folded,
    masthead,
    page,
    paragraph,
    preformatted,
    section,
    svg_chart,
    table,
    verdict,
)
from gxpo.doctor.evidence import LIMITS
from gxpo.doctor.finding import Diagnosis, Finding
from gxpo.doctor.remedies import MEASURED, foremost
from gxpo.doctor.runlog import RunLog
from gxpo.doctor.series import NAMES

LONGEST = 2_000  # characters of a prompt or completion that are shown
SHARES = re.compile(
    r"^(eval/)?(success|zero_|truncated|clip_|weights_moved|gap_pearson|malformed|illegal|accuracy)|_rate$"
)
EXAMPLE = ("prompt", "completion", "reference", "score", "advantage")
ALWAYS = ("success", "reward", "eval/accuracy", "eval/reward")  # charted even if nothing quotes them


def html(diagnosis: Diagnosis, log: RunLog) -> str:
    """Render a diagnosis as one page: verdict, findings (consequences under their cause), quoted curves, files read,
    sicknesses not checked."""
    facts = [f"{diagnosis.source} run", f"{log.last_step:,} steps" if log.last_step else ""]
    if log.rollouts is not None and len(log.rollouts):
        facts.append(f"{len(log.rollouts):,} of {log.rollouts.total:,} rollouts read")
    body: Html = masthead("gxpo doctor", [f for f in facts if f]) + verdict_panel(diagnosis)
    roots = [f for f in diagnosis.findings if _is_root(f, diagnosis)]
    if roots:
        body += section("Findings", *(_with_consequences(f, diagnosis) for f in roots), id="findings")
    if chart_list := curves(diagnosis, log):
        body += section("Quoted figures", charts(chart_list), id="figures")
    body += section("What was read", *_read(diagnosis), id="read")
    if diagnosis.unchecked:
        rows: dict[tuple[str, str], list[str]] = {}
        for u in diagnosis.unchecked:
            rows.setdefault((u.why, u.enable), []).append(u.id)
        cells = [(", ".join(ids), reason, enable) for (reason, enable), ids in rows.items()]
        body += section("Not checked", table(("sickness", "why", "to enable"), cells, wide=True), id="unchecked")
    return page(f"gxpo doctor: {diagnosis.verdict}", body)


def verdict_panel(diagnosis: Diagnosis) -> Html:
    """Render the verdict with its first evidence and remedies."""
    if not diagnosis.read:
        return verdict("note", diagnosis.verdict, diagnosis.notes[:3], label="nothing read")
    lines = [diagnosis.progress] if diagnosis.progress else []
    if not diagnosis.is_conclusive:
        return verdict("note", diagnosis.verdict, [*lines, *diagnosis.advice], label="no verdict")
    if not diagnosis.sick:
        return verdict("healthy", diagnosis.verdict, lines, label="no alarm")
    first = diagnosis.findings[0]
    return verdict(
        first.severity,
        diagnosis.verdict,
        [*first.evidence[:2], *(f"Try: {r}" for r in foremost(first.remedy, 2)), *lines],
    )


def curves(diagnosis: Diagnosis, log: RunLog) -> list[tuple[str, str]]:
    """Chart and caption of each series that the evidence quotes, and of those that show the run's progress."""
    quoted = "\n".join(line for f in diagnosis.findings for line in f.evidence)
    charted = []
    for name, series in log.series.items():
        # a whole key: "kl" is not quoted by "actor/kl_loss"
        is_quoted = re.search(rf"(?<![\w/]){re.escape(series.key)}(?![\w/])", quoted) if series.key else None
        if (is_quoted is None and name not in ALWAYS) or not len(series.finite):
            continue
        points = list(zip(series.steps.tolist(), series.values.tolist(), strict=True))
        finite = [y for _, y in points if math.isfinite(y)]
        # a fixed scale lets shares be compared; a name alone does not make one, as some trainers log percentages
        share = bool(SHARES.search(name)) and min(finite) >= 0 and max(finite) <= 1
        meaning = NAMES.get(name, NAMES.get(f"{name.split('/')[0]}/NAME", ""))
        chart = svg_chart(
            {series.key: points},
            title=series.key,
            y_label="share" if share else "",
            y_range=(0.0, 1.0) if share else None,
        )
        charted.append((chart, meaning))
    return charted


def _is_root(finding: Finding, diagnosis: Diagnosis) -> bool:
    return finding.follows_from is None or not any(finding.follows_from in f.ids for f in diagnosis.findings)


def _with_consequences(cause: Finding, diagnosis: Diagnosis, ids_above: frozenset[str] = frozenset()) -> Html:
    # ids of several findings may name each other as their cause: without this the page would never end
    ids_above = ids_above | set(cause.ids)
    consequences = [f for f in diagnosis.findings if f.follows_from in cause.ids and ids_above.isdisjoint(f.ids)]
    parts = [paragraph(f"{cause.severity}, {cause.grade}: {' or '.join(cause.ids)}", soft=True)]
    parts.append(bullets(cause.evidence))
    for example in cause.examples:
        rows = [(key, _cell(example[key])) for key in EXAMPLE if example.get(key) not in (None, "")]
        parts.append(folded(f"rollout {example.get('where', '')}", table(("", ""), rows)))
    if any(MEASURED.search(line) for line in cause.remedy):
        parts.append(paragraph(f"measured: {LIMITS}", soft=True))
    parts.append(bullets([f"Try: {line}" for line in cause.remedy]))
    if consequences:
        inner = [_with_consequences(f, diagnosis, ids_above) for f in consequences]
        title = "1 consequence" if len(consequences) == 1 else f"{len(consequences)} consequences"
        parts.append(folded(title, *inner, open=True))
    return finding(cause.title, *parts)


def _cell(value: object) -> Html | str:
    if isinstance(value, str):
        cut = value if len(value) <= LONGEST else f"{value[:LONGEST]} [and {len(value) - LONGEST} characters]"
        return preformatted(cut)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _read(diagnosis: Diagnosis) -> list[Html]:
    files = diagnosis.read
    parts = [paragraph(", ".join(files[:6]) + (f" and {len(files) - 6:,} more" if len(files) > 6 else "") or "nothing")]
    parts += [paragraph(note, soft=True) for note in diagnosis.notes]
    return parts
