"""The linear parts of a decoder layer with gradients by hand: fewer passes over memory, and less of it held.

Each holds only its input and what can't be computed again from it cheaply. `product` is the dtype in which matrices
are multiplied: that of the parameters, or float32 for bfloat16 parameters on processors whose bfloat16 products are
the slower ones. Sums inside a bfloat16 product are kept in float32 either way, so the two differ by rounding only.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import silu


def normed(x: Tensor, rstd: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """[n, H]: x / rms(x) * weight, computed in float32."""
    return (x.to(torch.float32) * rstd).mul_(weight).to(dtype)


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """[n, 1] float32: 1 / sqrt(mean x^2 + eps)."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    return norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()


def norm_backward(g: Tensor, x: Tensor, rstd: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients by x [n, H] (float32) and by weight [H] (float32) of `normed`, from that of its result."""
    g, hat = g.to(torch.float32), x.to(torch.float32) * rstd
    product = g * hat
    by_weight = product.sum(0)
    along = torch.mv(product, weight.to(torch.float32)).div_(x.shape[-1])
    return (g * weight).addcmul_(hat, along[:, None], value=-1).mul_(rstd), by_weight


def times(x: Tensor, weights: tuple[Tensor, ...]) -> Tensor:
    """[n, sum of rows]: x [n, H] times each weight [rows, H] transposed, side by side."""
    if len(weights) == 1:
        return x @ weights[0].to(x.dtype).t()
    sizes = [w.shape[0] for w in weights]
    out = x.new_empty(x.shape[0], sum(sizes))
    for part, w in zip(out.split(sizes, 1), weights, strict=True):
        torch.mm(x, w.to(x.dtype).t(), out=part)
    return out


def times_backward(
    g: Tensor, x: Tensor, weights: tuple[Tensor, ...], wanted: tuple[bool, ...]
) -> tuple[Tensor, list[Tensor | None]]:
    """Gradients by x and by each weight that is `wanted` of `times`."""
    by_x = g.new_empty(x.shape)
    by_weight: list[Tensor | None] = []
    parts = g.split([w.shape[0] for w in weights], 1)
    for i, (part, w, own) in enumerate(zip(parts, weights, wanted, strict=True)):
        torch.addmm(by_x, part, w.to(g.dtype), beta=0 if i == 0 else 1, out=by_x)
        by_weight.append((part.t() @ x).to(w.dtype) if own else None)
    return by_x, by_weight


class NormLinears(Function):
    """[n, sum of rows]: linear maps, side by side, of x / rms(x) * norm."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, norm: Tensor, eps: float, product: torch.dtype, *weights: Tensor) -> Tensor:
        rstd = inverse_rms(x, eps)
        ctx.save_for_backward(x, rstd, norm, *weights)
        ctx.product = product
        return times(normed(x, rstd, norm, product), weights).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, rstd, norm, *weights = ctx.saved_tensors
        h = normed(x, rstd, norm, ctx.product)
        by_h, by_weight = times_backward(grads[0].to(ctx.product), h, tuple(weights), ctx.needs_input_grad[4:])
        by_x, by_norm = norm_backward(by_h, x, rstd, norm)
        return by_x.to(x.dtype), by_norm.to(norm.dtype), None, None, *by_weight


class AddLinear(Function):
    """[n, H]: x + a W^T, for a [n, K] and W [H, K]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, a: Tensor, weight: Tensor, product: torch.dtype) -> Tensor:
        ctx.save_for_backward(a, weight)
        ctx.product = product
        return torch.addmm(x.to(product), a.to(product), weight.to(product).t()).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        a, weight = ctx.saved_tensors
        g = grads[0].to(ctx.product)
        by_a, (by_weight,) = times_backward(g, a.to(ctx.product), (weight,), (ctx.needs_input_grad[2],))
        return grads[0], by_a.to(a.dtype), by_weight, None


class GatedMLP(Function):
    """[n, H]: x + (silu(h G^T) * (h U^T)) D^T with h = x / rms(x) * norm. Holds x and the two inner products."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        norm: Tensor,
        eps: float,
        product: torch.dtype,
        gate: Tensor,
        up: Tensor,
        down: Tensor,
    ) -> Tensor:
        rstd = inverse_rms(x, eps)
        inner = times(normed(x, rstd, norm, product), (gate, up))
        a, b = inner.chunk(2, 1)
        out = torch.addmm(x.to(product), silu(a).mul_(b), down.to(product).t()).to(x.dtype)
        ctx.save_for_backward(x, rstd, norm, gate, up, down, inner.to(x.dtype))
        ctx.product = product
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, rstd, norm, gate, up, down, inner = ctx.saved_tensors
        product, wanted = ctx.product, ctx.needs_input_grad
        g, (a, b) = grads[0].to(product), inner.to(product).chunk(2, 1)
        raised = silu(a)
        by_act, (by_down,) = times_backward(g, raised * b, (down,), (wanted[6],))
        by_inner = inner.new_empty(inner.shape, dtype=product)
        by_a, by_b = by_inner.chunk(2, 1)
        torch.mul(by_act, raised, out=by_b)
        torch.ops.aten.silu_backward.grad_input(by_act.mul_(b), a, grad_input=by_a)
        h = normed(x, rstd, norm, product)
        by_h, (by_gate, by_up) = times_backward(by_inner, h, (gate, up), (wanted[4], wanted[5]))
        by_x, by_norm = norm_backward(by_h, x, rstd, norm)
        return by_x.add_(grads[0]).to(x.dtype), by_norm.to(norm.dtype), None, None, by_gate, by_up, by_down
