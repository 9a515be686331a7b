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
    zero_at: str = "high",
    eps: float = 1e-6,
) -> Tensor:
    """Mixed value-at-risk g = (mix * CVaR / (a + eps) + RVaR / (b - a + eps)) / (mix + 1), float64, for levels (a, b).

    total      sums S;   low, high  their quantiles q_a and q_b
    CVaR = -(q_a - S)+    RVaR = (S - q_a)+ - (S - q_b)+, less q_b - q_a where `zero_at` is "high"

    With `zero_at` "high" nothing is positive and everything from q_b on is 0: only failures are told apart. With "low"
    the zero is at q_a.
    """
    s, (a, b) = total.to(torch.float64), levels_at
    lower_tail = -(low - s).clamp_min(0.0)
    middle = (s - low).clamp_min(0.0) - (s - high).clamp_min(0.0)
    # RiskPO's code shifts the middle so that only failures are told apart: nothing is positive.
    if zero_at == "high":
        middle = middle + low - high
    return (mix * lower_tail / (a + eps) + middle / (b - a + eps)) / (mix + 1)


class Sheets(NamedTuple):
    """Answer sheets: one attempt at each task of a bundle of groups. Columns [R]."""

    is_on_sheet: Tensor  # bool
    leads: Tensor  # bool: represents its sheet in statistics, so that each sheet counts once
    bundle: Tensor  # int64, -1 none
    total: Tensor  # float64, the sheet's sum of outcomes


@torch.no_grad()
def sheets(outcome: Tensor, group: Tensor, size: int, where: Tensor) -> Sheets:
    """Bundle `size` consecutive groups; the j-th attempts at a bundle's tasks are its j-th answer sheet.

    Bundles are as equal as they can be, none smaller than `size` where there are so many groups; the sum of a sheet of
    more or fewer tasks is scaled to `size`. A group has as many attempts on sheets as the bundle's smallest group.
    """
    rows = (where & (group >= 0)).nonzero().squeeze(1)
    task = dense(group[rows])
    n_tasks = int(task.max()) + 1 if len(task) else 0
    # Bundles of almost equal size: task i of n goes into bundle floor(i * bundles / n).
    bundle = task * max(1, n_tasks // size) // max(1, n_tasks)
    task_order = torch.argsort(task, stable=True)
    attempt_number = torch.empty_like(task)
    # A stable sort numbers the attempts at each task in the order of the trajectories.
    attempt_number[task_order] = torch.arange(len(task)) - begins_of(task[task_order], n_tasks)[task[task_order]]
    # A sheet needs an attempt at every task of the bundle, so the smallest group decides how many there are.
    is_on_sheet = attempt_number < grouped.min(grouped.count(task), bundle)
    sheet = torch.where(
        is_on_sheet, dense(bundle * (int(attempt_number.max()) + 1 if len(attempt_number) else 1) + attempt_number), -1
    )
    value = torch.where(is_on_sheet, outcome[rows].to(torch.float64), 0.0)
    leads_sheet = is_on_sheet & (task == grouped.min(task, bundle))
    # Bundles of more or fewer tasks have sums of another size: scaled, quantiles are comparable.
    total = grouped.sum(value, sheet) * (size / grouped.count(sheet).clamp_min(1))
    nobody_R = torch.zeros(len(group), dtype=torch.bool)
    return Sheets(
        nobody_R.index_put((rows,), is_on_sheet),
        nobody_R.index_put((rows,), leads_sheet),
        torch.full_like(group, -1).index_put((rows,), bundle),
        nobody_R.double().index_put((rows,), total),
    )


@part("risk_bundle", stage="credit")
@dataclass(frozen=True)
class RiskBundle(CreditPart):
    """Risk-averse advantage (RiskPO): `mixed_value_at_risk` of an answer sheet over the std of its bundle's sums.

    size       tasks in a bundle; the order of groups and attempts makes bundles and sheets
    low, high  levels of the two quantiles
    mix        weight of the lower tail
    zero_at    see `mixed_value_at_risk`
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
    zero_at: Literal["high", "low"] = "high"
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
        is_on_sheet_R, leads, bundle, total = sheets(forest.outcome, group, self.size, where)
        # The first step has no tracked quantiles: each bundle is measured by its own.
        low, high = (
            torch.full_like(total, self.memory[name]) if self.memory else grouped.quantile(total, bundle, level, leads)
            for name, level in (("low", self.low), ("high", self.high))
        )
        value_R = mixed_value_at_risk(total, low, high, (self.low, self.high), self.mix, self.zero_at, self.eps)
        value_R = value_R / self._divisor(grouped.std(total, bundle, leads), 0.0)
        # Tasks on which attempts agree have a small std, and weigh more for it.
        if self.share == "std":
            value_R = value_R / self._divisor(grouped.std(forest.outcome, group, where), 1e-3)
        return forest.to_path(torch.where(is_on_sheet_R, value_R, 0.0), "R")

    def _divisor(self, std: Tensor, least: float) -> Tensor:
        # A std of 0 is no unit: such sums are left as they are.
        return torch.where(std > least, std, 1.0) + self.eps

    def observe(self, forest: Forest) -> None:
        group = forest.ids("group", axis="R")
        sheet = sheets(forest.outcome, group, self.size, forest.compared & forest.scored)
        sums = sheet.total[sheet.leads]
        for name, level in (("low", self.low), ("high", self.high)) if len(sums) else ():
            # Stochastic quantile tracking; its start is the quantile of the first step's sums.
            if name in self.memory:
                self.memory[name] += self.lr * (level - float((sums < self.memory[name]).double().mean()))
            else:
                self.memory[name] = float(sums.quantile(level))

    def state_dict(self) -> dict[str, Any]:
        return dict(self.memory)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.memory.clear()
        self.memory.update(state)
