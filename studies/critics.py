"""A reward of sums for studies/critics.yaml: a text without a 7."""

from __future__ import annotations


def without_seven(completion: str) -> float:
    """1 for a text that has an answer and no 7 in it: what an attempt is to avoid, wherever it stands."""
    return float("#" in completion and "7" not in completion)
