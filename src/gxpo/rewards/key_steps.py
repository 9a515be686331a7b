"""Rewards of a reasoning path for containing the key steps of a solution, and for having its parts in order."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.errors import ConfigError
from gxpo.forest import Forest
from gxpo.rewards.base import RewardPart
from gxpo.rewards.component import read_component

if TYPE_CHECKING:
    from gxpo.protocols import Task

PARTS = (r"description|background", r"step\s*\d|step by step", r"final answer|the answer is|<answer>|\\boxed")


def contained(text: str, key_steps: Sequence[str | Sequence[str]]) -> float:
    """The share of the key steps that stand in the text, each in one of its wordings; case and spaces do not matter.
    nan without key steps.

    >>> contained("so 6/3 = 2, then 2+5=7", [["6/3=2", r"\\frac{6}{3}=2"], "2*5=10"])
    0.5
    """
    plain = "".join(text.lower().split())
    wordings = [[step] if isinstance(step, str) else step for step in key_steps]
    found = [any("".join(w.lower().split()) in plain for w in own) for own in wordings]
    return sum(found) / len(found) if found else math.nan


def in_order(text: str, parts: Sequence[str] = PARTS) -> float:
    """1.0 where each of the regular expressions matches, and they begin to match in their order; else 0.0.

    >>> in_order("Background: x. Step 1: y. The answer is 2"), in_order("The answer is 2. Step 1: y. Background: x")
    (1.0, 0.0)
    """
    found = [re.search(part, text, re.IGNORECASE) for part in parts]
    begins = [match.start() for match in found if match is not None]
    return float(len(begins) == len(parts) and all(a < b for a, b in pairwise(begins)))


@dataclass(eq=False)
class KeySteps:
    """The reward "key_steps": {"key_steps": `contained` of the task's `info["key_steps"]`, "ordered": `in_order`}.
    Recorded, not counted; "key_steps" is nan where a task names none.

    parts  regular expressions for background, steps and final answer, in the order in which they have to begin
    """

    parts: Sequence[str] = PARTS

    name = "key_steps"
    gives = ("key_steps", "ordered")
    reports = ("key_steps", "ordered")

    def __post_init__(self) -> None:
        for part in self.parts:
            try:
                re.compile(part)
            except re.error as error:
                raise ConfigError(f"key_steps: {part!r} is no regular expression: {error}") from None

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Tensor]:
        steps = [contained(text, task.info.get("key_steps", ())) for text, task in zip(texts, tasks, strict=True)]
        order = [in_order(text, self.parts) for text in texts]
        return {name: torch.tensor(x, dtype=torch.float64) for name, x in zip(self.gives, (steps, order), strict=True)}


@dataclass(frozen=True)
class AddedComponent(RewardPart):
    """`reward.shape`: outcome + weight * component `component`, which some reward computes with weight 0.

    R1-VL's StepRAR adds 0.1 of the share of key steps, its StepRVR 1 where the parts are in order: "key_steps" and
    "ordered" of the reward "key_steps". ConfigError where no reward computes the component, or where it is not from 0
    to 1; an attempt for which it is unknown is unscored.

    Source: R1-VL, arXiv 2503.12937.
    """

    component: str = "key_steps"
    weight: float = 0.1

    def __call__(self, forest: Forest) -> Tensor:
        return forest.outcome + self.weight * read_component(forest, self.component, "added_component")
