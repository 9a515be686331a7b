"""Base classes of signals that are fitted on hidden states of recent rollouts; ridge probes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from gxpo.algorithms.signals.base import SignalPart
from gxpo.base.errors import ConfigError
from gxpo.forest import grouped
from gxpo.parts.ranges import key_of


@torch.no_grad()
def ridge(features: Tensor, target: Tensor, strength: float) -> tuple[Tensor, Tensor]:
    """Ridge regression: weights [D] and intercept [] that minimise mean (y - w x - b)^2 + strength * |w * spread|^2.

    features  [n, D] float64
    target    [n] float64
    strength  of the penalty, on features in units of their spread (population std over the n rows), so that no choice
              of units matters; 0 gives a least-squares line. The intercept is not penalised

    In closed form, by the smaller of the two systems of equations; a feature that does not vary has weight 0.
    """
    middle, spread = features.mean(0), features.std(0, correction=0)
    # A constant feature has no unit: it is left out, or rounding would be scaled to order 1.
    varies = spread > grouped.DEGENERATE * features.abs().amax(0)
    unit = torch.where(varies, spread, 1.0)
    x = torch.where(varies, (features - middle) / unit, 0.0)
    y = target - target.mean()
    n, d = x.shape
    penalty = strength * n
    # Without a penalty the system may be singular: least squares with the smallest norm.
    if strength == 0:
        slope = torch.linalg.lstsq(x, y[:, None], driver="gelsd").solution.squeeze(1)
    # The smaller system: D equations for weights, or n for rows (the dual), with the same solution.
    elif d <= n:
        slope = torch.linalg.solve(x.T @ x + penalty * torch.eye(d, dtype=x.dtype), x.T @ y)
    else:
        slope = x.T @ torch.linalg.solve(x @ x.T + penalty * torch.eye(n, dtype=x.dtype), y)
    weight = torch.where(varies, slope / unit, 0.0)
    return weight, target.mean() - middle @ weight


@dataclass(frozen=True)
class Buffered(SignalPart):
    """Base class of signals from a model that is fitted on the newest `buffer` rows, once there are `min_rows`.

    layer   which hidden states; -1 the last
    memory  rows and fitted parameters, in the checkpoint;   latest  tensors that `compute` hands to `learn`
    """

    layer: int = -1
    buffer: int = 1024
    min_rows: int = 128
    memory: dict[str, Tensor] = field(init=False, repr=False, compare=False, default_factory=dict)
    latest: dict[str, Tensor] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.min_rows > self.buffer:
            raise ConfigError(f"{key_of(type(self))}.min_rows ({self.min_rows}) is more than buffer ({self.buffer})")

    def tensors(self) -> dict[str, Tensor]:
        return dict(self.memory)

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        self.memory.clear()
        self.memory.update(tensors)


@dataclass(frozen=True)
class RidgeProbe(Buffered):
    """Base class of signals from a `ridge` probe, refitted before every step.

    ridge   strength of the penalty; 0 is plain least squares, which needs many more rows than features
    """

    min_rows: Annotated[int, Ge(2)] = 128
    ridge: Annotated[float, Ge(0)] = 0.1

    @property
    def rows(self) -> int:
        """Number of rows in the buffer."""
        return len(self.memory["target"]) if self.memory else 0

    def fit(self) -> tuple[Tensor, Tensor] | None:
        """Fit weights and intercept; None until there are `min_rows` rows."""
        return ridge(self.memory["features"], self.memory["target"], self.ridge) if self.rows >= self.min_rows else None

    def keep(self, features: Tensor, target: Tensor) -> None:
        """Append rows to the buffer and drop the oldest."""
        for name, new_rows in (("features", features), ("target", target)):
            self.memory[name] = torch.cat([self.memory[name], new_rows] if name in self.memory else [new_rows])[
                -self.buffer :
            ]
