"""A gate that reshapes the ratio smoothly: small ones are pressed down, large ones fade."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gxpo.errors import ConfigError
from gxpo.objectives.gate import Entries
from gxpo.objectives.gate_detached import DetachedWeight


def gamma_shaped(ratio: Tensor, power: Tensor, decay: Tensor) -> Tensor:
    """[n] rho^power e^(decay (1 - rho)): 1 at rho = 1, greatest at rho = power / decay, 0 at both ends.

    >>> x = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    >>> gamma_shaped(x, torch.full_like(x, 2.0), torch.full_like(x, 3.0)).round(decimals=6).tolist()
    [1.120422, 1.0, 0.199148]
    """
    held = ratio.clamp(torch.finfo(ratio.dtype).tiny, 1e30)
    return (power * held.log() + decay * (1 - held)).exp()


@dataclass(frozen=True)
class Gamma(DetachedWeight):
    """-stop(phi(rho)) A logprob, phi(rho) = rho^k e^(lambda (1 - rho)).

    power_positive, decay_positive  k and lambda for A > 0
    power_negative, decay_negative  and for A < 0

    phi is bounded by its value at k / lambda: 1.21 and 1.24 with the defaults.

    Source: VESPO, arXiv 2602.10693, with the ratio of the whole trajectory (`sequence_sum`); constants as in TRL.
    """

    power_positive: float = 2.0
    decay_positive: float = 3.0
    power_negative: float = 3.0
    decay_negative: float = 2.0

    def __post_init__(self) -> None:
        for name in ("power_positive", "power_negative", "decay_positive", "decay_negative"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"objective.{name} is {getattr(self, name)}; it is above 0")

    def weight(self, x: Entries) -> Tensor:
        one, up = torch.ones_like(x.ratio), x.credit > 0
        power = torch.where(up, self.power_positive * one, self.power_negative * one)
        decay = torch.where(up, self.decay_positive * one, self.decay_negative * one)
        return gamma_shaped(x.ratio, power, decay)
