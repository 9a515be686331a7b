"""Outcome statistics by task: discount, window, prior and checkpoint."""

from __future__ import annotations

import math

import pytest

from gxpo.base.errors import CheckpointError
from gxpo.parts.task_memory import TaskMemory


def test_earlier_visits_are_discounted_in_sum_and_number():
    memory = TaskMemory(discount=0.5)
    memory.add({"a": [1.0, 0.0], "b": [0.0]})
    memory.add({"a": [1.0]})
    assert memory.rows == {"a": [1.5, 2.0], "b": [0.0, 1.0]}  # 1 / 2 + 1 of 2 / 2 + 1
    assert memory.predict(["a", "b"]) == [0.75, 0.0]
    assert [memory.count(task) for task in ("a", "b", "c")] == [2.0, 1.0, 0.0]


def test_a_window_keeps_the_newest_outcomes_undiscounted():
    memory = TaskMemory(discount=0.5, window=2)
    memory.add({"a": [1.0, 1.0, 0.0]})
    assert memory.rows == {"a": [1.0, 0.0]} and memory.predict(["a"]) == [0.5] and memory.count("a") == 2.0


def test_a_whole_window_keeps_all_of_a_larger_newest_visit():
    memory = TaskMemory(window=2, whole=True)
    memory.add({"a": [1.0, 1.0, 0.0]})
    assert memory.rows == {"a": [1.0, 1.0, 0.0]}
    memory.add({"a": [1.0]})
    assert memory.rows == {"a": [0.0, 1.0]}


def test_sums_of_a_window_are_exact():
    assert 0.6 + 0.7 + 0.8 < 2.1
    assert TaskMemory(window=3, rows={"a": [0.6, 0.7, 0.8]}).predict(["a"])[0] >= 0.7


def test_unvisited_tasks_are_nan_without_a_prior():
    first, second = TaskMemory(rows={"a": [1.0, 4.0]}).predict(["a", "b"])
    assert first == 0.25 and math.isnan(second)


def test_prior_of_two_with_mean_half_is_the_beta_mean():
    memory = TaskMemory(rows={"a": [1.0, 1.0], "b": [0.0, 2.0]})
    # (successes + 1) / (number + 2)
    assert memory.predict(["a", "b", "c"], prior=2.0, mean=0.5) == [2 / 3, 1 / 4, 1 / 2]


def test_prior_shrinks_towards_the_mean_over_all_tasks():
    memory = TaskMemory(rows={"a": [1.0, 1.0], "b": [0.0, 3.0]})  # one success of four
    assert memory.predict(["a", "b", "c"], prior=4.0) == [2 / 5, 1 / 7, 1 / 4]
    assert TaskMemory().predict(["a"], prior=3.0, initial=0.5) == [0.5]
    assert math.isnan(TaskMemory().predict(["a"], prior=3.0)[0])


def test_state_round_trips_and_a_foreign_one_names_its_owner():
    memory = TaskMemory(rows={"a": [1.0, 2.0]})
    state = memory.state_dict()
    assert state == {"tasks": {"a": [1.0, 2.0]}}
    other = TaskMemory(rows={"b": [0.0, 1.0]})
    other.load_state_dict(state)
    assert other.rows == {"a": [1.0, 2.0]} and other.rows["a"] is not memory.rows["a"]
    with pytest.raises(CheckpointError, match=r"the checkpoint's sampler holds \['rows'\], not 'tasks'"):
        other.load_state_dict({"rows": {}}, "sampler")
    assert other.rows == {"a": [1.0, 2.0]}
