"""Measure which dtype multiplies a 16-bit model's matrices faster on this machine, on a synthetic layer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gxpo.models.decoder.architecture import are_plain_linears
from gxpo.models.decoder.attention import HALF
from gxpo.models.decoder.forward import Decoder
from gxpo.models.decoder.layer import times, times_backward
from gxpo.models.decoder.sampling import copies_fit

ROWS = 256  # tokens that go through a matrix together, at most
WORK = 1e9  # floating point operations of a trial, at most: wider matrices are cut to fit
TRIES = 5  # of each product; more where the two are close
SECONDS = 0.3  # after which two tries are enough
CLEAR = 1.5  # ratio of the two that more tries would not turn round
GAIN = 1.1  # how many times as fast the native products have to be: those in float32 round less


@dataclass(frozen=True)
class Trial:
    """Seconds of the same products in the parameters' dtype and in float32."""

    native: float
    float32: float

    @property
    def choice(self) -> Literal["native", "float32"]:
        return "native" if GAIN * self.native <= self.float32 else "float32"

    def __str__(self) -> str:
        speed = self.float32 / self.native
        if self.choice == "native":
            return f"native ({speed:.2g} times the speed of float32)"
        return f"float32 ({1 / speed:.2g} times the speed of native)"


def products(
    decoder: Decoder, head: Any, rows: int, *, update: bool, clock: Callable[[], float] = time.perf_counter
) -> Trial | None:
    """Time the products of an update, forward and backward, or of one sampled token for each of `rows` samples.

    None where there is nothing to choose: parameters of 32 bits or more, or adapters on every matrix. `head` stands in
    where the layers' matrices have adapters and it has none. Takes a few tenths of a second at most, except where one
    of the two is very slow.
    """
    if decoder.dtype not in HALF or not (weights := _matrices(decoder, head)):
        return None
    # with float32 copies too large to be held, tokens are drawn natively, and the choice is that of reading prompts
    laid_out = not update and copies_fit(decoder, torch.float32)
    rows = min(rows, ROWS) if update or laid_out else ROWS
    flops = (6 if update else 2) * rows * sum(w.numel() for w in weights)
    # a share of each matrix is enough: time is proportional to its rows
    share = min(1.0, WORK / flops)
    weights = [w.detach()[: max(1, round(share * w.shape[0]))].requires_grad_(w.requires_grad) for w in weights]
    runs_by_name = {
        name: [_product(w, rows, dtype, update, laid_out) for w in weights]
        for name, dtype in (("native", decoder.dtype), ("float32", torch.float32))
    }
    # the best time of every matrix by itself: other load on the machine then disturbs only a few of them
    best = {name: [float("inf")] * len(runs) for name, runs in runs_by_name.items()}
    start_time, tries = clock(), 0
    with torch.no_grad():
        # at least twice: the first run also pays for touching the memory
        while tries < 2 or (clock() - start_time < SECONDS and (tries < TRIES or not _is_clear(best))):
            for name, runs in runs_by_name.items():
                for i, run in enumerate(runs):
                    start = clock()
                    run()
                    best[name][i] = min(best[name][i], clock() - start)
            tries += 1
    return Trial(sum(best["native"]), sum(best["float32"]))


def _is_clear(best: dict[str, list[float]]) -> bool:
    seconds = [sum(each) for each in best.values()]
    return max(seconds) > CLEAR * min(seconds)


def _matrices(decoder: Decoder, head: Any) -> list[Tensor]:
    """The weights of a layer that are multiplied in the dtype of products, else of the head."""
    weights = [m.weight for m in decoder.layers[0].matrices if are_plain_linears(m)]
    return weights or [m.weight for m in (head,) if are_plain_linears(m)]


def _product(w: Tensor, rows: int, product: torch.dtype, update: bool, laid_out: bool) -> Callable[[], object]:
    """A weight times as many rows, with what is converted on the way in `gxpo.models.decoder.layer` and `step`."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(rows, w.shape[1], generator=draw).to(w.dtype)
    g = torch.randn(rows, w.shape[0], generator=draw).to(w.dtype)
    # sampling holds its copies in this layout (`Stepper._fused`), so the trial multiplies in it too
    if laid_out:
        copy = w.detach().to(product).t().contiguous()
        return lambda: (x.to(product) @ copy).to(w.dtype)

    def run() -> None:
        times(x.to(product), (w,)).to(w.dtype)
        if update:
            times_backward(g.to(product), x.to(product), (w,), (w.requires_grad,))[0].to(w.dtype)

    return run
