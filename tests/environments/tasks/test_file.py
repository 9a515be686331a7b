import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gxpo.base.errors import TaskError
from gxpo.environments.tasks import make
from gxpo.environments.tasks.file import read_tasks


def write(path: Path, *lines: object) -> str:
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return str(path)


def questions(first: int, last: int) -> list[dict]:
    return [{"prompt": f"What is {i}?", "answer": i} for i in range(first, last)]


def test_a_line_is_a_task(tmp_path):
    path = write(
        tmp_path / "q.jsonl",
        {"prompt": "1+1?", "answer": "2", "id": "one", "level": 3},
        "",
        {"prompt": "half?\u2028", "answer": 0.5},
    )
    first, second = read_tasks(Path(path))
    assert (first.id, first.prompt, first.answer, first.info) == ("one", "1+1?", "2", {"level": 3})
    assert (second.id, second.answer, second.info) == ("q/3", "0.5", {"answer": 0.5})


def test_a_tilde_is_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "q.jsonl", {"prompt": "1+1?", "answer": "2"})
    assert [task.id for task in read_tasks(Path("~/q.jsonl"))] == ["q/1"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"prompt": "a", "answer": "b"', "line 2: not valid JSON"),
        ('["a", "b"]', "line 2: must be an object"),
        ('{"answer": "b"}', "line 2: field 'prompt'"),
        ('{"prompt": "", "answer": "b"}', "line 2: field 'prompt'"),
        ('{"prompt": 3, "answer": "b"}', "line 2: field 'prompt'"),
        ('{"prompt": "a"}', "line 2: field 'answer'"),
        ('{"prompt": "a", "answer": null}', "line 2: field 'answer'"),
        ('{"prompt": "a", "answer": true}', "line 2: field 'answer'"),
        ('{"prompt": "a", "answer": ["b"]}', "line 2: field 'answer'"),
        ('{"prompt": "a", "answer": NaN}', "line 2: not valid JSON"),
        ('{"prompt": "a \\ud800", "answer": "b"}', "line 2: not valid JSON .*surrogate"),
        ('{"prompt": "a", "answer": ' + "9" * 5000 + "}", "line 2: not valid JSON .*5000 digits"),
        ('{"prompt": "a", "answer": ' + "[" * 10**5, "line 2: not valid JSON .*recursion"),
        ('{"prompt": "a", "answer": "b", "id": 4.5}', "line 2: field 'id'"),
        ('{"prompt": "a", "answer": "b", "id": "q"}', "line 2: id 'q' is already that of line 1"),
    ],
)
def test_a_malformed_line_is_named(tmp_path, line, message):
    path = write(tmp_path / "q.jsonl", {"prompt": "x", "answer": "y", "id": "q"}, line)
    with pytest.raises(TaskError, match=message) as caught:
        make(path, seed=0)
    assert path in str(caught.value) and "\n" not in str(caught.value)


