"""Corruption of observations: words dropped, masked or misspelt, for any environment whose observations are texts.

A probe of how much a policy relies on every word (the text form of Gaussian noise, Kumar et al. 2022, and of black-box
perturbations of shared observations), not a certificate, which would need many samples for each action.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from gxpo.base.errors import ConfigError
from gxpo.parts.protocols import TimeStep

Kind = Literal["drop", "mask", "swap"]
WORD = re.compile(r"\S+")


@dataclass(frozen=True)
class Corruption:
    """Change each word of an observation with probability `rate`.

    kind  "drop": the word is left out;   "mask": its characters become "_";   "swap": two neighbouring characters of it
          change places

    Draws depend on the text alone, so a replayed episode is the same; equal observations are corrupted alike.
    """

    rate: float
    kind: Kind = "drop"

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise ConfigError(f"env.corrupt is the share of words that change, from 0 to 1, not {self.rate}")
        if self.kind not in get_args(Kind):
            raise ConfigError(f"env.corrupt_by: {self.kind!r} is none of {', '.join(get_args(Kind))}")

    def __call__(self, step: TimeStep) -> TimeStep:
        """The step with its observation corrupted; roles, pictures, state, reward and verdict stay."""
        if isinstance(step.observation, str):
            return replace(step, observation=self.text(step.observation))
        return replace(step, observation=tuple(self._message(message) for message in step.observation))

    def text(self, text: str) -> str:
        """A text with its words corrupted.

        >>> Corruption(1.0, "mask").text("go north"), Corruption(1.0).text("go north"), Corruption(0.0).text("go")
        ('__ _____', ' ', 'go')
        """
        digest = hashlib.blake2b(f"{self.kind}\0{text}".encode("utf-8", "replace"), digest_size=8).digest()
        draws = np.random.Generator(np.random.Philox(int.from_bytes(digest, "big")))

        def corrupt(match: re.Match[str]) -> str:
            word, is_changed, place = match[0], draws.random() < self.rate, draws.random()
            if not is_changed:
                return word
            if self.kind == "drop":
                return ""
            if self.kind == "mask":
                return "_" * len(word)
            at = int(place * (len(word) - 1))
            return word[:at] + word[at : at + 2][::-1] + word[at + 2 :]

        return WORD.sub(corrupt, text)

    def _message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        content = message.get("content")
        if isinstance(content, str):
            return {**message, "content": self.text(content)}
        parts = [
            {**part, "text": self.text(part["text"])} if isinstance(part.get("text"), str) else part
            for part in content or ()
        ]
        return {**message, "content": parts}
