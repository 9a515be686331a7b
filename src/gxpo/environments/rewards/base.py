"""Base classes of rewards: of parts that shape them, and of group-level rewards, which see all rollouts of a step."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from gxpo.base.errors import ConfigError, did_you_mean
from gxpo.parts.ranges import Part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Task, TaskSource


Failure = tuple[str, str]  # ("raised" | "timeout" | "died" | "nonsense", message)


class GroupReward(Protocol):
    """Protocol of group-level rewards: named values [R] of any float dtype for all rollouts of a step; nan = unscored.

    forest  all rollouts that are scored together, whole groups of them; their outcomes are not known yet
    texts   [R] what each says;   tasks  [R] what each was asked
    texts_raw  [R] of one that declares this parameter: texts in which special tokens are written out

    It runs in process: a time limit is its own affair (`rewards.pool.Bounded`). A `GxpoError` is about the set-up and
    ends the run; any other exception leaves all rollouts of the call unscored and is counted. Optional attributes:

    name        the component a plain tensor becomes, and its name in messages
    gives       names of its components, where they are known beforehand
    reports     those of them that are recorded and not counted, unless they are given a weight by name
    needs_answer  it compares with the tasks' answers, so all must have one
    failures()  failures since the last call, a (kind, message) a trajectory; without it, every trajectory without a
                number counts as "nonsense"
    at(step)    called before the rollouts of a step are scored
    observe(step, forest, texts, tasks)  called after the step's update, with its scored rollouts
    state_dict(), load_state_dict(state)  what a resumed run needs, as JSON
    limit(seconds, processes)  called once: how long one of its computations may take (`scoring.timeout`), and how many
                processes share them
    check_tasks(source)  called once: ConfigError for tasks that it can't score
    close()     its processes end; a later call starts new ones
    bind(verify)  called once: `verify(forest, texts, tasks)` is component "correct" [R] of the tasks' own verifier
    """

    def __call__(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> Mapping[str, Tensor] | Tensor:
        """See the class."""
        ...


def set_up(call: Any, source: TaskSource, seconds: float, processes: int) -> None:
    """Set the limits of work of a group-level reward, then let it check the tasks."""
    if hasattr(call, "limit"):
        call.limit(seconds, processes)
    if hasattr(call, "check_tasks"):
        call.check_tasks(source)


def from_options(reward_class: type, options: Mapping[str, Any], name: str) -> Any:
    """Build the dataclass `kind` from `scoring.options.NAME`."""
    fields_by_name = {f.name: f for f in dataclasses.fields(reward_class) if f.init}
    for key in options:
        if key not in fields_by_name:
            hint = did_you_mean(key, fields_by_name) or f"; there is {', '.join(fields_by_name)}"
            raise ConfigError(f"scoring.options.{name} has no {key!r}{hint}")
    return reward_class(**options)


class RewardPart(Part, ABC):
    """Base class of a method's rewards: a frozen dataclass over the scored forest; it never changes `success`.

    Under `reward.add.NAME` it gives named values [R], which are recorded and added to the outcome; under
    `reward.shape.NAME` it gives one tensor [R], which takes the outcome's place. nan: unscored.

    reads_texts  the part reads `forest.action_text`, which the trainer then fills
    """

    slot = "reward.NAME"
    needs: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    reads_texts: bool = False

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the task components that the part reads, from its options."""
        component = getattr(self, "component", None)
        return (component,) if component else ()

    @abstractmethod
    def __call__(self, forest: Forest) -> Mapping[str, Tensor] | Tensor:
        raise NotImplementedError
