"""`gxpo tasks`: counts, lengths and rewards by hand; each defect of a data set has its warning, a sound set none."""

import json

import pytest

from gxpo.base.errors import TaskError
from gxpo.cli.tasks import text
from gxpo.explain.task_report import readable, report
from gxpo.parts.definition import SettingValue
from gxpo.training import config

TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>{% endif %}"
)


def settings(**keys):
    return config.resolve({k.replace("__", "."): SettingValue(v, "test") for k, v in keys.items()}).settings


def write(path, rows):
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(path)


def sums(n, **more):
    return [{"prompt": f"What is {i} plus {i + 1}?", "answer": str(2 * i + 1), **more} for i in range(n)]


@pytest.mark.slow
def test_a_sound_set_has_no_warning(tmp_path):
    data, held_out_path = write(tmp_path / "t.jsonl", sums(20, level=1)), write(tmp_path / "h.jsonl", sums(60)[20:])
    r = report(settings(task=data, tasks__options={"held_out": held_out_path}))
    assert r["warnings"] == [] and (r["training"], r["held_out"]) == (20, 40)
    assert r["columns"]["level"] == {"tasks": 20, "kinds": {"number": 20}, "example": "1"}
    # "What is 0 plus 1?" has 17 characters; from 10 on 19, "9 plus 10" 18: 9 of 17, 1 of 18, 50 of 19
    assert r["prompt_lengths"] == {"min": 17, "median": 19, "max": 19} and r["unit"] == "characters"
    # 1, 3, ..., 119: 5 of one digit, 45 of two, 10 of three
    assert r["answer_lengths"] == {"min": 1, "median": 2, "max": 3}
    assert (r["reward"]["forms"]["bare"], r["reward"]["full"], r["reward"]["empty"], r["reward"]["wrong"]) == (
        1,
        1,
        0,
        0,
    )
    assert "no warning" in text(r)


@pytest.mark.slow
def test_prompts_as_the_model_sees_them(tmp_path):
    data = write(tmp_path / "t.jsonl", [*sums(40), {"prompt": [{"role": "user", "content": "Hi"}], "answer": "1"}])
    s = settings(task=data, chat__template=TEMPLATE, chat__system="Short.", tasks__options={"held_out_fraction": 0.5})
    r = report(s, model="tiny:cold")
    texts = {p["text"] for p in r["prompts"]}
    assert any(t.startswith("<s>system: Short.</s><s>user: What is ") and t.endswith("?</s><s>") for t in texts)
    # characters of "<s>system: Short.</s><s>user: Hi</s><s>" in which each character is a token: the shortest prompt
    assert r["prompt_lengths"]["min"] == len("<s>system: Short.</s><s>user: Hi</s><s>")
    assert r["unit"] == "tokens" and r["context_limit"] == 2048


@pytest.mark.slow
def test_lengths_against_the_context_and_the_action(tmp_path):
    rows = [*sums(40), {"prompt": "a" * 90, "answer": "1"}, {"prompt": "b" * 200, "answer": "123456789012"}]
    data = write(tmp_path / "t.jsonl", rows)
    s = settings(
        task=data, env__max_context=100, sampling__max_new_tokens=11, tasks__options={"held_out_fraction": 0.5}
    )
    r = report(s, model="tiny:cold")
    assert r["no_room"] == ["t/41"] and r["over_limit"] == ["t/42"]
    warning_text = "\n".join(r["warnings"])
    assert (
        "fill the context of 100 tokens: t/42" in warning_text
        and "leave less than sampling.max_new_tokens=11" in warning_text
    )
    assert "reference answers have up to 12 tokens" in warning_text


@pytest.mark.slow
def test_characters_that_the_tokenizer_does_not_know(tmp_path):
    rows = [*sums(40), {"prompt": "How many \u4e2d are there?", "answer": "1"}]
    s = settings(task=write(tmp_path / "t.jsonl", rows), tasks__options={"held_out_fraction": 0.5})
    r = report(s, model="tiny:cold")
    assert r["unknown_tokens"] == ["t/41"] and any("does not know: t/41" in w for w in r["warnings"])


@pytest.mark.slow
def test_every_line_at_fault_is_named_and_the_others_are_read(tmp_path):
    rows = [
        *sums(40),
        "{oops",
        {"prompt": "?"},
        {"prompt": "x", "answer": ""},
        {"prompt": "y", "answer": 1, "id": "t/1"},
    ]
    r = report(settings(task=write(tmp_path / "t.jsonl", rows)))
    assert [f.split(": ")[0].rpartition(" ")[2] for f in r["faults"]] == ["41", "42", "43", "44"]
    assert r["training"] + r["held_out"] == 40
    assert r["warnings"][0].startswith("4 line(s) can't be read, and a run refuses the file: ")


