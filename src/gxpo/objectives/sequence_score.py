"""Scores of whole trajectories, and how losses compare them within their groups: what those losses share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gxpo import levels
from gxpo.errors import GxpoError, MissingSignal
from gxpo.objectives import ratio as ratios
from gxpo.objectives.base import TermPart

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import PolicyTokens, Signals

ScoreOver = Literal["proximal", "behaviour", "reference"]
SCORE_OVER = ("proximal", "behaviour", "reference")


def weighted(x: Tensor, weight: Tensor) -> Tensor:
    """[n] `x` in value, each entry's derivative times its weight.

    So a weight multiplies what the loss asks of its own token and nothing else: no score, statistic or denominator
    changes, and a trajectory of weight 0 only counts.
    """
    held = x.detach()
    return held + weight.detach().to(x) * (x - held)


def per_trajectory(x: Tensor, trajectory: Tensor, n: int, how: str = "mean") -> Tensor:
    """[n] the sum or the mean of `x` over each trajectory's entries, 0 where it has none; carries the gradient."""
    total = x.new_zeros(n).index_add(0, trajectory, x)
    return total if how == "sum" else total / torch.bincount(trajectory, minlength=n).clamp_min(1)


def log_sum_exp(x: Tensor, ids: Tensor, where: Tensor, *, one: bool = False) -> Tensor:
    """[n] float64: log of the sum of e^x over the counting members of each one's group, with `one` of 1 + that sum.

    0 for groups without a counting member.
    """
    top = levels.max(x.detach(), ids, where)
    top = top.clamp_min(0) if one else top
    total = levels.sum(torch.where(where, x - top, torch.zeros_like(top)).exp(), ids, where)
    total = total + (-top).exp() if one else total
    return top + torch.where(total > 0, total, torch.ones_like(total)).log()


def over_groups(x: Tensor, group: Tensor, where: Tensor) -> Tensor:
    """Sum over groups of a value [R] that the counting members of each group share."""
    return (x / levels.count(group, where).clamp_min(1))[where].sum()


def counted(forest: Forest) -> Tensor:
    """[R] bool: scored trajectories with trainable entries; the others exist in no denominator."""
    return (forest.lengths() > 0) & forest.scored


def n_groups(group: Tensor, where: Tensor) -> int:
    """How many groups have a counting member; at least 1, to divide by."""
    return max(1, int(torch.unique(group[where]).numel()))


def labels(forest: Forest, success_at: float | None, name: str) -> tuple[Tensor, Tensor]:
    """[R], [R] bool: counted trajectories that are a success, and those that are not.

    success_at  None: the verifier's verdict; otherwise the outcome from which on a trajectory is one
    Raises GxpoError where a verdict is unknown: a shaped reward is not a label.
    """
    own = counted(forest)
    if success_at is not None:
        good = forest.outcome >= success_at
    elif missing := int((forest.success.isnan() & own).sum()):
        raise GxpoError(
            f"{name} learns from verdicts, and {missing} of {int(own.sum())} trajectories have none: give `success` in "
            "the records, use a reward with a verdict, or set objective.success_at to the outcome that counts as one"
        )
    else:
        good = forest.success > 0.5
    return own & good, own & ~good


def contrasted(group: Tensor, positive: Tensor, negative: Tensor, compared: Tensor) -> Tensor:
    """[R] bool: positive and negative members of the groups that have a compared one of each."""

    def found(side: Tensor) -> Tensor:
        return levels.max((side & compared).to(torch.float64), group) > 0

    return (positive | negative) & found(positive) & found(negative)


def log_ratios(
    forest: Forest, policy: PolicyTokens, entries: Tensor, weight: Tensor, over: str, on_unknown: str = "error"
) -> Tensor:
    """[n] float64 of these entries: log of the policy over the proximal, behaviour or reference one.

    Differentiable, derivatives times `weight` [P]. Raises where what it is divided by is unknown.
    """
    if over == "reference":
        if policy.reference_logprob is None:
            raise MissingSignal("this objective needs reference_logprob: give the reference policy's log-probs")
        below = policy.reference_logprob.detach()[entries].to(torch.float64)
        if missing := int(below.isnan().sum()):
            raise MissingSignal(f"reference_logprob is nan for {missing} of {entries.numel()} trained tokens")
    else:
        below = ratios.denominator(policy, forest.path_trainable, over, on_unknown)[entries].to(torch.float64)
    return weighted(policy.logprob[entries].to(torch.float64), weight[entries]) - below


class SequenceTerm(TermPart):
    """Base of losses on one score per trajectory, compared within its group.

    They read outcomes or verdicts from the forest, not `credit`. `weight` multiplies derivatives (see `weighted`). A
    trajectory that is not compared is measured against the compared members and moves itself alone. Every group with
    a trained trajectory is in the mean over groups, also where nothing is compared in it.
    """

    couples: str = "group"
    reads_credit = False

    def reads(self, forest: Forest) -> Tensor:
        """[R] bool: counted trajectories whose score the loss reads."""
        raise NotImplementedError

    def active(self, forest: Forest, credit: Tensor, weight: Tensor, signals: Signals | None = None) -> Tensor:
        """Trainable entries of the trajectories that are read, in groups where any of them has a weight."""
        read, trainable = self.reads(forest), forest.path_trainable
        moved = rows_of(forest, trainable & (weight != 0))
        alive = levels.max((read & moved).to(torch.float64), forest.ids("group", axis="R")) > 0
        return trainable & forest.to_path(read & alive, "R")

    def share(self, forest: Forest, run: Tensor) -> float:
        """Of all groups with a counted trajectory, those with one of `run` [R] bool: a mean over the run groups times
        this is the mean over all, the others being 0."""
        group, own = forest.ids("group", axis="R"), counted(forest)
        return n_groups(group, run) / n_groups(group, own)


def rows_of(forest: Forest, entries: Tensor) -> Tensor:
    """[R] bool: trajectories with one of these entries (indices, or a mask over P)."""
    found = torch.zeros(forest.n_trajectories, dtype=torch.bool)
    found[forest.path_trajectory[entries]] = True
    return found
