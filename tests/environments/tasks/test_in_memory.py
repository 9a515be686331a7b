"""Rows that are Python objects, as the JSON Lines that a run keeps."""

import json

import numpy as np
import pandas
import pytest

from gxpo.base.errors import TaskError
from gxpo.environments.tasks.file import read_tasks
from gxpo.environments.tasks.in_memory import json_lines
from gxpo.environments.tasks.rows import Columns
from gxpo.parts.protocols import Task

ROWS = [{"prompt": "1+1=", "answer": 2, "level": 1}, {"prompt": "2+2=", "answer": 4, "level": 2}]


class Columnar(list):
    """What `datasets.Dataset` is to us: rows that are dicts, and names of columns."""

    column_names = ("prompt", "answer", "level")


def tasks(tmp_path, given, **columns):
    path = tmp_path / "tasks.jsonl"
    path.write_text(json_lines(given, Columns(**columns)))
    return read_tasks(path, Columns(**columns))


@pytest.mark.parametrize(
    "given",
    [
        ROWS,
        tuple(ROWS),
        Columnar(ROWS),
        iter(ROWS),
        pandas.DataFrame(ROWS),
        [Task("tasks/1", "1+1=", 2, {"level": 1}), Task("tasks/2", "2+2=", 4, {"level": 2})],
    ],
    ids=["list", "tuple", "data set", "iterator", "DataFrame", "Tasks"],
)
def test_rows_of_every_kind_are_the_same_tasks(tmp_path, given):
    first, second = tasks(tmp_path, given)
    assert (first.id, first.prompt, first.answer, first.info) == ("tasks/1", "1+1=", "2", {"level": 1, "answer": 2})
    assert (second.prompt, second.answer) == ("2+2=", "4")


def test_numpy_numbers_and_missing_pandas_values_become_plain(tmp_path):
    frame = pandas.DataFrame({"prompt": ["a", "b"], "score": [0.5, None], "n": np.array([1, 2])})
    first, second = tasks(tmp_path, [*frame.to_dict("records")[:1], {**frame.to_dict("records")[1], "v": np.ones(2)}])
    assert first.info == {"score": 0.5, "n": 1}
    assert second.info == {"score": None, "n": 2, "v": [1.0, 1.0]}
    assert first.answer is None


def test_messages_and_other_columns(tmp_path):
    chat = [{"role": "user", "content": "why?", "tool_calls": None}]
    (task,) = tasks(tmp_path, [{"question": chat, "truth": "so #### 4", "id": 7}], prompt="question", answer="truth",
                    answer_after="####")  # fmt: skip
    assert task == Task("7", ({"role": "user", "content": "why?"},), "4", {"id": 7})


@pytest.mark.parametrize(
    ("given", "columns", "message"),
    [
        ([], {}, "task: no tasks in it"),
        ({"prompt": "a"}, {}, r"one dict; give a list of them"),
        ("no.json", {}, "str is not a list of dicts"),
        (3, {}, "int is not a list of dicts"),
        (["1+1="], {}, r"task, row 0: must be a dict with 'prompt' and 'answer', not '1\+1='"),
        ([{"question": "a"}], {}, r"task: no column 'prompt'; there is question \(set tasks.options.prompt"),
        ([{"promt": "a"}], {}, "no column 'prompt'; did you mean 'promt'"),
        ([{"prompt": "a"}], {"answer": "truth"}, "no column 'truth'"),
        ([{"prompt": "a", "answer": 1}, {"prompt": "b"}], {}, "row 1: field 'answer' is missing"),
        ([{"prompt": "a", "answer": 1}, {"prompt": "b", "answer": None}], {}, "row 1: field 'answer' must be a text"),
        ([{"prompt": "a", "answer": ["b"]}], {}, "row 0: field 'answer' must be a text .* finds it in `info`"),
        ([{"prompt": ""}], {}, "row 0: field 'prompt' must be a text that is not empty"),
        ([{"prompt": [{"role": "user"}]}], {}, "must hold messages"),
        ([{"prompt": "a", "id": "x"}, {"prompt": "b", "id": "x"}], {}, "row 1: id 'x' is already that of row 0"),
        ([{"prompt": "a", "image": object()}], {}, "row 0, column 'image': object can't be written as JSON"),
        ([{"prompt": "a", "x": float("inf")}], {}, "column 'x': inf can't be written"),
        ([{"prompt": "a", 3: 1}], {}, "name of a column must be a text, not 3"),
        ([Task("t", (1, 2))], {}, "token ids"),
        ([{"prompt": "a"}], {"template": "x"}, "must contain {prompt}"),
        (
            {"train": Columnar(ROWS), "test": Columnar(ROWS)},
            {},
            r"give task=data\['train'\] and eval_task=data\['test'\]",
        ),
    ],
)
def test_what_is_no_task_is_said_in_one_line(given, columns, message):
    with pytest.raises(TaskError, match=message) as caught:
        json_lines(given, Columns(**columns))
    assert "\n" not in str(caught.value)


def test_a_stream_without_an_end_is_refused():
    class Stream:
        column_names = ("prompt",)

        def __iter__(self):
            raise AssertionError("never read")

    with pytest.raises(TaskError, match=r"list\(data.take\(1000\)\)"):
        json_lines(Stream(), Columns())


def test_every_line_is_json_again():
    text = json_lines([{"prompt": "\u2028 ü\n", "answer": "\u4e16"}], Columns())
    assert [json.loads(line) for line in text.split("\n")[:-1]] == [{"prompt": "\u2028 ü\n", "answer": "\u4e16"}]
