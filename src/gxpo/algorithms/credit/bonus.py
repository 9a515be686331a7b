"""Advantage bonus: a bounded entropy, confidence or custom term added to the method's advantage."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from annotated_types import Ge, Interval, Le
from torch import Tensor

from gxpo.algorithms.credit.base import CreditPart
from gxpo.algorithms.credit.columns import CORRECT
from gxpo.base.errors import MissingSignal
from gxpo.forest import grouped
from gxpo.forest.grouped import begins_of
from gxpo.parts import named_columns
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Signals


@torch.no_grad()
def bounded(
    bonus: Tensor, advantage: Tensor, low: float = -math.inf, high: float = math.inf, kappa: float | None = None
) -> Tensor:
    """Clip a bonus to [low, high], then to [-|A| / kappa, |A| / kappa]; [n] float64, 0 where it is nan.

    With kappa above 1 no sign of A + bonus is another than A's, and A = 0 stays 0.

    >>> bounded(torch.tensor([0.3, 0.9, -0.2]), torch.tensor([1.0, -1.0, 1.0]), low=0.0, kappa=2.0).tolist()
    [0.3..., 0.5, 0.0]
    """
    clipped = bonus.to(torch.float64).nan_to_num(nan=0.0).clamp(low, high)
    if kappa is None:
        return clipped
    limit = advantage.to(torch.float64).abs() / kappa
    return torch.minimum(torch.maximum(clipped, -limit), limit)


@torch.no_grad()
def certainty(forest: Forest, signals: Signals, share: float) -> Tensor:
    """Negative mean entropy of the trajectory's trainable tokens, [P], nats; 0 where it has none."""
    entropy, trainable = signals["entropy"].to(torch.float64), forest.path_trainable
    if missing := int((entropy.isnan() & trainable).sum()):
        raise MissingSignal(f"entropy is nan for {missing} of {int(trainable.sum())} trainable tokens")
    return -grouped.mean(torch.where(trainable, entropy, 0.0), forest.path_trajectory, trainable)


@torch.no_grad()
def gap(forest: Forest, signals: Signals, share: float) -> Tensor:
    """Outcome minus the signal "baseline" [R], on every token; [P]."""
    return forest.to_path(forest.outcome - signals["baseline"].to(torch.float64), "R")


def answer_logprob(forest: Forest, signals: Signals) -> tuple[Tensor, Tensor]:
    """Sampler's log-prob of every trainable action token, [n] float64, and its trajectory, [n].

    Raises MissingSignal where it is unknown.
    """
    trained_entries = forest.path_trainable.nonzero().squeeze(1)
    logprob = signals["behaviour_logprob"][trained_entries].to(torch.float64)
    if missing := int(logprob.isnan().sum()):
        raise MissingSignal(
            f"behaviour_logprob is nan for {missing} of {len(trained_entries)} trained tokens: record their `logprob`"
        )
    return logprob, forest.path_trajectory[trained_entries]


@torch.no_grad()
def mean_of_lowest(x: Tensor, trajectory: Tensor, n: int, share: float = 1.0) -> Tensor:
    """Mean of the ceil(share * length) smallest values of each trajectory, [n] float64; 0 where it has none.

    x           [m] values of tokens
    trajectory  [m] int64, the trajectory of each

    >>> mean_of_lowest(torch.tensor([-1.0, -3.0, -2.0, -0.5]), torch.tensor([0, 0, 0, 1]), 2, share=0.5).tolist()
    [-2.5, -0.5]
    """
    if share < 1:
        # Two stable sorts: by trajectory, and inside each by value.
        order = torch.argsort(x, stable=True)
        order = order[torch.argsort(trajectory[order], stable=True)]
        x, trajectory = x[order], trajectory[order]
        begins = begins_of(trajectory, n)
        rank = torch.arange(trajectory.numel()) - begins[trajectory]
        # 1e-9 keeps 0.2 * 5, which is a little above 1 in floats, from being rounded up to 2.
        quota = (share * begins.diff().to(torch.float64) - 1e-9).ceil()
        is_lowest = rank < quota[trajectory]
        x, trajectory = x[is_lowest], trajectory[is_lowest]
    total = torch.zeros(n, dtype=torch.float64).index_add_(0, trajectory, x.to(torch.float64))
    return total / torch.bincount(trajectory, minlength=n).clamp_min(1)


