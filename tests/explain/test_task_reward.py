"""Rewards of a run on reference answers, empty completions and wrong answers, by hand."""

import json

import pytest

from gxpo.environments import tasks as sources
from gxpo.explain.task_reward import reward_figures
from gxpo.parts.definition import SettingValue
from gxpo.parts.protocols import Task
from gxpo.training import config

TASKS = [Task(str(i), f"double of {i}?", str(2 * i)) for i in range(1, 5)]


@pytest.fixture
def figures(tmp_path):
    data = tmp_path / "t.jsonl"
    data.write_text("".join(json.dumps({"prompt": t.prompt, "answer": t.answer}) + "\n" for t in TASKS))
    source = sources.make(str(data), seed=0, options={"held_out_fraction": 0.5})

    def of(body, tasks=TASKS):
        (tmp_path / "r.py").write_text(f"def f(completion, answer):\n    return {body}\n")
        return reward_figures(settings(f"{tmp_path}/r.py:f"), source, tasks)

    return of


def settings(reward):
    return config.resolve({"reward": SettingValue(reward, "test"), "task": SettingValue("arithmetic", "test")}).settings


def test_a_reward_of_bare_answers(figures):
    report = figures("float(completion == answer)")
    assert (report["form"], report["full"], report["empty"], report["wrong"]) == ("bare", 1.0, 0.0, 0.0)
    assert report["forms"]["boxed"] == 0.0 and report["unpaid"] == [] and report["failures"] == {}
    assert report["tasks"] == 4 and report["example"] == "2" and report["of_the_task"] is False


def test_the_form_is_that_which_earns_most(figures):
    report = figures("float(completion == '#' + answer) + 0.5 * (completion == answer)")
    assert (report["form"], report["forms"]["hash"], report["forms"]["bare"]) == ("hash", 1.0, 0.5)
    assert report["example"] == "#2"


def test_answers_that_are_not_paid_in_full_are_named(figures):
    report = figures("(0.5 if answer == '4' else 1.0) * (completion == answer)")
    assert report["full"] == 1.0 and report["unpaid"] == [{"id": "2", "answer": "4", "pays": 0.5}]


def test_a_failing_reward_is_described(figures):
    report = figures("1 / 0")
    assert report["full"] is None and report["empty"] is None and len(report["unpaid"]) == 4
    assert "ZeroDivisionError" in report["failures"]["raises"]


def test_nothing_to_try_without_answers_or_with_a_judge(figures):
    assert figures("1.0", tasks=[Task("a", "?", None), Task("b", "?", " ")]) is None
    assert "gxpo check-reward tries it" in reward_figures(settings("judge"), None, TASKS)["skipped"]
