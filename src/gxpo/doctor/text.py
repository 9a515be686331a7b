"""The diagnosis as text on a terminal."""

from __future__ import annotations

from gxpo.doctor.finding import Diagnosis, Finding
from gxpo.doctor.sickness import SICKNESSES, STAGES

SHOWN = 300  # characters of a prompt or completion


def text(diagnosis: Diagnosis, *, whole: bool = False) -> str:
    """Verdict, progress, findings with evidence, rollouts and remedies, consequences under their cause; what was read
    and what could not be checked. `whole`: also notes."""
    lines = [f"{diagnosis.source} run: {diagnosis.verdict}"]
    if diagnosis.progress:
        lines.append(diagnosis.progress)
    depth: dict[str, int] = {}
    for number, finding in enumerate(
        f for f in diagnosis.findings if whole or f.severity != "note" or not diagnosis.sick
    ):
        depth[finding.ids[0]] = depth.get(finding.follows_from or "", -1) + 1
        lines += ["", *_finding(finding, number == 0, depth[finding.ids[0]])]
    lines += ["", f"read: {_listed(diagnosis.read)}"]
    lines += [f"note: {note}" for note in diagnosis.notes]
    by_line: dict[tuple[str, str], list[str]] = {}
    for u in diagnosis.unchecked:
        by_line.setdefault((u.why, u.enable), []).append(u.id)
    for (why, enable), ids in by_line.items():
        lines.append(f"not checked, {why}: {', '.join(ids)}. To enable: {enable}")
    return "\n".join(lines)


def _finding(finding: Finding, first: bool, depth: int) -> list[str]:
    indent = "    " * depth
    ids = " or ".join(finding.ids)
    head = f"{finding.severity}, {finding.grade}: {finding.title} [{ids}]"
    if finding.follows_from:
        head = f"follows from {finding.follows_from}: {head}"
    lines = [indent + head, *(f"{indent}  - {line}" for line in finding.evidence)]
    for example in finding.examples if first or not depth else ():
        lines.append(f"{indent}  rollout {example.get('where', '')}")
        for key in ("prompt", "completion", "reference", "score", "advantage"):
            if example.get(key) not in (None, ""):
                lines.append(f"{indent}    {key}: {_short(example[key])}")
    if not depth:
        lines += [f"{indent}  try: {line}" for line in finding.remedy]
    return lines


def _short(value: object) -> str:
    shown = repr(value) if isinstance(value, str) else f"{value:.4g}" if isinstance(value, float) else str(value)
    return shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}... ({len(shown)} characters)"


def _listed(files: list[str]) -> str:
    return ", ".join(files[:6]) + (f" and {len(files) - 6} more" if len(files) > 6 else "") if files else "nothing"


def known() -> str:
    """Every sickness by stage with its statistic, as `gxpo doctor --list` prints them."""
    lines = []
    for number, stage in enumerate(STAGES):
        lines += [f"{number + 1}. {stage}"]
        for s in SICKNESSES.values():
            if s.stage == number:
                lines += [f"   {s.id:<32}{s.title}", f"   {'':<32}{s.statistic}"]
    return "\n".join(lines)
