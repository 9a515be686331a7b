"""The runtime of a training process: collectives of data-parallel processes, memory, and the time that phases take.

Without an initialised process group each collective is the identity.
"""

from __future__ import annotations

import atexit
import ctypes
import math
import os
import platform
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from gxpo.base.errors import ConfigError, ModelError
from gxpo.base.terminal import say
from gxpo.base.usercode import one_line

LOOPBACK = "127.0.0.1"
STORE = 30.0  # seconds in which the store of a launcher on this machine takes a connection


def environment(name: str, default: int) -> int:
    """Read a number that `torchrun` sets in the environment."""
    value = os.environ.get(name, "").strip() or str(default)
    if not value.isdecimal():
        raise ConfigError(f"the environment variable {name} is {value!r}, not a whole number: unset it or use torchrun")
    return int(value)


def peak_resident() -> float:
    """Largest resident memory of the process so far, bytes; nan where the system does not tell (Windows)."""
    try:
        import resource
    except ImportError:
        return float("nan")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def start(*, group_of_one: bool = False) -> None:
    """Join the process group that `torchrun` announces in the environment; does nothing without one.

    Where all processes are on this machine they talk over loopback alone. group_of_one: make a group of one
    process, too: sharded parameters need one.
    """
    size = environment("WORLD_SIZE", 1)
    if not dist.is_available() or dist.is_initialized():
        return
    if size <= 1:
        if group_of_one:
            backend = "nccl" if torch.cuda.is_available() else "gloo"
            # a store in this process: no port is opened for a group of one
            store: Any = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]  # documented, though not in __all__
            dist.init_process_group(backend, store=store, rank=0, world_size=1)
            atexit.register(_leave)
        return
    # variables left over from another launch would let this process wait for others for ever
    if environment("RANK", size) >= size:
        raise ConfigError(f"WORLD_SIZE is {size} and RANK {os.environ.get('RANK')}: unset both, or use torchrun")
    if "TORCHELASTIC_RUN_ID" in os.environ:
        _end_with_torchrun()
    try:
        _join(size)
    except (ValueError, RuntimeError) as error:
        raise ConfigError(f"can't join {size} processes (WORLD_SIZE; use torchrun): {one_line(str(error))}") from error


def _end_with_torchrun() -> None:
    """End this process when its launcher is gone: nobody else would where another process of the run fails, and it
    holds the run directory."""
    from gxpo.base.process_tree import (
        leave_after,  # a composition of a method loads this module, and needs no processes
    )

    leave_after(os.getppid(), _orphaned)
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" and _all_here():
        try:
            socket.create_connection((os.environ["MASTER_ADDR"], environment("MASTER_PORT", 0)), STORE).close()
        except OSError:
            _orphaned()  # torch would ask for the store of a launcher that is gone for minutes


def _orphaned() -> None:
    say("gxpo: torchrun has ended, and its processes end, too: gxpo resume goes on, under torchrun", err=True)
    os._exit(1)


def lost_peer(error: BaseException) -> str | None:
    """Message for a collective that failed because another process ended or can't be reached; None for other
    errors."""
    if world() == 1 or not isinstance(error, RuntimeError):
        return None
    if not isinstance(error, dist.DistError) and "gloo" not in str(error):  # gloo raises what has no class of its own
        return None
    message = one_line(str(error))
    return f"another process of the run has ended: start all of them again, with gxpo resume under torchrun ({message})"


def _join(size: int) -> None:
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    # gloo's threads outlive the interpreter unless the group is left first
    if backend == "gloo":
        atexit.register(_leave)
    if not _all_here():
        dist.init_process_group(backend)
        return
    # gloo and NCCL would otherwise listen on the first interface that has an address, open to the network
    interface = next((name for _, name in socket.if_nameindex() if name in ("lo", "lo0")), None)
    if interface is not None:  # of Linux, of macOS
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
    own_rank = environment("RANK", 0)
    dist.init_process_group(backend, store=_loopback_store(own_rank, size), rank=own_rank, world_size=size)


