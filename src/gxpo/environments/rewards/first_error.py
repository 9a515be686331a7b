"""Correct-prefix reward: share of an answer before its first error, by an LLM judge."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.base.errors import one_of
from gxpo.base.judges import Judge
from gxpo.base.verdicts import care, ending, fenced, marker, number, numbered
from gxpo.environments.rewards.group_level import Failure
from gxpo.environments.rewards.judged import _Asking, prompt_of, unasked
from gxpo.forest.forest import Forest

if TYPE_CHECKING:
    from gxpo.parts.protocols import Task


@dataclass(eq=False)
class FirstError(_Asking):
    """{"correct_prefix": [R]}: the share of an answer's steps before the first that a judge finds wrong; 1 without one.

    steps   a regular expression for what separates steps; empty ones do not count
    only    "correct": about attempts that the verifier calls right; wrong ones are not judged and have share 0, those
            without a verdict are unscored

    The judge is shown the task, its answer where it has one, and the numbered steps. An answer of the judge's without a
    number, or with one that is no step, leaves the attempt without a share ("nonsense" in the counts). An attempt
    without steps has share 0 and is not judged.
    """

    judge: Judge
    steps: str = r"\n+"
    workers: int = 8
    only: str = "all"
    _failures: list[Failure] = field(default_factory=list, init=False, repr=False)

    name = "judge"
    gives = ("correct_prefix",)

    def __post_init__(self) -> None:
        one_of("judge: only", self.only, ["all", "correct"])

    def steps_of(self, text: str) -> list[str]:
        """Steps of an answer, as numbered for the judge."""
        return [step.strip() for step in re.split(self.steps, text) if step.strip()]

    def question(self, steps: Sequence[str], task: Task) -> list[dict[str, str]]:
        """Prompt to the judge."""
        known = "" if task.answer is None else f"\n\n# Right answer\n{task.answer}"
        mark = marker(*steps)
        instructions = (
            "Go through the numbered steps of this solution and find the first that is wrong. "
            f"{care('The steps are', mark)} End with a last line `First error: K`, K the number of that step, or 0 if "
            "none is wrong, and nothing after it."
        )
        shown = fenced("\n".join(numbered(steps)), mark)
        prompt = prompt_of(task, self.judge)
        return [{"role": "user", "content": f"{instructions}\n\n# Task\n{prompt}{known}\n\n# Steps\n{shown}"}]

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Tensor]:
        steps = [self.steps_of(text) for text in texts]
        asked = [r for r in self.rows_asked(forest) if steps[r]]
        value = unasked(forest) if self.reads_success else [0.0] * len(texts)
        for n in sorted({len(steps[r]) for r in asked}):
            rows = [r for r in asked if len(steps[r]) == n]
            said = self._answers([self.question(steps[r], tasks[r]) for r in rows], _share_of(n))
            self._failures += [x for x in said if isinstance(x, tuple)]
            for r, x in zip(rows, said, strict=True):
                value[r] = math.nan if isinstance(x, tuple) else x
        return {"correct_prefix": torch.tensor(value, dtype=torch.float64)}


def _share_of(n: int) -> Callable[[str], float]:
    """Parse a judge's answer on `n` steps: the share of them before the first error; ValueError where it is unclear."""

    def read(answer: str) -> float:
        step = number(ending(answer, "first_error"))
        if step not in range(n + 1):
            raise ValueError(f"no step of {n} in {answer[-80:]!r}")
        return (step - 1) / n if step else 1.0

    return read
