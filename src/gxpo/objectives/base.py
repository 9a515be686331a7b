"""What every term of an objective shares: what it couples, what it asks for, and `+`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import chain, count
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.errors import ConfigError
from gxpo.ranges import Part

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import PolicyTokens, Signals, Term

COUPLES = ("token", "trajectory", "group", "step")  # from narrow to wide


class TermPart(Part, ABC):
    """Base of terms: a frozen dataclass whose `__call__` gives a scalar to minimise, in the dtype of `policy.logprob`.

    A term is one function of the whole optimiser step, L(x), x the policy's outputs on all of P. `weight` [P] is the
    product of the weight parts and of the trajectories' own `forest.weight`; a term that importance weights do not
    concern (KL, entropy) reads `forest.weight` instead.

    couples   "token" | "trajectory" | "group" | "step": which entries of x may influence each other's derivative
    outputs   policy outputs that it reads, gradient included ("logprob", "entropy")
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
    on_equal: str = "zero"

    @abstractmethod
    def __call__(
        self, forest: Forest, policy: PolicyTokens, credit: Tensor, weight: Tensor, signals: Signals, step: int
    ) -> Tensor:
        raise NotImplementedError

    @abstractmethod
    def active(self, forest: Forest, credit: Tensor, weight: Tensor, signals: Signals | None = None) -> Tensor:
        """[P] bool: entries whose outputs the term reads; the others may hold anything, nan included."""
        raise NotImplementedError

    def metrics(
        self,
        forest: Forest,
        policy: PolicyTokens,
        credit: Tensor,
        weight: Tensor,
        signals: Signals | None = None,
    ) -> dict[str, float]:
        """Figures worth logging, by name."""
        return {}

    def __add__(self, other: Term) -> TermSum:
        return TermSum(_summands(self) + _summands(other))

    def __radd__(self, other: Term) -> TermSum:
        return TermSum(_summands(other) + _summands(self))


@dataclass(frozen=True)
class TermSum(TermPart):
    """The sum of its terms, each with its own aggregation; couples as widely as the widest of them."""

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
    ) -> Tensor:
        return torch.stack([t(forest, policy, credit, weight, signals, step) for t in self.terms]).sum()

    def active(self, forest: Forest, credit: Tensor, weight: Tensor, signals: Signals | None = None) -> Tensor:
        return torch.stack([t.active(forest, credit, weight, signals) for t in self.terms]).any(0)

    def metrics(
        self,
        forest: Forest,
        policy: PolicyTokens,
        credit: Tensor,
        weight: Tensor,
        signals: Signals | None = None,
    ) -> dict[str, float]:
        """All terms' figures; a name that a second term also uses has `_2` appended there, and so on."""
        found: dict[str, float] = {}
        for term in self.terms:
            own = term.metrics(forest, policy, credit, weight, signals) if isinstance(term, TermPart) else {}
            for name, value in own.items():
                numbered = (f"{name}_{k}" for k in count(2))
                found[next(n for n in chain((name,), numbered) if n not in found)] = value
        return found


def _summands(term: Term) -> tuple[Term, ...]:
    return term.terms if isinstance(term, TermSum) else (term,)
