"""`Live`: the same diagnosis while a run goes on, from rows and rollouts that a trainer hands over."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from gxpo.doctor.diagnosis import diagnose
from gxpo.doctor.finding import Diagnosis, Finding, Severity
from gxpo.doctor.readers import configs
from gxpo.doctor.readers.table import Table, figures, flat
from gxpo.doctor.reading import add_series
from gxpo.doctor.remedies import foremost
from gxpo.doctor.rollout_rows import Row, assemble
from gxpo.doctor.rollout_sample import KEPT
from gxpo.doctor.rollouts import Rollouts
from gxpo.doctor.runlog import NAMES, RunLog
from gxpo.doctor.series import Series

ROWS = 4_000  # rows of figures that are kept
FIRST, LAST = 200, 1_000  # of them always: the beginning, which is the baseline, and the end
SHARE = 0.01  # of the time since the first row that checks may take
Warn = Callable[[str], None]
T = TypeVar("T")


class Live:
    """Looks at a run every few steps, says each finding once, and asks to stop where that is wanted.

    source     whose keys the rows have: trl, verl, gxpo, ...
    settings   the trainer's configuration, nested or flat, under its own keys
    every      steps between checks; 0: only `check`
    stop_on    severities that ask for a stop; a finding that is only possible never does
    warn       is given one line for each finding that is a cause and more than a note
    share      of the run's time that checks may take: one that is due is left out while they have taken more. With
               `stop_on` none is left out, so that a run stops at the same step again.
    examine    in place of `gxpo.doctor.diagnose`

    No method raises, but for wrong arguments of `__init__`: what goes wrong inside is one warning, and nothing is
    checked from there on.
    """

    def __init__(
        self,
        source: str,
        settings: Mapping[str, Any] | None = None,
        *,
        every: int = 10,
        stop_on: Collection[Severity] = (),
        warn: Warn | None = None,
        share: float = SHARE,
        examine: Callable[[RunLog], Diagnosis] = diagnose,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if every < 0:
            raise ValueError(f"every={every}: steps between checks, or 0 for none")
        self.source, self.every, self.stop_on, self.share = source, every, frozenset(stop_on), share
        self.diagnosis: Diagnosis | None = None  # the newest
        self.stop = False
        self.said: set[str] = set()  # ids of the findings that were warned of
        self.spent = 0.0  # seconds
        self._settings = flat(settings or {})
        self._warn = warn or (lambda line: warnings.warn(line, stacklevel=6))
        self._examine, self._clock, self._began = examine, clock, clock()
        self._rows: list[tuple[float, dict[str, float]]] = []
        self._named: list[tuple[float, dict[str, float]]] = []
        self._rollouts: dict[int, list[Row]] = {}
        self._of = 0
        self._checked = 0  # the last step that was
        self._broken = False

    # ------------------------------------------------------------ what the trainer hands over
    def row(self, step: int, row: Mapping[str, Any], named: Mapping[str, float] | None = None) -> None:
        """The figures of a step under the trainer's keys; what is no number is left out. `named`: figures under the
        names of `gxpo.doctor.runlog.NAMES` that the trainer does not log."""
        self._guarded(lambda: self._add(step, row, named or {}))

    def _add(self, step: int, row: Mapping[str, Any], named: Mapping[str, float]) -> None:
        if found := figures(row):
            self._rows.append((float(step), found))
        if named:
            if unknown := named.keys() - NAMES.keys():
                raise ValueError(f"not among runlog.NAMES: {sorted(unknown)}")
            self._named.append((float(step), dict(named)))
        self._rows, self._named = _thinned(self._rows), _thinned(self._named)

    def rollouts(self, rows: Sequence[Row], of: int | None = None) -> None:
        """Rollouts of a step, whole groups; `of`: how many the step had, where these are a sample."""
        self._guarded(lambda: self._add_rollouts(rows, of))

    def _add_rollouts(self, rows: Sequence[Row], of: int | None) -> None:
        for row in rows:
            self._rollouts.setdefault(row.step, []).append(row)
        self._of += len(rows) if of is None else of
        while sum(map(len, self._rollouts.values())) > KEPT and len(self._rollouts) > 2:
            steps = sorted(self._rollouts)
            for step in steps[1:-1:2]:
                del self._rollouts[step]

    # ------------------------------------------------------------ checks
    def due(self, step: int) -> bool:
        """True if this step ends with a check: the first since the last one that reaches a multiple of `every`."""
        if not self.every or self._broken or step // self.every <= self._checked // self.every:
            return False
        return bool(self.stop_on) or self.spent <= self.share * (self._clock() - self._began)

    def check(
        self, rollouts: Callable[[RunLog], Rollouts | None] | None = None, *, aloud: bool = True
    ) -> Diagnosis | None:
        """The diagnosis of what there is so far, its findings said if they have not been; None where it failed.

        rollouts  reads them for this check, in place of those that were handed over
        aloud     False: warn of nothing, as the diagnosis will be shown
        """
        began = self._clock()
        try:
            return self._guarded(lambda: self._check(rollouts, aloud))
        finally:
            self.spent += self._clock() - began

    def _check(self, rollouts: Callable[[RunLog], Rollouts | None] | None, aloud: bool) -> Diagnosis:
        log = self.log()
        self._checked = log.last_step
        if rollouts is not None:
            log.rollouts = rollouts(log)
        self.diagnosis = found = self._examine(log)
        for finding in found.findings:
            grave = finding.severity != "note" and finding.follows_from is None
            if grave and aloud and self.said.isdisjoint(finding.ids):
                self._warn(told(finding, log.last_step))
            if grave:
                self.said |= set(finding.ids)
            if finding.severity in self.stop_on and finding.grade != "possible":
                self.stop = True
        return found

    def log(self) -> RunLog:
        """Make the log that `gxpo.doctor.read` would make of the rows and rollouts."""
        log = RunLog(source=self.source)
        log.config = configs.translate(self._settings, self.source)
        add_series(log, {"rows": Table("rows", rows=self._rows)} if self._rows else {})
        for name in dict.fromkeys(n for _, row in self._named for n in row):
            pairs = [(step, row[name]) for step, row in self._named if name in row]
            steps, values = np.array(pairs, dtype=float).T
            log.series[name] = Series(steps, values, name)
        log.rollouts = assemble([r for rows in self._rollouts.values() for r in rows], self._of, "recorded")
        log.read = [f"the run so far, to step {log.last_step}"] if log.series or log.rollouts else []
        return log

    def _guarded(self, act: Callable[[], T]) -> T | None:
        if self._broken:
            return None
        try:
            return act()
        except Exception as error:  # whatever it is, the run goes on
            self._broken = True
            self._warn(f"doctor: no more checks in this run: {type(error).__name__}: {error}")
            return None


def told(finding: Finding, step: int | None = None) -> str:
    """A finding in a line: what, how sure, the first evidence and the first remedy."""
    ids = " or ".join(finding.ids)
    parts = [f"{finding.title} ({finding.grade}: {ids})", *finding.evidence[:1], *foremost(finding.remedy, 1)]
    return ("doctor" if step is None else f"doctor, step {step}") + ": " + "; ".join(p.rstrip(".") for p in parts)


def closing(diagnosis: Diagnosis, path: str | None = None) -> list[str]:
    """The lines a run ends with: the verdict, what speaks for it and what to do, or how the run went; `path`: what
    `gxpo doctor` is to be given for more."""
    lines = [f"doctor: {diagnosis.verdict}"]
    if diagnosis.sick:
        first = diagnosis.findings[0]
        lines += [f"  {line}" for line in first.evidence[:2]] + [f"  try: {line}" for line in foremost(first.remedy, 2)]
    if diagnosis.progress:
        lines.append(f"  {diagnosis.progress}")
    return [*lines, f"  more: gxpo doctor {path}"] if path is not None else lines


def _thinned(rows: list[T]) -> list[T]:
    """At most `ROWS`: every second one of the middle goes, the beginning and the end stay whole."""
    return rows if len(rows) <= ROWS else [*rows[:FIRST], *rows[FIRST:-LAST:2], *rows[-LAST:]]