def _leave() -> None:
    """End gloo's threads: a process that exits while they run is sometimes aborted, after all its work."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _all_here() -> bool:
    """Return True if all processes run on this machine, by torchrun's count or, without it, by the master address."""
    if not {"RANK", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        return False  # torch says which one is missing
    if local_size := os.environ.get("LOCAL_WORLD_SIZE"):
        return local_size == os.environ["WORLD_SIZE"]
    return os.environ["MASTER_ADDR"] in ("localhost", "::1") or os.environ["MASTER_ADDR"].startswith("127.")


def _loopback_store(own_rank: int, size: int) -> Any:
    """A rendezvous store that listens on loopback alone; torch's own listens on every interface.

    torchrun's store occupies the announced port: it is used only to pass on the port of this one.
    """
    connect: Any = dist.TCPStore  # pyright: ignore[reportPrivateImportUsage]  # documented, though not in __all__
    host, port = os.environ["MASTER_ADDR"], environment("MASTER_PORT", 0)
    agent = None
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        agent, port = connect(host, port, is_master=False), 0
    if own_rank == 0:
        with socket.create_server((LOOPBACK, port)) as server:
            port = server.getsockname()[1]
            # the listening socket is handed over: between choosing and binding a port nobody can take it
            store = connect(LOOPBACK, port, size, True, wait_for_workers=False, master_listen_fd=server.detach())
        if agent is not None:
            agent.set(_key(), str(port))
        return store
    if agent is not None:
        port = int(agent.get(_key()))
    return connect(LOOPBACK, port, size, False)


def _key() -> str:
    return f"gxpo/port/{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}"


def world() -> int:
    """Number of processes (world size)."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def group_size() -> int:
    """Number of processes of the process group, which there has to be."""
    return dist.get_world_size()


def rank() -> int:
    """Rank of this process, from 0."""
    return dist.get_rank() if world() > 1 else 0


BUCKET = 64 << 20  # bytes that are summed together: what a sum over processes may need beside the tensors


def all_sum(tensors: Sequence[Tensor]) -> None:
    """All-reduce (sum) tensors in place; those of a dtype and device together, in buckets of about `BUCKET` bytes."""
    if world() == 1:
        return
    kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
    for x in tensors:
        # one collective per dtype and device: buckets are flattened copies
        kinds.setdefault((x.dtype, x.device), []).append(x)
    for same in kinds.values():
        for bucket in _buckets(same):
            _summed(bucket)


def _buckets(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    size = 0
    for x in tensors:
        # a tensor larger than a bucket is a bucket by itself
        if bucket and size + x.nbytes > BUCKET:
            yield bucket
            bucket, size = [], 0
        bucket.append(x)
        size += x.nbytes
    if bucket:
        yield bucket


def _summed(tensors: Sequence[Tensor]) -> None:
    flat = torch.cat([x.detach().reshape(-1) for x in tensors])
    shared = flat.cpu() if dist.get_backend() == "gloo" else flat.to("cuda")
    dist.all_reduce(shared)
    for x, part in zip(tensors, shared.to(flat.device).split([x.numel() for x in tensors]), strict=True):
        x.detach().copy_(part.view_as(x))


def mean(value: float) -> float:
    """Mean of a number over the processes; as it is where there is one."""
    if world() == 1:
        return value
    local_value = torch.tensor([value], dtype=torch.float64)
    all_sum([local_value])
    return float(local_value) / world()


def highest(number: int) -> int:
    """The largest of a whole number >= 0 over the processes."""
    if world() == 1:
        return number
    local_number = torch.tensor([number], device="cpu" if dist.get_backend() == "gloo" else "cuda")
    dist.all_reduce(local_number, dist.ReduceOp.MAX)
    return int(local_number)


def gather(data: bytes) -> list[bytes]:
    """Gather an object from every process, by rank; sent as uint8 tensors, nothing is unpickled."""
    if world() == 1:
        return [data]
    device = "cpu" if dist.get_backend() == "gloo" else "cuda"
    local_bytes = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(world())]
    # lengths first, since processes must agree on a shape
    dist.all_gather(sizes, torch.tensor([len(data)], device=device))
    # all_gather takes equal shapes: every message is padded to the longest, and cut again by its size
    longest = max(int(size) for size in sizes)
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[: local_bytes.numel()] = local_bytes
    received = [torch.zeros(longest, dtype=torch.uint8, device=device) for _ in range(world())]
    dist.all_gather(received, padded.to(device))
    return [x[: int(size)].cpu().numpy().tobytes() for x, size in zip(received, sizes, strict=True)]


def first(text: str) -> str:
    """Broadcast an object from the first process."""
    return gather(text.encode())[0].decode()


def first_of(text: str) -> str:
    """The first text, by rank, that is not empty; "" where all are."""
    return next(filter(None, (x.decode() for x in gather(text.encode()))), "")


def any_of(flag: bool) -> bool:
    """Return True on all processes if any passed True."""
    return any(x == b"1" for x in gather(b"1" if flag else b"0"))


# ---------------------------------------------------------------- memory
SAYINGS = ("can't allocate memory", "not enough memory", "out of memory", "alloc_failed")  # of CPUs and other devices


@contextmanager
def memory_is_short(doing: str, remedy: str) -> Iterator[None]:
    """Context manager: turn a failed allocation into a `ModelError` that says what to lower; other errors pass."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        message = str(error).strip().split("\n")[0]
        # torch raises RuntimeError for memory and for bugs alike: only known messages are translated
        if isinstance(error, RuntimeError) and not (
            isinstance(error, torch.OutOfMemoryError) or any(saying in message.lower() for saying in SAYINGS)
        ):
            raise
        raise ModelError(f"out of memory while {doing}: lower {remedy} ({message})") from error


# ---------------------------------------------------------------- the heap of glibc
KEEP = 32 << 20  # bytes of a block up to which a freed one stays with the process, to be used again without page faults
IDLE = 256 << 20  # bytes of freed blocks above which they are given back between the phases of a step


@cache
def _glibc() -> Any:
    """The C library, where it is glibc; None elsewhere."""
    try:
        library = ctypes.CDLL("libc.so.6")
        library.mallinfo2.restype = _Heap
    except (OSError, AttributeError):
        return None
    return library


HEAP = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _Heap(ctypes.Structure):
    """Heap statistics of glibc (mallinfo2)."""

    _fields_ = [(name, ctypes.c_size_t) for name in HEAP]


def reuse_freed() -> None:
    """Keep freed blocks of up to `KEEP` bytes in this process for reuse: each step allocates the same ones again.

    Without it the kernel hands out, and zeroes, the pages of every larger tensor anew. Does nothing without glibc.
    """
    if (library := _glibc()) is not None:
        library.mallopt(-3, KEEP)  # M_MMAP_THRESHOLD
        library.mallopt(-1, IDLE)  # M_TRIM_THRESHOLD


def give_back(more_than: int = IDLE) -> None:
    """Return freed blocks to the system if they exceed so many bytes; does nothing without glibc."""
    if (library := _glibc()) is not None and library.mallinfo2().fordblks > more_than:
        library.malloc_trim(0)


def peak_megabytes() -> float:
    """Largest resident memory of the process so far, MiB."""
    return peak_resident() / 2**20


class Clock:
    """Stopwatch of the phases of a step, in seconds."""

    def __init__(self) -> None:
        self._began = self._last_mark = time.perf_counter()
        self._laps: dict[str, float] = {}

    def lap(self, phase: str) -> None:
        """Ends a phase that began with the one before."""
        previous_mark, self._last_mark = self._last_mark, time.perf_counter()
        self._laps[phase] = self._last_mark - previous_mark

    def note(self, phase: str, seconds: float) -> None:
        """A phase that went on beside the others."""
        self._laps[phase] = seconds

    def figures(self, generated: int, forward: int) -> dict[str, float]:
        """The phases, the whole, and tokens a second of sampling and updating."""
        return {
            **{f"time_{phase}_s": seconds for phase, seconds in self._laps.items()},
            "time_step_s": time.perf_counter() - self._began,
            "time_sample_tokens_per_s": generated / (self._laps["sample"] or math.inf),
            "time_update_tokens_per_s": forward / self._laps["update"],
        }


def processor_name() -> str:
    """Name of this machine's processor; its architecture where the system tells no name."""
    # `platform.processor` is empty on many Linux machines
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
