"""Entity reward: share of a solution's entities that an attempt mentions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.forest.forest import Forest

if TYPE_CHECKING:
    from gxpo.parts.protocols import Task


def mentioned(text: str, entities: Sequence[str]) -> float:
    """Share of the entities found in the text, ignoring case and spaces; nan without entities.

    >>> mentioned("From  Paris to\\nnew york", ["New York", "Oslo"])
    0.5
    """
    plain = " ".join(text.lower().split())
    found = [" ".join(entity.lower().split()) in plain for entity in entities]
    return sum(found) / len(found) if found else math.nan


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
