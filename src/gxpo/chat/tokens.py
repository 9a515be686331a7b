"""A tokenizer of transformers, used piece by piece: encoding and decoding as if in the middle of a text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from gxpo.errors import ModelError


class Tokens:
    """Ids of a piece of text that follows other tokens, and text of ids that do.

    Some tokenizers put a space before the first word they are given, or drop it when decoding. Each piece is therefore
    encoded and decoded behind a special token (the anchor), which is taken off again.

    markers  added tokens of the vocabulary by text, special or not: no merge crosses them
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder
        self.markers: dict[str, int] = {str(t.content): int(i) for i, t in added.items()}
        self.eos: int | None = tokenizer.eos_token_id
        if self.eos is not None:
            self.markers.setdefault(str(tokenizer.eos_token), self.eos)
        special = [t.content for t in added.values() if t.special] + list(tokenizer.all_special_tokens)
        self._special = _any_of(special)
        self.anchor = self._anchor(added)

    def _anchor(self, added: Any) -> tuple[int, str] | None:
        """A special token that encodes to itself and swallows no space beside it."""
        usable = [int(i) for i, t in added.items() if t.special and not t.rstrip and not t.lstrip and not t.single_word]
        for i in ([self.eos] if self.eos in usable else []) + sorted(usable):
            text = added[i].content
            if self._ids(text + "a")[:1] == [i]:
                return i, text
        return None

    def _ids(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False, verbose=False).input_ids

    def text_of(self, token: int) -> str:
        """The text of one token that stands for itself (a marker or eos)."""
        return self.tokenizer.convert_ids_to_tokens(token)

    def encode(self, text: str) -> tuple[int, ...]:
        """Ids of a text that nothing precedes; no special token is added."""
        return tuple(self._ids(text))

    def encode_after(self, text: str, marker: int | None = None) -> tuple[int, ...]:
        """Ids of a text that follows `marker` (None: any other token)."""
        if not text:
            return ()
        behind = self.anchor if marker is None else (marker, self.text_of(marker))
        if behind is not None:
            ids = self._ids(behind[1] + text)
            if ids and ids[0] == behind[0]:
                return tuple(ids[1:])
        return tuple(self._ids(text))

    def decode_after(self, ids: Sequence[int]) -> str:
        """Text of ids that follow another token; special tokens are written out."""
        if not ids:
            return ""
        if self.anchor is not None:
            text = self._text([self.anchor[0], *ids])
            if text.startswith(self.anchor[1]):
                return text[len(self.anchor[1]) :]
        return self._text(list(ids))

    def _text(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def split_stop(self, ids: Sequence[int], stop_ids: Sequence[int]) -> tuple[str, int | None]:
        """Text of an action without the token that ended it, and that token (None: it was cut)."""
        if ids and ids[-1] in stop_ids:
            return self.decode_after(ids[:-1]), ids[-1]
        return self.decode_after(ids), None

    def without_special(self, text: str) -> str:
        return self._special.sub("", text) if self._special else text

    def marker_at_start(self, text: str) -> str | None:
        """The marker that `text` begins with, white space apart."""
        text = text.lstrip()
        found = [m for m in self.markers if text.startswith(m)]
        return max(found, key=len) if found else None

    def one_id(self, text: str) -> int:
        """The id of a marker; `ModelError` where the vocabulary has no such token."""
        if text not in self.markers:
            raise ModelError(f"{text!r} is not one token of this tokenizer: a stop token has to be")
        return self.markers[text]


def _any_of(texts: Sequence[str]) -> re.Pattern[str] | None:
    known = sorted({t for t in texts if t}, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, known))) if known else None
