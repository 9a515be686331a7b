"""Credit for the chance that the best of k attempts succeeds, rather than for the attempt itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gxpo import levels
from gxpo.credit.base import CreditPart
from gxpo.errors import ConfigError, one_of

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals

Kind = Literal["analytic", "leave_one_out", "max_second"]


@torch.no_grad()
def missed(pool: Tensor, wrong: Tensor, k: int) -> Tensor:
    """C(wrong, k) / C(pool, k): the chance that k members drawn from `pool` are all among the `wrong`; float64.

    pool, wrong  whole numbers, of one shape;   k  from 0 to the smallest pool that is asked
    0 where wrong < k. By logarithms of factorials, so that no size overflows.

    >>> round(float(missed(torch.tensor([8]), torch.tensor([6]), 4)), 6)
    0.214286
    """
    enough = (wrong >= k) & (pool >= k)
    of, among = torch.where(enough, pool, k).long(), torch.where(enough, wrong, k).long()
    most = max(int(of.max()), int(among.max())) if of.numel() else 0
    factorial = torch.lgamma(torch.arange(1, most + 2, dtype=torch.float64))  # logarithms, from 0! on
    logs = factorial[among] - factorial[among - k] - factorial[of] + factorial[of - k]
    return torch.where(enough, logs.exp(), 0.0)


@torch.no_grad()
def subset_mean(correct: Tensor, group: Tensor, k: int, where: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    """The group-relative advantage of sets of k attempts, of each attempt in the mean over all sets that hold it.

    A = (1 - R) / (s + eps) if correct, (1 - R - C(n-c-1, k-1) / C(n-1, k-1)) / (s + eps) if wrong, with
    R = 1 - C(n-c, k) / C(n, k) the share of the group's sets with a success and s = sqrt(R (1 - R)).

    correct  [R] bool;   group  [R] int64 dense ids, -1 = in no group
    where    [R] bool, compared (default: all): the n attempts, c of them correct; the others get what those of their
             verdict would have

    Returns [R] float64 with sum 0 over a group. Exactly 0: every set has a success (n - c < k), none has, n < k.
    With k = 1 this is GRPO with ddof 0. Source: pass@k training, arXiv 2508.10751, and its code.
    """
    n, c = levels.count(group, where), levels.sum(correct, group, where)
    none, less = missed(n, n - c, k), missed((n - 1).clamp_min(0), n - c - 1, k - 1)
    spread = (none * (1 - none)).sqrt()
    return torch.where(spread > 0, torch.where(correct, none, none - less) / (spread + eps), 0.0)


@torch.no_grad()
def set_leave_one_out(correct: Tensor, group: Tensor, k: int, where: Tensor | None = None) -> Tensor:
    """a_i less the mean of the others' a, with a = C(n-c, k-1) / C(n-1, k-1) if correct, 0 if wrong.

    a is the chance that the attempt is the only success among itself and k - 1 others. Arguments as of `subset_mean`.
    Returns [R] float64 with sum 0 over a group, not scaled; exactly 0 in a group without successes, of fewer than k, or
    of one. With k = 1 this is RLOO. Source: PKPO, arXiv 2505.15201, as in MaxRL's code (arXiv 2602.02710).
    """
    n, c = levels.count(group, where), levels.sum(correct, group, where)
    some = (c > 0) & (n > 1) & (n >= k)
    own = missed((n - 1).clamp_min(0), n - c, k - 1)
    value = torch.where(correct, own * (n - c), -own * c) / (n - 1).clamp_min(1)
    return torch.where(some & (c < n), value, 0.0)


@torch.no_grad()
def max_second(
    outcome: Tensor, group: Tensor, where: Tensor | None = None, scale: str = "std", eps: float = 1e-6
) -> Tensor:
    """(largest - second largest) / (std + eps) for the group's best attempt, 0 for all others: [R] float64.

    where  [R] bool, compared (default: all); the others are given 0
    scale  "std" (one degree of freedom) | "none"

    What the attempt adds to the best of the group. Exactly 0 where two are best, so in binary groups with several
    successes. Source: Tang et al., arXiv 2503.19595; as `grpo_passk` in verl.
    """
    counts = torch.ones_like(group, dtype=torch.bool) if where is None else where
    value = outcome.to(torch.float64)
    best = counts & (group >= 0) & (value == levels.max(value, group, counts))
    gap = value - levels.max(value, group, counts & ~best)
    alone = best & (levels.count(group, best) == 1) & (levels.count(group, counts) > 1)
    unit = levels.std(value, group, counts) + eps if scale == "std" else torch.ones_like(gap)
    return torch.where(alone & ~levels.degenerate(value, group, counts), gap / unit, 0.0)


@dataclass(frozen=True)
class PassAtK(CreditPart):
    """Credit for pass@k, the same for every token. Three estimators go by that name:

    kind "analytic"       `subset_mean`, normalised by the std of the sets' results
         "leave_one_out"  `set_leave_one_out`, unbiased and not scaled
         "max_second"     `max_second` of the outcomes; k is the group itself
    k    attempts that a task is given; a group of fewer has credit 0, and in "analytic" one of k

    The first two read verdicts: a trajectory without one is correct where its outcome is above 0.
    """

    kind: Kind = "analytic"
    k: int = 2
    eps: float = 1e-6

    def __post_init__(self) -> None:
        one_of("credit.kind", self.kind, ("analytic", "leave_one_out", "max_second"))
        if self.k < 1:
            raise ConfigError(f"credit.k is {self.k}; it is a number of attempts, at least 1")

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        group, where = forest.ids("group", axis="R"), forest.compared
        if self.kind == "max_second":
            return forest.to_path(max_second(forest.outcome, group, where, eps=self.eps), "R")
        correct = torch.where(forest.success.isfinite(), forest.success >= 1, forest.outcome > 0)
        if self.kind == "analytic":
            return forest.to_path(subset_mean(correct, group, self.k, where, self.eps), "R")
        return forest.to_path(set_leave_one_out(correct, group, self.k, where), "R")
