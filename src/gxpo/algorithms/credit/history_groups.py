"""History-aware step groups (HGPO): returns compared at equal state and equal previous states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor

from gxpo.algorithms.credit.columns import column
from gxpo.algorithms.credit.recursion import next_in
from gxpo.algorithms.credit.state_keys import history_ids
from gxpo.base.errors import one_of
from gxpo.forest import grouped
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest


@column("S")
def step_return(forest: Forest, *, discount: float = 0.95) -> Tensor:
    """Discounted sum of the step rewards from the step on."""
    return forest.returns(discount)


@column("S")
def keys(state: Tensor, trajectory: Tensor, *, history: Annotated[int, Ge(0)] = 2) -> list[Tensor]:
    """Ids of the state, of (the state before it, the state) and so on: `history` + 1 columns."""
    return history_ids(state, next_in(trajectory, state >= 0), history)


@part("history_groups", stage="credit", axis="S")
def history_groups(
    step_return: Tensor,
    keys: Sequence[Tensor],
    where: Tensor | None = None,
    *,
    alpha: float = 1.0,
    offset: Annotated[int, Ge(1)] = 1,
    ignore: Literal["equal", "zero", "none"] = "equal",
    scale: Literal["std", "none"] = "std",
    ddof: int = 0,
    eps: float = 1e-6,
) -> Tensor:
    """History-aware step advantage (HGPO): A = sum_h w_h A_h / sum_h w_h, over levels of equal history.

    A_h  (step_return - mean) / (std + eps), or without the std, over the steps with the same key of level h
    w_h  (h + offset)^alpha, where a step is compared with another

    step_return  [S] discounted sum of the step rewards from the step on
    keys         of each level, 0 first, [S] int64 dense ids (`history_ids`), -1 where the history is shorter. The last
                 level, `history`, is the largest number of states before the current one that are compared: what a
                 policy that sees a window of its history is conditioned on
    where        [S] bool, compared (default: all): which enter the statistics; the others are measured against those
    ignore       levels that do not count: "equal": where all returns are; "zero": also where the step's happens to be
                 the mean, by comparison with 0, so that rounding decides; "none": each counts that has another step

    Returns [S] float64; exactly 0 where there is nothing to compare: a step in a state that no other was in has none,
    in a successful trajectory too, since there is no level of whole trajectories (`credit.add.relative` adds one). With
    level 0 alone it is the step level of `StateRelative`; with alpha 0 the plain mean over levels.

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
