"""Model support for tree attention masks: supported models train on packed trees, others on flat sequences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gxpo.learners.packing import Sheet
from gxpo.learners.readout import Readout

MASKED_ATTENTION = ("sdpa", "eager")
TREE = ([1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 3, 4])  # ids and depths of a prompt of three and two branches of two
BRANCHES = ([0, 1, 2, 3, 4], [0, 1, 2, 5, 6])


@dataclass(frozen=True, eq=False)
class Padded:
    """Right-padded rows of a sheet: tokens, position [B, L]; held [B, L] bool, False on padding.

    mask  [B, L] (1 = token) in flat layout, [B, L, L] bool (row attends to column) when packed
    """

    tokens: Tensor
    position: Tensor
    mask: Tensor
    held: Tensor


def padded(sheet: Sheet) -> Padded:
    """The rows of a sheet padded, for models that take a mask."""
    lengths = torch.tensor(sheet.lengths)
    held = torch.arange(int(lengths.max()))[None] < lengths[:, None]
    index = torch.zeros(held.shape, dtype=torch.int64)
    index[held] = sheet.index
    packed, flat = sheet.packing.packed, sheet.packing.layout == "flat"
    return Padded(
        tokens=torch.where(held, packed.token[index], 0),
        position=torch.where(held, packed.position[index], 0),
        mask=held.to(torch.int64) if flat else _may_attend(sheet, index, held),
        held=held,
    )


def _may_attend(sheet: Sheet, index: Tensor, held: Tensor) -> Tensor:
    """Tree attention mask [B, L, L] bool: the column's token is the row's or an ancestor; padding attends to itself."""
    enter, leave = sheet.packing.spans
    node = sheet.packing.packed.node_of_token[index]
    begin, end = torch.where(held, enter[node], -1), torch.where(held, leave[node], -1)
    above = (begin[:, None, :] <= begin[:, :, None]) & (begin[:, :, None] < end[:, None, :])
    order = torch.arange(index.shape[1])
    above &= order[None, :] <= order[:, None]
    return above | torch.eye(index.shape[1], dtype=torch.bool)


def additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """Additive attention mask [B, 1, L, L] from bool [B, L, L]: 0 where allowed, the lowest finite number elsewhere."""
    mask = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
    return mask.masked_fill_(~allowed, torch.finfo(dtype).min)[:, None]


def why_flat(readout: Readout) -> str | None:
    """Why this model can't be trained on packed trees; None if it can.

    From its configuration (recurrence, sliding windows, layers other than full attention, attention kernels without
    masks), then by trying a small tree against its branches.
    """
    if readout.decoder is not None:  # it has blocks instead of masks
        return None
    config: Any = readout.causal.config.get_text_config()
    layers = getattr(config, "layer_types", None)
    if getattr(readout.causal, "_is_stateful", False):
        return "it has recurrent layers"
    if layers is not None:
        other = sorted(set(layers) - {"full_attention"})
        if other:
            return f"it has {' and '.join(other)} layers"
    elif getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        return f"it attends within a window of {config.sliding_window} tokens"
    kernel = getattr(config, "_attn_implementation", None)
    if kernel not in MASKED_ATTENTION:
        return f"its attention kernel {kernel!r} takes no mask of ancestors (load it with attn_implementation='sdpa')"
    return None if _tree_equals_branches(readout) else "its layers do not follow a mask of ancestors"


def untrained_loss(causal: Any) -> str | None:
    """What of a mixture of experts' own loss is not in the objective; None if there is nothing."""
    coefficient = getattr(causal.config.get_text_config(), "router_aux_loss_coef", None)
    if not coefficient:
        return None
    return (
        f"{type(causal).__name__} routes tokens to experts: its load-balancing loss (router_aux_loss_coef "
        f"{coefficient:g}) is not part of the objective; watch the experts' use over long runs"
    )


@torch.no_grad()
def _tree_equals_branches(readout: Readout) -> bool:
    parameter = next(readout.causal.parameters())
    tokens = torch.tensor([TREE[0]], device=parameter.device) % readout.vocabulary
    position = torch.tensor([TREE[1]], device=parameter.device)
    allowed = torch.zeros(1, 7, 7, dtype=torch.bool, device=parameter.device)
    for branch in BRANCHES:
        for i, row in enumerate(branch):
            allowed[0, row, branch[: i + 1]] = True
    try:
        packed = readout.states(tokens, additive(allowed, parameter.dtype), position)
    except Exception:  # a model may raise anything for an unknown mask
        return False
    branches = torch.tensor(BRANCHES, device=parameter.device)
    ones = torch.ones_like(branches)
    flat = readout.states(tokens[0][branches], ones, position[0][branches])
    close = torch.finfo(packed.dtype).eps ** 0.5 * flat.abs().max()
    return bool((packed[0][branches] - flat).abs().max() <= close)
