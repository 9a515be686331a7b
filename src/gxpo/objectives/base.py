"""Base of objective terms: value and figures in one call, aggregation, what a term couples and asks for, and `+`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import chain, count
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.errors import ConfigError, GxpoError
from gxpo.ranges import Part

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import PolicyTokens, Signals, Term

COUPLES = ("token", "trajectory", "group", "step")  # from narrow to wide
AGGREGATES = ("token_mean", "sequence_mean", "sequence_sum")

Evaluated = tuple[Tensor, dict[str, float]]  # what a term is on this batch, and its figures by metric name


class TermPart(Part, ABC):
    """Base class of loss terms: frozen dataclasses whose `__call__` gives a scalar to minimise, in the dtype of
    `policy.logprob`, and metrics by name, which carry no gradient.

    A term is one function of the whole optimiser step, L(x), x the policy's outputs on all of P. `weight` [P] is the
    product of the weight parts and of the trajectories' own `forest.weight`; a term that importance weights do not
    concern (KL, entropy) reads `forest.weight` instead.

    couples   "token" | "trajectory" | "group" | "step": which entries of x may influence each other's derivative
    outputs   policy outputs that it reads, gradient included: `Output`s, or their names ("logprob", "entropy")
    needs     signals it reads
    given     signals [P, ...] that the learner makes some of its outputs with ("divergence@A": the teacher's)
    requires  what the rollouts must carry
    reads_credit  False for a term that reads outcomes or verdicts instead
    """

    slot = "objective"
    reads_credit: bool = True
    couples: str = "token"
    outputs: tuple[str, ...] = ("logprob",)
    needs: tuple[str, ...] = ()
    given: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    learns_from_equal_groups: bool = False

    @abstractmethod
    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Evaluated:
        raise NotImplementedError

    @abstractmethod
    def active(self, forest: Forest, credit: Tensor, weight: Tensor, signals: Signals | None = None) -> Tensor:
        """Tokens whose outputs the term reads, [P] bool; the others may hold anything, nan included."""
        raise NotImplementedError

    def __add__(self, other: Term) -> TermSum:
        return TermSum(_summands(self) + _summands(other))

    def __radd__(self, other: Term) -> TermSum:
        return TermSum(_summands(other) + _summands(self))


def evaluate(
    term: Term, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
) -> Evaluated:
    """Value and metrics of a term; where it returns a scalar alone they come from its `metrics`, if it has any."""
    found = term(forest, policy, credit, weight, signals, step)
    if isinstance(found, tuple):
        return found[0], dict(found[1])
    metrics = getattr(term, "metrics", None)
    with torch.no_grad():
        return found, {} if metrics is None else dict(metrics(forest, policy, credit, weight, signals))


@torch.no_grad()
def coefficients(
    trajectory: Tensor,
    counted: Tensor,
    mode: str,
    horizon: float | None = None,
    token: Tensor | None = None,
) -> Tensor:
    """Coefficients c [P] float64 such that sum_p c_p l_p is the aggregated loss; 0 for tokens that are not counted.

    trajectory  [P] which trajectory each entry belongs to
    counted     [P] bool, the trainable entries; a trajectory without any is not counted
    mode        "token_mean"     sum l / number of entries
                "sequence_mean"  mean over trajectories of the mean over their entries      (GRPO)
                "sequence_sum"   mean over trajectories of their sum / `horizon`            (Dr. GRPO)
    horizon     the constant of `sequence_sum`: the longest trainable length a trajectory can have
    token       [P] stored token of each entry, to count a shared token once: its term is the mean of its m entries'
                terms; it counts once in `token_mean` and 1/m in each of its m trajectories' means or sums

    The numerator's mask is the denominator's. Weights multiply the losses and change no denominator; padding and
    micro-batches do not exist here. Raises GxpoError where `sequence_sum` has no horizon.
    """
    if mode not in AGGREGATES:
        raise ConfigError(f"objective.aggregate is {mode!r}; it is one of {', '.join(AGGREGATES)}")
    if mode == "sequence_sum" and (horizon is None or not horizon > 0):
        raise GxpoError(
            f"objective.horizon is {horizon}, and objective.aggregate 'sequence_sum' divides by it: set it to the "
            "longest trainable length a trajectory can have, in tokens"
        )
    share = counted.to(torch.float64)  # how much of itself a token is in each of its trajectories
    if token is not None:
        share = share / _totals(share, token)[token].clamp_min(1)
    if mode == "token_mean":
        return share / share.sum().clamp_min(1)
    width = _totals(share, trajectory)
    divisor = width if mode == "sequence_mean" else torch.full_like(width, float(horizon or 1))
    held = (width > 0).sum().clamp_min(1) * torch.where(width > 0, divisor, torch.ones_like(divisor))
    part = share / held[trajectory]
    # a shared token's term is the mean of its entries: the weight that all its trajectories give it, spread evenly
    return part if token is None else share * _totals(part, token)[token]


def _totals(x: Tensor, ids: Tensor) -> Tensor:
    return x.new_zeros(int(ids.max()) + 1 if ids.numel() else 0).index_add_(0, ids, x)


@dataclass(frozen=True)
class TermSum(TermPart):
    """Sum of loss terms, each with its own aggregation; couples as widely as the widest of them.

    A figure that a second term also has is called NAME_2 there, and so on.
    """

    terms: tuple[Term, ...]

    def __post_init__(self) -> None:
        if not self.terms:
            raise ConfigError("an objective needs at least one term")
        object.__setattr__(self, "couples", max((t.couples for t in self.terms), key=COUPLES.index))
        for name, default in (("outputs", ("logprob",)), ("needs", ()), ("given", ()), ("requires", ())):
            asked = dict.fromkeys(x for term in self.terms for x in getattr(term, name, default))
            object.__setattr__(self, name, tuple(asked))

    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Evaluated:
        values, figures = [], dict[str, float]()
        for term in self.terms:
            value, own = evaluate(term, forest, policy, credit, weight, signals, step)
            values.append(value)
            for name, x in own.items():
                numbered = (f"{name}_{k}" for k in count(2))
                figures[next(n for n in chain((name,), numbered) if n not in figures)] = x
        return torch.stack(values).sum(), figures

    def active(self, forest: Forest, credit: Tensor, weight: Tensor, signals: Signals | None = None) -> Tensor:
        return torch.stack([t.active(forest, credit, weight, signals) for t in self.terms]).any(0)


def _summands(term: Term) -> tuple[Term, ...]:
    return term.terms if isinstance(term, TermSum) else (term,)
