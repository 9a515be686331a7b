"""`Entry`: a reward of a set, and whether its tasks have the answers that it compares with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gxpo.base.errors import ConfigError
from gxpo.environments.rewards.functions import Function
from gxpo.parts.protocols import TaskSource


@dataclass(eq=False)
class Entry:
    """A reward of a set.

    weight  of components that have none by their own names
    own     it is the task source's: it gives way where another computes a component of the same name
    names   of its components, None as long as they are unknown
    asks    parameters that it is called with; None: as a task's scorer is
    remote  its number among the functions of the workers; None: it runs in process
    failed  the last call of a group-level one gave nothing
    """

    function: Function
    weight: float = 0.0
    own: bool = False
    names: tuple[str, ...] | None = None
    asks: tuple[str, ...] | None = None
    remote: int | None = None
    failed: bool = False

    def __post_init__(self) -> None:
        self.names, self.asks = self.function.gives, self.function.asks


def check_answers(rewards: Iterable[Entry], source: TaskSource, *, given: bool) -> None:
    """Refuse rewards that compare with an answer where tasks have none. `given`: somebody chose them."""
    rewards = list(rewards)
    comparing = [r for r in rewards if r.function.answered]
    if not comparing or any(r.function.label_free for r in rewards):
        return
    if (task := getattr(source, "unanswered", None)) is None:
        return
    for reward in comparing:
        who = f"reward {reward.function.label}" if given else f"no reward was given, and {reward.function.label}"
        way = (
            "choose options of the world under which it says one"
            if hasattr(source, "answers")
            else "add a column 'answer' (tasks.options.answer names another)"
        )
        raise ConfigError(
            f"{who} compares with an answer, and task {task.id!r} has none: {way}, or give a reward that does without"
        )
