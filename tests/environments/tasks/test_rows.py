"""Rows of data: columns by dotted names, faults reported together, verl's layout."""

import json
from pathlib import Path

import pytest

from gxpo.base.errors import TaskError
from gxpo.environments.tasks import make
from gxpo.environments.tasks.file import read_tasks


def write(path: Path, *lines: object) -> str:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def test_all_rows_at_fault_are_told_together(tmp_path):
    path = tmp_path / "q.csv"
    path.write_text("prompt,answer\n" + "a, b,1\nc,2\n" * 5 + "d,\n,3\ne,4\n")
    with pytest.raises(TaskError) as raised:
        read_tasks(path)
    assert str(raised.value).startswith(
        f"{path}: 7 of 13 rows are at fault; line 2, line 4, line 6 and 2 more: has another number of cells than the "
        "heading: quote those with commas; line 12: field 'answer' must be"
    )
    assert "; line 13: field 'prompt' must be" in str(raised.value) and "\n" not in str(raised.value)
    path = tmp_path / "q.jsonl"
    path.write_text('{"prompt": "a"\n[]\n{"prompt": 1}\n{"prompt": ""}\n{"prompt": "b"}\n')
    with pytest.raises(
        TaskError, match=r"4 of 5 rows are at fault; line 1: not valid JSON .*; and 1 more kinds? of faults$"
    ):
        read_tasks(path)


def verl(truth, style="rule", **more):
    """Rows as verl's examples/data_preprocess write them; `truth`: number of the row -> ground truth."""
    return [
        {
            "data_source": "openai/gsm8k", "prompt": [{"role": "user", "content": f"what is {i}+1?"}],
            "ability": "math", "reward_model": {"style": style, "ground_truth": truth(i)}, "extra_info": {"index": i},
            **more,
        }
        for i in range(6)
    ]  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*tasks held out")
def test_columns_by_dotted_names(tmp_path):
    rows = [
        {"q": {"text": f"say {i}"}, "a": {"b": {"c": str(i)}, "all": [str(i), "x"]}, "a.d": "whole"} for i in range(6)
    ]
    path = write(tmp_path / "q.jsonl", *rows)

    def answers(answer, prompt="q.text"):
        source = make(path, seed=0, options={"prompt": prompt, "answer": answer})
        return {t.prompt: t.answer for t in (*source.training, *source.held_out(9))}

    assert answers("a.b.c") == answers("a.all.0") == {f"say {i}": str(i) for i in range(6)}
    assert set(answers("a.d").values()) == {"whole"}  # a column whose name has the dot in it
    wrong = {
        "a.b.ground": "'a.b' has c",
        "a.al": "no column 'a.al'; did you mean 'a.all'",
        "a.reference": "'a' has b, all",
        "a.d.x": "'a.d' is a text, without names in it",
        "a.all.5": "'a.all' is a list",
        "z.y": "there is q, a, a.d",
        "a.b": r"field 'a\.b' must be a text that is not empty or a number, not \{'c': '0'\}",
    }
    for name, message in wrong.items():
        with pytest.raises(TaskError, match=message):
            answers(name)
    task_source = make(path, seed=0, options={"prompt": "q.text", "answer": "a.b.c"}).training[0]
    assert task_source.info["a"]["b"]["c"] == task_source.answer  # what is read from within a column stays there


@pytest.mark.filterwarnings("ignore:.*tasks held out")
def test_verl_rows_get_the_ground_truth_or_a_reason(tmp_path):
    plain = [str(i) for i in range(6)]
    answered = {
        "text": (verl(str), plain),
        "number": (verl(int), plain),
        "style of dapo": (verl(str, "rule-lighteval/MATH_v2"), plain),
        "list of one": (verl(lambda i: [str(i)]), plain),
        "JSON of one": (verl(lambda i: json.dumps([str(i)])), plain),
        "interval": (verl(lambda i: f"[0, {i}]"), [f"[0, {i}]" for i in range(6)]),
    }
    refused = {
        "reward_model.ground_truth is a mapping of target": verl(lambda i: {"target": [str(i)]}),
        "reward_model.ground_truth is a mapping of inputs": verl(lambda i: json.dumps({"inputs": i})),
        "reward_model.ground_truth is a list of 2": verl(lambda i: [str(i), "x"]),
        "reward_model.ground_truth is ''": verl(lambda i: ""),
        "reward_model.style is 'model', not a rule": verl(str, "model"),
    }
    for name, (rows, expected) in answered.items():
        source = make(write(tmp_path / "v.jsonl", *rows), seed=0)
        actual = sorted(t.answer for t in (*source.training, *source.held_out(9)))
        assert actual == sorted(expected), name
        assert (
            source.training[0].info["reward_model"]
            == rows[int(source.training[0].info["extra_info"]["index"])]["reward_model"]
        )
    for message, rows in refused.items():
        with pytest.warns(UserWarning, match=f"of line 1 {message}.*no task has an answer"):
            source = make(write(tmp_path / "v.jsonl", *rows), seed=0)
        assert {t.answer for t in source.training} == {None}
    rows = verl(lambda i: {"target": [str(i)]})
    source = make(write(tmp_path / "v.jsonl", *rows), seed=0, options={"answer": "reward_model.ground_truth.target.0"})
    assert {t.answer for t in (*source.training, *source.held_out(9))} == set(plain)
    pictured = [
        {**row, "prompt": [{"role": "user", "content": "<image> what?"}]} for row in verl(str, images=["a.png"])
    ]
    with pytest.raises(TaskError, match="its prompt has <image> where verl puts what the column 'images' holds"):
        make(write(tmp_path / "v.jsonl", *pictured), seed=0)


@pytest.mark.filterwarnings("ignore:.*tasks held out")
def test_a_parquet_file_of_verl_is_read_as_it_is(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.Table.from_pylist(verl(str)), tmp_path / "t.parquet")
    source = make(str(tmp_path / "t.parquet"), seed=0)
    asked_answers = {t.prompt[0]["content"]: t.answer for t in (*source.training, *source.held_out(9))}
    assert asked_answers == {f"what is {i}+1?": str(i) for i in range(6)} and source.reward_default == "math"
