"""Pictures as tokens: a codebook of patches, and a tokenizer that carries it.

A picture is a square of patches, one token each, row by row, and an end. A prompt is a class: its number, or `<none>`.
The codebook is stored in tokenizer_config.json, so every directory of such a tokenizer makes pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np

from gxpo.base.errors import ModelError, need
from gxpo.base.media import PICTURES

if TYPE_CHECKING:
    from gxpo.base.picture_files import Pixels

_MADE: WeakKeyDictionary[Any, tuple[Any, Codebook]] = WeakKeyDictionary()  # tokenizer -> what it carries, as read
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
        """The codebook that a tokenizer carries, made once for each; None for one of texts."""
        stored = getattr(tokenizer, "init_kwargs", {}).get(KEY)
        if not stored:
            return None
        # it is asked for at every prompt, and thousands of patches take milliseconds to read
        source, codebook = _MADE.get(tokenizer, (None, None))
        if codebook is None or source is not stored:
            codebook = Codebook(np.array(stored["patches"], np.uint8), stored["side"], stored["classes"])
            _MADE[tokenizer] = stored, codebook
        return codebook

    @property
    def none(self) -> int:
        """Id that stands for no class."""
        return len(self.patches) + self.classes

    @property
    def end(self) -> int:
        """Id that ends a picture, and that any unknown word has."""
        return self.none + 1

    def tokenizer(self) -> Any:
        """Tokenizer whose words are `k0`, `k1`... for patches and `0`, `1`... for classes; other words are the end."""
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

    def pixels(self, tokens: Sequence[int]) -> Pixels:
        """Picture [H, W, 3] of ids: of the first side * side of them. What is no patch, or missing, is black."""
        n, size = self.side**2, self.patches.shape[1]
        rows = np.zeros((n, size, size), np.uint8)
        for place, token in enumerate(tokens[:n]):
            if token < len(self.patches):
                rows[place] = self.patches[token]
        grey = rows.reshape(self.side, self.side, size, size).transpose(0, 2, 1, 3).reshape(self.side * size, -1)
        return np.repeat(grey[..., None], 3, 2)

    def picture(self, tokens: Sequence[int]) -> str:
        """Reference of the picture of these ids."""
        return PICTURES.put(self.pixels(tokens))


def known_words(tokenizer: Any, text: Any, ids: tuple[int, ...]) -> tuple[int, ...]:
    """These ids of a text; ModelError where a generator of pictures does not know a word of it."""
    if (codebook := Codebook.of(tokenizer)) is not None and codebook.end in ids:
        classes = f"a class, a whole number below {codebook.classes}"
        raise ModelError(f"a generator of pictures reads {classes}, not {str(text)[:40]!r}")
    return ids


def patches_of(pixels: np.ndarray, size: int) -> np.ndarray:
    """Patches [n, patches of a picture, size * size] of pictures [n, H, W], row by row."""
    n, height, width = pixels.shape
    rows = pixels.reshape(n, height // size, size, width // size, size)
    return rows.transpose(0, 1, 3, 2, 4).reshape(n, -1, size * size)
