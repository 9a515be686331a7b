"""Positions at which the answers of a group go apart count more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo import levels
from gxpo.errors import ConfigError, MissingSignal
from gxpo.weighting.base import WeightPart

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def stretched(x: Tensor, group: Tensor, where: Tensor, alpha: float = 1.4) -> Tensor:
    """w = 1 + (alpha - 1) (x - min) / (max - min) within each group; [n] float64, between 1 and alpha.

    group [n] int64 dense ids; where [n] bool: who enters minimum and maximum, the others are held between them.
    1 where those are equal or nobody enters.

    >>> stretched(torch.tensor([0.0, 1.0, 4.0]), torch.zeros(3).long(), torch.ones(3).bool(), 3.0).tolist()
    [1.0, 1.5, 3.0]
    """
    low, high = levels.min(x, group, where), levels.max(x, group, where)
    flat = levels.degenerate(x, group, where)
    unit = ((x.to(torch.float64) - low) / torch.where(flat, 1.0, high - low)).clamp(0.0, 1.0)
    return torch.where(flat, 1.0, 1.0 + (alpha - 1.0) * unit)


@dataclass(frozen=True)
class Disagreement(WeightPart):
    """`stretched` signal "disagreement" [P] over the positions of each group (TW-GRPO): the same for all its answers.

    alpha  weight of the position of greatest disagreement; that of least has 1

    The extremes are over the trainable tokens of compared answers. Source: arXiv 2505.24718.
    """

    alpha: float = 1.4

    needs = ("disagreement",)

    def __post_init__(self) -> None:
        if not self.alpha >= 0:
            raise ConfigError(f"weight.disagreement.alpha is {self.alpha}; it is a weight, 0 or more, such as 1.4")

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        entries = forest.path_trainable.nonzero().squeeze(1)
        x = signals["disagreement"][entries]
        if missing := int(x.isnan().sum()):
            raise MissingSignal(f"disagreement is nan for {missing} of {entries.numel()} trainable tokens")
        weight = torch.ones(forest.n_entries, dtype=torch.float64)
        group, where = forest.ids("group", axis="P")[entries], forest.to_path(forest.compared, "R")[entries]
        weight[entries] = stretched(x, group, where, self.alpha)
        return weight
