"""Data sets of the hub as tasks, over a stand-in for `datasets` with the little of it that is used."""

from __future__ import annotations

import sys
import types

import pytest

from gxpo.base.errors import TaskError
from gxpo.environments.tasks import make

ROWS = {
    "train": [{"question": f"{i} apples?", "answer": f"Count them.\n#### {i}"} for i in range(20)],
    "test": [{"question": f"{i} pears?", "answer": f"Count.\n#### {i}"} for i in range(5)],
    "chats": [{"question": [{"role": "user", "content": f"q{i}"}], "answer": i} for i in range(40)],
    "marked": [{"question": "a", "answer": "no mark"}, {"question": "b", "answer": "#### 1"}],
}


class Rows(list):
    column_names = ("question", "answer")


@pytest.fixture(autouse=True)
def datasets(monkeypatch):
    def load_dataset(path, config=None, *, split):
        if path != "openai/gsm8k" or config not in (None, "main"):
            raise FileNotFoundError(f"no data set {path}\nanywhere")
        return Rows(ROWS[split])

    module = types.ModuleType("datasets")
    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)


GSM8K = {"config": "main", "prompt": "question", "answer": "answer", "answer_after": "####"}


def test_splits_columns_and_the_mark_before_the_answer():
    source = make("dataset:openai/gsm8k", seed=0, options={**GSM8K, "held_out": "test"}, per_step=20)
    assert [(t.prompt, t.answer) for t in source.held_out(2)] == [("0 pears?", "0"), ("1 pears?", "1")]
    assert sorted(int(t.answer) for t in source.draw(20, 0)) == list(range(20))
    assert source.held_out(1)[0].id == "openai/gsm8k/test/0"
    assert source.reward_default == "math"


def test_a_template_and_a_share_that_is_held_out():
    options = {**GSM8K, "template": "Q: {prompt}\nA:", "held_out_fraction": 0.3}
    source = make("dataset:openai/gsm8k", seed=0, options=options, per_step=4)
    held_out, training = source.held_out(100), source.draw(20 - len(source.held_out(100)), 0)
    assert len(held_out) + len({t.id for t in training}) == 20 and 0 < len(held_out) < 20
    assert all(t.prompt.startswith("Q: ") and t.prompt.endswith("\nA:") for t in (*held_out, *training))


def test_prompts_of_messages_stay_messages():
    options = {"prompt": "question", "answer": "answer", "split": "chats"}
    task = make("dataset:openai/gsm8k", seed=0, options=options, per_step=4).draw(1, 0)[0]
    assert task.prompt == ({"role": "user", "content": f"q{task.answer}"},)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("dataset:nobody/nothing", GSM8K, r"can't be loaded \(no data set nobody/nothing anywhere\)"),
        ("dataset:openai/gsm8k", {"prompt": "question"}, "no column 'answers'"),
        ("dataset:openai/gsm8k", {**GSM8K, "prompt": "qestion"}, "no column 'qestion'; did you mean 'question'"),
        ("dataset:openai/gsm8k", {**GSM8K, "split": "marked"}, "no '####' in it"),
        ("dataset:openai/gsm8k", {**GSM8K, "template": "ask"}, "must contain {prompt}"),
        ("dataset:openai/gsm8k", {**GSM8K, "colour": "red"}, "no option 'colour'"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(name, options, message):
    if message.endswith("'answers'"):
        options = {**options, "answer": "answers"}
    with pytest.raises(TaskError, match=message) as refused:
        make(name, seed=0, options=options)
    assert "\n" not in str(refused.value)