def test_files_that_can_not_be_used(tmp_path):
    with pytest.raises(TaskError, match="no such file"):
        make(str(tmp_path / "none.jsonl"), seed=0)
    with pytest.raises(TaskError, match="no tasks in it"):
        make(write(tmp_path / "empty.jsonl", "", "  "), seed=0)
    (tmp_path / "bytes.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TaskError, match="UTF-8"):
        make(str(tmp_path / "bytes.jsonl"), seed=0)
    (tmp_path / "folder.jsonl").mkdir()
    os.mkfifo(tmp_path / "pipe.jsonl")  # reading it would wait for a writer
    for name in ("folder.jsonl", "pipe.jsonl"):
        with pytest.raises(TaskError, match=f"{name}: not a file"):
            make(str(tmp_path / name), seed=0)
    with pytest.raises(TaskError, match=r"leaves no (training|held-out) task"):
        make(write(tmp_path / "one.jsonl", {"prompt": "a", "answer": "b"}), seed=0)


def test_a_share_of_the_prompts_is_held_out_for_every_seed(tmp_path):
    path = write(tmp_path / "q.jsonl", *questions(0, 400), *[{**q, "answer": "again"} for q in questions(0, 50)])
    source = make(path, seed=0, options={"held_out_fraction": 0.25})
    held_out = source.held_out(10**6)
    assert 0.17 * 450 < len(held_out) < 0.33 * 450
    assert make(path, seed=9, options={"held_out_fraction": 0.25}).held_out(10**6) == held_out
    drawn_prompts = {t.prompt for step in range(30) for t in source.draw(32, step)}
    assert not drawn_prompts & {t.prompt for t in held_out}
    assert len(drawn_prompts | {t.prompt for t in held_out}) == 400


def test_a_second_file_is_held_out(tmp_path):
    training = write(tmp_path / "train.jsonl", *questions(0, 5))
    held_out = write(tmp_path / "test.jsonl", *questions(5, 8))
    source = make(training, seed=0, options={"held_out": held_out}, per_step=5)
    assert [t.answer for t in source.held_out(2)] == ["5", "6"]
    assert sorted(t.answer for t in source.draw(5, 0)) == ["0", "1", "2", "3", "4"]
    with pytest.raises(TaskError, match=r"task 'test/1' is also in"):
        make(held_out, seed=0, options={"held_out": held_out})


@given(seed=st.integers(0, 2**31), per_step=st.integers(1, 12), more=st.integers(0, 20))
@settings(max_examples=25, deadline=None)
def test_epochs_see_every_task_once(tmp_path_factory, seed, per_step, more):
    folder = tmp_path_factory.mktemp("epochs")
    held_out = write(folder / "test.jsonl", {"prompt": "held out", "answer": "1"})
    path = write(folder / "train.jsonl", *questions(0, 30))
    source = make(path, seed=seed, options={"held_out": held_out}, per_step=per_step)
    order = [t.id for step in range(1, 61) for t in source.draw(per_step, step)]
    for epoch in range(len(order) // 30):
        assert len(set(order[30 * epoch : 30 * (epoch + 1)])) == 30
    assert source.draw(per_step + more, 7)[:per_step] == source.draw(per_step, 7)


def test_orders_differ_between_epochs_and_seeds(tmp_path):
    held_out = write(tmp_path / "test.jsonl", {"prompt": "held out", "answer": "1"})
    path = write(tmp_path / "train.jsonl", *questions(0, 30))
    first, second = (make(path, seed=s, options={"held_out": held_out}, per_step=30) for s in (0, 1))
    assert first.draw(30, 1) != first.draw(30, 2) != second.draw(30, 2)
    assert first.draw(30, 1) != second.draw(30, 1)


def test_scoring_is_left_to_a_named_reward(tmp_path):
    source = make(write(tmp_path / "q.jsonl", *questions(0, 100)), seed=0)
    assert source.scorer is None and source.reward_default == "math"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"held_out_fraction": 0}, "between 0 and 1"),
        ({"held_out_fraction": "0.1"}, "must be float or int"),
        ({"heldout": "x"}, "did you mean 'held_out'"),
    ],
)
def test_bad_options(tmp_path, options, message):
    path = write(tmp_path / "q.jsonl", *questions(0, 100))
    with pytest.raises(TaskError, match=message):
        make(path, seed=0, options=options)


def test_csv_and_parquet_hold_the_same_tasks(tmp_path):
    import pyarrow
    import pyarrow.parquet

    rows = [{"question": f'What, is\n"{i}"?', "answer": str(i), "level": str(i % 3)} for i in range(20)]
    lines = [f'"What, is\n""{i}""?",{i},{i % 3}' for i in range(20)]
    (tmp_path / "q.csv").write_text("\ufeffquestion,answer,level\n" + "\n".join(lines) + "\n", encoding="utf-8")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "q.parquet")
    write(tmp_path / "q.jsonl", *rows)
    held_out = write(tmp_path / "held.jsonl", {"question": "else?", "answer": "1"})
    texts = [
        make(str(tmp_path / f"q.{kind}"), seed=0, options={"prompt": "question", "held_out": held_out}, per_step=5)
        for kind in ("csv", "parquet", "jsonl")
    ]
    drawn_sources = [source.draw(5, 3) for source in texts]
    assert len(drawn_sources[0]) == 5 and {t.prompt for t in drawn_sources[0]} <= {r["question"] for r in rows}
    for other in drawn_sources[1:]:
        assert [(t.prompt, t.answer, t.info) for t in drawn_sources[0]] == [(t.prompt, t.answer, t.info) for t in other]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("q.csv", b"prompt,answer\n1+1=,2,3\n", "q.csv, line 2: has another number of cells"),
        ("q.csv", b"prompt,answer\n1+1=\n", "q.csv, line 2: has another number of cells"),
        ("q.csv", b"prompt,answer\n", "q.csv: no tasks in it"),
        ("q.csv", b"", "q.csv: no tasks in it"),
        ("q.csv", b'prompt,answer\n"1+1=,2\n', "not valid CSV"),
        ("q.csv", b"question,answer\na,b\n", "no column 'prompt'; there is question, answer"),
        ("q.parquet", b"no parquet", "q.parquet: can't be read as parquet"),
    ],
)
def test_files_of_other_kinds_that_can_not_be_used(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TaskError, match=message) as caught:
        make(str(tmp_path / name), seed=0)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("n", [2, 3, 8])
