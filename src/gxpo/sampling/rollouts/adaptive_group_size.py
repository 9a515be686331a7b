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
from gxpo.sampling.rollouts.attempts import Attempts, Draw
from gxpo.sampling.rollouts.base import Rollout
from gxpo.sampling.rollouts.episodes import Play


# ---------------------------------------------------------------- budget with fallback
# Rollout budget of Knapsack RL as released: first what mixed groups need, the rest to tasks that were never solved.
def attempts_needed(rate: float, max_attempts: int, confidence: float = 0.9) -> int:
    """Return how many attempts bring a success and a failure with about this probability, at most `max_attempts`.

    It is ln(1 - confidence) / ln max(p, 1 - p), rounded down.

    >>> attempts_needed(0.5, 128), attempts_needed(0.9, 128), attempts_needed(0.99, 128)
    (3, 21, 128)
    """
    return int(min(max_attempts, math.log(1 - confidence) / math.log(max(rate, 1 - rate))))


def share_out(amount: int, among: Sequence[int], sizes: list[int]) -> None:
    """Add `amount` attempts to the sizes of these tasks as evenly as possible, one more to the earlier ones."""
    each, remainder = divmod(amount, len(among))
    for rank, i in enumerate(among):
        sizes[i] += each + (rank < remainder)


def allot_with_fallback(
    rates: Sequence[float],
    budget: int,
    usual: int,
    min_attempts: int = 2,
    max_attempts: int = 128,
    value: Callable[[int, float], float] = group_values.mixed_gain,
) -> list[int]:
    """Allot `budget` attempts: tasks of rates between 0 and 1 take what they need, unsolved tasks the rest.

    rates  success rates; nan: not known yet, so that the task gets `usual` attempts at first

    Every other task gets `min_attempts` first. Of the rest, tasks of rates between 0 and 1 take at most what they
    `need`; any surplus goes to tasks of rate 0 or unknown or, without any, to all others that are not between 0 and 1.
    The share of tasks between 0 and 1 is allotted so that the sum of `value` is largest; the first attempt beyond
    `min_attempts` gains the whole value, so that each of them gets one before any gets two. Without tasks between 0 and
    1 the rest goes to those of rate 0 or unknown, and without these every task gets `usual`.

    Source: liziniu/KnapsackRL, verl/trainer/ppo/exploration_utils.py. Its dynamic programme and this greedy allotment
    agree if gains fall with n. The source fails if all tasks are between 0 and 1 and need less than the budget; here
    they share the surplus.

    >>> allot_with_fallback([0.5, 0.1, 1.0], 12, 4), allot_with_fallback([0.5, 0.0, 1.0], 24, 8)
    ([5, 5, 2], [5, 17, 2])
    """
    # every task has its first attempts before anything is weighed
    n = len(rates)
    is_known = [not math.isnan(p) for p in rates]
    between = [i for i in range(n) if is_known[i] and 0 < rates[i] < 1]
    sizes = [min_attempts if is_known[i] else usual for i in range(n)]
    spare = budget - sum(sizes)
    if spare <= 0:
        return sizes
    # without a task between 0 and 1 nothing has a value to weigh: the rest explores
    unsolved_tasks = [i for i in range(n) if not is_known[i] or rates[i] == 0]
    if not between:
        if not unsolved_tasks:
            return [usual] * n
        share_out(spare, unsolved_tasks, sizes)
        return sizes
    # more than the mixed groups need would teach nothing further there, so the surplus explores
    need = sum(attempts_needed(rates[i], max_attempts) for i in between)
    fallback_tasks = unsolved_tasks or [i for i in range(n) if i not in between]
    if need < spare and fallback_tasks:
        share_out(spare - need, fallback_tasks, sizes)
        spare = need
    # greedily by gain; the first gain is the whole value, as in the source, not a difference
    heap = [(-value(min_attempts + 1, rates[i]), min_attempts, i) for i in between if min_attempts < max_attempts]
    heapq.heapify(heap)
    while spare and heap:
        _, _, i = heapq.heappop(heap)
        sizes[i] += 1
        spare -= 1
        if sizes[i] < max_attempts:
            heapq.heappush(heap, (value(sizes[i], rates[i]) - value(sizes[i] + 1, rates[i]), sizes[i], i))
    # all of them are at `max_attempts`, and there is no other task to take the surplus
    if spare:
        share_out(spare, between, sizes)
    return sizes


