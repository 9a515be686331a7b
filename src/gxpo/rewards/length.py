"""Linear length penalty."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gxpo import grouped
from gxpo.errors import ConfigError
from gxpo.forest import Forest
from gxpo.registry import part
from gxpo.rewards.base import RewardPart
from gxpo.rewards.shape import verdicts


def linear_penalty(length: Tensor, scale: Tensor | float, coef: float = 1.0) -> Tensor:
    """-coef * length / scale, float64, shaped as `length` (in tokens, as `scale` > 0 is).

    >>> linear_penalty(torch.tensor([100, 200]), 400.0, coef=0.5).tolist()
    [-0.125, -0.25]
    """
    if not bool((torch.as_tensor(scale) > 0).all()):
        raise ValueError("scale must be above 0")
    return -coef * length.to(torch.float64) / scale


@part("length", stage="reward")
@dataclass(frozen=True)
class Length(RewardPart):
    """A linear length penalty, {"length": [R]}, to be added to the outcome: -coef * length / scale.

    coef        what an answer of length `scale` loses
    scale       "limit": max_length, the same for all; "longest": the longest correct answer of the trajectory's group
    of          "correct": wrong answers lose nothing, so that a group of wrong answers has no contrast of its own and a
                short wrong answer gains nothing; "all": every answer
    max_length  tokens at which generation stops; None: the trainer fills in sampling.max_new_tokens

    Lengths count the policy's own (trainable) tokens. With "longest" the penalty is LC-R1's length term (arXiv
    2506.14755) less the constant coef, which cancels within groups; the paper gives it to correct answers, its
    code to all of a group with a correct one ("all"). A group without correct answers loses nothing under "longest".
    """

    coef: float = 0.5
    scale: Literal["limit", "longest"] = "limit"
    of: Literal["correct", "all"] = "correct"
    max_length: int | None = None

    def __post_init__(self) -> None:
        if not self.coef >= 0:
            raise ConfigError(f"length: coef must be 0 or more, not {self.coef!r}")
        if self.max_length is not None and self.max_length < 1:
            raise ConfigError(f"length: max_length must be at least 1 token, not {self.max_length!r}")

    def __call__(self, forest: Forest) -> dict[str, Tensor]:
        length = forest.lengths().to(torch.float64)
        loses = torch.ones_like(forest.scored)
        if self.of == "correct" or self.scale == "longest":
            correct = verdicts(forest, "length")
            loses = correct if self.of == "correct" else loses
        if self.scale == "limit":
            if self.max_length is None:
                raise ConfigError("length: max_length is not set; give the number of tokens at which generation stops")
            value = linear_penalty(length, float(self.max_length), self.coef)
        else:
            longest = grouped.max(length, forest.ids("group", axis="R"), correct & forest.compared)
            loses = loses & (longest > 0)
            value = linear_penalty(length, longest.clamp_min(1.0), self.coef)
        return {"length": torch.where(loses, value, torch.zeros_like(value))}
