"""Base classes of sequence-level losses: scores of whole trajectories, compared within their groups."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor

from gxpo.algorithms.objectives.base import Evaluated, TermPart, coefficients
from gxpo.algorithms.objectives.surrogate import denominator
from gxpo.base.errors import MissingSignal, NoVerdicts
from gxpo.forest import grouped

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import PolicyTokens, Signals

ScoreOver = Literal["proximal", "behaviour", "reference"]
Figures = Mapping[str, Tensor | float]


def weight_gradients(x: Tensor, weight: Tensor) -> Tensor:
    """Value of `x`, [n], with each token's derivative times its weight.

    So a weight multiplies what the loss asks of its own token and nothing else: no score, statistic or denominator
    changes, and a trajectory of weight 0 only counts.
    """
    value = x.detach()
    return value + weight.detach().to(x) * (x - value)


def per_trajectory(x: Tensor, trajectory: Tensor, n: int, reduction: str = "mean") -> Tensor:
    """Sum or mean of `x` over each trajectory's tokens, [n], 0 where it has none; carries the gradient."""
    total = x.new_zeros(n).index_add(0, trajectory, x)
    return total if reduction == "sum" else total / torch.bincount(trajectory, minlength=n).clamp_min(1)


def log_sum_exp(x: Tensor, ids: Tensor, where: Tensor, *, plus_one: bool = False) -> Tensor:
    """Log-sum-exp over the counting members of each row's group, [n] float64; with `plus_one`: log(1 + that sum).

    0 for groups without a counting member.
    """
    # measured from the largest member (or from 1's exponent 0), which is a constant: its derivatives cancel
    top = grouped.max(x.detach(), ids, where)
    top = top.clamp_min(0) if plus_one else top
    total = grouped.sum(torch.where(where, x - top, torch.zeros_like(top)).exp(), ids, where)
    total = total + (-top).exp() if plus_one else total
    return top + torch.where(total > 0, total, torch.ones_like(total)).log()


def over_groups(x: Tensor, group: Tensor, where: Tensor) -> Tensor:
    """Sum over groups of a value [R] that is the same for all counting members of a group."""
    return (x / grouped.count(group, where).clamp_min(1))[where].sum()


def counted_trajectories(forest: Forest) -> Tensor:
    """Scored trajectories with trainable tokens, [R] bool; the others are in no denominator."""
    return (forest.lengths() > 0) & forest.scored


def n_groups(group: Tensor, where: Tensor) -> int:
    """Number of groups with a member that counts; at least 1, to divide by."""
    return max(1, int(torch.unique(group[where]).numel()))


def labels(forest: Forest, success_at: float | None, name: str) -> tuple[Tensor, Tensor]:
    """Positive and negative labels, [R] and [R] bool: counted trajectories that are a success, and those that are not.

    success_at  None: the verifier's verdict; otherwise the outcome from which on a trajectory is one
    Raises GxpoError where a verdict is unknown: a shaped reward is not a label.
    """
    counted_R = counted_trajectories(forest)
    if success_at is not None:
        success_R = grouped.reaches(forest.outcome, success_at)
    elif missing := int((forest.success.isnan() & counted_R).sum()):
        raise NoVerdicts(
            name,
            f"{name} learns from verdicts, and {missing} of {int(counted_R.sum())} trajectories have none: give "
            "`success` in the records, use a reward with a verdict, or set objective.success_at to the outcome that "
            "counts as one",
        )
    else:
        success_R = forest.success > 0.5
    return counted_R & success_R, counted_R & ~success_R


def is_contrasted(group: Tensor, positive: Tensor, negative: Tensor, compared: Tensor) -> Tensor:
    """Labelled members of groups that have a compared positive and a compared negative, [R] bool."""

    def group_has(side_R: Tensor) -> Tensor:
        return grouped.max((side_R & compared).to(torch.float64), group) > 0

    return (positive | negative) & group_has(positive) & group_has(negative)


