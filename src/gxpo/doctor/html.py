"""The diagnosis as one self-contained HTML page: `gxpo doctor --html FILE`."""

from __future__ import annotations

import math
import re

from gxpo.base.page import (
    Html,
    charts,
    folded,
    masthead,
    page,
    paragraph,
    preformatted,
    section,
    svg_chart,
    table,
    text,
    verdict,
)
from gxpo.doctor.evidence import LIMITS
from gxpo.doctor.finding import Diagnosis, Finding
from gxpo.doctor.remedies import MEASURED, foremost
from gxpo.doctor.runlog import NAMES, RunLog

LONGEST = 2_000  # characters of a prompt or completion that are shown
SHARES = re.compile(
    r"^(eval/)?(success|zero_|truncated|clip_|weights_moved|gap_pearson|malformed|illegal|accuracy)|_rate$"
)
EXAMPLE = ("prompt", "completion", "reference", "score", "advantage")
ALWAYS = ("success", "reward", "eval/accuracy", "eval/reward")  # drawn, quoted or not


def html(diagnosis: Diagnosis, log: RunLog) -> str:
    """Verdict, findings with evidence, rollouts and remedies, consequences under their cause, the curves that the
    evidence quotes, what was read and what could not be checked."""
    facts = [f"{diagnosis.source} run", f"{log.last_step:,} steps" if log.last_step else ""]
    if log.rollouts is not None and len(log.rollouts):
        facts.append(f"{len(log.rollouts):,} of {log.rollouts.of:,} rollouts read")
    body = masthead("gxpo doctor", [f for f in facts if f]) + said(diagnosis)
    roots = [f for f in diagnosis.findings if _is_root(f, diagnosis)]
    if roots:
        body += section("Findings", *(_with_consequences(f, diagnosis) for f in roots), id="findings")
    if drawn := curves(diagnosis, log):
        body += section("Quoted figures", charts(drawn), id="figures")
    body += section("What was read", *_read(diagnosis), id="read")
    if diagnosis.unchecked:
        rows: dict[tuple[str, str], list[str]] = {}
        for u in diagnosis.unchecked:
            rows.setdefault((u.why, u.enable), []).append(u.id)
        cells = [(", ".join(ids), why, enable) for (why, enable), ids in rows.items()]
        body += section("Not checked", table(("sickness", "why", "to enable"), cells, wide=True), id="unchecked")
    return page(f"gxpo doctor: {diagnosis.verdict}", body)


def said(diagnosis: Diagnosis) -> Html:
    """The verdict with what speaks for it and what to do."""
    if not diagnosis.read:
        return verdict("note", diagnosis.verdict, diagnosis.notes[:3], label="nothing read")
    lines = [diagnosis.progress] if diagnosis.progress else []
    if not diagnosis.sick:
        return verdict("healthy", diagnosis.verdict, lines, label="no alarm")
    first = diagnosis.findings[0]
    return verdict(
        first.severity,
        diagnosis.verdict,
        [*first.evidence[:2], *(f"Try: {r}" for r in foremost(first.remedy, 2)), *lines],
    )


def curves(diagnosis: Diagnosis, log: RunLog) -> list[tuple[str, str]]:
    """(chart, caption) of each series whose key stands in the evidence, and of how the run went."""
    quoted = "\n".join(line for f in diagnosis.findings for line in f.evidence)
    out = []
    for name, series in log.series.items():
        known = re.search(rf"(?<![\w/]){re.escape(series.key)}(?![\w/])", quoted) if series.key else None
        if (known is None and name not in ALWAYS) or not len(series.finite):
            continue
        points = list(zip(series.steps.tolist(), series.values.tolist(), strict=True))
        finite = [y for _, y in points if math.isfinite(y)]
        share = bool(SHARES.search(name)) and min(finite) >= 0 and max(finite) <= 1
        meaning = NAMES.get(name, NAMES.get(f"{name.split('/')[0]}/NAME", ""))
        chart = svg_chart(
            {series.key: points},
            title=series.key,
            y_label="share" if share else "",
            y_range=(0.0, 1.0) if share else None,
        )
        out.append((chart, meaning))
    return out


def _is_root(finding: Finding, diagnosis: Diagnosis) -> bool:
    return finding.follows_from is None or not any(finding.follows_from in f.ids for f in diagnosis.findings)


def _with_consequences(finding: Finding, diagnosis: Diagnosis, seen: frozenset[str] = frozenset()) -> Html:
    seen = seen | set(finding.ids)
    below = [f for f in diagnosis.findings if f.follows_from in finding.ids and seen.isdisjoint(f.ids)]
    parts = [_finding(finding)]
    if below:
        inner = [_with_consequences(f, diagnosis, seen) for f in below]
        title = "1 consequence" if len(below) == 1 else f"{len(below)} consequences"
        parts.append(folded(title, *inner, open=True))
    return Html(f'<div class="finding">{Html("").join(parts)}</div>\n')


def _finding(finding: Finding) -> Html:
    ids = " or ".join(finding.ids)
    head = Html(f"<h3>{text(finding.title)}</h3>")
    head += paragraph(f"{finding.severity}, {finding.grade}: {ids}", soft=True)
    evidence = Html("").join(Html(f"<li>{text(line)}</li>") for line in finding.evidence)
    parts = head + Html(f"<ul>{evidence}</ul>" if evidence else "")
    for example in finding.examples:
        rows = [(key, _shown(example[key])) for key in EXAMPLE if example.get(key) not in (None, "")]
        where = str(example.get("where", ""))
        parts += folded(f"rollout {where}", table(("", ""), rows))
    if any(MEASURED.search(line) for line in finding.remedy):
        parts += paragraph(f"measured: {LIMITS}", soft=True)
    if finding.remedy:
        parts += Html(f"<ul>{''.join(f'<li>Try: {text(line)}</li>' for line in finding.remedy)}</ul>")
    return Html(parts)


def _shown(value: object) -> Html | str:
    if isinstance(value, str):
        cut = value if len(value) <= LONGEST else f"{value[:LONGEST]} [and {len(value) - LONGEST} characters]"
        return preformatted(cut)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _read(diagnosis: Diagnosis) -> list[Html]:
    files = diagnosis.read
    parts = [paragraph(", ".join(files[:6]) + (f" and {len(files) - 6:,} more" if len(files) > 6 else "") or "nothing")]
    parts += [paragraph(note, soft=True) for note in diagnosis.notes]
    return parts
