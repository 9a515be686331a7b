"""Log-ratios regressed, token by token, on the value of the policy that acts at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gxpo import levels
from gxpo.errors import ConfigError, MissingSignal, one_of
from gxpo.objectives.aggregate import AGGREGATES
from gxpo.objectives.base import Evaluated
from gxpo.objectives.sequence_score import ScoreOver, SequenceTerm, approx_kl, counted, token_coefficients

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import PolicyTokens, Signals


@torch.no_grad()
def next_value(change: Tensor, trajectory: Tensor) -> Tensor:
    """[n] `change` of the next token of the same trajectory, 0 at its last; both columns [n] in path order.

    >>> next_value(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 0, 1])).tolist()
    [2.0, 0.0, 0.0]
    """
    follows = torch.zeros_like(trajectory, dtype=torch.bool)
    follows[:-1] = trajectory[1:] == trajectory[:-1]
    return torch.where(follows, change.roll(-1), torch.zeros_like(change))


def uniform_value(log_ratio: Tensor, reward: Tensor, following: Tensor, scale: float = 1.0) -> Tensor:
    """[n] (scale D_t - y_t)^2, y_t = reward + following: a Bellman residual with Q_t = scale D_t.

    log_ratio  [n] D_t = log policy - log old of each token
    reward     [n] of its trajectory, centred in the group
    following  [n] what is expected of the next state: see `UniformValue`; both are taken as constants

    dL/dD = 2 scale (scale D - y). On policy, where D and `following` are 0: REINFORCE, times 2 scale.

    Source: ROVER, arXiv 2509.24981, and its code, which detaches the whole target.
    """
    return (scale * log_ratio - (reward + following).detach()).square()


@dataclass(frozen=True)
class UniformValue(SequenceTerm):
    """Aggregate of `uniform_value` over the trained tokens (ROVER).

    With u_t = mean over the vocabulary of log policy - log old, in the state where token t is chosen: the value of that
    state under actions drawn uniformly, in units of the log-ratio. y_t = r_i - mean_g r + next_scale u_{t+1}, without
    the last at the trajectory's last trained token.

    scale       of the log-ratio, as Q
    next_scale  of the next state's value; 0 is a regression on the reward alone
    aggregate   of the tokens; `horizon` for "sequence_sum"
    ratio_over, on_unknown_behaviour   as in the policy gradient

    Reads the policy's output "mean_logprob" and the signal "start_mean_logprob", the same at the start of the step, so
    `old` is that policy. Groups of fewer than two compared trajectories give 0 and count; groups of equal rewards are
    pulled to what the next states say.
    """

    scale: float = 1.0
    next_scale: float = 1.0
    aggregate: Literal["token_mean", "sequence_mean", "sequence_sum"] = "token_mean"
    horizon: float | None = None
    ratio_over: ScoreOver = "proximal"
    on_unknown_behaviour: Literal["error", "one"] = "error"

    couples = "trajectory"
    outputs = ("logprob", "mean_logprob")
    needs = ("start_mean_logprob",)
    on_equal = "signal"

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ConfigError(f"objective.scale is {self.scale}; it must be above 0, such as 1")
        if self.next_scale < 0:
            raise ConfigError(f"objective.next_scale is {self.next_scale}; it is 0 or more")
        one_of("objective.aggregate", self.aggregate, AGGREGATES)
        self._check_anchor()

    def _targets(
        self, forest: Forest, policy: PolicyTokens, signals: Signals, entries: Tensor
    ) -> tuple[Tensor, Tensor]:
        """[n], [n] of these entries: reward and what follows."""
        if "mean_logprob" not in policy.outputs:
            raise MissingSignal(
                "this objective reads the policy's mean log-prob over the vocabulary: output mean_logprob"
            )
        change = policy.outputs["mean_logprob"].detach() - signals["start_mean_logprob"].detach()
        change, rows = change[entries].to(torch.float64), forest.path_trajectory[entries]
        if missing := int(change.isnan().sum()):
            raise MissingSignal(f"mean_logprob or start_mean_logprob is nan for {missing} of {entries.numel()} tokens")
        group, reward = forest.ids("group", axis="R"), forest.outcome.nan_to_num(0.0)
        centred = reward - levels.mean(reward, group, counted(forest) & forest.compared)
        return centred[rows], self.next_scale * next_value(change, rows)

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Evaluated:
        _, _, entries, gap = self.scores(forest, policy, credit, weight, "sum")
        share = token_coefficients(forest, self.aggregate, self.horizon)[entries]
        reward, following = self._targets(forest, policy, signals, entries)
        each, figures = uniform_value(gap, reward, following, self.scale), dict[str, float]()
        if gap.numel():
            figures = {"implicit_reward_gap": float(each.detach().mean().sqrt()), "approx_kl": approx_kl(gap.detach())}
        return (share * each).sum().to(policy.logprob.dtype), figures
