"""The first error of an attempt: by a judge's scores of its steps (SCOPE), or by continuations from each (GLoRe)."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from gxpo.base.usercode import described


def first_below(scores: Sequence[float | None], threshold: float) -> int | None:
    """Return the first step (from 0) whose score is below the threshold; None if there is none. Unknown ones are not.

    >>> first_below([0.9, 0.8, 0.3, 0.7], 0.5)
    2
    """
    return next((i for i, x in enumerate(scores) if x is not None and x < threshold), None)


def first_hopeless(is_reachable: Sequence[bool]) -> int:
    """Return the first step (from 0) after which no continuation was right, of an attempt that failed.

    is_reachable  of each step but the last: some continuation of the steps up to it was right. One step from which the
                  answer was reached shows that no step before it was an error

    >>> first_hopeless([True, False, True, False]), first_hopeless([])
    (3, 0)
    """
    return max((i + 1 for i, x in enumerate(is_reachable) if x), default=0)


def call_each(function: Callable[..., Any], key: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
    """Call a user's function for each attempt; None where it raises, with one warning that counts these."""
    results, failures = [], []
    for each in arguments:
        try:
            results.append(function(*each))
        except (Exception, SystemExit) as error:
            results.append(None)
            failures.append(described(error))
    if failures:
        warnings.warn(
            f"{key} failed for {len(failures)} of {len(results)} attempts, which stay as they are; the first: "
            f"{failures[0]}",
            stacklevel=2,
        )
    return results


def step_scores(answer: Any, n_steps: int) -> list[float | None]:
    """Validate a step judge's answer: a number or None for each step; [] if it is anything else.

    >>> step_scores([1, None, 0.5], 3), step_scores("good", 3)
    ([1.0, None, 0.5], [])
    """
    if not isinstance(answer, list | tuple) or len(answer) != n_steps:
        return []
    numbers = [x for x in answer if x is not None]
    if any(isinstance(x, bool) or not isinstance(x, int | float) or math.isnan(x) for x in numbers):
        return []
    return [None if x is None else float(x) for x in answer]
