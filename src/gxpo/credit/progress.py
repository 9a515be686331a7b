"""Credit of a turn or segment: by how much it raised the policy's belief in the right answer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gxpo.credit.base import CreditPart
from gxpo.errors import ConfigError, one_of

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def progress(before: Tensor, after: Tensor, form: str = "prob") -> Tensor:
    """after - before, or with `form` "log" log(after / before); [n] float64, 0 where either is nan.

    The differences of a trajectory's turns or segments add up to what they raised the belief by in all.

    >>> progress(torch.tensor([0.25, 0.5]), torch.tensor([0.5, 0.25])).tolist()
    [0.25, -0.25]
    """
    before, after = before.to(torch.float64), after.to(torch.float64)
    if form == "log":
        least = torch.finfo(torch.float64).tiny  # a product of many small probabilities may be 0
        before, after = before.clamp_min(least).log(), after.clamp_min(least).log()
    return (after - before).nan_to_num(nan=0.0)


@dataclass(frozen=True)
class Progress(CreditPart):
    """`alpha` times the `progress` of the signals "belief_before" and "belief_after"; made to be added to another.

    Not compared with anybody: its scale against a standardised advantage is alpha's to set, and groups of equal
    outcomes learn from it.
    """

    alpha: float = 1.0
    form: Literal["prob", "log"] = "prob"

    needs = ("belief_before", "belief_after")
    on_equal = "signal"

    def __post_init__(self) -> None:
        one_of("progress.form", self.form, ("prob", "log"))
        if not 0 <= self.alpha < math.inf:
            raise ConfigError(f"progress.alpha is {self.alpha}; it is a finite factor, 0 or more")

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        return self.alpha * progress(signals["belief_before"], signals["belief_after"], self.form)
