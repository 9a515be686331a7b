"""Sequence-level losses: REAL, DisCO, GVPO and Reg-GRPO, OPMD and CoPG, NFT."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from annotated_types import Interval
from torch import Tensor
from torch.nn.functional import softplus

from gxpo.algorithms.objectives.score_over import factors
from gxpo.algorithms.objectives.sequence_score import (
    Figures,
    LabelledLoss,
    Scores,
    SequenceLoss,
    counted_trajectories,
    is_contrasted,
    log_sum_exp,
    n_groups,
    over_groups,
    per_trajectory,
    token_coefficients,
    weight_gradients,
)
from gxpo.algorithms.objectives.surrogate import Positive, Width
from gxpo.base.errors import ConfigError
from gxpo.forest import grouped
from gxpo.parts.functions import UNBOUNDED
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import PolicyTokens, Signals

Aggregate = Literal["token_mean", "sequence_mean", "sequence_sum"]
Denominator = Literal["proximal", "behaviour"]


def classification(
    score: Tensor,
    group: Tensor,
    positive: Tensor,
    negative: Tensor,
    tau: float = 0.5,
    compared: Tensor | None = None,
) -> Tensor:
    """REAL's classification loss of scores: sum over groups with both labels of log(1 + sum_N e^(s/tau)) +
    log(1 + sum_P e^(-s/tau)), divided by the number of all groups.

    score     [R] mean over the trajectory's tokens of log policy - log old
    group     [R] int64 dense ids
    positive, negative  [R] bool, the counting members by label; every group with one of them is in the denominator
    compared  [R] bool (default: all); a member that is not is set against the compared ones of its own label:
              it adds log(1 + e^(x - stop(log(1 + sum of theirs)))) and moves no other

    The 1 is an anchor at score 0: dL/ds is (1/tau) e^(s/tau) / (1 + sum_N e^(s/tau)) for a negative, minus the same of
    -s for a positive, so in (0, 1/tau) whatever the scores. Float64.

    Source: REAL, arXiv 2602.05630, and its code, which also has a product form and a binary cross-entropy: not here.
    """
    stats = torch.ones_like(positive) if compared is None else compared
    both = is_contrasted(group, positive, negative, stats)
    total = score.new_zeros((), dtype=torch.float64)
    for sign, side in ((1.0, negative), (-1.0, positive)):
        x = sign * score / tau
        sums = log_sum_exp(x, group, side & stats, plus_one=True)
        total = total + over_groups(sums, group, both) + softplus((x - sums.detach())[both & side & ~stats]).sum()
    return total / n_groups(group, positive | negative)


@part("classification", stage="term")
@dataclass(frozen=True)
class Classification(LabelledLoss):
    """Rewards as labels (REAL): the `classification` loss by the verdict.

    tau         temperature of the scores
    """

    tau: Positive = 0.5

    how = "mean"

    def loss(self, forest: Forest, policy: PolicyTokens, signals: Signals, x: Scores) -> tuple[Tensor, Figures]:
        positive, negative = self.sides(forest)
        loss = classification(x.score, x.group, positive & x.run, negative & x.run, self.tau, forest.compared)
        return self.share(forest, x.run) * loss, {"score_gap": self.score_gap(forest, x.score, x.run)}


SCORES = {"logprob": 10.0, "ratio": 1.0}  # and the temperature that goes with each


def discriminative(
    score: Tensor,
    group: Tensor,
    positive: Tensor,
    negative: Tensor,
    tau: float = 10.0,
    compared: Tensor | None = None,
) -> Tensor:
    """DisCO's discriminative loss of scores, float64: -mean over groups of J, J = mean_P s - tau log mean_N e^(s/tau)
    in groups with both labels, else 0.

    score     [R]
    group     [R] int64 dense ids
    positive, negative  [R] bool, the counting members by label; every group with one of them is in the mean
    tau       emphasis on hard failures: their weights are softmax_N(s/tau); inf is the plain mean of failures
    compared  [R] bool (default: all); a success that is not is one more of the mean; a failure that is not is set
              against the compared ones and moves no other

    dJ/ds is 1/|P| for each success and -softmax_N(s/tau) for each failure: a question weighs the same however hard
    it is. Source: DisCO, arXiv 2505.12366; tau = inf is its DisCO-b.
    """
    # gain: successes, each by its share of the group's; cost: failures, hard ones (of high score) more
    in_statistics = torch.ones_like(positive) if compared is None else compared
    both = is_contrasted(group, positive, negative, in_statistics)
    gain = (score / grouped.count(group, positive).clamp_min(1))[both & positive].sum()
    if math.isinf(tau):
        cost = (score / grouped.count(group, negative).clamp_min(1))[both & negative].sum()
    else:
        x, rivals = score / tau, negative & in_statistics
        sums = log_sum_exp(x, group, rivals)
        cost = tau * over_groups(sums - grouped.count(group, rivals).clamp_min(1).log(), group, both)
        # a failure that is not compared is set against the compared ones, held constant, and moves itself alone
        cost = cost + tau * softplus((x - sums.detach())[both & negative & ~in_statistics]).sum()
    return (cost - gain) / n_groups(group, positive | negative)


def hinge(kl: Tensor, delta: float, beta: float, compared: Tensor | None = None) -> Tensor:
    """Squared-hinge KL constraint (DisCO): (beta / 2) max(0, D - delta)^2, D the mean of `kl` [n], estimates of
    KL(old || policy) by token.

    Its derivative is beta max(0, D - delta) dD: nothing inside the region, a spring outside. Entries that are not
    `compared` [n] bool (default: all) are not in D and are pulled back as hard as the others.

    Source: DisCO, arXiv 2505.12366, the squared-hinge penalty in the place of the constraint D <= delta.
    """
    # value of the compared tokens' constraint, whose slope the others get without being in it
    in_statistics = torch.ones_like(kl, dtype=torch.bool) if compared is None else compared
    n = max(1, int(in_statistics.sum()))
    excess = (kl[in_statistics].sum() / n - delta).clamp_min(0)
    other_kl = kl[~in_statistics].sum() / n
    return beta / 2 * excess.square() + beta * excess.detach() * (other_kl - other_kl.detach())


@part("discriminative", stage="term")
@dataclass(frozen=True)
class Discriminative(LabelledLoss):
    """DisCO: the `discriminative` loss by the verdict, plus `hinge` on the tokens of the compared groups.

    score       "logprob": s = mean log-prob of the trajectory's tokens; "ratio": s = mean of their ratios
    tau         None: 10 for "logprob", 1 for "ratio"; inf: no hard failures (DisCO-b)
    delta       nats per token that the policy may move from the ratio's denominator, measured by mean(old - logprob)
    beta        stiffness of the constraint; 0: none, and then only groups are coupled
    constrained "all": D is over the tokens of every group; "contrasted": of the groups that have both labels

    D is one number for the whole optimiser step. Groups without both labels are run for D alone, and not where there
    is no D, or no group with both labels in the step: then nothing is.
    """

    score: Literal["logprob", "ratio"] = "logprob"
    tau: Positive | None = field(default=None, metadata={UNBOUNDED: True})
    delta: Width = 1e-4
    beta: Width = 1e3
    constrained: Literal["all", "contrasted"] = "all"
    ratio_over: Denominator = field(default="proximal", kw_only=True)  # type: ignore[assignment]  # not the reference

    how = "mean"

    def __post_init__(self) -> None:
        object.__setattr__(self, "couples", "step" if self.beta > 0 else "group")

    def reads(self, forest: Forest) -> Tensor:
        contrasted_R = super().reads(forest)
        # the constraint reads every group, but with nothing to learn in the step there is no move to constrain
        if self.beta > 0 and self.constrained == "all" and bool(contrasted_R.any()):
            return counted_trajectories(forest)
        return contrasted_R

    def loss(self, forest: Forest, policy: PolicyTokens, signals: Signals, x: Scores) -> tuple[Tensor, Figures]:
        # scores: mean log-prob, or mean ratio, of each trajectory's tokens
        logprob = policy.logprob[x.entries].to(torch.float64)
        token_score = x.gap.exp() if self.score == "ratio" else weight_gradients(logprob, x.weight)
        trajectory = forest.path_trajectory[x.entries]
        score, is_compared = per_trajectory(token_score, trajectory, forest.n_trajectories), forest.compared[trajectory]
        positive, negative = self.sides(forest)
        tau = SCORES[self.score] if self.tau is None else self.tau
        loss = discriminative(score, x.group, positive & x.run, negative & x.run, tau, forest.compared)
        # D is over the tokens of compared trajectories, whichever groups the loss has
        constraint_kl = -x.gap[is_compared].detach().mean()
        figures = {"score_gap": self.score_gap(forest, score, x.run), "constraint_kl": constraint_kl}
        return self.share(forest, x.run) * loss + hinge(-x.gap, self.delta, self.beta, is_compared), figures


def residuals(
    log_ratio: Tensor, reward: Tensor, group: Tensor, beta: float, stats: Tensor, standardise: bool = False
) -> Tensor:
    """Residuals of implicit against actual rewards, [R]: beta (D_i - mean_g D) - (r_i - mean_g r).

    Means are over `stats` [R] bool, that of D a constant.

    standardise  the first over max(1, its std), the second over its std + 1e-6 (0 where the rewards are equal); one
                 degree of freedom. For members that are not in `stats` the std of D is a constant too.
    """
    # the mean of D is a constant: its derivative vanishes, since the residuals of a group sum to 0
    implied_reward = beta * (log_ratio - grouped.mean(log_ratio.detach(), group, stats))
    if not standardise:
        return implied_reward - (reward - grouped.mean(reward, group, stats))
    # of members that are in no statistic the spread is a constant too: they must not move the others
    freedom = (grouped.count(group, stats) - 1).clamp_min(1)
    implied_std = (grouped.sum(implied_reward.square(), group, stats) / freedom).clamp_min(1).sqrt()
    scaled_reward = implied_reward / torch.where(stats, implied_std, implied_std.detach())
    return scaled_reward - grouped.normalize(reward, group, stats, eps=1e-6)


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
    """GVPO loss, float64: mean over groups of (1/2) sum_i [beta (D_i - mean_g D) - (r_i - mean_g r)]^2 / (G - 1).

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
    counted_R = torch.ones_like(group, dtype=torch.bool) if where is None else where
    in_statistics = counted_R if compared is None else counted_R & compared
    # groups of fewer than two compared members have nothing to compare; they stay in the mean over groups
    residual = residuals(log_ratio, reward, group, beta, in_statistics, standardise)
    loss_R = residual.square() / 2 / (grouped.count(group, counted_R) - 1).clamp_min(1)
    return loss_R[counted_R & (grouped.count(group, in_statistics) > 1)].sum() / n_groups(group, counted_R)