@pytest.mark.slow
def test_pairs_and_few_tasks(tmp_path):
    rows = [*sums(7), {"prompt": "what is 1 plus 2", "answer": "3"}, {"prompt": "What is 1 plus 2?", "answer": "4"}]
    warnings = report(settings(task=write(tmp_path / "t.jsonl", rows), tasks__options={"held_out_fraction": 0.5}))[
        "warnings"
    ]
    assert any("tasks.per_step=16" in w for w in warnings) and any(
        "held-out task(s): the 95% interval" in w for w in warnings
    )
    assert any("t/2 and t/8" in w for w in warnings)


def test_a_reward_that_pays_for_nothing_and_not_for_every_answer(tmp_path):
    (tmp_path / "r.py").write_text(
        "def f(completion, answer):\n"
        "    return 0.5 if not completion else float(completion == f'<answer>{answer}</answer>' and answer != '5')\n"
    )
    s = settings(task=write(tmp_path / "t.jsonl", sums(40)), reward=f"{tmp_path}/r.py:f", tasks__per_step=4)
    r = report(s)
    assert r["reward"]["form"] == "tags" and r["reward"]["empty"] == 0.5 and r["reward"]["wrong"] == 0
    assert r["reward"]["unpaid"] == [{"id": "t/3", "answer": "5", "pays": 0.0}]
    warning_text = "\n".join(r["warnings"])
    assert "an empty completion earns 0.5, a wrong answer 0" in warning_text and "t/3 (answer '5': 0)" in warning_text
    assert "a bare answer earns 0, one written as '<answer>" in warning_text


def test_generated_tasks(tmp_path, hardly_warm):
    r = report(settings(task="arithmetic"), model="tiny", n=40, scored=8)
    assert (r["training"], r["held_out"], r["complete"]) == (40, 40, False)
    assert r["warnings"] == [] and r["reward"]["tasks"] == 8
    assert r["prompt_lengths"] == {"min": 7, "median": 7, "max": 7}  # <bos>37+48=


def test_a_judge_is_not_asked(tmp_path):
    r = report(settings(task=write(tmp_path / "t.jsonl", sums(40)), reward="judge"))
    assert "check-reward" in r["reward"]["skipped"] and "check-reward" in text(r)


@pytest.mark.parametrize(("task", "said"), [("frozenlake", "gxpo check-env frozenlake"), ("no.jsonl", "no such file")])
def test_what_is_no_list_of_prompts(task, said):
    with pytest.raises(TaskError, match=said):
        report(settings(task=task))


def test_readable_of_a_file_that_is_no_text(tmp_path):
    (tmp_path / "x.jsonl").write_bytes(b"\xff\xfe")
    assert readable(tmp_path / "x.jsonl") == ([], [])


@pytest.mark.slow
def test_warnings_of_markers_control_tokens_and_padded_calls(tmp_path):
    rows = [{"prompt": f"<|im_start|>user\nwhat is {i}?<|im_end|>\n<|im_start|>assistant\n"} for i in range(40)]

    def warnings(name, rows, model=None, **keys):
        return report(settings(task=write(tmp_path / f"{name}.jsonl", rows), **keys), model=model)["warnings"]

    for model in (None, "tiny:cold"):
        (warning,) = [w for w in warnings("r", rows, model) if "template" in w]
        assert warning.startswith(
            "40 prompt(s) hold a rendered chat template already (<|im_start|>user, <|im_start|>assist"
        )
        assert "set chat.template=rendered" in warning
    (warning,) = [w for w in warnings("r", [*rows, *sums(3)], chat__template="rendered") if "template" in w]
    assert warning.startswith("3 prompt(s) hold no marker of a chat template: r/41, r/42, r/43;")
    rows = [{"prompt": row["prompt"]} for row in sums(40)]
    rows[4]["prompt"] = "What does <eos> mean?"
    assert any(
        w.startswith("1 prompt(s) hold names of special tokens (<eos>): n/5; they are encoded as letters")
        for w in warnings("n", rows, "tiny:cold")
    )
    calls = [{"function": {"name": n, "arguments": a}} for n, a in (("get", {"x": 1, "y": None}), ("add", '{"y": 2}'))]
    prompt = [{"role": "user", "content": "q"}, {"role": "assistant", "content": None, "tool_calls": calls}]
    rows[7]["prompt"] = [*prompt, {"role": "tool", "content": "1"}]
    warning = warnings("c", rows[:4] + rows[7:])
    assert any("tool calls with null for arguments of other tools (y): c/5" in w for w in warning)


def test_a_prompt_that_a_template_refuses_is_named(tmp_path):
    rows = [*sums(40), {"prompt": [{"role": "assistant", "content": "It is"}], "answer": "1"}]
    template = write(tmp_path / "t.jinja", [TEMPLATE])
    with pytest.raises(TaskError, match="task 't/41': the assistant's message stands alone"):
        report(
            settings(reward="format", task=write(tmp_path / "t.jsonl", rows), chat__template=template),
            model="tiny:cold",
        )
