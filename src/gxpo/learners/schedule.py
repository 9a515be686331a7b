"""What the learning rate is multiplied by at each optimiser step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from gxpo.errors import ConfigError, did_you_mean

SHAPES = ("constant", "cosine", "linear")


@dataclass(frozen=True)
class Schedule:
    """Linear warm-up over `warmup` steps, then `shape` down to 0 at `total` steps ("constant": stays at 1).

    >>> [round(Schedule("linear", warmup=2, total=6)(step), 2) for step in range(7)]
    [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    """

    shape: Literal["constant", "cosine", "linear"] = "constant"
    warmup: int = 0
    total: int | None = None

    def __post_init__(self) -> None:
        if self.shape not in SHAPES:
            raise ConfigError(
                f"schedule {self.shape!r} is not one of {', '.join(SHAPES)}{did_you_mean(self.shape, SHAPES)}"
            )
        if self.shape != "constant" and (self.total is None or self.total <= self.warmup):
            raise ConfigError(f"a {self.shape} schedule needs a total of steps above its warm-up of {self.warmup}")

    def __call__(self, step: int) -> float:
        """`step` counts optimiser steps already taken."""
        if step < self.warmup:
            return (step + 1) / self.warmup
        if self.shape == "constant" or self.total is None:
            return 1.0
        progress = min((step - self.warmup) / (self.total - self.warmup), 1.0)
        return 1.0 - progress if self.shape == "linear" else 0.5 * (1.0 + math.cos(math.pi * progress))