@part("group_variance", stage="term")
@dataclass(frozen=True)
class GroupVariance(SequenceLoss):
    """Group variance policy optimisation (GVPO): `group_variance` of the outcomes.

    standardise           compare z-scores (Reg-GRPO); 1 / beta is then the least std, in nats, that D is divided by
    turns                 of which turns D is, see `objectives.score_over`: "answer", all of them; "suffix", from
                          that on in which the group parts; "parting", that one alone (REFUEL)
    ratio_over            what D is measured against: with "reference" the penalty's anchor does not move

    Groups of equal rewards are not passed over: there D is regressed to a constant, which is a pull back to the old
    policy once the policy has moved.
    """

    beta: Positive = 0.1
    standardise: bool = False
    turns: Literal["answer", "suffix", "parting"] = "answer"

    learns_from_equal_groups = True

    def factors(self, forest: Forest) -> Tensor | None:
        return factors(forest, self.turns)

    def loss(self, forest: Forest, policy: PolicyTokens, signals: Signals, x: Scores) -> tuple[Tensor, Figures]:
        loss = group_variance(
            x.score, forest.outcome, x.group, self.beta,
            where=x.run, compared=forest.compared, standardise=self.standardise,
        )  # fmt: skip
        in_statistics = x.run & forest.compared
        residual = residuals(x.score.detach(), forest.outcome, x.group, self.beta, in_statistics, self.standardise)
        return self.share(forest, x.run) * loss, {"implicit_reward_gap": residual[x.run].square().mean().sqrt()}