def log_ratios(
    forest: Forest, policy: PolicyTokens, entries: Tensor, weight: Tensor, over: str, on_unknown: str = "error"
) -> Tensor:
    """Log-ratios of the policy to the proximal, rollout or reference policy, [n] float64; over "none": log-probs.

    entries  [n] the tokens, indices into P; derivatives are multiplied by `weight` [P]

    Raises where the log-prob of the other policy is unknown.
    """
    if over == "none":
        return weight_gradients(policy.logprob[entries].to(torch.float64), weight[entries])
    if over == "reference":
        if policy.reference_logprob is None:
            raise MissingSignal("this objective needs reference_logprob: give the reference policy's log-probs")
        below = policy.reference_logprob.detach()[entries].to(torch.float64)
        if missing := int(below.isnan().sum()):
            raise MissingSignal(f"reference_logprob is nan for {missing} of {entries.numel()} trained tokens")
    else:
        below = denominator(policy, forest.path_trainable, over, on_unknown)[entries].to(torch.float64)
    return weight_gradients(policy.logprob[entries].to(torch.float64), weight[entries]) - below


def token_coefficients(forest: Forest, aggregate: str, horizon: float | None) -> Tensor:
    """Aggregation coefficients, [P], over the trained tokens of the counted trajectories."""
    counted_P = forest.path_trainable & forest.to_path(counted_trajectories(forest), "R")
    return coefficients(forest.path_trajectory, counted_P, aggregate, horizon)


def approx_kl(gap: Tensor) -> float:
    """Approximate KL (k3): mean of rho - 1 - log rho, from the log-ratios of at least one token."""
    return float((gap.expm1() - gap).mean())


class Scores(NamedTuple):
    """Scores of trajectories, and the policy outputs that they come from.

    score    [R] of each trajectory, 0 where it was not read
    run      [R] bool: the trajectories that were read
    entries  [n] their trained tokens, indices into P
    gap      [n] float64: log-ratio of each, see `log_ratios`
    weight   [n] of each
    group    [R] int64 dense ids
    """

    score: Tensor
    run: Tensor
    entries: Tensor
    gap: Tensor
    weight: Tensor
    group: Tensor


class SequenceTerm(TermPart):
    """Base class of losses on trajectory scores that are compared within their group.

    They read outcomes or verdicts from the forest, not `credit`. `weight` multiplies derivatives (see
    `weight_gradients`). A trajectory that is not compared is measured against the compared members and moves itself
    alone. Every group with a trained trajectory is in the mean over groups, also where nothing is compared in it.

    how      a score is the "sum" or the "mean" of the log-ratios of the trajectory's tokens
    couples  narrower than "group" where statistics are of outcomes alone
    """

    couples: str = "group"
    reads_credit = False
    how: str = "sum"
    ratio_over: ScoreOver = "proximal"
    on_unknown_behaviour: Literal["error", "one"] = "error"

    def reads(self, forest: Forest) -> Tensor:
        """Trajectories whose score the loss reads, [R] bool: counted ones of groups of at least two compared ones."""
        counted_R = counted_trajectories(forest)
        return counted_R & (grouped.count(forest.ids("group", axis="R"), counted_R & forest.compared) > 1)

    def factors(self, forest: Forest) -> Tensor | None:
        """Factors of the tokens' log-ratios in the score, [P] float64; tokens of 0 are not read. None: all are 1."""
        return None

    def active(self, forest: Forest, credit: Tensor, weight: Tensor, signals: Signals | None = None) -> Tensor:
        """Trainable tokens of the trajectories read, if they are coupled to a token of non-zero weight."""
        read_R, trainable_P, factor_P = self.reads(forest), forest.path_trainable, self.factors(forest)
        trainable_P = trainable_P if factor_P is None else trainable_P & (factor_P != 0)
        # a token of weight 0 has no derivative of its own, but its value is in the score of tokens that have one
        weighted_P = trainable_P & (weight != 0)
        if self.couples == "token":
            return weighted_P & forest.to_path(read_R, "R")
        coupled_R = read_R & trajectories_of(forest, weighted_P)
        if self.couples != "trajectory":
            coupled_R = read_R & (grouped.max(coupled_R.to(torch.float64), forest.ids("group", axis="R")) > 0)
        return trainable_P & forest.to_path(coupled_R, "R")

    def scores(self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor) -> Scores:
        """Score the trajectories that are read."""
        entries = self.active(forest, credit, weight).nonzero().squeeze(1)
        gap = log_ratios(forest, policy, entries, weight, self.ratio_over, self.on_unknown_behaviour)
        factor_P = self.factors(forest)
        scaled_gap = gap if factor_P is None else gap * factor_P[entries]
        score = per_trajectory(scaled_gap, forest.path_trajectory[entries], forest.n_trajectories, self.how)
        return Scores(
            score, trajectories_of(forest, entries), entries, gap, weight[entries], forest.ids("group", axis="R")
        )

    def share(self, forest: Forest, run: Tensor) -> float:
        """Share of groups with a trajectory in `run` [R] bool, of those with a counted one.

        A mean over the run groups times this is the mean over all, the others being 0.
        """
        group, counted_R = forest.ids("group", axis="R"), counted_trajectories(forest)
        return n_groups(group, run) / n_groups(group, counted_R)


