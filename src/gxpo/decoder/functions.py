"""Autograd functions with hand-written gradients for a decoder layer: tree attention, norms, linear layers.

Attention needs no mask: every chain of tokens attends to itself causally and to each chain above it. Tokens lie in
depth-first order, so everything below a chain follows it in one stretch: there are as many causal squares as chains,
and one full rectangle for each chain that has something below it. Their softmaxes are joined by their logarithmic sums,
and the gradient of each block is taken with the joined sum, as in ring attention (Liu et al., arXiv 2310.01889). Memory
grows with the number of tokens, never with its square.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import silu

KERNEL = "_scaled_dot_product_flash_attention_for_cpu"
HALF = (torch.bfloat16, torch.float16)
WASTE = 0.25  # share of padding up to which causal squares of different sizes go together


@dataclass(frozen=True)
class Chain:
    """Tokens [start, end) of a flat list, each following the one before; their descendants are [end, below)."""

    start: int
    end: int
    below: int


@dataclass(frozen=True)
class Squares:
    """Chains of similar length: index [B, L] of their tokens (a repeated one on padding), held [B, L] bool."""

    index: Tensor
    held: Tensor | None  # None: nothing is padded


@dataclass(frozen=True)
class Plan:
    """Attention blocks of a flat token list: causal squares, and rectangles (queries, keys), nearest ancestors last."""

    squares: tuple[Squares, ...]
    rectangles: tuple[tuple[slice, slice], ...]

    @staticmethod
    def of(chains: Sequence[Chain]) -> Plan:
        """Attention blocks of these chains."""
        by_length = sorted((c for c in chains if c.end > c.start), key=lambda c: c.start - c.end)
        together: list[list[Chain]] = []
        for chain in by_length:
            widest = together[-1][0].end - together[-1][0].start if together else 0
            if not together or chain.end - chain.start < (1 - WASTE) * widest:
                together.append([])
            together[-1].append(chain)
        return Plan(
            tuple(_square(chains) for chains in together),
            tuple(
                (slice(c.end, c.below), slice(c.start, c.end)) for c in chains if c.below > c.end and c.end > c.start
            ),
        )


def _square(chains: Sequence[Chain]) -> Squares:
    starts = torch.tensor([c.start for c in chains])
    lengths = torch.tensor([c.end - c.start for c in chains])
    column = torch.arange(int(lengths.max()))[None]
    held = column < lengths[:, None]
    # padding comes after a chain's own tokens, which are causal, and so never see it
    index = starts[:, None] + torch.minimum(column, lengths[:, None] - 1)
    return Squares(index, None if bool(held.all()) else held)


@cache
def kernel_works() -> bool:
    """Whether this build of torch has the attention kernel, with grouped queries and gradients."""
    if not hasattr(torch.ops.aten, KERNEL):
        return False
    q = torch.linspace(-1, 1, 2 * 3 * 4).reshape(1, 2, 3, 4)
    try:
        found, total = forward(q, q[:, :1], q[:, :1], 0.5, causal=True)
        grads = _backward(torch.ones_like(found), q, q[:, :1], q[:, :1], found, total, True, 0.5)
    except (RuntimeError, TypeError):
        return False
    leaves = [x.clone().requires_grad_() for x in (q, q[:, :1], q[:, :1])]
    scores = (leaves[0] @ leaves[1].transpose(2, 3)) * 0.5
    mask = torch.ones(3, 3, dtype=torch.bool).triu(1)
    expected = scores.masked_fill(mask, -torch.inf).softmax(-1) @ leaves[2]
    expected.sum().backward()
    close = [torch.allclose(found, expected, atol=1e-5)]
    close += [torch.allclose(g, x.grad, atol=1e-5) for g, x in zip(grads, leaves, strict=True) if x.grad is not None]
    return all(close)


def has_matrix_units() -> bool:
    """Whether this processor has bfloat16 matrix units (AMX)."""
    found = getattr(torch.cpu, "_is_amx_tile_supported", None)
    return bool(found and found())


def forward(
    q: Tensor, k: Tensor, v: Tensor, scale: float, *, causal: bool = False, mask: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention: results [B, heads, Q, D] and log-sum-exp [B, heads, Q] (float32 at least) of q [B, heads, Q, D] on k,
    v [B, kv, K, D]; mask [B, 1, Q, K] is added to the scores."""
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)


def _backward(
    g: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, total: Tensor, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        g, q, k, v, out, total, 0.0, causal, scale=scale
    )


