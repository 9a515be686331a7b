"""Sums that peers of a known reliability have answered before (KAIROS), and figures of those who listen to them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from gxpo.base.errors import TaskError
from gxpo.environments.tasks.source import Arithmetic, check_options
from gxpo.parts.protocols import Task


def social_figures(alone: Sequence[bool], social: Sequence[bool]) -> dict[str, float]:
    """Utility, resistance and their F1, of answers to the same questions alone and after peers.

    utility     share of the questions answered wrong alone that are answered right after peers
    resistance  share of those answered right alone that still are

    >>> social_figures([1, 1, 1, 0, 0, 0, 1, 0], [1, 0, 1, 1, 0, 1, 1, 0])
    {'utility': 0.5, 'resistance': 0.75, 'f1': 0.6}
    """
    rates = []
    for was_right in (False, True):
        after = [bool(x) for x, y in zip(social, alone, strict=True) if bool(y) is was_right]
        rates.append(sum(after) / len(after) if after else 0.0)
    utility, resistance = rates
    f1 = 2 * utility * resistance / (utility + resistance) if utility + resistance else 0.0
    return {"utility": utility, "resistance": resistance, "f1": f1}


@dataclass
class Peers(Arithmetic):
    """`85,84,85|37+48=` -> `85`: a sum of `Arithmetic` after the answers of `peers` others, each right with probability
    `reliability`, else one or two off. `info` has the question "alone"."""

    peers: int = 3
    reliability: float = 0.5

    name: ClassVar[str] = "peers"
    options: ClassVar[Mapping[str, Any]] = {**Arithmetic.options, "peers": int, "reliability": float}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_options(self.name, {"peers": self.peers, "reliability": self.reliability}, self.options)
        if self.peers < 1 or not 0 <= self.reliability <= 1:
            raise TaskError("task 'peers': peers is 1 or more and reliability from 0 to 1")

    def propose(self, random: np.random.Generator) -> Task:
        task = super().propose(random)
        off = random.choice((-2, -1, 1, 2), size=self.peers) * (random.random(self.peers) >= self.reliability)
        replies = ",".join(str(max(0, int(task.answer) + int(x))) for x in off)
        info = {**task.info, "alone": task.prompt, "peers": replies}
        return dataclasses.replace(
            task, id=f"peers/{replies}|{task.prompt}", prompt=f"{replies}|{task.prompt}", info=info
        )
