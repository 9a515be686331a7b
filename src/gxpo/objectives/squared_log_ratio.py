"""Reward against a baseline, less the square of the log-ratio: REINFORCE for data of any sampler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gxpo import levels
from gxpo.errors import ConfigError, one_of
from gxpo.objectives.aggregate import AGGREGATES
from gxpo.objectives.base import Evaluated
from gxpo.objectives.sequence_score import (
    ScoreOver,
    Scores,
    SequenceTerm,
    approx_kl,
    counted,
    log_sum_exp,
    token_coefficients,
)

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import PolicyTokens, Signals

BASELINES = ("mean", "log_mean_exp", "others")


def squared_log_ratio(log_ratio: Tensor, credit: Tensor, tau: float = 0.1) -> Tensor:
    """[n] -(r - b) D + (tau / 2) D^2, credit r - b [n] detached, D [n] the log-ratio to the anchor.

    dL/dD = -(r - b - tau D). The regression [r - b - tau D]^2 is 2 tau times this and a constant: the same direction.

    Source: Kimi k1.5, arXiv 2501.12599, section 2.3.2 (online policy mirror descent), there the squared form.
    """
    return -credit.detach() * log_ratio + tau / 2 * log_ratio.square()


@torch.no_grad()
def baseline_of(
    reward: Tensor, log_ratio: Tensor, group: Tensor, kind: str, tau: float, where: Tensor | None = None
) -> Tensor:
    """[R] b_i over the group's counting members (`where` [R] bool, default all). Float64, detached.

    kind  "mean"          of r
          "log_mean_exp"  tau log mean e^(r / tau): tau log Z, what makes r - b - tau D vanish at the optimum
          "others"        mean over the other members of r - tau D: each sample is the others' baseline

    At large tau "log_mean_exp" goes to "mean", at small tau to the group's best reward.
    """
    stats = torch.ones_like(group, dtype=torch.bool) if where is None else where
    if kind == "others":
        return levels.leave_one_out(reward - tau * log_ratio, group, stats)
    if kind == "mean":
        return levels.mean(reward, group, stats)
    sums = log_sum_exp(reward.to(torch.float64) / tau, group, stats)
    return tau * (sums - levels.count(group, stats).clamp_min(1).log())


@dataclass(frozen=True)
class SquaredLogRatio(SequenceTerm):
    """Mean of `squared_log_ratio` over trajectories, or aggregate over tokens, of the outcomes less `baseline_of`.

    tau        what a unit of log-ratio costs, in units of reward; 0 is REINFORCE with a baseline
    baseline   "mean" | "log_mean_exp" | "others" (level "sequence" only)
    level      "sequence": D is the sum over the trajectory's tokens; "token": each token has a loss of its own. The two
               differ: the square of a sum has the products of different tokens
    aggregate  of level "token"; `horizon` for "sequence_sum"
    ratio_over  the anchor: "proximal" (where the step has one, else behaviour), "behaviour" or the frozen "reference"
    on_unknown_behaviour  "error" | "one" (D counts such a token as 0)

    With these settings this is
      OPMD, Kimi k1.5  mean or log_mean_exp, sequence, proximal         arXiv 2501.12599
      verl's "dro", Trinity's and ROLL's OPMD  mean, token (Trinity divides by 1 + tau)
      CoPG             others, sequence, reference                      arXiv 2406.19185
      RLOO             others, sequence, tau 0, on policy               arXiv 2402.14740

    Groups of fewer than two compared trajectories give 0 and count. Groups of equal rewards are pulled to the anchor.
    """

    tau: float = 0.1
    baseline: Literal["mean", "log_mean_exp", "others"] = "mean"
    level: Literal["sequence", "token"] = "sequence"
    aggregate: Literal["token_mean", "sequence_mean", "sequence_sum"] = "token_mean"
    horizon: float | None = None
    ratio_over: ScoreOver = "proximal"
    on_unknown_behaviour: Literal["error", "one"] = "error"

    on_equal = "signal"

    def __post_init__(self) -> None:
        one_of("objective.baseline", self.baseline, BASELINES)
        one_of("objective.level", self.level, ("sequence", "token"))
        one_of("objective.aggregate", self.aggregate, AGGREGATES)
        if self.tau < 0 or (self.baseline == "log_mean_exp" and not self.tau > 0):
            raise ConfigError(f"objective.tau is {self.tau}; it is 0 or more, above 0 for baseline 'log_mean_exp'")
        if self.level == "token" and self.baseline == "others":
            raise ConfigError("objective.baseline 'others' compares whole trajectories: set objective.level=sequence")
        wide = "group" if self.baseline == "others" and self.tau > 0 else "trajectory"
        object.__setattr__(self, "couples", "token" if self.level == "token" else wide)
        self._check_anchor()

    def _read(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor
    ) -> tuple[Scores, Tensor, Tensor, Tensor]:
        """What was read; D and r - b of each sample (a trajectory or a token), and its share of the loss."""
        read = self.scores(forest, policy, credit, weight, "sum")
        stats = counted(forest) & forest.compared
        group, reward = forest.ids("group", axis="R"), forest.outcome.nan_to_num(0.0)
        below = baseline_of(reward, read.score.detach(), group, self.baseline, self.tau, stats)
        if self.level == "token":
            share = token_coefficients(forest, self.aggregate, self.horizon)[read.entries]
            return read, read.gap, (reward - below)[forest.path_trajectory[read.entries]], share
        share = read.run.to(torch.float64) / max(1, int(counted(forest).sum()))
        return read, read.score, reward - below, share

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Evaluated:
        read, log_ratio, above, share = self._read(forest, policy, credit, weight)
        value = (share * squared_log_ratio(log_ratio, above, self.tau)).sum().to(policy.logprob.dtype)
        return value, self._figures(read, log_ratio, above, share)

    @torch.no_grad()
    def _figures(self, read: Scores, log_ratio: Tensor, above: Tensor, share: Tensor) -> dict[str, float]:
        """implicit_reward_gap  root of the mean squared r - b - tau D of what was read, in units of reward
        approx_kl            mean over the read tokens of rho - 1 - log rho
        """
        if not read.gap.numel():
            return {}
        residual = (above - self.tau * log_ratio)[share > 0]
        return {"implicit_reward_gap": float(residual.square().mean().sqrt()), "approx_kl": approx_kl(read.gap)}
