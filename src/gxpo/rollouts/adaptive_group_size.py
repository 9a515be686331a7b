"""Adaptive group sizes: split a fixed rollout budget across prompts by expected learning signal (V0)."""

from __future__ import annotations

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from annotated_types import Gt, Interval

from gxpo.errors import ConfigError
from gxpo.forest import Forest
from gxpo.registry import part
from gxpo.rollouts.base import Rollout
from gxpo.rollouts.build import Attempts, Draw
from gxpo.rollouts.episodes import Play
from gxpo.task_memory import TaskMemory


def expected_contrast(n: int, rate: float) -> float:
    """U = n (1 - rate) (1 - (1 - rate)^(n - 1)): the expected number of failures that stand beside a success.

    n attempts, each right with probability `rate`. With GRPO's advantages (population std) the whole of a group's
    |A| times half of a success's A is its number of failures. Source: V0 (arXiv 2602.03584), eqs. 9-11.

    >>> [round(expected_contrast(n, 0.5), 5) for n in (2, 4, 8)]
    [0.5, 1.75, 3.96875]
    """
    wrong = 1.0 - rate
    return n * wrong * (1.0 - wrong ** (n - 1))


def allot(rates: Sequence[float], budget: int, least: int = 2, most: int = 128) -> list[int]:
    """Attempts for each task, `least` to `most`, `budget` in all: each further one where U grows most by it.

    Of equal gains that of the task with fewer attempts is taken, then the earlier task's. Greedy, as in the paper: U is
    convex in n for small rates, so a hard task may stay at `least` although many more attempts would have paid. Fewer
    than `budget` where all have `most`; ValueError where `least` for each is more.

    >>> allot([0.5, 0.1, 1.0], 9)
    [5, 2, 2]
    """
    if least * len(rates) > budget:
        raise ValueError(f"{len(rates)} tasks of at least {least} attempts need more than {budget}")
    sizes = [least] * len(rates)

    def gain(i: int) -> float:
        return expected_contrast(sizes[i] + 1, rates[i]) - expected_contrast(sizes[i], rates[i])

    heap = [(-gain(i), least, i) for i in range(len(rates)) if least < most]
    heapq.heapify(heap)
    for _ in range(budget - least * len(rates)):
        if not heap:
            break
        _, _, i = heapq.heappop(heap)
        sizes[i] += 1
        if sizes[i] < most:
            heapq.heappush(heap, (-gain(i), sizes[i], i))
    return sizes


@part("adaptive_group_size", stage="rollout")
@dataclass(frozen=True)
class AdaptiveGroupSize(Rollout):
    """`group_size` attempts a task on average, allotted by `allot` to the tasks' predicted rates of success.

    least, most  attempts of one task
    discount     what earlier verdicts of a task count for at each further visit, since the policy has moved
    prior        how many verdicts the mean rate of all tasks (one half at first) is worth in a task's prediction

    The prediction is (s + prior m) / (n + prior), s successes in n verdicts of the steps before, m their mean over all
    tasks; every row's info["predicted"] holds it. `success` decides, never the shaped outcome.
    """

    group_size: int = 8
    least: int = 2
    most: int = 128
    discount: Annotated[float, Interval(ge=0, le=1)] = 0.8
    prior: Annotated[float, Gt(0)] = 1.0
    team: str = ""
    memory: TaskMemory = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "memory", TaskMemory(self.discount))
        if not 1 <= self.least <= self.group_size <= self.most:
            raise ConfigError(
                f"rollout.least={self.least} <= rollout.group_size={self.group_size} <= rollout.most={self.most} must "
                "hold, from 1 on: the group size is the mean of what is allotted"
            )

    def predict(self, tasks: Sequence[str]) -> list[float]:
        """The predicted rate of success of each task."""
        return self.memory.predict(tasks, self.prior, unseen=0.5)

    def first(self, draws: Sequence[Draw], play: Play) -> list[Attempts]:
        rates = self.predict([draw.task.id for draw in draws])
        sizes = allot(rates, self.group_size * len(draws), self.least, self.most)
        each = zip(draws, sizes, rates, strict=True)
        return [draw.attempts(size, info={"predicted": rate}) for draw, size, rate in each]

    # ------------------------------------------------------------ memory
    def observe(self, forest: Forest) -> None:
        """Counts the verdicts of what was sampled; without a verdict a rollout says nothing."""
        verdicts: dict[str, list[float]] = {}
        for task, origin, success in zip(forest.task, forest.origin, forest.success.tolist(), strict=True):
            if origin == "policy" and math.isfinite(success):
                verdicts.setdefault(task, []).append(float(success >= 1))
        self.memory.add(verdicts)

    def state_dict(self) -> dict[str, Any]:
        return self.memory.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.memory.load_state_dict(state, "rollout part")
