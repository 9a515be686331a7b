"""The callback protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

Row = Mapping[str, Any]  # a line of metrics.jsonl (docs/metrics.md)
Sample = Mapping[str, Any]  # a row of a table of rollouts (`gxpo.training.callbacks.samples.COLUMNS`)


def numbers(row: Row) -> dict[str, float]:
    """The figures of a line, without its step."""
    return {name: value for name, value in row.items() if name != "step" and isinstance(value, (int, float))}


class Run(Protocol):
    """What a callback sees of a run: the `gxpo.Run` that `gxpo.train` will return."""

    @property
    def path(self) -> Path: ...
    @property
    def config(self) -> dict[str, Any]: ...
    @property
    def step(self) -> int: ...
    @property
    def resumed(self) -> bool: ...
    @property
    def metrics(self) -> list[dict[str, Any]]: ...
    @property
    def evaluations(self) -> list[dict[str, Any]]: ...
    def stop(self, reason: str) -> None: ...


class Callback:
    """Base class: every method does nothing. `run` is the `gxpo.Run` that `gxpo.train` will return, while it goes on:
    `run.path`, `run.config`, `run.step`, `run.metrics`; `run.stop("reason")` ends it after the step, saved.

    Called in the first of several processes only. The order within a step: `on_evaluation`, `on_samples`, `on_step`.
    What a method raises is warned of once and counted; the run goes on.
    """

    def on_start(self, run: Run) -> None:
        """Before the first step, or before the first one after a resume (`run.resumed`; `run.step` is the checkpoint's,
        and lines of later steps, which may have been seen before the run was killed, will come again)."""

    def on_step(self, row: Row, run: Run) -> None:
        """After a step, with its line of metrics.jsonl; `eval_` figures are in it where there was an evaluation. Step 0
        has the `eval_` figures before training alone."""

    def on_evaluation(self, figures: Row, run: Run) -> None:
        """After an evaluation, with its line of evaluations.jsonl, before `on_step`."""

    def on_samples(self, samples: Sequence[Sample], run: Run) -> None:
        """With some rollouts of a step (`trainer.rollouts_every`) or of an evaluation (their "set" is "eval"), before
        `on_step`."""

    def on_end(self, run: Run, error: BaseException | None) -> None:
        """When the loop has ended and the run is saved, or with the exception that ended it."""

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run is to give back to `load_state_dict`: JSON values. It is saved with each checkpoint."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take what `state_dict` gave, before `on_start`."""
