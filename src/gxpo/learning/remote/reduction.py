"""By what a training server divides its loss: known ways, and which of them explains measured gradient norms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

TOLERANCE = 0.02  # relative, of a measured norm


@dataclass(frozen=True)
class Scaled:
    """A row for a server: tokens [n], and slopes [n - 1] of the log-probs of all but the first."""

    tokens: tuple[int, ...]
    slopes: list[float]


Pull = Sequence[Scaled]  # rows of one call


def _tokens(pulls: Sequence[Pull]) -> int:
    return sum(len(s.slopes) for pull in pulls for s in pull)


# name -> divisor of a row's terms, from the row, its call, and all calls up to the optimiser step
WAYS: Mapping[str, Callable[[Scaled, Pull, Sequence[Pull]], float]] = {
    "sum": lambda row, call, step: 1,
    "mean over a call's rows": lambda row, call, step: len(call),
    "mean over a step's rows": lambda row, call, step: sum(map(len, step)),
    "mean over a row's tokens": lambda row, call, step: len(row.slopes),
    "mean over a row's tokens and a call's rows": lambda row, call, step: len(row.slopes) * len(call),
    "mean over a row's tokens and a step's rows": lambda row, call, step: len(row.slopes) * sum(map(len, step)),
    "mean over a call's tokens": lambda row, call, step: _tokens([call]),
    "mean over a step's tokens": lambda row, call, step: _tokens(step),
}


@dataclass(frozen=True)
class Reduction:
    """One of `WAYS`, by name."""

    name: str

    def divisor(self, row: Scaled, call: Pull, step: Sequence[Pull]) -> float:
        """What a row's terms are divided by."""
        return float(WAYS[self.name](row, call, step))


def experiments(tokens: Sequence[int]) -> list[list[list[Scaled]]]:
    """Calls between two optimiser steps, of several experiments in which the second token's slopes sum to 1 or 2.

    Under a causal model all rows below have the same gradient of the token's log-prob; the norm differs by divisors.

    tokens  at least 3
    """

    def row(n: int, slope: float) -> Scaled:
        return Scaled(tuple(tokens[:n]), [slope] + [0.0] * (n - 2))

    one, long, idle = row(2, 1.0), row(len(tokens), 1.0), row(len(tokens), 0.0)
    return [[[one]], [[one, one]], [[one], [one]], [[long]], [[one, idle]], [[one], [idle]]]


def found_in(norms: Sequence[float], given: Sequence[Sequence[Pull]]) -> Reduction | None:
    """The way that explains the norms of `given` experiments, relative to the first; None: none of them does."""
    for name in WAYS:
        way = Reduction(name)
        expected = [abs(sum(sum(s.slopes) / way.divisor(s, c, step) for c in step for s in c)) for step in given]
        pairs = zip(norms, expected, strict=True)
        if all(abs(n / norms[0] - e / expected[0]) <= TOLERANCE * (e / expected[0]) for n, e in pairs):
            return way
    return None
