"""Base class of a method's rewards: shaping and added components."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gxpo.parts.ranges import Part

if TYPE_CHECKING:
    from torch import Tensor

    from gxpo.forest.forest import Forest


class RewardPart(Part, ABC):
    """Base class of a method's rewards: a frozen dataclass over the scored forest; it never changes `success`.

    Under `reward.add.NAME` it gives named values [R], which are recorded and added to the outcome; under
    `reward.shape.NAME` it gives one tensor [R], which takes the outcome's place. nan: unscored.

    reads_texts  the part reads `forest.action_text`, which the trainer then fills
    """

    slot = "reward.NAME"
    needs: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    reads_texts: bool = False

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the task components that the part reads, from its options."""
        component = getattr(self, "component", None)
        return (component,) if component else ()

    @abstractmethod
    def __call__(self, forest: Forest) -> Mapping[str, Tensor] | Tensor:
        raise NotImplementedError