def turned(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> Tensor:
    """Apply rotary embeddings to x [n, heads, D], into `out`; cos, sin [n, 1, D]. With -sin: the inverse rotation."""
    half = x.shape[-1] // 2
    torch.mul(x, cos, out=out)
    out[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-1)
    out[..., half:].addcmul_(x[..., :half], sin[..., half:])
    return out


def attend(
    qkv: Tensor, cos: Tensor, sin: Tensor, plan: Plan, heads: int, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Tree attention without gradients: results [n, heads, D], log-sum-exp [n, heads], and rotated queries, keys and
    values [n, heads + 2 kv, D].

    qkv [n, (heads + 2 kv) * D] side by side; cos, sin [n, D]
    """
    n, size = qkv.shape[0], cos.shape[-1]
    x = qkv.view(n, -1, size)
    kv = (x.shape[1] - heads) // 2
    turn = torch.empty_like(x)
    turned(x[:, : heads + kv], cos[:, None], sin[:, None], turn[:, : heads + kv])
    turn[:, heads + kv :] = x[:, heads + kv :]
    out = x.new_empty(n, heads, size)
    total = x.new_empty(n, heads, dtype=torch.promote_types(x.dtype, torch.float32))
    q, k, v = turn.split([heads, kv, kv], 1)
    for square in plan.squares:
        at = square.index
        found, sums = forward(_rows(q, at), _rows(k, at), _rows(v, at), scale, causal=True)
        found, sums = found.transpose(1, 2), sums.transpose(1, 2)
        if square.held is None:
            out[at], total[at] = found, sums
        else:
            out[at[square.held]], total[at[square.held]] = found[square.held], sums[square.held]
    for rows, keys in plan.rectangles:
        found, sums = forward(_slice(q, rows), _slice(k, keys), _slice(v, keys), scale)
        join(out[rows], total[rows], found[0].transpose(0, 1), sums[0].transpose(0, 1))
    return out, total, turn


class TreeAttention(Function):
    """Tree attention [n, heads * D] from concatenated queries, keys and values [n, (heads + 2 kv) * D], with rotary
    embeddings."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor, plan: Plan, heads: int, scale: float) -> Tensor:
        cos, sin = cos.to(qkv.dtype), sin.to(qkv.dtype)
        out, total, turn = attend(qkv, cos, sin, plan, heads, scale)
        ctx.save_for_backward(turn, cos[:, None], sin[:, None], out, total)
        ctx.plan, ctx.heads, ctx.scale = plan, heads, scale
        return out.view(qkv.shape[0], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        turn, cos, sin, out, total = ctx.saved_tensors
        dtype = grads[0].dtype
        if dtype in HALF and not has_matrix_units():  # the kernel is several times as fast on blocks of some ten tokens
            turn, cos, sin, out = (x.to(torch.float32) for x in (turn, cos, sin, out))
        plan, heads, scale = ctx.plan, ctx.heads, ctx.scale
        n, kv = turn.shape[0], (turn.shape[1] - heads) // 2
        g = grads[0].to(turn.dtype).contiguous().view(n, heads, -1)
        parts = [heads, kv, kv]
        q, k, v = turn.split(parts, 1)
        by = torch.zeros_like(turn)
        by_q, by_k, by_v = by.split(parts, 1)
        for square in plan.squares:
            at = square.index
            g_at = g[at] if square.held is None else g[at] * square.held[..., None, None]
            found = _backward(
                g_at.transpose(1, 2), _rows(q, at), _rows(k, at), _rows(v, at), _rows(out, at),
                total[at].transpose(1, 2), True, scale,
            )  # fmt: skip
            both = torch.cat([x.transpose(1, 2) for x in found], 2)
            if square.held is None:
                by[at] = both
            else:
                by[at[square.held]] = both[square.held]
        for rows, keys in plan.rectangles:
            found = _backward(
                _slice(g, rows), _slice(q, rows), _slice(k, keys), _slice(v, keys), _slice(out, rows),
                total[rows].t()[None], False, scale,
            )  # fmt: skip
            for to, where, x in zip((by_q, by_k, by_v), (rows, keys, keys), found, strict=True):
                to[where] += x[0].transpose(0, 1)
        out_grad = torch.empty_like(by)
        turned(by[:, : heads + kv], cos, -sin, out_grad[:, : heads + kv])
        out_grad[:, heads + kv :] = by_v
        return out_grad.view(n, -1).to(dtype), None, None, None, None, None


def _rows(x: Tensor, at: Tensor) -> Tensor:
    """[B, heads, L, D] of x [n, heads, D]."""
    return x[at].transpose(1, 2)


def _slice(x: Tensor, where: slice) -> Tensor:
    """[1, heads, L, D] of x [n, heads, D]."""
    return x[where].transpose(0, 1)[None]


def join(out: Tensor, total: Tensor, more: Tensor, sums: Tensor) -> None:
    """Merge softmaxes over further keys into `out` [n, heads, D] and `total` [n, heads], in place."""
    both = torch.logaddexp(total, sums)
    out.mul_((total - both).exp_()[..., None]).add_(more * (sums - both).exp_()[..., None])
    total.copy_(both)


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


class GatedMLP(Function):
    """Gated MLP [n, H]: x + (silu(h G^T) * (h U^T)) D^T with h = x / rms(x) * norm. Keeps x and the inner products."""

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
