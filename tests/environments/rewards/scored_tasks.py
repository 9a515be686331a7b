"""Task sources and forests for the tests of rewards: one completion a task, the reward decides by its text."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Task


class Source:
    """Tasks without a generator; only what `RewardSet.make` looks at."""

    def __init__(
        self, scorer: Callable[..., Any] | None = None, default: str | None = "correct", trusted: bool = False
    ) -> None:
        self.scorer = scorer
        self.reward_default = default
        self.scorer_trusted = trusted

    def draw(self, n: int, step: int) -> list[Task]:
        return self.held_out(n)

    def held_out(self, n: int) -> list[Task]:
        return [Task(f"held/{i}", "?", "0") for i in range(n)]

    def observe(self, forest: Forest) -> None:
        pass

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def forest_of(texts: list[str], finish: str = "stop") -> Forest:
    """One trajectory a text; its action tokens are the text's bytes."""
    prompts = [[1]] * len(texts)
    return Forest.from_completions(prompts, [[list(t.encode())] for t in texts], finish=[finish] * len(texts))


def tasks_of(texts: list[str], answer: Any = "4") -> list[Task]:
    return [Task(f"t{i}", "2+2=", answer, {"index": i}) for i in range(len(texts))]
