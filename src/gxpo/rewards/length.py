"""What length does to a score: a penalty linear in it, and one that compares correct answers with each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from gxpo import levels
from gxpo.errors import ConfigError
from gxpo.forest import Forest
from gxpo.rewards.base import RewardPart


def linear_penalty(length: Tensor, scale: Tensor | float, coef: float = 1.0) -> Tensor:
    """-coef * length / scale, float64, shaped as `length` (in tokens, as `scale` > 0 is).

    >>> linear_penalty(torch.tensor([100, 200]), 400.0, coef=0.5).tolist()
    [-0.125, -0.25]
    """
    if not bool((torch.as_tensor(scale) > 0).all()):
        raise ValueError("scale must be above 0")
    return -coef * length.to(torch.float64) / scale


def exponential_in_length(
    length: Tensor, correct: Tensor, group: Tensor, alpha: float = 0.05, eps: float = 1e-6, where: Tensor | None = None
) -> Tensor:
    """exp(-alpha z) for a correct answer, -1 for a wrong one, float64 [R].

    z = (L - mean L) / (std L + eps), mean and population std of the lengths of the group's correct answers.

    length   [R] tokens
    correct  [R] bool
    group    [R] int64 dense ids, -1 = in no group
    where    [R] bool, compared (default: all): whose lengths enter the statistics

    A lone correct answer, and correct answers of equal length, have z = 0, so 1.
    Source: GRPO-LEAD (arXiv 2504.09696).

    >>> correct = torch.tensor([True, True, True, False])
    >>> exponential_in_length(torch.tensor([100, 200, 300, 150]), correct, torch.zeros(4).long())
    tensor([ 1.0632,  1.0000,  0.9406, -1.0000], dtype=torch.float64)
    """
    enters = correct if where is None else correct & where
    z = levels.normalize(length, group, enters, ddof=0, eps=eps)
    return torch.where(correct, torch.exp(-alpha * z), torch.full_like(z, -1.0))


@dataclass(frozen=True)
class Length(RewardPart):
    """A linear length penalty, {"length": [R]}, to be added to the outcome: -coef * length / scale.

    coef        what an answer of length `scale` loses
    scale       "limit": max_length, the same for all; "longest": the longest correct answer of the trajectory's group
    of          "correct": wrong answers lose nothing, so that a group of wrong answers has no contrast of its own and a
                short wrong answer gains nothing; "all": every answer
    max_length  tokens at which generation stops; None: the trainer fills in sampling.max_new_tokens

    Lengths count the policy's own (trainable) tokens. With "longest" the penalty is LC-R1's length term (arXiv
    2506.14755) less the constant coef, which no group-relative credit sees; the paper gives it to correct answers, its
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
            longest = levels.max(length, forest.ids("group", axis="R"), correct & forest.compared)
            loses = loses & (longest > 0)
            value = linear_penalty(length, longest.clamp_min(1.0), self.coef)
        return {"length": torch.where(loses, value, torch.zeros_like(value))}


@dataclass(frozen=True)
class LengthRelative(RewardPart):
    """`exponential_in_length` (GRPO-LEAD) as a new outcome: reads `success`, not what the reward was.

    Lengths count the policy's own (trainable) tokens. Groups in which all are correct differ by length.
    """

    alpha: float = 0.05
    eps: float = 1e-6

    def __call__(self, forest: Forest) -> Tensor:
        correct = verdicts(forest, "length_relative")
        group = forest.ids("group", axis="R")
        value = exponential_in_length(forest.lengths(), correct, group, self.alpha, self.eps, where=forest.compared)
        return torch.where(forest.scored, value, torch.nan)


def verdicts(forest: Forest, asker: str) -> Tensor:
    """[R] bool: scored, and right by the verifier; refused where a scored trajectory has no verdict."""
    forest.need_verdicts(asker, each=True)
    return forest.scored & (forest.success >= 1)
