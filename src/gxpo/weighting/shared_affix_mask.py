"""Weight for prefix and suffix tokens that correct and wrong answers of a group share (GTPO)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.errors import ConfigError
from gxpo.registry import part
from gxpo.trees import begins_of
from gxpo.weighting.base import WeightPart

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def contested(token: Tensor, place: Tensor, group: Tensor, sign: Tensor, counts: Tensor) -> Tensor:
    """Tokens that occur at the same position with positive and with negative advantage in the group, [n] bool.

    token, place, group  [n] int64;   sign [n] of the advantage;   counts [n] bool, which tokens are compared
    """
    if not len(token):
        return counts
    cell = torch.stack([group, place, token]).unique(dim=1, return_inverse=True)[1]
    n = int(cell.max()) + 1
    up, down = (torch.zeros(n, dtype=torch.bool) for _ in range(2))
    up[cell[counts & (sign > 0)]] = True
    down[cell[counts & (sign < 0)]] = True
    return (up & down)[cell]


@torch.no_grad()
def affix_runs(token: Tensor, trajectory: Tensor, group: Tensor, sign: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Whether a token is in the shared prefix, and in the shared suffix: unbroken runs of `contested` tokens, [n] bool.

    trajectory  [n] int64, by trajectory, then time; places are counted from the start, and for the run at the end from
                the end, so that answers of unequal length are aligned there
    group       [n] int64, of each token's trajectory
    """
    n = int(trajectory.max()) + 1 if len(trajectory) else 0
    begins = begins_of(trajectory, n)
    here = torch.arange(len(token))
    runs = []
    for place in (here - begins[trajectory], begins[1:][trajectory] - 1 - here):
        apart = ~contested(token, place, group, sign, counts)
        before = torch.cat([torch.zeros(1, dtype=torch.int64), apart.long().cumsum(0)])
        runs.append((before[here + 1] - before[begins[trajectory]], before[begins[1:][trajectory]] - before[here]))
    return runs[0][0] == 0, runs[1][1] == 0


@part("shared_affix_mask", stage="weight")
@dataclass(frozen=True)
class SharedAffixMask(WeightPart):
    """Weight of shared prefixes and suffixes (GTPO): `gain` under positive advantage, 0 under negative.

    gain  1 or more; squared for a token in both

    Keeps negative advantages from unlearning what correct and wrong answers share: markup, openings. Tokens are
    compared by id, at the same position among the trainable tokens of an answer, with those of the group's compared
    answers (`affix_runs`); an advantage of 0 is on neither side and has weight 1.

    Source: GTPO, arXiv 2508.03772, and its code.
    """

    gain: float = 2.0

    def __post_init__(self) -> None:
        if not 1 <= self.gain < float("inf"):
            raise ConfigError(f"weight.shared_affix_mask.gain is {self.gain}; it is 1 or more, finite")

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        forest.need_ids("weight.shared_affix_mask")
        entries = forest.path_trainable.nonzero().squeeze(1)
        token, owner, sign = forest.token[forest.path_token[entries]], forest.path_trajectory[entries], credit[entries]
        group = forest.ids("group", axis="R")[owner]
        first, last = affix_runs(token, owner, group, sign, forest.compared[owner] & (token >= 0))
        raised = self.gain ** (first.to(torch.float64) + last.to(torch.float64))
        weight = torch.ones(forest.n_entries, dtype=torch.float64)
        weight[entries] = torch.where(sign > 0, raised, torch.where((sign < 0) & (first | last), 0.0, 1.0))
        return weight
