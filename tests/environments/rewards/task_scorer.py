"""A task's own scorer, in a module that a worker imports without torch."""

from __future__ import annotations

from gxpo.parts.protocols import Task


def verdict(text: str, task: Task) -> dict[str, float]:
    return {"correct": float(text == task.answer), "format": float(text.isdigit())}
