"""Judges that see: a task's pictures are in what a checkpoint that reads them is asked, and named to any other."""

from __future__ import annotations

import base64
import copy
import io
import json

import numpy as np
import pytest
import torch
from tests.properties.vision.families import IMAGE, MODELS, MORE, own_logits, own_logprobs, picture, stock
from tests.raw_server import answering, said

from gxpo.base import media
from gxpo.base.errors import ConfigError
from gxpo.base.judges import JudgeFailure
from gxpo.environments.local_judge import LocalJudge
from gxpo.environments.rewards.judge import judge_reward
from gxpo.environments.rewards.judged import Rubric, prompt_of
from gxpo.environments.rewards.listener import Listener
from gxpo.models.decoder.vision import vision_of
from gxpo.models.tiny import character_tokenizer
from gxpo.parts.protocols import Task
from gxpo.parts.settings import RunSettings, TeacherSettings
from gxpo.training.external import Externals
from gxpo.training.models import load


@pytest.fixture(scope="module")
def sees():
    return load("tiny-vision:cold", task="shapes")


def task(value: int) -> Task:
    pixels = np.full((32, 32, 3), value, dtype=np.uint8)
    parts = [{"type": "image", "image": media.PICTURES.put(pixels)}, {"type": "text", "text": "colour?"}]
    return Task(f"t{value}", ({"role": "user", "content": parts},), "red")


def test_a_listener_reads_the_rows_of_the_picture(sees):
    judge, asked_task = LocalJudge(sees.model, sees.tokenizer), task(200)
    prompt = prompt_of(asked_task, judge)
    vision, text = vision_of(sees.model), sees.tokenizer("colour?x red", add_special_tokens=False).input_ids
    row = [sees.tokenizer.bos_token_id, *vision.ids(asked_task.prompt[0]["content"][0]["image"]), *text]
    with torch.no_grad():
        logits = sees.model(input_ids=torch.tensor([row])).logits[0].double().log_softmax(-1)
    expected = sum(float(logits[i - 1, row[i]]) for i in range(len(row) - 3, len(row)))
    assert judge.logprob(prompt, "x ", "red") == pytest.approx(expected, abs=1e-9)
    assert judge.logprob(prompt_of(task(20), judge), "x ", "red") != pytest.approx(expected, abs=1e-6)


def test_a_judge_sees_the_picture_of_the_policy(sees):
    judge = LocalJudge(sees.model, sees.tokenizer, max_new_tokens=2)
    ids = judge._ids(Rubric(judge).question("red", task(200)))
    assert sum(map(media.is_row, ids)) == 16
    first = next(i for i in ids if media.is_row(i))
    assert media.ref_of(first) == task(200).prompt[0]["content"][0]["image"]


def test_a_judge_that_reads_texts_is_told_the_picture_by_name():
    cold = load("tiny:cold", task="arithmetic")
    judge, asked_task = LocalJudge(cold.model, cold.tokenizer), task(200)
    assert not judge.vision
    assert prompt_of(asked_task, judge) == f"{media.label(asked_task.prompt[0]['content'][0]['image'])}colour?"
    assert not any(map(media.is_row, judge._ids(Rubric(judge).question("red", asked_task))))


def test_a_judges_template_places_the_picture(sees):
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
    text = {}
    for value in (200, 20):
        row = judge._ids(Rubric(judge).question("red", task(value)))
        with torch.no_grad():
            for _ in range(3):
                row = [*row, int(sees.model(input_ids=torch.tensor([row])).logits[0, -1].argmax())]
        text[value] = row[-3:]
        monkeypatch.setattr(sees.model.generation_config, "eos_token_id", row[-1])  # else the reply is cut off
        ended = row[-3:][: row[-3:].index(row[-1]) + 1]
        assert judge.ask(Rubric(judge).question("red", task(value))) == sees.tokenizer.decode(ended)
    assert text[200] != text[20]


# ------------------------------------------------------------ families of Qwen
@pytest.fixture(scope="module", params=["qwen2-vl", "qwen2.5-vl", "qwen3-vl"])
def qwen(request):
    model, tokenizer = MODELS[request.param](), character_tokenizer(*MORE)
    assert tokenizer.convert_tokens_to_ids("<image>") == IMAGE
    return LocalJudge(model, tokenizer, max_new_tokens=5), stock(model)


def shown(*refs):
    """Pictures of several shapes, a text between and behind them."""
    return "look: " + " and ".join(media.mark(ref) for ref in refs) + " which?"


def row_of(judge, text, *refs):
    """Ids of a text with pictures, without the code under test."""
    pieces, ids = text.split("*"), [judge.tokenizer.bos_token_id]
    for k, piece in enumerate(pieces):
        ids += judge.tokenizer(piece, add_special_tokens=False).input_ids
        ids += vision_of(judge.model).ids(refs[k]) if k < len(refs) else ()
    return ids


@pytest.mark.parametrize("sizes", [[(32, 32)], [(24, 64), (32, 16)]])
def test_log_probs_of_an_m_rope_judge_equal_transformers(qwen, sizes):
    judge, own_value = qwen
    assert judge.vision and next(judge.model.parameters()).dtype == torch.float32
    actual = {}
    for seed in (0, 10):
        refs = [picture(seed + i, *size) for i, size in enumerate(sizes)]
        row = row_of(judge, "look: " + " and ".join("*" * len(refs)) + " which? hm red", *refs)
        with torch.no_grad():
            expected = float(own_logprobs(own_value, judge.model, row)[-3:].double().sum())
        actual[seed] = judge.logprob(shown(*refs), " hm ", "red")
        assert actual[seed] == pytest.approx(expected, abs=1e-5)
    assert abs(actual[0] - actual[10]) > 1e-3


