"""Segments by tokens: whole actions, stretches of a length, and cuts where the policy was unsure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Interval

from gxpo.segments.base import Action, Segmenter


@dataclass(frozen=True)
class Turns(Segmenter):
    """An action is one segment."""

    def begins(self, action: Action) -> list[int]:
        return []


@dataclass(frozen=True)
class Chunks(Segmenter):
    """A segment is so many tokens; the last may be shorter."""

    tokens: Annotated[int, Ge(1)] = 100

    def begins(self, action: Action) -> list[int]:
        return list(range(self.tokens, len(action.tokens), self.tokens))


@dataclass(frozen=True)
class Surprising(Segmenter):
    """A segment begins at every `interval`-th token (from the first) whose probability was below `threshold`.

    By the log-probs of who sampled; a token without one does not count. Cuts are the state just before such a token.
    Source: SPO-chain, arXiv 2505.23564, and its code (0.9, every 5th).
    """

    threshold: Annotated[float, Interval(gt=0, le=1)] = 0.9
    interval: Annotated[int, Ge(1)] = 5

    def begins(self, action: Action) -> list[int]:
        bound = math.log(self.threshold)
        return [i for i, p in enumerate(action.logprob) if p < bound][:: self.interval]


@dataclass(frozen=True)
class Uncertain(Segmenter):
    """At most `segments` segments with equally many candidates for a cut in each, as far as they go around.

    A candidate is a token whose entropy is at least the `quantile` of its action's (of n tokens the one that
    ceil(quantile * n) are below, from the least); a segment begins at its first candidate. Entropies are of the policy
    at the start of the step.

    Source: GRPO-VPS, arXiv 2604.20659, from a digest: 4 segments; its "adaptive threshold" is not stated, so the
    quantile is ours.
    """

    segments: Annotated[int, Ge(1)] = 4
    quantile: Annotated[float, Interval(ge=0, lt=1)] = 0.8

    reads_entropy = True

    def begins(self, action: Action) -> list[int]:
        assert action.entropy is not None
        if not action.tokens:
            return []
        ordered = sorted(action.entropy)
        bound = ordered[min(math.ceil(self.quantile * len(ordered)), len(ordered) - 1)]
        return equal_shares([i for i, h in enumerate(action.entropy) if h >= bound], self.segments)


def equal_shares(candidates: list[int], segments: int) -> list[int]:
    """The first candidate of each further segment when the candidates are dealt out in order, equally many to each
    (the earlier segments one more where they don't go around).

    >>> equal_shares([2, 5, 7, 11, 13, 17, 20, 22], 4)
    [7, 13, 20]
    """
    n = len(candidates)
    ends = [sum(n // segments + (i < n % segments) for i in range(k)) for k in range(1, segments)]
    return [candidates[end] for end in ends if 0 < end < n]
