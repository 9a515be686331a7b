"""Replay of a run's steps for loggers whose store lacks some of them after a kill."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from gxpo.training.callbacks import samples
from gxpo.training.callbacks.base import Row, Sample


def history(run: Any) -> Iterator[tuple[Row, list[Sample]]]:
    """(line as `on_step` had it, the samples of that step) of every step up to `run.step`; step 0 is the evaluation
    before training. For `on_start` of a resumed run; nothing of one that begins."""
    if not run.resumed:
        return
    for row in [*(row for row in run.evaluations if row["step"] == 0), *run.metrics]:
        yield row, _samples(run, int(row["step"]))


def _samples(run: Any, step: int) -> list[Sample]:
    most, found = run.config["logging.samples"], []
    for name, folder in (("eval", "evaluations"), ("train", "rollouts")):
        path = run.path / folder / f"step-{step:06d}.jsonl"
        if most and path.is_file():
            records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            found += samples.rows(records, step=step, set=name, most=most)
    return found
