"""Epochs of finite lists: every task once in each, from the first step on; a run begun in the former order keeps it."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.thorough import ALL
from tests.training.parity_reward import any_digit

import gxpo
from gxpo.environments import tasks, worlds
from gxpo.environments.tasks.epochs import count_from, goes_by_epochs
from gxpo.environments.tasks.listed import ListedTasks
from gxpo.environments.tasks.user_source import adopt
from gxpo.parts.protocols import Task
from gxpo.training.loop import Trainer

HELD = [{"id": "h", "prompt": "held out", "answer": "1"}]


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def rows_of(n: int) -> list[dict[str, Any]]:
    return [{"id": f"t{i}", "prompt": f"say {i}", "answer": str(i)} for i in range(n)]


class Mine:
    """A source of a user's, on the base of lists."""

    def __new__(cls, per_step: int) -> Any:
        source = ListedTasks()
        source.name, source.seed, source.per_step = "mine", 1, per_step
        source.split([Task(f"t{i}", f"say {i}", "x") for i in range(7)], [Task("h", "h", "x")], 0.5)
        return source


def sources(folder: Path, per_step: int) -> dict[str, Any]:
    """Every kind of source that has a finite list of training tasks: seven, or eight rows of which two are held out."""
    path, held_path = write(folder / "q.jsonl", rows_of(7)), write(folder / "held.jsonl", HELD)
    (folder / "q.csv").write_text("id,prompt,answer\n" + "".join(f"t{i},say {i},{i}\n" for i in range(7)))
    (folder / "mine.py").write_text(
        "def rows():\n    return [{'prompt': f'say {i}', 'answer': str(i)} for i in range(8)]"
    )
    options = {"options": {"held_out": held_path}, "seed": 3, "per_step": per_step}
    pool = {"options": {"pool": 7}, "seed": 3, "per_step": per_step}
    return {
        "jsonl": tasks.make(path, **options),
        "csv": tasks.make(str(folder / "q.csv"), **options),
        "rows of a function": worlds.make(f"{folder}/mine.py:rows", seed=3, per_step=per_step).source,
        "object": adopt(Mine(per_step), "mine", seed=3, options={}, per_step=per_step),
        "pool of a generator": tasks.make("arithmetic", **pool),
        "pool of pictures": tasks.make("shapes", **pool),
        "pool of a world": worlds.make("frozenlake", **pool).source,
    }


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("per_step", [1, 2, 3, 7, 10])
def test_every_epoch_of_every_finite_source_has_each_task_once(tmp_path: Path, per_step: int) -> None:
    """Seven tasks, two whole epochs, whether or not per_step divides them."""
    wrong = {}
    for name, source in sources(tmp_path, per_step).items():
        size = 6 if name == "rows of a function" else 7
        order = [t.id for step in range(1, 15) for t in source.draw(per_step, step)]
        for epoch in range(2):
            actual = Counter(order[size * epoch : size * (epoch + 1)])
            if len(actual) != size or set(actual.values()) != {1}:
                wrong[name, epoch] = actual
        ahead = [t.id for t in source.draw(per_step + 5, 2)]
        if ahead != order[per_step : 2 * per_step + 5][: len(ahead)]:
            wrong[name, "ahead"] = ahead
    assert not wrong


