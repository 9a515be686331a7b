"""Callback protocol, and helpers for loggers: a row's figures, and replay of earlier steps after a resume."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from gxpo.training.callbacks.samples import rows

Row = Mapping[str, Any]  # a line of metrics.jsonl (docs/metrics.md)
Sample = Mapping[str, Any]  # a row of a table of rollouts (`gxpo.training.callbacks.samples.COLUMNS`)


def numbers(row: Row) -> dict[str, float]:
    """Return the numeric figures of a row, without its step."""
    return {name: value for name, value in row.items() if name != "step" and isinstance(value, (int, float))}


class Run(Protocol):
    """The part of `gxpo.Run` (which `gxpo.train` will return) that callbacks may use."""

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
    """Base class of callbacks, whose methods do nothing.

    `run` is the `gxpo.Run` that `gxpo.train` will return, in progress: `run.path`, `run.config`, `run.step`,
    `run.metrics`; `run.stop("reason")` saves and ends it after the step. Callbacks are called in the first of several
    processes only. The order within a step is `on_evaluation`, `on_samples`, `on_step`. An exception that a method
    raises is counted and warned of once; the run goes on.
    """

    def on_start(self, run: Run) -> None:
        """Called before the first step, and before the first one after a resume (`run.resumed`).

        After a resume `run.step` is the checkpoint's; rows of later steps may come a second time if the run was killed.
        """

    def on_step(self, row: Row, run: Run) -> None:
        """Called after a step with its row of metrics.jsonl, which has `eval_` figures if there was an evaluation.

        The row of step 0 has only the `eval_` figures before training.
        """

    def on_evaluation(self, figures: Row, run: Run) -> None:
        """Called after an evaluation, before `on_step`, with its row of evaluations.jsonl."""

    def on_samples(self, samples: Sequence[Sample], run: Run) -> None:
        """Called before `on_step`, with rollouts of a step (`trainer.rollouts_every`) or of an evaluation.

        Rollouts of an evaluation have "eval" as their "set".
        """

    def on_end(self, run: Run, error: BaseException | None) -> None:
        """Called when the loop has ended and the run is saved; `error` is the exception that ended it, or None."""

    def state_dict(self) -> dict[str, Any]:
        """Return JSON values to save with each checkpoint; a resumed run passes them to `load_state_dict`."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the values of `state_dict`; called before `on_start`."""


def history(run: Any) -> Iterator[tuple[Row, list[Sample]]]:
    """Replay the steps of a resumed run: (row as `on_step` got it, samples of that step) up to `run.step`.

    Step 0 is the evaluation before training. Call it in `on_start`, where a logger's store may lack steps after a kill;
    a run that begins has none.
    """
    if not run.resumed:
        return
    for row in [*(row for row in run.evaluations if row["step"] == 0), *run.metrics]:
        yield row, _samples(run, int(row["step"]))


def _samples(run: Any, step: int) -> list[Sample]:
    """Read the samples of a step from the run directory, as `on_samples` got them."""
    limit, table = run.config["logging.samples"], []
    for name, folder in (("eval", "evaluations"), ("train", "rollouts")):
        path = run.path / folder / f"step-{step:06d}.jsonl"
        if limit and path.is_file():
            records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            table += rows(records, step=step, set=name, max_rows=limit)
    return table
