"""Key-value caches of transformers: select, repeat and drop rows; grow in place without copies."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache as once
from typing import Any

import torch
from torch import Tensor

from gxpo.base.errors import ModelError

Layers = list[tuple[Tensor, Tensor]]  # keys and values of each layer


def check_rows(cache: Any, name: str) -> None:
    """Raise an error if rows of a model's cache can't be selected one by one."""
    layers = getattr(cache, "layers", None)
    if layers is None or not all(_has_states(layer) or _is_plain(layer) for layer in layers):
        raise ModelError(
            f"{name} keeps no cache whose rows can be reordered (it is recurrent throughout, or older than "
            "transformers' common cache): sample from it with another engine"
        )


def _is_plain(layer: Any) -> bool:
    """Return True for a layer of keys and values alone, whose rows can be selected."""
    return hasattr(layer, "batch_select_indices") and not hasattr(layer, "conv_states")


def _has_states(layer: Any) -> bool:
    """Return True for a layer of numbered states (linear attention, convolutions) whose rows can be selected."""
    states = (getattr(layer, name, None) for name in ("conv_states", "recurrent_states"))
    return all(isinstance(x, dict) for x in states) and hasattr(layer, "reorder_cache")


def rows_of(cache: Any, rows: Tensor) -> Any:
    """Copy `rows` (repeats allowed) to a new cache, leaving this one unchanged."""
    return _with_layers(cache, [_rows_of_layer(layer, rows) for layer in cache.layers])


def spread(cache: Any, rows: Tensor, room: int) -> Any:
    """Copy `rows` (repeats allowed) to a new cache whose full-attention layers have `room` for further positions.

    The layers of transformers grow by concatenation, which copies the whole cache for every token.
    """
    return _with_layers(
        cache,
        [_roomy(layer, rows, room) if _is_full(layer) else _rows_of_layer(layer, rows) for layer in cache.layers],
    )


@dataclass(frozen=True)
class Layout:
    """Shapes of a model's cache in which every layer holds the keys and values of all tokens and nothing else.

    empty  a cache of the model's own class, whose layers are replaced
    sizes  per layer: heads, size of a key, size of a value, dtype, device
    """

    empty: Any
    sizes: tuple[tuple[int, int, int, torch.dtype, torch.device], ...]

    @staticmethod
    def of(cache: Any) -> Layout | None:
        """Read the layout of a cache filled by a forward pass; None if a layer holds something else."""
        if not all(_is_full(layer) and layer.is_initialized for layer in cache.layers):
            return None
        sizes = tuple(
            (x.keys.shape[1], x.keys.shape[3], x.values.shape[3], x.keys.dtype, x.keys.device) for x in cache.layers
        )
        return Layout(_with_layers(cache, []), sizes)

    def buffers(self, rows: int, columns: int) -> Layers:
        """Zeroed keys and values [rows, heads, columns, size] by layer; masked columns must be finite, too."""

        def zeros(heads: int, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
            return torch.zeros(rows, heads, columns, size, dtype=dtype, device=device)

        return [
            (zeros(heads, key, dtype, device), zeros(heads, value, dtype, device))
            for heads, key, value, dtype, device in self.sizes
        ]

    def cache(self, buffers: Layers, length: int, write_mask: Tensor | None = None) -> Any:
        """Build a cache on these buffers with the first `length` columns in use; see `RoomyLayer`."""
        layer_class = _roomy_class()
        return _with_layers(self.empty, [layer_class(keys, values, length, write_mask) for keys, values in buffers])


def columns_of(cache: Any, row: int, start: int, end: int) -> Layers:
    """Copy the keys and values [heads, end - start, size] of one row, by layer."""
    index = (row, slice(None), slice(start, end))
    return [(layer.keys[index].clone(), layer.values[index].clone()) for layer in cache.layers]


def _with_layers(cache: Any, layers: list[Any]) -> Any:
    """Shallow copy of a cache with other layers."""
    out = copy.copy(cache)
    out.layers = layers
    return out


def _rows_of_layer(layer: Any, rows: Tensor) -> Any:
    """Copy rows of one layer, states included."""
    row_layer = copy.copy(layer)
    if _has_states(layer):
        for name, value in vars(layer).items():
            if isinstance(value, dict):  # a shallow copy alone would have both layers write into one dict
                setattr(row_layer, name, dict(value))
        row_layer.reorder_cache(rows)
    else:
        row_layer.batch_select_indices(rows)
    return row_layer


def _is_full(layer: Any) -> bool:
    """Return True for full attention, the one kind that our layer with spare columns can stand in for."""
    from transformers.cache_utils import DynamicLayer

    return type(layer) in (DynamicLayer, _roomy_class())


def _roomy(layer: Any, rows: Tensor, room: int) -> Any:
    """Copy rows of a layer into buffers with `room` spare positions."""
    length = layer.keys.shape[2]
    buffers = []
    for x in (layer.keys, layer.values):
        buffer = torch.empty(rows.numel(), x.shape[1], length + room, x.shape[3], dtype=x.dtype, device=x.device)
        buffer[:, :, :length] = x[rows]
        buffers.append(buffer)
    return _roomy_class()(*buffers, length)


@once
def _roomy_class() -> type:
    """Build the layer class on first use, so that importing this module does not import transformers."""
    from transformers.cache_utils import DynamicLayer

    class RoomyLayer(DynamicLayer):
        """Layer whose keys and values [rows, heads, positions, size] are views on the filled part of larger buffers.

        write_mask  [rows, new positions] bool: positions that an update may write; the others keep their contents
        """

        def __init__(self, keys: Tensor, values: Tensor, length: int, write_mask: Tensor | None = None) -> None:
            super().__init__()
            self.dtype, self.device, self.is_initialized = keys.dtype, keys.device, True
            self.buffers = (keys, values)
            self.write_mask = None if write_mask is None else write_mask[:, None, :, None]
            self._set_length(length)

        def _set_length(self, length: int) -> tuple[Tensor, Tensor]:
            # transformers reads `keys` and `values`, so both have to be the filled part alone.
            self.length = length
            keys, values = (buffer[:, :, :length] for buffer in self.buffers)
            self.keys, self.values = keys, values
            return keys, values

        def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
            # Cached tokens of a longer prefix may lie where a batch of ragged prompts has its padding: keep those.
            end = self.length + key_states.shape[2]
            for buffer, new in zip(self.buffers, (key_states, value_states), strict=True):
                target = buffer[:, :, self.length : end]
                target.copy_(new if self.write_mask is None else torch.where(self.write_mask, new, target))
            return self._set_length(end)

        def batch_select_indices(self, indices: Tensor) -> None:
            self.buffers = tuple(buffer[indices] for buffer in self.buffers)
            self._set_length(self.length)

    return RoomyLayer
