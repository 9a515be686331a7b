"""Risk-averse advantages (RiskPO): mixed value-at-risk of sums of outcomes over several tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from gxpo.algorithms.credit.base import CreditPart
from gxpo.base.errors import ConfigError
from gxpo.forest import grouped
from gxpo.forest.grouped import begins_of, dense
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Signals


@torch.no_grad()
def mixed_value_at_risk(
    total: Tensor,
    low: Tensor | float,
    high: Tensor | float,
    levels_at: tuple[float, float] = (0.2, 0.9),
    mix: float = 1.5,
    zero: str = "high",
    eps: float = 1e-6,
) -> Tensor:
    """g = (mix * CVaR / (a + eps) + RVaR / (b - a + eps)) / (mix + 1), float64, for the levels (a, b).

    total      sums S;   low, high  their quantiles q_a and q_b
    CVaR = -(q_a - S)+    RVaR = (S - q_a)+ - (S - q_b)+, less q_b - q_a where `zero` is "high"

    With `zero` "high" nothing is positive and everything from q_b on is 0: only failures are told apart. With "low" the
    zero is at q_a.
    """
    s, (a, b) = total.to(torch.float64), levels_at
    tail = -(low - s).clamp_min(0.0)
    middle = (s - low).clamp_min(0.0) - (s - high).clamp_min(0.0)
    if zero == "high":
        middle = middle + low - high
    return (mix * tail / (a + eps) + middle / (b - a + eps)) / (mix + 1)


class Sheets(NamedTuple):
    """Answer sheets: one attempt at each task of a bundle of groups. Columns [R]."""

    taken: Tensor  # bool: it is on one
    leads: Tensor  # bool: it stands for its sheet in statistics
    bundle: Tensor  # int64, -1 none
    total: Tensor  # float64, the sheet's sum of outcomes


@torch.no_grad()
def sheets(outcome: Tensor, group: Tensor, size: int, where: Tensor) -> Sheets:
    """Bundle `size` consecutive groups; the j-th attempts at the tasks of a bundle are its j-th sheet.

    Bundles are as equal as they can be, none smaller than `size` where there are so many groups; the sum of a sheet of
    more or fewer tasks is scaled to `size`. A group has as many attempts on sheets as the bundle's smallest group.
    """
    rows = (where & (group >= 0)).nonzero().squeeze(1)
    task = dense(group[rows])
    tasks = int(task.max()) + 1 if len(task) else 0
    bundle = task * max(1, tasks // size) // max(1, tasks)
    order = torch.argsort(task, stable=True)
    place = torch.empty_like(task)
    place[order] = torch.arange(len(task)) - begins_of(task[order], tasks)[task[order]]
    on = place < grouped.min(grouped.count(task), bundle)
    sheet = torch.where(on, dense(bundle * (int(place.max()) + 1 if len(place) else 1) + place), -1)
    value = torch.where(on, outcome[rows].to(torch.float64), 0.0)
    lead = on & (task == grouped.min(task, bundle))
    total = grouped.sum(value, sheet) * (size / grouped.count(sheet).clamp_min(1))
    nobody = torch.zeros(len(group), dtype=torch.bool)
    return Sheets(
        nobody.index_put((rows,), on),
        nobody.index_put((rows,), lead),
        torch.full_like(group, -1).index_put((rows,), bundle),
        nobody.double().index_put((rows,), total),
    )


@part("risk_bundle", stage="credit")
@dataclass(frozen=True)
class RiskBundle(CreditPart):
    """RiskPO: `mixed_value_at_risk` of a trajectory's answer sheet, divided by the std of its bundle's sums.

    size       tasks in a bundle; the order of groups and attempts makes bundles and sheets
    low, high  levels of the two quantiles
    mix        weight of the lower tail
    zero       see `mixed_value_at_risk`
    share      "std": divided by the std of the outcomes of the trajectory's own group, so that tasks on which attempts
               agree weigh more; "equal": not
    lr         of the tracked quantiles: q <- q + lr (level - share of sums below q) after each step

    The quantiles are those tracked over the steps before. They start as the quantiles of the first step's sums; in that
    step each bundle is measured by its own. A std (one degree of freedom) of sums that is 0, and one of outcomes that
    is at most 1e-3, count as 1. Not compared: 0. What is tracked are outcomes without a KL placed in the reward.

    Source: RiskPO, arXiv 2510.00911, and its code.
    """

    size: int = 5
    low: float = 0.2
    high: float = 0.9
    mix: float = 1.5
    zero: Literal["high", "low"] = "high"
    share: Literal["std", "equal"] = "std"
    lr: float = 0.1
    eps: float = 1e-6
    memory: dict[str, float] = field(init=False, repr=False, compare=False, default_factory=dict)

    learns_from_equal_groups = True

    def __post_init__(self) -> None:
        if self.size < 1 or not 0 < self.low < self.high < 1 or self.mix < 0 or self.lr < 0:
            raise ConfigError(
                f"credit risk_bundle: size {self.size} is at least 1, 0 < low ({self.low}) < high ({self.high}) < 1, "
                f"and mix {self.mix} and lr {self.lr} are at least 0"
            )

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        group, where = forest.ids("group", axis="R"), forest.compared
        taken, leads, bundle, total = sheets(forest.outcome, group, self.size, where)
        low, high = (
            torch.full_like(total, self.memory[name]) if self.memory else grouped.quantile(total, bundle, level, leads)
            for name, level in (("low", self.low), ("high", self.high))
        )
        value = mixed_value_at_risk(total, low, high, (self.low, self.high), self.mix, self.zero, self.eps)
        value = value / self._unit(grouped.std(total, bundle, leads), 0.0)
        if self.share == "std":
            value = value / self._unit(grouped.std(forest.outcome, group, where), 1e-3)
        return forest.to_path(torch.where(taken, value, 0.0), "R")

    def _unit(self, std: Tensor, least: float) -> Tensor:
        return torch.where(std > least, std, 1.0) + self.eps

    def observe(self, forest: Forest) -> None:
        group = forest.ids("group", axis="R")
        found = sheets(forest.outcome, group, self.size, forest.compared & forest.scored)
        sums = found.total[found.leads]
        for name, level in (("low", self.low), ("high", self.high)) if len(sums) else ():
            if name in self.memory:
                self.memory[name] += self.lr * (level - float((sums < self.memory[name]).double().mean()))
            else:
                self.memory[name] = float(sums.quantile(level))

    def state_dict(self) -> dict[str, Any]:
        return dict(self.memory)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.memory.clear()
        self.memory.update(state)
