"""`Finding`, `Unchecked`, `Diagnosis`: the results of `gxpo doctor` as objects and as JSON for other programs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["critical", "warning", "note"]
Grade = Literal["proved", "likely", "possible"]


@dataclass(frozen=True)
class Finding:
    """One diagnosed sickness, or up to three that the data can't tell apart.

    ids           names of `gxpo doctor --list`; at most three
    severity      critical: the run learns nothing or the wrong thing; warning; note: worth knowing
    grade         proved: rows show it; likely; possible
    title         one line
    evidence      lines with figures under the trainer's own keys
    examples      at most three rollouts: {"where", "step", "prompt", "completion", "score", ...}
    remedy        lines in the trainer's own keys
    follows_from  the first id of the finding that this one is a consequence of
    """

    ids: tuple[str, ...]
    severity: Severity
    grade: Grade
    title: str
    evidence: tuple[str, ...] = ()
    examples: tuple[dict[str, Any], ...] = ()
    remedy: tuple[str, ...] = ()
    follows_from: str | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "ids": list(self.ids),
            "severity": self.severity,
            "grade": self.grade,
            "title": self.title,
            "evidence": list(self.evidence),
            "examples": [dict(e) for e in self.examples],
            "remedy": list(self.remedy),
            "follows_from": self.follows_from,
        }


@dataclass(frozen=True)
class Unchecked:
    """A sickness that could not be checked: the reason, and the setting that would log what is missing."""

    id: str
    why: str
    enable: str


LEAST_POINTS = 10  # logged points of the reward or of a success rate, below which nothing is called healthy


@dataclass
class Diagnosis:
    """All findings of one run, the root cause first.

    progress      one line: change of reward and evaluations with intervals, or the least gain that would have been seen
    points        logged points of the reward or of a success rate
    unknown_keys  keys in the files that have no name here
    advice        the lines that would enable a verdict, where there is none
    doubt         why a run without a finding is not called healthy either; "" where it is seen to gain or to be done
    """

    source: str
    read: list[str]
    findings: list[Finding] = field(default_factory=list)
    unchecked: list[Unchecked] = field(default_factory=list)
    progress: str = ""
    notes: list[str] = field(default_factory=list)
    points: int = 0
    unknown_keys: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)
    doubt: str = ""

    @property
    def sick(self) -> bool:
        return any(f.severity != "note" for f in self.findings)

    @property
    def is_conclusive(self) -> bool:
        """True if the run is sick, or if its reward shows that it is not: without evidence nothing is healthy."""
        return self.sick or (bool(self.read) and self.points >= LEAST_POINTS and not self.doubt)

    @property
    def exit_code(self) -> int:
        """0 no sickness found, 1 a warning or worse, 2 no verdict: nothing read, too little of the reward, or a reward
        that shows neither a gain nor a sickness."""
        return int(self.sick) if self.is_conclusive else 2

    @property
    def verdict(self) -> str:
        """One line: the first finding and its gravest consequence, or that nothing was found, or that none can be."""
        if not self.read and not self.sick:
            return "nothing could be read"
        if not self.is_conclusive and self.points >= LEAST_POINTS:
            return f"no verdict: {self.doubt}"
        if not self.is_conclusive:
            points_text = f"{self.points} logged point{'s' * (self.points > 1)}" if self.points else "no logged point"
            return f"no verdict: {points_text} of a reward or success rate, and {LEAST_POINTS} are needed"
        if not self.sick:
            return "no sickness found"
        first = self.findings[0]
        consequences = [f for f in self.findings if f.follows_from == first.ids[0]]
        # all_wrong is told even as a warning: a run in which nothing is right is what its user came with
        consequence = next((f for f in consequences if f.severity == "critical" or f.ids[0] == "all_wrong"), None)
        return f"{first.title} ({first.grade})" + (
            f"; in consequence {consequence.title}" if consequence is not None else ""
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "source": self.source,
            "read": self.read,
            "findings": [f.as_json() for f in self.findings],
            "unchecked": [{"id": u.id, "why": u.why, "enable": u.enable} for u in self.unchecked],
            "progress": self.progress,
            "verdict": self.verdict,
            "points": self.points,
            "unknown_keys": self.unknown_keys,
            "advice": self.advice,
            "doubt": self.doubt,
            "notes": self.notes,
        }
