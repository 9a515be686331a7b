"""Run a decoder layer by its parts (`decoder.architecture.Layer`), fused where they are plain maps and norms.

The fused pieces (norms, linear layers, gated MLPs) are autograd functions with hand-written gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from gxpo.models.decoder.architecture import Activation, Layer, are_plain_linears


def is_stock_norm(layer: Layer, norm: Any, x: Tensor) -> bool:
    """Return True for the family's RMSNorm, whose float32 arithmetic the fused pieces compute."""
    rms = layer.family.rms
    return rms is not None and type(norm).__name__ == rms[0] and x.dtype != torch.float64


def weight_of(layer: Layer, norm: Any) -> Tensor:
    """Factor [H] of a stock norm."""
    assert layer.family.rms is not None
    offset = layer.family.rms[1]
    return norm.weight.to(torch.float32) + offset if offset else norm.weight


def eps_of(norm: Any) -> float:
    """Epsilon of a stock norm."""
    return norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps


def queries_keys_values(layer: Layer, x: Tensor, product: torch.dtype, fuse: bool = False) -> Tensor:
    """[n, (heads + 2 kv) * D] queries, keys and values of a layer's input; fuse: see `times`."""
    norm, maps, size = layer.norm(0), layer.maps, layer.heads.size
    # one kernel for norm and maps, and its backward recomputes the norm instead of holding it
    if are_plain_linears(*maps) and is_stock_norm(layer, norm, x):
        weights = (m.weight for m in maps)
        out = NormLinears.apply(x, weight_of(layer, norm), eps_of(norm), product, fuse, *weights)
    else:
        h = x if norm is None else norm(x)
        out = maps[0](h) if len(maps) == 1 else torch.cat([m(h) for m in maps], 1)
    # GPT-NeoX lays out queries, keys and values head by head
    if layer.family.by_head:
        out = out.unflatten(1, (layer.heads.queries, 3, size)).transpose(1, 2).flatten(1)
    norms = layer.norms_of_heads
    if not norms:
        return out
    parts = list(out.split([m.out_features for m in maps], 1))
    for i, of_heads in enumerate(norms):
        one_head = of_heads.weight.numel() == size  # else it is over all heads together
        part = parts[i].reshape(x.shape[0], -1, size) if one_head else parts[i]
        parts[i] = of_heads(part).flatten(1)
    return torch.cat(parts, 1)


def add_linear(linear: Any, x: Tensor, a: Tensor, product: torch.dtype) -> Tensor:
    """x + linear(a)."""
    return AddLinear.apply(x, a, linear.weight, product) if are_plain_linears(linear) else x + linear(a)


def add_attention(layer: Layer, x: Tensor, attention: Tensor, product: torch.dtype) -> Tensor:
    """Add the attention result [n, heads * D] to a layer's input x [n, H]."""
    if layer.norm(1) is None and layer.multiple == 1.0:
        return add_linear(layer.out, x, attention, product)
    return x + _branch(layer, layer.out(attention), layer.norm(1))


def add_mlp(layer: Layer, x: Tensor, product: torch.dtype, before: Tensor, fuse: bool = False) -> Tensor:
    """Add the MLP's output to x [n, H]; before: the layer's input, which a parallel MLP reads; fuse: see `times`."""
    norm, inner, mlp_input = layer.norm(2), layer.inner, before if layer.parallel else x
    adds_input = layer.sequential
    # adapters and other kinds of maps run by their own modules, for autograd to see them
    if inner and are_plain_linears(*inner, layer.mlp.down_proj) and is_stock_norm(layer, norm, x):
        weights = (layer.mlp.down_proj.weight, *(m.weight for m in inner))
        mlp_out = GatedMLP.apply(
            mlp_input, weight_of(layer, norm), eps_of(norm), product, layer.act, adds_input, fuse, *weights
        )
        if adds_input:
            return mlp_out
    else:
        mlp_out = layer.mlp((mlp_input if norm is None else norm(mlp_input))[None])  # experts want a batch
        mlp_out = (mlp_out[0] if isinstance(mlp_out, tuple) else mlp_out)[0]
    return x + _branch(layer, mlp_out, layer.norm(3))


def _branch(layer: Layer, x: Tensor, norm: Any) -> Tensor:
    x = x if norm is None else norm(x)
    return x if layer.multiple == 1.0 else x * layer.multiple


# ---------------------------------------------------------------- fused pieces
def normalize(x: Tensor, rstd: Tensor, weight: Tensor, dtype: torch.dtype) -> Tensor:
    """RMSNorm: [n, H] x / rms(x) * weight, computed in float32."""
    return (x.to(torch.float32) * rstd).mul_(weight).to(dtype)


def inverse_rms(x: Tensor, eps: float) -> Tensor:
    """[n, 1] float32: 1 / sqrt(mean x^2 + eps)."""
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    return norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()


