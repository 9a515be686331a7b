"""Weights & Biases logger: metrics under their own names, samples as tables, the configuration."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any

from gxpo.base.errors import need
from gxpo.training.callbacks.base import Callback, Row, Sample, history, numbers
from gxpo.training.callbacks.samples import tables


class Wandb(Callback):
    """Logger for wandb; with WANDB_MODE=offline it writes to RUN/wandb without a network.

    An active wandb run (of a sweep, or the user's own `wandb.init`) is logged to and left open. A resumed run keeps its
    wandb id, and steps up to the checkpoint that the server lacks are sent again. Offline, the new directory holds the
    whole run: `wandb sync` of the last one is enough.
    """

    def __init__(self, **options: Any) -> None:
        """options: keywords of `wandb.init`, such as entity, group, tags, mode."""
        self._wandb = need("wandb", "wandb")
        self._options = options
        self._run: Any = None
        self._owns_run = True
        self._run_identity: dict[str, Any] = {}
        self._tables: dict[str, Any] = {}

    def on_start(self, run: Any) -> None:
        config = run.config
        self._owns_run = self._wandb.run is None
        if self._owns_run:
            init_options = {
                "project": config["logging.project"] or os.environ.get("WANDB_PROJECT", "gxpo"),
                "name": config["logging.name"] or os.environ.get("WANDB_NAME", run.path.name),
                "dir": str(run.path),
                "config": {key: value for key, value in config.items() if value is not None},
            }
            # The identity last: the id of a resumed run wins over options that name another.
            init_options |= self._options | self._run_identity
            # wandb prints to stdout, which belongs to the output of the command.
            with redirect_stdout(sys.stderr):
                self._run = self._wandb.init(**init_options, resume="allow")
            self._run_identity = {"id": self._run.id, "project": self._run.project}
        else:
            self._run = self._wandb.run
            self._run.config.update(config, allow_val_change=True)
        first_missing_step = self._run.step  # 0 offline, where nothing of an earlier directory can be read
        for row, samples in history(run):
            if row["step"] >= first_missing_step:
                self.on_samples(samples, run)
                self.on_step(row, run)

    def on_samples(self, samples: Sequence[Sample], run: Any) -> None:
        self._tables |= tables(samples, self._wandb.Table)

    def on_step(self, row: Row, run: Any) -> None:
        figures, self._tables = {**numbers(row), **self._tables}, {}
        if self._owns_run and row["step"] < self._run.step:
            return  # the run was killed after this step: the server has it, and its figures are the same
        if self._owns_run:
            self._run.log(figures, step=row["step"], commit=True)
        else:  # the owner of the wandb run counts its steps
            self._run.log({"step": row["step"], **figures}, commit=True)

    def on_end(self, run: Any, error: BaseException | None) -> None:
        if self._owns_run:
            with redirect_stdout(sys.stderr):
                self._run.finish(exit_code=0 if error is None else 1)

    def state_dict(self) -> dict[str, Any]:
        return self._run_identity

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._run_identity = state