@dataclass(frozen=True)
class SequenceLoss(SequenceTerm):
    """Base class: a score of each trajectory, and a loss of the scores of a group.

    ratio_over            what the policy is measured against: "proximal" (where the step has one, else behaviour),
                          "behaviour", or the frozen "reference"
    on_unknown_behaviour  "error" | "one" (a log-ratio of 0)
    """

    ratio_over: ScoreOver = field(default="proximal", kw_only=True)
    on_unknown_behaviour: Literal["error", "one"] = field(default="error", kw_only=True)

    def __post_init__(self) -> None:
        if self.ratio_over == "reference":
            object.__setattr__(self, "needs", (*type(self).needs, "reference_logprob"))

    @abstractmethod
    def loss(self, forest: Forest, policy: PolicyTokens, signals: Signals, x: Scores) -> tuple[Tensor, Figures]:
        """Loss of the step's scores, and its metrics, which are left out where nothing was read."""
        raise NotImplementedError

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Evaluated:
        """Figures: the loss's own; approx_kl, mean over the read tokens of rho - 1 - log rho."""
        x = self.scores(forest, policy, credit, weight)
        value, loss_figures = self.loss(forest, policy, signals, x)
        gap = x.gap.detach()
        figures = {k: float(v) for k, v in loss_figures.items()} | {"approx_kl": approx_kl(gap)} if gap.numel() else {}
        return value.to(policy.logprob.dtype), figures


class LabelTerm(SequenceTerm):
    """Base class of losses on binary labels: the verdict, or, with `success_at`, outcome >= success_at."""

    success_at: float | None = None

    def sides(self, forest: Forest) -> tuple[Tensor, Tensor]:
        """Positive and negative trajectories, [R] and [R] bool: see `labels`."""
        return labels(forest, self.success_at, "this objective")

    def reads(self, forest: Forest) -> Tensor:
        """Trajectories of groups with a compared success and a compared failure."""
        return is_contrasted(forest.ids("group", axis="R"), *self.sides(forest), forest.compared)

    @torch.no_grad()
    def score_gap(self, forest: Forest, score: Tensor, run: Tensor) -> float:
        """Mean score of successes less that of failures, averaged over the groups that have both in `run`; 0 without
        one."""
        group, (positive, negative) = forest.ids("group", axis="R"), (side & run for side in self.sides(forest))
        has_both = is_contrasted(group, positive, negative, run)
        score = score.detach()
        gap_R = grouped.mean(score, group, positive) - grouped.mean(score, group, negative)
        return float(over_groups(gap_R, group, has_both)) / n_groups(group, has_both)


@dataclass(frozen=True)
class LabelledLoss(LabelTerm, SequenceLoss):
    """Sequence loss on binary labels.

    success_at  None: the verifier's verdict is the label; otherwise: outcome >= success_at
    """

    success_at: float | None = field(default=None, kw_only=True)


def trajectories_of(forest: Forest, entries: Tensor) -> Tensor:
    """Trajectories with one of these tokens (indices, or a mask over P), [R] bool."""
    has_token_R = torch.zeros(forest.n_trajectories, dtype=torch.bool)
    has_token_R[forest.path_trajectory[entries]] = True
    return has_token_R
