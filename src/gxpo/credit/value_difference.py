"""Credit of a stretch between two valued states: how much the chance of success changed over it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor

from gxpo.credit.base import CreditPart
from gxpo.credit.batch_whiten import batch_whiten
from gxpo.credit.recursion import next_in
from gxpo.errors import ConfigError, GxpoError, one_of

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals

VALUE = "state_value"  # the extra of the forest, [T] float64: the value of the state just before a token, nan unknown


class Stretches(NamedTuple):
    """The stretches of entries from one valued state to the next of the same trajectory; [B] of them.

    begin      [B] the entry that each begins with
    following  [B] the stretch after it in its trajectory, -1 none
    row        [P] the stretch of each entry, -1 before the first of its trajectory
    """

    begin: Tensor
    following: Tensor
    row: Tensor


def stretches(value: Tensor, trajectory: Tensor) -> Stretches:
    """Where values are known (finite) a stretch begins; value [P], trajectory [P], entries by trajectory, then time."""
    known = value.isfinite()
    begin = known.nonzero().squeeze(1)
    owner = torch.cat([trajectory[begin], torch.full((1,), -1)])  # what is before the first, counted from the end
    row = known.cumsum(0) - 1
    return Stretches(begin, next_in(owner[:-1]), torch.where(owner[row] == trajectory, row, -1))


def known_values(forest: Forest, part: str) -> Tensor:
    """[P] the values of the states before the path tokens, nan unknown. GxpoError where there is no such column."""
    if VALUE not in forest.extras:
        raise GxpoError(f"credit={part} reads forest.extras[{VALUE!r}], which is not there: use rollout=continuations")
    return forest.to_path(forest.extras[VALUE].to(torch.float64), "T")


@torch.no_grad()
def value_difference(value: Tensor, outcome: Tensor, trajectory: Tensor, best_of: int = 1) -> Tensor:
    """A = V(state at the end of the stretch) - V(state at its beginning); the last one ends with the outcome.

    value       [P] of the state just before each entry, nan unknown: a stretch goes from one known value to the next
    outcome     [R] any float dtype; the arithmetic is in float64
    trajectory  [P] int64, index into R, entries by trajectory, then time
    best_of     K: values and outcomes are taken as chances v of success, and 1 - (1 - v)^K, the chance of the best of K
                attempts, stands in their place

    Returns [P] float64: over a trajectory the differences of its stretches add up to outcome - V(first known state).
    Entries before the first known value have exactly 0.

    With these settings this is
      VinePPO    a value at every step: r + V(next) - V(current), r the outcome of the last step   arXiv 2410.01679
      SPO-chain  values at cut points                                                              arXiv 2505.23564
      PAV        best_of 4: the advantage under a prover that is the best of 4 attempts             arXiv 2410.08146

    >>> v = torch.tensor([0.5, float("nan"), 0.75, float("nan")])
    >>> value_difference(v, torch.tensor([1.0]), torch.zeros(4, dtype=torch.int64)).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    reach = stretches(value, trajectory)
    held = _best_of(value.to(torch.float64)[reach.begin], best_of)
    paid = _best_of(outcome.to(torch.float64), best_of)[trajectory[reach.begin]]
    after = torch.where(reach.following >= 0, held[reach.following], paid)  # -1 reads the last, which is not taken
    change = torch.cat([after - held, held.new_zeros(1)])
    return change[reach.row]


def _best_of(chance: Tensor, k: int) -> Tensor:
    """1 - (1 - chance)^k, exact where k is 1."""
    return chance if k == 1 else 1 - (1 - chance) ** k


@dataclass(frozen=True)
class ValueDifference(CreditPart):
    """`value_difference` of the values in `forest.extras["state_value"]`, the same for all entries of a stretch.

    factor     multiplies the difference: how much it weighs beside another credit (PAV's alpha)
    best_of    see the function; above 1, values and outcomes have to lie between 0 and 1
    confident  entries that the sampler gave more than this probability have credit 0 (SPO's probability mask: 0.9).
               They keep their place in every denominator; SPO's code takes them out there too, so that its gradient is
               this one, under a token mean, divided by the share of entries that are left
    whiten     "none" | "token": (A - mean) / sqrt(var + 1e-8) over the trainable entries of the batch that are not
               confident, unbiased variance, as the code of VinePPO and SPO does beyond their papers' formulas; a
               stretch that changed nothing is then given -mean / std

    An entry whose log-prob is unknown is not confident. No group is compared: equal outcomes are a signal, and a group
    of one learns.
    """

    factor: float = 1.0
    best_of: int = 1
    confident: float = 1.0
    whiten: Literal["none", "token"] = "none"

    requires = ("state_values",)
    on_equal = "signal"

    def __post_init__(self) -> None:
        one_of("credit.whiten", self.whiten, ("none", "token"))
        if self.best_of < 1:
            raise ConfigError(f"credit.best_of is {self.best_of}; it is a number of attempts, at least 1")
        if not 0 < self.confident <= 1:
            raise ConfigError(f"credit.confident is {self.confident}; it is a probability above 0, up to 1 (no mask)")

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        value = known_values(forest, "value_difference")
        if self.best_of > 1:
            self._check_chances(value, forest.outcome)
        credit = self.factor * value_difference(value, forest.outcome, forest.path_trajectory, self.best_of)
        sure = forest.path_behaviour_logprob.exp() > self.confident
        if self.whiten == "token":
            compared = forest.to_path(forest.compared, "R")
            return batch_whiten(credit, forest.path_trainable & ~sure, compared)
        return torch.where(sure, 0.0, credit)

    def _check_chances(self, value: Tensor, outcome: Tensor) -> None:
        both = torch.cat([value[value.isfinite()], outcome.to(torch.float64)])
        if bool(((both < 0) | (both > 1)).any()):
            raise GxpoError(
                f"credit.best_of={self.best_of} is of chances of success, and values or outcomes are not between 0 and "
                "1: set credit.best_of=1, or leave the rewards unshaped"
            )
