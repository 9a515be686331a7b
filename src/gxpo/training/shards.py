"""Tensors of a sharded checkpoint, one at a time: safetensors files that FSDP2's processes wrote."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gxpo.base.errors import CheckpointError

PARAMETER = "parameter/"  # before the names of parameters; others are the optimiser's


class Shards(Mapping[str, Tensor]):
    """Mapping of names to whole tensors from the files in a directory; each is joined from its shards on access."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def _metadata(self) -> Mapping[str, Any]:
        try:
            return self._reader().read_metadata().state_dict_metadata
        except (OSError, ValueError, KeyError) as error:
            raise CheckpointError(f"damaged checkpoint: {self.folder}: {' '.join(str(error).split())}") from error

    def _reader(self) -> Any:
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

        return HuggingFaceStorageReader(str(self.folder))

    def __getitem__(self, name: str) -> Tensor:
        from torch.distributed.checkpoint.state_dict_loader import load

        metadata = self._metadata[name]
        tensors = {name: torch.empty(metadata.size, dtype=metadata.properties.dtype)}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)
            load(tensors, storage_reader=self._reader(), no_dist=True)
        return tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._metadata)

    def __len__(self) -> int:
        return len(self._metadata)


class View(Mapping[str, Tensor]):
    """The tensors of another mapping whose names begin with `prefix`, without it, but for those that then begin with
    `leave_out`. Nothing is read before it is asked for."""

    def __init__(self, below: Mapping[str, Tensor], prefix: str = "", *, leave_out: str | None = None) -> None:
        self._below, self._prefix = below, prefix
        names = [name.removeprefix(prefix) for name in below if name.startswith(prefix)]
        self._names = dict.fromkeys(n for n in names if leave_out is None or not n.startswith(leave_out))

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        return self._below[self._prefix + name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
