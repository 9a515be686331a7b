"""Tree attention over blocks, with gradients by hand: sliding windows, soft-capped scores, rotary embeddings.

Full attention needs no mask: every chain of tokens attends to itself causally and to each chain above it. Tokens lie in
depth-first order, so everything below a chain follows it in one stretch: there are as many causal squares as chains,
and one full rectangle for each chain that has something below it. Their softmaxes are joined by their logarithmic sums,
and the gradient of each block is taken with the joined sum, as in ring attention (Liu et al., arXiv 2310.01889). Memory
grows with the number of tokens, never with its square.

Within a sliding window chains are cut into pieces no longer than it, so that squares stay causal and nothing else; a
rectangle that the window's edge runs through has a mask, and those beyond it are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

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
    """Chains of similar length: index [B, L] of their tokens (a repeated one on padding), is_token [B, L] bool."""

    index: Tensor
    is_token: Tensor | None  # None: nothing is padded


@dataclass(frozen=True)
class Rectangle:
    """Queries and a block of ancestors that they attend to; mask [1, 1, rows, keys] is added to the scores (None: all
    are visible)."""

    rows: slice
    keys: slice
    mask: Tensor | None = None


@dataclass(frozen=True)
class Plan:
    """Attention blocks of a flat token list: causal squares, and rectangles, nearest ancestors last."""

    squares: tuple[Squares, ...]
    rectangles: tuple[Rectangle, ...]

    @cached_property
    def place(self) -> Tensor:
        """[n] place of each token in the concatenated squares, every one of which is in exactly one of them."""
        index = torch.cat([s.index.flatten() for s in self.squares])
        is_token = torch.cat([(s.index >= 0 if s.is_token is None else s.is_token).flatten() for s in self.squares])
        places = is_token.nonzero().squeeze(1)
        return torch.empty_like(places).index_copy_(0, index[places], places)

    @staticmethod
    def of(chains: Sequence[Chain]) -> Plan:
        """Plan of full attention over these chains."""
        return Plan(
            _squares(chains),
            tuple(
                Rectangle(slice(c.end, c.below), slice(c.start, c.end))
                for c in chains
                if c.below > c.end and c.end > c.start
            ),
        )

    @staticmethod
    def in_window(chains: Sequence[Chain], window: int, position: Tensor, dtype: torch.dtype) -> Plan:
        """Plan of attention within a window: a token at position p sees itself and ancestors above p - window.

        position [n]; dtype of the queries
        """
        if not position.numel() or int(position.max()) < window:
            return Plan.of(chains)
        pieces = [
            Chain(start, min(start + window, c.end), c.below) for c in chains for start in range(c.start, c.end, window)
        ]
        rectangles = (_visible_rectangle(c, window, position, dtype) for c in pieces if c.below > c.end)
        return Plan(_squares(pieces), tuple(r for r in rectangles if r is not None))


def _visible_rectangle(piece: Chain, window: int, position: Tensor, dtype: torch.dtype) -> Rectangle | None:
    """Select the queries below a piece that see some of it, with a mask if they see only part; None if none does."""
    # positions of a tree: a window reaches back by depth and not by index in the flat list
    depth = position[piece.end : piece.below]
    visible = (depth < int(position[piece.end - 1]) + window).nonzero().squeeze(1)
    if not visible.numel():
        return None
    rows = slice(piece.end + int(visible[0]), piece.end + int(visible[-1]) + 1)
    keys = position[piece.start : piece.end]
    # a query sees keys that are less than a window above it
    is_hidden = keys[None] <= position[rows][:, None] - window
    if not bool(is_hidden.any()):
        return Rectangle(rows, slice(piece.start, piece.end))
    # a piece that is seen whole needs no mask, for which the kernel is faster
    mask = torch.zeros(is_hidden.shape, dtype=dtype).masked_fill_(is_hidden, lowest(dtype))
    return Rectangle(rows, slice(piece.start, piece.end), mask[None, None])


def lowest(dtype: torch.dtype) -> float:
    """Score that hides a key: half of the lowest finite number, so that adding to it stays finite."""
    return torch.finfo(dtype).min / 2


def _squares(chains: Sequence[Chain]) -> tuple[Squares, ...]:
    """Group chains of similar length into padded squares."""
    by_length = sorted((c for c in chains if c.end > c.start), key=lambda c: c.start - c.end)
    size_groups: list[list[Chain]] = []
    for chain in by_length:
        widest = size_groups[-1][0].end - size_groups[-1][0].start if size_groups else 0
        if not size_groups or chain.end - chain.start < (1 - WASTE) * widest:
            size_groups.append([])
        size_groups[-1].append(chain)
    return tuple(_square(chains) for chains in size_groups)


def _square(chains: Sequence[Chain]) -> Squares:
    starts = torch.tensor([c.start for c in chains])
    lengths = torch.tensor([c.end - c.start for c in chains])
    column = torch.arange(int(lengths.max()))[None]
    is_token = column < lengths[:, None]
    # padding comes after a chain's own tokens, which are causal, and so never see it
    index = starts[:, None] + torch.minimum(column, lengths[:, None] - 1)
    return Squares(index, None if bool(is_token.all()) else is_token)


@cache
@torch.enable_grad()
def kernel_works() -> bool:
    """Return True if this build of torch has the attention kernel, with grouped queries and gradients."""
    if not hasattr(torch.ops.aten, KERNEL):
        return False
    # small numbers by hand: builds of torch differ in grouped queries and in what the backward kernel takes
    q = torch.linspace(-1, 1, 2 * 3 * 4).reshape(1, 2, 3, 4)
    try:
        output, log_sum = forward(q, q[:, :1], q[:, :1], 0.5, causal=True)
        grads = _backward(torch.ones_like(output), q, q[:, :1], q[:, :1], output, log_sum, True, 0.5)
    except (RuntimeError, TypeError):
        return False
    # the same by plain products and autograd, which every build has
    leaves = [x.clone().requires_grad_() for x in (q, q[:, :1], q[:, :1])]
    scores = (leaves[0] @ leaves[1].transpose(2, 3)) * 0.5
    mask = torch.ones(3, 3, dtype=torch.bool).triu(1)
    expected = scores.masked_fill(mask, -torch.inf).softmax(-1) @ leaves[2]
    expected.sum().backward()
    close = [torch.allclose(output, expected, atol=1e-5)]
    close += [torch.allclose(g, x.grad, atol=1e-5) for g, x in zip(grads, leaves, strict=True) if x.grad is not None]
    return all(close)


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float,
    *,
    causal: bool = False,
    mask: Tensor | None = None,
    cap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention: results [B, heads, Q, D] and log-sum-exp [B, heads, Q] (float32 at least) of q [B, heads, Q, D] on k,
    v [B, kv, K, D]; mask [B, 1, Q, K] is added to the scores, which `cap` first bends to cap tanh(score / cap)."""
    if cap is None:
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, k, v, 0.0, causal, attn_mask=mask, scale=scale
        )
    scores = _cap_scores(q, k, scale, causal, mask, cap)[0]
    total = scores.logsumexp(-1)
    p = (scores - total[..., None]).exp().to(q.dtype)
    return (p.unflatten(1, (k.shape[1], -1)) @ v[:, :, None]).flatten(1, 2), total


