"""Another run's rollouts on a page's tasks: matched by task, its step, what is refused."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.explain.rollout_pages import Parsed, record, write

from gxpo.base.errors import RecordError
from gxpo.base.media import PICTURES, label
from gxpo.explain.beside import SecondRun, beside_columns, check_common_tasks
from gxpo.explain.group_figures import figures
from gxpo.explain.rollout_page import run_text
from gxpo.explain.rollout_source import read


def write_tasks(path: Path, rewards_by_task: dict[str, list[float | None]]) -> Path:
    """Write a file of records, a group for each task."""
    rewards = [(task, reward) for task, rewards in rewards_by_task.items() for reward in rewards]
    return write(path, [record(i, reward, group=task, task=task) for i, (task, reward) in enumerate(rewards)])


def test_groups_get_the_others_rollouts_by_task(tmp_path):
    here = read(write_tasks(tmp_path / "a" / "step-000001.jsonl", {"sum": [0.0, 1.0], "product": [1.0, 1.0]}))
    other = read(write_tasks(tmp_path / "b" / "step-000001.jsonl", {"sum": [0.25, 0.75, 0.5], "root": [1.0]}))
    columns = beside_columns(here, other, figures(here.forest, [], here.recorded_advantage), [0, 1])
    assert columns["count"] == [3, 0]
    assert columns["mean"] == [0.5, None]
    assert [x["reward"] for x in columns["rollouts"][0]] == [0.75, 0.5, 0.25]
    assert columns["rollouts"][1] == []


def test_of_many_rollouts_the_best_and_worst_are_shown(tmp_path):
    here = read(write_tasks(tmp_path / "a" / "step-000001.jsonl", {"sum": [0.0]}))
    other = read(write_tasks(tmp_path / "b" / "step-000001.jsonl", {"sum": [i / 20 for i in range(21)]}))
    columns = beside_columns(here, other, figures(here.forest, [], here.recorded_advantage), [0])
    rewards = [x["reward"] for x in columns["rollouts"][0]]
    assert columns["count"] == [21]
    assert (rewards[0], rewards[-1], len(rewards)) == (1.0, 0.0, 8)


def test_unscored_rollouts_of_the_other_have_no_mean(tmp_path):
    here = read(write_tasks(tmp_path / "a" / "step-000001.jsonl", {"sum": [0.0]}))
    other = read(write_tasks(tmp_path / "b" / "step-000001.jsonl", {"sum": [None, None]}))
    columns = beside_columns(here, other, figures(here.forest, [], here.recorded_advantage), [0])
    assert (columns["count"], columns["mean"]) == ([2], [None])


def test_the_step_after_an_at_sign_is_read_else_the_nearest(tmp_path):
    for step in (0, 10, 20):
        write_tasks(tmp_path / "run" / f"step-{step:06}.jsonl", {"sum": [float(step)]})
    run = tmp_path / "run"
    assert SecondRun.parse(f"{run}@10") == SecondRun(run, 10)
    rewards = {
        (text, step): float(SecondRun.parse(text).read(step).forest.outcome[0])
        for text in (f"{run}@10", str(run))
        for step in (20, 4, 6)
    }
    assert [rewards[f"{run}@10", s] for s in (20, 4, 6)] == [10, 10, 10]
    assert [rewards[str(run), s] for s in (20, 4, 6)] == [20, 0, 10]


def test_a_path_with_an_at_sign_that_exists_is_a_path(tmp_path):
    path = write_tasks(tmp_path / "run@3" / "step-000001.jsonl", {"sum": [1.0]}).parent
    assert SecondRun.parse(str(path)) == SecondRun(path)


def test_without_a_common_task_it_is_refused_by_names(tmp_path):
    here = read(write_tasks(tmp_path / "a" / "step-000001.jsonl", {"sum": [0.0]}))
    other = read(write_tasks(tmp_path / "b" / "step-000001.jsonl", {"root": [0.0]}))
    with pytest.raises(RecordError, match=r"'root', the page 'sum'.*RUN/evaluations"):
        check_common_tasks([here], [other])
    check_common_tasks([here, here], [other, here])  # one common step is enough


def test_a_page_of_several_steps_holds_both(tmp_path):
    for step in (1, 2):
        write_tasks(tmp_path / "a" / f"step-{step:06}.jsonl", {"sum": [0.0, 1.0]})
    write_tasks(tmp_path / "b" / "step-000001.jsonl", {"sum": [0.5]})
    page = run_text(tmp_path / "a", [1, 2], {"grpo": {"method": "grpo"}}, beside=SecondRun(tmp_path / "b"))
    blobs = [json.loads(text) for text in Parsed(page).scripts if text.startswith("{")]
    assert [blob["beside"]["mean"] for blob in blobs if "beside" in blob] == [[0.5], [0.5]]


def test_pictures_that_the_other_made_are_beside_its_tokens(tmp_path):
    ref = PICTURES.put(np.full((2, 2, 3), 9, np.uint8))
    here = read(write_tasks(tmp_path / "a" / "step-000001.jsonl", {"sum": [0.0]}))
    records = [record(i, 1.0, "", "sum", task="sum", info={"picture": x}) for i, x in enumerate([ref, {"no": 1}])]
    other = replace(read(write(tmp_path / "b" / "step-000001.jsonl", records)), side=1)
    columns = beside_columns(here, other, figures(here.forest, [], here.recorded_advantage), [0])
    assert [x["made"] for x in columns["rollouts"][0]] == [label(ref), None]
    assert list(columns["pictures"]) == [label(ref)]
    assert columns["rollouts"][0][0]["text"] == "<4> <5>"  # patches stand apart
