"""Start-up probe of a training engine: checks that its gradient is a sum, and of the right scale."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gxpo.base.errors import ModelError
from gxpo.parts.protocols import TokenRow, TrainEngine

EPS = 1e3  # of AdamW, so large that its first step is -(lr / eps) times the gradient
MOVE = 0.02  # nats by which the probed token is to move
LINEAR = 3e-3  # largest gradient over a fixed eps: the step differs by less than this part from plain descent
BFLOAT16: Mapping[str, Any] = {
    "tolerance": 0.25,
    "move": 0.2,
}  # of `check`, for an engine whose log-probs are rounded to hundredths
DEFAULT_EPS = 1e-8  # of AdamW in torch, Megatron and JAX


@dataclass(frozen=True)
class Descent:
    """Settings with which AdamW without moments steps by -factor times a gradient: a large eps, or small slopes.

    slope  multiple of the slopes;   lr  the step size;   eps  of the step, None: the engine's own
    """

    slope: float
    lr: float
    eps: float | None

    @classmethod
    def by(cls, factor: float, norm: float, fixed_eps: float | None) -> Descent:
        """norm  of the gradient;   fixed  the eps of an engine that takes no other; None: it takes any"""
        if fixed_eps is None:
            return cls(1.0, factor * EPS, EPS)
        slope = LINEAR * fixed_eps / norm
        return cls(slope, factor * fixed_eps / slope, None)


@dataclass(frozen=True)
class Probe:
    """Response of a training engine to slopes on one token's log-prob.

    scale      its gradient over the true one: n^2 / |dx| * lr / eps, from the norm n that it reports and from what one
               step does to the token. 1 is right; 1 / world where the number of ranks is not multiplied back
    twice      norm for the row given twice, over the norm for it once. 2 is right; 1: a mean is taken over rows
    apart      the same for the row in two calls of `pull`. 2 is right
    cancelled  the same for the row given with slopes +1 and -1. 0 is right
    norm       the norm that it reports for slope 1, times the scale the gradient's own
    fixed_eps  eps of an engine whose steps take no other: `scale` is right as far as this is. None: it takes any
    """

    scale: float
    twice: float
    apart: float
    cancelled: float
    norm: float
    fixed_eps: float | None = None

    def trouble(self, tolerance: float) -> str | None:
        """One-line description of the mismatches; None if there are none."""
        expected = {"scale": 1.0, "twice": 2.0, "apart": 2.0, "cancelled": 0.0}
        mismatches = [
            f"{k} {getattr(self, k):.4g} instead of {v:g}"
            for k, v in expected.items()
            if not self._near(k, v, tolerance)
        ]
        if mismatches and mismatches[0].startswith("scale") and self.fixed_eps is not None:
            mismatches[0] += f" if the eps of its AdamW is {self.fixed_eps:g}"
        return ", ".join(mismatches) or None

    def _near(self, name: str, expected: float, tolerance: float) -> bool:
        return abs(getattr(self, name) - expected) <= tolerance * max(expected, 1.0)


def probe(engine: TrainEngine, row: TokenRow, *, move: float = MOVE, scratch: Path | None = None) -> Probe:
    """Measure an engine on the first reading of a row. The weights are saved first and loaded again at the end.

    row   any row with at least one reading, whose log-prob depends on the weights
    move  nats by which the token is to move: many times what log-probs are rounded to
    """
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        state_path = Path(folder) / "engine"
        engine.save(state_path)
        try:
            return _measure_probe(engine, TokenRow(row.tokens, row.read[:1], row.temperature[:1]), state_path, move)
        finally:
            engine.discard()
            engine.load(state_path)


def _measure_probe(engine: TrainEngine, row: TokenRow, state_path: Path, move: float) -> Probe:
    """Probe of an engine on a row with one reading, whose state lies at `state_path`."""

    def norm(*pulls: Sequence[float]) -> float:
        """The norm that the engine reports after pulls of the row with these slopes."""
        engine.discard()
        for slopes in pulls:
            engine.pull([row] * len(slopes), {"logprob": [_slope(s) for s in slopes]})
        return engine.step(0.0, None, eps=EPS)

    def measure_move(descent: Descent, sign: float) -> float:
        """Nats by which a step from the saved state moves the token."""
        engine.load(state_path)
        before = _value(engine, row)
        engine.pull([row], {"logprob": [_slope(sign * descent.slope)]})
        engine.step(descent.lr, None, eps=descent.eps)
        return _value(engine, row) - before

    # steps of size 0 leave the weights alone and report the norm: a sum doubles it, a mean does not
    norm_once = norm([1.0])
    if not norm_once > 0:
        raise ModelError(
            f"the training engine reports the gradient norm {norm_once:.3g} for a token with slope 1: does `pull` "
            "leave a gradient, and does `step` report its norm before clipping?"
        )
    twice, apart, cancelled = norm([1.0, 1.0]), norm([1.0], [1.0]), norm([1.0, -1.0])
    fixed_eps = None if heeds_eps(measure_move(step_if_eps_ignored(norm_once, move), 1.0), move) else own_eps(engine)
    descent = Descent.by(move / norm_once**2, norm_once, fixed_eps)
    # the scale of the gradient shows only in a step. Weight decay and curvature do the same for both signs, so the
    # difference leaves them out; a slope of 1 is followed downwards
    moved_nats = (measure_move(descent, -1.0) - measure_move(descent, 1.0)) / 2
    scale = float("nan") if moved_nats == 0 else move / moved_nats
    return Probe(scale, twice / norm_once, apart / norm_once, cancelled / norm_once, norm_once, fixed_eps)


def step_if_eps_ignored(norm: float, move: float = MOVE) -> Descent:
    """A step that moves the token by a thousandth of `move` under the eps that it asks for, and by more than `move`
    under a small one, when AdamW follows signs."""
    return Descent(1.0, move / norm, EPS * max(1.0, norm))


def heeds_eps(moved_nats: float, move: float = MOVE) -> bool:
    """Return True if the engine took the eps of `step_if_eps_ignored`, from the nats by which the token moved."""
    return abs(moved_nats) <= move / 2


def own_eps(engine: Any) -> float:
    """Default eps of an engine's steps."""
    return float(getattr(engine, "eps", DEFAULT_EPS))


def _slope(value: float) -> Tensor:
    return torch.tensor([value], dtype=torch.float64)


def _value(engine: TrainEngine, row: TokenRow) -> float:
    return float(engine.forward([row])["logprob"][0])


def check(
    engine: TrainEngine, row: TokenRow, *, tolerance: float = 0.02, move: float = MOVE, scratch: Path | None = None
) -> Probe:
    """Run `probe`; raise ModelError unless the engine is right to within `tolerance`."""
    result = probe(engine, row, move=move, scratch=scratch)
    if (trouble := result.trouble(tolerance)) is not None:
        raise ModelError(
            f"the training engine's gradient is not the sum that was asked for: {trouble} (a scale of 1 / ranks: their "
            "number is forgotten; twice 1: a mean over rows; a scale near 1 where the engine computes in bfloat16: set "
            "learner.dtype=bfloat16)"
        )
    return result
