"""Key-value caches of transformers whose rows can be repeated and dropped, and that grow in place."""

from __future__ import annotations

import copy
from functools import cache as once
from typing import Any

import torch
from torch import Tensor

from gxpo.errors import ModelError


def check_rows(cache: Any, name: str) -> None:
    """Refuses what a model returned as its cache if rows of it can't be selected one by one."""
    layers = getattr(cache, "layers", None)
    if layers is None or not all(hasattr(layer, "batch_select_indices") for layer in layers) or any(cache.is_linear):
        raise ModelError(
            f"{name} keeps no key-value cache whose rows can be reordered (it is recurrent or has "
            "linear-attention layers): sample from it with another engine"
        )


def rows_of(cache: Any, rows: Tensor) -> Any:
    """A new cache holding `rows` (repeats allowed) of this one, which stays as it was."""
    taken = copy.copy(cache)
    taken.layers = [copy.copy(layer) for layer in cache.layers]
    taken.batch_select_indices(rows)
    return taken


def roomy(cache: Any, capacity: int) -> Any:
    """The cache with room for `capacity` positions in its full-attention layers; the others are left as they are.

    The layers of transformers grow by concatenation, which copies the whole cache for every token.
    """
    from transformers.cache_utils import DynamicLayer

    out = copy.copy(cache)
    out.layers = [_roomy_layer()(layer, capacity) if type(layer) is DynamicLayer else layer for layer in cache.layers]
    return out


@once
def _roomy_layer() -> type:
    from transformers.cache_utils import DynamicLayer

    class RoomyLayer(DynamicLayer):
        """Keys and values [rows, heads, positions, size] are views on the filled part of larger buffers."""

        def __init__(self, layer: Any, capacity: int) -> None:
            super().__init__()
            self.dtype, self.device, self.is_initialized = layer.keys.dtype, layer.keys.device, True
            self.buffers = tuple(self._buffer(x, capacity) for x in (layer.keys, layer.values))
            self._show(layer.keys.shape[2])

        @staticmethod
        def _buffer(filled: Tensor, capacity: int) -> Tensor:
            rows, heads, length, size = filled.shape
            buffer = torch.empty(rows, heads, capacity, size, dtype=filled.dtype, device=filled.device)
            buffer[:, :, :length] = filled
            return buffer

        def _show(self, length: int) -> tuple[Tensor, Tensor]:
            self.filled = length
            keys, values = (buffer[:, :, :length] for buffer in self.buffers)
            self.keys, self.values = keys, values
            return keys, values

        def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            end = self.filled + key_states.shape[2]
            for buffer, new in zip(self.buffers, (key_states, value_states), strict=True):
                buffer[:, :, self.filled : end] = new
            return self._show(end)

        def batch_select_indices(self, indices: Tensor) -> None:
            self.buffers = tuple(buffer[indices] for buffer in self.buffers)
            self._show(self.filled)

    return RoomyLayer
