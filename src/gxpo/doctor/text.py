"""The diagnosis as text on a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from gxpo.doctor.evidence import LIMITS
from gxpo.doctor.finding import Diagnosis, Finding, Unchecked
from gxpo.doctor.remedies import MEASURED, UNTESTED
from gxpo.doctor.sickness import SICKNESSES, STAGES

SHOWN = 300  # characters of a prompt or completion
MOST = 6  # lines of what was not checked


def text(diagnosis: Diagnosis, *, whole: bool = False) -> str:
    """Verdict, progress, findings with evidence, rollouts and remedies, consequences under their cause; what was read
    and what could not be checked. `whole`: also notes."""
    lines = [f"{diagnosis.source} run: {diagnosis.verdict}"]
    lines += diagnosis.progress.split("; ") if diagnosis.progress else []
    depth: dict[str, int] = {}
    shown: dict[str, set[str]] = {}  # evidence of a finding and its causes, which consequences need not repeat
    for number, finding in enumerate(
        f for f in diagnosis.findings if whole or f.severity != "note" or not diagnosis.sick
    ):
        name, cause = finding.ids[0], finding.follows_from or ""
        depth[name] = depth.get(cause, -1) + 1
        before = shown.get(cause, set())
        shown[name] = before | set(finding.evidence)
        lines += ["", *_finding(finding, number == 0, depth[name], before)]
    lines += ["", f"read: {_listed(diagnosis.read)}"]
    lines += [f"note: {note}" for note in diagnosis.notes]
    lines += _unchecked(diagnosis.unchecked)
    return "\n".join(lines)


def _unchecked(left: Sequence[Unchecked]) -> list[str]:
    """A line for each reason, those that hide most first."""
    by_line: dict[tuple[str, str], list[str]] = {}
    for u in left:
        by_line.setdefault((u.why, u.enable), []).append(u.id)
    ordered = sorted(by_line.items(), key=lambda item: -len(item[1]))
    lines = [f"not checked, {why}: {', '.join(ids)}; to check: {enable}" for (why, enable), ids in ordered]
    if len(lines) > MOST:
        rest = [name for _, ids in ordered[MOST - 1 :] for name in ids]
        lines[MOST - 1 :] = [f"not checked either, see --json: {', '.join(rest)}"]
    return lines


def _finding(finding: Finding, first: bool, depth: int, before: set[str]) -> list[str]:
    """`before`: evidence that stands above already."""
    indent = "    " * depth
    ids = " or ".join(finding.ids)
    head = f"{finding.severity}, {finding.grade}: {finding.title} [{ids}]"
    if finding.follows_from:
        head = f"follows from {finding.follows_from}: {head}"
    lines = [indent + head, *(f"{indent}  - {line}" for line in finding.evidence if line not in before)]
    for example in finding.examples if first or not depth else ():
        lines.append(f"{indent}  rollout {example.get('where', '')}")
        for key in ("prompt", "completion", "reference", "score", "advantage"):
            if example.get(key) not in (None, ""):
                lines.append(f"{indent}    {key}: {_short(example[key])}")
    return lines if depth else [*lines, *_remedies(finding)]


def _remedies(finding: Finding) -> list[str]:
    """Remedies under a heading for each sickness and for what is known of them: those that helped in measurements (the
    limits are said once), the untested, those that did not help; what was computed by itself."""
    lines, heading, limits = [], "", f": {LIMITS}"
    for line in finding.remedy:
        m = MEASURED.search(line)
        if m is None and not line.endswith(UNTESTED):
            lines.append(f"  {line}")
            continue
        said = line[: m.start()] if m else line.removesuffix(UNTESTED).rstrip()
        name = next((i for i in finding.ids if len(finding.ids) > 1 and said.startswith(f"{i}: ")), "")
        kind = f"try {UNTESTED}" if m is None else "no clear gain" if m["but"] else "try"
        if (new := f"  {f'if {name}, ' if name else ''}{kind}") != heading:
            heading = new
            lines.append(f"{new} ({m['where']}{limits}):" if m else f"{new}:")
            limits = "" if m else limits
        figures = f": {f'{but}, ' if (but := m['but']) else ''}{m['figures']}" if m else ""
        lines.append(f"    - {said.removeprefix(f'{name}: ')}{figures}")
    return lines


def _short(value: object) -> str:
    shown = repr(value) if isinstance(value, str) else f"{value:.4g}" if isinstance(value, float) else str(value)
    return shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}... ({len(shown)} characters)"


def _listed(files: list[str]) -> str:
    """Files; many of one directory and suffix as one pattern."""
    alike: dict[str, list[str]] = {}
    for file in files:
        folder, slash, name = file.rpartition("/")
        dot = name.rfind(".")
        alike.setdefault(f"{folder}{slash}*{name[dot:] if dot > 0 else ''}", []).append(file)
    parts = [p for k, v in alike.items() for p in ([f"{k} ({len(v)} files)"] if len(v) > 3 else v)]
    return ", ".join(parts[:6]) + (f" and {len(parts) - 6} more" if len(parts) > 6 else "") if parts else "nothing"


def known() -> str:
    """Every sickness by stage with its statistic, as `gxpo doctor --list` prints them."""
    lines = []
    for number, stage in enumerate(STAGES):
        lines += [f"{number + 1}. {stage}"]
        for s in SICKNESSES.values():
            if s.stage == number:
                lines += [f"   {s.id:<32}{s.title}", f"   {'':<32}{s.statistic}"]
    return "\n".join(lines)
