"""The demo's configuration: `demo.yaml` beside this file, which is also `examples/arithmetic.yaml`."""

from __future__ import annotations

from pathlib import Path

from gxpo.parts.definition import Stated
from gxpo.training import config


def settings(*, seed: int = 0, method: str | None = None, steps: int | None = None) -> dict[str, Stated]:
    """The keys of the demo, with these on top."""
    given = config.read(Path(__file__).with_name("demo.yaml"))
    for key, value in (("seed", seed), ("method", method), ("trainer.steps", steps)):
        if value is not None:
            given[key] = Stated(value, "argument")
    return given
