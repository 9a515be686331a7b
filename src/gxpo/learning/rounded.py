"""AdamW with stochastic rounding: bfloat16 parameters and moments, unbiased in expectation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

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
        """One optimiser step."""
        place = 0
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
                if noise is None:
                    generator = torch.Generator(p.device).manual_seed(number)
                    noise = torch.randint(
                        0, 1 << DISCARDED, (2 * CHUNK,), generator=generator, dtype=torch.int32, device=p.device
                    )
                parts = [x.view(-1).split(CHUNK) for x in (p, p.grad, state["exp_avg"], state["exp_avg_sq"])]
                for chunk in zip(*parts, strict=True):
                    place += 1
                    self._move(chunk, group["lr"], group["weight_decay"], number, noise, place)
        return None

    def _move(self, chunk: tuple[Tensor, ...], lr: float, decay: float, number: int, noise: Tensor, place: int) -> None:
        p, g, m, v = (x.to(torch.float32) for x in chunk)
        first, second = self.betas
        m.lerp_(g, 1 - first)
        v.mul_(second).addcmul_(g, g, value=1 - second)
        spread = (v / (1 - second**number)).sqrt_().add_(self.eps)
        p.mul_(1 - lr * decay).addcdiv_(m, spread, value=-lr / (1 - first**number))
        for i, (old, new) in enumerate(((chunk[0], p), (chunk[2], m), (chunk[3], v))):
            start = (place * 3 + i) * 104729 % CHUNK  # a prime: each chunk and column begins elsewhere
            old.copy_(rounded(new, noise[start : start + new.numel()]))


def rounded(x: Tensor, noise: Tensor) -> Tensor:
    """Round x [n] float32 to bfloat16 stochastically, in place: up with probability (x - below) / (above - below).

    noise [n] int32, uniform in [0, 65536)

    >>> x = torch.tensor([1.0, 1.0 + 2.0**-8])  # half way between neighbours in bfloat16, which are 2^-7 apart
    >>> rounded(x.clone(), torch.tensor([65535, 32767], dtype=torch.int32)).tolist()
    [1.0, 1.0]
    >>> rounded(x.clone(), torch.tensor([0, 32768], dtype=torch.int32)).tolist()
    [1.0, 1.0078125]
    """
    bits = x.view(torch.int32)
    return bits.add_(noise).bitwise_and_(-(1 << DISCARDED)).view(torch.float32)