def test_a_few_tasks_are_split_too(tmp_path, n):
    path = write(tmp_path / "q.jsonl", *questions(0, n))
    with pytest.warns(UserWarning, match=f"of {n} tasks held out.*held_out_fraction.*eval_task"):
        source = make(path, seed=0)
    held_out = {t.id for t in source.held_out(10)}
    assert 1 <= len(held_out) < n
    assert held_out | {t.id for t in source.draw(64, 0)} == {f"q/{i}" for i in range(1, n + 1)}
    assert not held_out & {t.id for t in source.draw(64, 0)}


def test_tasks_need_no_answers(tmp_path):
    held_out = write(tmp_path / "held.jsonl", {"prompt": "b", "answer": "1"})
    source = make(write(tmp_path / "q.jsonl", {"prompt": "a"}), seed=0, options={"held_out": held_out})
    assert source.draw(1, 0)[0].answer is None and source.unanswered.id == "q/1"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("q.csv", b"prompt;answer\n1+1=;2\n", r"q\.csv: cells are separated by ';', not by commas"),
        ("q.csv", b'"prompt";"answer"\n"1, 2";2\n', r"q\.csv: cells are separated by ';'"),
        ("q.csv", b"prompt\tanswer\n1+1=\t2\n", r"q\.csv: cells are separated by '\\t'"),
        (
            "q.csv",
            "prompt,answer\nQu\u00e9?,2\n".encode("latin-1"),
            r"looks like latin-1 \(byte 0xe9 in line 2\): convert",
        ),
        ("q.csv", "prompt,answer\nit\u2019s,2\n".encode("cp1252"), r"looks like windows-1252 \(byte 0x92 in line 2\)"),
        (
            "q.csv",
            "prompt,answer\n1,2\n".encode("utf-16"),
            r"looks like UTF-16 .*iconv -f UTF-16 -t utf-8 q\.csv > q-utf8\.csv",
        ),
        ("q.jsonl", '{"prompt": "\u00e9"}'.encode("latin-1"), r"looks like latin-1 \(byte 0xe9 in line 1\)"),
        ("q.csv", b"PK\x03\x04\xff\x00", r"q\.csv: is no text: byte 0xff in line 1"),
    ],
)
def test_another_separator_or_encoding_is_named(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(TaskError, match=message) as raised:
        read_tasks(path)
    assert "\n" not in str(raised.value)


def _bombs(folder: Path) -> dict[str, str]:
    """Files that are small and hold, or promise, more than memory does; what the error says of each."""
    import pyarrow as arrow
    from pyarrow import parquet

    def constant(text: str, n: int) -> arrow.Array:
        return arrow.DictionaryArray.from_arrays(arrow.array([0] * n, arrow.int32()), arrow.array([text]))

    def table(name: str, **columns: object) -> None:
        parquet.write_table(arrow.table(columns), folder / name, compression="zstd")

    table("rows.parquet", prompt=constant("p", 1_500_000), answer=constant("4", 1_500_000))
    table("fat.parquet", prompt=constant("p" * 1_000_000, 20_000), answer=constant("4", 20_000))
    table("one.parquet", prompt=["p" * 270_000_000], answer=["4"])
    message = [{"role": "user", "content": "q" * 100_000}]
    table("nested.parquet", prompt=[message] * 2_800, answer=["4"] * 2_800)
    table("wide.parquet", **{f"c{i}": [1] for i in range(10_001)})
    (folder / "cut.parquet").write_bytes((folder / "rows.parquet").read_bytes()[:-30])
    (folder / "wide.csv").write_text(",".join(f"c{i}" for i in range(200_000)) + "\n")
    (folder / "names.csv").write_text(",".join(f"c{i}" for i in range(3_000)) + "\n" + "1," * 2_999 + "1\n")
    (folder / "many.csv").write_text("a," * 20_000 + "b\n")
    (folder / "marks.csv").write_text(";" * 200_000 + "\n")
    (folder / "heading.csv").write_text("x" * 200_000 + ",answer\n1,2\n")
    (folder / "cell.csv").write_text("prompt,answer\n" + "x" * 200_000 + ",2\n")
    (folder / "deep.jsonl").write_text('{"prompt": ' + "[" * 100_000 + "]" * 100_000 + "}\n")
    with open(folder / "sparse.jsonl", "wb") as file:
        file.truncate(1 << 40)
    os.mkfifo(folder / "pipe.jsonl")
    os.mkfifo(folder / "pipe.parquet")
    return {
        "rows.parquet": "promises 3,000,000 values in",
        "fat.parquet": "hold more than 268,435,456, which are not read",
        "one.parquet": "promises 270,",
        "nested.parquet": "hold more than 268,435,456, which are not read",
        "wide.parquet": "has 10,001 columns, and at most 10,000 are read",
        "cut.parquet": "can't be read as parquet",
        "wide.csv": "its heading has 1,488,889 characters, and at most 1,048,576 are read",
        "names.csv": "c39 and 2,960 more",
        "many.csv": "has 20,001 columns, and at most 10,000 are read",
        "marks.csv": "cells are separated by ';'",
        "heading.csv": "line 1: not valid CSV (field larger than field limit",
        "cell.csv": "not valid CSV (field larger than field limit",
        "deep.jsonl": "line 1: not valid JSON",
        "sparse.jsonl": "has 1,099,511,627,776 bytes, and at most 4,294,967,296 are read",
        "pipe.jsonl": "not a file",
        "pipe.parquet": "not a file",
    }


READ = """
import resource, sys
from pathlib import Path
import pyarrow.parquet
from gxpo.base.errors import TaskError
from gxpo.environments.tasks.file import read_tasks
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        print(path.name, len(read_tasks(path)), "tasks", flush=True)
    except TaskError as error:
        print(path.name, str(error)[:600].replace("\\n", " "), flush=True)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
def test_small_files_with_huge_content_are_errors(tmp_path):
    pytest.importorskip("pyarrow")
    expected = _bombs(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", READ, str(tmp_path)], capture_output=True, text=True, timeout=100, check=True
    )
    *lines, peak = done.stdout.splitlines()
    actual = dict(line.split(" ", 1) for line in lines)
    assert [(name, actual.get(name)) for name, why in expected.items() if why not in actual.get(name, "")] == []
    assert int(peak) < 500_000  # KiB


def test_repeated_rows_of_parquet_are_read_unchanged(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    system = "s" * 3_000
    rows = [
        {"prompt": [{"role": "system", "content": system}, {"role": "user", "content": f"{i}?"}], "answer": str(i),
         "source": None if i % 3 else "math", "n": i, "raw": f"\u00e9{i % 2}".encode(), "tags": ["a"] * (i % 3)}
        for i in range(1_000)
    ]  # fmt: skip
    parquet.write_table(arrow.Table.from_pylist(rows), tmp_path / "chat.parquet", row_group_size=300)
    tasks = read_tasks(tmp_path / "chat.parquet")
    assert [dict(task.prompt[1]) for task in tasks] == [dict(row["prompt"][1]) for row in rows]
    assert [task.answer for task in tasks] == [row["answer"] for row in rows]
    assert [dict(task.info) for task in tasks] == [{k: row[k] for k in ("source", "n", "raw", "tags")} for row in rows]
    assert all(task.prompt[0]["content"] is tasks[0].prompt[0]["content"] for task in tasks)  # one object
