"""`gxpo doctor` on the trainer's own runs: while one goes on, and its verdict at the end."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gxpo.doctor.diagnosis import diagnose
from gxpo.doctor.finding import Diagnosis
from gxpo.doctor.live import Live
from gxpo.doctor.reading import read
from gxpo.doctor.rollout_json import read_json
from gxpo.doctor.rollout_sample import dump
from gxpo.training.config import Resolved
from gxpo.training.report import write_report

A_STEP = 100  # rollouts of a step that are looked at while the run goes on
# Findings that say what `Tally.problem` says, but closer: where both are there, one is shown.
NOTHING_LEARNED = frozenset(
    {"all_wrong", "all_right", "no_diversity", "reward_ignores_completion", "missing_scores", "dead_component"}
)


class Checkup:
    """Checks every `doctor.every` steps: a warning for each cause, once; with `doctor.stop`, the end of the run.

    rows  the lines of metrics.jsonl so far, of a run that is resumed
    """

    def __init__(self, run: Path, resolved: Resolved, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        s = resolved.settings.doctor
        keys = _values(resolved)
        # the file may state a phase by its method alone: each is handed over with the keys that it has
        if resolved.phases:
            keys["phases"] = [_values(phase) for phase in resolved.phases]
        self.run = run
        self.live = Live("gxpo", keys, every=s.every, stop_on=("critical",) if s.stop else ())
        self._unread_files: list[Path] = []
        self._reads_rollouts = True
        for row in rows:
            self.live.row(int(row["step"]), {k: v for k, v in row.items() if k != "step"})

    def __call__(self, row: Mapping[str, Any], *, has_warned: bool = False) -> bool:
        """Add a step's line and its file in rollouts/; return True if the run is to end. `has_warned`: the user has
        been told that nothing is learned."""
        step = int(row["step"])
        self.live.row(step, {k: v for k, v in row.items() if k != "step"})
        rollout_file = self.run / "rollouts" / f"step-{step:06d}.jsonl"
        # A file may be missing: rollouts are written every few steps only.
        if self._reads_rollouts and rollout_file.is_file():
            self._unread_files.append(rollout_file)
        if has_warned:
            self.live.warned_ids |= NOTHING_LEARNED
        if self.live.due(step):
            self._read()
            self.live.check()
            self._report()
        return self.live.stop

    def _report(self) -> None:
        """Write the report so far; its time counts with the checks, which skip some where they take too long."""
        start = time.perf_counter()
        try:
            write_report(self.run, self.live.diagnosis)
        except Exception as error:
            warnings.warn(f"report.html can't be written: {error}", stacklevel=3)
        self.live.check_seconds += time.perf_counter() - start

    def _read(self) -> None:
        try:
            for path in self._unread_files:
                sample = read_json([dump(path, self.run)], "gxpo", A_STEP)
                self.live.rollouts(sample.rows, of=round(sample.total))
        except Exception as error:  # a run goes on without its doctor
            self._reads_rollouts = False
            warnings.warn(f"doctor: rollouts can't be read: {type(error).__name__}: {error}", stacklevel=3)
        self._unread_files = []


def _values(resolved: Resolved) -> dict[str, Any]:
    return {name: setting.value for name, setting in resolved.keys.items()}


def verdict_of(run: Path) -> Diagnosis | None:
    """Diagnose a run directory as `gxpo doctor RUN` does; None, and a warning, if that fails."""
    try:
        return diagnose(read(run))
    except Exception as error:  # a run that has ended is not to fail for what is said of it
        warnings.warn(f"doctor: no verdict: {type(error).__name__}: {error}", stacklevel=2)
        return None
