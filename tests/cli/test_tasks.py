"""`gxpo tasks` and `gxpo filter-tasks` as typed."""

import json

import pytest
from tests.cli.small_run import config, run

from gxpo.cli.tasks import text


@pytest.mark.slow
def test_tasks_of_a_file_are_counted_and_one_is_shown(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{i}+1=", "answer": str(i + 1)}) + "\n" for i in range(40)))
    code, text, err = run("tasks", path, "--show", 1)
    assert (code == 0 and "0+1=" in text) or "+1=" in text, err
    code, text, _ = run("tasks", path, "--json")
    assert code == 0 and isinstance(json.loads(text), dict)


def test_a_task_that_is_none_is_refused():
    code, out, err = run("tasks", "arithmetics")
    assert (code, out) == (2, "") and "did you mean 'arithmetic'" in err and err.count("\n") == 1


def test_filtering_writes_the_tasks_it_reports(tmp_path):
    out = tmp_path / "kept.jsonl"
    code, text, err = run("filter-tasks", config(tmp_path), "--n", 4, "--rollouts", 2, "--low", 0, "--high", 1,
                          "--out", out, "--json")  # fmt: skip
    report = json.loads(text)
    assert code == 0, err
    assert report["tasks"] == report["kept"] == 4 and len(out.read_text().splitlines()) == 4


REPORT = {
    "task": "t.jsonl",
    "model": None,
    "complete": True,
    "training": 3,
    "held_out": 1,
    "columns": {"prompt": {"tasks": 4, "kinds": {"text": 4}, "example": "What is 1 plus 2?"}},
    "unit": "characters",
    "prompt_lengths": {"min": 17, "median": 17.5, "max": 19},
    "answer_lengths": None,
    "context_limit": None,
    "max_new_tokens": 64,
    "reward": None,
    "prompts": [
        {"id": "t/1", "text": "What is\n1 plus 2?", "answer": "3"},
        {"id": "t/2", "text": "two", "answer": "4"},
    ],
    "warnings": [],
}


def test_counts_lengths_and_the_first_prompt():
    lines = text(REPORT).split("\n")
    assert lines[0] == "t.jsonl: 3 training tasks, 1 held out"
    assert "column  tasks  kind  first" in lines and "prompt  4      text  What is 1 plus 2?" in lines
    assert "length in characters  min  median  max" in lines and "prompt                17   17.5    19" in lines
    at = lines.index("prompt of t/1 (answer '3'):")
    assert lines[at + 1 : at + 3] == ["  | What is", "  | 1 plus 2?"]
    assert lines[-1] == "no warning" and "no reward was tried: no task has an answer" in lines


def test_prompts_shown_are_as_many_as_asked_for():
    assert "prompt of t/2" not in text(REPORT) and "prompt of t/2" in text(REPORT, show=2)
    assert "prompt of" not in text(REPORT, show=0)


def test_a_model_has_its_limits_and_a_generator_its_remark():
    report = REPORT | {"model": "tiny", "context_limit": 2048, "complete": False, "unit": "tokens"}
    assert "model tiny: context 2,048 tokens, sampling.max_new_tokens=64" in text(report)
    assert text(report).startswith("t.jsonl: 3 training tasks, 1 held out, generated: as many as were asked for")
    assert "context no limit" in text(report | {"context_limit": None})


def test_rewards_by_form_and_warnings():
    reward = {
        "name": "correct",
        "tasks": 4,
        "form": "boxed",
        "example": "\\boxed{3}",
        "forms": {"bare": 0.25, "boxed": 1.0, "hash": None},
        "empty": 0.0,
        "wrong": None,
    }
    page = text(REPORT | {"reward": reward, "warnings": ["one", "two"]})
    assert "reward correct on 4 tasks, mean: reference answer 1, written as '\\\\boxed{3}'; empty 0, wrong -" in page
    assert "  in other forms: bare 0.25, hash unscored" in page
    assert page.endswith("warning: one\nwarning: two")
    assert "asks a server" in text(REPORT | {"reward": {"skipped": "reward judge asks a server"}})
