"""Implicit process reward (iStar): a reward model trained by DPO on the better and worse trajectories of a group."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor
from torch.nn.functional import logsigmoid

from gxpo.algorithms.signals.base import OwnModel, SignalTools
from gxpo.forest import grouped
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Signals


@torch.no_grad()
def implicit_reward(
    logprob: Tensor, old_logprob: Tensor, is_counted_P: Tensor, owner_P: Tensor, n: int, beta: float
) -> Tensor:
    """Implicit process reward [n] float64: beta times the sum of (logprob - old_logprob) over the row's counted tokens.

    logprob       [P] of the reward model
    old_logprob   [P] of the policy at the start of the step
    is_counted_P  [P] bool
    owner_P       [P] index of the row (a step, a trajectory) that an entry belongs to; `n` rows

    The rewards of a trajectory's steps add up to beta * log(reward model / old policy) of the whole of it.
    """
    gap = torch.where(is_counted_P, logprob.to(torch.float64) - old_logprob.to(torch.float64), 0.0)
    return beta * torch.zeros(n, dtype=torch.float64).index_add_(0, owner_P, gap)


def preferences(
    outcome: Tensor, group: Tensor, where: Tensor, loss_unit: str = "group"
) -> tuple[Tensor, Tensor, Tensor]:
    """Preference pairs within groups: better [K], worse [K], weight [K] float64.

    outcome [R]; group [R] ids, -1 = in none; where [R] bool, trajectories that take part. The weights add up to 1.
    `loss_unit` "group": those of a group's pairs to 1 / number of groups that have a pair, so that every such group
    counts the same; "pair": every pair does. Equal outcomes are no pair.
    """
    takes = where & outcome.isfinite() & (group >= 0)
    # Outcomes that differ by rounding are equal, and no preference.
    outcome = grouped.settled(outcome, group, takes)
    is_pair = (group[:, None] == group[None]) & (outcome[:, None] > outcome[None]) & takes[:, None] & takes[None]
    better, worse = is_pair.nonzero(as_tuple=True)
    group_of_pair = group[better]
    if loss_unit == "pair":
        return better, worse, torch.full((len(group_of_pair),), 1.0 / max(len(group_of_pair), 1), dtype=torch.float64)
    pairs = torch.bincount(group_of_pair)
    # A group's pairs grow with the square of its size: divided by their number, groups count alike.
    share = (
        1.0 / (pairs[group_of_pair].to(torch.float64) * int((pairs > 0).sum()))
        if len(group_of_pair)
        else outcome.new_zeros(0).double()
    )
    return better, worse, share


def trajectory_dpo(score: Tensor, better: Tensor, worse: Tensor, weight: Tensor, beta: float) -> Tensor:
    """Trajectory-level DPO loss: -sum_k weight_k * log sigmoid(beta * (better score - worse score)), a scalar.

    score   [R] sum over the trajectory's actions of log(reward model / old policy); carries the gradient
    Source: DPO, arXiv 2305.18290, on whole trajectories as in iStar, arXiv 2509.19199.
    """
    return -(weight.to(score) * logsigmoid(beta * (score[better] - score[worse]))).sum()


@part("implicit_reward", stage="signal")
@dataclass(frozen=True)
class ImplicitReward(OwnModel):
    """`implicit_reward` of every step as "process_reward" [S]; the reward model takes `epochs` steps of
    `trajectory_dpo` on the step's rollouts after each update of the policy.

    The reward model begins as a copy of the policy and is this part's own, with an optimiser of its own. Its reference
    is the policy at the start of the step, so it rolls along with the policy. The rewards of a step come from the
    reward model as the steps before have left it: none of its own outcomes are in them, and in the first step, where
    the two models are one, all are 0.

    beta    weighs the log-ratio, in reward and preference alike
    lr      of the reward model
    epochs  optimiser steps on each step's pairs, which are all pairs of different outcomes in a group
    score   of a trajectory in a pair: "sum" of its actions' log-ratios, or their "mean" over its steps
    loss_unit  unit of equal weight in the loss: a "group" that has a pair, or a "pair"
    scale   "largest": the rewards are divided by the largest of the step's in size, and 1e-6; "none". What two forward
            passes may differ by is 0 before that

    Figures: prm_loss and prm_accuracy (share of the pairs' weight that is ordered rightly, ties one half: what two
    forward passes may differ by is no preference), both before the reward model moves, prm_pairs. A step without pairs
    trains nothing and has neither loss nor accuracy.
    """

    beta: Annotated[float, Gt(0)] = 0.05
    lr: Annotated[float, Gt(0)] = 1e-4
    epochs: Annotated[int, Ge(1)] = 1
    score: Literal["sum", "mean"] = "sum"
    loss_unit: Literal["group", "pair"] = "group"
    scale: Literal["none", "largest"] = "none"

    provides = ("process_reward",)
    axes = {"process_reward": "S"}  # noqa: RUF012  never changed
    needs = ("proximal_logprob",)

    def compute(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, Tensor]:
        logprob = self.model.outputs(forest, ("logprob",))["logprob"]
        policy_logprob, is_trainable_P = signals["proximal_logprob"], forest.path_trainable
        reward = implicit_reward(logprob, policy_logprob, is_trainable_P, forest.path_step, forest.n_steps, self.beta)
        # Two forward passes of one model differ by rounding: divided by the largest, that would be a reward of order 1.
        if self.scale == "largest" and forest.n_steps:
            length = torch.bincount(forest.path_step[is_trainable_P], minlength=forest.n_steps)
            reward = torch.where(reward.abs() <= self.beta * grouped.FORWARD * length, 0.0, reward)
            reward = reward / (reward.abs().max() + 1e-6)
        return {"process_reward": reward}

    def learn(self, forest: Forest, signals: Signals, tools: SignalTools) -> dict[str, float]:
        group = forest.ids("group", axis="R")
        better, worse, weight = preferences(forest.outcome, group, forest.compared & forest.scored, self.loss_unit)
        if not len(better):
            return {"prm_pairs": 0.0}
        # Only members of pairs have a gradient: the other entries are left out of the forward pass.
        taking = torch.zeros(forest.n_trajectories, dtype=torch.bool)
        taking[better] = taking[worse] = True
        active = forest.path_trainable & forest.to_path(taking, "R")
        entries = active.nonzero().squeeze(1)
        policy_logprob, rows = signals["proximal_logprob"][entries], forest.path_trajectory[entries]

        # "mean" divides by the steps with tokens, so that long trajectories do not have larger scores.
        steps = torch.ones(forest.n_trajectories, dtype=torch.int64)
        if self.score == "mean":
            acting_steps = forest.path_step[entries].unique()
            steps = torch.bincount(forest.step_trajectory[acting_steps], minlength=forest.n_trajectories).clamp_min(1)

        def score(logprob: Tensor) -> Tensor:
            gap = logprob[entries] - policy_logprob.to(logprob)
            return gap.new_zeros(forest.n_trajectories).index_add(0, rows, gap) / steps.to(gap)

        def loss(x: Mapping[str, Tensor]) -> Tensor:
            return trajectory_dpo(score(x["logprob"]), better, worse, weight, self.beta)

        # Scores of both members are in one term, so that the loss couples a group.
        infos = [
            self.model.step(forest, loss, names=("logprob",), couples="group", active=active)
            for _ in range(self.epochs)
        ]
        # Figures are of the model before its first step: the outputs of the first epoch.
        margin = score(infos[0].outputs["logprob"])
        margin = margin[better] - margin[worse]
        # Log-probs of two forward passes differ by rounding per token: within it a pair is a tie.
        length = torch.bincount(rows, minlength=forest.n_trajectories) / steps
        margin = torch.where(margin.abs() <= grouped.FORWARD * (length[better] + length[worse]), 0.0, margin)
        ordered_weight = (weight * (1 + margin.sign().double()) / 2).sum()
        figures = {"prm_loss": infos[0].loss, "prm_accuracy": float(ordered_weight), "prm_pairs": float(len(better))}
        if skipped := [i.nonfinite for i in infos if i.nonfinite]:
            reason = f"its gradient is not finite (first in {skipped[0]})"
            warnings.warn(f"step {tools.step}: the implicit reward model took no step: {reason}", stacklevel=2)
            figures["prm_nonfinite_steps"] = float(len(skipped))
        return figures

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.meta()} if "model" in self.memory else {}

    def tensors(self) -> dict[str, Tensor]:
        return self.model.tensors() if "model" in self.memory else {}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        self.memory["loaded"] = dict(tensors)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.model.load_tensors(self.memory.pop("loaded"), state["model"])
