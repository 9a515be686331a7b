"""Instances of an environment as tasks: split by content, pools that stay the same."""

from __future__ import annotations

import contextlib

import pytest

from gxpo.base.errors import GxpoError, TaskError
from gxpo.environments import worlds
from gxpo.environments.tasks.seeds import SeedTasks
from gxpo.environments.tasks.source import reserved


def thirds(seeds):
    """Seeds with the same remainder by 300 make the same instance."""
    return [f"instance {seed % 300}" for seed in seeds]


def test_training_and_held_out_instances_share_no_content():
    source = SeedTasks("world", thirds)
    training = {thirds([t.info["seed"]])[0] for step in range(20) for t in source.draw(16, step)}
    held_out = [thirds([t.info["seed"]])[0] for t in source.held_out(50)]
    assert len(set(held_out)) == 50
    assert not training & set(held_out)
    assert all(reserved(c) for c in held_out) and not any(reserved(c) for c in training)


def test_equal_instances_are_one_task_whatever_their_seed():
    source = SeedTasks("world", thirds)
    tasks = [t for step in range(40) for t in source.draw(16, step)]
    by_content = {}
    for task in tasks:
        by_content.setdefault(thirds([task.info["seed"]])[0], set()).add(task.id)
    assert all(len(ids) == 1 for ids in by_content.values())
    assert len({t.info["seed"] for t in tasks}) > len(by_content)


def test_the_seed_changes_training_tasks_and_no_held_out_ones():
    one, other = SeedTasks("world", thirds, seed=0), SeedTasks("world", thirds, seed=1)
    assert one.held_out(20) == other.held_out(20)
    assert one.draw(8, 3) != other.draw(8, 3)
    assert one.draw(8, 3) == SeedTasks("world", thirds, seed=0).draw(8, 3) == one.draw(12, 3)[:8]


def test_a_pool_is_the_same_for_every_run_and_repeats_evenly():
    one, other = (SeedTasks("world", thirds, seed=seed, pool=5, per_step=5) for seed in (0, 1))
    assert one.pool_tasks == other.pool_tasks and len(one.pool_tasks) == 5
    ids = [t.id for t in one.draw(15, 2)]
    assert sorted(ids) == sorted(3 * [t.id for t in one.pool_tasks])
    assert ids != [t.id for t in one.draw(15, 3)]
    assert one.draw(15, 2)[:7] == one.draw(7, 2)
    assert not any(reserved(thirds([t.info["seed"]])[0]) for t in one.pool_tasks)


@pytest.mark.parametrize("pool", [0, -1, True, 1.5, "3"])
def test_a_pool_that_is_no_number_is_refused(pool):
    with pytest.raises(TaskError, match="pool"):
        SeedTasks("world", thirds, pool=pool)


def test_more_instances_than_there_are_is_refused():
    with pytest.raises(TaskError, match="different training instances"):
        _ = SeedTasks("world", lambda seeds: [f"{s % 8}" for s in seeds], pool=40).pool_tasks


def test_what_a_world_says_of_its_instances_is_the_tasks_own():
    says = {"answers": lambda seeds: [f"{s}!" for s in seeds], "levels": lambda seeds: [s % 3 for s in seeds]}
    for task in (
        *SeedTasks("world", thirds, **says).draw(4, 1),
        *SeedTasks("world", thirds, pool=2, **says).pool_tasks,
    ):
        seed = task.info["seed"]
        assert (task.answer, task.info) == (f"{seed}!", {"seed": seed, "level": seed % 3})
    silent = {name: lambda seeds: [None for _ in seeds] for name in says}
    (task,) = SeedTasks("world", thirds, **silent).draw(1, 1)
    assert task.answer is None and task.info.keys() == {"seed"}
    assert SeedTasks("world", thirds, **says).unanswered is None and SeedTasks("world", thirds, **silent).unanswered


def test_a_checkpoint_restores_the_label_and_no_other_state():
    one = SeedTasks("folder/mine.py:World", thirds, label="mine.py:World", pool=3)
    assert one.state_dict() == {"label": "mine.py:World"}
    assert {t.id.rpartition("/")[0] for t in one.pool_tasks} == {"mine.py:World"}
    one.load_state_dict({"label": "old"})
    assert {t.id.rpartition("/")[0] for t in [*one.pool_tasks, *one.draw(2, 1)]} == {"old"}
    one.load_state_dict({})  # of a run whose ids began with the path as it was typed
    assert {t.id.rpartition("/")[0] for t in one.pool_tasks} == {"folder/mine.py:World"} and one.state_dict() == {}
    for state in ({"places": [1]}, {"label": "old", "places": [1]}):
        with pytest.raises(TaskError, match=r"keeps no state.*\['places'\]"):
            one.load_state_dict(state)


def world_of(folder, level):
    file = folder / "one.py"
    file.write_text(
        "from gxpo.parts.protocols import TimeStep\n\n\n"
        "class One:\n    instructions, max_turns = '', 2\n\n"
        "    def reset(self, seed):\n        return TimeStep('x')\n\n"
        "    def step(self, action):\n        return TimeStep('x', done=True, success=True)\n\n"
        f"    def level(self, seed):\n        return {level}\n"
    )
    return f"{file}:One"


@pytest.mark.parametrize("workers", [0, 1])
def test_a_level_is_a_whole_number(tmp_path, workers):
    """From this process, and from one of its own."""
    with contextlib.closing(worlds.make(world_of(tmp_path, "seed % 3"), seed=0, workers=workers)) as world:
        assert world.envs.levels([5, 6, 7]) == [2, 0, 1]
    (other := tmp_path / "other").mkdir()
    bad = worlds.make(world_of(other, "0.5"), seed=0, workers=workers)
    with contextlib.closing(bad), pytest.raises(GxpoError, match=r"level.* not a whole number") as caught:
        bad.source.draw(1, 1)
    assert "\n" not in str(caught.value)
