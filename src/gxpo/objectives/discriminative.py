"""Scores of successes raised over those of failures, the policy held near the one it started from."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor
from torch.nn.functional import softplus

from gxpo import levels
from gxpo.errors import ConfigError, one_of
from gxpo.objectives.base import Evaluated
from gxpo.objectives.ratio import RATIO_OVER
from gxpo.objectives.sequence_score import (
    LabelTerm,
    approx_kl,
    contrasted,
    counted,
    log_sum_exp,
    n_groups,
    over_groups,
    per_trajectory,
    weighted,
)

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import PolicyTokens, Signals

SCORES = {"logprob": 10.0, "ratio": 1.0}  # and the temperature that goes with each


def discriminative(
    score: Tensor,
    group: Tensor,
    positive: Tensor,
    negative: Tensor,
    tau: float = 10.0,
    compared: Tensor | None = None,
) -> Tensor:
    """-mean over groups of J, J = mean_P s - tau log mean_N e^(s/tau) in groups with both labels, else 0. Float64.

    score     [R]
    group     [R] int64 dense ids
    positive, negative  [R] bool, the counting members by label; every group with one of them is in the mean
    tau       how far hard failures stand out: their weights are softmax_N(s/tau); inf is the plain mean of failures
    compared  [R] bool (default: all); a success that is not is one more of the mean; a failure that is not is set
              against the compared ones and moves nobody else

    dJ/ds is 1/|P| for each success and -softmax_N(s/tau) for each failure: a question weighs the same however hard
    it is. Source: DisCO, arXiv 2505.12366; tau = inf is its DisCO-b.
    """
    stats = torch.ones_like(positive) if compared is None else compared
    both = contrasted(group, positive, negative, stats)
    gain = (score / levels.count(group, positive).clamp_min(1))[both & positive].sum()
    if math.isinf(tau):
        cost = (score / levels.count(group, negative).clamp_min(1))[both & negative].sum()
    else:
        x, theirs = score / tau, negative & stats
        sums = log_sum_exp(x, group, theirs)
        cost = tau * over_groups(sums - levels.count(group, theirs).clamp_min(1).log(), group, both)
        cost = cost + tau * softplus((x - sums.detach())[both & negative & ~stats]).sum()
    return (cost - gain) / n_groups(group, positive | negative)


def hinge(kl: Tensor, delta: float, beta: float, compared: Tensor | None = None) -> Tensor:
    """(beta / 2) max(0, D - delta)^2, D the mean of `kl` [n], estimates of KL(old || policy) by token.

    Its derivative is beta max(0, D - delta) dD: nothing inside the region, a spring outside. Entries that are not
    `compared` [n] bool (default: all) are not in D and are pulled back as hard as the others.

    Source: DisCO, arXiv 2505.12366, the squared-hinge penalty in the place of the constraint D <= delta.
    """
    stats = torch.ones_like(kl, dtype=torch.bool) if compared is None else compared
    n = max(1, int(stats.sum()))
    excess = (kl[stats].sum() / n - delta).clamp_min(0)
    others = kl[~stats].sum() / n
    return beta / 2 * excess.square() + beta * excess.detach() * (others - others.detach())


@dataclass(frozen=True)
class Discriminative(LabelTerm):
    """`discriminative` by the verdict, plus `hinge` on the tokens of the compared groups (DisCO).

    score       "logprob": s = mean log-prob of the trajectory's tokens; "ratio": s = mean of their ratios
    tau         None: 10 for "logprob", 1 for "ratio"; inf: no hard failures (DisCO-b)
    delta       nats per token that the policy may move from the ratio's denominator, measured by mean(old - logprob)
    beta        stiffness of the constraint; 0: none, and then only groups are coupled
    constrained "all": D is over the tokens of every group; "contrasted": of the groups that have both labels
    ratio_over, on_unknown_behaviour   as in the policy gradient
    success_at  None: the verifier's verdict is the label; otherwise: outcome >= success_at

    D is one number for the whole optimiser step. Groups without both labels are run for D alone, and not where there
    is no D, or no group with both labels in the step: then nothing is.
    """

    score: Literal["logprob", "ratio"] = "logprob"
    tau: float | None = field(default=None, metadata={"unbounded": True})
    delta: float = 1e-4
    beta: float = 1e3
    constrained: Literal["all", "contrasted"] = "all"
    ratio_over: Literal["proximal", "behaviour"] = "proximal"
    on_unknown_behaviour: Literal["error", "one"] = "error"
    success_at: float | None = None

    def __post_init__(self) -> None:
        one_of("objective.score", self.score, tuple(SCORES))
        one_of("objective.constrained", self.constrained, ("all", "contrasted"))
        self._check_anchor(RATIO_OVER)
        if self.tau is not None and not self.tau > 0:
            raise ConfigError(f"objective.tau is {self.tau}; it must be above 0, or null for the score's own")
        if self.delta < 0 or self.beta < 0:
            raise ConfigError(f"objective.delta and objective.beta are >= 0, not {self.delta} and {self.beta}")
        object.__setattr__(self, "couples", "step" if self.beta > 0 else "group")

    def reads(self, forest: Forest) -> Tensor:
        found = super().reads(forest)
        if self.beta > 0 and self.constrained == "all" and bool(found.any()):
            return counted(forest)
        return found

    def _score(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Score and whether it was read of each trajectory; log-ratio and whether compared of each entry that was."""
        _, run, entries, gap = self.scores(forest, policy, credit, weight, "mean")
        logprob = policy.logprob[entries].to(torch.float64)
        x = gap.exp() if self.score == "ratio" else weighted(logprob, weight[entries])
        trajectory = forest.path_trajectory[entries]
        score = per_trajectory(x, trajectory, forest.n_trajectories)
        return score, run, gap, forest.compared[trajectory]

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Evaluated:
        score, run, gap, compared = self._score(forest, policy, credit, weight)
        positive, negative = self.sides(forest)
        tau = SCORES[self.score] if self.tau is None else self.tau
        group = forest.ids("group", axis="R")
        loss = discriminative(score, group, positive & run, negative & run, tau, forest.compared)
        loss = self.share(forest, run) * loss + hinge(-gap, self.delta, self.beta, compared)
        return loss.to(policy.logprob.dtype), self._figures(forest, score, run, gap, compared)

    @torch.no_grad()
    def _figures(self, forest: Forest, score: Tensor, run: Tensor, gap: Tensor, compared: Tensor) -> dict[str, float]:
        """score_gap      mean over the groups with both labels of the mean score of successes less that of failures
        constraint_kl  D, nats per token
        approx_kl      mean over the read tokens of rho - 1 - log rho
        """
        if not gap.numel():
            return {}
        return {
            "score_gap": self.score_gap(forest, score, run),
            "constraint_kl": -float(gap[compared].mean()),
            "approx_kl": approx_kl(gap),
        }
