"""Schedule of asynchronous runs: versions of groups, AReaL's capacity, waves, and what a step trains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import gxpo
from gxpo.parts.protocols import Task
from gxpo.training.asynchronous.ledger import Cost, Ledger
from gxpo.training.asynchronous.schedule import Schedule

COST = Cost(generated_tokens=7)


class Source:
    """Tasks "STEP/i"; `state` counts draws. `twice` draws its first task twice in each step."""

    name = "source"

    def __init__(self, twice: bool = False) -> None:
        self.n_draws, self.twice = 0, twice

    def draw(self, n: int, step: int) -> list[Task]:
        self.n_draws += 1
        tasks = [Task(f"{step}/{i}", "?") for i in range(n)]
        return [tasks[0], *tasks[:-1]] if self.twice else tasks

    def state_dict(self) -> dict[str, Any]:
        return {"n": self.n_draws}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.n_draws = state["n"]


def schedule_of(folder: Path, source: Source | None = None, **keys: Any) -> Schedule:
    given_settings = {"tasks.per_step": 2, "trainer.steps": 5, "async.max_staleness": 1} | keys
    settings = gxpo.config.load(None, [f"{key}={value}" for key, value in given_settings.items()]).settings
    return Schedule(settings, source or Source(), Ledger(folder))


def publish(schedule: Schedule, version: int) -> list[tuple[str, int]]:
    """(task, version) of the groups that a version makes room for."""
    before = set(schedule.groups)
    schedule.version = version
    schedule.advance()
    return [(g.tasks[0].id, g.version) for place, g in schedule.groups.items() if place not in before]


def finish(schedule: Schedule, *places: int) -> None:
    for place in places:
        schedule.ledger.entries[place].state = "finished"


def test_in_order_a_group_has_the_version_of_its_step(tmp_path: Path) -> None:
    schedule = schedule_of(tmp_path)
    # max_staleness 1: step n under version max(0, n - 2), drawn as soon as that version is published
    assert publish(schedule, 0) == [("1/0", 0), ("1/1", 0), ("2/0", 0), ("2/1", 0)]
    assert publish(schedule, 1) == [("3/0", 1), ("3/1", 1)]
    assert publish(schedule, 4) == [("4/0", 2), ("4/1", 2), ("5/0", 3), ("5/1", 3)]  # five steps in all


def test_in_order_a_step_waits_for_all_of_its_groups(tmp_path: Path) -> None:
    schedule = schedule_of(tmp_path)
    publish(schedule, 0)
    finish(schedule, 0, 2, 3)
    assert schedule.choose(1) is None and [g.place for g in schedule.choose(2) or []] == [2, 3]
    finish(schedule, 1)
    assert [g.place for g in schedule.choose(1) or []] == [0, 1]
    assert [g.place for g in schedule.unfinished_groups] == []


def test_by_finish_running_and_trained_groups_fill_the_capacity(tmp_path: Path) -> None:
    schedule = schedule_of(tmp_path, **{"async.order": "finish"})
    # (max_staleness + version + 1) per_step = 2 * 2 before the first update, under the newest version
    assert publish(schedule, 0) == [("1/0", 0), ("1/1", 0), ("2/0", 0), ("2/1", 0)]
    schedule.advance()
    assert len(schedule.groups) == 4
    finish(schedule, 1, 2)
    assert [g.place for g in schedule.choose(1) or []] == [1, 2]  # the first that are there
    for group in schedule.choose(1) or []:
        schedule.remove(group)
    assert publish(schedule, 1) == [("3/0", 1), ("3/1", 1)]


def test_by_finish_groups_over_age_are_dropped_and_marked(tmp_path: Path) -> None:
    schedule = schedule_of(tmp_path, **{"async.order": "finish"})
    publish(schedule, 0)
    finish(schedule, 0)
    schedule.ledger.fail(1, "ValueError: no", COST)
    failed, dropped = schedule.unusable_groups(2)  # age 2 - 1 - 0 = 1 is allowed
    assert [g.place for g in failed] == [1] and dropped == []
    _, dropped = schedule.unusable_groups(3)
    assert [g.place for g in dropped] == [0] and schedule.state_of(dropped[0]) == "dropped"
    assert [g.over_age for g in schedule.groups.values()] == [True] * 4  # those under way end at their next action
    assert schedule.remove(schedule.groups[1]) == COST and 1 not in schedule.groups


def test_old_groups_are_kept_if_they_may_be_trained(tmp_path: Path) -> None:
    schedule = schedule_of(tmp_path, **{"async.order": "finish", "async.over_age": "train"})
    publish(schedule, 0)
    finish(schedule, 0)
    assert schedule.unusable_groups(9) == ([], []) and [g.place for g in schedule.finished_groups] == [0]


@pytest.mark.parametrize(("in_flight", "sizes"), [("auto", [2, 2]), (1, [1, 1, 1, 1])])
def test_a_wave_has_groups_of_one_step_alone(tmp_path: Path, in_flight: Any, sizes: list[int]) -> None:
    schedule = schedule_of(tmp_path, **{"async.groups_in_flight": in_flight})
    publish(schedule, 0)
    waves = schedule.waves(schedule.queue)
    assert [len(wave) for wave in waves] == sizes
    assert all(len({g.step for g in wave}) == 1 for wave in waves)


def test_draws_of_one_task_are_one_group(tmp_path: Path) -> None:
    schedule = schedule_of(tmp_path, Source(twice=True), **{"tasks.per_step": 3})
    publish(schedule, 0)
    first = [(g.place, g.tasks[0].id, g.draws) for g in schedule.groups.values() if g.step == 1]
    assert first == [(0, "1/0", 2), (2, "1/1", 1)]  # 1/0, 1/0, 1/1 were drawn


def test_a_resumed_schedule_repeats_draws_from_their_states(tmp_path: Path) -> None:
    schedule = schedule_of(tmp_path)
    publish(schedule, 0)
    assert schedule.state() == {"1": {"n": 0}, "2": {"n": 1}}
    schedule.ledger.consume(1, [0, 1])
    for place in (0, 1):
        schedule.remove(schedule.groups[place])
    states = schedule.state()
    assert states == {"2": {"n": 1}}
    source = Source()
    source.n_draws = 2  # as the checkpoint has it
    again = schedule_of(tmp_path, source)
    again.resume(states, 1, None)
    assert publish(again, 1) == [("2/0", 0), ("2/1", 0), ("3/0", 1), ("3/1", 1)]
    assert source.n_draws == 3 and again.state() == {"2": {"n": 1}, "3": {"n": 2}}


def test_weights_that_are_gone_are_replaced_with_a_warning(tmp_path: Path) -> None:
    schedule = schedule_of(tmp_path)
    schedule.oldest_version = 2
    with pytest.warns(UserWarning, match=r"s1/1/0 is sampled under version 2 instead of 0: its records are not in"):
        publish(schedule, 0)
    assert {g.version for g in schedule.groups.values()} == {2}
