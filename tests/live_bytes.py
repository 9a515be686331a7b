"""Bytes of tensors that are alive, counted by storage while operators run; what a kernel holds inside is not seen."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Context manager: count storages that are made meanwhile; `now` and `peak` in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._sizes: dict[int, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # storages that come in unseen were made before: they are none of ours
        for x in tree_leaves((args, kwargs)):
            if isinstance(x, torch.Tensor) and id(x.untyped_storage()) not in self._sizes:
                self._watch(x.untyped_storage(), 0)
        out = func(*args, **kwargs)
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor) and id(x.untyped_storage()) not in self._sizes:
                self._watch(x.untyped_storage(), x.untyped_storage().nbytes())
        return out

    def _watch(self, storage: torch.UntypedStorage, size: int) -> None:
        self._sizes[id(storage)] = size
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, id(storage))

    def _free(self, key: int) -> None:
        self.now -= self._sizes.pop(key, 0)
