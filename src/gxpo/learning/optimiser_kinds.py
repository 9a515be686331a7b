"""Optimisers by name: AdamW (also with stochastic rounding), SGD, Signum, Lion, Muon; defaults and states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from gxpo.base.errors import ConfigError

Kind = Literal["adamw", "sgd", "signum", "lion", "muon"]
KINDS: tuple[str, ...] = get_args(Kind)
BETAS: Mapping[str, tuple[float, float]] = {  # defaults
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
        """Take one optimiser step; `closure` is ignored."""
        for group in self.param_groups:
            lr, (first, second) = group["lr"], group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                average = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                direction = average.lerp(p.grad, 1 - first).sign_()
                p.mul_(1 - lr * group["weight_decay"]).add_(direction, alpha=-lr)
                average.lerp_(p.grad, 1 - second)


def make_optimiser(
    kind: str, groups: Sequence[dict[str, Any]], *, lr: float, betas: tuple[float, float], eps: float
) -> Any:
    """Make the torch optimiser of this kind over parameter groups."""
    fused = next(iter(groups))["params"][0].device.type in ("cpu", "cuda")
    if kind == "adamw":
        return torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=fused)
    if kind == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=betas[0], fused=fused)
    if kind == "muon":  # its rate is scaled to AdamW's (Liu et al., 2025): one rate for both
        return torch.optim.Muon(groups, lr=lr, adjust_lr_fn="match_rms_adamw")
    return SignMomentum(groups, lr=lr, betas=(betas[0], betas[0] if kind == "signum" else betas[1]))


def states_of(kind: str, betas: tuple[float, float]) -> tuple[str, ...]:
    """Names of the state tensors of each parameter after a first step."""
    return () if kind == "sgd" and not betas[0] else _STATES[kind]


def betas_of(kind: str, betas: Sequence[float] | None) -> tuple[float, float]:
    """Return the configured betas, or the defaults of the kind; ConfigError for an unknown kind."""
    if kind not in KINDS:
        raise ConfigError(f"learner.optimiser is {kind!r}; it is one of {', '.join(KINDS)}")
    return BETAS[kind] if betas is None else (betas[0], betas[1])


def is_hidden(name: str, p: Tensor, apart: Sequence[str]) -> bool:
    """Return True if Muon moves a parameter: a matrix that is no embedding and no output head (`apart`)."""
    return p.dim() == 2 and not any(name.startswith(prefix) for prefix in apart)


# ---------------------------------------------------------------- AdamW with stochastic rounding
CHUNK = 1 << 18  # elements that are worked on at a time: what is computed in float32 stays in the cache
DISCARDED = 16  # bits of a float32 that bfloat16 lacks


class RoundedAdamW:
    """AdamW (Loshchilov & Hutter, 2019) on bfloat16 parameters with bfloat16 moments, computed in float32.

    A value between two neighbours in bfloat16 becomes the upper one with the probability of its place between them, so
    that its expectation is kept: rounding to nearest would lose every step below 1/256 of a parameter, and let the
    second moment, which moves by 1/1000 a step, get stuck. The random bits depend on the number of the step and on
    the place alone. Holds 6 bytes a parameter, gradient not counted; float32 copies and moments hold 14.

    Takes groups and holds states as `torch.optim.AdamW` does; a parameter without a gradient stays.
    """

    def __init__(
        self, groups: Sequence[Mapping[str, Any]], *, lr: float, betas: tuple[float, float], eps: float
    ) -> None:
        self.param_groups: list[dict[str, Any]] = [{"lr": lr, **group} for group in groups]
        self.state: dict[Tensor, dict[str, Tensor]] = {}
        self.betas, self.eps = betas, eps

    @torch.no_grad()
    def step(self) -> None:
        """Take one optimiser step."""
        place = 0  # numbers the chunks, so that each draws other bits of the step's noise
        noise: Tensor | None = None
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state.setdefault(p, {})
                if not state:
                    state |= {"step": torch.tensor(0.0), "exp_avg": torch.zeros_like(p)}
                    state["exp_avg_sq"] = torch.zeros_like(p)
                state["step"] += 1
                number = int(state["step"])
                # one noise table a step, keyed by its number: a resumed run rounds alike
                if noise is None:
                    generator = torch.Generator(p.device).manual_seed(number)
                    noise = torch.randint(
                        0, 1 << DISCARDED, (2 * CHUNK,), generator=generator, dtype=torch.int32, device=p.device
                    )
                parts = [x.view(-1).split(CHUNK) for x in (p, p.grad, state["exp_avg"], state["exp_avg_sq"])]
                # in chunks, since the float32 numbers between would take twice the memory of the states
                for chunk in zip(*parts, strict=True):
                    place += 1
                    self._move(chunk, group["lr"], group["weight_decay"], number, noise, place)

    def _move(self, chunk: tuple[Tensor, ...], lr: float, decay: float, number: int, noise: Tensor, place: int) -> None:
        p, g, m, v = (x.to(torch.float32) for x in chunk)
        first, second = self.betas
        m.lerp_(g, 1 - first)
        v.mul_(second).addcmul_(g, g, value=1 - second)
        spread = (v / (1 - second**number)).sqrt_().add_(self.eps)
        p.mul_(1 - lr * decay).addcdiv_(m, spread, value=-lr / (1 - first**number))
        for i, (old, new) in enumerate(((chunk[0], p), (chunk[2], m), (chunk[3], v))):
            start = (place * 3 + i) * 104729 % CHUNK  # a prime: each chunk and column begins elsewhere
            old.copy_(round_stochastically(new, noise[start : start + new.numel()]))


def round_stochastically(x: Tensor, noise: Tensor) -> Tensor:
    """Round x [n] float32 to bfloat16 stochastically, in place: up with probability (x - below) / (above - below).

    noise [n] int32, uniform in [0, 65536)

    >>> x = torch.tensor([1.0, 1.0 + 2.0**-8])  # half way between neighbours in bfloat16, which are 2^-7 apart
    >>> round_stochastically(x.clone(), torch.tensor([65535, 32767], dtype=torch.int32)).tolist()
    [1.0, 1.0]
    >>> round_stochastically(x.clone(), torch.tensor([0, 32768], dtype=torch.int32)).tolist()
    [1.0, 1.0078125]
    """
    bits = x.view(torch.int32)
    return bits.add_(noise).bitwise_and_(-(1 << DISCARDED)).view(torch.float32)
