"""A metric that any text has some of, whatever options another metric's method has left."""

from __future__ import annotations

from typing import Any

from gxpo.environments.rewards.metrics.text import chrf


def letters(
    answer: str,
    reference: Any,
    *,
    typed: Any = None,
    max_distance: Any = None,
    schema: Any = None,
    contrast: Any = None,
    structure_only: Any = None,
) -> float:
    """F-score of single characters; no option matters."""
    return chrf(answer, reference, order=1)
