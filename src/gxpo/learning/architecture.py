"""Support of transformers models for tree attention masks: they train on packed trees, all others on flat rows.

The mask of a packed tree is dense, [B, 1, L, L], or a table of blocks for FlexAttention (`gxpo.learning.block_mask`).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gxpo.base.errors import ModelError
from gxpo.learning.block_mask import KERNEL, NO_FLEX_BACKWARD, Attention, masks_of, switch, tree_ends
from gxpo.learning.packing import Layout, Sheet
from gxpo.learning.readout import Readout
from gxpo.models.decoder.forward import with_window

MASKED_ATTENTION = ("sdpa", "eager", KERNEL)
TREE = ([1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 3, 4])  # ids and depths of a prompt of three and two branches of two
BRANCHES = ([0, 1, 2, 3, 4], [0, 1, 2, 5, 6])
SPANS = ([0, 0, 0, 1, 1, 2, 2], [3, 3, 3, 2, 2, 3, 3])  # intervals of their nodes
NARROW = 2  # window of the probe of models that have one


@dataclass(frozen=True, eq=False)
class PaddedRows:
    """Right-padded rows of a sheet: tokens, position [B, L] (of m-RoPE [3, B, L]); is_token [B, L]: False on padding.

    enter, leave [B, L]: depth-first interval of each token's node
    """

    tokens: Tensor
    position: Tensor
    is_token: Tensor
    enter: Tensor
    leave: Tensor

    def to(self, device: torch.device) -> PaddedRows:
        """The rows on another device, by one copy."""
        if device == self.tokens.device:
            return self
        parts = (self.tokens, self.is_token, self.enter, self.leave, *self.position.view(-1, *self.tokens.shape))
        tokens, is_token, enter, leave, *position = torch.stack([x.to(torch.int64) for x in parts]).to(device)
        return PaddedRows(tokens, torch.stack(position).view(self.position.shape), is_token.bool(), enter, leave)


def pad(sheet: Sheet) -> PaddedRows:
    """Pad the rows of a sheet on the right, for models that take a mask."""
    # padded on the right, so that each token keeps its place in its row
    lengths = torch.tensor(sheet.lengths)
    token_mask = torch.arange(int(lengths.max()))[None] < lengths[:, None]
    index = torch.zeros(token_mask.shape, dtype=torch.int64)
    index[token_mask] = sheet.index
    tree, (enter, leave) = sheet.packing.packed, sheet.packing.spans
    node = tree.node_of_token[index]
    return PaddedRows(
        tokens=torch.where(token_mask, tree.token[index], 0),
        position=torch.where(token_mask, sheet.packing.position[..., index], 0),
        is_token=token_mask,
        enter=enter[node],
        leave=leave[node],
    )


def attention_mask(rows: PaddedRows) -> Tensor:
    """Tree attention mask [B, L, L] bool: the column's token is the row's or an ancestor; padding attends to itself."""
    begin, end = torch.where(rows.is_token, rows.enter, -1), torch.where(rows.is_token, rows.leave, -1)
    above = (begin[:, None, :] <= begin[:, :, None]) & (begin[:, :, None] < end[:, None, :])
    order = torch.arange(begin.shape[1], device=begin.device)
    above &= order[None, :] <= order[:, None]
    return above | torch.eye(begin.shape[1], dtype=torch.bool, device=begin.device)


def additive_mask(is_allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """Additive attention mask [B, 1, L, L] from bool [B, L, L]: 0 where allowed, the lowest finite number elsewhere."""
    mask = torch.zeros(is_allowed.shape, dtype=dtype, device=is_allowed.device)
    return mask.masked_fill_(~is_allowed, torch.finfo(dtype).min)[:, None]


def states_after(readout: Readout, sheet: Sheet, layers: Sequence[int], *, blocks: bool) -> list[Tensor]:
    """Hidden states [n, H] of a sheet's tokens after each of several layers of a transformers model.

    blocks  packed trees take block masks; the model has been switched to them by `dense_mask_reason`
    """
    parameter = next(readout.causal.parameters())
    device = parameter.device
    # found here and not in the backward pass, after the forward pass has run
    if blocks and torch.is_grad_enabled() and device.type in NO_FLEX_BACKWARD:
        raise ModelError(f"FlexAttention has no backward pass on {device.type}: set learner.attention=dense")
    host_rows = pad(sheet)
    # found on the host, so that it need not wait for the number of tokens
    token_index = host_rows.is_token.flatten().nonzero().squeeze(1).to(device)
    rows = host_rows.to(device)
    mask: Any
    if sheet.packing.layout == "flat":
        mask = rows.is_token.to(torch.int64)
    elif blocks:
        ends = tree_ends(rows.enter, rows.leave, rows.is_token)
        mask = masks_of(readout.causal.config.get_text_config(), ends, rows.position)
    else:
        mask = additive_mask(attention_mask(rows), parameter.dtype)
    states = readout.states_after(rows.tokens, mask, rows.position, layers)
    return [x.flatten(0, 1).index_select(0, token_index) for x in states]


def flat_layout_reason(readout: Readout) -> str | None:
    """Reason why this model can't be trained on packed trees; None if it can.

    From its configuration (recurrence, sliding windows, layers other than full attention, attention kernels without
    masks), then by trying a small tree against its branches.
    """
    if readout.decoder is not None:  # it has blocks instead of masks
        return None
    config: Any = readout.causal.config.get_text_config()
    # recurrent states and sliding windows count tokens of the row, not of the path to the root
    layers = getattr(config, "layer_types", None)
    if getattr(readout.causal, "_is_stateful", False):
        return "it has recurrent layers"
    if layers is not None:
        unsupported = sorted(set(layers) - {"full_attention"})
        if unsupported:
            return f"it has {' and '.join(unsupported)} layers"
    elif getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        return f"it attends within a window of {config.sliding_window} tokens"
    # flash attention takes no mask at all and would let branches see each other
    kernel = getattr(config, "_attn_implementation", None)
    if kernel not in MASKED_ATTENTION:
        return f"its attention kernel {kernel!r} takes no mask of ancestors (load it with attn_implementation='sdpa')"
    # a configuration does not tell everything: a small tree must give the states of its branches
    is_allowed = torch.zeros(1, 7, 7, dtype=torch.bool)
    for branch in BRANCHES:
        for i, row in enumerate(branch):
            is_allowed[0, row, branch[: i + 1]] = True
    parameter = next(readout.causal.parameters())
    mask = additive_mask(is_allowed.to(parameter.device), parameter.dtype)
    return None if _tree_equals_branches(readout, mask) is True else "its layers do not follow a mask of ancestors"


def dense_mask_reason(readout: Readout) -> str | None:
    """Reason why this model can't attend by block masks; None if it can, and it is then switched to them.

    Tried on a small tree, and within a sliding window if the model has one.
    """
    if readout.decoder is not None:
        return "gxpo's own forward pass needs no mask (learner.kernels=transformers runs the model of transformers)"
    if (reason := switch(readout.causal)) is not None:
        return reason
    config: Any = readout.causal.config.get_text_config()
    device = next(readout.causal.parameters()).device
    enter, leave = (torch.tensor([x], device=device) for x in SPANS)
    end = tree_ends(enter, leave, torch.ones_like(enter, dtype=torch.bool))
    depths = torch.tensor([TREE[1]], device=device)
    for window in (None, NARROW) if getattr(config, "sliding_window", None) else (None,):
        with with_window(readout.causal, window):
            masks = masks_of(readout.causal.config.get_text_config(), end, depths)
            agrees = _tree_equals_branches(readout, masks)
        if agrees is not True:
            detail = f" ({agrees})" if agrees else ""
            return f"{readout.name} computes something else with a block mask than with branches of their own{detail}"
    return None


def layout_for(readout: Readout, layout: str, attention: Attention) -> Layout:
    """Layout in which a model is trained: packed where it can be, flat otherwise (with a warning) or by choice."""
    if layout not in ("packed", "flat"):
        raise ModelError(f"layout is 'packed' or 'flat', not {layout!r}")
    if attention == "flex":
        reason = "rows of learner.layout=flat have no forks" if layout == "flat" else dense_mask_reason(readout)
        if reason is not None:
            raise ModelError(f"learner.attention=flex can't be had: {reason}; leave it at auto")
        return "packed"
    if layout == "packed" and (reason := flat_layout_reason(readout)):
        warnings.warn(f"{readout.name} is trained flat, without sharing prefixes: {reason}", stacklevel=3)
        return "flat"
    return "packed" if layout == "packed" else "flat"


def untrained_loss(causal: Any) -> str | None:
    """Warning about a load-balancing loss that the objective leaves out; None for a model without experts."""
    coefficient = getattr(causal.config.get_text_config(), "router_aux_loss_coef", None)
    if not coefficient:
        return None
    return (
        f"{type(causal).__name__} routes tokens to experts: its load-balancing loss (router_aux_loss_coef "
        f"{coefficient:g}) is not part of the objective; watch the experts' use over long runs"
    )


@torch.no_grad()
def _tree_equals_branches(readout: Readout, mask: Any) -> bool | str:
    """Return True if a tree under its mask has the states of its branches; the error, if the model raises one."""
    device = next(readout.causal.parameters()).device
    tokens = torch.tensor([TREE[0]], device=device) % readout.vocabulary
    position = torch.tensor([TREE[1]], device=device)
    try:
        tree = readout.states(tokens, mask, position)
    except Exception as error:  # a model may raise anything for an unknown mask
        return f"{type(error).__name__}: {error}".splitlines()[0]
    branches = torch.tensor(BRANCHES, device=device)
    # the root of the dtype's precision: kernels differ in the order of their sums, a wrong mask differs by far more
    flat = readout.states(tokens[0][branches], torch.ones_like(branches), position[0][branches])
    close = torch.finfo(tree.dtype).eps ** 0.5 * flat.abs().max()
    return bool((tree[0][branches] - flat).abs().max() <= close)
