"""Prompts that are too long: found before the first step, refused, left out or shortened from the left."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.models.chat.families import tokenizer_of
from tests.training.parity_reward import any_digit

import gxpo
from gxpo.base.errors import ModelError, TaskError
from gxpo.environments.tasks.listed import ListedTasks
from gxpo.explain.task_report import report
from gxpo.models.chat import PlainChat, TemplateChat
from gxpo.models.tiny import character_tokenizer
from gxpo.parts.protocols import Task
from gxpo.training.config import RunConfig, load
from gxpo.training.models.prompt_lengths import FittingTasks, PromptLengths, fit
from gxpo.training.preflight import rehearse


def plain(too_long: str = "error", limit: int = 20, answer: int = 4) -> PromptLengths:
    """A token a character after one of bos: a prompt may have 16, so fifteen characters."""
    return PromptLengths(PlainChat(character_tokenizer()), None, limit, answer, too_long)


def listed(lengths: list[int], held: list[int] = [3], **info: Any) -> ListedTasks:  # noqa: B006
    built_listed_tasks = ListedTasks()
    built_listed_tasks.name, built_listed_tasks.seed, built_listed_tasks.per_step = "mine", 0, 2
    own_values = [{k: v[i] for k, v in info.items()} for i in range(len(lengths))]
    built_listed_tasks.split(
        [Task(f"t{i}", f"{i}" * n, "x", own_values[i]) for i, n in enumerate(lengths)],
        [Task(f"h{i}", f"{chr(65 + i)}" * n, "x") for i, n in enumerate(held)],
        0.5,
    )
    return built_listed_tasks


def test_a_prompt_at_the_limit_fits_and_a_longer_one_is_named() -> None:
    source = listed([15, 1, 2], held=[15])
    assert fit(source, plain(), 9, "q.jsonl") == (source, [])
    for bad, name in ((listed([15, 16, 2]), "'t1' with 17"), (listed([1, 2], held=[1, 1, 1, 40]), "'h3' with 41")):
        with pytest.raises(TaskError, match=rf"q\.jsonl: 1 of \d prompts has more than 16 tokens \({name}\)") as caught:
            fit(bad, plain(), 1, "q.jsonl")
        assert "tasks.too_long=drop or truncate_left" in str(caught.value) and "\n" not in str(caught.value)
    with pytest.raises(
        TaskError, match=r"5 of 6 prompts have more .*'t0' with 31, 't1' with 31, 't2' with 31 and 2 more"
    ):
        fit(listed([30] * 5), plain(), 1, "q.jsonl")


def test_dropped_tasks_are_counted_and_epochs_skip_them() -> None:
    source, lines = fit(listed([9, 16, 9, 99, 9], held=[3, 30]), plain("drop"), 9, "q.jsonl")
    assert lines == [
        "q.jsonl: 3 of 7 prompts have more than 16 tokens ('t1' with 17, 't3' with 100, 'h1' with 31), what the "
        "context of 20 leaves beside sampling.max_new_tokens=4: left out (tasks.too_long=drop)"
    ]
    assert [t.id for t in source.training] == ["t0", "t2", "t4"] and [t.id for t in source.held_out(9)] == ["h0"]
    assert {t.id for step in (1, 2) for t in source.draw(2, step)} == {"t0", "t2", "t4"}
    with pytest.raises(TaskError, match="the prompts of all 1 held-out tasks are too long"):
        fit(listed([1], held=[50]), plain("drop"), 9, "q.jsonl")
    sets = {"same_as": ["a", "a", "b", "b"]}  # a wording that is dropped takes its set with it
    source, _ = fit(listed([9, 30, 9, 9], **sets), plain("drop"), 9, "q.jsonl")
    assert [t.id for t in source.training] == ["t2", "t3"]


def test_a_shortened_text_keeps_its_end_and_bos() -> None:
    lengths = plain("truncate_left")
    assert lengths.shorten(Task("t", "abcdefghijklmnopqrstuvwxyz", "x")).prompt == "lmnopqrstuvwxyz"
    assert lengths.shorten(Task("t", (1, *range(10, 40)))).prompt == (1, *range(25, 40))
    bare = PromptLengths(PlainChat(tokenizer_of("qwen25")), None, 12, 4, "truncate_left")
    assert bare.shorten(Task("t", tuple(range(40)))).prompt == tuple(range(32, 40))


def test_the_longest_message_is_cut_and_system_and_roles_stay() -> None:
    chat = TemplateChat(tokenizer_of("chatml"))
    prompt = (
        {"role": "system", "content": "you are terse " * 6},
        {"role": "user", "content": "first question"},
        {"role": "assistant", "content": "an answer"},
        {"role": "user", "content": "".join(f"word{i} " for i in range(200)) + "end"},
    )
    lengths = PromptLengths(chat, None, 400, 40, "truncate_left")
    assert lengths.tokens(prompt) > 360
    short = lengths.fit(Task("t", prompt, "x"))
    assert short is not None and lengths.tokens(short.prompt) <= 360 < lengths.tokens(short.prompt) + 9
    assert short.prompt[:3] == prompt[:3] and prompt[3]["content"].endswith(short.prompt[3]["content"])
    parts = [{"type": "text", "text": "see"}, {"type": "text", "text": "a" * 900}]
    cut = lengths.fit(Task("t", ({"role": "user", "content": parts},), "x"))
    assert cut is not None
    assert cut.prompt[0]["content"][0] == parts[0] and set(cut.prompt[0]["content"][1]["text"]) == {"a"}
    with pytest.raises(TaskError, match=r"task 't': its prompt has \d+ tokens even without its texts"):
        PromptLengths(chat, "you are terse " * 60, 60, 10, "truncate_left").fit(Task("t", prompt[1:], "x"))


def test_short_prompts_are_not_tokenised(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = PromptLengths(TemplateChat(tokenizer_of("qwen25")), "be brief", 4096, 64)
    source = listed([40] * 50)
    calls: list[Any] = []
    tokens = PromptLengths.tokens
    monkeypatch.setattr(PromptLengths, "tokens", lambda self, prompt: calls.append(prompt) or tokens(self, prompt))
    assert fit(source, lengths, 9, "q.jsonl") == (source, []) and calls == ["x"]  # what the template adds, once


class Made:
    """Makes tasks of 10 or, every third one, 30 characters."""

    name = "made"

    def draw(self, n: int, step: int) -> list[Task]:
        return [Task(f"{step}/{i}", "a" * (30 if i % 3 == 2 else 10), "x") for i in range(n)]

    def held_out(self, n: int) -> list[Task]:
        return [Task(f"h{i}", "b" * 10, "x") for i in range(n)]


def test_tasks_generated_at_each_step_are_checked_when_drawn() -> None:
    refusing, _ = fit(Made(), plain(), 2, "made")
    assert isinstance(refusing, FittingTasks) and len(refusing.draw(2, 1)) == 2 and refusing.name == "made"
    with pytest.raises(TaskError, match=r"task '5/2': 1 of 1 prompts has more than 16 tokens \('5/2' with 31\)"):
        refusing.draw(3, 5)
    dropping, _ = fit(Made(), plain("drop"), 2, "made")
    with pytest.warns(UserWarning, match=r"task '1/2': its prompt is too long and is left out"):
        assert [t.id for t in dropping.draw(4, 1)] == ["1/0", "1/1", "1/3", "1/4"]
    assert dropping.draw(2, 1) == dropping.draw(4, 1)[:2]
    cutting, _ = fit(Made(), plain("truncate_left"), 2, "made")
    with pytest.warns(UserWarning, match="shortened from the left"):
        assert [len(t.prompt) for t in cutting.draw(3, 1)] == [10, 10, 15]
    none = Made()
    none.draw = lambda n, step: [Task(f"{i}", "a" * 50, "x") for i in range(n)]  # type: ignore[method-assign]
    with pytest.raises(TaskError, match="128 of 128 prompts of step 1 have more than 16 tokens"):
        FittingTasks(none, plain("drop")).draw(2, 1)


def write(folder: Path, texts: list[str]) -> str:
    rows = [{"prompt": text, "answer": "4"} for text in texts]
    (folder / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(folder / "t.jsonl")


KEYS = {
    "sampling.max_new_tokens": 2, "tasks.per_step": 4, "rollout.group_size": 2, "trainer.checkpoint_every": 1,
    "eval.tasks": 1, "doctor.every": 0, "trainer.rollouts_every": 1,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_run_refuses_long_prompts_first_or_drops_them(tmp_path: Path) -> None:
    """The positions of the tiny model are 2048, and the long prompt is that of the twelfth row."""
    path = write(tmp_path, [f"{i}?" for i in range(11)] + ["hello " * 700])
    message = r"t\.jsonl: 1 of 12 prompts has more than 2046 tokens \('t/12' with 4201\)"
    with pytest.raises(TaskError, match=message):
        gxpo.train("tiny:cold", path, "grpo", 3, any_digit, out=tmp_path / "run", set=KEYS, progress="none")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()
    sets = [f"{k}={v}" for k, v in KEYS.items()]
    with pytest.raises(TaskError, match=message):  # --dry-run, plan and compare
        rehearse(load(None, [f"task={path}", "model=tiny:cold", *sets]))
    with pytest.warns(UserWarning, match=r"left out \(tasks\.too_long=drop\)"):
        rehearse(load(None, [f"task={path}", "model=tiny:cold", "tasks.too_long=drop", *sets]))
    s = load(None, [f"task={path}", "model=tiny:cold", "tasks.too_long=drop", *sets]).settings
    (said_text,) = [line for line in report(s, model="tiny:cold")["warnings"] if "t/12" in line]
    assert "a run leaves them out (tasks.too_long=drop)" in said_text
    lines: list[str] = []
    run = gxpo.train(
        "tiny:cold", path, "srpo_history", 3, any_digit, out=tmp_path / "run", set={**KEYS, "tasks.too_long": "drop"},
        progress="none", notify=lines.append,
    )  # fmt: skip
    assert any("left out" in line for line in lines) and run.step == 3
    seen_tasks = {
        json.loads(x)["task"] for f in (tmp_path / "run/rollouts").iterdir() for x in f.read_text().splitlines()
    }
    assert "t/12" not in seen_tasks and len(seen_tasks) >= 9  # one of eleven is held out


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_run_without_the_setting_stops_at_a_long_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, [f"{i}?" for i in range(12)])
    saved_yaml = RunConfig.to_yaml
    with monkeypatch.context() as before:  # its config.yaml has no such key
        before.setattr(RunConfig, "to_yaml", lambda *x: re.sub(r"(?m)^tasks.too_long:.*\n", "", saved_yaml(*x)))
        gxpo.train("tiny:cold", path, "grpo", 1, any_digit, out=tmp_path / "run", set=KEYS, progress="none")
    assert "too_long" not in (tmp_path / "run" / "config.yaml").read_text()
    write(tmp_path, [f"{i}?" for i in range(12)] + ["hello " * 700])
    go_on = {"steps": 2, "reward": any_digit, "allow_changed_data": True, "progress": "none"}
    with pytest.raises(ModelError, match="a prompt of 4201 tokens"):  # not before the second step draws it
        gxpo.resume(tmp_path / "run", **go_on)
    _, lines = fit(listed([9, 16]), plain(), 9, "q.jsonl", refuses=False)
    assert lines[0].endswith("; the run ends where one of them is drawn")
