"""A run in Weights & Biases: its metrics under their names, samples as tables, its configuration."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any

from gxpo.base.errors import need
from gxpo.training.callbacks.base import Callback, Row, Sample, numbers
from gxpo.training.callbacks.history import history
from gxpo.training.callbacks.samples import tables


class Wandb(Callback):
    """Logs to wandb; without a network under WANDB_MODE=offline, in RUN/wandb. A run that is active already (of a
    sweep, or one's own `wandb.init`) is logged to, and left open.

    A resumed run has the same wandb id. What the server lacks of the steps up to the checkpoint is sent again. Offline
    the new directory holds the whole run: `wandb sync` of the last one is enough.
    """

    def __init__(self, **options: Any) -> None:
        """options: of `wandb.init`, such as entity, group, tags, mode."""
        self._wandb = need("wandb", "wandb")
        self._options = options
        self._run: Any = None
        self._own = True
        self._known: dict[str, Any] = {}
        self._tables: dict[str, Any] = {}

    def on_start(self, run: Any) -> None:
        config = run.config
        self._own = self._wandb.run is None
        if self._own:
            given = {
                "project": config["logging.project"] or os.environ.get("WANDB_PROJECT", "gxpo"),
                "name": config["logging.name"] or os.environ.get("WANDB_NAME", run.path.name),
                "dir": str(run.path),
                "config": {key: value for key, value in config.items() if value is not None},
            }
            given |= self._options | self._known
            with redirect_stdout(sys.stderr):
                self._run = self._wandb.init(**given, resume="allow")
            self._known = {"id": self._run.id, "project": self._run.project}
        else:
            self._run = self._wandb.run
            self._run.config.update(config, allow_val_change=True)
        first = self._run.step  # of the steps that are not there yet; offline that is 0
        for row, samples in history(run):
            if row["step"] >= first:
                self.on_samples(samples, run)
                self.on_step(row, run)

    def on_samples(self, samples: Sequence[Sample], run: Any) -> None:
        self._tables |= tables(samples, self._wandb.Table)

    def on_step(self, row: Row, run: Any) -> None:
        logged, self._tables = {**numbers(row), **self._tables}, {}
        if self._own and row["step"] < self._run.step:
            return  # of a run that was killed after this step: the server has it, and its figures are the same
        if self._own:
            self._run.log(logged, step=row["step"], commit=True)
        else:  # whose steps are its owner's
            self._run.log({"step": row["step"], **logged}, commit=True)

    def on_end(self, run: Any, error: BaseException | None) -> None:
        if self._own:
            with redirect_stdout(sys.stderr):
                self._run.finish(exit_code=0 if error is None else 1)

    def state_dict(self) -> dict[str, Any]:
        return self._known

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._known = state
