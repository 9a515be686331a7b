"""Start-up probe of a training engine: whether its gradient is a sum, and of the right scale."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gxpo.errors import ModelError
from gxpo.protocols import TokenRow, TrainEngine

EPS = 1e3  # of AdamW, so large that its first step is -(lr / eps) times the gradient
MOVE = 0.02  # nats by which the probed token is to move


@dataclass(frozen=True)
class Probe:
    """What a training engine did with one token's log-prob.

    scale      its gradient over the true one: n^2 / |dx| * lr / eps, from the norm n that it reports and from what one
               step does to the token. 1 is right; 1 / world where the number of ranks is forgotten
    twice      norm for the row given twice, over the norm for it once. 2 is right; 1: a mean is taken over rows
    apart      the same for the row in two calls of `pull`. 2 is right
    cancelled  the same for the row given with slopes +1 and -1. 0 is right
    """

    scale: float
    twice: float
    apart: float
    cancelled: float

    def trouble(self, tolerance: float) -> str | None:
        """What is wrong, in a line; None: nothing."""
        wanted = {"scale": 1.0, "twice": 2.0, "apart": 2.0, "cancelled": 0.0}
        off = [
            f"{k} {getattr(self, k):.4g} instead of {v:g}" for k, v in wanted.items() if not self._near(k, v, tolerance)
        ]
        return ", ".join(off) or None

    def _near(self, name: str, wanted: float, tolerance: float) -> bool:
        return abs(getattr(self, name) - wanted) <= tolerance * max(wanted, 1.0)


def probe(engine: TrainEngine, row: TokenRow, *, scratch: Path | None = None) -> Probe:
    """Measure an engine on the first reading of a row. The weights are saved first and loaded again at the end.

    row  any row with at least one reading, whose log-prob depends on the weights
    """
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        saved = Path(folder) / "engine"
        engine.save(saved)
        try:
            return _probed(engine, TokenRow(row.tokens, row.read[:1], row.temperature[:1]), saved)
        finally:
            engine.discard()
            engine.load(saved)


def _probed(engine: TrainEngine, row: TokenRow, saved: Path) -> Probe:
    def norm(*pulls: Sequence[float]) -> float:
        """The norm that the engine reports after pulls of the row with these slopes."""
        engine.discard()
        for slopes in pulls:
            engine.pull([row] * len(slopes), {"logprob": [_slope(s) for s in slopes]})
        return engine.step(0.0, None, eps=EPS)

    once = norm([1.0])
    if not once > 0:
        raise ModelError(
            f"the training engine reports the gradient norm {once:.3g} for a token with slope 1: does `pull` leave a "
            "gradient, and does `step` report its norm before clipping?"
        )
    twice, apart, cancelled = norm([1.0, 1.0]), norm([1.0], [1.0]), norm([1.0, -1.0])
    lr = MOVE * EPS / once**2
    moved = []
    for slope in (1.0, -1.0):  # what weight decay and curvature do is the same in both
        engine.load(saved)
        before = _value(engine, row)
        engine.pull([row], {"logprob": [_slope(slope)]})
        engine.step(lr, None, eps=EPS)
        moved.append(_value(engine, row) - before)
    by = (moved[1] - moved[0]) / 2  # a slope of 1 is followed downwards
    scale = float("nan") if by == 0 else lr / EPS * once**2 / by
    return Probe(scale, twice / once, apart / once, cancelled / once)


def _slope(value: float) -> Tensor:
    return torch.tensor([value], dtype=torch.float64)


def _value(engine: TrainEngine, row: TokenRow) -> float:
    return float(engine.forward([row])["logprob"][0])


def check(engine: TrainEngine, row: TokenRow, *, tolerance: float = 0.02, scratch: Path | None = None) -> Probe:
    """`probe`; `ModelError` unless the engine is right to within `tolerance`."""
    found = probe(engine, row, scratch=scratch)
    if (trouble := found.trouble(tolerance)) is not None:
        raise ModelError(
            f"the training engine's gradient is not the sum that was asked for: {trouble} (a scale of 1 / ranks: their "
            "number is forgotten; twice 1: a mean over rows)"
        )
    return found
