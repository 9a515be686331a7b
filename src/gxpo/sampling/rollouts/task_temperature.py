"""A temperature for each task (ERPO): tasks whose groups come out all alike are sampled hotter the next time."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Gt

from gxpo.base.errors import CheckpointError
from gxpo.forest import grouped
from gxpo.forest.forest import Forest
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.base import Count, Rollout
from gxpo.sampling.rollouts.build import Attempts, Draw
from gxpo.sampling.rollouts.episodes import Play


def heated(start: float, visits: int, step: float, most: float) -> float:
    """min(start + visits step, most), and never below `start`.

    >>> [round(heated(1.0, c, 0.05, 1.2), 6) for c in range(6)]
    [1.0, 1.05, 1.1, 1.15, 1.2, 1.2]
    """
    return max(start, min(start + visits * step, most))


@part("task_temperature", stage="rollout")
@dataclass(frozen=True)
class TaskTemperature(Rollout):
    """`group_size` samples of each task, hotter by `step` for every visit at which its group was all alike.

    when    which visits count: groups that were "all_right", "all_wrong", or either ("uniform"), by known verdicts
    step    added to the run's temperature T0 for each visit that counted, up to `most` in all: T = min(T0 + c step,
            most), not below T0
    reset   a visit that does not count sets c back to 0; False: c stays

    c is kept by task id, is counted after the step's update, and is in the checkpoint. A rollout's log-probs and ratios
    are those of the policy at the temperature that it was sampled at, which is what is trained of it, with a slope of
    1 / T; info["temperature"] says which. A group without verdicts says nothing. Held-out tasks are sampled at the
    evaluation's temperature. It pays only where tasks come round again. Source: ERPO, arXiv 2511.04800.
    """

    group_size: Count = 8
    when: Literal["all_right", "all_wrong", "uniform"] = "all_right"
    step: Annotated[float, Ge(0)] = 0.05
    most: Annotated[float, Gt(0)] = 1.2
    reset: bool = True
    team: str = ""
    visits: dict[str, int] = field(init=False, repr=False, compare=False, default_factory=dict)

    def first(self, draws: Sequence[Draw], play: Play) -> list[Attempts]:
        own, out = play.session.sampling, []
        for draw in draws:
            heat = heated(own.temperature, self.visits.get(draw.task.id, 0), self.step, self.most)
            hot = dataclasses.replace(own, temperature=heat) if heat != own.temperature else None
            out.append(draw.attempts(self.group_size, sampling=hot, info={"temperature": heat}))
        return out

    # ------------------------------------------------------------ memory
    def observe(self, forest: Forest) -> None:
        """Counts the step's groups."""
        group, known = forest.ids("group", axis="R"), forest.scored & forest.success.isfinite()
        right = torch.where(known, forest.success >= 1, False)
        most, least = grouped.max(right, group, known), grouped.min(right, group, known)
        counts = {"all_right": least >= 1, "all_wrong": most < 1, "uniform": most == least}[self.when].tolist()
        seen = (grouped.count(group, known) > 0).tolist()
        each = zip(forest.group, forest.task, seen, counts, strict=True)
        for task, counted in {name: (task, c) for name, task, there, c in each if there}.values():
            before = self.visits.get(task, 0)
            self.visits[task] = before + 1 if counted else 0 if self.reset else before

    def state_dict(self) -> dict[str, Any]:
        return {"visits": {task: n for task, n in sorted(self.visits.items()) if n}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if set(state) != {"visits"}:
            raise CheckpointError(f"the checkpoint's task temperatures hold {sorted(state)}, not 'visits'")
        self.visits.clear()
        self.visits.update({task: int(n) for task, n in state["visits"].items()})
