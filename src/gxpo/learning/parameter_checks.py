"""Checks of parameters: a fingerprint that does not depend on how they are sharded, and the first tensor that is not
finite."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gxpo.base import runtime

if TYPE_CHECKING:
    from torch import Tensor


AT_ONCE = 1 << 22  # elements that are mixed together
WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
ODD, OTHER = -7046029254386353131, -4658895280553007687  # multipliers of splitmix64, as signed numbers


def fingerprint(parameters: Mapping[str, Tensor]) -> int:
    """Sum modulo 2^53 (exact in float64), over all elements, of a mix of tensor name, index in the whole tensor, bits.

    parameters  name -> tensor, or shard of one (`DTensor` sharded along its first axis). Every process gets the sum
                over all shards, each counted once: tensors that are no shards count in the first process alone

    A sum can be taken in any order, so two processes' shards and one process's whole tensors give the same number.
    """
    sum_by_device: dict[torch.device, Tensor] = {}
    for name, x in parameters.items():
        local, begin = shard_of(x.detach())
        if local is None:
            continue
        mixed = _mixed_sum(local, begin, zlib.crc32(name.encode()))
        sum_by_device[local.device] = sum_by_device.get(local.device, 0) + mixed
    checksum = sum((x.cpu() for x in sum_by_device.values()), torch.zeros((), dtype=torch.int64)).reshape(1)
    runtime.all_sum([checksum])
    return int(checksum) % 2**53


def shard_of(x: Tensor) -> tuple[Tensor | None, int]:
    """This process's part of a tensor and the index of its first element in the whole; (None, 0) without a part."""
    to_local: Any = getattr(x, "to_local", None)
    if to_local is None:
        return (x, 0) if runtime.rank() == 0 else (None, 0)
    local = to_local()
    if not local.numel():
        return None, 0
    rows_per_shard = -(-x.shape[0] // runtime.world())  # rows of a shard; the last ones may have fewer
    return local, runtime.rank() * rows_per_shard * math.prod(x.shape[1:])


def _mixed_sum(x: Tensor, begin: int, seed: int) -> Tensor:
    """Sum of the mixed elements of a shard; `begin`: index of its first element in the whole tensor."""
    bits = x.contiguous().view(-1).view(WORDS[x.element_size()])
    out = torch.zeros((), dtype=torch.int64, device=x.device)
    for at in range(0, bits.numel(), AT_ONCE):
        part = bits[at : at + AT_ONCE].to(torch.int64)
        index = torch.arange(begin + at, begin + at + part.numel(), device=x.device)
        z = (part + (index + (seed << 20)) * ODD) * OTHER
        z = (z ^ (z >> 29)) * ODD
        out += (z ^ (z >> 32)).sum()
    return out


def first_not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """Name of the first non-finite tensor, None if all are finite. One pass over each, no copy (0.4 ms a million)."""
    for name, x in tensors.items():
        if x.is_floating_point() and x.numel():
            ends = x.detach().aminmax()  # both are nan where any value is
            if not bool(ends.min.isfinite() & ends.max.isfinite()):
                return name
    return None
