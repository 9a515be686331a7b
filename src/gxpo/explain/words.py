"""Texts of tokens: by the run's tokenizer where it can be loaded without a network, else words that stand for them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gxpo.base.errors import GxpoError
from gxpo.base.media import FIRST, label, ref_of, row_of
from gxpo.forest.forest import Forest
from gxpo.models.tiny import CHARACTERS, IMAGE, SPECIAL, built_in

WORD = re.compile(r"\s*[^\s]{1,24}|\s+")  # 24: a text without spaces is cut, too


def pseudo_tokens(text: str) -> list[str]:
    """A text cut before each word; joined they are the text.

    >>> pseudo_tokens("The answer  is 7.")
    ['The', ' answer', '  is', ' 7.']
    """
    return WORD.findall(text) or [""]


@dataclass
class Words:
    """texts: of each distinct token; token [T]: which of them a stored token is, -1 for none."""

    texts: list[str]
    token: NDArray[np.int64]

    @classmethod
    def of(cls, forest: Forest, decode: Callable[[int], str]) -> Words:
        found, place = np.unique(forest.token.numpy(), return_inverse=True)
        return cls([_word(int(i), decode) for i in found], place.astype(np.int64))


def _word(token: int, decode: Callable[[int], str]) -> str:
    """Text of a token; a picture is named at the first of its rows."""
    if token < 0:
        return ""
    return decode(token) if token < FIRST else "" if row_of(token) else label(ref_of(token))


def reader_of(model: str | None, lexicon: Mapping[str, int] | None) -> tuple[Callable[[int], str], str]:
    """(text of a token id, what is to be said about it)."""
    if lexicon is not None:
        pieces = list(lexicon)
        return lambda i: pieces[i] if i < len(pieces) else f"<{i}>", ""
    if model is not None and built_in(model):
        known = [*SPECIAL, *CHARACTERS, IMAGE]
        return lambda i: known[i] if i < len(known) else f"<{i}>", ""
    tokenizer = _local_tokenizer(model) if model else None
    if tokenizer is not None:
        return lambda i: tokenizer.decode([i]), ""
    why = f"the tokenizer of {model}, not on this machine" if model else "a tokenizer"
    return lambda i: f"<{i}>", f"{why} (tokens are shown as their ids)"


def _local_tokenizer(model: str):  # type: ignore[no-untyped-def]  # transformers is optional
    from gxpo.base.errors import need

    try:
        transformers = need("transformers", "train")
        path = str(Path(model).expanduser())
        return transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
    except (GxpoError, OSError, ValueError, KeyError):
        return None