def squared_log_ratio(log_ratio: Tensor, credit: Tensor, tau: float = 0.1) -> Tensor:
    """OPMD and CoPG loss, [n]: -(r - b) D + (tau / 2) D^2, advantage r - b [n] detached, D [n] the log-ratio.

    dL/dD = -(r - b - tau D). The regression [r - b - tau D]^2 is 2 tau times this and a constant: the same direction.

    Source: Kimi k1.5, arXiv 2501.12599, section 2.3.2 (online policy mirror descent), there the squared form.
    """
    return -credit.detach() * log_ratio + tau / 2 * log_ratio.square()


@torch.no_grad()
def baseline_of(
    reward: Tensor, log_ratio: Tensor, group: Tensor, kind: str, tau: float, where: Tensor | None = None
) -> Tensor:
    """Baseline of each trajectory, [R], over the group's members in `where` ([R] bool, default all). Float64, detached.

    kind  "mean"          of r
          "log_mean_exp"  tau log mean e^(r / tau): tau log Z, what makes r - b - tau D vanish at the optimum
          "others"        mean over the other members of r - tau D: each sample is the others' baseline

    At large tau "log_mean_exp" goes to "mean", at small tau to the group's best reward.
    """
    in_statistics = torch.ones_like(group, dtype=torch.bool) if where is None else where
    if kind == "others":
        return grouped.leave_one_out(reward - tau * log_ratio, group, in_statistics)
    if kind == "mean":
        return grouped.mean(reward, group, in_statistics)
    sums = log_sum_exp(reward.to(torch.float64) / tau, group, in_statistics)
    return tau * (sums - grouped.count(group, in_statistics).clamp_min(1).log())