# ---------------------------------------------------------------- adaptive group size
Value = Callable[[int, float], float]


def allot(
    rates: Sequence[float],
    budget: int,
    min_attempts: int = 2,
    max_attempts: int = 128,
    value: Value = group_values.failures,
) -> list[int]:
    """Allot `budget` attempts, `min_attempts` to `max_attempts` a task: each further one where the value grows most.

    value  function of (n, success rate): what n attempts are worth, see `gxpo.sampling.rollouts.group_values`

    Of equal gains the task with fewer attempts goes first, then the earlier task. Greedy is optimal if every task's
    gains fall with n. `failures` is convex in n for small rates, so a hard task may stay at `min_attempts` although
    many more attempts would have paid. Less than `budget` is allotted if all tasks have `max_attempts`; ValueError if
    `min_attempts` for each exceeds the budget.

    >>> allot([0.5, 0.1, 1.0], 9)
    [5, 2, 2]
    """
    if min_attempts * len(rates) > budget:
        raise ValueError(f"{len(rates)} tasks of at least {min_attempts} attempts need more than {budget}")
    sizes = [min_attempts] * len(rates)

    def gain(i: int) -> float:
        return value(sizes[i] + 1, rates[i]) - value(sizes[i], rates[i])

    # the heap holds each task's next gain; ties by size, then by index, keep the allotment deterministic
    heap = [(-gain(i), min_attempts, i) for i in range(len(rates)) if min_attempts < max_attempts]
    heapq.heapify(heap)
    for _ in range(budget - min_attempts * len(rates)):
        if not heap:
            break
        _, _, i = heapq.heappop(heap)
        sizes[i] += 1
        if sizes[i] < max_attempts:
            heapq.heappush(heap, (-gain(i), sizes[i], i))
    return sizes


def knapsack(
    rates: Sequence[float],
    budget: int,
    min_attempts: int = 2,
    max_attempts: int = 128,
    value: Value = group_values.failures,
) -> list[int]:
    """Allot as `allot` does, by dynamic programming: the largest sum of values, even if gains grow with n.

    Costs len(rates) * (max_attempts - min_attempts) * budget additions. Of equal sums the one with less for later tasks
    wins.

    >>> allot([0.01, 0.9], 24, 2, 22), knapsack([0.01, 0.9], 24, 2, 22)
    ([2, 22], [22, 2])
    """
    if min_attempts * len(rates) > budget:
        raise ValueError(f"{len(rates)} tasks of at least {min_attempts} attempts need more than {budget}")
    spare = min(budget - min_attempts * len(rates), (max_attempts - min_attempts) * len(rates))
    # best[s]: the largest sum of values of the tasks so far, with s attempts beyond `min_attempts` spent on them
    best = np.full(spare + 1, -np.inf)
    best[0] = 0.0
    extras: list[np.ndarray] = []
    # each task in turn: k attempts beyond `min_attempts`, for every k and every amount spent before
    for rate in rates:
        better_sums, extra = np.full(spare + 1, -np.inf), np.zeros(spare + 1, dtype=np.int64)
        for k in range(min(max_attempts - min_attempts, spare) + 1):
            total = best[: spare + 1 - k] + value(min_attempts + k, rate)
            improves = total > better_sums[k:]
            better_sums[k:][improves], extra[k:][improves] = total[improves], k
        best = better_sums
        extras.append(extra)
    # walk back through the choices from the last task to the first
    remaining, sizes = spare, []
    for extra in reversed(extras):
        sizes.append(min_attempts + int(extra[remaining]))
        remaining -= int(extra[remaining])
    return sizes[::-1]


SOLVERS = {"greedy": allot, "knapsack": knapsack}


