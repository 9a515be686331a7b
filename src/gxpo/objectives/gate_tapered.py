"""A gate that weighs what is punished by a bounded ratio, and what is rewarded by none."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gxpo.errors import ConfigError
from gxpo.objectives.gate import Entries
from gxpo.objectives.gate_detached import DetachedWeight


@dataclass(frozen=True)
class Tapered(DetachedWeight):
    """-A logprob for A > 0; -stop(min(rho, ratio_max)) A logprob for A < 0.

    ratio_max  absolute, 1.0: what is punished never counts more than when it was sampled, and less and less as it
               becomes unlikely

    Source: TOPR, arXiv 2503.14286, with the ratio of the whole trajectory (`sequence_sum`); ports take each token's.
    """

    ratio_max: float = 1.0

    def __post_init__(self) -> None:
        if not self.ratio_max > 0:
            raise ConfigError(f"objective.ratio_max is {self.ratio_max}; it is an absolute bound above 0, such as 1.0")

    def weight(self, x: Entries) -> Tensor:
        return torch.where(x.credit > 0, torch.ones_like(x.ratio), x.ratio.clamp_max(self.ratio_max))