@torch.no_grad()
def confidence_gap(forest: Forest, signals: Signals, share: float) -> Tensor:
    """Confidence gap (ProGRPO): c(prompt) - c(answer) in groups with a correct compared member, else 0; [P].

    c are geometric means of token probabilities: of the prompt the signal "prompt_confidence" [R], of an answer over
    the least probable `share` of its tokens (at least one), by the sampler's log-probs. A trajectory without a verdict
    counts as correct where its outcome is above 0.
    """
    # The sampler's log-probs: confidence is of the policy that wrote the answer.
    answer_confidence_R = mean_of_lowest(*answer_logprob(forest, signals), forest.n_trajectories, share).exp()
    is_solved_R = grouped.max(CORRECT(forest), forest.ids("group", axis="R"), forest.compared) > 0
    gap_R = signals["prompt_confidence"].to(torch.float64) - answer_confidence_R
    return forest.to_path(torch.where(is_solved_R, gap_R, torch.zeros_like(gap_R)), "R")


# quantity by the name that `value` takes -> the signals that it reads, and what computes it on P
QUANTITIES: Mapping[str, tuple[tuple[str, ...], Callable[[Forest, Signals, float], Tensor]]] = {
    "certainty": (("entropy",), certainty),
    "gap": (("baseline",), gap),
    "confidence_gap": (("prompt_confidence",), confidence_gap),
}


@part("bonus", stage="credit")
@dataclass(frozen=True)
class Bonus(CreditPart):
    """Bounded trajectory-level bonus, to be added to another advantage: `credit.add.bonus`.

    value      "certainty", "gap" or "confidence_gap" (see the functions), or the name of a signal [R]
    factor     multiplies it, in units of the advantage that it is added to
    low, high  bounds of the product
    kappa      at most |A| / kappa, A the advantages before it in the sum: the sign never changes, and
               groups of equal outcomes still learn nothing
    position   "all" tokens of a trajectory have the bonus, its "last" trainable one, or the last that a segmenter has
               "labelled"
    share      share of an answer's tokens, the least probable, that its confidence is over, under "confidence_gap"

    With these settings this is
      AAPO     value gap, low -0.2, high 0.28 (its code): outcome less that of the reference model    arXiv 2505.14264
      VERL     the signal "bonus" (`effective_rank`), low 0, kappa 2                                  arXiv 2509.23808
      ProGRPO  value confidence_gap, factor 0.3, share 0.2                                            arXiv 2602.05281
      LC-R1    the signal "valid_thinking", at the end of the thought           arXiv 2506.14755
      GTPO     value certainty, factor 0.1: each answer pays for the policy's entropy (its code)      arXiv 2508.03772
    """

    value: str = "bonus"
    factor: float = 1.0
    low: Annotated[float, Le(0)] = field(default=-math.inf, metadata={"unbounded": True})
    high: Annotated[float, Ge(0)] = math.inf
    kappa: Annotated[float, Ge(1)] | None = None
    position: Literal["all", "last", "labelled"] = "all"
    share: Annotated[float, Interval(gt=0, le=1)] = 0.2

    def __post_init__(self) -> None:
        object.__setattr__(self, "needs", QUANTITIES[self.value][0] if self.value in QUANTITIES else (self.value,))
        object.__setattr__(self, "learns_from_equal_groups", self.kappa is None)
        object.__setattr__(self, "requires", ("segments",) if self.position == "labelled" else ())

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        return self.summand(torch.zeros(forest.n_entries, dtype=torch.float64), forest, signals, step)

    def summand(self, total: Tensor, forest: Forest, signals: Signals, step: int) -> Tensor:
        """Bonus [P] on advantages that add up to `total` [P]."""
        if self.value in QUANTITIES:
            bonus_P = QUANTITIES[self.value][1](forest, signals, self.share)
        else:
            bonus_P = forest.to_path(signals[self.value].to(torch.float64), "R")
        bonus_P = bounded(self.factor * bonus_P, total, self.low, self.high, self.kappa)
        # With kappa the bound is by the advantage at each token, so it is applied before tokens are chosen.
        if self.position == "all":
            return bonus_P
        is_eligible_P = forest.path_trainable
        if self.position == "labelled":
            is_eligible_P = is_eligible_P & (named_columns.TOKEN["label"](forest) > 0)
        entry_P = torch.arange(forest.n_entries, dtype=torch.float64)
        # One token carries the bonus: its credit is not multiplied by the length of the answer.
        is_last_P = grouped.max(entry_P, forest.path_trajectory, is_eligible_P) == entry_P
        return torch.where(is_last_P & is_eligible_P, bonus_P, 0.0)
