"""Updates turn by turn, last first (SeeUPO), or agent by agent (HAPPO): a step on each, then corrected advantages."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from gxpo.forest.forest import Forest
from gxpo.forest.grouped import begins_of
from gxpo.learning.base import UpdatePart
from gxpo.parts.protocols import StepInfo, StepRunner
from gxpo.parts.registry import part

FARTHEST = 20.0  # nats: bound of a turn's summed log-ratio


def turn_numbers(forest: Forest) -> tuple[Tensor, Tensor]:
    """[P] int64 each: number of trained turns of the trajectory before and after each token's turn."""
    is_trained_S = torch.bincount(forest.path_step[forest.path_trainable], minlength=forest.n_steps) > 0
    begins = begins_of(forest.step_trajectory, forest.n_trajectories)
    turns_before = torch.cat([torch.zeros(1, dtype=torch.int64), is_trained_S.long().cumsum(0)])
    before = turns_before[:-1] - turns_before[begins[:-1]][forest.step_trajectory]
    after = turns_before[begins[1:]][forest.step_trajectory] - turns_before[1:]
    return forest.to_path(before, "S"), forest.to_path(after, "S")


def turn_ratio(log_ratio: Tensor, trajectory: Tensor, n: int, reduce: str = "mean") -> Tensor:
    """[n] importance ratio of a trajectory: exp of the mean or sum ("product") of log_ratio; 1 without tokens.

    log_ratio   of the turn's tokens, new policy less old (nats); its mean or sum is clamped to +-20
    trajectory  which of the n trajectories each token belongs to

    >>> turn_ratio(torch.tensor([0.1, -0.04]), torch.tensor([0, 0]), 2)
    tensor([1.0305, 1.0000])
    """
    total = log_ratio.new_zeros(n).index_add_(0, trajectory, log_ratio)
    if reduce == "mean":
        total = total / torch.bincount(trajectory, minlength=n).clamp_min(1)
    return total.clamp(-FARTHEST, FARTHEST).exp()


def agent_order(forest: Forest) -> tuple[Tensor, Tensor]:
    """[P] place of each token's agent in an order at random, and [R] index of each trajectory's episode.

    The order depends on the forest alone. Trajectories without `info["episode"]` are episodes by themselves.
    """
    chance = torch.Generator().manual_seed(zlib.crc32("/".join(forest.id).encode()))
    place_A = torch.randperm(len(forest.agent_names), generator=chance)
    names = [info.get("episode", name) for info, name in zip(forest.info, forest.id, strict=True)]
    index = {name: i for i, name in enumerate(dict.fromkeys(names))}
    return forest.to_path(place_A[forest.step_agent], "S"), torch.tensor([index[name] for name in names])


@part("turns_reversed", stage="update")
@dataclass(frozen=True)
class TurnsReversed(UpdatePart):
    """One optimiser step for each turn, last turn first, on that turn's tokens alone (SeeUPO).

    M = the advantage; for k = the last turn, the one before, ...:   a step on the tokens of turn k with c_i M_i;
    c_i <- clip(c_i clip(r_i)),  r_i the geometric mean over those tokens of i of pi_new / pi_old, c_i = 1 at first

    correction_low, correction_high   clip's bounds, relative to 1
    reduce    "mean": the geometric mean over the turn; "product": the turn's own ratio of probabilities
    count     which turns share a step: "start": those of one number from the beginning, so that a trajectory with
              fewer turns joins in later; "end": those as far from the end
    old_policy  pi_old of the correction, which also divides the ratios: "turn": the policy before the step on that
              turn, so that all ratios are 1; "step": that at the start of the step
    unit      "turn"; "agent": a step for each agent, in an order at random, on its tokens. The correction of an episode
              (`info["episode"]`, whose trajectories are those of its agents) is then the ratio of the agents before
    planned_steps  optimiser steps a step that a learning-rate schedule counts on: the turns of a usual trajectory

    pi_new is the policy after the step on the turn; parameters are shared, so a turn's tokens have moved a little
    before it is their turn. Trajectories without a turn sit out: their correction stays. Means of the objective are
    over the turn's tokens and the trajectories that have it. With "end", a token that forks share at different
    distances from their ends counts at each of them, with the tokens of that distance. Turns without trained tokens
    are not counted. With one turn only it is one plain step.

    Costs a forward pass for each turn in addition to its update. Source: SeeUPO, arXiv 2602.06554, and its code; by
    agent: HAPPO, arXiv 2109.11251, and HARL's code, whose factor is that of one step of the world.
    """

    correction_low: Annotated[float, Interval(ge=0, le=1)] = 0.2
    correction_high: Annotated[float, Ge(0)] = field(default=0.2, metadata={"unbounded": True})
    planned_steps: Annotated[int, Ge(1)] = 1
    reduce: Literal["mean", "product"] = "mean"
    count: Literal["start", "end"] = "start"
    old_policy: Literal["turn", "step"] = "turn"
    unit: Literal["turn", "agent"] = "turn"

    def optimiser_steps(self, groups: int) -> int:
        """Expected number of optimiser steps, for schedules; the actual number is the longest trajectory's turns."""
        return self.planned_steps

    def run(self, forest: Forest, credit: Tensor, weight: Tensor, learner: StepRunner) -> list[StepInfo]:
        if self.unit == "agent":
            turn_P, unit_R = agent_order(forest)
        else:
            before, after = turn_numbers(forest)
            turn_P = after if self.count == "end" else -before
            unit_R = torch.arange(forest.n_trajectories)
        turns = turn_P[forest.path_trainable].unique().tolist()
        if len(turns) < 2:
            # a single turn has nothing to correct: one plain step
            return [learner.step(forest, credit, weight)]
        old_logprob, infos = learner.logprob(), []
        n_units = int(unit_R.max()) + 1
        correction_U = torch.ones(n_units, dtype=old_logprob.dtype)
        for k in turns:
            # weight 0 and untrained: all other turns enter neither the gradient nor the denominators
            in_turn_P = turn_P == k
            infos.append(
                learner.step(
                    only(forest, in_turn_P), credit * forest.to_path(correction_U[unit_R], "R"), weight * in_turn_P
                )
            )
            # the correction after the last step would be read by nobody
            if infos[-1].empty or k == turns[-1]:
                continue
            turn_tokens, logprob = (in_turn_P & forest.path_trainable).nonzero().squeeze(1), learner.logprob()
            unit_of_token = unit_R[forest.path_trajectory[turn_tokens]]
            ratio = turn_ratio((logprob - old_logprob)[turn_tokens], unit_of_token, n_units, self.reduce)
            # clipped, each ratio and their product, or a few turns would decide all of the weights
            correction_U = self._clip(correction_U * self._clip(ratio))
            # old="turn": the next ratio is measured from here
            if self.old_policy == "turn":
                old_logprob = logprob
                learner.renew()
        return infos

    def _clip(self, ratio: Tensor) -> Tensor:
        return ratio.clamp(1 - self.correction_low, 1 + self.correction_high)


def only(forest: Forest, entries: Tensor) -> Forest:
    """The forest with only the tokens `entries` [P] bool trained."""
    is_stored_T = torch.zeros(forest.n_tokens, dtype=torch.bool)
    is_stored_T[forest.path_token[entries]] = True
    return forest.replace(trainable=forest.trainable & is_stored_T)
