"""The few collectives of a learner; without an initialised process group each is the identity."""

from __future__ import annotations

import os
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor


def start() -> None:
    """Joins the process group that `torchrun` announces in the environment; does nothing without one."""
    if int(os.environ.get("WORLD_SIZE", 1)) > 1 and dist.is_available() and not dist.is_initialized():
        dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")


def world() -> int:
    """How many processes learn together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Which of them this is, from 0."""
    return dist.get_rank() if world() > 1 else 0


def all_sum(tensors: Sequence[Tensor]) -> None:
    """Adds each tensor over the processes, in place; one call per dtype and device, whatever their number."""
    if world() == 1:
        return
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for x in tensors:
        kinds.setdefault((x.dtype, x.device), []).append(x)
    for same in kinds.values():
        flat = torch.cat([x.detach().reshape(-1) for x in same])
        shared = flat.cpu() if dist.get_backend() == "gloo" else flat
        dist.all_reduce(shared)
        for x, part in zip(same, shared.to(flat.device).split([x.numel() for x in same]), strict=True):
            x.detach().copy_(part.view_as(x))


def gather(data: bytes) -> list[bytes]:
    """What every process gave, by rank; sent as uint8 tensors, nothing is unpickled."""
    if world() == 1:
        return [data]
    device = "cpu" if dist.get_backend() == "gloo" else "cuda"
    own = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(world())]
    dist.all_gather(sizes, torch.tensor([len(data)], device=device))
    longest = max(int(size) for size in sizes)
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[: own.numel()] = own
    received = [torch.zeros(longest, dtype=torch.uint8, device=device) for _ in range(world())]
    dist.all_gather(received, padded.to(device))
    return [x[: int(size)].cpu().numpy().tobytes() for x, size in zip(received, sizes, strict=True)]
