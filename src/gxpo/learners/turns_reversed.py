"""Turns one after another, the last first: a step on each, and credit corrected by what the step did to it."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gxpo.errors import ConfigError
from gxpo.forest import Forest
from gxpo.protocols import StepInfo, StepRunner
from gxpo.trees import begins_of

FARTHEST = 20.0  # nats: bound of a turn's summed log-ratio


def turns_to_go(forest: Forest) -> Tensor:
    """[P] int64: how many trained turns of its trajectory come after the one that the entry is in, 0 in the last."""
    trained = torch.bincount(forest.path_step[forest.path_trainable], minlength=forest.n_steps) > 0
    begins = begins_of(forest.step_trajectory, forest.n_trajectories)
    so_far = torch.cat([torch.zeros(1, dtype=torch.int64), trained.long().cumsum(0)])
    after = so_far[begins[1:]][forest.step_trajectory] - so_far[1:]
    return forest.to_path(after, "S")


def turn_correction(log_ratio: Tensor, trajectory: Tensor, n: int, low: float = 0.2, high: float = 0.2) -> Tensor:
    """[n] clip(exp(sum of log_ratio over the trajectory), 1 - low, 1 + high); 1 for a trajectory without an entry.

    log_ratio   of the turn's tokens, new policy less old (nats); their sum is held in +-20
    trajectory  which of the n trajectories each token belongs to

    >>> turn_correction(torch.tensor([0.1, -0.05]), torch.tensor([0, 0]), 2)
    tensor([1.0513, 1.0000])
    """
    total = log_ratio.new_zeros(n).index_add_(0, trajectory, log_ratio)
    return total.clamp(-FARTHEST, FARTHEST).exp().clamp(1 - low, 1 + high)


@dataclass(frozen=True)
class TurnsReversed:
    """One optimiser step for each turn, counted from the end, on that turn's tokens alone.

    M = the credit; for k = 0 (last turns), 1, ...:  a step on the tokens of the turns k before the end, with credit M;
    M_i <- M_i clip(prod over those tokens of i of pi_new / pi_old, 1 - correction_low, 1 + correction_high)

    correction_low, correction_high   relative to 1, of the product (not the mean) over the turn
    planned   optimiser steps a step that a learning-rate schedule counts on: the turns of a usual trajectory

    pi_old is the policy at the start of the step, which also divides the ratios, pi_new that after the step on the
    turn; parameters are shared, so a turn's tokens have moved a little before it is their turn. Trajectories with fewer
    turns sit out. Means of the objective are over the turn's tokens and the trajectories that have it; a token that
    forks share at different distances from their ends counts at each of them, with the entries of that distance. Turns
    without trained tokens are not counted. With turns of one distance only it is one plain step.

    Costs a forward pass for each turn index, beside its update. Source: SeeUPO, arXiv 2602.06554.
    """

    correction_low: float = 0.2
    correction_high: float = field(default=0.2, metadata={"unbounded": True})
    planned: int = 1

    def __post_init__(self) -> None:
        if not 0 <= self.correction_low <= 1 or not self.correction_high >= 0:
            raise ConfigError(
                "update.correction_low is a width from 0 to 1 and update.correction_high one from 0 on, not "
                f"{self.correction_low} and {self.correction_high}"
            )
        if self.planned < 1:
            raise ConfigError(f"update.planned is {self.planned}; it is a number of optimiser steps, at least 1")

    def optimiser_steps(self, groups: int) -> int:
        """Optimiser steps that a schedule counts on; there are as many as the longest trajectory has turns."""
        return self.planned

    def run(self, forest: Forest, credit: Tensor, weight: Tensor, learner: StepRunner) -> list[StepInfo]:
        to_go = turns_to_go(forest)
        turns = to_go[forest.path_trainable].unique().tolist()
        if len(turns) < 2:
            return [learner.step(forest, credit, weight)]
        old, infos = learner.logprob(), []
        for k in turns:
            here = to_go == k
            infos.append(learner.step(only(forest, here), credit, weight * here))
            if infos[-1].empty or k == turns[-1]:
                continue
            moved = (here & forest.path_trainable).nonzero().squeeze(1)
            factor = turn_correction(
                (learner.logprob() - old)[moved],
                forest.path_trajectory[moved],
                forest.n_trajectories,
                self.correction_low,
                self.correction_high,
            )
            credit = credit * forest.to_path(factor, "R")
        return infos


def only(forest: Forest, entries: Tensor) -> Forest:
    """The forest with no other trained tokens than those of `entries` [P] bool."""
    stored = torch.zeros(forest.n_tokens, dtype=torch.bool)
    stored[forest.path_token[entries]] = True
    return forest.replace(trainable=forest.trainable & stored)
