"""A soft gate: the gradient fades as the ratio leaves 1, on either side."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gxpo.errors import ConfigError
from gxpo.objectives.gate import Entries, Gate


@dataclass(frozen=True)
class Sigmoid(Gate):
    """-A (4 / tau) sigmoid(tau (rho - 1)), tau = tau_positive for A > 0, tau_negative for A < 0.

    The slope in log rho is -A rho 4 p (1 - p), p the sigmoid: that of -A rho at ratio 1 and less wherever else. The
    greater tau, the sooner it fades.

    Source: SAPO, arXiv 2511.20347. The value at ratio 1 is -2 A / tau, so with two temperatures the loss is not 0 on
    policy.
    """

    tau_positive: float = 1.0
    tau_negative: float = 1.05

    def __post_init__(self) -> None:
        if not (self.tau_positive > 0 and self.tau_negative > 0):
            raise ConfigError(
                "objective.tau_positive and objective.tau_negative are above 0, not "
                f"{self.tau_positive}, {self.tau_negative}"
            )

    def loss(self, x: Entries) -> Tensor:
        one = torch.ones_like(x.ratio)
        tau = torch.where(x.credit > 0, self.tau_positive * one, self.tau_negative * one)
        return -x.credit * (4 / tau) * torch.sigmoid(tau * (x.ratio - 1))

    def clipped(self, x: Entries) -> Tensor:
        """Every entry with credit whose ratio is not exactly 1."""
        return (x.credit != 0) & (x.ratio != 1)
