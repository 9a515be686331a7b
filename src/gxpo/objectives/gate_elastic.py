"""A clip whose bounds give way to credit that says much."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gxpo.errors import ConfigError
from gxpo.objectives.gate import Clip, Entries


def binary_variance(credit: Tensor) -> Tensor:
    """4 p (1 - p) of a group of right and wrong answers of which one has this z-scored credit, in [0, 1].

    With population std a right answer has A = sqrt((1 - p) / p), a wrong one -sqrt(p / (1 - p)), so either tells
    4 p (1 - p) = 4 A^2 / (1 + A^2)^2. With one degree of freedom A is sqrt((G - 1) / G) of that.

    >>> of_p_half_and_tenth = torch.tensor([1.0, -1.0, 3.0], dtype=torch.float64)
    >>> binary_variance(of_p_half_and_tenth).round(decimals=6).tolist()
    [1.0, 1.0, 0.36]
    """
    return (2.0 * credit / (1.0 + credit.square())).square()


@dataclass(frozen=True)
class ElasticClip(Clip):
    """`Clip` with both widths times (1 + elastic_credit tanh |A|) (1 + elastic_variance 4 p (1 - p)) of the entry.

    clip_low, clip_high  widths at credit 0
    elastic_credit       how much credit of great magnitude widens them
    elastic_variance     how much a group of mixed verdicts widens them; p is read off the credit (`binary_variance`),
                         so this is for z-scored credit of right and wrong answers

    In a binary group the two partly oppose: |A| is greatest where p is extreme, the variance at p = 1/2. With both at
    0 this is `Clip`. A reconstruction of ETR, arXiv 2601.03723, from its abstract.
    """

    elastic_credit: float = 0.5
    elastic_variance: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.elastic_credit >= 0 and self.elastic_variance >= 0):
            raise ConfigError(
                "objective.elastic_credit and objective.elastic_variance are 0 or more, not "
                f"{self.elastic_credit}, {self.elastic_variance}"
            )

    def room(self, credit: Tensor) -> Tensor:
        """How many times as wide as at credit 0; 1 or more, shaped as `credit`."""
        by_credit = 1.0 + self.elastic_credit * credit.abs().tanh()
        return by_credit * (1.0 + self.elastic_variance * binary_variance(credit))

    def loss(self, x: Entries) -> Tensor:
        room = self.room(x.credit)
        rising, falling = x.ratio.clamp(max=1 + self.clip_high * room), x.ratio.clamp(min=1 - self.clip_low * room)
        return -x.credit * torch.where(x.credit >= 0, rising, falling)

    def clipped(self, x: Entries) -> Tensor:
        room = self.room(x.credit)
        high, low = x.ratio > 1 + self.clip_high * room, x.ratio < 1 - self.clip_low * room
        return ((x.credit > 0) & high) | ((x.credit < 0) & low)
