"""Uniform-policy value loss (ROVER): a Bellman residual on every token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gxpo.algorithms.objectives.sequence_score import (
    Figures,
    Scores,
    SequenceLoss,
    counted_trajectories,
    token_coefficients,
)
from gxpo.algorithms.objectives.surrogate import Positive, Width
from gxpo.base.errors import MissingSignal
from gxpo.forest import grouped
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import PolicyTokens, Signals

Aggregate = Literal["token_mean", "sequence_mean", "sequence_sum"]


@torch.no_grad()
def next_value(change: Tensor, trajectory: Tensor) -> Tensor:
    """Next token's `change` within a trajectory, [n], 0 at its last; both columns [n] in path order.

    >>> next_value(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 0, 1])).tolist()
    [2.0, 0.0, 0.0]
    """
    follows = torch.zeros_like(trajectory, dtype=torch.bool)
    follows[:-1] = trajectory[1:] == trajectory[:-1]
    return torch.where(follows, change.roll(-1), torch.zeros_like(change))


def uniform_value(log_ratio: Tensor, reward: Tensor, following: Tensor, scale: float = 1.0) -> Tensor:
    """Bellman residual of ROVER, [n]: (scale D_t - y_t)^2, y_t = reward + following, Q_t = scale D_t.

    log_ratio  [n] D_t = log policy - log old of each token
    reward     [n] of its trajectory, centred in the group
    following  [n] value of the next state, see `UniformValue`; reward and value are taken as constants

    dL/dD = 2 scale (scale D - y). On policy, where D and `following` are 0: REINFORCE, times 2 scale.

    Source: ROVER, arXiv 2509.24981, and its code, which detaches the whole target.
    """
    return (scale * log_ratio - (reward + following).detach()).square()


@part("uniform_value", stage="term")
@dataclass(frozen=True)
class UniformValue(SequenceLoss):
    """Q-learning on the value of the uniform policy (ROVER): aggregate of `uniform_value` over the trained tokens.

    With u_t = mean over the vocabulary of log policy - log old, in the state where token t is chosen: the value of that
    state under actions drawn uniformly, in units of the log-ratio. y_t = r_i - mean_g r + next_scale u_{t+1}, without
    the last at the trajectory's last trained token.

    scale       of the log-ratio, as Q
    next_scale  of the next state's value; 0 is a regression on the reward alone
    aggregate   of the tokens; `horizon` for "sequence_sum"

    Reads the policy's output "mean_logprob" and the signal "start_mean_logprob", the same at the start of the step, so
    `old` is that policy. Groups of fewer than two compared trajectories give 0 and count; groups of equal rewards are
    pulled to what the next states say.
    """

    scale: Positive = 1.0
    next_scale: Width = 1.0
    aggregate: Aggregate = "token_mean"
    horizon: float | None = None

    couples = "trajectory"
    outputs = ("logprob", "mean_logprob")
    needs = ("start_mean_logprob",)
    learns_from_equal_groups = True

    def loss(self, forest: Forest, policy: PolicyTokens, signals: Signals, x: Scores) -> tuple[Tensor, Figures]:
        if "mean_logprob" not in policy.outputs:
            raise MissingSignal(
                "this objective reads the policy's mean log-prob over the vocabulary: output mean_logprob"
            )
        # both are constants: the target of the residual is not differentiated (ROVER's code detaches it whole)
        change_P = policy.outputs["mean_logprob"].detach() - signals["start_mean_logprob"].detach()
        change_P, rows = change_P[x.entries].to(torch.float64), forest.path_trajectory[x.entries]
        if missing := int(change_P.isnan().sum()):
            raise MissingSignal(f"mean_logprob or start_mean_logprob is nan for {missing} of {len(rows)} tokens")
        # unscored trajectories are not read; their nan must not reach the group's mean
        reward = forest.outcome.nan_to_num(0.0)
        centred_R = reward - grouped.mean(reward, x.group, counted_trajectories(forest) & forest.compared)
        token_loss = uniform_value(x.gap, centred_R[rows], self.next_scale * next_value(change_P, rows), self.scale)
        share = token_coefficients(forest, self.aggregate, self.horizon)[x.entries]
        return (share * token_loss).sum(), {"implicit_reward_gap": token_loss.detach().mean().sqrt()}