@pytest.mark.filterwarnings("ignore")
def test_a_source_that_counts_from_0_draws_in_the_former_order(tmp_path: Path) -> None:
    """Former order: a list from position step * per_step on, a pool in each step's own order."""

    def shuffled(n: int, *key: int) -> Any:
        return np.random.Generator(np.random.Philox(np.random.SeedSequence(key))).permutation(n)

    for name, source in sources(tmp_path, 2).items():
        count_from(source, 0)
        for step in (1, 2, 3):
            if name.startswith("pool"):
                places = shuffled(7, 0, 3, step, 0)[:2].tolist()
                listed = source.pool_tasks
            else:
                seed = 1 if name == "object" else 3
                listed = source.training
                n = len(listed)
                places = [int(shuffled(n, seed, p // n)[p % n]) for p in (2 * step, 2 * step + 1)]
            assert [t.id for t in source.draw(2, step)] == [listed[i].id for i in places], (name, step)


def train(out: Path, folder: Path, steps: int, *, watch: Any = None, **keys: Any) -> list[list[str]]:
    """The tasks of each step of a run on six tasks, two a step."""
    path, held_path = write(folder / "q.jsonl", rows_of(6)), write(folder / "held.jsonl", HELD)
    settings = {
        "tasks.per_step": 2, "tasks.options.held_out": held_path,
        "rollout.group_size": 2, "eval.tasks": 1, "eval.every": 0,
        "sampling.max_new_tokens": 2, "trainer.rollouts_every": 1, "trainer.checkpoint_every": 1, "doctor.every": 0,
        **keys,
    }  # fmt: skip
    steps_ = None if "phases" in keys else steps
    method = None if "phases" in keys else "grpo"
    gxpo.train("tiny:cold", path, method, steps_, any_digit, out=out, set=settings, progress="none", watch=watch)
    return drawn(out)


def drawn(run: Path) -> list[list[str]]:
    files = sorted((run / "rollouts").glob("step-*.jsonl"))
    return [sorted({json.loads(line)["task"] for line in f.read_text().splitlines()}) for f in files]


@pytest.mark.filterwarnings("ignore")
def test_a_run_has_every_task_in_its_first_epoch(tmp_path: Path) -> None:
    full_train = train(tmp_path / "whole", tmp_path, 3)
    assert sorted(t for step in full_train for t in step) == [f"t{i}" for i in range(6)]


@pytest.fixture
def before(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A context in which runs are those of the former order, without `first_step` in their checkpoints."""

    @contextmanager
    def entered() -> Any:
        state = Trainer._state
        with monkeypatch.context() as patched:
            patched.setattr("gxpo.training.resources.FIRST_STEP", 0)
            patched.setattr(Trainer, "_state", lambda *x: {k: v for k, v in state(*x).items() if k != "first_step"})
            yield

    return entered


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "keys", [{}, pytest.param({"async.max_staleness": 1}, marks=ALL)], ids=["synchronous", "asynchronous"]
)
def test_a_run_of_the_former_order_resumes_in_it(tmp_path: Path, before: Any, keys: dict[str, Any]) -> None:
    """What steps of two drew of six tasks with seed 0 when steps counted from 0, written down from such a run."""
    former = [["t3", "t5"], ["t1", "t2"], ["t1", "t4"], ["t3", "t5"]]
    with before():
        assert train(tmp_path / "cut", tmp_path, 1, **keys) == former[:1]
    for steps in (3, 4):  # the order stays over several resumes
        gxpo.resume(tmp_path / "cut", steps=steps, reward=any_digit, progress="none")
    assert drawn(tmp_path / "cut") == former


@ALL
@pytest.mark.filterwarnings("ignore")
def test_phases_of_a_former_run_keep_its_order(tmp_path: Path, before: Any) -> None:
    """The second phase has tasks of its own, of which steps 2 and 3 drew the third to the sixth of the first epoch."""
    other = write(tmp_path / "other.jsonl", [{**row, "id": f"u{i}"} for i, row in enumerate(rows_of(6))])
    two = {"steps": 2, "task": other, "method": "rloo"}
    keys = {"phases": [{"steps": 1, "method": "grpo"}, two], "trainer.steps": 3}
    with before():
        train(tmp_path / "cut", tmp_path, 3, watch=lambda row: row["step"] == 1, **keys)
    gxpo.resume(tmp_path / "cut", reward=any_digit, progress="none")
    assert drawn(tmp_path / "cut") == [["t3", "t5"], ["u1", "u2"], ["u1", "u4"]]


def test_which_keys_name_a_finite_list() -> None:
    finite = [
        {"task": "a.jsonl"}, {"task": "a.csv"}, {"task": "b/a.parquet"}, {"task": "dataset:x/y"}, {"task": "m.py:rows"},
        {"task": "sokoban", "tasks.options.pool": 4}, {"task": "shapes", "tasks": {"options": {"pool": 4}}},
        {"task": "arithmetic", "phases": [{"task": "a.jsonl"}]},
    ]  # fmt: skip
    endless = [
        {},
        {"task": "arithmetic"},
        {"task": "frozenlake", "tasks.options": {"size": 4}},
        {"task": "gymnasium:X"},
    ]
    assert [goes_by_epochs(keys) for keys in finite + endless] == [True] * len(finite) + [False] * len(endless)
