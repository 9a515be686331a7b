"""`diagnose`: every check on a run's log, causes first, consequences under them."""

from __future__ import annotations

from dataclasses import replace

from gxpo.doctor import checks  # noqa: F401  # registers them
from gxpo.doctor.case import Case
from gxpo.doctor.enable import unchecked
from gxpo.doctor.finding import Diagnosis, Finding
from gxpo.doctor.progress import progress
from gxpo.doctor.remedies import remedies
from gxpo.doctor.runlog import Rollouts, RunLog
from gxpo.doctor.sickness import SICKNESSES

SEVERITY = ("critical", "warning", "note")
GRADE = ("proved", "likely", "possible")
# titles of consequences that would name a cause of their own, which the finding above them has taken the place of
GUESSED = {"advantage_sign": "the reward falls steadily", "lr_too_high": "the policy has collapsed"}
LEAST = 5  # logged steps below which most checks say nothing
SILENT = {"all_wrong", "all_right", "group_too_small", "no_diversity"}  # groups of equal scores are what is wrong


def diagnose(log: RunLog, *, recompute: bool = False) -> Diagnosis:
    """Look for every sickness that the log allows to be seen.

    The first finding is the diagnosis. Findings that another one explains stand under it (`follows_from`).

    recompute   whether to compute other methods' advantages on the rollouts of zero-signal groups (imports torch)
    """
    if not log.series and log.rollouts is None:
        return Diagnosis(log.source, [], notes=[*log.notes, *(f"the console says: {m}" for m in log.messages[-5:])])
    case = Case(log)
    made = [f for s in SICKNESSES.values() if (f := s.check(case)) is not None]
    ordered = _under_causes(_without_repeats(made))
    findings = [replace(f, remedy=remedies(f.ids, case)) for f in ordered]
    signal = case.has("zero_signal") and case.mean("zero_signal") < 0.5  # its own method gave equal groups one
    if recompute and case.rollouts is not None and not signal:
        findings = [_with_signal(f, case.rollouts) for f in findings]
    few = case.n if case.n < LEAST else 0
    return Diagnosis(log.source, list(log.read), findings, unchecked(case), progress(case), list(log.notes), few)


def _with_signal(finding: Finding, rollouts: Rollouts) -> Finding:
    """A finding of zero-signal groups with what other methods would make of them."""
    if not SILENT & set(finding.ids) or finding.severity == "note":
        return finding
    from gxpo.doctor.recompute import signal_of

    lines = [
        f"computed on these rollouts: {name} would give a signal to {some} of {of} zero-signal groups ({some / of:.0%})"
        for name, (some, of) in signal_of(rollouts).items()
        if some
    ]
    return replace(finding, remedy=(*finding.remedy, *lines))


def _rank(finding: Finding) -> tuple[int, int, int]:
    stage = min(SICKNESSES[i].stage for i in finding.ids)
    return SEVERITY.index(finding.severity), GRADE.index(finding.grade), stage


def _without_repeats(findings: list[Finding]) -> list[Finding]:
    """A sickness is named once: by the better founded finding, the one with fewer alternatives where they are equal."""
    kept: list[Finding] = []
    for finding in sorted(findings, key=lambda f: (*_rank(f)[:2], len(f.ids), _rank(f)[2])):
        named = {i for f in kept for i in f.ids}
        if finding.ids[0] in named:
            continue
        kept.append(finding)
    return kept


def _under_causes(findings: list[Finding]) -> list[Finding]:
    """Roots from the gravest and best founded on, each followed by what follows from it."""
    by_id = {f.ids[0]: f for f in findings}
    parents: dict[str, str] = {}
    for finding in findings:
        causes = [c for i in finding.ids for c in SICKNESSES[i].follows]
        near = [
            f
            for f in findings
            if f is not finding
            and set(f.ids) & set(causes)
            and f.severity != "note"
            and (f.grade != "possible" or finding.grade == "possible")
        ]
        if near:
            parents[finding.ids[0]] = min(near, key=_rank).ids[0]
    roots = [f for f in findings if not _has_root(f.ids[0], parents)]
    ordered: list[Finding] = []

    def place(finding: Finding) -> None:
        placed = replace(finding, follows_from=parents.get(finding.ids[0]))
        if placed.follows_from is not None and placed.ids[0] in GUESSED and placed.grade != "proved":
            placed = replace(placed, title=GUESSED[placed.ids[0]])
        ordered.append(placed)
        for child in sorted(findings, key=_rank):
            if parents.get(child.ids[0]) == finding.ids[0]:
                place(child)

    for root in sorted(roots, key=_rank):
        parents.pop(root.ids[0], None)
        place(by_id[root.ids[0]])
    return ordered


def _has_root(name: str, parents: dict[str, str]) -> bool:
    """Whether the chain of causes of a finding ends in one that has none; the first of a circle counts as that one."""
    if name not in parents:
        return False
    seen, at = [name], parents[name]
    while at in parents and at not in seen:
        seen.append(at)
        at = parents[at]
    return not (at == name and name == min(seen))
