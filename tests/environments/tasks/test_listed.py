"""Tasks in several wordings (`same_as`): whole sets in a step, whole sets held out."""

from collections import Counter

import pytest

from gxpo.base.errors import TaskError
from gxpo.environments.tasks.listed import ListedTasks
from gxpo.parts.protocols import Task


def source(tasks, per_step=4, fraction=0.3):
    task_source = ListedTasks()
    task_source.name, task_source.seed, task_source.per_step = "listed", 0, per_step
    task_source.split(tasks, None, fraction)
    return task_source


def sets(n, wide=2):
    return [Task(f"{k}.{i}", f"{k} said {i}", "x", {"same_as": k}) for i in range(wide) for k in range(n)]


@pytest.mark.filterwarnings("ignore:listed")
def test_a_step_has_whole_sets_and_so_has_each_side():
    task_source = source(sets(10))
    training, held_out = (
        {t.info["same_as"] for t in side} for side in (task_source.training, task_source.held_out(99))
    )
    assert training.isdisjoint(held_out) and training | held_out == set(range(10)) and held_out
    for step in range(1, 10):
        counts = Counter(t.info["same_as"] for t in task_source.draw(4, step))
        assert set(counts.values()) == {2} and len({t.id for t in task_source.draw(4, step)}) == 4
    assert task_source.draw(2, 3) == task_source.draw(4, 3)[:2]
    epoch = [t.id for step in range(1, 1 + len(task_source.training) // 4) for t in task_source.draw(4, step)]
    assert len(set(epoch)) == len(epoch)


def test_sets_that_a_step_would_cut_are_refused():
    for tasks, per_step in ((sets(6), 3), ([*sets(5), Task("lone", "lone", "x")], 4), (sets(4, wide=3), 4)):
        with pytest.raises(TaskError, match=r"make all of one size that divides tasks\.per_step"):
            source(tasks, per_step)


def test_without_wordings_nothing_changes():
    tasks = [Task(str(k), f"say {k}", "x") for k in range(40)]
    assert [t.id for t in source(tasks).draw(4, 0)] == [t.id for t in source(tasks, per_step=2).draw(4, 0)]
