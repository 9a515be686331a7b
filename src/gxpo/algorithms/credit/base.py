"""Base class of advantage estimators, and their sum."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gxpo.base.errors import ConfigError
from gxpo.parts.definition import show
from gxpo.parts.learning import learns_from_equal_groups
from gxpo.parts.ranges import Part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Credit, Signals


class CreditPart(Part, ABC):
    """Base class of advantage estimators: a frozen dataclass whose `__call__` gives [P] float64, detached.

    needs     signals it reads
    requires  what the rollouts must carry ("states", "step_rewards", "forks", ...)
    provides  names of the targets that it hands over to terms of the objective
    learns_from_equal_groups  whether a group of equal scores may have an advantage other than 0
    """

    slot = "credit"
    provides: tuple[str, ...] = ()

    needs: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    learns_from_equal_groups: bool = False

    @abstractmethod
    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        raise NotImplementedError

    def beside(self, total: Tensor, forest: Forest, signals: Signals, step: int) -> Tensor:
        """Its summand [P] float64 in a sum whose earlier summands add up to `total` [P]."""
        return self(forest, signals, step)

    def targets(self, forest: Forest, signals: Signals, step: int) -> dict[str, Tensor]:
        """Regression targets such as returns, [P] float64 by the names in `provides`; terms read them as signals.

        nan: there is none at that token.
        """
        return {}

    def __add__(self, other: Credit) -> CreditSum:
        return _added(self, other)

    def __radd__(self, other: Credit) -> CreditSum:
        return _added(other, self)

    def __mul__(self, factor: float) -> CreditSum:
        if isinstance(self, CreditSum):
            return CreditSum(self.parts, tuple(factor * f for f in self.factors))
        return CreditSum((self,), (float(factor),))

    __rmul__ = __mul__


@dataclass(frozen=True)
class CreditSum(CreditPart):
    """Weighted sum of advantages, sum_k factors[k] * parts[k]; what any summand needs is needed."""

    parts: tuple[Credit, ...]
    factors: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.parts) != len(self.factors):
            raise ConfigError(f"a sum of {len(self.parts)} credits needs as many factors, not {len(self.factors)}")
        object.__setattr__(self, "needs", _union(self.parts, "needs"))
        object.__setattr__(self, "requires", _union(self.parts, "requires"))
        object.__setattr__(self, "provides", _union(self.parts, "provides"))
        given = [name for part in self.parts for name in CreditPart.hook(part, "provides")]
        if len(given) > len(self.provides):
            raise ConfigError(f"two credits of a sum both hand over {', '.join(self.provides)}: leave one out")
        object.__setattr__(self, "learns_from_equal_groups", any(map(learns_from_equal_groups, self.parts)))

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        total = torch.zeros(forest.n_entries, dtype=torch.float64)
        for factor, part in zip(self.factors, self.parts, strict=True):
            if factor and isinstance(part, CreditPart):
                total += factor * part.beside(total / factor, forest, signals, step)
            else:
                total += factor * part(forest, signals, step)
        return total

    def targets(self, forest: Forest, signals: Signals, step: int) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for part in self.parts:
            if isinstance(part, CreditPart):
                found |= part.targets(forest, signals, step)
        return found

    def observe(self, forest: Forest) -> None:
        for part in self.parts:
            if hasattr(part, "observe"):
                part.observe(forest)  # type: ignore[attr-defined]  # not every credit remembers

    @property
    def label(self) -> str:
        """Names of the summands: "relative+state_relative"."""
        return "+".join(map(show, self.parts))

    @property
    def remembers(self) -> bool:
        """Whether any summand has state for checkpoints."""
        return any(hasattr(part, "state_dict") for part in self.parts)

    def state_dict(self) -> dict[str, Any]:
        """State of the summands that have one, by position."""
        return {str(i): p.state_dict() for i, p in enumerate(self.parts) if hasattr(p, "state_dict")}  # type: ignore[attr-defined]  # as above

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for place, own in state.items():
            self.parts[int(place)].load_state_dict(own)  # type: ignore[attr-defined]  # it gave one


def _added(left: Credit, right: Credit) -> CreditSum:
    sums = [s if isinstance(s, CreditSum) else CreditSum((s,), (1.0,)) for s in (left, right)]
    return CreditSum(sums[0].parts + sums[1].parts, sums[0].factors + sums[1].factors)


def _union(parts: Sequence[Credit], name: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(x for part in parts for x in CreditPart.hook(part, name)))
