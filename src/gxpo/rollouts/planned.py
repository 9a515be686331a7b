"""A group of plans and of several executions of each, all trained together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gxpo.errors import ConfigError
from gxpo.forest import Forest
from gxpo.protocols import Session, Task
from gxpo.rollouts.plan_execute import PlanExecute, grow_together


@dataclass(frozen=True)
class Planned:
    """`plans` plans of each task and `executions` of every one: one group "s{step}/{task}" of plans * executions.

    A trajectory is a plan and one of its executions, both sampled and both trained; the executions of a plan share its
    tokens, stored once, and info["plan"] says which it is. Everything else is as in `PlanExecute`: `plan_tokens`,
    `delimiter`, `plan_prompt`, `execute_prompt`, `done`, and how held-out tasks are attempted.

    With one execution a plan this is `independent` attempts that are cut in two.
    Source: PTA-GRPO, arXiv 2510.01833.
    """

    plans: int = 4
    executions: int = 2
    plan_tokens: int = 8
    delimiter: str = ","
    plan_prompt: str = ""
    execute_prompt: str = ""
    done: str = "<sub_done>"

    provides = ("states", "forks")

    def __post_init__(self) -> None:
        for name in ("plans", "executions", "plan_tokens"):
            if getattr(self, name) < 1:
                raise ConfigError(f"rollout.{name} must be at least 1, not {getattr(self, name)!r}")
        _ = self.part  # says what is wrong with the rest

    @property
    def group_size(self) -> int:
        """Attempts a task."""
        return self.plans * self.executions

    @property
    def part(self) -> PlanExecute:
        """Who plans and executes."""
        return PlanExecute(
            plan_tokens=self.plan_tokens,
            delimiter=self.delimiter,
            plan_prompt=self.plan_prompt,
            execute_prompt=self.execute_prompt,
            done=self.done,
        )

    def evaluation(self, samples: int) -> object:
        """How held-out tasks are attempted: one plan and one execution of it."""
        return self.part.evaluation(samples)

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        return grow_together(self.part, tasks, self.plans, self.executions, session)
