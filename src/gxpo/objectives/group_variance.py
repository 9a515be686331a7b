"""Implicit rewards regressed on actual ones, both centred within the group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gxpo import levels
from gxpo.errors import ConfigError, one_of
from gxpo.objectives.sequence_score import (
    SCORE_OVER,
    ScoreOver,
    SequenceTerm,
    counted,
    log_ratios,
    n_groups,
    per_trajectory,
    rows_of,
)

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import PolicyTokens, Signals


def group_variance(
    log_ratio: Tensor,
    reward: Tensor,
    group: Tensor,
    beta: float = 0.1,
    *,
    where: Tensor | None = None,
    compared: Tensor | None = None,
) -> Tensor:
    """mean over groups of (1/2) sum_i [beta (D_i - mean_g D) - (r_i - mean_g r)]^2 / (G - 1), float64.

    log_ratio  [R] D_i: sum over the trajectory's tokens of log policy - log old
    reward     [R]
    group      [R] int64 dense ids
    where      [R] bool, members that count (default: all): G is their number, and so is that of the groups
    compared   [R] bool, those whose D and r enter the means (default: all)

    dL/dD_i = -beta [(r_i - mean r) - beta (D_i - mean D)] / (G - 1) / groups: the mean's own derivative vanishes,
    because the residuals of the compared members sum to 0, and is not taken. Groups with fewer than two compared
    members give 0 and are still in the mean over groups. The minimum over all policies is the one that maximises
    reward - beta KL(policy || old), whoever sampled.

    Source: GVPO, arXiv 2504.19599, eq. of the MSE form; ported code (verl recipe) detaches the mean as well.
    """
    own = torch.ones_like(group, dtype=torch.bool) if where is None else where
    stats = own if compared is None else own & compared
    implied = beta * (log_ratio - levels.mean(log_ratio.detach(), group, stats))
    residual = implied - (reward - levels.mean(reward, group, stats))
    each = residual.square() / 2 / (levels.count(group, own) - 1).clamp_min(1)
    return each[own & (levels.count(group, stats) > 1)].sum() / n_groups(group, own)


@dataclass(frozen=True)
class GroupVariance(SequenceTerm):
    """`group_variance` of the outcomes (GVPO).

    ratio_over            what D is measured against: "proximal" (where the step has one, else behaviour), "behaviour",
                          or the frozen "reference", which makes the penalty's anchor stand still
    on_unknown_behaviour  "error" | "one" (D counts such a token as 0)

    Groups of equal rewards are not passed over: there D is regressed to a constant, which is a pull back to the old
    policy once the policy has moved.
    """

    beta: float = 0.1
    ratio_over: ScoreOver = "proximal"
    on_unknown_behaviour: Literal["error", "one"] = "error"

    on_equal = "signal"

    def __post_init__(self) -> None:
        if not self.beta > 0:
            raise ConfigError(f"objective.beta is {self.beta}; it must be above 0, such as 0.1")
        one_of("objective.ratio_over", self.ratio_over, SCORE_OVER)
        one_of("objective.on_unknown_behaviour", self.on_unknown_behaviour, ("error", "one"))
        object.__setattr__(self, "needs", ("reference_logprob",) if self.ratio_over == "reference" else ())

    def reads(self, forest: Forest) -> Tensor:
        """Groups of at least two compared trajectories."""
        own = counted(forest)
        return own & (levels.count(forest.ids("group", axis="R"), own & forest.compared) > 1)

    def _score(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """D and whether it was read of each trajectory; the log-ratio of each entry that was."""
        entries = self.active(forest, credit, weight).nonzero().squeeze(1)
        gap = log_ratios(forest, policy, entries, weight, self.ratio_over, self.on_unknown_behaviour)
        score = per_trajectory(gap, forest.path_trajectory[entries], forest.n_trajectories, "sum")
        return score, rows_of(forest, entries), gap

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Tensor:
        score, run, _ = self._score(forest, policy, credit, weight)
        group = forest.ids("group", axis="R")
        loss = group_variance(score, forest.outcome, group, self.beta, where=run, compared=forest.compared)
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
        """implicit_reward_gap  root of the mean squared residual, in units of reward
        approx_kl            mean over the read tokens of rho - 1 - log rho
        """
        score, run, gap = self._score(forest, policy, credit, weight)
        if not gap.numel():
            return {}
        group, stats = forest.ids("group", axis="R"), run & forest.compared
        residual = self.beta * (score - levels.mean(score, group, stats))
        residual = residual - (forest.outcome - levels.mean(forest.outcome, group, stats))
        return {
            "implicit_reward_gap": float(residual[run].square().mean().sqrt()),
            "approx_kl": float((gap.expm1() - gap).mean()),
        }