def _cap_scores(
    q: Tensor, k: Tensor, scale: float, causal: bool, mask: Tensor | None, cap: float
) -> tuple[Tensor, Tensor]:
    """Capped scores [B, heads, Q, K] with what is hidden, and tanh(score / cap), in float32 at least."""
    scores = (q.unflatten(1, (k.shape[1], -1)) @ k[:, :, None].transpose(-1, -2)).flatten(1, 2) * scale
    tanh_scores = (scores.to(torch.promote_types(q.dtype, torch.float32)) / cap).tanh()
    scores = tanh_scores * cap
    if causal:
        is_later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu_(1)
        scores = scores.masked_fill(is_later, lowest(scores.dtype))
    return scores if mask is None else scores + mask.to(scores.dtype), tanh_scores


def _backward(
    g: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    total: Tensor,
    causal: bool,
    scale: float,
    mask: Tensor | None = None,
    cap: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by q, k and v; `out` and `total` are those of all blocks together."""
    if cap is None:
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            g, q, k, v, out, total, 0.0, causal, attn_mask=mask, scale=scale
        )
    # with the joined log-sum-exp, p is this block's part of the whole softmax, and output_dot that of all blocks
    scores, tanh_scores = _cap_scores(q, k, scale, causal, mask, cap)
    p = (scores - total[..., None]).exp()
    # several query heads share a key head: their gradients by it are summed
    group_shape = (k.shape[1], -1)

    def of_keys(x: Tensor, y: Tensor) -> Tensor:
        """Sum over queries, and over the heads that share keys: [B, kv, K, D]."""
        return (x.to(y.dtype).unflatten(1, group_shape).transpose(-1, -2) @ y.unflatten(1, group_shape)).sum(2)

    by_p = (g.unflatten(1, group_shape) @ v[:, :, None].transpose(-1, -2)).flatten(1, 2)
    # the softmax's backward subtracts the row's mean; with capped scores, the slope of tanh comes on top
    output_dot = (g * out).sum(-1, keepdim=True, dtype=p.dtype)
    by_scores = (p * (by_p - output_dot) * (1 - tanh_scores.square()) * scale).to(q.dtype)
    by_q = (by_scores.unflatten(1, group_shape) @ k[:, :, None]).flatten(1, 2)
    return by_q, of_keys(by_scores, q), of_keys(p, g)


def rotate(x: Tensor, cos: Tensor, sin: Tensor, out: Tensor) -> Tensor:
    """Apply rotary embeddings to the first R of D numbers of x [n, heads, D], into `out`; cos, sin [n, 1, R]. With
    -sin: the inverse rotation. R = 0: a layer without them."""
    size, half = cos.shape[-1], cos.shape[-1] // 2
    # partial rotary embeddings (GPT-NeoX, Phi): the rest of the numbers pass
    if size < x.shape[-1]:
        out[..., size:] = x[..., size:]
        if not size:
            return out
        x, out = x[..., :size], out[..., :size]
    # in place and without an intermediate for the rotated half: this runs over all tokens of a batch
    torch.mul(x, cos, out=out)
    out[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-1)
    out[..., half:].addcmul_(x[..., :half], sin[..., half:])
    return out


@dataclass(frozen=True)
class Heads:
    """Shape and scores of a layer's attention.

    queries  number of heads; size: of a head; scale: of the scores; cap: soft cap of the scores (see `forward`)
    """

    queries: int
    size: int
    scale: float
    cap: float | None = None


def attend(
    qkv: Tensor, cos: Tensor, sin: Tensor, plan: Plan, heads: Heads, kernel: str = "native"
) -> tuple[Tensor, Tensor, Tensor]:
    """Tree attention without gradients: results [n, heads, D], log-sum-exp [n, heads], and rotated queries, keys and
    values [n, heads + 2 kv, D].

    qkv [n, (heads + 2 kv) * D] side by side; cos, sin [n, R]; kernel "float32": 16 bits are converted before it
    """
    n, size, scale, cap = qkv.shape[0], heads.size, heads.scale, heads.cap
    x = qkv.view(n, -1, size)
    kv = (x.shape[1] - heads.queries) // 2
    rotated_qkv = torch.empty_like(x)
    rotate(x[:, : heads.queries + kv], cos[:, None], sin[:, None], rotated_qkv[:, : heads.queries + kv])
    rotated_qkv[:, heads.queries + kv :] = x[:, heads.queries + kv :]
    blocks = _in_dtype_of(kernel, rotated_qkv)
    parts = [heads.queries, kv, kv]
    q, k, v = blocks.split(parts, 1)
    # every token is in exactly one square; rectangles then join further keys
    square_outs, square_log_sums = [], []
    for square in plan.squares:
        # one gather for queries, keys and values
        at_q, at_k, at_v = _rows(blocks, square.index).split(parts, 1)
        block_out, block_log_sum = forward(at_q, at_k, at_v, scale, causal=True, cap=cap)
        square_outs.append(block_out.transpose(1, 2).flatten(0, 1))
        square_log_sums.append(block_log_sum.transpose(1, 2).flatten(0, 1))
    out, log_sum = (torch.cat(each).index_select(0, plan.place) for each in (square_outs, square_log_sums))
    for block in plan.rectangles:
        rows, keys = block.rows, block.keys
        block_out, block_log_sum = forward(
            _slice(q, rows), _slice(k, keys), _slice(v, keys), scale, mask=_mask_as(block.mask, q), cap=cap
        )
        # the softmax over two blocks of keys, from each block's result and log-sum-exp
        join(out[rows], log_sum[rows], block_out[0].transpose(0, 1), block_log_sum[0].transpose(0, 1))
    return out.to(x.dtype), log_sum, rotated_qkv


def attend_backward(
    g: Tensor,
    rotated_qkv: Tensor,
    cos: Tensor,
    sin: Tensor,
    out: Tensor,
    log_sum: Tensor,
    plan: Plan,
    heads: Heads,
    kernel: str = "float32",
) -> Tensor:
    """Gradient [n, (heads + 2 kv) * D] of `attend` by queries, keys and values, from the gradient g [n, heads * D] of
    its results; kernel "float32": 16 bits are converted before it."""
    dtype, scale, cap, n = g.dtype, heads.scale, heads.cap, rotated_qkv.shape[0]
    rotated_qkv, cos, sin, out = (_in_dtype_of(kernel, x) for x in (rotated_qkv, cos[:, None], sin[:, None], out))
    g = g.to(rotated_qkv.dtype).contiguous().view(n, heads.queries, -1)
    kv = (rotated_qkv.shape[1] - heads.queries) // 2
    # gradients of rotated queries, keys and values side by side; a rectangle adds to those of its square
    parts = [heads.queries, kv, kv]
    q, k, v = rotated_qkv.split(parts, 1)
    square_grads = []
    for square in plan.squares:
        at_g, at_out, at_log_sum = (_rows(x, square.index) for x in (g, out, log_sum[..., None]))
        # a padded query must add nothing to the gradients of its keys
        at_g = at_g if square.is_token is None else at_g * square.is_token[:, None, :, None]
        at_q, at_k, at_v = _rows(rotated_qkv, square.index).split(parts, 1)
        block_grads = _backward(at_g, at_q, at_k, at_v, at_out, at_log_sum.squeeze(3), True, scale, cap=cap)
        square_grads.append(torch.cat([x.transpose(1, 2) for x in block_grads], 2).flatten(0, 1))
    rotated_grad = torch.cat(square_grads).index_select(0, plan.place)
    q_grad, k_grad, v_grad = rotated_grad.split(parts, 1)
    for block in plan.rectangles:
        rows, keys = block.rows, block.keys
        block_grads = _backward(
            _slice(g, rows), _slice(q, rows), _slice(k, keys), _slice(v, keys), _slice(out, rows),
            log_sum[rows].t()[None], False, scale, _mask_as(block.mask, q), cap,
        )  # fmt: skip
        # a token's keys may be in several rectangles: gradients are added, never assigned
        for grad, place, x in zip((q_grad, k_grad, v_grad), (rows, keys, keys), block_grads, strict=True):
            grad[place] += x[0].transpose(0, 1)
    # the inverse rotation brings them back to what the linear maps gave
    out_grad = torch.empty_like(rotated_grad)
    rotate(rotated_grad[:, : heads.queries + kv], cos, -sin, out_grad[:, : heads.queries + kv])
    out_grad[:, heads.queries + kv :] = v_grad
    return out_grad.view(n, -1).to(dtype)


class TreeAttention(Function):
    """Tree attention [n, heads * D] from concatenated queries, keys and values [n, (heads + 2 kv) * D], with rotary
    embeddings; kernels: forward and of the gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        cos: Tensor,
        sin: Tensor,
        plan: Plan,
        heads: Heads,
        kernels: tuple[str, str] = ("native", "float32"),
    ) -> Tensor:
        cos, sin = cos.to(qkv.dtype), sin.to(qkv.dtype)
        out, log_sum, rotated_qkv = attend(qkv, cos, sin, plan, heads, kernels[0])
        ctx.save_for_backward(rotated_qkv, cos, sin, out, log_sum)
        ctx.plan, ctx.heads, ctx.kernel = plan, heads, kernels[1]
        return out.view(qkv.shape[0], -1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        rotated_qkv, cos, sin, out, log_sum = ctx.saved_tensors
        by_qkv = attend_backward(grads[0], rotated_qkv, cos, sin, out, log_sum, ctx.plan, ctx.heads, ctx.kernel)
        return by_qkv, None, None, None, None, None


def _in_dtype_of(kernel: str, x: Tensor) -> Tensor:
    return x.to(torch.float32) if kernel == "float32" and x.dtype in HALF else x


def _mask_as(mask: Tensor | None, x: Tensor) -> Tensor | None:
    return None if mask is None else mask.to(x.dtype)


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """[B, heads, L, D] of x [n, heads, D]."""
    return x.index_select(0, index.flatten()).unflatten(0, index.shape).transpose(1, 2)


def _slice(x: Tensor, place: slice) -> Tensor:
    """[1, heads, L, D] of x [n, heads, D]."""
    return x[place].transpose(0, 1)[None]


def join(out: Tensor, log_sum: Tensor, block_out: Tensor, block_log_sum: Tensor) -> None:
    """Merge softmaxes over further keys into `out` [n, heads, D] and `total` [n, heads], in place."""
    joined_log_sum = torch.logaddexp(log_sum, block_log_sum)
    out.mul_((log_sum - joined_log_sum).exp_()[..., None]).add_(
        block_out * (block_log_sum - joined_log_sum).exp_()[..., None]
    )
    log_sum.copy_(joined_log_sum)
