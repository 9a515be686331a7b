"""Partial credit for wrong answers by how many of the entities of a solution they came across."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo import levels
from gxpo.errors import ConfigError
from gxpo.forest import Forest
from gxpo.rewards.base import RewardPart
from gxpo.rewards.component import read_component
from gxpo.rewards.length import verdicts

if TYPE_CHECKING:
    from gxpo.protocols import Task


def mentioned(text: str, entities: Sequence[str]) -> float:
    """The share of the entities that stand in the text, case and spaces aside; nan without entities.

    >>> mentioned("From  Paris to\\nnew york", ["New York", "Oslo"])
    0.5
    """
    plain = " ".join(text.lower().split())
    found = [" ".join(entity.lower().split()) in plain for entity in entities]
    return sum(found) / len(found) if found else math.nan


def near_misses(right: Tensor, rate: Tensor, group: Tensor, most: float = 0.3, where: Tensor | None = None) -> Tensor:
    """1 for the right, most * rate / (largest rate of the group) for the wrong; float64 [R].

    right [R] bool; rate [R] from 0 to 1, nan unknown; group [R] int64 dense ids
    where [R] bool (default: all): whose rates are compared. 0 where all of them are 0

    >>> right, rate = torch.tensor([True, False, False]), torch.tensor([0.8, 0.8, 0.4], dtype=torch.float64)
    >>> near_misses(right, rate, torch.zeros(3, dtype=torch.int64)).tolist()
    [1.0, 0.3, 0.15]
    """
    known = rate.isfinite() if where is None else where & rate.isfinite()
    best = levels.max(rate.nan_to_num(0.0), group, known)
    share = torch.where(best > 0, (rate / torch.where(best > 0, best, 1.0)).clamp(max=1.0), 0.0 * rate)
    return torch.where(right, 1.0, most * share)


@dataclass(eq=False)
class Entities:
    """The reward "entities": the share of the task's `info["entities"]` that an attempt mentions. Recorded, not
    counted; nan where a task names none.
    """

    name = "entities"
    gives = ("entities",)
    reports = ("entities",)

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Tensor]:
        found = [mentioned(text, task.info.get("entities", ())) for text, task in zip(texts, tasks, strict=True)]
        return {"entities": torch.tensor(found, dtype=torch.float64)}


@dataclass(frozen=True)
class EntityMatch(RewardPart):
    """`reward.shape`: 1 for what the verifier accepts; a wrong attempt earns `near_misses` of component `component`.

    component  the share of entities that the attempt came across, 0 to 1: the reward "entities", or one of your own
    most       what a wrong attempt can earn, below 1

    An attempt that was cut at a limit and is wrong earns 0. A rate that is unknown leaves a wrong attempt unscored.
    The largest rate is that of the group's scored, compared attempts, right ones included. Reads `success`.

    Source: E-GRPO, arXiv 2510.24694.
    """

    component: str = "entities"
    most: float = 0.3

    def __post_init__(self) -> None:
        if not 0 <= self.most < 1:
            raise ConfigError(f"entity_match: most ({self.most:g}) is from 0 to below 1, what a right answer earns")

    def __call__(self, forest: Forest) -> Tensor:
        right = verdicts(forest, "entity_match")
        rate = read_component(forest, self.component, "entity_match")
        counted = forest.compared & forest.scored
        value = near_misses(right, rate, forest.ids("group", axis="R"), self.most, counted)
        value = torch.where(forest.truncated & ~right, 0.0, value)
        return torch.where(forest.scored, value, torch.nan)
