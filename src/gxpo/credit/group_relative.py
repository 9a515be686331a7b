"""Credit of a whole trajectory: its outcome against the others of its group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gxpo import levels
from gxpo.credit.base import CreditPart
from gxpo.errors import one_of

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals

Center = Literal["mean", "leave_one_out", "median", "none"]
Scale = Literal["std", "none"]


@torch.no_grad()
def group_relative(
    outcome: Tensor,
    group: Tensor,
    center: str = "mean",
    scale: str = "std",
    ddof: int = 1,
    eps: float = 1e-6,
    where: Tensor | None = None,
) -> Tensor:
    """Advantage of each trajectory within its group: A = (outcome - center) / (scale + eps).

    outcome  [R] any float dtype; the arithmetic is in float64
    group    [R] int64 dense ids (`Forest.ids`), -1 = in no group
    center   "mean" | "leave_one_out" | "median" | "none", over the compared members of the group
    scale    "std" with `ddof` degrees of freedom taken off, `eps` added to it | "none"
    where    [R] bool, compared: who enters the statistics (default: all); the others are measured against those

    Returns [R] float64. Exactly 0 where there is nothing to compare: a group of one, of equal outcomes (max - min at
    most 1e-12 of the largest, in float64), or without compared members. Some trainers give a group of one its raw
    reward, and a group of equal float32 rewards a residue over eps.

    With these settings this is
      GRPO      mean, std, ddof 1, eps 1e-6   DeepSeekMath, arXiv 2402.03300; eps as in verl (the paper has none)
      Dr. GRPO  mean, none                    arXiv 2503.20783
      RLOO      leave_one_out, none           arXiv 2402.14740; equals G / (G - 1) times Dr. GRPO
    and GRPO as computed by TRL (eps 1e-4), AReaL (1e-5), verl, SkyRL, slime (1e-6), OpenRLHF (1e-9), rLLM, ART
    (ddof 0, 1e-6).

    >>> import torch
    >>> group_relative(torch.tensor([1.0, 0, 0, 0]), torch.zeros(4, dtype=torch.int64), scale="none").tolist()
    [0.75, -0.25, -0.25, -0.25]
    """
    return levels.normalize(outcome, group, where, center=center, scale=scale, ddof=ddof, eps=eps)


@dataclass(frozen=True)
class GroupRelative(CreditPart):
    """`group_relative` of the outcome, the same for every token of a trajectory. The defaults are GRPO's."""

    center: Center = "mean"
    scale: Scale = "std"
    ddof: int = 1
    eps: float = 1e-6

    def __post_init__(self) -> None:
        one_of("credit.center", self.center, ("mean", "leave_one_out", "median", "none"))
        one_of("credit.scale", self.scale, ("std", "none"))
        if self.center == "none" and self.scale == "none":
            object.__setattr__(self, "on_equal", "signal")

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        group = forest.ids("group", axis="R")
        advantage = group_relative(
            forest.outcome, group, self.center, self.scale, self.ddof, self.eps, where=forest.compared
        )
        return forest.to_path(advantage, "R")
