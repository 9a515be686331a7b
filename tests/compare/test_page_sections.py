"""Sections of the page: changes by held-out task, axes, keys that arms share."""

from __future__ import annotations

from tests.compare.made import make_comparison

from gxpo.compare.page_sections import TaskChange, axis, settings, task_changes
from gxpo.compare.results import Point, RunResult


def test_tasks_are_paired_by_seed() -> None:
    def run(arm: str, seed: int, **after: float) -> RunResult:
        return RunResult(arm, seed, "", [Point(0, 0, 0, 0.0, 0.0)], after=after)

    base = [run("b", 0, x=0.0, y=1.0), run("b", 1, x=1.0, y=1.0, z=1.0), run("b", 7, x=1.0)]
    arm = [run("a", 0, x=1.0, y=0.0), run("a", 1, x=1.0, y=1.0), run("a", 2, x=0.0)]
    # x: 0 and 1 under the base, 1 and 1 under the arm; y: 1 and 1, 0 and 1; z only one of them has; seeds 2, 7 no pair
    assert task_changes(arm, base) == [TaskChange("x", 0.5, 1.0), TaskChange("y", 1.0, 0.5)]


def test_the_axis_has_the_unit_in_which_its_numbers_are_short() -> None:
    assert axis("tokens", 5_000) == (1.0, "generated tokens")
    assert axis("tokens", 30e6) == (1e6, "million generated tokens")
    assert axis("seconds", 7200.0) == (60.0, "minutes of training")


def test_keys_that_differ_are_apart_from_those_that_all_share() -> None:
    different, shared = settings(make_comparison())
    assert "optim.lr" in different and "rollout.group_size" not in different
    assert "rollout.group_size" in shared and "optim.lr" not in shared
