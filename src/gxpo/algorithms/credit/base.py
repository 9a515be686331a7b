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
    requires  fields that the rollouts must carry ("states", "step_rewards", "forks", ...)
    provides  names of the targets that it hands over to terms of the objective
    learns_from_equal_groups  True if a group of equal scores may have an advantage other than 0
    centres_outcomes  True if the advantages of a group's compared trajectories are their outcomes less the mean, times
                      a number above 0 that is the group's: they add up to 0, whatever was sampled
    """

    slot = "credit"
    provides: tuple[str, ...] = ()

    needs: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    learns_from_equal_groups: bool = False
    centres_outcomes: bool = False

    @abstractmethod
    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        raise NotImplementedError

    def summand(self, total: Tensor, forest: Forest, signals: Signals, step: int) -> Tensor:
        """Summand [P] float64 of this part in a sum whose earlier summands add up to `total` [P]."""
        return self(forest, signals, step)

    def targets(self, forest: Forest, signals: Signals, step: int) -> dict[str, Tensor]:
        """Regression targets such as returns, [P] float64 by the names in `provides`; terms read them as signals.

        nan at tokens without a target.
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
    """Weighted sum of advantages, sum_k factors[k] * parts[k]; it needs all that its summands need."""

    parts: tuple[Credit, ...]
    factors: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.parts) != len(self.factors):
            raise ConfigError(f"a sum of {len(self.parts)} credits needs as many factors, not {len(self.factors)}")
        object.__setattr__(self, "needs", _union(self.parts, "needs"))
        object.__setattr__(self, "requires", _union(self.parts, "requires"))
        object.__setattr__(self, "provides", _union(self.parts, "provides"))
        target_names = [name for part in self.parts for name in CreditPart.hook(part, "provides")]
        # Terms read targets by name, so that two summands' targets of one name would overwrite each other.
        if len(target_names) > len(self.provides):
            raise ConfigError(f"two credits of a sum both hand over {', '.join(self.provides)}: leave one out")
        object.__setattr__(self, "learns_from_equal_groups", any(map(learns_from_equal_groups, self.parts)))
        is_centred = all(CreditPart.hook(part, "centres_outcomes") for part in self.parts)
        object.__setattr__(self, "centres_outcomes", is_centred and min(self.factors, default=0.0) > 0)

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        total = torch.zeros(forest.n_entries, dtype=torch.float64)
        for factor, part in zip(self.factors, self.parts, strict=True):
            # A bounded bonus reads the advantage before it: in the units of the summand, so divided by its factor.
            if factor and isinstance(part, CreditPart):
                total += factor * part.summand(total / factor, forest, signals, step)
            else:
                total += factor * part(forest, signals, step)
        return total

    def targets(self, forest: Forest, signals: Signals, step: int) -> dict[str, Tensor]:
        target_by_name: dict[str, Tensor] = {}
        for part in self.parts:
            if isinstance(part, CreditPart):
                target_by_name |= part.targets(forest, signals, step)
        return target_by_name

    def observe(self, forest: Forest) -> None:
        for part in self.parts:
            # A credit may be any callable with the protocol's signature; memory is optional.
            if hasattr(part, "observe"):
                part.observe(forest)  # type: ignore[attr-defined]  # not every credit remembers

    @property
    def label(self) -> str:
        """Names of the summands: "relative+state_relative"."""
        return "+".join(map(show, self.parts))

    @property
    def remembers(self) -> bool:
        """True if any summand has state for checkpoints."""
        return any(hasattr(part, "state_dict") for part in self.parts)

    def state_dict(self) -> dict[str, Any]:
        """State of the summands that have one, by position."""
        return {str(i): p.state_dict() for i, p in enumerate(self.parts) if hasattr(p, "state_dict")}  # type: ignore[attr-defined]  # as above

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for position, part_state in state.items():
            self.parts[int(position)].load_state_dict(part_state)  # type: ignore[attr-defined]  # it gave one


def _added(left: Credit, right: Credit) -> CreditSum:
    # Sums are flattened, so that a + b + c has three summands and positions in checkpoints are stable.
    sums = [s if isinstance(s, CreditSum) else CreditSum((s,), (1.0,)) for s in (left, right)]
    return CreditSum(sums[0].parts + sums[1].parts, sums[0].factors + sums[1].factors)


def _union(parts: Sequence[Credit], name: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(x for part in parts for x in CreditPart.hook(part, name)))
