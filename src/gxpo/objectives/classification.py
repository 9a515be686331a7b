"""Verdicts as labels: trajectories classified by how much likelier the policy makes them than before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from gxpo import levels
from gxpo.errors import ConfigError, one_of
from gxpo.objectives.sequence_score import (
    SCORE_OVER,
    ScoreOver,
    SequenceTerm,
    contrasted,
    labels,
    log_ratios,
    log_sum_exp,
    n_groups,
    over_groups,
    per_trajectory,
    rows_of,
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
class Classification(SequenceTerm):
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
        one_of("objective.ratio_over", self.ratio_over, SCORE_OVER)
        one_of("objective.on_unknown_behaviour", self.on_unknown_behaviour, ("error", "one"))
        object.__setattr__(self, "needs", ("reference_logprob",) if self.ratio_over == "reference" else ())

    def reads(self, forest: Forest) -> Tensor:
        """Groups with a compared success and a compared failure."""
        sides = labels(forest, self.success_at, "this objective")
        return contrasted(forest.ids("group", axis="R"), *sides, forest.compared)

    def _score(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Score and whether it was read of each trajectory; the log-ratio of each entry that was."""
        entries = self.active(forest, credit, weight).nonzero().squeeze(1)
        gap = log_ratios(forest, policy, entries, weight, self.ratio_over, self.on_unknown_behaviour)
        score = per_trajectory(gap, forest.path_trajectory[entries], forest.n_trajectories)
        return score, rows_of(forest, entries), gap

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Tensor:
        score, run, _ = self._score(forest, policy, credit, weight)
        positive, negative = labels(forest, self.success_at, "this objective")
        group = forest.ids("group", axis="R")
        loss = classification(score, group, positive & run, negative & run, self.tau, forest.compared)
        return (self.share(forest, run) * loss).to(policy.logprob.dtype)

    @torch.no_grad()
    def metrics(
        self,
        forest: Forest,
        policy: PolicyTokens,
        credit: Tensor,
        weight: Tensor,
        signals: Signals | None = None,
    ) -> dict[str, float]:
        """score_gap  mean over the groups with both labels of the mean score of successes less that of failures
        approx_kl  mean over the read tokens of rho - 1 - log rho
        """
        score, run, gap = self._score(forest, policy, credit, weight)
        if not gap.numel():
            return {}
        positive, negative = labels(forest, self.success_at, "this objective")
        group = forest.ids("group", axis="R")
        apart = levels.mean(score, group, positive) - levels.mean(score, group, negative)
        return {
            "score_gap": float(over_groups(apart, group, run)) / n_groups(group, run),
            "approx_kl": float((gap.expm1() - gap).mean()),
        }
