"""Best checkpoint and early stopping by a metric."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gxpo.base.errors import ConfigError, did_you_mean
from gxpo.parts.settings import TrainerSettings
from gxpo.training import checkpoint
from gxpo.training.metrics import NAMES, metric

LOWER = "min:"  # before the name of a metric of which less is better


class Best:
    """The best of a metric's readings: every line of metrics that has it, and the evaluation before step 1.

    value, step  the best reading and its step; the first of equal ones
    waited       readings since then
    """

    def __init__(self, key: str, spec: str, *, min_delta: float = 0.0) -> None:
        """key: of the setting, for errors. spec: a metric's name, or `min:NAME`. min_delta: what counts.

        ConfigError for a name that is no metric's, and for one that depends on the clock or the machine.
        """
        self.name, self.sign = spec.removeprefix(LOWER), -1.0 if spec.startswith(LOWER) else 1.0
        self.key, self.min_delta = key, min_delta
        if self.name.startswith(("time_", "memory_")):
            # A choice by time could not be repeated: a resumed run has to end where the uninterrupted one does.
            raise ConfigError(f"{key}={spec}: it differs between equal runs, so a resumed run could end otherwise")
        if metric(self.name) is None or "NAME" in self.name:
            raise ConfigError(
                f"{key}={spec}: no metric has that name{did_you_mean(self.name, NAMES)} (docs/metrics.md)"
            )
        self.value: float | None = None
        self.step = 0
        self.n_waited = 0
        self._read: int | None = None

    def add_row(self, row: Mapping[str, Any]) -> bool:
        """Add a line of metrics; return True if it is the best so far. A line that was added before counts once."""
        value, step = row.get(self.name), int(row["step"])
        if step == self._read or not isinstance(value, (int, float)) or not math.isfinite(value):
            return False
        self._read = step
        if self.value is None or self.sign * (value - self.value) > self.min_delta:
            self.value, self.step, self.n_waited = float(value), step, 0
            return True
        self.n_waited += 1
        return False

    def check_name(self, row: Mapping[str, Any]) -> None:
        """Raise ConfigError if the first evaluation lacks the metric; warn if step 1 does."""
        if self.name in row:
            return
        # Only step 0 tells: later rows may lack an evaluation without a mistake in the name.
        if row["step"] == 0 and self.name.startswith("eval_"):
            eval_names = [name for name in row if name.startswith("eval_")]
            hint = did_you_mean(self.name, eval_names)
            raise ConfigError(
                f"{self.key}={self.name}: the evaluation gives {', '.join(eval_names)}{hint}; "
                "pass@k needs eval.samples=k or more"
            )
        if row["step"] == 1 and not self.name.startswith("eval_"):
            warnings.warn(f"{self.key}={self.name}: step 1 has no such figure", stacklevel=3)

    def state_dict(self) -> dict[str, Any]:
        return {
            "metric": self.name,
            "value": self.value,
            "step": self.step,
            "waited": self.n_waited,
            "read": self._read,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.value, self.step, self.n_waited = state["value"], state["step"], state["waited"]
        self._read = state["read"]

    def __str__(self) -> str:
        return f"{self.name} {self.value:.4g} at step {self.step}" if self.value is not None else f"{self.name} unknown"


class Patience:
    """`trainer.stop_early`: the run ends when a metric has not become better for so many readings."""

    def __init__(self, metric: str, patience: int, min_delta: float) -> None:
        self.best, self.patience = Best("trainer.stop_early.metric", metric, min_delta=min_delta), patience

    @property
    def is_over(self) -> bool:
        """True if the run is to end."""
        return self.best.n_waited >= self.patience

    def reset(self) -> None:
        """Start waiting anew, for a run that is resumed on purpose."""
        self.best.n_waited = 0

    @property
    def reason(self) -> str:
        """A line that says why the run ends."""
        return f"{self.best.name} has not improved in {self.best.n_waited} readings: best {self.best}"


def rules_of(t: TrainerSettings) -> tuple[Best | None, Patience | None]:
    """Build the rules of `trainer.keep_best` and `trainer.stop_early`; None for each that is not set."""
    early = t.stop_early
    return (
        None if t.keep_best is None else Best("trainer.keep_best", t.keep_best),
        None if early.metric is None else Patience(early.metric, early.patience, early.min_delta),
    )


def best_of(run: Path) -> dict[str, Any]:
    """{"metric", "value", "step"} of the checkpoint that a run keeps as its best. ConfigError without one."""
    best = checkpoint.newest_state(run).get("best")
    if best is None or best["value"] is None:
        raise ConfigError(f"{run} has kept no best checkpoint: train with --set trainer.keep_best=eval_accuracy")
    return {name: best[name] for name in ("metric", "value", "step")}