@part("squared_log_ratio", stage="term")
@dataclass(frozen=True)
class SquaredLogRatio(SequenceLoss):
    """Squared log-ratio loss (OPMD, CoPG) of the outcomes less `baseline_of`: mean over trajectories or over tokens.

    tau        what a unit of log-ratio costs, in units of reward; 0 is REINFORCE with a baseline
    baseline   "mean" | "log_mean_exp" | "others" (level "sequence" only)
    level      "sequence": D is the sum over the trajectory's tokens; "token": each token has a loss of its own. The two
               differ: the square of a sum has the products of different tokens
    aggregate  of level "token"; `horizon` for "sequence_sum"
    ratio_over  the anchor

    With these settings this is
      OPMD, Kimi k1.5  mean or log_mean_exp, sequence, proximal         arXiv 2501.12599
      verl's "dro", Trinity's and ROLL's OPMD  mean, token (Trinity divides by 1 + tau)
      CoPG             others, sequence, reference                      arXiv 2406.19185
      RLOO             others, sequence, tau 0, on policy               arXiv 2402.14740

    Groups of fewer than two compared trajectories give 0 and count. Groups of equal rewards are pulled to the anchor.
    """

    tau: Width = 0.1
    baseline: Literal["mean", "log_mean_exp", "others"] = "mean"
    level: Literal["sequence", "token"] = "sequence"
    aggregate: Aggregate = "token_mean"
    horizon: float | None = None

    learns_from_equal_groups = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.baseline == "log_mean_exp" and self.tau == 0:
            raise ConfigError(f"objective.tau is {self.tau}; it is 0 or more, above 0 for baseline 'log_mean_exp'")
        if self.level == "token" and self.baseline == "others":
            raise ConfigError("objective.baseline 'others' compares whole trajectories: set objective.level=sequence")
        # other members enter a derivative only where their log-ratios are in the baseline
        sequence_couples = "group" if self.baseline == "others" and self.tau > 0 else "trajectory"
        object.__setattr__(self, "couples", "token" if self.level == "token" else sequence_couples)

    def loss(self, forest: Forest, policy: PolicyTokens, signals: Signals, x: Scores) -> tuple[Tensor, Figures]:
        in_statistics, reward = counted_trajectories(forest) & forest.compared, forest.outcome.nan_to_num(0.0)
        advantage = reward - baseline_of(reward, x.score.detach(), x.group, self.baseline, self.tau, in_statistics)
        # a trajectory's one term, or its tokens' terms, with the coefficients of that mean
        log_ratio, share = x.score, x.run.to(torch.float64) / max(1, int(counted_trajectories(forest).sum()))
        if self.level == "token":
            share = token_coefficients(forest, self.aggregate, self.horizon)[x.entries]
            log_ratio, advantage = x.gap, advantage[forest.path_trajectory[x.entries]]
        residual = (advantage - self.tau * log_ratio.detach())[share > 0]
        figures = {"implicit_reward_gap": residual.square().mean().sqrt()}
        return (share * squared_log_ratio(log_ratio, advantage, self.tau)).sum(), figures


