"""A gate that takes a learned drift off the gain, in closed form."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gxpo.errors import ConfigError
from gxpo.objectives.gate import Entries, Gate


@dataclass(frozen=True)
class Drift(Gate):
    """-A rho + relu(z - s tanh(z / s)), with z = (rho - 1) A, s = drift_positive for A > 0, and
    z = A log rho, s = drift_negative for A < 0.

    The drift is 0, with gradient 0, at rho = 1 and wherever the policy moved against the credit. For A > 0 the slope in
    log rho is -A rho (1 - tanh^2(z / s)), never turned; for A < 0 it is |A| (rho - tanh^2(z / s)): tokens whose
    probability fell far are pulled up again.

    Source: DPO, arXiv 2210.05639 (constants 2 and 0.6).
    """

    drift_positive: float = 2.0
    drift_negative: float = 0.6

    def __post_init__(self) -> None:
        if not (self.drift_positive > 0 and self.drift_negative > 0):
            raise ConfigError(
                "objective.drift_positive and objective.drift_negative are above 0, not "
                f"{self.drift_positive}, {self.drift_negative}"
            )

    def _gain(self, x: Entries) -> Tensor:
        """z, the gain so far that the credit sees."""
        return x.credit * torch.where(x.credit > 0, x.ratio - 1, x.log_level)

    def loss(self, x: Entries) -> Tensor:
        gain, one = self._gain(x), torch.ones_like(x.ratio)
        scale = torch.where(x.credit > 0, self.drift_positive * one, self.drift_negative * one)
        kept = scale * (gain / scale).tanh()
        risen = -x.credit - kept  # the same for A > 0 and a gain, without the ratio, which may have overflowed
        return torch.where((x.credit > 0) & (gain > 0), risen, (gain - kept).relu() - x.credit * x.ratio)

    def clipped(self, x: Entries) -> Tensor:
        """Entries with a gain: their gradient is smaller than -A rho's, or turned."""
        return self._gain(x) > 0
