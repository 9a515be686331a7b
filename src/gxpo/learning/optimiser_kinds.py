"""Optimisers by name: AdamW (also with stochastic rounding), SGD, Signum, Lion, Muon, IGT; defaults and states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from gxpo.base import runtime
from gxpo.base.devices import has_float64, to_host_float64
from gxpo.base.errors import ConfigError

Kind = Literal["adamw", "sgd", "signum", "lion", "muon", "igt"]
Direction = Literal["sign", "norm", "clip", "stochastic"]
Caution = Literal["none", "plus_one", "mean_floor"]
KINDS: tuple[str, ...] = get_args(Kind)
SIGNED, CAUTIOUS = ("signum", "lion"), ("adamw", "signum", "lion", "muon")  # have a direction; can be cautious
BETAS: Mapping[str, tuple[float, float]] = {  # defaults
    "adamw": (0.9, 0.999),
    "sgd": (0.0, 0.0),  # no momentum
    "signum": (0.9, 0.0),
    "lion": (0.9, 0.99),
    "muon": (0.9, 0.999),  # of AdamW, for what is no hidden matrix; Muon's own momentum is 0.95
    "igt": (0.9, 0.0),
}
_STATES = {
    "adamw": ("exp_avg", "exp_avg_sq"),
    "sgd": ("momentum_buffer",),
    "signum": ("exp_avg",),
    "lion": ("exp_avg",),
    "muon": ("momentum_buffer",),
    "igt": ("exp_avg", "point"),
}


@dataclass(frozen=True)
class Rule:
    """Direction that an averaged gradient c gives under Signum and Lion, and caution.

    direction  "sign": sign(c);  "norm": c / |c|, the norm over all parameters;  "clip": c / threshold within +-1;
               "stochastic": sign(c + G n), n uniform in [-1, 1] and G the largest |c| of the coordinate so far, so that
               the expectation is c / G
    caution    coordinates whose step agrees in sign with -gradient are kept, and scaled by n / (kept + 1) ("plus_one")
               or by n / kept, at most 1000 ("mean_floor"), n the tensor's size; "none": all

    Sources: Lion-K, arXiv 2310.05898 (a convex function's subgradient in the place of the sign); StoSignSGD; Cautious
    Optimizers, arXiv 2411.16085, whose c_lion.py has "plus_one" and whose c_adamw.py "mean_floor".
    """

    direction: Direction = "sign"
    threshold: float = 1e-3
    caution: Caution = "none"

    def check(self, kind: str, *, is_rounded: bool = False) -> None:
        """Raise ConfigError if this kind can't follow the rule."""
        if self.direction != "sign" and kind not in SIGNED:
            raise ConfigError(
                f"optim.direction={self.direction} is of {' and '.join(SIGNED)}, and learner.optimiser is {kind}"
            )
        if self.caution != "none" and (kind not in CAUTIOUS or is_rounded):
            setting = "learner.states=bfloat16" if is_rounded else f"learner.optimiser={kind}"
            raise ConfigError(f"optim.caution={self.caution} masks steps of {', '.join(CAUTIOUS)}, not of {setting}")


class SignMomentum(torch.optim.Optimizer):
    """Sign-based optimisers with decoupled weight decay w: every coordinate moves by lr, whatever its gradient.

    Lion (Chen et al., 2023)   c = b1 m + (1 - b1) g;   x -= lr (sign(c) + w x);   m = b2 m + (1 - b2) g
    Signum (Bernstein et al., 2018)   m = b1 m + (1 - b1) g;   x -= lr (sign(m) + w x);   betas = (b1, b1)

    With lr w <= 1, |x| <= 1 / w in every coordinate stays so (Lion solves that constrained problem: Chen et al., 2024).
    Another `Rule.direction` may take the place of the sign. Random numbers are keyed by step and place of a parameter.
    """

    def __init__(
        self, groups: Sequence[Mapping[str, Any]], *, lr: float, betas: tuple[float, float], rule: Rule | None = None
    ) -> None:
        super().__init__([dict(group) for group in groups], {"lr": lr, "betas": betas, "weight_decay": 0.0, "step": 0})
        self.rule = rule or Rule()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Take one optimiser step; `closure` is ignored."""
        # a norm over all parameters is known before the first of them moves
        norm = 0.0
        if self.rule.direction == "norm":
            norm = norm_of([self._average(p, group) for group, p in _with_gradient(self)])
        for place, (group, p) in enumerate(_with_gradient(self)):
            lr, second = group["lr"], group["betas"][1]
            direction = self._direction(p, self._average(p, group), norm, (group["step"], place))
            p.mul_(1 - lr * group["weight_decay"]).add_(direction, alpha=-lr)
            self.state[p]["exp_avg"].lerp_(p.grad, 1 - second)

    def _average(self, p: Tensor, group: Mapping[str, Any]) -> Tensor:
        average = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
        return average.lerp(p.grad, 1 - group["betas"][0])

    def _direction(self, p: Tensor, c: Tensor, norm: float, key: tuple[int, int]) -> Tensor:
        if self.rule.direction == "norm":
            return c.mul_(1 / norm if norm else 0.0)
        if self.rule.direction == "clip":
            return c.div_(self.rule.threshold).clamp_(-1, 1)
        if self.rule.direction == "stochastic":
            part, bound = local(c), local(self.state[p].setdefault("bound", torch.zeros_like(p)))
            torch.maximum(bound, part.abs(), out=bound)
            # shards are different coordinates, whole tensors the same ones in every process
            seed = (key[0] * 1_000_003 + key[1]) * 4099 + (runtime.rank() if is_shard(c) else 0)
            generator = torch.Generator(part.device).manual_seed(seed)
            noise = torch.rand(part.shape, generator=generator, dtype=part.dtype, device=part.device)
            part.addcmul_(bound, noise.mul_(2).sub_(1))
        return c.sign_()


class Transported(torch.optim.Optimizer):
    """Normalised momentum with implicit gradient transport (N-PG-IGT): gradients are taken ahead of the point.

    The parameters are the extrapolated point y = x + b / (1 - b) (x - x_before), where rollouts are sampled and the
    gradient g is taken;  d = b d + (1 - b) g;   x -= lr (d / |d| + w x);   the norm is over all parameters.

    A step of x has length lr: about lr sqrt(n) of a sign-based optimiser's lr moves n parameters as far. Evaluations
    and exports are of y too; state "point" is x. Source: Fatkhullin et al., 2023, with constant b and lr.
    """

    def __init__(self, groups: Sequence[Mapping[str, Any]], *, lr: float, beta: float) -> None:
        super().__init__([dict(group) for group in groups], {"lr": lr, "weight_decay": 0.0})
        self.beta = beta

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Take one optimiser step; `closure` is ignored."""
        for _, p in _with_gradient(self):
            state = self.state[p]
            state.setdefault("point", p.detach().clone())
            state.setdefault("exp_avg", torch.zeros_like(p)).lerp_(p.grad, 1 - self.beta)
        norm = norm_of([self.state[p]["exp_avg"] for _, p in _with_gradient(self)])
        for group, p in _with_gradient(self):
            state, lr = self.state[p], group["lr"]
            point = state["point"].mul(1 - lr * group["weight_decay"])
            if norm:
                point.add_(state["exp_avg"], alpha=-lr / norm)
            p.copy_(torch.lerp(state["point"], point, 1 / (1 - self.beta)))
            state["point"].copy_(point)


def _with_gradient(optimiser: torch.optim.Optimizer) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield the parameters that have a gradient, each with its group."""
    for group in optimiser.param_groups:
        yield from ((group, p) for p in group["params"] if p.grad is not None)


class Cautious:
    """Steps of an optimiser masked where they go against -gradient (`Rule.caution`), scaled to keep their size.

    Takes a copy of the parameters for the time of a step. Source: Cautious Optimizers, arXiv 2411.16085.
    """

    def __init__(self, inner: torch.optim.Optimizer, caution: str) -> None:
        self.inner, self.caution = inner, caution
        self.param_groups, self.state = inner.param_groups, inner.state

    @torch.no_grad()
    def step(self) -> None:
        """Take one optimiser step, and undo its components that point against -gradient."""
        pairs = list(_with_gradient(self.inner))
        origins = [p.detach().clone().mul_(1 - group["lr"] * group["weight_decay"]) for group, p in pairs]
        gradients = [p.grad.clone() for _, p in pairs]  # Muon changes them
        self.inner.step()
        # what the step has added to the decayed parameter, where it agrees with -gradient
        masks = [
            (local(p) - local(old)) * local(g) < 0 for (_, p), old, g in zip(pairs, origins, gradients, strict=True)
        ]
        counts = to_host_float64(torch.stack([mask.sum() for mask in masks]))
        are_shards = torch.tensor([is_shard(p) for _, p in pairs], device=counts.device)
        of_shards = torch.where(are_shards, counts, 0.0)
        runtime.all_sum([of_shards])
        kept_counts = torch.where(are_shards, of_shards, counts).tolist()
        for (_, p), old, mask, n_kept in zip(pairs, origins, masks, kept_counts, strict=True):
            scale = p.numel() / (n_kept + 1) if self.caution == "plus_one" else 1 / max(n_kept / p.numel(), 1e-3)
            part, origin = local(p), local(old)
            part.copy_(torch.where(mask, origin + scale * (part - origin), origin))


def norm_in(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Norm of a tensor, computed in `dtype`; in float64 on the host where its device has none."""
    needs_host = dtype == torch.float64 and not has_float64(x.device)
    return torch.linalg.vector_norm(x.cpu() if needs_host else x, dtype=dtype)


def norm_of(tensors: Sequence[Tensor]) -> float:
    """Norm of many tensors as one vector; shards are summed over processes, whole tensors are not."""
    squares = [(is_shard(x), float(norm_in(local(x), torch.float64)) ** 2) for x in tensors]
    of_shards = torch.tensor(sum(q for shard, q in squares if shard), dtype=torch.float64)
    if any(shard for shard, _ in squares):
        runtime.all_sum([of_shards])
    return (float(of_shards) + sum(q for shard, q in squares if not shard)) ** 0.5


def is_shard(x: Tensor) -> bool:
    """Return True if a tensor is a shard (a `DTensor`)."""
    return hasattr(x, "to_local")


def local(x: Tensor) -> Tensor:
    """This process's part of a tensor: its shard, or all of it."""
    to_local: Any = getattr(x, "to_local", None)
    return x if to_local is None else to_local()


def make_optimiser(
    kind: str, groups: Sequence[dict[str, Any]], *, lr: float, betas: tuple[float, float], eps: float, rule: Rule
) -> Any:
    """Make the torch optimiser of this kind over parameter groups."""
    fused = next(iter(groups))["params"][0].device.type in ("cpu", "cuda")
    if kind == "adamw":
        inner: torch.optim.Optimizer = torch.optim.AdamW(groups, lr=lr, betas=betas, eps=eps, fused=fused)
    elif kind == "sgd":
        inner = torch.optim.SGD(groups, lr=lr, momentum=betas[0], fused=fused)
    elif kind == "muon":  # its rate is scaled to AdamW's (Liu et al., 2025): one rate for both
        inner = torch.optim.Muon(groups, lr=lr, adjust_lr_fn="match_rms_adamw")
    elif kind == "igt":
        inner = Transported(groups, lr=lr, beta=betas[0])
    else:
        inner = SignMomentum(groups, lr=lr, betas=(betas[0], betas[0] if kind == "signum" else betas[1]), rule=rule)
    return inner if rule.caution == "none" else Cautious(inner, rule.caution)


def states_of(kind: str, betas: tuple[float, float], rule: Rule) -> tuple[str, ...]:
    """Names of the state tensors of each parameter after a first step."""
    bound = ("bound",) if kind in SIGNED and rule.direction == "stochastic" else ()
    return () if kind == "sgd" and not betas[0] else (*_STATES[kind], *bound)


def betas_of(kind: str, betas: Sequence[float] | None) -> tuple[float, float]:
    """Return the configured betas, or the defaults of the kind; ConfigError for an unknown kind."""
    if kind not in KINDS:
        raise ConfigError(f"learner.optimiser is {kind!r}; it is one of {', '.join(KINDS)}")
    return BETAS[kind] if betas is None else (betas[0], betas[1])


def is_hidden(name: str, p: Tensor, outer_names: Sequence[str]) -> bool:
    """Return True if Muon moves a parameter: a matrix that is no embedding and no output head (of these prefixes)."""
    return p.dim() == 2 and not any(name.startswith(prefix) for prefix in outer_names)


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