@part("adaptive_group_size", stage="rollout")
@dataclass(frozen=True)
class AdaptiveGroupSize(Rollout):
    """`group_size` attempts a task on average, allotted by the tasks' predicted success rates.

    min_attempts, max_attempts  bounds on the attempts of one task
    value        function of (n, success rate) whose sum over the tasks is made large: a name in
                 `sampling.rollouts.group_values`, or `file.py:function`
    solver       "greedy": the next attempt where the value grows most | "knapsack": the largest sum there is |
                 "fallback": greedy among tasks of rates between 0 and 1, the surplus to those of rate 0, see
                                           `adaptive_group_size.allot_with_fallback`
    discount     factor on a task's earlier verdicts at each further visit, since the policy has moved
    prior        weight, in verdicts, of the mean rate of all tasks (one half at first) in a task's prediction;
                 "uniform": the prediction is the mean of Beta(1 + right, 1 + wrong), two verdicts of rate one half
    window       None, or the number of a task's newest verdicts whose mean is the prediction (all of its newest visit
                 if that had more), without `discount` and `prior`
    min_verdicts  with a `window` (solver "fallback" alone): a task with fewer verdicts gets `group_size` attempts

    Without a window the prediction is (s + prior m) / (n + prior), s successes in n verdicts of the steps before, m
    their mean over all tasks; every row's info["predicted"] holds it. `success` decides, never the shaped outcome.
    """

    group_size: int = 8
    min_attempts: int = 2
    max_attempts: int = 128
    value: Any = "failures"
    solver: Literal["greedy", "knapsack", "fallback"] = "greedy"
    discount: Annotated[float, Interval(ge=0, le=1)] = 0.8
    prior: Annotated[float, Gt(0)] | Literal["uniform"] = 1.0
    team: str = ""
    window: Annotated[int, Ge(1)] | None = None
    min_verdicts: Annotated[int, Ge(1)] = 8
    memory: TaskMemory = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "memory", TaskMemory(self.discount, self.window, whole=True))
        if (self.solver == "fallback") != (self.window is not None):
            raise ConfigError("rollout.solver=fallback and rollout.window belong together: set both or neither")
        object.__setattr__(self, "value", functions.look_up(self.value, group_values.__name__, "rollout.value"))
        if signature(self.value).columns != ("n", "rate"):
            raise ConfigError(f"rollout.value={self.value.__name__} must be a function of (n, rate)")
        if not 1 <= self.min_attempts <= self.group_size <= self.max_attempts:
            raise ConfigError(
                f"rollout.min_attempts={self.min_attempts} <= rollout.group_size={self.group_size} <= "
                f"rollout.max_attempts={self.max_attempts} must hold, from 1 on: the group size is the mean of what is "
                "allotted"
            )

    def predict(self, tasks: Sequence[str]) -> list[float]:
        """Return the predicted success rate of each task; nan if it has too few verdicts."""
        if self.window is not None:
            is_unsure = [self.memory.count(task) < min(self.min_verdicts, self.window) for task in tasks]
            return [math.nan if x else p for x, p in zip(is_unsure, self.memory.predict(tasks), strict=True)]
        if isinstance(self.prior, str):
            return self.memory.predict(tasks, 2.0, mean=0.5)
        return self.memory.predict(tasks, self.prior, initial=0.5)

    def first(self, draws: Sequence[Draw], play: Play) -> list[Attempts]:
        rates = self.predict([draw.task.id for draw in draws])
        # the budget is that of equal groups: only its division over the tasks adapts
        budget = self.group_size * len(draws)
        if self.solver == "fallback":
            sizes = allot_with_fallback(
                rates, budget, self.group_size, self.min_attempts, self.max_attempts, self.value
            )
        else:
            sizes = SOLVERS[self.solver](rates, budget, self.min_attempts, self.max_attempts, self.value)
        each = zip(draws, sizes, rates, strict=True)
        return [draw.attempts(n, info={} if math.isnan(rate) else {"predicted": rate}) for draw, n, rate in each]

    # ------------------------------------------------------------ memory
    def observe(self, forest: Forest) -> None:
        """Store the verdicts of the policy's own rollouts; those without a verdict are skipped."""
        verdicts: dict[str, list[float]] = {}
        for task, origin, success in zip(forest.task, forest.origin, forest.success.tolist(), strict=True):
            if origin == "policy" and math.isfinite(success):
                verdicts.setdefault(task, []).append(float(success >= 1))
        self.memory.add(verdicts)

    def state_dict(self) -> dict[str, Any]:
        return self.memory.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.memory.load_state_dict(state, "rollout part")
