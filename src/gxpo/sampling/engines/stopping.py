"""Stop conditions of decoding: token ids, and strings that only some tokens can complete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from gxpo.base.errors import ModelError

MARKERS = {"\u2581": " ", "\u0120": " ", "\u010a": "\n"}  # SentencePiece's and byte-level BPE's signs for blanks
REPLACEMENT = "\ufffd"  # decoded text of a piece that is not whole UTF-8


_TOKEN_TEXTS: WeakKeyDictionary[Any, dict[tuple[int, int], list[set[str]]]] = WeakKeyDictionary()


def token_texts(tokenizer: Any, vocabulary: int) -> list[set[str]]:
    """Texts of each token: as decoded, and as written in the vocabulary. Cached per tokenizer."""
    texts_by_size, key = _TOKEN_TEXTS.setdefault(tokenizer, {}), (vocabulary, len(tokenizer))
    if key not in texts_by_size:
        texts = []
        for token in range(vocabulary):
            vocabulary_text = tokenizer.convert_ids_to_tokens(token) or ""
            for marker, blank in MARKERS.items():
                vocabulary_text = vocabulary_text.replace(marker, blank)
            decoded = tokenizer.decode([token], skip_special_tokens=False, clean_up_tokenization_spaces=False)
            texts.append({decoded, vocabulary_text})
        texts_by_size[key] = texts
    return texts_by_size[key]


class Stopping:
    """Stop conditions by token ids and by strings; only tokens that could complete a stop string are decoded."""

    def __init__(self, ids: Sequence[int], strings: Sequence[str], tokenizer: Any, vocabulary: int) -> None:
        if "" in strings:
            raise ModelError("sampling.stop has an empty string, which would end every action: remove it")
        if strings and tokenizer is None:
            raise ModelError("stop strings need a tokenizer: give the engine one, or use sampling.stop_ids")
        self.ids = torch.tensor(sorted(set(ids)), dtype=torch.int64)
        self.strings, self.tokenizer = tuple(strings), tokenizer
        self.may_complete = self._completing_tokens(vocabulary) if strings else None

    @property
    def is_never(self) -> bool:
        """True if nothing ends a sample but its length."""
        return not self.strings and not self.ids.numel()

    def is_done(self, token: Tensor, history: Tensor) -> Tensor:
        """Finished rows [n] bool. token [n]: the newest; history [n, k]: the action so far, `token` included."""
        if self.may_complete is None and self.ids.numel() == 1:
            return token == self.ids
        is_done = (token[:, None] == self.ids).any(1)
        if self.may_complete is not None:
            for row in (self.may_complete[token] & ~is_done).nonzero().squeeze(1).tolist():
                text = self._text(history[row].tolist())
                is_done[row] = any(s in text for s in self.strings)
        return is_done

    def _text(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _completing_tokens(self, vocabulary: int) -> Tensor:
        """Flags [vocabulary], False only for tokens within whose text no stop string can end."""
        suffixes = frozenset(s[i:] for s in self.strings for i in range(len(s)))
        first_characters = frozenset(end[0] for end in suffixes)
        shortest, longest = min(map(len, self.strings)), max(map(len, self.strings))

        def may_end_stop_string(text: str) -> bool:
            # Half a character decodes to the replacement sign, and the next token may complete it to anything.
            if text == "" or REPLACEMENT in text:
                return True
            if len(text) >= shortest and any(s in text for s in self.strings):
                return True
            return text[0] in first_characters and any(
                text[:n] in suffixes for n in range(1, min(len(text), longest) + 1)
            )

        return torch.tensor([any(map(may_end_stop_string, texts)) for texts in token_texts(self.tokenizer, vocabulary)])
