"""One score for a right answer and its opposite for a wrong one, so that no baseline is needed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gxpo.errors import ConfigError
from gxpo.forest import Forest
from gxpo.rewards.base import RewardPart
from gxpo.rewards.length import verdicts


@dataclass(frozen=True)
class Signed(RewardPart):
    """A new outcome from the verdict alone: `right` for a success, `wrong` for a failure; unscored stays unscored.

    Source: PSR and NSR, arXiv 2506.01347.
    """

    right: float = 1.0
    wrong: float = -1.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.right) and math.isfinite(self.wrong)):
            raise ConfigError(f"signed: right and wrong are finite scores, not {self.right} and {self.wrong}")

    def __call__(self, forest: Forest) -> Tensor:
        score = torch.where(verdicts(forest, "signed"), self.right, self.wrong).to(torch.float64)
        return torch.where(forest.scored, score, torch.nan)
