"""What every weight part shares: what it asks for, and `*`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.ranges import Part

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals, Weight


class WeightPart(Part, ABC):
    """Base of weight parts: a frozen dataclass whose `__call__` gives [P], finite, >= 0, detached.

    A weight multiplies a policy term's per-entry loss after the gate and never changes a denominator.
    `needs` and `requires` as in credit; the signals always hold `proximal_logprob` and `behaviour_logprob` [P].
    """

    slot = "weight.NAME"
    needs: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    on_equal: str = "zero"

    @abstractmethod
    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        raise NotImplementedError

    def __mul__(self, other: Weight) -> WeightProduct:
        return WeightProduct(_factors(self) + _factors(other))

    def __rmul__(self, other: Weight) -> WeightProduct:
        return WeightProduct(_factors(other) + _factors(self))


@dataclass(frozen=True)
class WeightProduct(WeightPart):
    """The product of its parts; each of them sees the same credit. Asks for what any factor asks for."""

    parts: tuple[Weight, ...]

    def __post_init__(self) -> None:
        for name in ("needs", "requires"):
            asked = dict.fromkeys(x for part in self.parts for x in getattr(part, name, ()))
            object.__setattr__(self, name, tuple(asked))

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        product = torch.ones(forest.n_entries, dtype=torch.float64)
        for part in self.parts:
            product = product * part(forest, credit, signals, step)
        return product


def _factors(weight: Weight) -> tuple[Weight, ...]:
    return weight.parts if isinstance(weight, WeightProduct) else (weight,)
