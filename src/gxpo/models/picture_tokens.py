"""Pictures as tokens: a codebook of patches, a tokenizer that carries it, and classifier-free guidance of the model.

A picture is a square of patches, one token each, row by row, and an end. A prompt is a class: its number, or `<none>`.
The codebook is stored in tokenizer_config.json, so every directory of such a tokenizer makes pictures.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from gxpo.base.errors import ModelError, need
from gxpo.base.media import PICTURES

if TYPE_CHECKING:
    from torch import Tensor

    from gxpo.base.picture_files import Pixels

NONE, END, KEY = "<none>", "<end>", "codebook"


@dataclass(frozen=True)
class Codebook:
    """Grey patches by token id, and the classes behind them.

    patches  [K, p, p] uint8: id k is the patch k
    side     patches of a picture's side; a picture is side * side of them
    classes  classes 0 to classes - 1 have the ids K to K + classes - 1, no class the one behind them
    """

    patches: np.ndarray
    side: int
    classes: int

    @staticmethod
    def of(tokenizer: Any) -> Codebook | None:
        """The codebook that a tokenizer carries; None for one of texts."""
        stored = getattr(tokenizer, "init_kwargs", {}).get(KEY)
        return stored and Codebook(np.array(stored["patches"], np.uint8), stored["side"], stored["classes"])

    @property
    def none(self) -> int:
        """Id that stands for no class."""
        return len(self.patches) + self.classes

    def tokenizer(self) -> Any:
        """Tokenizer whose words are `k0`, `k1`... for patches and `0`, `1`... for classes; it has no unknown word."""
        tokenizers, transformers = need("tokenizers", "train"), need("transformers", "train")
        words = [*(f"k{i}" for i in range(len(self.patches))), *map(str, range(self.classes)), NONE, END]
        backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, END))
        backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        stored = {"patches": self.patches.tolist(), "side": self.side, "classes": self.classes}
        return transformers.PreTrainedTokenizerFast(
            tokenizer_object=backend, pad_token=END, eos_token=END, extra_special_tokens=[NONE], **{KEY: stored}
        )

    def encode(self, pixels: np.ndarray) -> np.ndarray:
        """Ids [n, side * side] of the nearest patches of grey pictures [n, H, W]."""
        x = patches_of(pixels, self.patches.shape[1])
        distance = np.square(x[:, :, None].astype(float) - self.patches.reshape(1, 1, len(self.patches), -1)).sum(3)
        return distance.argmin(2)

    def pixels(self, tokens: Sequence[int]) -> Pixels | None:
        """Picture [H, W, 3] of ids and an end, which may be missing; None for any other ids."""
        ids, n = list(tokens), self.side**2
        if len(ids) not in (n, n + 1) or ids[n:] not in ([], [self.none + 1]) or max(ids[:n]) >= len(self.patches):
            return None
        rows = self.patches[ids[:n]].reshape(self.side, self.side, *self.patches.shape[1:])
        grey = rows.transpose(0, 2, 1, 3).reshape(self.side * rows.shape[2], -1)
        return np.repeat(grey[..., None], 3, 2)

    def picture(self, tokens: Sequence[int]) -> str | None:
        """Reference of the picture of these ids; None where they are none."""
        pixels = self.pixels(tokens)
        return None if pixels is None else PICTURES.put(pixels)


def patches_of(pixels: np.ndarray, size: int) -> np.ndarray:
    """Patches [n, patches of a picture, size * size] of pictures [n, H, W], row by row."""
    n, height, width = pixels.shape
    rows = pixels.reshape(n, height // size, size, width // size, size)
    return rows.transpose(0, 1, 3, 2, 4).reshape(n, -1, size * size)


# ---------------------------------------------------------------- guidance
def guide(causal: Any, codebook: Codebook, scale: float) -> None:
    """Give a causal model classifier-free guidance: logits l_u + scale (l_c - l_u), l_u with no class in the place of
    the prompt's.

    The head is linear, so its input is mixed in the place of its output: h_u + scale (h_c - h_u). Sampler and learner
    run this one forward pass, and gradients go through both. A cache has the layers of l_c, then those of l_u.
    """
    import torch

    from gxpo.models.decoder.architecture import GUIDED, backbone_of

    backbone = backbone_of(causal)
    kind = type(backbone)
    # transformers 5.24 renamed it
    name = "cache" if "cache" in inspect.signature(kind.forward).parameters else "past_key_values"

    def forward(self: Any, input_ids: Tensor | None = None, **settings: Any) -> Any:
        if input_ids is None or settings.get("output_hidden_states"):
            raise ModelError("guidance mixes last hidden states of token ids: no soft tokens and no inner layers")
        is_class = (input_ids >= len(codebook.patches)) & (input_ids < codebook.none)
        cache, layers = settings.pop(name, None), []
        layers = [] if cache is None else cache.layers
        middle, outs = len(layers) // 2, []
        for ids, half in (
            (input_ids, layers[:middle]),
            (torch.where(is_class, codebook.none, input_ids), layers[middle:]),
        ):
            outs.append(
                kind.forward(self, input_ids=ids, **settings, **{name: with_layers(cache, half) if half else None})
            )
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
