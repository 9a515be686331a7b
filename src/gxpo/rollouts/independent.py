"""A group is G attempts at one task, independent of one another: samples of a prompt, or episodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gxpo.errors import ConfigError
from gxpo.forest import Forest
from gxpo.protocols import Session, Task
from gxpo.rollouts.build import forest_of, name_draws, requests
from gxpo.rollouts.episodes import play


@dataclass(frozen=True)
class Independent:
    """`group_size` samples of each task, or episodes in its environment: the group is "s{step}/{task}", not scored.

    A task drawn twice in a step makes two groups, the second "s{step}/{task}#1". What is sampled depends on
    (seed, step, task, attempt) and on nothing else in the batch. `session.sample` charges the budget. The state that
    an attempt acts in is the environment's, or else the task itself, the same for the whole group.
    """

    group_size: int = 8

    provides = ("states",)

    def __post_init__(self) -> None:
        if self.group_size < 1:
            raise ConfigError(f"rollout.group_size must be at least 1, not {self.group_size!r}")

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        return self.grow_more(tasks, session, Counter())

    def grow_more(self, tasks: Sequence[Task], session: Session, drawn: Counter[str]) -> Forest:
        """As `grow`, in a step that has `drawn` these tasks already."""
        draws = name_draws(tasks, drawn)
        if session.envs is not None:
            return play(tasks, draws, self.group_size, session)
        prompts = [session.encode(task) for task in tasks]
        completions = session.sample(requests(prompts, draws, self.group_size, session))
        groups = [f"s{session.step}/{draw}" for draw in draws]
        return forest_of(tasks, groups, prompts, completions, session.sampling)
