"""When a sampled action ends: end-of-sequence ids, stop ids, and the token that completes a stop string."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gxpo.errors import ModelError

MARKERS = {"\u2581": " ", "\u0120": " ", "\u010a": "\n"}  # how SentencePiece and byte-level BPE write blanks
REPLACEMENT = "\ufffd"  # what a piece that is not whole UTF-8 decodes to


class Stopping:
    """Says which rows are done. Only tokens that could complete a stop string cost a decode."""

    def __init__(self, ids: Sequence[int], strings: Sequence[str], tokenizer: Any, vocabulary: int) -> None:
        if "" in strings:
            raise ModelError("sampling.stop has an empty string, which would end every action: remove it")
        if strings and tokenizer is None:
            raise ModelError("stop strings need a tokenizer: give the engine one, or use sampling.stop_ids")
        self.ids = torch.tensor(sorted(set(ids)), dtype=torch.int64)
        self.strings, self.tokenizer = tuple(strings), tokenizer
        self.may_complete = torch.tensor([self._may_complete(i) for i in range(vocabulary)]) if strings else None

    def done(self, token: Tensor, history: Tensor) -> Tensor:
        """[n] bool. token [n]: what was just drawn; history [n, k]: the action so far, `token` included."""
        out = torch.isin(token, self.ids)
        if self.may_complete is not None:
            for row in (self.may_complete[token] & ~out).nonzero().squeeze(1).tolist():
                text = self._text(history[row].tolist())
                out[row] = any(s in text for s in self.strings)
        return out

    def _text(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)

    def _may_complete(self, token: int) -> bool:
        """False only if no stop string can end inside this token's text."""
        written = self.tokenizer.convert_ids_to_tokens(token) or ""
        for marker, blank in MARKERS.items():
            written = written.replace(marker, blank)
        pieces = (self._text([token]), written)
        if any(REPLACEMENT in p or p == "" for p in pieces):
            return True
        ends = [(s, s[i:]) for s in self.strings for i in range(len(s))]
        return any(s in p or p.startswith(end) for p in pieces for s, end in ends)
