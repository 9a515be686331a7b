"""Rollout budget of Knapsack RL as released: what mixed groups need first, the rest to tasks that were never solved."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence

from gxpo.sampling.rollouts import group_values


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
