"""Tree attention on GPUs without an [L, L] mask: FlexAttention with block masks from depth-first intervals.

Tokens of a row lie depth first, so the queries that attend to a key k are one stretch of the row: k itself and all that
lies below it, `k <= q < end[k]`. One integer a token is the whole mask (the column-wise form of FlashMask, Wang et al.,
arXiv 2410.01359), and the largest and smallest `end` of a block of keys say which blocks are empty, partial or full: a
row of 32k tokens has 256 x 256 blocks of 128 instead of 10^9 entries.

A model is switched to the attention `KERNEL`, which is transformers' sdpa for every mask but a `BlockMask`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from gxpo.base.errors import need
from gxpo.models.decoder.architecture import FULL, WINDOWED
from gxpo.models.decoder.choices import Sizes, Trial, time_kernels

KERNEL = "sdpa_or_block_mask"  # transformers takes a name with "sdpa" in it for a kernel that sdpa's models have
NO_FLEX_BACKWARD = ("cpu", "mps")
Attention = Literal["auto", "dense", "flex"]
BLOCK = 128
Masks = BlockMask | dict[str, BlockMask]  # one for all layers, or one for each type of layer


def tree_ends(enter: Tensor, leave: Tensor, is_token: Tensor) -> Tensor:
    """[B, L] index in its row behind the last descendant of each token: q attends to k exactly if k <= q < end[k].

    enter, leave [B, L]: depth-first interval of each token's node, rows in depth-first order; is_token [B, L] bool:
    False on padding, which lies at the end of a row and attends to itself
    """
    order = torch.arange(enter.shape[1], device=enter.device).expand(enter.shape)
    beyond = torch.iinfo(enter.dtype).max
    end = torch.searchsorted(enter.masked_fill(~is_token, beyond).contiguous(), leave.contiguous())
    return torch.where(is_token, end, order + 1)


def block_mask(end: Tensor, position: Tensor, window: int | None = None, *, block: int = BLOCK) -> BlockMask:
    """Block mask of rows with these `tree_ends` [B, L]; within a window a query at p sees positions above p - window.

    position [B, L]: depths. Every block with an allowed pair is listed; a block is full only if all pairs are allowed.
    """
    length = end.shape[1]
    # blocks are summarised by their extremes: a decision for each pair of blocks, and never an [L, L] table
    blocks = -(-length // block)
    highest, lowest = _extremes(end, block)
    first_query = torch.arange(blocks, device=end.device) * block  # the first query of each block
    # below the diagonal, the largest `end` of a key block tells if any pair is allowed, the smallest if all are
    is_below = first_query[:, None] > first_query[None]
    has_pairs = is_below & (highest[:, None, :] > first_query[None, :, None])
    is_full = is_below & (lowest[:, None, :] >= first_query[None, :, None] + block)
    # a window cuts by depth: compare the closest and the farthest pair of two blocks
    if window is not None:
        deepest, shallowest = _extremes(position, block)
        has_pairs &= shallowest[:, :, None] - deepest[:, None, :] < window
        is_full &= deepest[:, :, None] - shallowest[:, None, :] < window
    is_full &= first_query[:, None] + block <= length  # the last block may be shorter
    # the diagonal always holds pairs (a token sees itself), and is never full
    has_pairs |= torch.eye(blocks, dtype=torch.bool, device=end.device)

    def in_tree(row: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (k <= q) & (q < end[row, k])

    def in_window(row: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        assert window is not None
        return in_tree(row, head, q, k) & (position[row, k] > position[row, q] - window)

    # a full block needs no mask function, which is what makes it fast
    partial, full = _block_table(has_pairs & ~is_full), _block_table(is_full)
    return BlockMask.from_kv_blocks(
        *partial,
        *full,
        BLOCK_SIZE=block,
        mask_mod=in_tree if window is None else in_window,
        seq_lengths=(length, length),
    )


def _extremes(x: Tensor, block: int) -> tuple[Tensor, Tensor]:
    """[B, blocks] largest and smallest value of each block of x [B, L]."""
    padding = -x.shape[1] % block
    x = torch.cat([x, x[:, -1:].expand(-1, padding)], 1).unflatten(1, (-1, block))
    return x.amax(2), x.amin(2)


def _block_table(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """[B, 1, n] number and [B, 1, n, n] ids of the key blocks of each block of queries, in order; blocks [B, n, n]."""
    flags = blocks[:, None].to(torch.int8)
    order = flags.argsort(dim=-1, descending=True, stable=True)
    return flags.sum(-1, dtype=torch.int32), order.to(torch.int32).contiguous()


def mask_bytes(mask: BlockMask) -> int:
    """Bytes of a block mask: its tables of blocks, and the tensors that its function reads."""
    tables = [x for x in mask.as_tuple() if isinstance(x, Tensor)]
    return sum(x.numel() * x.element_size() for x in (*tables, *_closure_tensors(mask.mask_mod)))


def _closure_tensors(function: Callable[..., Any]) -> list[Tensor]:
    """Tensors in the closure of a function and of the functions that it calls."""
    contents = [cell.cell_contents for cell in function.__closure__ or ()]
    inner = [x for f in contents if callable(f) and not isinstance(f, Tensor) for x in _closure_tensors(f)]
    return list({id(x): x for x in (*(x for x in contents if isinstance(x, Tensor)), *inner)}.values())


# ---------------------------------------------------------------- transformers
def masks_of(config: Any, end: Tensor, position: Tensor) -> Masks:
    """Attention mask for a transformers model: one for all layers, or one for each type of layer."""
    window = getattr(config, "sliding_window", None)
    layer_types = getattr(config, "layer_types", None)
    if layer_types is None:
        return block_mask(end, position, window if getattr(config, "use_sliding_window", True) else None)
    mask_by_kind = {
        kind: block_mask(end, position, window if kind == WINDOWED else None) for kind in sorted(set(layer_types))
    }
    return mask_by_kind[FULL] if set(mask_by_kind) == {FULL} else mask_by_kind


def switch(causal: Any) -> str | None:
    """Switch a model to the kernel that takes block masks; return the reason if it can't be switched, else None.

    With any other mask it computes the same as without the switch.
    """
    config = causal.config.get_text_config()
    name = type(causal).__name__
    if getattr(causal, "_is_stateful", False):
        return f"{name} has recurrent layers"
    if unsupported := sorted(set(getattr(config, "layer_types", None) or ()) - {FULL, WINDOWED}):
        return f"{name} has {' and '.join(unsupported)} layers"
    if not getattr(causal, "_supports_flex_attn", False):
        return f"transformers has no FlexAttention for {name}"
    kernel = config._attn_implementation
    if kernel == KERNEL:
        return None
    if kernel != "sdpa":
        return f"{name} was loaded with attn_implementation={kernel!r}, not 'sdpa'"
    _register()
    causal.set_attn_implementation(KERNEL)
    return None if config._attn_implementation == KERNEL else f"{name} does not let its attention be exchanged"


@cache
def _register() -> None:
    """Register the kernel with transformers, once for the process."""
    masking = need("transformers.masking_utils", "train")
    need("transformers.modeling_utils", "train").ALL_ATTENTION_FUNCTIONS.register(KERNEL, attend)
    masking.ALL_MASK_ATTENTION_FUNCTIONS.register(KERNEL, masking.ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """Attention [B, L, heads, D] of queries [B, heads, L, D], as transformers calls it."""
    # transformers calls the kernel for every mask: those that are no block masks go on as before
    if not isinstance(attention_mask, BlockMask):
        sdpa = need("transformers.integrations.sdpa_attention", "train").sdpa_attention_forward
        return sdpa(module, query, key, value, attention_mask, **options)
    _refuse(options)
    cap, kernel = options.get("softcap"), _compile() if query.device.type == "cuda" else flex_attention
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s)flex_attention called without torch.compile", UserWarning)
        out = kernel(
            query, key, value,
            score_mod=None if cap is None else _cap_scores(cap),
            block_mask=attention_mask,
            scale=options.get("scaling"),
            enable_gqa=query.shape[1] != key.shape[1],
        )  # fmt: skip
    assert isinstance(out, Tensor)
    return out.transpose(1, 2).contiguous(), None


def _refuse(options: Mapping[str, Any]) -> None:
    """Raise ValueError for options of transformers that attention by block masks does not support."""
    requests = {"dropout": bool(options.get("dropout"))}
    requests |= {name: options.get(name) is not None for name in ("s_aux", "position_bias", "cache")}
    for name in (name for name, is_set in requests.items() if is_set):
        raise ValueError(f"attention by block masks has no {name}")


def _cap_scores(cap: float) -> Callable[..., Tensor]:
    def score(score: Tensor, row: Tensor, head: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return cap * torch.tanh(score / cap)

    return score


@cache
def _compile() -> Callable[..., Any]:
    return torch.compile(flex_attention)


# ---------------------------------------------------------------- trial
def row_trial(config: Any, dtype: torch.dtype, device: torch.device, sizes: Sizes, limit: int) -> Trial:
    """Time attention of a packed row of one group, at most `limit` tokens, with a dense mask and with a block mask.

    With its gradient, where FlexAttention has one on the device.
    """
    prompt, action = min(sizes.prompt, limit // 2), max(1, min(sizes.action, limit // 2))
    members = max(1, min(sizes.group, (limit - prompt) // action))
    node = torch.cat([torch.zeros(prompt, dtype=torch.int64), torch.arange(1, members + 1).repeat_interleave(action)])
    end = tree_ends(node[None], torch.where(node == 0, members + 1, node + 1)[None], torch.ones(1, len(node)) > 0)
    order = torch.arange(len(node))
    is_hidden = (order > order[:, None]) | (order[:, None] >= end[0])
    dense = (
        torch.zeros(is_hidden.shape, dtype=dtype).masked_fill_(is_hidden, torch.finfo(dtype).min)[None, None].to(device)
    )
    blocks = block_mask(end.to(device), order[None].to(device))
    heads, kv = config.num_attention_heads, config.num_key_value_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    has_gradient = device.type not in NO_FLEX_BACKWARD
    q, k, v = (
        torch.randn(1, n, len(node), size, dtype=dtype, device=device, requires_grad=has_gradient)
        for n in (heads, kv, kv)
    )

    def run(attention: Callable[[], Tensor]) -> None:
        out = attention()
        if has_gradient:
            torch.autograd.grad(out.sum(), (q, k, v))
        if device.type == "cuda":  # kernels run beside the clock
            torch.cuda.synchronize(device)

    def dense_attention() -> Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=dense, enable_gqa=heads != kv)

    with torch.enable_grad():
        return time_kernels(
            "row attention",
            {"dense": [lambda: run(dense_attention)], "flex": [lambda: run(lambda: attend(None, q, k, v, blocks)[0])]},
        )
