"""Verdicts as labels: trajectories classified by how much likelier the policy makes them than before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from gxpo.errors import ConfigError
from gxpo.objectives.base import Evaluated
from gxpo.objectives.sequence_score import (
    LabelTerm,
    ScoreOver,
    approx_kl,
    contrasted,
    log_sum_exp,
    n_groups,
    over_groups,
)

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import PolicyTokens, Signals


def classification(
    score: Tensor,
    group: Tensor,
    positive: Tensor,
    negative: Tensor,
    tau: float = 0.5,
    compared: Tensor | None = None,
) -> Tensor:
    """sum over groups with both labels of log(1 + sum_N e^(s/tau)) + log(1 + sum_P e^(-s/tau)), over all groups.

    score     [R] mean over the trajectory's tokens of log policy - log old
    group     [R] int64 dense ids
    positive, negative  [R] bool, the counting members by label; every group with one of them is in the denominator
    compared  [R] bool (default: all); a member that is not is set against the compared ones of its own label:
              it adds log(1 + e^(x - stop(log(1 + sum of theirs)))) and moves nobody else

    The 1 is an anchor at score 0: dL/ds is (1/tau) e^(s/tau) / (1 + sum_N e^(s/tau)) for a negative, minus the same of
    -s for a positive, so in (0, 1/tau) whatever the scores. Float64.

    Source: REAL, arXiv 2602.05630, and its code, which also has a product form and a binary cross-entropy: not here.
    """
    stats = torch.ones_like(positive) if compared is None else compared
    both = contrasted(group, positive, negative, stats)
    total = score.new_zeros((), dtype=torch.float64)
    for sign, side in ((1.0, negative), (-1.0, positive)):
        x = sign * score / tau
        sums = log_sum_exp(x, group, side & stats, one=True)
        total = total + over_groups(sums, group, both) + softplus((x - sums.detach())[both & side & ~stats]).sum()
    return total / n_groups(group, positive | negative)


@dataclass(frozen=True)
class Classification(LabelTerm):
    """`classification` by the verdict (REAL).

    tau         temperature of the scores
    ratio_over  what a score is measured against: "proximal" | "behaviour" | "reference"
    on_unknown_behaviour  "error" | "one"
    success_at  None: the verifier's verdict is the label; otherwise: outcome >= success_at
    """

    tau: float = 0.5
    ratio_over: ScoreOver = "proximal"
    on_unknown_behaviour: Literal["error", "one"] = "error"
    success_at: float | None = None

    def __post_init__(self) -> None:
        if not self.tau > 0:
            raise ConfigError(f"objective.tau is {self.tau}; it must be above 0, such as 0.5")
        self._check_anchor()

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Evaluated:
        score, run, _, gap = self.scores(forest, policy, credit, weight, "mean")
        group, (positive, negative) = forest.ids("group", axis="R"), self.sides(forest)
        loss = classification(score, group, positive & run, negative & run, self.tau, forest.compared)
        value = (self.share(forest, run) * loss).to(policy.logprob.dtype)
        return value, self._figures(forest, score, run, gap)

    @torch.no_grad()
    def _figures(self, forest: Forest, score: Tensor, run: Tensor, gap: Tensor) -> dict[str, float]:
        """score_gap  mean over the groups with both labels of the mean score of successes less that of failures
        approx_kl  mean over the read tokens of rho - 1 - log rho
        """
        if not gap.numel():
            return {}
        return {"score_gap": self.score_gap(forest, score, run), "approx_kl": approx_kl(gap)}
