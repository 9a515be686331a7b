"""Transfers of several tensors between host and device by one copy each way: every copy waits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from gxpo.base.devices import has_float64, to_host_float64


def to_device(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Tensors [n] of 64 bits each, on a device; float64 becomes float32 on devices that have none.

    >>> [x.dtype for x in to_device([torch.arange(2), torch.ones(2, dtype=torch.float64)], torch.device("cpu"))]
    [torch.int64, torch.float64]
    """
    if device.type == "cpu":
        return list(tensors)
    if not has_float64(device):
        return [one_to_device(x, device) for x in tensors]
    bits = torch.stack([x.contiguous().view(torch.int64) for x in tensors]).to(device)
    return [row.view(x.dtype) for row, x in zip(bits, tensors, strict=True)]


def one_to_device(x: Tensor, device: torch.device) -> Tensor:
    """A tensor of any shape and dtype on a device; float64 becomes float32 on devices that have none."""
    return (x.to(torch.float32) if x.dtype == torch.float64 and not has_float64(device) else x).to(device)


def to_host(outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Outputs in float64 on the host, with their gradients; those of one shape and dtype together."""
    kinds = {(x.shape, x.dtype) for x in outputs.values()}
    if len(kinds) == 1 and len(outputs) > 1 and next(iter(outputs.values())).device.type != "cpu":
        rows = to_host_float64(torch.stack(list(outputs.values())))
        return dict(zip(outputs, rows, strict=True))
    return {name: to_host_float64(x) for name, x in outputs.items()}