def straight_through(x: Tensor, value: Tensor) -> Tensor:
    """Straight-through estimator: the value of `value` with the derivative of `x`."""
    constant = x.detach()
    return value.detach() + (x - constant)


def implied_negative(log_ratio: Tensor, rate: Tensor, log_ratio_max: float = 10.0) -> Tensor:
    """Ratio of NFT's implicit negative policy, [n]: (1 - q rho) / (1 - q), from old = q positive + (1 - q) negative.

    log_ratio  [n] log rho of the policy, which is the positive one; beyond `log_ratio_max` the value is that of the
               bound, with a derivative still
    rate       [n] q in (0, 1), detached

    Below 0 where rho > 1 / q: no negative policy fits there.
    """
    # bounded in value, so that exp does not overflow, with a derivative beyond the bound
    rho = straight_through(log_ratio, log_ratio.clamp_max(log_ratio_max)).exp()
    return (1 - rate * rho) / (1 - rate)


def implicit_negative(
    log_ratio: Tensor, rate: Tensor, positive: Tensor, floor: float = 1.0, log_ratio_max: float = 10.0
) -> Tensor:
    """NFT loss, [n]: -log rho of tokens of successes, -log max(negative ratio, floor) of those of failures.

    positive  [n] bool
    floor     above 0: on the value alone, the derivative passes

    The derivative in the log-prob is -1 for a success, q rho / (1 - q) / max((1 - q rho) / (1 - q), floor) for a
    failure: floored, it grows with rho and has no pole at rho = 1 / q. A clamp of the derivative as well would let go
    of the very failures that have become likelier.

    Source: NFT, arXiv 2505.18116, and its code (floor 1, log-ratios up to 10).
    """
    ratio = implied_negative(log_ratio, rate, log_ratio_max)
    return torch.where(positive, -log_ratio, -straight_through(ratio, ratio.clamp_min(floor)).log())


@part("implicit_negative", stage="term")
@dataclass(frozen=True)
class ImplicitNegative(LabelledLoss):
    """Negative-aware fine-tuning (NFT): aggregate of `implicit_negative` by the verdict, times a weight of the group.

    floor            least value of the negative ratio; 1 holds the derivative to q rho / (1 - q)
    negative_weight  of failures' losses; 0 is fine-tuning on successes
    emphasis         weight of a group of success rate q: "failure_rate": 1 - q; "root_odds": sqrt((1 - q) / q), which
                     on policy is GRPO with population std
    rate_min         q is held in [rate_min, 1 - rate_min]
    aggregate        of the tokens; `horizon` for "sequence_sum"

    q is over the compared trajectories. Groups without a compared success and failure are not run, and count.
    """

    floor: Positive = 1.0
    negative_weight: Width = 1.0
    emphasis: Literal["failure_rate", "root_odds"] = "failure_rate"
    rate_min: Annotated[float, Interval(gt=0, le=0.5)] = 0.02
    aggregate: Aggregate = "sequence_sum"
    horizon: float | None = None

    couples = "token"
    how = "mean"

    def loss(self, forest: Forest, policy: PolicyTokens, signals: Signals, x: Scores) -> tuple[Tensor, Figures]:
        """Loss, and metrics: clip_fraction is the share of tokens of failures with a negative ratio below the floor."""
        # q by group, held away from 0 and 1, where the implicit policy has a pole
        success_R, _ = self.sides(forest)
        rate = grouped.mean(success_R.to(torch.float64), x.group, counted_trajectories(forest) & forest.compared)
        rows = forest.path_trajectory[x.entries]
        positive, rate = success_R[rows], rate[rows].clamp(self.rate_min, 1 - self.rate_min)
        share = token_coefficients(forest, self.aggregate, self.horizon)[x.entries]
        # how much a group counts, and within it a failure against a success
        share = share * ((1 - rate) if self.emphasis == "failure_rate" else ((1 - rate) / rate).sqrt())
        share = share * torch.where(positive, 1.0, self.negative_weight)
        is_floored = ~positive & (implied_negative(x.gap.detach(), rate) < self.floor)
        figures = {
            "score_gap": self.score_gap(forest, x.score, x.run),
            "clip_fraction": float(is_floored.sum()) / max(1, int(forest.path_trainable.sum())),
        }
        return (share * implicit_negative(x.gap, rate, positive, self.floor)).sum(), figures
