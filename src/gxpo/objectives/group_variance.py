"""Implicit rewards regressed on actual ones, both centred within the group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gxpo import levels
from gxpo.errors import ConfigError
from gxpo.objectives.base import Evaluated
from gxpo.objectives.sequence_score import ScoreOver, SequenceTerm, approx_kl, n_groups

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import PolicyTokens, Signals


def residuals(
    log_ratio: Tensor, reward: Tensor, group: Tensor, beta: float, stats: Tensor, standardise: bool = False
) -> Tensor:
    """[R] beta (D_i - mean_g D) - (r_i - mean_g r), means over `stats` [R] bool, that of D a constant.

    standardise  the first over max(1, its std), the second over its std + 1e-6 (0 where the rewards are equal); one
                 degree of freedom. For members that are not in `stats` the std of D is a constant too.
    """
    implied = beta * (log_ratio - levels.mean(log_ratio.detach(), group, stats))
    if not standardise:
        return implied - (reward - levels.mean(reward, group, stats))
    freedom = (levels.count(group, stats) - 1).clamp_min(1)
    spread = (levels.sum(implied.square(), group, stats) / freedom).clamp_min(1).sqrt()
    scaled = implied / torch.where(stats, spread, spread.detach())
    return scaled - levels.normalize(reward, group, stats, eps=1e-6)


def group_variance(
    log_ratio: Tensor,
    reward: Tensor,
    group: Tensor,
    beta: float = 0.1,
    *,
    where: Tensor | None = None,
    compared: Tensor | None = None,
    standardise: bool = False,
) -> Tensor:
    """mean over groups of (1/2) sum_i [beta (D_i - mean_g D) - (r_i - mean_g r)]^2 / (G - 1), float64.

    log_ratio  [R] D_i: sum over the trajectory's tokens of log policy - log old
    reward     [R]
    group      [R] int64 dense ids
    where      [R] bool, members that count (default: all): G is their number, and so is that of the groups
    compared   [R] bool, those whose D and r enter the means (default: all)
    standardise  see `residuals`

    dL/dD_i = -beta [(r_i - mean r) - beta (D_i - mean D)] / (G - 1) / groups: the mean's own derivative vanishes,
    because the residuals of the compared members sum to 0, and is not taken. Groups with fewer than two compared
    members give 0 and are still in the mean over groups. The minimum over all policies is the one that maximises
    reward - beta KL(policy || old), whoever sampled.

    Standardised, with A the z-scored rewards: while the std of beta D is below 1 this is the same with A for r; beyond
    it is 1 - corr(r, D), whose gradient knows no scale of D.

    With these settings this is
      GVPO      arXiv 2504.19599, eq. of the MSE form; ported code (verl recipe) detaches the mean as well
      Reg-GRPO  standardise, arXiv 2506.07464: mean_i (A_i - z(D)_i)^2 is 2 (G - 1) / G times this where the std of
                beta D is at least 1. The paper divides by the std itself, which is 0 before the first update
      REBEL     beta = 1 / eta, arXiv 2404.16767: the mean over all pairs of [(D_i - D_j) / eta - (r_i - r_j)]^2 is 4
                times this
      CoPG      log_ratio to the reference: 1 / beta times this (see `SquaredLogRatio`, whose form has beta = 0 too)
    """
    own = torch.ones_like(group, dtype=torch.bool) if where is None else where
    stats = own if compared is None else own & compared
    residual = residuals(log_ratio, reward, group, beta, stats, standardise)
    each = residual.square() / 2 / (levels.count(group, own) - 1).clamp_min(1)
    return each[own & (levels.count(group, stats) > 1)].sum() / n_groups(group, own)


@dataclass(frozen=True)
class GroupVariance(SequenceTerm):
    """`group_variance` of the outcomes (GVPO).

    standardise           compare z-scores (Reg-GRPO); 1 / beta is then the least std, in nats, that D is divided by
    ratio_over            what D is measured against: "proximal" (where the step has one, else behaviour), "behaviour",
                          or the frozen "reference", which makes the penalty's anchor stand still
    on_unknown_behaviour  "error" | "one" (D counts such a token as 0)

    Groups of equal rewards are not passed over: there D is regressed to a constant, which is a pull back to the old
    policy once the policy has moved.
    """

    beta: float = 0.1
    standardise: bool = False
    ratio_over: ScoreOver = "proximal"
    on_unknown_behaviour: Literal["error", "one"] = "error"

    on_equal = "signal"

    def __post_init__(self) -> None:
        if not self.beta > 0:
            raise ConfigError(f"objective.beta is {self.beta}; it must be above 0, such as 0.1")
        self._check_anchor()

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Evaluated:
        score, run, _, gap = self.scores(forest, policy, credit, weight, "sum")
        group, reward = forest.ids("group", axis="R"), forest.outcome
        loss = group_variance(
            score, reward, group, self.beta, where=run, compared=forest.compared, standardise=self.standardise
        )
        value = (self.share(forest, run) * loss).to(policy.logprob.dtype)
        return value, self._figures(forest, score, run, gap)

    @torch.no_grad()
    def _figures(self, forest: Forest, score: Tensor, run: Tensor, gap: Tensor) -> dict[str, float]:
        """implicit_reward_gap  root of the mean squared residual, in units of reward (standardised: of its std)
        approx_kl            mean over the read tokens of rho - 1 - log rho
        """
        if not gap.numel():
            return {}
        group, stats = forest.ids("group", axis="R"), run & forest.compared
        residual = residuals(score, forest.outcome, group, self.beta, stats, self.standardise)
        return {
            "implicit_reward_gap": float(residual[run].square().mean().sqrt()),
            "approx_kl": approx_kl(gap),
        }