def norm_backward(g: Tensor, x: Tensor, rstd: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of `normalize` by x [n, H] (float32) and by weight [H] (float32)."""
    g, hat = g.to(torch.float32), x.to(torch.float32) * rstd
    product = g * hat
    by_weight = product.sum(0)
    weighted_dot = torch.mv(product, weight.to(torch.float32)).div_(x.shape[-1])
    return (g * weight).addcmul_(hat, weighted_dot[:, None], value=-1).mul_(rstd), by_weight


def times(x: Tensor, weights: tuple[Tensor, ...], fuse: bool = False) -> Tensor:
    """[n, sum of rows]: x [n, H] times each weight [rows, H] transposed, concatenated.

    fuse    copy the weights one above the other first, for a single product
    """
    if fuse or len(weights) == 1:
        return x @ one_above_the_other(weights, x.dtype).t()
    sizes = [w.shape[0] for w in weights]
    out = x.new_empty(x.shape[0], sum(sizes))
    for part, w in zip(out.split(sizes, 1), weights, strict=True):
        torch.mm(x, w.to(x.dtype).t(), out=part)
    return out


def one_above_the_other(weights: tuple[Tensor, ...], dtype: torch.dtype) -> Tensor:
    """[sum of rows, H] weights [rows, H] in a dtype; a single one of that dtype is not copied."""
    return (weights[0] if len(weights) == 1 else torch.cat(weights)).to(dtype)


def times_backward(
    g: Tensor, x: Tensor, weights: tuple[Tensor, ...], needs_grad: tuple[bool, ...], fuse: bool = False
) -> tuple[Tensor, list[Tensor | None]]:
    """Gradients of `times` by x, and by each weight where `needs_grad`; fuse: by single products."""
    sizes = [w.shape[0] for w in weights]
    if fuse and all(needs_grad):
        by_weight_parts = (g.t() @ x).to(weights[0].dtype).split(sizes)
        return g @ one_above_the_other(weights, g.dtype), list(by_weight_parts)
    by_x = g.new_empty(x.shape)
    by_weight: list[Tensor | None] = []
    parts = g.split(sizes, 1)
    for i, (part, w, needs) in enumerate(zip(parts, weights, needs_grad, strict=True)):
        torch.addmm(by_x, part, w.to(g.dtype), beta=0 if i == 0 else 1, out=by_x)
        by_weight.append((part.t() @ x).to(w.dtype) if needs else None)
    return by_x, by_weight


class NormLinears(Function):
    """RMSNorm and linear maps: [n, sum of rows], concatenated, of x / rms(x) * norm."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, norm: Tensor, eps: float, product: torch.dtype, fuse: bool, *weights: Tensor
    ) -> Tensor:
        # keep x and one number a row; the normed input is computed again in the backward pass
        rstd = inverse_rms(x, eps)
        ctx.save_for_backward(x, rstd, norm, *weights)
        ctx.product, ctx.fuse = product, fuse
        return times(normalize(x, rstd, norm, product), weights, fuse).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, rstd, norm, *weights = ctx.saved_tensors
        h = normalize(x, rstd, norm, ctx.product)
        g, needs_grad = grads[0].to(ctx.product), ctx.needs_input_grad[5:]
        by_h, by_weight = times_backward(g, h, tuple(weights), needs_grad, ctx.fuse)
        by_x, by_norm = norm_backward(by_h, x, rstd, norm)
        return by_x.to(x.dtype), by_norm.to(norm.dtype), None, None, None, *by_weight


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
        fuse: bool,
        down: Tensor,
        *weights: Tensor,
    ) -> Tensor:
        rstd = inverse_rms(x, eps)
        inner = times(normalize(x, rstd, norm, product), weights, fuse)
        a, b = inner.chunk(2, 1)
        hidden = act.value(a).mul_(b)
        # the residual is the accumulator of the product, which saves a pass over [n, H]
        if residual:
            out = torch.addmm(x.to(product), hidden, down.to(product).t()).to(x.dtype)
        else:
            out = (hidden @ down.to(product).t()).to(x.dtype)
        # hold the projections and not what the activation makes of them: it is cheap to compute again
        ctx.save_for_backward(x, rstd, norm, down, inner.to(x.dtype), *weights)
        ctx.product, ctx.act, ctx.residual, ctx.fuse = product, act, residual, fuse
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, rstd, norm, down, inner, *weights = ctx.saved_tensors
        product, needs_grad = ctx.product, ctx.needs_input_grad
        g, (a, b) = grads[0].to(product), inner.to(product).chunk(2, 1)
        gate = ctx.act.value(a)
        by_act, (by_down,) = times_backward(g, gate * b, (down,), (needs_grad[7],))
        # both halves side by side, so that one product gives the gradient by the normed input
        by_inner = inner.new_empty(inner.shape, dtype=product)
        by_a, by_b = by_inner.chunk(2, 1)
        torch.mul(by_act, gate, out=by_b)
        ctx.act.slope(by_act.mul_(b), a, by_a)
        h = normalize(x, rstd, norm, product)
        by_h, by_weights = times_backward(by_inner, h, tuple(weights), needs_grad[8:], ctx.fuse)
        by_x, by_norm = norm_backward(by_h, x, rstd, norm)
        if ctx.residual:
            by_x = by_x.add_(grads[0])
        return by_x.to(x.dtype), by_norm.to(norm.dtype), None, None, None, None, None, by_down, *by_weights
