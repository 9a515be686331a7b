"""`Live`: diagnosis during a run, from the rows of metrics and the rollouts that a trainer hands over."""

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
from gxpo.doctor.reading import add_series, settings_in_phase
from gxpo.doctor.remedies import foremost
from gxpo.doctor.rollout_sample import KEPT
from gxpo.doctor.rollouts import Rollouts, Row, assemble
from gxpo.doctor.runlog import RunLog
from gxpo.doctor.series import NAMES, Series

ROWS = 4_000  # rows of figures that are kept
FIRST, LAST = 200, 1_000  # rows that are always kept: the beginning, which is the baseline, and the end
SHARE = 0.01  # of the time since the first row that checks may take
Warn = Callable[[str], None]
T = TypeVar("T")


class Live:
    """Diagnose a run every few steps, warn of each finding once, and ask for a stop if configured.

    source     whose keys the rows have: trl, verl, gxpo, ...
    settings   the trainer's configuration, nested or flat, under its own keys
    every      steps between checks; 0: only `check`
    stop_on    severities that ask for a stop; a finding that is only possible never does
    warn       called with one line for each finding that is a cause and more than a note
    share      of the run's time that checks may take: a check that is due is skipped while they have taken more. With
               `stop_on` none is skipped, so that a run stops at the same step again.
    examine    replaces `gxpo.doctor.diagnose`

    Apart from wrong arguments of `__init__` no method raises: an error inside is one warning, and checks end with it.
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
        self.warned_ids: set[str] = set()  # ids of the findings that were warned of
        self.check_seconds = 0.0  # of all checks so far
        self._settings = flat(settings or {})
        # six frames up is the trainer's own call, the line that a user knows
        self._warn = warn or (lambda line: warnings.warn(line, stacklevel=6))
        self._examine, self._clock, self._start = examine, clock, clock()
        self._rows: list[tuple[float, dict[str, float]]] = []
        self._named_rows: list[tuple[float, dict[str, float]]] = []
        self._rollouts: dict[int, list[Row]] = {}
        self._n_rollouts = 0
        self._last_checked = 0  # the last step that was
        self._has_failed = False

    # ------------------------------------------------------------ what the trainer hands over
    def row(self, step: int, row: Mapping[str, Any], named_figures: Mapping[str, float] | None = None) -> None:
        """Add a step's figures under the trainer's keys; other values are dropped.

        named_figures   those that the trainer does not log, under the names of `gxpo.doctor.series.NAMES`
        """
        self._guard(lambda: self._add(step, row, named_figures or {}))

    def _add(self, step: int, row: Mapping[str, Any], named_figures: Mapping[str, float]) -> None:
        if figures_of_row := figures(row):
            self._rows.append((float(step), figures_of_row))
        if named_figures:
            if unknown_names := named_figures.keys() - NAMES.keys():
                raise ValueError(f"not among series.NAMES: {sorted(unknown_names)}")
            self._named_rows.append((float(step), dict(named_figures)))
        self._rows, self._named_rows = _thin(self._rows), _thin(self._named_rows)

    def rollouts(self, rows: Sequence[Row], of: int | None = None) -> None:
        """Add rollouts of a step, in whole groups; `of`: the number that the step had, if these are a sample."""
        self._guard(lambda: self._add_rollouts(rows, of))

    def _add_rollouts(self, rows: Sequence[Row], total: int | None) -> None:
        for row in rows:
            self._rollouts.setdefault(row.step, []).append(row)
        self._n_rollouts += len(rows) if total is None else total
        # steps between the first and the last are thinned evenly, so that trends over the whole run remain
        while sum(map(len, self._rollouts.values())) > KEPT and len(self._rollouts) > 2:
            steps = sorted(self._rollouts)
            for step in steps[1:-1:2]:
                del self._rollouts[step]

    # ------------------------------------------------------------ checks
    def due(self, step: int) -> bool:
        """True if a check is due: a multiple of `every` was reached since the last one, and time allows."""
        if not self.every or self._has_failed or step // self.every <= self._last_checked // self.every:
            return False
        return bool(self.stop_on) or self.check_seconds <= self.share * (self._clock() - self._start)

    def check(
        self, rollouts: Callable[[RunLog], Rollouts | None] | None = None, *, aloud: bool = True
    ) -> Diagnosis | None:
        """Diagnose the run so far and warn of new findings; None if the check failed.

        rollouts  reads them for this check, in place of those that were handed over
        aloud     False: no warnings, as the caller shows the diagnosis
        """
        start = self._clock()
        try:
            return self._guard(lambda: self._check(rollouts, aloud))
        finally:
            self.check_seconds += self._clock() - start

    def _check(self, rollouts: Callable[[RunLog], Rollouts | None] | None, aloud: bool) -> Diagnosis:
        log = self.log()
        self._last_checked = log.last_step
        if rollouts is not None:
            log.rollouts = rollouts(log)
        self.diagnosis = diagnosis = self._examine(log)
        # of a consequence its cause is the warning; ids are noted even when silent, so that nothing is told twice
        for finding in diagnosis.findings:
            is_cause = finding.severity != "note" and finding.follows_from is None
            if is_cause and aloud and self.warned_ids.isdisjoint(finding.ids):
                self._warn(finding_line(finding, log.last_step))
            if is_cause:
                self.warned_ids |= set(finding.ids)
            if finding.severity in self.stop_on and finding.grade != "possible":
                self.stop = True
        return diagnosis

    def log(self) -> RunLog:
        """Build the log that `gxpo.doctor.read` would make of these rows and rollouts."""
        log = RunLog(source=self.source)
        members = {"rows": Table("rows", rows=self._rows)} if self._rows else {}
        log.config = configs.translate(settings_in_phase(self._settings, members), self.source)
        add_series(log, members)
        # figures under our names go in last: a trainer that logs one itself does not hand it over
        for name in dict.fromkeys(n for _, row in self._named_rows for n in row):
            pairs = [(step, row[name]) for step, row in self._named_rows if name in row]
            steps, values = np.array(pairs, dtype=float).T
            log.series[name] = Series(steps, values, name)
        rows = [r for step_rows in self._rollouts.values() for r in step_rows if r.step >= (log.phase_begin or 0)]
        log.rollouts = assemble(rows, self._n_rollouts, "recorded")
        log.read = [f"the run so far, to step {log.last_step}"] if log.series or log.rollouts else []
        return log

    def _guard(self, act: Callable[[], T]) -> T | None:
        if self._has_failed:
            return None
        try:
            return act()
        except Exception as error:  # whatever it is, the run goes on
            self._has_failed = True
            self._warn(f"doctor: no more checks in this run: {type(error).__name__}: {error}")
            return None


def finding_line(finding: Finding, step: int | None = None) -> str:
    """Format a finding as one line: title, grade and ids, the first evidence, the first remedy."""
    ids = " or ".join(finding.ids)
    parts = [f"{finding.title} ({finding.grade}: {ids})", *finding.evidence[:1], *foremost(finding.remedy, 1)]
    return ("doctor" if step is None else f"doctor, step {step}") + ": " + "; ".join(p.rstrip(".") for p in parts)


def closing(diagnosis: Diagnosis, path: str | None = None) -> list[str]:
    """Summary lines for the end of a run: verdict, evidence, remedies, progress.

    path   argument of the `gxpo doctor` command that prints more; None: no such line
    """
    lines = [f"doctor: {diagnosis.verdict}"]
    if diagnosis.sick:
        first = diagnosis.findings[0]
        lines += [f"  {line}" for line in first.evidence[:2]] + [f"  try: {line}" for line in foremost(first.remedy, 2)]
    if diagnosis.progress:
        lines.append(f"  {diagnosis.progress}")
    return [*lines, f"  more: gxpo doctor {path}"] if path is not None else lines


def _thin(rows: list[T]) -> list[T]:
    """Bound rows to `ROWS` by dropping every second one of the middle; the beginning and the end stay whole."""
    return rows if len(rows) <= ROWS else [*rows[:FIRST], *rows[FIRST:-LAST:2], *rows[-LAST:]]
