"""Length rewards: linear, triangle around a budget, inverse, and the soft overlong punishment of DAPO."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Gt
from torch import Tensor

from gxpo.base.errors import ConfigError
from gxpo.environments.rewards.base import RewardPart
from gxpo.environments.rewards.shape import verdicts
from gxpo.forest import grouped
from gxpo.forest.forest import Forest
from gxpo.parts.registry import part


# ---------------------------------------------------------------- length
def linear_penalty(length: Tensor, scale: Tensor | float, coef: float = 1.0) -> Tensor:
    """-coef * length / scale, float64, shaped as `length` (in tokens, as `scale` > 0 is).

    >>> linear_penalty(torch.tensor([100, 200]), 400.0, coef=0.5).tolist()
    [-0.125, -0.25]
    """
    if not bool((torch.as_tensor(scale) > 0).all()):
        raise ValueError("scale must be above 0")
    return -coef * length.to(torch.float64) / scale


def triangle(length: Tensor, budget: float, width: float | None = None, coef: float = 1.0) -> Tensor:
    """coef times length / budget up to the budget, then down to 0 at budget + width, and 0 beyond; float64.

    width  None: the budget. Source: Train Long, Think Short, arXiv 2508.08940

    >>> triangle(torch.tensor([100, 200, 300]), 125.44)
    tensor([0.7972, 0.4056, 0.0000], dtype=torch.float64)
    """
    length, width = length.to(torch.float64), budget if width is None else width
    return coef * torch.minimum(length / budget, 1.0 - (length - budget) / width).clamp_min(0.0)


def inverse_penalty(length: Tensor, coef: float) -> Tensor:
    """-coef / length, coef in tokens, float64: a right answer of 100 tokens loses 10 at coef 1000. Source: RLSP.

    >>> inverse_penalty(torch.tensor([100, 1000, 4000]), 1000.0).tolist()
    [-10.0, -1.0, -0.25]
    """
    return -coef / length.to(torch.float64).clamp_min(1.0)


@part("length", stage="reward")
@dataclass(frozen=True)
class Length(RewardPart):
    """Length reward, {"length": [R]}, to be added to the outcome.

    coef        "linear": what an answer of length `scale` loses; "triangle": what one of length `budget` earns;
                "inverse": what an answer of one token loses
    shape       "linear": -coef * length / scale; "triangle": see there; "inverse": -coef / length, a trap (`rlsp`)
    scale       "limit": max_length, the same for all; "longest": the longest correct answer of the trajectory's group
    answers     "correct": wrong answers lose nothing, so that a group of wrong answers has no contrast of its own and a
                short wrong answer gains nothing; "all": every answer; "all_right_groups": answers of groups in which
                all compared ones are right, so that length counts where nothing else is left to learn
    max_length  tokens at which generation stops; None: the trainer fills in sampling.max_new_tokens
    budget      tokens at the top of the triangle;   width  tokens from there to 0, None: the budget

    Lengths count the policy's own (trainable) tokens. With "longest" the penalty is LC-R1's length term (arXiv
    2506.14755) less the constant coef, which cancels within groups; the paper gives it to correct answers, its
    code to all of a group with a correct one ("all"). A group without correct answers loses nothing under "longest".
    With "limit" and "all_right_groups" it is ConciseR's (arXiv 2505.21178), less the constant coef.
    """

    coef: float = 0.5
    scale: Literal["limit", "longest"] = "limit"
    answers: Literal["correct", "all", "all_right_groups"] = "correct"
    max_length: int | None = None
    shape: Literal["linear", "triangle", "inverse"] = "linear"
    budget: Annotated[float, Gt(0)] | None = None
    width: Annotated[float, Gt(0)] | None = None

    def __post_init__(self) -> None:
        if not self.coef >= 0:
            raise ConfigError(f"length: coef must be 0 or more, not {self.coef!r}")
        if self.max_length is not None and self.max_length < 1:
            raise ConfigError(f"length: max_length must be at least 1 token, not {self.max_length!r}")
        if (self.shape == "triangle") != (self.budget is not None):
            problem = "needs a budget in tokens" if self.budget is None else f"of shape {self.shape} has no budget"
            raise ConfigError(f"length: a reward {problem}: set shape=triangle and budget together")

    def __call__(self, forest: Forest) -> dict[str, Tensor]:
        length, group = forest.lengths().to(torch.float64), forest.ids("group", axis="R")
        is_paid_R = torch.ones_like(forest.scored)
        scales_by_longest = self.shape == "linear" and self.scale == "longest"
        correct_R = verdicts(forest, "length") if self.answers != "all" or scales_by_longest else is_paid_R
        # Which answers are paid at all.
        if self.answers == "correct":
            is_paid_R = correct_R
        elif self.answers == "all_right_groups":
            is_paid_R = correct_R & (grouped.min(correct_R, group, forest.compared & forest.scored) >= 1)
        # The value of each answer, in the shape that is set.
        if self.shape == "triangle":
            assert self.budget is not None
            value_R = triangle(length, self.budget, self.width, self.coef)
        elif self.shape == "inverse":
            value_R = inverse_penalty(length, self.coef)
        elif scales_by_longest:
            longest_R = grouped.max(length, group, correct_R & forest.compared)
            is_paid_R = is_paid_R & (longest_R > 0)  # a group without a correct answer has no scale
            value_R = linear_penalty(length, longest_R.clamp_min(1.0), self.coef)
        elif self.max_length is None:
            raise ConfigError("length: max_length is not set; give the number of tokens at which generation stops")
        else:
            value_R = linear_penalty(length, float(self.max_length), self.coef)
        return {"length": torch.where(is_paid_R, value_R, torch.zeros_like(value_R))}


# ---------------------------------------------------------------- overlong
def overlong_penalty(length: Tensor, max_length: float, buffer: float, factor: float = 1.0) -> Tensor:
    """Soft overlong punishment, float64, shaped as `length`.

    0 up to max_length - buffer; -factor (length - (max_length - buffer)) / buffer up to max_length; -factor beyond.
    All in tokens. Source: DAPO (arXiv 2503.14476, eq. 13). verl's code has no floor at -factor, which differs only
    beyond max_length, where generation never gets.

    >>> overlong_penalty(torch.tensor([16384, 17408, 18432, 20480]), 20480, 4096).tolist()
    [-0.0, -0.25, -0.5, -1.0]
    """
    if not 0 < buffer <= max_length:
        raise ValueError(f"buffer must be above 0 and at most max_length {max_length}, not {buffer}")
    excess = (length.to(torch.float64) - (max_length - buffer)) / buffer
    return -factor * excess.clamp(0.0, 1.0)


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
            "overlong": overlong_penalty(
                forest.lengths(),
                self.max_length,
                self.buffer * self.max_length,
                self.factor,
            )
        }
