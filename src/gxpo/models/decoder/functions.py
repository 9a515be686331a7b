"""Autograd functions with hand-written gradients for a decoder layer: norms, linear layers, gated MLPs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import gelu, silu


def normed(x: Tensor, rstd: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """RMSNorm: [n, H] x / rms(x) * weight, computed in float32."""
    return (x.to(torch.float32) * rstd).mul_(weight).to(dtype)


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """[n, 1] float32: 1 / sqrt(mean x^2 + eps)."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    return norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()


def norm_backward(g: Tensor, x: Tensor, rstd: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of `normed` by x [n, H] (float32) and by weight [H] (float32)."""
    g, hat = g.to(torch.float32), x.to(torch.float32) * rstd
    product = g * hat
    by_weight = product.sum(0)
    along = torch.mv(product, weight.to(torch.float32)).div_(x.shape[-1])
    return (g * weight).addcmul_(hat, along[:, None], value=-1).mul_(rstd), by_weight


def times(x: Tensor, weights: tuple[Tensor, ...]) -> Tensor:
    """[n, sum of rows]: x [n, H] times each weight [rows, H] transposed, concatenated."""
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
    """Gradients of `times` by x and by each weight that is `wanted`."""
    by_x = g.new_empty(x.shape)
    by_weight: list[Tensor | None] = []
    parts = g.split([w.shape[0] for w in weights], 1)
    for i, (part, w, own) in enumerate(zip(parts, weights, wanted, strict=True)):
        torch.addmm(by_x, part, w.to(g.dtype), beta=0 if i == 0 else 1, out=by_x)
        by_weight.append((part.t() @ x).to(w.dtype) if own else None)
    return by_x, by_weight


class NormLinears(Function):
    """RMSNorm and linear maps: [n, sum of rows], concatenated, of x / rms(x) * norm."""

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
    """Residual linear map [n, H]: x + a W^T, for a [n, K] and W [H, K]."""

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


@dataclass(frozen=True)
class Activation:
    """An activation: value(x), and slope(g, x, out), which writes g * d value / dx."""

    value: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor, Tensor, Tensor], None]


def _silu_slope(g: Tensor, x: Tensor, out: Tensor) -> None:
    torch.ops.aten.silu_backward.grad_input(g, x, grad_input=out)


def _gelu_tanh_slope(g: Tensor, x: Tensor, out: Tensor) -> None:
    torch.ops.aten.gelu_backward.grad_input(g, x, approximate="tanh", grad_input=out)


ACTIVATIONS = {
    "silu": Activation(silu, _silu_slope),
    "gelu_pytorch_tanh": Activation(partial(gelu, approximate="tanh"), _gelu_tanh_slope),
}


class GatedMLP(Function):
    """Gated MLP [n, H]: (act(h G^T) * (h U^T)) D^T with h = x / rms(x) * norm, and x itself added where `residual`.

    weights  gate and up [I, H], or both [2 I, H] one above the other. Keeps x and the inner products.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        norm: Tensor,
        eps: float,
        product: torch.dtype,
        act: Activation,
        residual: bool,
        down: Tensor,
        *weights: Tensor,
    ) -> Tensor:
        rstd = inverse_rms(x, eps)
        inner = times(normed(x, rstd, norm, product), weights)
        a, b = inner.chunk(2, 1)
        raised = act.value(a).mul_(b)
        if residual:
            out = torch.addmm(x.to(product), raised, down.to(product).t()).to(x.dtype)
        else:
            out = (raised @ down.to(product).t()).to(x.dtype)
        ctx.save_for_backward(x, rstd, norm, down, inner.to(x.dtype), *weights)
        ctx.product, ctx.act, ctx.residual = product, act, residual
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, rstd, norm, down, inner, *weights = ctx.saved_tensors
        product, wanted = ctx.product, ctx.needs_input_grad
        g, (a, b) = grads[0].to(product), inner.to(product).chunk(2, 1)
        raised = ctx.act.value(a)
        by_act, (by_down,) = times_backward(g, raised * b, (down,), (wanted[6],))
        by_inner = inner.new_empty(inner.shape, dtype=product)
        by_a, by_b = by_inner.chunk(2, 1)
        torch.mul(by_act, raised, out=by_b)
        ctx.act.slope(by_act.mul_(b), a, by_a)
        h = normed(x, rstd, norm, product)
        by_h, by_weights = times_backward(by_inner, h, tuple(weights), wanted[7:])
        by_x, by_norm = norm_backward(by_h, x, rstd, norm)
        if ctx.residual:
            by_x = by_x.add_(grads[0])
        return by_x.to(x.dtype), by_norm.to(norm.dtype), None, None, None, None, by_down, *by_weights
