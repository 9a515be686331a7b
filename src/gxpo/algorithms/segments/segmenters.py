"""Segmenters: cut at turns, fixed lengths, unlikely or uncertain tokens, delimiters, patterns and tags."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Interval, MinLen

from gxpo.algorithms.segments.base import Action, Segmenter
from gxpo.base.errors import ConfigError
from gxpo.parts.registry import part


@part("turns", stage="segment")
@dataclass(frozen=True)
class Turns(Segmenter):
    """One segment for each action (turn)."""

    def begins(self, action: Action) -> list[int]:
        return []


@part("chunks", stage="segment")
@dataclass(frozen=True)
class Chunks(Segmenter):
    """Fixed-length segments of `tokens` tokens; the last may be shorter."""

    tokens: Annotated[int, Ge(1)] = 100

    def begins(self, action: Action) -> list[int]:
        return list(range(self.tokens, len(action.tokens), self.tokens))


@part("surprising", stage="segment")
def surprising(
    logprob: Sequence[float],
    *,
    threshold: Annotated[float, Interval(gt=0, le=1)] = 0.9,
    interval: Annotated[int, Ge(1)] = 5,
) -> list[int]:
    """Cut at low-probability tokens (SPO): every `interval`-th token (from the first) with probability < `threshold`.

    By the rollout log-probs; a token without one does not count. Cuts are the state just before such a token.
    Source: SPO-chain, arXiv 2505.23564, and its code (0.9, every 5th).
    """
    bound = math.log(threshold)
    return [i for i, p in enumerate(logprob) if p < bound][::interval]


@part("entropy_segments", stage="segment")
def entropy_segments(
    entropy: Sequence[float],
    *,
    segments: Annotated[int, Ge(1)] | None = None,
    candidates: Annotated[int, Ge(1)] = 4,
    quantile: Annotated[float, Interval(ge=0, lt=1)] = 0.8,
) -> list[int]:
    """Cut at high-entropy tokens (GRPO-VPS): segments with equally many candidates each.

    A candidate is a token whose entropy is at least the `quantile` of its action's (of n tokens the one that
    ceil(quantile * n) are below, from the least); a segment begins at its first candidate. Entropies are of the policy
    at the start of the step.

    segments    how many at most; None: one for every `candidates`
    candidates  in a segment, on average and at least

    Source: GRPO-VPS, arXiv 2604.20659, eqs. 1 and 2 and section 4.3 (4 a segment); which percentile of its entropies
    an answer is cut at is not stated, so the quantile is ours.
    """
    if not entropy:
        return []
    # The quantile by rank, without interpolation, so that ties fall on one side.
    ordered = sorted(entropy)
    bound = ordered[min(math.ceil(quantile * len(ordered)), len(ordered) - 1)]
    high = [i for i, h in enumerate(entropy) if h >= bound]
    # As many segments as the candidates fill.
    return equal_shares(high, segments or max(1, len(high) // candidates))


def equal_shares(candidates: list[int], segments: int) -> list[int]:
    """Divide candidates evenly among segments, in order; the first candidate of each segment after the first (the
    earlier segments have one more where the division leaves a rest).

    >>> equal_shares([2, 5, 7, 11, 13, 17, 20, 22], 4)
    [7, 13, 20]
    """
    n = len(candidates)
    ends = [sum(n // segments + (i < n % segments) for i in range(k)) for k in range(1, segments)]
    return [candidates[end] for end in ends if 0 < end < n]


@part("delimiter", stage="segment")
@dataclass(frozen=True)
class Delimiter(Segmenter):
    """Segments end at a delimiter: with the token that completes `text`, e.g. an empty line between reasoning steps."""

    text: Annotated[str, MinLen(1)] = "\n\n"

    def begins(self, action: Action) -> list[int]:
        boundaries, offset = [], action.text.find(self.text)
        while offset >= 0:
            offset += len(self.text)
            boundaries.append(action.first_from(offset))
            offset = action.text.find(self.text, offset)
        # A delimiter at the end of the text begins nothing.
        return [i for i in boundaries if i < len(action.tokens)]


@part("pattern", stage="segment")
@dataclass(frozen=True)
class Pattern(Segmenter):
    """Segments begin at regular expression matches: with the token in which a match of `regex` begins.

    min_offset, min_distance  characters before the first match that counts, and between two that do (VSRM: 1000 and
                              400, with `regex` for sentences that begin with "wait", "but", "however"...)
    """

    regex: str = r"(?i)(?<=[.!?\n])\s{0,32}(wait|but|however|hmm|so)\b"
    min_offset: Annotated[int, Ge(0)] = 0
    min_distance: Annotated[int, Ge(0)] = 0

    def __post_init__(self) -> None:
        _compiled("regex", self.regex)

    def begins(self, action: Action) -> list[int]:
        entries, last_offset = [], None
        for match in re.finditer(self.regex, action.text):
            offset = match.start()
            # Matches too early or too near to the last one that counted are skipped (VSRM).
            if offset < self.min_offset or (last_offset is not None and offset - last_offset < self.min_distance):
                continue
            last_offset = offset
            entries += list(action.holding(offset, offset + 1))[:1]
        return entries


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
        # Backwards, so that an earlier pattern overwrites a later one where matches overlap.
        for number, pattern in reversed(list(enumerate(self.patterns, 1))):
            for match in re.finditer(pattern, action.text, re.DOTALL):
                for i in action.holding(*match.span(1 if match.re.groups and match.group(1) is not None else 0)):
                    out[i] = number
        return out

    def begins(self, action: Action) -> list[int]:
        token_labels = self.labels(action)
        return [i for i in range(1, len(token_labels)) if token_labels[i] != token_labels[i - 1]]


def _compiled(name: str, pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ConfigError(f"segment.{name}={pattern!r} is no regular expression: {error}") from None
