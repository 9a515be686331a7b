"""Segment by text: delimiters, regular expressions, tags."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, MinLen

from gxpo.algorithms.segments.base import Action, Segmenter
from gxpo.base.errors import ConfigError
from gxpo.parts.registry import part


@part("delimiter", stage="segment")
@dataclass(frozen=True)
class Delimiter(Segmenter):
    """Segments end at a delimiter: with the token that completes `text`, e.g. an empty line between reasoning steps."""

    text: Annotated[str, MinLen(1)] = "\n\n"

    def begins(self, action: Action) -> list[int]:
        found, at = [], action.text.find(self.text)
        while at >= 0:
            at += len(self.text)
            found.append(action.first_from(at))
            at = action.text.find(self.text, at)
        return [i for i in found if i < len(action.tokens)]


@part("pattern", stage="segment")
@dataclass(frozen=True)
class Pattern(Segmenter):
    """Segments begin at regular expression matches: with the token in which a match of `regex` begins.

    first, apart  characters before the first match that counts, and between two that do (VSRM: 1000 and 400, with
                  `regex` for sentences that begin with "wait", "but", "however"...)
    """

    regex: str = r"(?i)(?<=[.!?\n])\s{0,32}(wait|but|however|hmm|so)\b"
    first: Annotated[int, Ge(0)] = 0
    apart: Annotated[int, Ge(0)] = 0

    def __post_init__(self) -> None:
        _compiled("regex", self.regex)

    def begins(self, action: Action) -> list[int]:
        out, last = [], None
        for match in re.finditer(self.regex, action.text):
            at = match.start()
            if at < self.first or (last is not None and at - last < self.apart):
                continue
            last = at
            out += list(action.holding(at, at + 1))[:1]
        return out


@part("spans", stage="segment")
@dataclass(frozen=True)
class Spans(Segmenter):
    """Labelled spans: one segment for every match of `patterns`, and one for the text between two matches. Tokens of a
    match of the k-th pattern (from 1) have label k, others 0. Of a pattern with a group, the text of the group counts.
    Where matches overlap, the earlier pattern has the tokens."""

    patterns: Annotated[Sequence[str], MinLen(1)] = ()

    def __post_init__(self) -> None:
        for pattern in self.patterns:
            _compiled("patterns", pattern)

    def labels(self, action: Action) -> list[int]:
        out = [0] * len(action.tokens)
        for number, pattern in reversed(list(enumerate(self.patterns, 1))):
            for match in re.finditer(pattern, action.text, re.DOTALL):
                for i in action.holding(*match.span(1 if match.re.groups and match.group(1) is not None else 0)):
                    out[i] = number
        return out

    def begins(self, action: Action) -> list[int]:
        marks = self.labels(action)
        return [i for i in range(1, len(marks)) if marks[i] != marks[i - 1]]


def _compiled(name: str, pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"segment.{name}={pattern!r} is no regular expression: {error}") from None
