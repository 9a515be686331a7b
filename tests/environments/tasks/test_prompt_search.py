"""Search over prompts: turns of the texts, halving by mean reward, held-out tasks, resumed state, refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.environments.tasks.sampled_sources import Listed, answers
from tests.sampling.rollouts.resumed import check_resumed

import gxpo
from gxpo.base.errors import CheckpointError, TaskError
from gxpo.environments.tasks.prompt_search import PromptSearch, with_template
from gxpo.environments.tasks.source import Arithmetic
from gxpo.parts.protocols import Task

TEXTS = ["{prompt}", "A {prompt}", "B {prompt}"]
RIGHT = {"": 0, "A": 8, "B": 4}  # of 8 answers to a task under each text


def rewarded(search: PromptSearch, step: int, right: dict[str, int]) -> list[str]:
    """Draw three tasks, answer as many right as their text earns, and return the letters of the texts."""
    tasks = search.draw(3, step)
    letters = [str(t.prompt)[0].strip("0123456789") for t in tasks]
    search.observe(answers({t.id: right[letter] for t, letter in zip(tasks, letters, strict=True)}))
    return letters


def test_texts_take_turns_and_the_better_ones_stay() -> None:
    search = PromptSearch(Arithmetic(), TEXTS, 1)
    assert search.held_out(1)[0].prompt == Arithmetic().held_out(1)[0].prompt  # before any reward, the first text
    assert rewarded(search, 1, RIGHT) == ["", "A", "B"]
    # one task each: the better two of three stay
    assert search.figures() == {"prompts_left": 2, "prompt_best": 2, "prompt_reward": 1.0}
    # the second round ends after 1 + 2 tasks each; until then both go on
    assert rewarded(search, 2, RIGHT) == ["B", "A", "B"]
    assert search.figures()["prompts_left"] == 2
    assert rewarded(search, 3, RIGHT) == ["A", "B", "A"]
    assert search.figures() == {"prompts_left": 1, "prompt_best": 2, "prompt_reward": 1.0}
    assert rewarded(search, 4, RIGHT) == ["A", "A", "A"]
    assert [t.prompt[:2] for t in search.held_out(2)] == ["A ", "A "]
    assert [t.id for t in search.held_out(2)] == [t.id for t in Arithmetic().held_out(2)]


def test_a_draw_begins_a_longer_one_and_a_repeated_task_keeps_its_text() -> None:
    search = PromptSearch(Arithmetic(), TEXTS, 4)
    long_draw = search.draw(5, 7)
    assert [t.prompt for t in search.draw(2, 7)] == [t.prompt for t in long_draw[:2]]
    listed = PromptSearch(Listed("abc"), TEXTS, 4)
    prompts: dict[str, set[str]] = {}
    for task in listed.draw(6, 1):
        prompts.setdefault(task.id, set()).add(str(task.prompt))
    assert all(len(texts) == 1 for texts in prompts.values())


def test_state_goes_on_where_it_was() -> None:
    search = PromptSearch(Arithmetic(), TEXTS, 1)
    rewarded(search, 1, RIGHT)
    other = PromptSearch(Arithmetic(), TEXTS, 1)
    other.load_state_dict(search.state_dict())
    assert other.figures() == search.figures() and rewarded(other, 2, RIGHT) == rewarded(search, 2, RIGHT)
    with pytest.raises(CheckpointError, match=r"made without tasks\.prompts"):
        other.load_state_dict({"source": {}})


def test_a_template_stands_around_the_last_user_message() -> None:
    messages = ({"role": "system", "content": "s"}, {"role": "user", "content": "q"})
    assert with_template("<{prompt}>", Task("a", messages)).prompt == (messages[0], {"role": "user", "content": "<q>"})
    with pytest.raises(TaskError, match=r"no text that tasks\.prompts could stand around"):
        with_template("<{prompt}>", Task("a", (1, 2)))


def test_bad_settings_are_refused() -> None:
    with pytest.raises(TaskError, match="does not say where the task's prompt stands"):
        PromptSearch(Arithmetic(), ["Answer."], 1)
    with pytest.raises(TaskError, match="holds a text twice"):
        PromptSearch(Arithmetic(), ["{prompt}", "{prompt}"], 1)
    with pytest.raises(TaskError, match="prompts of episodes are their observations"):
        gxpo.train("tiny:cold", "frozenlake", steps=1, set={"tasks.prompts": TEXTS})
    with pytest.raises(TaskError, match=r"set async\.max_staleness=0"):
        gxpo.train("tiny:cold", "arithmetic", steps=1, set={"tasks.prompts": TEXTS, "async.max_staleness": 1})


def test_rollouts_that_a_filter_removed_count_as_well() -> None:
    search = PromptSearch(Arithmetic(), TEXTS[:2], 1)
    tasks = search.draw(2, 1)
    search.see(answers({tasks[0].id: 2, tasks[1].id: 8}))
    search.observe(answers({tasks[0].id: 2}))
    assert search.figures() == {"prompts_left": 1, "prompt_best": 2, "prompt_reward": 1.0}


def test_a_search_without_training_moves_nothing_and_resumes(tmp_path: Path) -> None:
    texts = {"tasks.prompts": ["{prompt}", "0+{prompt}", "1+{prompt}"], "tasks.prompt_tasks": 2}
    rows = check_resumed("grpo", tmp_path, '"reward_sums"', update="none", **texts)
    assert {row["optimiser_steps"] for row in rows} == {0} and {row["tokens_forward"] for row in rows} == {0}
    assert len({row["weights_fingerprint"] for row in rows}) == 1
    # two tasks each of three texts after two steps; four more each of the two that are left take three steps
    assert [row["prompts_left"] for row in rows] == [3, 2, 2, 2, 1]
    records = [json.loads(x) for x in (tmp_path / "whole" / "rollouts" / "step-000001.jsonl").read_text().splitlines()]
    assert {r["prompt_text"].split("?")[0][:2] for r in records if "prompt_text" in r} >= {"0+", "1+"}
