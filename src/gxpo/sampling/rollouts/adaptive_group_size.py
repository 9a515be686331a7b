"""Adaptive group sizes: split a fixed rollout budget across prompts by expected learning signal (V0, Knapsack RL)."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Gt, Interval

from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.parts import functions
from gxpo.parts.functions import signature
from gxpo.parts.registry import part
from gxpo.parts.task_memory import TaskMemory
from gxpo.sampling.rollouts import group_values
from gxpo.sampling.rollouts.base import Rollout
from gxpo.sampling.rollouts.build import Attempts, Draw
from gxpo.sampling.rollouts.episodes import Play


# ---------------------------------------------------------------- budget with fallback
# Rollout budget of Knapsack RL as released: what mixed groups need first, the rest to tasks that were never solved.
def needed(rate: float, most: int, confidence: float = 0.9) -> int:
    """Attempts after which a right and a wrong one have both come with about this probability, `most` at most: whole
    ones of ln(1 - confidence) / ln max(p, 1 - p).

    >>> needed(0.5, 128), needed(0.9, 128), needed(0.99, 128)
    (3, 21, 128)
    """
    return int(min(most, math.log(1 - confidence) / math.log(max(rate, 1 - rate))))


def shared_out(amount: int, among: Sequence[int], sizes: list[int]) -> None:
    """Add `amount` attempts to the sizes of these tasks, as evenly as can be, one more to the earlier ones."""
    each, rest = divmod(amount, len(among))
    for place, i in enumerate(among):
        sizes[i] += each + (place < rest)


def allot_with_fallback(
    rates: Sequence[float],
    budget: int,
    usual: int,
    least: int = 2,
    most: int = 128,
    value: Callable[[int, float], float] = group_values.mixed_gain,
) -> list[int]:
    """Attempts for each task, `budget` in all.

    rates  success rates; nan: not known yet, and the task has `usual` attempts

    Every other task has `least`. Of what is left, tasks of rates between 0 and 1 may take as much as they `need`,
    and any more goes to tasks of rate 0 or unknown, or, where there are none, to all others that are not between 0
    and 1. Their share is allotted so that the sum of `value` is largest, where no attempt beyond `least` is worth
    nothing: the first one gains the whole value, so that each has one before any has two. Without tasks between 0
    and 1 all that is left goes to those of rate 0 or unknown, and without these every task has `usual`.

    Source: liziniu/KnapsackRL, verl/trainer/ppo/exploration_utils.py. Its dynamic programme and this greedy allotment
    agree where gains fall with n. It fails where all tasks are between 0 and 1 and need less than there is; here they
    take it.

    >>> allot_with_fallback([0.5, 0.1, 1.0], 12, 4), allot_with_fallback([0.5, 0.0, 1.0], 24, 8)
    ([5, 5, 2], [5, 17, 2])
    """
    n = len(rates)
    known = [not math.isnan(p) for p in rates]
    between = [i for i in range(n) if known[i] and 0 < rates[i] < 1]
    sizes = [least if known[i] else usual for i in range(n)]
    spare = budget - sum(sizes)
    if spare <= 0:
        return sizes
    unsolved = [i for i in range(n) if not known[i] or rates[i] == 0]
    if not between:
        if not unsolved:
            return [usual] * n
        shared_out(spare, unsolved, sizes)
        return sizes
    wanted = sum(needed(rates[i], most) for i in between)
    others = unsolved or [i for i in range(n) if i not in between]
    if wanted < spare and others:
        shared_out(spare - wanted, others, sizes)
        spare = wanted
    heap = [(-value(least + 1, rates[i]), least, i) for i in between if least < most]
    heapq.heapify(heap)
    while spare and heap:
        _, _, i = heapq.heappop(heap)
        sizes[i] += 1
        spare -= 1
        if sizes[i] < most:
            heapq.heappush(heap, (value(sizes[i], rates[i]) - value(sizes[i] + 1, rates[i]), sizes[i], i))
    if spare:
        shared_out(spare, between, sizes)
    return sizes


# ---------------------------------------------------------------- adaptive group size
Value = Callable[[int, float], float]


def allot(
    rates: Sequence[float], budget: int, least: int = 2, most: int = 128, value: Value = group_values.failures
) -> list[int]:
    """Attempts for each task, `least` to `most`, `budget` in all: each further one where the value grows most by it.

    value  of n attempts at a success rate, a function of `gxpo.sampling.rollouts.group_values`

    Of equal gains that of the task with fewer attempts is taken, then the earlier task's. Greedy, which is the best
    there is where every task's gains fall with n. `failures` is convex in n for small rates, so a hard task may stay at
    `least` although many more attempts would have paid. Fewer than `budget` where all have `most`; ValueError where
    `least` for each is more.

    >>> allot([0.5, 0.1, 1.0], 9)
    [5, 2, 2]
    """
    if least * len(rates) > budget:
        raise ValueError(f"{len(rates)} tasks of at least {least} attempts need more than {budget}")
    sizes = [least] * len(rates)

    def gain(i: int) -> float:
        return value(sizes[i] + 1, rates[i]) - value(sizes[i], rates[i])

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


def knapsack(
    rates: Sequence[float], budget: int, least: int = 2, most: int = 128, value: Value = group_values.failures
) -> list[int]:
    """The same by dynamic programming: the sizes whose values add up to the most, whatever the gains do.

    Costs len(rates) * (most - least) * budget additions. Of equal sums the one with fewer attempts for later tasks.

    >>> allot([0.01, 0.9], 24, 2, 22), knapsack([0.01, 0.9], 24, 2, 22)
    ([2, 22], [22, 2])
    """
    if least * len(rates) > budget:
        raise ValueError(f"{len(rates)} tasks of at least {least} attempts need more than {budget}")
    spare = min(budget - least * len(rates), (most - least) * len(rates))
    best = np.full(spare + 1, -np.inf)  # by what is spent beyond `least`: the largest sum of the tasks so far
    best[0] = 0.0
    chosen: list[np.ndarray] = []
    for rate in rates:
        found, more = np.full(spare + 1, -np.inf), np.zeros(spare + 1, dtype=np.int64)
        for k in range(min(most - least, spare) + 1):
            total = best[: spare + 1 - k] + value(least + k, rate)
            better = total > found[k:]
            found[k:][better], more[k:][better] = total[better], k
        best = found
        chosen.append(more)
    left, sizes = spare, []
    for more in reversed(chosen):
        sizes.append(least + int(more[left]))
        left -= int(more[left])
    return sizes[::-1]


SOLVERS = {"greedy": allot, "knapsack": knapsack}


@part("adaptive_group_size", stage="rollout")
@dataclass(frozen=True)
class AdaptiveGroupSize(Rollout):
    """`group_size` attempts a task on average, allotted by the tasks' predicted rates of success.

    least, most  attempts of one task
    value        what n attempts at a success rate are worth, a function of `sampling.rollouts.group_values` by name, or
                 `file.py:function` of (n, rate): the sum over the tasks is made large
    solver       "greedy": the next attempt where the value grows most | "knapsack": the largest sum there is |
                 "fallback": greedy among tasks of rates between 0 and 1, and what they do not need to those of rate 0:
                 see `gxpo.sampling.rollouts.adaptive_group_size`
    discount     what earlier verdicts of a task count for at each further visit, since the policy has moved
    prior        how many verdicts the mean rate of all tasks (one half at first) is worth in a task's prediction;
                 "uniform": the prediction is the mean of Beta(1 + right, 1 + wrong), two verdicts of rate one half
    window       None, or the prediction is the mean of the newest so many verdicts of the task, of all of its newest
                 visit where that had more; without `discount` and `prior`
    enough       of a `window`: a task with fewer verdicts has `group_size` attempts; solver "fallback" alone

    Without a window the prediction is (s + prior m) / (n + prior), s successes in n verdicts of the steps before, m
    their mean over all tasks; every row's info["predicted"] holds it. `success` decides, never the shaped outcome.
    """

    group_size: int = 8
    least: int = 2
    most: int = 128
    value: Any = "failures"
    solver: Literal["greedy", "knapsack", "fallback"] = "greedy"
    discount: Annotated[float, Interval(ge=0, le=1)] = 0.8
    prior: Annotated[float, Gt(0)] | Literal["uniform"] = 1.0
    team: str = ""
    window: Annotated[int, Ge(1)] | None = None
    enough: Annotated[int, Ge(1)] = 8
    memory: TaskMemory = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "memory", TaskMemory(self.discount, self.window, whole=True))
        if (self.solver == "fallback") != (self.window is not None):
            raise ConfigError("rollout.solver=fallback and rollout.window belong together: set both or neither")
        object.__setattr__(self, "value", functions.named(self.value, group_values.__name__, "rollout.value"))
        if signature(self.value).columns != ("n", "rate"):
            raise ConfigError(f"rollout.value={self.value.__name__} must be a function of (n, rate)")
        if not 1 <= self.least <= self.group_size <= self.most:
            raise ConfigError(
                f"rollout.least={self.least} <= rollout.group_size={self.group_size} <= rollout.most={self.most} must "
                "hold, from 1 on: the group size is the mean of what is allotted"
            )

    def predict(self, tasks: Sequence[str]) -> list[float]:
        """The predicted rate of success of each task; nan where too little is known."""
        if self.window is not None:
            few = [self.memory.count(task) < min(self.enough, self.window) for task in tasks]
            return [math.nan if x else p for x, p in zip(few, self.memory.predict(tasks), strict=True)]
        if isinstance(self.prior, str):
            return self.memory.predict(tasks, 2.0, mean=0.5)
        return self.memory.predict(tasks, self.prior, unseen=0.5)

    def first(self, draws: Sequence[Draw], play: Play) -> list[Attempts]:
        rates = self.predict([draw.task.id for draw in draws])
        budget = self.group_size * len(draws)
        if self.solver == "fallback":
            sizes = allot_with_fallback(rates, budget, self.group_size, self.least, self.most, self.value)
        else:
            sizes = SOLVERS[self.solver](rates, budget, self.least, self.most, self.value)
        each = zip(draws, sizes, rates, strict=True)
        return [draw.attempts(n, info={} if math.isnan(rate) else {"predicted": rate}) for draw, n, rate in each]

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
