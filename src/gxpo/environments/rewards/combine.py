"""Combinations of several judges' scores: mean, median, uniform phantom, minimum, lexicographic, by agreement."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from gxpo.base.errors import ConfigError
from gxpo.base.usercode import described
from gxpo.environments.rewards.functions import load, names_file
from gxpo.environments.rewards.group_level import Failure

Scores = Sequence[Sequence[float]]  # [R, K] of K judges; nan: unread
Combination = Callable[[Scores, Sequence[int]], Sequence[float | Failure]]


def mean(x: Sequence[float]) -> float:
    """Mean of the scores.

    >>> round(mean([0.2, 0.9, 0.95]), 6)
    0.683333
    """
    return sum(x) / len(x)


def uniform_phantom(x: Sequence[float]) -> float:
    """Median of the n scores in [0, 1] and of n - 1 phantoms k / n.

    Strategy-proof: a judge that reports another score than its own can only move the result away from its own. That is
    not little influence: the one at .2 below, reporting 1, moves .666667 to .9.

    >>> round(uniform_phantom([0.2, 0.9, 0.95]), 6), uniform_phantom([1.0, 0.9, 0.95])
    (0.666667, 0.9)
    """
    return statistics.median([*x, *(k / len(x) for k in range(1, len(x)))])


def agreement(x: Sequence[float]) -> list[float]:
    """Agreement of each judge with the others, in [0, 1]: 1 - mean over the others of the distance of their scores; 1
    for a single judge. Of votes it is the share of the others that vote alike. A bias that all share agrees with
    itself.

    >>> agreement([1.0, 1.0, 0.0])
    [0.5, 0.5, 0.0]
    """
    if len(x) == 1:
        return [1.0]
    return [1.0 - sum(abs(a - b) for b in x) / (len(x) - 1) for a in x]


def weighted_by_agreement(x: Sequence[float]) -> float:
    """Mean of the scores, each weighted by its judge's `agreement` with the others; the mean where none agree.

    >>> weighted_by_agreement([1.0, 1.0, 0.0])
    1.0
    """
    weights = agreement(x)
    total = sum(weights)
    return mean(x) if total <= 1e-12 else sum(w * a for w, a in zip(weights, x, strict=True)) / total


def beats(a: Sequence[float], b: Sequence[float], margins: Sequence[float]) -> int:
    """1 where a is better than b at the first factor that differs by more than its margin, -1 where b is, else 0.

    Factors are in the order of their importance; one that is nan on either side differs by nothing. Not transitive
    where margins are above 0.

    >>> rows, margins = [[0.9, 0.2, 5], [0.85, 0.6, 1], [0.2, 0.9, 9]], [0.390512, 0.351188, 4]
    >>> [beats(rows[i], rows[j], margins) for i, j in ((0, 1), (0, 2), (1, 2))]
    [-1, 1, 1]
    """
    for x, y, margin in zip(a, b, margins, strict=True):
        if x > y + margin:
            return 1
        if y > x + margin:
            return -1
    return 0


def lexicographic(scores: Scores, groups: Sequence[int], margin: float) -> list[float]:
    """Share of the others of its group that each attempt beats, a tie counting half; nan for one without scores.

    margin  of a factor, in its standard deviations (n - 1) over all attempts of the step
    """
    known = [r for r, row in enumerate(scores) if not all(map(math.isnan, row))]
    columns = [[x for x in column if not math.isnan(x)] for column in zip(*scores, strict=True)]
    margins = [margin * statistics.stdev(c) if len(c) > 1 else 0.0 for c in columns]
    out = [math.nan] * len(scores)
    for r in known:
        others = [s for s in known if groups[s] == groups[r] and s != r]
        won = [(1 + beats(scores[r], scores[s], margins)) / 2 for s in others]
        out[r] = sum(won) / len(won) if won else math.nan
    return out


EACH: dict[str, Callable[[Sequence[float]], float]] = {  # of one attempt's scores
    "mean": mean,
    "median": statistics.median,
    "uniform_phantom": uniform_phantom,
    "min": min,
    "agreement": weighted_by_agreement,
}


def combination(name: str, margin: float) -> Combination:
    """The function (scores [R, K], group of each row) -> [R] that a name means: one of `EACH`, of the scores that were
    read; "lexicographic" with its `margin`; or `file.py:function`, of a list of them. What a function raises costs that
    one attempt its score."""
    if name == "lexicographic":
        return lambda scores, groups: lexicographic(scores, groups, margin)
    if name not in EACH and not names_file(name):
        raise ConfigError(
            f"scoring.options.judge.combine is {name!r}; it is one of {', '.join((*EACH, 'lexicographic'))}, or "
            "file.py:function"
        )
    function = EACH[name] if name in EACH else load(name)

    def of_each(scores: Scores, groups: Sequence[int]) -> list[float | Failure]:
        return [_called(function, name, [x for x in row if not math.isnan(x)]) for row in scores]

    return of_each


def _called(function: Callable[[Sequence[float]], float], name: str, known: Sequence[float]) -> float | Failure:
    if not known:
        return math.nan
    try:
        value = float(function(known))
    except Exception as error:
        return ("raised", f"combine={name}: {described(error)}")
    return value if math.isfinite(value) else ("nonsense", f"combine={name} gave {value}")
