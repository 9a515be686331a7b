"""Base class of weights on the policy loss, and their product."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.parts.ranges import Part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Signals, Weight


class WeightPart(Part, ABC):
    """Base of weight parts: a frozen dataclass whose `__call__` gives [P], finite, >= 0, detached.

    A weight multiplies a policy term's loss per action token after the clip; it never changes a denominator.
    `needs` and `requires` as in `CreditPart`; the signals always hold `proximal_logprob` and `behaviour_logprob` [P].
    `corrects_mismatch`: it holds the ratio of proximal and behaviour policy, which is right for older rollouts.
    `reads_mismatch`: it depends on that ratio of the token that was sampled.
    """

    slot = "weight.NAME"
    needs: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    corrects_mismatch: bool = False
    reads_mismatch: bool = False

    @abstractmethod
    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        raise NotImplementedError

    def __mul__(self, other: Weight) -> WeightProduct:
        return WeightProduct(_factors(self) + _factors(other))

    def __rmul__(self, other: Weight) -> WeightProduct:
        return WeightProduct(_factors(other) + _factors(self))


@dataclass(frozen=True)
class WeightProduct(WeightPart):
    """Product of weights; each factor gets the same advantage, and what any factor needs is needed."""

    parts: tuple[Weight, ...]

    def __post_init__(self) -> None:
        # each once, in the order in which factors name them
        for name in ("needs", "requires"):
            union = dict.fromkeys(x for part in self.parts for x in WeightPart.hook(part, name))
            object.__setattr__(self, name, tuple(union))

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        product_P = torch.ones(forest.n_entries, dtype=torch.float64)
        for part in self.parts:
            product_P = product_P * part(forest, credit, signals, step)
        return product_P


def _factors(weight: Weight) -> tuple[Weight, ...]:
    return weight.parts if isinstance(weight, WeightProduct) else (weight,)
