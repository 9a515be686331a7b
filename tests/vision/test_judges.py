"""Judges that see: a task's pictures are in what a checkpoint that reads them is asked, and named to any other."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from gxpo import media
from gxpo.decoder.vision import vision_of
from gxpo.judges import LocalJudge
from gxpo.models import load
from gxpo.protocols import Task
from gxpo.rewards.judged import Rubric, prompt_of


@pytest.fixture(scope="module")
def sees():
    return load("tiny-vision:cold", task="shapes")


def task(value: int) -> Task:
    pixels = np.full((32, 32, 3), value, dtype=np.uint8)
    parts = [{"type": "image", "image": media.PICTURES.put(pixels)}, {"type": "text", "text": "colour?"}]
    return Task(f"t{value}", ({"role": "user", "content": parts},), "red")


def test_a_listener_reads_the_rows_of_the_picture(sees):
    judge, asked = LocalJudge(sees.model, sees.tokenizer), task(200)
    prompt = prompt_of(asked, judge)
    vision, text = vision_of(sees.model), sees.tokenizer("colour?x red", add_special_tokens=False).input_ids
    row = [sees.tokenizer.bos_token_id, *vision.ids(asked.prompt[0]["content"][0]["image"]), *text]
    with torch.no_grad():
        logits = sees.model(input_ids=torch.tensor([row])).logits[0].double().log_softmax(-1)
    expected = sum(float(logits[i - 1, row[i]]) for i in range(len(row) - 3, len(row)))
    assert judge.logprob(prompt, "x ", "red") == pytest.approx(expected, abs=1e-9)
    assert judge.logprob(prompt_of(task(20), judge), "x ", "red") != pytest.approx(expected, abs=1e-6)


def test_a_judge_is_asked_about_the_picture_that_the_policy_was_shown(sees):
    judge = LocalJudge(sees.model, sees.tokenizer, max_new_tokens=2)
    ids = judge._ids(Rubric(judge).question("red", task(200)))
    assert sum(map(media.is_row, ids)) == 16
    first = next(i for i in ids if media.is_row(i))
    assert media.ref_of(first) == task(200).prompt[0]["content"][0]["image"]


def test_a_judge_that_reads_texts_is_told_the_picture_by_name():
    cold = load("tiny:cold", task="arithmetic")
    judge, asked = LocalJudge(cold.model, cold.tokenizer), task(200)
    assert not judge.sees
    assert prompt_of(asked, judge) == f"{media.named(asked.prompt[0]['content'][0]['image'])}colour?"
    assert not any(map(media.is_row, judge._ids(Rubric(judge).question("red", asked))))


def test_a_judge_with_a_chat_template_is_shown_the_picture_where_the_template_puts_it(sees):
    tokenizer = copy.deepcopy(sees.tokenizer)
    tokenizer.chat_template = (
        "{% for m in messages %}U:{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
        "{{ '<image>' if part.type == 'image' else part.text }}{% endfor %}{% endif %}\n{% endfor %}A:"
    )
    judge = LocalJudge(sees.model, tokenizer)
    ids = judge._ids(Rubric(judge).question("red", task(200)))
    rows = [i for i, token in enumerate(ids) if media.is_row(token)]
    assert len(rows) == 16 and rows == list(range(rows[0], rows[0] + 16))
    before, after = tokenizer.decode(ids[: rows[0]]), tokenizer.decode(ids[rows[-1] + 1 :])
    assert before.startswith("U:") and before.endswith("# Task\n")
    assert after.startswith("colour?") and after.endswith("A:")


def test_a_reply_goes_on_from_the_rows_of_the_picture(sees, monkeypatch):
    judge = LocalJudge(sees.model, sees.tokenizer, max_new_tokens=3)
    said = {}
    for value in (200, 20):
        row = judge._ids(Rubric(judge).question("red", task(value)))
        with torch.no_grad():
            for _ in range(3):
                row = [*row, int(sees.model(input_ids=torch.tensor([row])).logits[0, -1].argmax())]
        said[value] = row[-3:]
        monkeypatch.setattr(sees.model.generation_config, "eos_token_id", row[-1])  # else the reply is cut off
        ended = row[-3:][: row[-3:].index(row[-1]) + 1]
        assert judge.ask(Rubric(judge).question("red", task(value))) == sees.tokenizer.decode(ended)
    assert said[200] != said[20]
