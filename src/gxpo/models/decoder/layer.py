"""A decoder layer run by its parts (`models.decoder.architecture.Layer`), fused where they are plain maps and norms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gxpo.models.decoder.architecture import Layer, plain
from gxpo.models.decoder.functions import AddLinear, GatedMLP, NormLinears


def stock(layer: Layer, norm: Any, x: Tensor) -> bool:
    """Whether a norm is the family's RMSNorm, whose float32 arithmetic is what we compute."""
    rms = layer.family.rms
    return rms is not None and type(norm).__name__ == rms[0] and x.dtype != torch.float64


def weight_of(layer: Layer, norm: Any) -> Tensor:
    """[H] what a stock norm multiplies by."""
    assert layer.family.rms is not None
    more = layer.family.rms[1]
    return norm.weight.to(torch.float32) + more if more else norm.weight


def eps_of(norm: Any) -> float:
    """Epsilon of a stock norm."""
    return norm.variance_epsilon if hasattr(norm, "variance_epsilon") else norm.eps


def queries_keys_values(layer: Layer, x: Tensor, product: torch.dtype) -> Tensor:
    """[n, (heads + 2 kv) * D] queries, keys and values of a layer's input."""
    norm, maps, size = layer.norm(0), layer.maps, layer.heads.size
    if plain(*maps) and stock(layer, norm, x):
        weights = (m.weight for m in maps)
        out = NormLinears.apply(x, weight_of(layer, norm), eps_of(norm), product, *weights)
    else:
        h = x if norm is None else norm(x)
        out = maps[0](h) if len(maps) == 1 else torch.cat([m(h) for m in maps], 1)
    if layer.family.by_head:
        out = out.unflatten(1, (layer.heads.queries, 3, size)).transpose(1, 2).flatten(1)
    norms = layer.norms_of_heads
    if not norms:
        return out
    parts = list(out.split([m.out_features for m in maps], 1))
    for i, of_heads in enumerate(norms):
        one_head = of_heads.weight.numel() == size  # else it is over all heads together
        part = parts[i].reshape(x.shape[0], -1, size) if one_head else parts[i]
        parts[i] = of_heads(part).flatten(1)
    return torch.cat(parts, 1)


def add_linear(linear: Any, x: Tensor, a: Tensor, product: torch.dtype) -> Tensor:
    """x + linear(a)."""
    return AddLinear.apply(x, a, linear.weight, product) if plain(linear) else x + linear(a)


def add_attention(layer: Layer, x: Tensor, attended: Tensor, product: torch.dtype) -> Tensor:
    """[n, H] a layer's input x and what attention adds to it, from its result [n, heads * D]."""
    if layer.norm(1) is None and layer.multiple == 1.0:
        return add_linear(layer.out, x, attended, product)
    return x + _branch(layer, layer.out(attended), layer.norm(1))


def add_mlp(layer: Layer, x: Tensor, product: torch.dtype, before: Tensor) -> Tensor:
    """[n, H] x and what the MLP adds to it; before: the layer's input, which a parallel MLP reads."""
    norm, inner, read = layer.norm(2), layer.inner, before if layer.parallel else x
    simple = layer.sequential
    if inner and plain(*inner, layer.mlp.down_proj) and stock(layer, norm, x):
        weights = (layer.mlp.down_proj.weight, *(m.weight for m in inner))
        found = GatedMLP.apply(read, weight_of(layer, norm), eps_of(norm), product, layer.act, simple, *weights)
        if simple:
            return found
    else:
        found = layer.mlp((read if norm is None else norm(read))[None])  # experts want a batch
        found = (found[0] if isinstance(found, tuple) else found)[0]
    return x + _branch(layer, found, layer.norm(3))


def _branch(layer: Layer, x: Tensor, norm: Any) -> Tensor:
    x = x if norm is None else norm(x)
    return x if layer.multiple == 1.0 else x * layer.multiple
