"""Rewards of sums for studies/critics.yaml: a text without a 7, and sums and differences as two kinds of tasks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


def without_seven(completion: str) -> float:
    """1 for a text that has an answer and no 7 in it: what an attempt is to avoid, wherever it stands."""
    return float("#" in completion and "7" not in completion)


def by_kind(completion: str, answer: str, info: Mapping[str, Any]) -> dict[str, float]:
    """The verdict, once as "correct" and once as the component of the task's kind."""
    stated = re.findall(r"#(-?\d+)", completion)
    right = float(bool(stated) and stated[-1] == str(answer))
    return {"correct": right, "sum" if info["operation"] == "+" else "difference": right}
