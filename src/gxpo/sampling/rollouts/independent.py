"""Independent attempts: a group is G samples of a prompt, or G episodes of an environment."""

from __future__ import annotations

from dataclasses import dataclass

from gxpo.parts.registry import part
from gxpo.sampling.rollouts.build import Count
from gxpo.sampling.rollouts.rounds import Rounds


@part("independent", stage="rollout")
@dataclass(frozen=True)
class Independent(Rounds):
    """`group_size` samples of each task, or episodes in its environment: the group is "s{step}/{task}", not scored.

    A task drawn twice in a step makes two groups, the second "s{step}/{task}#1". What is sampled depends on
    (seed, step, task, attempt) and on nothing else in the batch. `session.sample` charges the budget. The state that
    an attempt acts in is the environment's, or else the task itself, the same for the whole group.
    """

    group_size: Count = 8
