"""History-aware step groups (HGPO): returns compared at equal state and equal previous states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from gxpo import grouped
from gxpo.credit.recursion import next_in
from gxpo.credit.state_keys import StateKeyed, history_ids
from gxpo.errors import one_of
from gxpo.registry import part

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals

Ignore = Literal["equal", "zero", "none"]


@torch.no_grad()
def history_groups(
    step_return: Tensor,
    keys: Sequence[Tensor],
    alpha: float = 1.0,
    offset: int = 1,
    ignore: str = "equal",
    scale: str = "std",
    ddof: int = 0,
    eps: float = 1e-6,
    where: Tensor | None = None,
) -> Tensor:
    """A = sum_h w_h A_h / sum_h w_h, over the levels h at which a step is compared with another.

    A_h  (step_return - mean) / (std + eps), or without the std, over the steps with the same key of level h
    w_h  (h + offset)^alpha

    step_return  [S] discounted sum of the step rewards from the step on
    keys         of each level, 0 first, [S] int64 dense ids (`history_ids`), -1 where the history is shorter
    ignore       levels that do not count: "equal": where all returns are; "zero": also where the step's happens to be
                 the mean, by comparison with 0, so that rounding decides; "none": each counts that has another step
    where        [S] bool, compared (default: all): which enter the statistics; the others are measured against those

    Returns [S] float64; exactly 0 where there is nothing to compare. With level 0 alone it is the step level of
    `StateRelative`; with alpha 0 the plain mean over levels.

    Source: HGPO, arXiv 2602.22817, and its code. The paper's weights are 1, 2, 3, ... (offset 1); the recipe in
    verl-agent has 2, 3, 4, ... and ignores zeros, with 1e-6 added to the sum of the weights.
    """
    one_of("credit.ignore", ignore, ("equal", "zero", "none"))
    enters = torch.ones_like(keys[0], dtype=torch.bool) if where is None else where
    total = torch.zeros(step_return.shape, dtype=torch.float64)
    weights = torch.zeros_like(total)
    for h, ids in enumerate(keys):
        advantage = grouped.normalize(step_return, ids, enters, scale=scale, ddof=ddof, eps=eps)
        used = grouped.count(ids, enters) > enters.to(torch.float64)  # others are there
        if ignore == "equal":
            used &= ~grouped.degenerate(step_return, ids, enters) | (advantage != 0)
        elif ignore == "zero":
            used &= advantage != 0
        weight = used * float(h + offset) ** alpha
        total += weight * advantage
        weights += weight
    return torch.where(weights > 0, total / weights, 0.0)


@part("history_groups", stage="credit")
@dataclass(frozen=True)
class HistoryGroups(StateKeyed):
    """History-aware step advantage (HGPO): `history_groups` of the returns, the same for every token of a step.

    history  largest number of states before the current one that are compared: what a policy that sees a window of its
             history is conditioned on

    There is no level of whole trajectories: a step in a state that no other was in has advantage 0, in a successful
    trajectory too. Add one with `credit.add.group_relative`.
    """

    history: Annotated[int, Ge(0)] = 2
    alpha: float = 1.0
    offset: Annotated[int, Ge(1)] = 1
    ignore: Ignore = "equal"
    discount: float = 0.95
    scale: Literal["std", "none"] = "std"
    ddof: int = 0
    eps: float = 1e-6

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        state = self.states(forest)
        keys = history_ids(state, next_in(forest.step_trajectory, state >= 0), self.history)
        advantage = history_groups(
            forest.returns(self.discount),
            keys,
            self.alpha,
            self.offset,
            self.ignore,
            self.scale,
            self.ddof,
            self.eps,
            where=forest.compared[forest.step_trajectory],
        )
        return forest.to_path(advantage, "S")
