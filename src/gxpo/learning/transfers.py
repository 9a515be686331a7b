"""Transfers of several tensors between host and device by one copy each way: every copy waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor


def to_device(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Tensors [n] of 64 bits each, on a device.

    >>> [x.dtype for x in to_device([torch.arange(2), torch.ones(2, dtype=torch.float64)], torch.device("cpu"))]
    [torch.int64, torch.float64]
    """
    if device.type == "cpu":
        return list(tensors)
    bits = torch.stack([x.contiguous().view(torch.int64) for x in tensors]).to(device)
    return [row.view(x.dtype) for row, x in zip(bits, tensors, strict=True)]


def to_host(outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Outputs in float64 on the host, with their gradients; those of one shape and dtype together."""
    together = {(x.shape, x.dtype) for x in outputs.values()}
    if len(together) == 1 and len(outputs) > 1 and next(iter(outputs.values())).device.type != "cpu":
        # to float64 on the host alone: some devices have none
        rows = torch.stack(list(outputs.values())).to("cpu").to(torch.float64)
        return dict(zip(outputs, rows, strict=True))
    return {name: x.to("cpu", torch.float64) for name, x in outputs.items()}
