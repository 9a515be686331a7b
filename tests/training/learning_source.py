"""A task source whose tasks tell how many steps it has seen trained."""

from __future__ import annotations

from typing import Any

from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Task


class Counting:
    """Task "SEEN/i": the i-th of a draw, after so many observed steps."""

    name = "counting"

    def __init__(self, seed: int = 0) -> None:
        self.seen = 0

    def draw(self, n: int, step: int) -> list[Task]:
        return [Task(f"{self.seen}/{i}", f"{self.seen}+{i}=") for i in range(n)]

    def held_out(self, n: int) -> list[Task]:
        return [Task("held", "1+1=")][:n]

    def observe(self, forest: Forest) -> None:
        self.seen += 1

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]
