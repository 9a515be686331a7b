"""Segment by tokens: whole turns, fixed lengths, low-probability tokens (SPO), high-entropy tokens (GRPO-VPS)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Interval

from gxpo.algorithms.segments.base import Action, Segmenter
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
    ordered = sorted(entropy)
    bound = ordered[min(math.ceil(quantile * len(ordered)), len(ordered) - 1)]
    high = [i for i, h in enumerate(entropy) if h >= bound]
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
