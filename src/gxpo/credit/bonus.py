"""Advantage bonus: a bounded entropy, confidence or custom term added to the method's advantage."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from annotated_types import Ge, Interval, Le
from torch import Tensor

from gxpo import grouped
from gxpo.credit.base import CreditPart
from gxpo.credit.likelihood import answer_logprob, mean_of_lowest
from gxpo.credit.success_rate import succeeds
from gxpo.errors import MissingSignal
from gxpo.registry import part

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def bounded(
    bonus: Tensor, advantage: Tensor, low: float = -math.inf, high: float = math.inf, kappa: float | None = None
) -> Tensor:
    """Bonus clipped to [low, high], then to [-|A| / kappa, |A| / kappa]; [n] float64. nan is no bonus.

    With kappa above 1 no sign of A + bonus is another than A's, and A = 0 stays 0.

    >>> bounded(torch.tensor([0.3, 0.9, -0.2]), torch.tensor([1.0, -1.0, 1.0]), low=0.0, kappa=2.0).tolist()
    [0.3..., 0.5, 0.0]
    """
    held = bonus.to(torch.float64).nan_to_num(nan=0.0).clamp(low, high)
    if kappa is None:
        return held
    most = advantage.to(torch.float64).abs() / kappa
    return torch.minimum(torch.maximum(held, -most), most)


@torch.no_grad()
def certainty(forest: Forest, signals: Signals, share: float) -> Tensor:
    """Negative mean entropy of the trajectory's trainable tokens, [P], nats; 0 where it has none."""
    entropy, trainable = signals["entropy"].to(torch.float64), forest.path_trainable
    if missing := int((entropy.isnan() & trainable).sum()):
        raise MissingSignal(f"entropy is nan for {missing} of {int(trainable.sum())} trainable tokens")
    return -grouped.mean(torch.where(trainable, entropy, 0.0), forest.path_trajectory, trainable)


@torch.no_grad()
def gap(forest: Forest, signals: Signals, share: float) -> Tensor:
    """Outcome - signal "baseline" [R]; [P]."""
    return forest.to_path(forest.outcome - signals["baseline"].to(torch.float64), "R")


@torch.no_grad()
def confidence_gap(forest: Forest, signals: Signals, share: float) -> Tensor:
    """Confidence gap (ProGRPO): c(prompt) - c(answer) in groups with a correct compared member, else 0; [P].

    c are geometric means of token probabilities: of the prompt the signal "prompt_confidence" [R], of an answer over
    the least probable `share` of its tokens (at least one), by the sampler's log-probs. A trajectory without a verdict
    counts as correct where its outcome is above 0.
    """
    answer = mean_of_lowest(*answer_logprob(forest, signals), forest.n_trajectories, share).exp()
    solved = grouped.max(succeeds(forest), forest.ids("group", axis="R"), forest.compared) > 0
    found = signals["prompt_confidence"].to(torch.float64) - answer
    return forest.to_path(torch.where(solved, found, torch.zeros_like(found)), "R")


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
    at         "all" tokens of a trajectory have the bonus, or its "last" trainable one
    share      of its tokens over which the confidence of an answer is taken, under "confidence_gap"

    With these settings this is
      AAPO     value gap, low -0.2, high 0.28 (its code): outcome less that of the reference model    arXiv 2505.14264
      VERL     the signal "bonus" (`effective_rank`), low 0, kappa 2                                  arXiv 2509.23808
      ProGRPO  value confidence_gap, factor 0.3, share 0.2                                            arXiv 2602.05281
      GTPO     value certainty, factor 0.1: each answer pays for the policy's entropy (its code)      arXiv 2508.03772
    """

    value: str = "bonus"
    factor: float = 1.0
    low: Annotated[float, Le(0)] = field(default=-math.inf, metadata={"unbounded": True})
    high: Annotated[float, Ge(0)] = math.inf
    kappa: Annotated[float, Ge(1)] | None = None
    at: Literal["all", "last"] = "all"
    share: Annotated[float, Interval(gt=0, le=1)] = 0.2

    def __post_init__(self) -> None:
        object.__setattr__(self, "needs", QUANTITIES[self.value][0] if self.value in QUANTITIES else (self.value,))
        object.__setattr__(self, "learns_from_equal_groups", self.kappa is None)

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        return self.beside(torch.zeros(forest.n_entries, dtype=torch.float64), forest, signals, step)

    def beside(self, total: Tensor, forest: Forest, signals: Signals, step: int) -> Tensor:
        """Bonus [P] on advantages that add up to `total` [P]."""
        if self.value in QUANTITIES:
            found = QUANTITIES[self.value][1](forest, signals, self.share)
        else:
            found = forest.to_path(signals[self.value].to(torch.float64), "R")
        found = bounded(self.factor * found, total, self.low, self.high, self.kappa)
        if self.at == "all":
            return found
        place = torch.arange(forest.n_entries, dtype=torch.float64)
        last = grouped.max(place, forest.path_trajectory, forest.path_trainable) == place
        return torch.where(last & forest.path_trainable, found, 0.0)
