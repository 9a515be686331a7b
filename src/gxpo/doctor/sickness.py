"""`Sickness` and the registry of checks: `@sickness` declares a check, the data it needs and the causes it follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gxpo.doctor.finding import Finding, Grade, Severity
from gxpo.doctor.runlog import RunLog

STAGES = (
    "what was sampled",
    "what was scored",
    "what credit there was",
    "whose tokens",
    "what moved",
    "where it went",
)


@dataclass(frozen=True)
class Sickness:
    """A sickness with its check: one entry of `gxpo doctor --list`.

    stage     index into STAGES, the order of diagnosis
    needs     alternatives, one of which the log must have: names of series, "rollouts", "references", "messages"
    follows   ids of the sicknesses that can cause this one
    of_training  whether it presupposes that parameters are trained: it is not told of a run that trains none
    """

    id: str
    stage: int
    title: str
    statistic: str
    needs: tuple[str, ...]
    follows: tuple[str, ...]
    check: Callable[[RunLog], Finding | None]
    of_training: bool = False


SICKNESSES: dict[str, Sickness] = {}


def sickness(
    id: str,
    stage: int,
    title: str,
    statistic: str,
    needs: Sequence[str] = (),
    follows: Sequence[str] = (),
    *,
    of_training: bool = False,
) -> Callable[[Callable[[RunLog], Finding | None]], Callable[[RunLog], Finding | None]]:
    """Register a check; for a log that has none of `needs` the sickness is reported as unchecked."""

    def register(check: Callable[[RunLog], Finding | None]) -> Callable[[RunLog], Finding | None]:
        SICKNESSES[id] = Sickness(id, stage, title, statistic, tuple(needs), tuple(follows), check, of_training)
        return check

    return register


def finding(
    ids: str | Sequence[str],
    severity: Severity,
    grade: Grade,
    title: str,
    *evidence: str,
    examples: Sequence[dict[str, Any]] = (),
) -> Finding:
    """Make a finding without remedies and cause, which `diagnose` fills in; empty lines of evidence are dropped."""
    names = (ids,) if isinstance(ids, str) else tuple(ids)
    return Finding(names, severity, grade, title, tuple(e for e in evidence if e), tuple(examples)[:3])
