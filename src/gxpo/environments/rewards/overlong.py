"""Soft overlong punishment (DAPO): a length penalty near the token limit."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gxpo.base.errors import ConfigError
from gxpo.environments.rewards.base import RewardPart
from gxpo.forest.forest import Forest
from gxpo.parts.registry import part


def penalty(length: Tensor, max_length: float, buffer: float, factor: float = 1.0) -> Tensor:
    """Soft overlong punishment, float64, shaped as `length`.

    0 up to max_length - buffer; -factor (length - (max_length - buffer)) / buffer up to max_length; -factor beyond.
    All in tokens. Source: DAPO (arXiv 2503.14476, eq. 13). verl's code has no floor at -factor, which differs only
    beyond max_length, where generation never gets.

    >>> penalty(torch.tensor([16384, 17408, 18432, 20480]), 20480, 4096).tolist()
    [-0.0, -0.25, -0.5, -1.0]
    """
    if not 0 < buffer <= max_length:
        raise ValueError(f"buffer must be above 0 and at most max_length {max_length}, not {buffer}")
    over = (length.to(torch.float64) - (max_length - buffer)) / buffer
    return -factor * over.clamp(0.0, 1.0)


@part("overlong", stage="reward")
@dataclass(frozen=True)
class Overlong(RewardPart):
    """DAPO's soft overlong punishment: {"overlong": [R]}, to be added to the outcome; never touches `success`.

    max_length  tokens at which generation stops; None: the trainer fills in sampling.max_new_tokens
    buffer      the share of max_length in which the penalty grows (paper: 4096 of 20480)
    factor      the penalty at max_length

    Lengths count the policy's own (trainable) tokens, never a prompt's or a tool's. Added after dynamic sampling has
    chosen its groups: an all-wrong group of unequal lengths is still a group without signal.
    """

    max_length: int | None = None
    buffer: float = 0.2
    factor: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.buffer <= 1:
            raise ConfigError(f"overlong: buffer is a share of max_length, above 0 and at most 1, not {self.buffer!r}")
        if self.max_length is not None and self.max_length < 1:
            raise ConfigError(f"overlong: max_length must be at least 1 token, not {self.max_length!r}")

    def __call__(self, forest: Forest) -> dict[str, Tensor]:
        if self.max_length is None:
            raise ConfigError(
                "overlong: max_length is not set: give the tokens at which generation stops as "
                "reward.add.overlong.max_length"
            )
        return {
            "overlong": penalty(
                forest.lengths(),
                self.max_length,
                self.buffer * self.max_length,
                self.factor,
            )
        }
