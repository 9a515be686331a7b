"""Engine, environments and rewards of a group's own session: names of caches and episodes, age, cost."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from gxpo.parts.protocols import Request, Sampling, StreamKey, Task
from gxpo.training.asynchronous.group import Group, GroupEngine, GroupEnvs, GroupRewards, OverAge
from gxpo.training.asynchronous.ledger import Cost


class Routine:
    """Notes the calls for services, and answers them by a function of their first argument."""

    def __init__(self, answer: Callable[[Any], Any] = lambda first: first) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.answer = answer

    def ask(self, service: str, operation: str, *arguments: Any) -> Any:
        self.calls.append((service, operation, *arguments))
        return self.answer(arguments[0])


def group_of(place: int = 7) -> Group:
    return Group(place, 4, [Task("t", "?"), Task("t", "?")], 2)


def request(*cache_names: str) -> Request:
    return Request((1, 2), tuple(StreamKey(0, 4, "t", i) for i in range(2)), cache_names)


def test_a_group_counts_its_draws_and_its_cost() -> None:
    group = group_of()
    group.budget.generated_tokens, group.budget.rollouts = 30, 4
    group.cost.add(Cost(judge_tokens=5, scoring={"failed": 1}, time_sample_s=0.5))
    assert group.draws == 2 and str(group) == "s4/t"
    assert group.total_cost() == Cost(
        generated_tokens=30, rollouts=4, judge_tokens=5, scoring={"failed": 1}, time_sample_s=0.5
    )
    assert group.cost.generated_tokens == 0  # the sum is a new object


def test_caches_of_two_groups_have_different_names() -> None:
    routine = Routine()
    engine = GroupEngine(routine, group_of(7))  # type: ignore[arg-type]
    (sent,) = engine.sample([request("a", "b")], Sampling())  # type: ignore[misc]
    assert sent.keep == ("7:a", "7:b")
    engine.release(["b", "unknown"])
    assert routine.calls[-1] == ("engine", "release", ["7:b"])
    engine.release()
    assert routine.calls[-1] == ("engine", "release", ["7:a"])
    engine.release()  # nothing is left, so the service is not called
    assert len(routine.calls) == 3


def test_a_group_over_age_ends_at_its_next_action() -> None:
    group = group_of()
    engine = GroupEngine(Routine(), group)  # type: ignore[arg-type]
    engine.sample([request()], Sampling())
    group.over_age = True
    with pytest.raises(OverAge):
        engine.sample([request()], Sampling())


def test_episodes_of_two_groups_have_different_names() -> None:
    world: Any = SimpleNamespace(name="lake", instructions="go", max_turns=3, tools=(), provides=("legal",))
    routine = Routine(lambda values: {name: f"answer of {name}" for name in values})
    envs = GroupEnvs(routine, group_of(7), world)  # type: ignore[arg-type]
    assert envs.reset({"e0": 11, "e1": 12}) == {"e0": "answer of 7:e0", "e1": "answer of 7:e1"}
    assert routine.calls[-1] == ("envs", "reset", {"7:e0": 11, "7:e1": 12})
    assert envs.legal(["e1"]) == {"e1": "answer of 7:e1"}
    assert routine.calls[-1] == ("envs", "legal", {"7:e1": None})
    envs.finish([])  # no episode, no call
    envs.finish(["e0"])
    assert routine.calls[2:] == [("envs", "finish", {"7:e0": None})]
    assert (envs.name, envs.max_turns, envs.provides) == ("lake", 3, ("legal",))


def test_rewards_are_scored_by_the_service() -> None:
    routine = Routine()
    rewards = GroupRewards(routine, SimpleNamespace(weighted_names={"correct": 1.0}))  # type: ignore[arg-type]
    forest: Any = object()
    tasks = [Task("t", "?")]
    assert rewards.score(forest, ("text",), tasks) is forest
    assert routine.calls == [("rewards", "score", forest, ["text"], tasks)] and rewards.weighted_names == {
        "correct": 1.0
    }
