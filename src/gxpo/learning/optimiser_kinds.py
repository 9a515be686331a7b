"""Optimisers by name: AdamW, SGD, Signum, Lion, Muon; their defaults and the states that a checkpoint holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from gxpo.base.errors import ConfigError

Kind = Literal["adamw", "sgd", "signum", "lion", "muon"]
KINDS: tuple[str, ...] = get_args(Kind)
BETAS: Mapping[str, tuple[float, float]] = {  # where none are stated
    "adamw": (0.9, 0.999),
    "sgd": (0.0, 0.0),  # no momentum
    "signum": (0.9, 0.0),
    "lion": (0.9, 0.99),
    "muon": (0.9, 0.999),  # of AdamW, for what is no hidden matrix; Muon's own momentum is 0.95
}
_STATES = {
    "adamw": ("exp_avg", "exp_avg_sq"),
    "sgd": ("momentum_buffer",),
    "signum": ("exp_avg",),
    "lion": ("exp_avg",),
    "muon": ("momentum_buffer",),
}


class SignMomentum(torch.optim.Optimizer):
    """Sign-based optimisers with decoupled weight decay w: every coordinate moves by lr, whatever its gradient.

    Lion (Chen et al., 2023)   c = b1 m + (1 - b1) g;   x -= lr (sign(c) + w x);   m = b2 m + (1 - b2) g
    Signum (Bernstein et al., 2018)   m = b1 m + (1 - b1) g;   x -= lr (sign(m) + w x);   betas = (b1, b1)

    With lr w <= 1, |x| <= 1 / w in every coordinate stays so (Lion solves that constrained problem: Chen et al., 2024).
    """

    def __init__(self, groups: Sequence[Mapping[str, Any]], *, lr: float, betas: tuple[float, float]) -> None:
        super().__init__([dict(group) for group in groups], {"lr": lr, "betas": betas, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """One optimiser step; `closure` is not read."""
        for group in self.param_groups:
            lr, (first, second) = group["lr"], group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                average = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                direction = average.lerp(p.grad, 1 - first).sign_()
                p.mul_(1 - lr * group["weight_decay"]).add_(direction, alpha=-lr)
                average.lerp_(p.grad, 1 - second)


def make_optimiser(kind: str, groups: Sequence[dict[str, Any]], *, lr: float, betas: tuple[float, float], eps: float) -> Any:
    """A torch optimiser over parameter groups."""
    fused = next(iter(groups))["params"][0].device.type in ("cpu", "cuda")
    if kind == "adamw":
        return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=fused)
    if kind == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=betas[0], fused=fused)
    if kind == "muon":  # its rate is scaled to AdamW's (Liu et al., 2025): one rate for both
        return torch.optim.Muon(groups, lr=lr, adjust_lr_fn="match_rms_adamw")
    return SignMomentum(groups, lr=lr, betas=(betas[0], betas[0] if kind == "signum" else betas[1]))


def states_of(kind: str, betas: tuple[float, float]) -> tuple[str, ...]:
    """Names of the tensors that an optimiser holds of each parameter once it has taken a step."""
    return () if kind == "sgd" and not betas[0] else _STATES[kind]


def betas_of(kind: str, betas: Sequence[float] | None) -> tuple[float, float]:
    """The betas that were stated, or the optimiser's own."""
    if kind not in KINDS:
        raise ConfigError(f"learner.optimiser is {kind!r}; it is one of {', '.join(KINDS)}")
    return BETAS[kind] if betas is None else (betas[0], betas[1])


def is_hidden(name: str, p: Tensor, apart: Sequence[str]) -> bool:
    """Whether Muon moves a parameter: a matrix that is neither an embedding nor an output head (`apart`)."""
    return p.dim() == 2 and not any(name.startswith(prefix) for prefix in apart)
