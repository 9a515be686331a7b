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
from gxpo.rewards.component import read_component


def linear_penalty(length: Tensor, scale: Tensor | float, coef: float = 1.0) -> Tensor:
    """-coef * length / scale, float64, shaped as `length` (in tokens, as `scale` > 0 is).

    >>> linear_penalty(torch.tensor([100, 200]), 400.0, coef=0.5).tolist()
    [-0.125, -0.25]
    """
    if not bool((torch.as_tensor(scale) > 0).all()):
        raise ValueError("scale must be above 0")
    return -coef * length.to(torch.float64) / scale


def exponential_in_length(
    length: Tensor,
    correct: Tensor,
    group: Tensor,
    alpha: float = 0.05,
    eps: float = 1e-6,
    where: Tensor | None = None,
    ddof: int = 1,
    longer_than: float = 0.0,
) -> Tensor:
    """exp(-alpha z) for a correct answer, -1 for a wrong one, float64 [R].

    z = (L - mean L) / (std L + eps), mean and std of the lengths of the group's correct answers.

    length       [R] tokens
    correct      [R] bool
    group        [R] int64 dense ids, -1 = in no group
    where        [R] bool, compared (default: all): whose lengths enter the statistics
    ddof         degrees of freedom that the std leaves out
    longer_than  z is 0 in groups whose three shortest answers, right or wrong, have at most this many tokens on average

    A lone correct answer, and correct answers of equal length, have z = 0, so 1. A group of fewer than three answers is
    longer than any bound. Source: GRPO-LEAD (arXiv 2504.09696) and its code, which sets `longer_than` to 4,000.

    >>> correct = torch.tensor([True, True, True, False])
    >>> exponential_in_length(torch.tensor([100, 200, 300, 150]), correct, torch.zeros(4).long())
    tensor([ 1.0513,  1.0000,  0.9512, -1.0000], dtype=torch.float64)
    """
    counts = torch.ones_like(correct) if where is None else where
    z = levels.normalize(length, group, correct & counts, ddof=ddof, eps=eps)
    apart = length.to(torch.float64) * len(length) + torch.arange(len(length))  # no two are equal
    shortest = counts & (levels.rank(apart, group, counts) < 3)
    long = (levels.mean(length, group, shortest) > longer_than) | (levels.count(group, counts) < 3)
    return torch.where(correct, torch.exp(-alpha * torch.where(long, z, 0.0)), -1.0)


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

    parsed      component that is 1 where an answer could be read: a failure without one is worth 0, not -1
    repetitive  component that is 1 where the text repeats itself: such a failure is worth -2, if it has no answer

    Both as in the code, which calls a text repetitive that says up to 30 words ten times in a row or has a word of 120
    characters. They count in groups with a success; the code drops the others. A component that is unknown is taken for
    one that says nothing bad. Lengths count the policy's own (trainable) tokens. Groups in which all are correct differ
    by length.
    """

    alpha: float = 0.05
    eps: float = 1e-6
    ddof: int = 1
    longer_than: float = 0.0
    parsed: str = ""
    repetitive: str = ""

    def __post_init__(self) -> None:
        if self.repetitive and not self.parsed:
            raise ConfigError("length_relative: repetitive counts where no answer could be read: name `parsed` as well")
        if self.ddof not in (0, 1) or not self.longer_than >= 0:
            raise ConfigError(
                f"length_relative: ddof is 0 or 1 and longer_than 0 or more, not {self.ddof!r} and {self.longer_than!r}"
            )

    def __call__(self, forest: Forest) -> Tensor:
        correct, group = verdicts(forest, "length_relative"), forest.ids("group", axis="R")
        where = forest.compared & forest.scored
        value = exponential_in_length(
            forest.lengths(), correct, group, self.alpha, self.eps, where, self.ddof, self.longer_than
        )
        if self.parsed:
            solved = levels.max(correct.to(torch.float64), group, where) > 0
            unread = ~correct & solved & (self._component(forest, self.parsed, 1.0) < 1)
            repeats = (
                self._component(forest, self.repetitive, 0.0) >= 1 if self.repetitive else torch.zeros_like(unread)
            )
            value = torch.where(unread, torch.where(repeats, -2.0, 0.0), value)
        return torch.where(forest.scored, value, torch.nan)

    def _component(self, forest: Forest, name: str, unknown: float) -> Tensor:
        return read_component(forest, name, "length_relative").nan_to_num(unknown)


def verdicts(forest: Forest, asker: str) -> Tensor:
    """[R] bool: scored, and right by the verifier; refused where a scored trajectory has no verdict."""
    forest.need_verdicts(asker, each=True)
    return forest.scored & (forest.success >= 1)
