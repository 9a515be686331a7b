"""Sources under a sampler: which tasks are drawn, levels, exhaustion, and runs that are resumed."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.environments.tasks.sampled_sources import RIGHT, Listed, answers, chances, sampled_source
from tests.sampling.rollouts.resumed import check_resumed, lines, parity
from tests.thorough import ALL, some

import gxpo
from gxpo.base.errors import CheckpointError, TaskError
from gxpo.environments import tasks
from gxpo.environments.tasks.user_source import adopt
from gxpo.parts.protocols import Task
from gxpo.parts.registry import SAMPLERS


def test_rollouts_that_a_filter_removed_count_as_well() -> None:
    source = sampled_source("variance")
    source.see(answers({"a": 8, "b": 4}))
    source.observe(answers({"b": 4}))
    assert source.rates.column("counted", ["a", "b"]).tolist() == [8.0, 8.0]
    assert source.figures() == pytest.approx(
        # chances of rates .9 .5 .5 .5 .5: .09 and four of .25, of 1.09
        {"tasks_mixed": 0.5, "tasks_known": 2, "tasks_coverage": 0.4, "tasks_effective": 4.743753,
         "tasks_left": 5}, abs=1e-6
    )  # fmt: skip


def names(drawn: list[Task]) -> list[str]:
    return [t.id for t in drawn]


def test_a_draw_begins_a_longer_one_and_repeats_nothing() -> None:
    source = sampled_source("variance")
    source.observe(answers(RIGHT))
    full_names = names(source.draw(5, 4))
    assert sorted(full_names) == list("abcde") and names(source.draw(2, 4)) == full_names[:2]
    assert names(source.draw(7, 4)) == full_names + full_names[:2]  # the list has no more
    assert names(source.draw(5, 5)) != full_names


def test_tasks_come_in_proportion_to_their_chances() -> None:
    source = sampled_source("variance", uniform_share=0.5)
    source.observe(answers(RIGHT))
    actual = Counter(source.draw(1, step)[0].id for step in range(4000))
    expected = dict(zip("abcde", [0.16, 0.206667, 0.266667, 0.206667, 0.16], strict=True))
    for name, chance in expected.items():  # four standard deviations
        assert abs(actual[name] / 4000 - chance) < 4 * (chance * (1 - chance) / 4000) ** 0.5, name


def test_epochs_draw_every_task_that_is_left_once() -> None:
    source = sampled_source("drop_solved", Listed("abcdef"), epochs=True)
    first = [name for step in (1, 2) for name in names(source.draw(3, step))]
    assert sorted(first) == list("abcdef")
    source.observe(answers({"a": 8, "b": 8}))
    later = [name for step in (3, 4) for name in names(source.draw(2, step))]
    assert sorted(later) == list("cdef")
    with pytest.warns(UserWarning, match="4 of 6 tasks are left, and a step draws 5"):
        fifth = names(source.draw(5, 5))  # no more than four are left: one of them comes twice
    assert sorted(set(fifth)) == list("cdef") and source.draw(5, 5) == source.draw(9, 5)[:5]


@pytest.mark.filterwarnings("ignore:tasks.sampler")
@pytest.mark.parametrize(
    ("kind", "per_step"),
    some(
        itertools.product(sorted(SAMPLERS), (1, 3, 8, 14, 40)),
        [*((kind, 3) for kind in SAMPLERS), *(("drop_solved", n) for n in (1, 8, 14, 40)), ("keep_hardest", 40)],
    ),
)
def test_a_dropped_task_is_never_drawn(kind: str, per_step: int) -> None:
    """Fourteen tasks, of which some are always solved, some never and some half of the time, over ends of epochs, read
    back in the middle, until nothing is left or for 30 steps."""
    names_ = "abcdefgijklmno"  # "h" is held out
    for prior, epochs in ((2.0, False), (2.0, True), (0.0, False)):
        options = {"prior": prior, "epochs": epochs}
        source = sampled_source(kind, Listed(names_, per_step), **options)
        for step in range(1, 31):
            if source.exhausted:
                break
            left = {name for name, chance in zip(names_, chances(source), strict=True) if chance > 0}
            drawn_names = names(source.draw(per_step, step))
            assert set(drawn_names) <= left and len(drawn_names) == per_step, (kind, step)
            assert len(set(drawn_names)) == min(per_step, len(left)), "each that is left once before any comes again"
            right = {name: (8, 0, 3)[names_.index(name) % 3] for name in dict.fromkeys(drawn_names)}
            source.observe(answers(right, logprob=-1.0 - step % 3))
            if step % 4 == 0:
                other = sampled_source(kind, Listed(names_, per_step), **options)
                other.load_state_dict(json.loads(json.dumps(source.state_dict())))
                source = other


def test_solved_tasks_go_one_by_one_until_none_is_left() -> None:
    source = sampled_source("drop_solved", Listed("abc"), epochs=True)
    assert source.exhausted is None and sorted(names(source.draw(3, 1))) == ["a", "b", "c"]
    source.observe(answers({"a": 8, "b": 7, "c": 8}))
    with pytest.warns(UserWarning, match="drop_solved: 1 of 3 tasks are left, and a step draws 3"):
        assert names(source.draw(3, 2)) == ["b", "b", "b"]
    assert source.figures()["tasks_left"] == 1
    source.observe(answers({"b": 8}))
    assert source.figures()["tasks_left"] == 0 and source.figures()["tasks_effective"] == 0
    assert "none of 3 tasks is left: tasks.sampler=drop_solved" in str(source.exhausted)
    with pytest.raises(TaskError, match=r"tasks\.sampler\.uniform_share above 0 goes on drawing them"):
        source.draw(1, 3)
    again = sampled_source("drop_solved", Listed("abc"), epochs=True)
    again.load_state_dict(source.state_dict())
    assert again.exhausted == source.exhausted
    level = sampled_source(lambda streak: (streak < 1).double(), Listed("ab", level=[1, 2]), key="level")
    level.draw(2, 1)
    level.observe(answers({"a": 8, "b": 8}))
    assert "none of 2 levels is left" in str(level.exhausted)


@pytest.mark.slow
@pytest.mark.parametrize("staleness", [0, pytest.param(1, marks=ALL)])
@pytest.mark.filterwarnings("ignore")
def test_a_run_ends_when_every_task_is_solved(tmp_path: Path, staleness: int) -> None:
    """Six tasks that any answer solves, four a step: all are seen after two steps, and the run ends there."""
    (tmp_path / "pays.py").write_text("def one(completion):\n    return {'correct': 1.0}\n")
    rows = [{"id": f"t{i}", "prompt": f"{i}?", "answer": "1"} for i in range(6)]
    held_fields = [{"id": "h", "prompt": "h?", "answer": "1"}]
    keys = {
        "tasks.per_step": 4, "rollout.group_size": 2, "sampling.max_new_tokens": 2, "eval.tasks": 1,
        "async.max_staleness": staleness, "doctor.every": 0,
    }  # fmt: skip
    run = gxpo.train(
        "tiny:cold",
        rows,
        "srpo_history",
        9,
        f"{tmp_path}/pays.py:one",
        eval_task=held_fields,
        out=tmp_path / "run",
        set=keys,
    )
    assert run.step == 2 and "none of 6 tasks is left" in str(run.stopped)
    assert [row["tasks_left"] for row in run.metrics][:2] == [2, 0]
    assert [row["step"] for row in run.evaluations] == [0, run.step]
    again = gxpo.resume(tmp_path / "run")
    assert again.step == run.step and again.stopped == run.stopped


def test_levels_of_a_column() -> None:
    source = sampled_source("hardest", Listed("abcdef", level=[1, 1, 1, 2, 2, 2]), key="level")
    source.observe(answers({"a": 8, "b": 8, "c": 8, "d": 0, "e": 0, "f": 0}))
    assert source.arms.names == ["1", "2"] and chances(source)[1] > 0.9
    drawn_names = [name for step in range(30) for name in names(source.draw(3, step))]
    assert sum(name in "def" for name in drawn_names) > 80
    hard = [name for name in drawn_names if name in "def"]
    assert all(sorted(hard[i : i + 3]) == list("def") for i in range(0, 60, 3))  # each once, then again
    assert sampled_source("hardest", Listed("abc", level=["x", "y", "y"]), key="level", levels=["y"]).arms.names == [
        "y"
    ]
    assert set(
        names(sampled_source("variance", Listed("abc", level=[3, 1, 1]), key="level", levels=[1]).draw(9, 1))
    ) == {"b", "c"}


def test_levels_of_an_option_of_a_source_that_generates() -> None:
    level = lambda n: tasks.make("arithmetic", seed=0, options={"digits": n})  # noqa: E731  as the trainer makes them
    source = sampled_source("first_unmastered", level(2), level, key="digits", levels=[1, 3], window=1)
    assert all(t.id.startswith("digits=1/arithmetic/") for t in source.draw(4, 1))
    source.observe(answers({"digits=1/arithmetic/1+1": 8}))
    drawn_source = source.draw(4, 2)
    assert {len(str(t.info["a"])) for t in drawn_source} == {3} and source.draw(2, 2) == drawn_source[:2]
    held_outs = [t.id.split("/")[0] for t in source.held_out(5)]
    assert held_outs == ["digits=1", "digits=3", "digits=1", "digits=3", "digits=1"]


def test_a_source_of_the_users_with_a_list() -> None:
    class Mine:
        training = ({"id": "a", "prompt": "a?"}, {"id": "b", "prompt": "b?"})

        def draw(self, n: int, step: int) -> list[Any]:
            raise AssertionError

        def held_out(self, n: int) -> list[Task]:
            return [Task("h", "h?")]

    source = sampled_source("variance", adopt(Mine(), "mine.py:Mine", seed=0, options={}, per_step=2))
    assert sorted(names(source.draw(2, 1))) == ["a", "b"] and names(source.held_out(1)) == ["h"]


def test_a_source_that_repeats_nothing_is_refused() -> None:
    source = tasks.make("arithmetic", seed=0)
    with pytest.raises(TaskError, match=r"repeats none.*tasks\.sampler\.key=digits"):
        sampled_source("variance", source, lambda level: source)
    with pytest.raises(TaskError, match=r"tasks\.options\.pool"):
        sampled_source("variance", source)
    with pytest.raises(TaskError, match="'arithmetic' has no option 'wide'"):
        sampled_source(
            "variance", source, lambda n: tasks.make("arithmetic", seed=0, options={"wide": n}), key="wide", levels=[1]
        )
    with pytest.raises(TaskError, match=r"'a' has no column 'level' \(tasks\.sampler\.key\), but none"):
        sampled_source("variance", Listed("ab"), key="level")
    with pytest.raises(TaskError, match="no task has level=7"):
        sampled_source("variance", Listed("ab", level=[1, 2]), key="level", levels=[7])


def test_read_back_it_draws_the_same() -> None:
    one, two = (sampled_source("drop_solved", Listed("abcdef"), epochs=True) for _ in range(2))
    one.draw(4, 1)
    one.observe(answers({"a": 8, "b": 2}))
    two.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert [names(one.draw(3, s)) for s in (2, 3, 4)] == [names(two.draw(3, s)) for s in (2, 3, 4)]
    with pytest.raises(CheckpointError, match=r"without tasks\.sampler"):
        two.load_state_dict({})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:reward")
def test_a_run_resumed_from_the_middle_is_the_run_never_stopped(tmp_path: Path) -> None:
    scores = tmp_path / "mine.py"
    scores.write_text("def curious(rate, drawn, *, bonus=1.0):\n    return rate * (1 - rate) + bonus / (1 + drawn)\n")
    keys = {"tasks.sampler": f"{scores}:curious", "tasks.sampler.bonus": 0.5, "tasks.sampler.uniform_share": 0.1}
    rows = check_resumed("dapo", tmp_path, '"verdicts"', **keys)
    assert [row["tasks_coverage"] for row in rows][-1] == 1.0 and all(row["tasks_effective"] > 1 for row in rows)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:reward")
def test_a_run_without_a_sampler_has_none_of_its_figures(tmp_path: Path) -> None:
    keys = {"tasks.per_step": 2, "eval.tasks": 2, "sampling.max_new_tokens": 4, "rollout.group_size": 2}
    run = gxpo.train("tiny:cold", "arithmetic", "grpo", 1, parity, out=tmp_path / "run", set=keys)
    assert not any(key.startswith("tasks_") for key in lines(run.path)[0])
    with pytest.raises(TaskError, match="repeats none"):
        gxpo.train("tiny:cold", "arithmetic", "vas", 1, parity, out=tmp_path / "refused", set=keys)
