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


def weighted(x: Tensor, weight: Tensor) -> Tensor:
    """Value of `x`, [n], with each token's derivative times its weight.

    So a weight multiplies what the loss asks of its own token and nothing else: no score, statistic or denominator
    changes, and a trajectory of weight 0 only counts.
    """
    held = x.detach()
    return held + weight.detach().to(x) * (x - held)


def per_trajectory(x: Tensor, trajectory: Tensor, n: int, how: str = "mean") -> Tensor:
    """Sum or mean of `x` over each trajectory's tokens, [n], 0 where it has none; carries the gradient."""
    total = x.new_zeros(n).index_add(0, trajectory, x)
    return total if how == "sum" else total / torch.bincount(trajectory, minlength=n).clamp_min(1)


def log_sum_exp(x: Tensor, ids: Tensor, where: Tensor, *, one: bool = False) -> Tensor:
    """Log-sum-exp over each one's group, [n] float64, of the members that count; with `one` of 1 + that sum.

    0 for groups without a counting member.
    """
    top = grouped.max(x.detach(), ids, where)
    top = top.clamp_min(0) if one else top
    total = grouped.sum(torch.where(where, x - top, torch.zeros_like(top)).exp(), ids, where)
    total = total + (-top).exp() if one else total
    return top + torch.where(total > 0, total, torch.ones_like(total)).log()


def over_groups(x: Tensor, group: Tensor, where: Tensor) -> Tensor:
    """Sum over groups of a value [R] that is the same for the members of a group that count."""
    return (x / grouped.count(group, where).clamp_min(1))[where].sum()


def counted(forest: Forest) -> Tensor:
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
    own = counted(forest)
    if success_at is not None:
        good = grouped.reaches(forest.outcome, success_at)
    elif missing := int((forest.success.isnan() & own).sum()):
        raise NoVerdicts(
            name,
            f"{name} learns from verdicts, and {missing} of {int(own.sum())} trajectories have none: give `success` in "
            "the records, use a reward with a verdict, or set objective.success_at to the outcome that counts as one",
        )
    else:
        good = forest.success > 0.5
    return own & good, own & ~good


def contrasted(group: Tensor, positive: Tensor, negative: Tensor, compared: Tensor) -> Tensor:
    """Members of groups with both labels, [R] bool: the positive and negative of those with a compared one of each."""

    def found(side: Tensor) -> Tensor:
        return grouped.max((side & compared).to(torch.float64), group) > 0

    return (positive | negative) & found(positive) & found(negative)


def log_ratios(
    forest: Forest, policy: PolicyTokens, entries: Tensor, weight: Tensor, over: str, on_unknown: str = "error"
) -> Tensor:
    """Log-ratios of the policy to the proximal, rollout or reference policy at these tokens, or ("none") log-probs: [n]
    float64.

    Differentiable, derivatives times `weight` [P]. Raises where what it is divided by is unknown.
    """
    if over == "none":
        return weighted(policy.logprob[entries].to(torch.float64), weight[entries])
    if over == "reference":
        if policy.reference_logprob is None:
            raise MissingSignal("this objective needs reference_logprob: give the reference policy's log-probs")
        below = policy.reference_logprob.detach()[entries].to(torch.float64)
        if missing := int(below.isnan().sum()):
            raise MissingSignal(f"reference_logprob is nan for {missing} of {entries.numel()} trained tokens")
    else:
        below = denominator(policy, forest.path_trainable, over, on_unknown)[entries].to(torch.float64)
    return weighted(policy.logprob[entries].to(torch.float64), weight[entries]) - below


def token_coefficients(forest: Forest, aggregate: str, horizon: float | None) -> Tensor:
    """Aggregation coefficients, [P], over the trained tokens of the counted trajectories."""
    own = forest.path_trainable & forest.to_path(counted(forest), "R")
    return coefficients(forest.path_trajectory, own, aggregate, horizon)


def approx_kl(gap: Tensor) -> float:
    """Approximate KL (k3): mean of rho - 1 - log rho, from the log-ratios of at least one token."""
    return float((gap.expm1() - gap).mean())


