"""Classifier-free guidance of a generator of picture tokens, within the model: sampler and learner read one mixture."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch import Tensor

from gxpo.base.errors import ModelError
from gxpo.models.decoder.architecture import GUIDED, backbone_of
from gxpo.models.picture_tokens import Codebook


def guide(causal: Any, codebook: Codebook, scale: float) -> None:
    """Give a causal model classifier-free guidance: logits l_u + scale (l_c - l_u), l_u with no class in the place of
    every class.

    The head is linear, so its input is mixed in the place of its output: h_u + scale (h_c - h_u). Sampler and learner
    run this one forward pass, and gradients go through both. A cache has the layers of l_c, then those of l_u.
    """
    backbone = backbone_of(causal)
    kind = type(backbone)
    # transformers 5.24 renamed it
    name = "cache" if "cache" in inspect.signature(kind.forward).parameters else "past_key_values"

    def forward(self: Any, input_ids: Tensor | None = None, **settings: Any) -> Any:
        if input_ids is None or settings.get("output_hidden_states"):
            raise ModelError("guidance mixes last hidden states of token ids: no soft tokens and no inner layers")
        is_class = (input_ids >= len(codebook.patches)) & (input_ids < codebook.none)
        no_class = torch.where(is_class, codebook.none, input_ids)
        cache = settings.pop(name, None)
        layers = [] if cache is None else cache.layers
        middle, outs = len(layers) // 2, []
        for ids, half in ((input_ids, layers[:middle]), (no_class, layers[middle:])):
            settings[name] = with_layers(cache, half) if half else None
            outs.append(kind.forward(self, input_ids=ids, **settings))
        out, states = outs[0], [x.last_hidden_state for x in outs]
        out.last_hidden_state = states[1] + scale * (states[0] - states[1])
        if (filled := getattr(out, name)) is not None:
            setattr(out, name, with_layers(filled, [layer for x in outs for layer in getattr(x, name).layers]))
        return out

    backbone.__class__ = type(f"Guided{kind.__name__}", (kind,), {"forward": forward, GUIDED: True})


def with_layers(cache: Any, layers: list[Any]) -> Any:
    """Shallow copy of a cache with other layers."""
    out = copy.copy(cache)
    out.layers = layers
    return out
