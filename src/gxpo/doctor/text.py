"""Text of a diagnosis for a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from gxpo.doctor.evidence import LIMITS
from gxpo.doctor.finding import Diagnosis, Finding, Unchecked
from gxpo.doctor.remedies import MEASURED, UNTESTED
from gxpo.doctor.sickness import SICKNESSES, STAGES

SHOWN = 300  # characters of a prompt or completion
MOST = 6  # lines of what was not checked
NAMED = 20  # columns that were not recognised


def text(diagnosis: Diagnosis, *, with_notes: bool = False) -> str:
    """Format a diagnosis: verdict, progress, findings (consequences indented under their cause), files, unchecked.

    with_notes   print findings that are notes even in a sick run
    """
    lines = [f"{diagnosis.source} run: {diagnosis.verdict}"]
    lines += diagnosis.progress.split("; ") if diagnosis.progress else []
    depth: dict[str, int] = {}
    evidence_by_id: dict[str, set[str]] = {}  # evidence of a finding and its causes, which consequences need not repeat
    # notes would bury the diagnosis of a sick run
    for number, finding in enumerate(
        f for f in diagnosis.findings if with_notes or f.severity != "note" or not diagnosis.sick
    ):
        name, cause = finding.ids[0], finding.follows_from or ""
        depth[name] = depth.get(cause, -1) + 1
        evidence_above = evidence_by_id.get(cause, set())
        evidence_by_id[name] = evidence_above | set(finding.evidence)
        lines += ["", *_finding_lines(finding, number == 0, depth[name], evidence_above)]
    lines += ["", f"read: {_join_files(diagnosis.read)}"]
    lines += _inconclusive_lines(diagnosis)
    lines += [f"note: {note}" for note in diagnosis.notes]
    lines += _unchecked_lines(diagnosis.unchecked)
    return "\n".join(lines)


def _inconclusive_lines(diagnosis: Diagnosis) -> list[str]:
    """Lines on the columns that were not recognised, and on what would enable a verdict where there is none."""
    # beside "no sickness found", only where no trainer was recognised: a trainer's other columns are timings and sizes
    if diagnosis.is_conclusive and (diagnosis.sick or diagnosis.source != "unknown"):
        return []
    names, n_further = diagnosis.unknown_keys[:NAMED], len(diagnosis.unknown_keys) - NAMED
    further_text = f" and {n_further} more" if n_further > 0 else ""
    return [
        *([f"not recognised: {', '.join(names)}{further_text}"] if names else []),
        *(f"for a verdict: {line}" for line in diagnosis.advice),
    ]


def _unchecked_lines(unchecked: Sequence[Unchecked]) -> list[str]:
    """One line per missing source, those that hide the most sicknesses first; at most `MOST` lines."""
    by_line: dict[tuple[str, str], list[str]] = {}
    for u in unchecked:
        by_line.setdefault((u.why, u.enable), []).append(u.id)
    ordered = sorted(by_line.items(), key=lambda item: -len(item[1]))
    lines = [f"not checked, {reason}: {', '.join(ids)}; to check: {enable}" for (reason, enable), ids in ordered]
    if len(lines) > MOST:
        further_ids = [name for _, ids in ordered[MOST - 1 :] for name in ids]
        lines[MOST - 1 :] = [f"not checked either, see --json: {', '.join(further_ids)}"]
    return lines


def _finding_lines(finding: Finding, first: bool, depth: int, evidence_above: set[str]) -> list[str]:
    """Lines of a finding, indented by its depth; evidence in `printed` is above them already."""
    indent = "    " * depth
    ids = " or ".join(finding.ids)
    head = f"{finding.severity}, {finding.grade}: {finding.title} [{ids}]"
    if finding.follows_from:
        head = f"follows from {finding.follows_from}: {head}"
    lines = [indent + head, *(f"{indent}  - {line}" for line in finding.evidence if line not in evidence_above)]
    # rollouts of a consequence would be those of its cause again
    for example in finding.examples if first or not depth else ():
        lines.append(f"{indent}  rollout {example.get('where', '')}")
        for key in ("prompt", "completion", "reference", "score", "advantage"):
            if example.get(key) not in (None, ""):
                lines.append(f"{indent}    {key}: {_shorten(example[key])}")
    return lines if depth else [*lines, *_remedies(finding)]


def _remedies(finding: Finding) -> list[str]:
    """Remedies under headings by sickness and evidence: measured ones that helped, untested ones, those without a clear
    gain. The limits of the measurements are printed once; lines that were computed stand without a heading."""
    lines, heading, limits = [], "", f": {LIMITS}"
    for line in finding.remedy:
        # neither measured nor untested: computed on this run's own rollouts
        match = MEASURED.search(line)
        if match is None and not line.endswith(UNTESTED):
            lines.append(f"  {line}")
            continue
        change = line[: match.start()] if match else line.removesuffix(UNTESTED).rstrip()
        name = next((i for i in finding.ids if len(finding.ids) > 1 and change.startswith(f"{i}: ")), "")
        kind = f"try {UNTESTED}" if match is None else "no clear gain" if match["but"] else "try"
        if (new := f"  {f'if {name}, ' if name else ''}{kind}") != heading:
            heading = new
            lines.append(f"{new} ({match['where']}{limits}):" if match else f"{new}:")
            limits = "" if match else limits
        figures = f": {f'{but}, ' if (but := match['but']) else ''}{match['figures']}" if match else ""
        lines.append(f"    - {change.removeprefix(f'{name}: ')}{figures}")
    return lines


def _shorten(value: object) -> str:
    text = repr(value) if isinstance(value, str) else f"{value:.4g}" if isinstance(value, float) else str(value)
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text)} characters)"


def _join_files(files: list[str]) -> str:
    """List files; more than three of one directory and suffix as one pattern."""
    alike: dict[str, list[str]] = {}
    for file in files:
        folder, slash, name = file.rpartition("/")
        dot = name.rfind(".")
        alike.setdefault(f"{folder}{slash}*{name[dot:] if dot > 0 else ''}", []).append(file)
    parts = [p for k, v in alike.items() for p in ([f"{k} ({len(v)} files)"] if len(v) > 3 else v)]
    return ", ".join(parts[:6]) + (f" and {len(parts) - 6} more" if len(parts) > 6 else "") if parts else "nothing"


def sickness_list() -> str:
    """List every sickness by stage with its statistic, as `gxpo doctor --list` prints it."""
    lines = []
    for number, stage in enumerate(STAGES):
        lines += [f"{number + 1}. {stage}"]
        for s in SICKNESSES.values():
            if s.stage == number:
                lines += [f"   {s.id:<32}{s.title}", f"   {'':<32}{s.statistic}"]
    return "\n".join(lines)