class Scores(NamedTuple):
    """Scores of trajectories, and the policy outputs that they come from.

    score    [R] of each trajectory, 0 where it was not read
    run      [R] bool: the trajectories that were
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

    They read outcomes or verdicts from the forest, not `credit`. `weight` multiplies derivatives (see `weighted`). A
    trajectory that is not compared is measured against the compared members and moves itself alone. Every group with
    a trained trajectory is in the mean over groups, also where nothing is compared in it.

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
        own = counted(forest)
        return own & (grouped.count(forest.ids("group", axis="R"), own & forest.compared) > 1)

    def factors(self, forest: Forest) -> Tensor | None:
        """What a token's log-ratio is multiplied by in the score, [P] float64; tokens of 0 are not read. None: by 1."""
        return None

    def active(self, forest: Forest, credit: Tensor, weight: Tensor, signals: Signals | None = None) -> Tensor:
        """Trainable tokens of what is read, as far as it is coupled to a token with a weight."""
        read, trainable, factor = self.reads(forest), forest.path_trainable, self.factors(forest)
        trainable = trainable if factor is None else trainable & (factor != 0)
        moved = trainable & (weight != 0)
        if self.couples == "token":
            return moved & forest.to_path(read, "R")
        alive = read & rows_of(forest, moved)
        if self.couples != "trajectory":
            alive = read & (grouped.max(alive.to(torch.float64), forest.ids("group", axis="R")) > 0)
        return trainable & forest.to_path(alive, "R")

    def scores(self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor) -> Scores:
        """Scores of the trajectories that are read."""
        entries = self.active(forest, credit, weight).nonzero().squeeze(1)
        gap = log_ratios(forest, policy, entries, weight, self.ratio_over, self.on_unknown_behaviour)
        factor = self.factors(forest)
        scaled = gap if factor is None else gap * factor[entries]
        score = per_trajectory(scaled, forest.path_trajectory[entries], forest.n_trajectories, self.how)
        return Scores(score, rows_of(forest, entries), entries, gap, weight[entries], forest.ids("group", axis="R"))

    def share(self, forest: Forest, run: Tensor) -> float:
        """Share of groups with a trajectory in `run` [R] bool, of those with a counted one.

        A mean over the run groups times this is the mean over all, the others being 0.
        """
        group, own = forest.ids("group", axis="R"), counted(forest)
        return n_groups(group, run) / n_groups(group, own)


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
        value, own = self.loss(forest, policy, signals, x)
        gap = x.gap.detach()
        figures = {k: float(v) for k, v in own.items()} | {"approx_kl": approx_kl(gap)} if gap.numel() else {}
        return value.to(policy.logprob.dtype), figures


class LabelTerm(SequenceTerm):
    """Base class of losses on binary labels: the verdict, or, with `success_at`, outcome >= success_at."""

    success_at: float | None = None

    def sides(self, forest: Forest) -> tuple[Tensor, Tensor]:
        """Positive and negative trajectories, [R] and [R] bool: see `labels`."""
        return labels(forest, self.success_at, "this objective")

    def reads(self, forest: Forest) -> Tensor:
        """Trajectories of groups with a compared success and a compared failure."""
        return contrasted(forest.ids("group", axis="R"), *self.sides(forest), forest.compared)

    @torch.no_grad()
    def score_gap(self, forest: Forest, score: Tensor, run: Tensor) -> float:
        """Mean over the groups with both labels among what was read of the mean score of successes less that of
        failures; 0 without any."""
        group, (positive, negative) = forest.ids("group", axis="R"), (side & run for side in self.sides(forest))
        both = contrasted(group, positive, negative, run)
        score = score.detach()
        apart = grouped.mean(score, group, positive) - grouped.mean(score, group, negative)
        return float(over_groups(apart, group, both)) / n_groups(group, both)


@dataclass(frozen=True)
class LabelledLoss(LabelTerm, SequenceLoss):
    """Sequence loss on binary labels.

    success_at  None: the verifier's verdict is the label; otherwise: outcome >= success_at
    """

    success_at: float | None = field(default=None, kw_only=True)


def rows_of(forest: Forest, entries: Tensor) -> Tensor:
    """Trajectories with one of these tokens (indices, or a mask over P), [R] bool."""
    found = torch.zeros(forest.n_trajectories, dtype=torch.bool)
    found[forest.path_trajectory[entries]] = True
    return found
