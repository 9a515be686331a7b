"""Weights by how much each token depends on what the policy was shown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo import levels
from gxpo.errors import ConfigError, MissingSignal
from gxpo.trees import begins_of
from gxpo.weighting.base import WeightPart

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def dependency(logprob: Tensor, masked: Tensor) -> Tensor:
    """[n] float64: D = e^d - d - 1 in [0, 10], d = masked - logprob held in [-20, 20] (k3 of the sampled token).

    Exactly 0 where the two are one but for rounding (1e-5 nats).
    """
    d = (masked.to(torch.float64) - logprob.to(torch.float64)).clamp(-20.0, 20.0)
    d = torch.where(d.abs() <= levels.FORWARD, 0.0, d)
    return (d.expm1() - d).clamp(0.0, 10.0)


@torch.no_grad()
def most_dependent(dependence: Tensor, trajectory: Tensor, share: float) -> Tensor:
    """[n] bool: the ceil(share * length) entries of largest `dependence` of each trajectory; of equals, the earlier.

    trajectory [n] int64, by trajectory, then time

    >>> most_dependent(torch.tensor([0.1, 0.3, 0.2, 0.0, 0.0]), torch.tensor([0, 0, 0, 1, 1]), 0.5).tolist()
    [False, True, True, True, False]
    """
    order = torch.argsort(dependence, descending=True, stable=True)
    order = order[torch.argsort(trajectory[order], stable=True)]
    n = int(trajectory.max()) + 1 if trajectory.numel() else 0
    begins = begins_of(trajectory[order], n)
    place = torch.arange(order.numel()) - begins[trajectory[order]]
    quota = (share * begins.diff().to(torch.float64) - 1e-9).ceil()
    kept = torch.zeros(trajectory.shape, dtype=torch.bool)
    kept[order] = place < quota[trajectory[order]]
    return kept


@torch.no_grad()
def dependency_scale(mean_dependence: Tensor, where: Tensor, least: float = 0.9) -> Tensor:
    """[R] float64: least + (1 - least) x / mean(x), x the mean dependence brought to [0, 1] by the batch's extremes.

    where [R] bool, who enters minimum, maximum and mean; over them the mean scale is 1. The others are held in [0, 1]
    before. 1 for all where the counting members' dependence is equal, or there is none.
    """
    one = torch.zeros(mean_dependence.shape, dtype=torch.int64)
    low, high = levels.min(mean_dependence, one, where), levels.max(mean_dependence, one, where)
    flat = levels.degenerate(mean_dependence, one, where)
    x = ((mean_dependence - low) / torch.where(flat, torch.ones_like(low), high - low)).clamp(0.0, 1.0)
    mean = levels.mean(x, one, where)
    scaled = least + (1 - least) * x / torch.where(flat, torch.ones_like(mean), mean)
    return torch.where(flat, torch.ones_like(scaled), scaled)


@dataclass(frozen=True)
class Perception(WeightPart):
    """`most_dependent` (0 or 1 a token) times `dependency_scale` (one a trajectory): VPPO.

    share  of each trajectory's trainable tokens that are trained; the others keep their place in every denominator,
           so that the loss shrinks with it
    least  scale of the trajectory that depends on the observation least; 1: all alike

    Reads signal `masked_logprob`, against the policy at the start of the step. A trajectory's mean dependence is over
    its trainable tokens; the batch is the step; trajectories that are not compared are in no statistic of it. The paper
    scales the credit: with a gate that is linear in it, as the clips are, weighting the gated loss is the same.

    Source: VPPO, arXiv 2510.09285, and its code.
    """

    share: float = 0.4
    least: float = 0.9

    needs = ("masked_logprob",)

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError(f"weight.perception.share is {self.share}; it is a share of tokens above 0, up to 1")
        if not 0 <= self.least <= 1:
            raise ConfigError(f"weight.perception.least is {self.least}; it is between 0 and 1")

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        entries = forest.path_trainable.nonzero().squeeze(1)
        trajectory = forest.path_trajectory[entries]
        depends = dependency(signals["proximal_logprob"][entries], signals["masked_logprob"][entries])
        if missing := int(depends.isnan().sum()):
            raise MissingSignal(
                f"proximal_logprob or masked_logprob is nan for {missing} of {entries.numel()} trainable tokens"
            )
        n = forest.n_trajectories
        length = torch.bincount(trajectory, minlength=n)
        total = torch.zeros(n, dtype=torch.float64).index_add_(0, trajectory, depends)
        scale = dependency_scale(total / length.clamp_min(1), forest.compared & (length > 0), self.least)
        weight = torch.zeros(forest.n_entries, dtype=torch.float64)
        weight[entries] = most_dependent(depends, trajectory, self.share) * scale[trajectory]
        return weight
