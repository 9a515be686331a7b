"""Supervised learning on successes and failures: failures by the negative policy that the positive one implies."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gxpo import levels
from gxpo.errors import ConfigError, one_of
from gxpo.objectives.aggregate import AGGREGATES
from gxpo.objectives.base import Evaluated
from gxpo.objectives.sequence_score import LabelTerm, ScoreOver, Scores, approx_kl, counted, token_coefficients

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import PolicyTokens, Signals

EMPHASIS = ("failure_rate", "root_odds")


def valued(x: Tensor, value: Tensor) -> Tensor:
    """`value`, with the derivative of `x` (straight through)."""
    held = x.detach()
    return value.detach() + (x - held)


def implied_negative(log_ratio: Tensor, rate: Tensor, log_ratio_max: float = 10.0) -> Tensor:
    """[n] (1 - q rho) / (1 - q): the ratio of the negative policy that old = q positive + (1 - q) negative implies.

    log_ratio  [n] log rho of the policy, which is the positive one; beyond `log_ratio_max` the value is that of the
               bound, with a derivative still
    rate       [n] q in (0, 1), detached

    Below 0 where rho > 1 / q: no negative policy fits there.
    """
    rho = valued(log_ratio, log_ratio.clamp_max(log_ratio_max)).exp()
    return (1 - rate * rho) / (1 - rate)


def implicit_negative(
    log_ratio: Tensor, rate: Tensor, positive: Tensor, floor: float = 1.0, log_ratio_max: float = 10.0
) -> Tensor:
    """[n] -log rho of tokens of successes, -log max(negative ratio, floor) of those of failures.

    positive  [n] bool
    floor     above 0: on the value alone, the derivative passes

    The derivative in the log-prob is -1 for a success, q rho / (1 - q) / max((1 - q rho) / (1 - q), floor) for a
    failure: floored, it grows with rho and has no pole at rho = 1 / q. A clamp of the derivative as well would let go
    of the very failures that have become likelier.

    Source: NFT, arXiv 2505.18116, and its code (floor 1, log-ratios up to 10).
    """
    ratio = implied_negative(log_ratio, rate, log_ratio_max)
    return torch.where(positive, -log_ratio, -valued(ratio, ratio.clamp_min(floor)).log())


@dataclass(frozen=True)
class ImplicitNegative(LabelTerm):
    """Aggregate of `implicit_negative` by the verdict, times a weight of the group (NFT).

    floor            least value of the negative ratio; 1 holds the derivative to q rho / (1 - q)
    negative_weight  of failures' losses; 0 is fine-tuning on successes
    emphasis         weight of a group of success rate q: "failure_rate": 1 - q; "root_odds": sqrt((1 - q) / q), which
                     on policy is GRPO with population std
    rate_min         q is held in [rate_min, 1 - rate_min]
    aggregate        of the tokens; `horizon` for "sequence_sum"
    ratio_over, on_unknown_behaviour   as in the policy gradient
    success_at       None: the verifier's verdict is the label; otherwise: outcome >= success_at

    q is over the compared trajectories. Groups without a compared success and failure are not run, and count.
    """

    floor: float = 1.0
    negative_weight: float = 1.0
    emphasis: Literal["failure_rate", "root_odds"] = "failure_rate"
    rate_min: float = 0.02
    aggregate: Literal["token_mean", "sequence_mean", "sequence_sum"] = "sequence_sum"
    horizon: float | None = None
    ratio_over: ScoreOver = "proximal"
    on_unknown_behaviour: Literal["error", "one"] = "error"
    success_at: float | None = None

    couples = "token"

    def __post_init__(self) -> None:
        one_of("objective.emphasis", self.emphasis, EMPHASIS)
        one_of("objective.aggregate", self.aggregate, AGGREGATES)
        if not self.floor > 0:
            raise ConfigError(f"objective.floor is {self.floor}; it is the least value of a ratio, above 0, such as 1")
        if self.negative_weight < 0:
            raise ConfigError(f"objective.negative_weight is {self.negative_weight}; it is 0 or more")
        if not 0 < self.rate_min <= 0.5:
            raise ConfigError(f"objective.rate_min is {self.rate_min}; it is a rate above 0, up to 0.5")
        self._check_anchor()

    def _labelled(self, forest: Forest, entries: Tensor) -> tuple[Tensor, Tensor]:
        """[n], [n] of these entries: whether of a success, and q."""
        good, _ = self.sides(forest)
        rate = levels.mean(good.to(torch.float64), forest.ids("group", axis="R"), counted(forest) & forest.compared)
        rows = forest.path_trajectory[entries]
        return good[rows], rate[rows].clamp(self.rate_min, 1 - self.rate_min)

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Evaluated:
        read = self.scores(forest, policy, credit, weight, "mean")
        _, _, entries, gap = read
        positive, rate = self._labelled(forest, entries)
        share = token_coefficients(forest, self.aggregate, self.horizon)[entries]
        share = share * ((1 - rate) if self.emphasis == "failure_rate" else ((1 - rate) / rate).sqrt())
        share = share * torch.where(positive, 1.0, self.negative_weight)
        value = (share * implicit_negative(gap, rate, positive, self.floor)).sum().to(policy.logprob.dtype)
        return value, self._figures(forest, read, positive, rate)

    @torch.no_grad()
    def _figures(self, forest: Forest, read: Scores, positive: Tensor, rate: Tensor) -> dict[str, float]:
        """score_gap      mean over the groups that were read of the mean score of successes less that of failures
        clip_fraction  of all trainable entries, those of failures whose negative ratio is below the floor
        approx_kl      mean over the read tokens of rho - 1 - log rho
        """
        score, run, _, gap = read
        if not gap.numel():
            return {}
        below = ~positive & (implied_negative(gap, rate) < self.floor)
        return {
            "score_gap": self.score_gap(forest, score, run),
            "clip_fraction": float(below.sum()) / int(forest.path_trainable.sum()),
            "approx_kl": approx_kl(gap),
        }