def test_replies_of_an_m_rope_judge_are_greedy_by_transformers(qwen, monkeypatch):
    """A checkpoint's repetition penalty, which looks up the logit of every id before, does not meet rows."""
    judge, own_value = qwen
    monkeypatch.setattr(judge.model.generation_config, "repetition_penalty", 1.3)
    refs, reply = [picture(3, 24, 64), picture(4)], []
    row = row_of(judge, "look: * and * which?\n", *refs)
    for _ in range(5):
        with torch.no_grad():
            reply.append(int(own_logits(own_value, judge.model, [*row, *reply])[-1].argmax()))
    monkeypatch.setattr(judge.model.generation_config, "eos_token_id", reply[-1])  # else the reply is cut off
    ended = reply[: reply.index(reply[-1]) + 1]
    answer = judge.ask([{"role": "user", "content": shown(*refs)}])
    assert answer == judge.tokenizer.decode(ended, skip_special_tokens=True)


def test_a_judge_refuses_a_question_that_ends_in_a_picture(qwen):
    judge, _ = qwen
    tokenizer = copy.deepcopy(judge.tokenizer)
    tokenizer.chat_template = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
        "{{ '<image>' if part.type == 'image' else part.text }}{% endfor %}{% endif %}{% endfor %}"
    )
    with pytest.raises(JudgeFailure, match="ends with a picture: write a text behind it"):
        LocalJudge(judge.model, tokenizer).ask([{"role": "user", "content": media.mark(picture(0))}])


# ------------------------------------------------------------ under `teacher`, and over HTTP
def judge_of_a_run(**options):
    settings = RunSettings(task="shapes", teacher=TeacherSettings(models={"eye": {"role": "judge", **options}}))
    return Externals(settings, "cpu").judge("eye")


def test_a_checkpoint_as_teacher_sees_the_picture(sees):
    judge, local = judge_of_a_run(model="tiny-vision:cold"), LocalJudge(sees.model, sees.tokenizer)
    believed = [judge.logprob(prompt_of(task(value), judge), "x ", "red") for value in (200, 20)]
    assert believed == [local.logprob(prompt_of(task(value), local), "x ", "red") for value in (200, 20)]
    assert believed[0] != believed[1]


def colour_of(request):
    """A chat server's answer: which of red, green and blue is most of the PNG file in its question, by Pillow."""
    image = pytest.importorskip("PIL.Image")
    (message,) = json.loads(request[2])["messages"]
    if isinstance(message["content"], str):
        return said("Score: 1")
    urls = [part["image_url"]["url"] for part in message["content"] if part["type"] == "image_url"]
    assert len(urls) == 1 and urls[0].startswith("data:image/png;base64,")
    with image.open(io.BytesIO(base64.b64decode(urls[0].partition(",")[2]))) as opened:
        assert opened.format == "PNG" and opened.size == (8, 4)
        return said(f"Score: {int(np.asarray(opened).reshape(-1, 3).sum(0).argmax()) + 7}")


def coloured(channel):
    pixels = np.full((4, 8, 3), 40, dtype=np.uint8)
    pixels[..., channel] = 200
    parts = [{"type": "image", "image": pixels}, {"type": "text", "text": "colour?"}]
    return Task(f"c{channel}", ({"role": "user", "content": parts},), "red")


def test_a_server_that_sees_is_sent_the_pixels_in_a_data_url():
    with answering(colour_of) as (url, requests):
        judge = judge_of_a_run(server=url, model="m", vision=True)
        said_of = [judge.ask(Rubric(judge).question("red", coloured(channel))) for channel in (0, 1, 2)]
        assert said_of == ["Score: 7", "Score: 8", "Score: 9"]
        assert judge_reward({"server": url, "model": "m", "vision": True}).judge.vision
        blind = judge_of_a_run(server=url, model="m")
        assert blind.ask(Rubric(blind).question("red", coloured(0))) == "Score: 1"
    (message,) = json.loads(requests[0][2])["messages"]
    before, picture_part, after = message["content"]
    assert before["text"].endswith("# Task\n") and after["text"].startswith("colour?") and message["role"] == "user"
    assert set(picture_part) == {"type", "image_url"} and not {*media.MARK} & {*before["text"], *after["text"]}
    (message,) = json.loads(requests[-1][2])["messages"]
    assert media.label(media.PICTURES.put(coloured(0).prompt[0]["content"][0]["image"])) in message["content"]


def test_what_a_policy_writes_shows_a_judge_no_picture(sees):
    forged = f"red {media.mark(picture(0))}"
    judge = LocalJudge(sees.model, sees.tokenizer)
    assert sum(map(media.is_row, judge._ids(Rubric(judge).question(forged, task(200))))) == 16
    assert not {*media.MARK} & {*Listener(judge).visible_text(forged)}


@pytest.mark.parametrize("other", [{"model": "tiny-vision:cold"}, {"function": "x.py:f"}])
def test_sees_is_said_of_servers_alone(other):
    with pytest.raises(ConfigError, match=r"teacher\.models\.eye\.vision is for a server: a checkpoint is shown"):
        judge_of_a_run(**other, vision=True)
    with pytest.raises(ConfigError, match=r"scoring\.options\.judge\.vision is for a server"):
        judge_reward({"function": "x.py:f", "vision": True})


def test_a_panel_member_of_another_source_sees_by_itself(tmp_path):
    (tmp_path / "eyes.py").write_text("def ask(messages):\n    return 'Score: 1'\n")
    panel = [{"name": "same"}, {"name": "other", "function": f"{tmp_path}/eyes.py:ask"}]
    actual = judge_reward({"server": "http://localhost:1/v1", "model": "m", "vision": True, "panel": panel})
    assert actual.members["same"].judge.vision and not hasattr(actual.members["other"].judge, "vision")
