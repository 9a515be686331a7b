"""`Rollouts` of rows, and values of any JSON as texts and numbers."""

import math

import numpy as np
import pytest

from gxpo.doctor.rollouts import Row, assemble, completion_text, first_reference, integer, number, reference, text

NAN = float("nan")


def test_rows_are_ordered_by_step_evaluation_and_group():
    rows = [
        Row(2, "p", "a", 1.0, group="x"),
        Row(1, "p", "b", 2.0, group="y", held_out=True),
        Row(1, "p", "c", 3.0, group="x"),
        Row(1, "p", "d", 4.0, group="y"),
        Row(1, "p", "e", 5.0, group="x"),
        Row(1, "p", "f", 6.0),
    ]
    sample = assemble(rows, 3, "recorded")
    assert sample is not None
    assert sample.completion == ["c", "e", "d", "f", "b", "a"]
    assert sample.group.tolist() == [0, 0, 1, -1, 2, 3]  # x of step 2 is another group than x of step 1
    assert sample.total == 6 and len(sample) == 6  # there are at least those that were read
    assert assemble([], 0, "recorded") is None


def test_components_that_a_row_lacks_are_unknown():
    rows = [Row(1, "p", "a", 1.0, 0, {"f": 0.5}), Row(1, "p", "b", 0.0, 0, {"g": 1.0})]
    sample = assemble(rows, 2, "recorded")
    assert sample is not None and list(sample.components) == ["f", "g"]
    assert np.isnan(sample.components["f"]).tolist() == [False, True]


def test_rows_are_selected_by_mask_and_by_index():
    sample = assemble([Row(1, f"p{i}", f"c{i}", float(i), i, reference=str(i)) for i in range(4)], 9, "prompt")
    assert sample is not None
    some = sample.select(np.array([True, False, True, False]))
    assert some.prompt == ["p0", "p2"] and some.reference == ["0", "2"] and some.total == 9
    assert sample.select([3, 1]).completion == ["c3", "c1"] and sample.select([3, 1]).grouped_by == "prompt"


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1, 1.0), (True, 1.0), ("0.5", 0.5), ("x", NAN), (None, NAN), ([1], NAN), (math.inf, NAN), ("1e999", NAN)],
)
def test_numbers_are_finite_or_unknown(value, expected):
    assert number(value) == expected or (math.isnan(number(value)) and math.isnan(expected))


def test_integers_have_a_default():
    assert integer("7") == 7 and integer(2.9) == 2
    assert integer(None) == -1 and integer("x", 0) == 0 and integer(1e300, 5) == 5


USER, SYSTEM = {"role": "user", "content": "Q"}, {"role": "system", "content": "S"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("plain", "plain"),
        (None, ""),
        ([USER], "Q"),
        (USER, "Q"),
        ([SYSTEM, USER], "system: S\n\nuser: Q"),
        ([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image"}, "b"]}], "ab"),
        ({"a": 1}, '{"a": 1}'),
    ],
)
def test_a_conversation_becomes_text(value, expected):
    assert text(value) == expected


def test_a_completion_is_what_the_assistant_wrote():
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}]}
    answer = {"role": "assistant", "content": "3"}
    assert completion_text([call, {"role": "tool", "content": "3"}, answer]) == 'add({"a": 1})\n\n3'
    assert completion_text("text") == "text" and completion_text([]) == ""


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("12", "12"),
        (12, "12"),
        (12.0, "12"),
        (0.5, "0.5"),
        (True, "true"),
        ([7], "7"),
        ({"ground_truth": [7]}, "7"),
        ({"other": 7}, '{"other": 7}'),
        (["a", "b"], '["a", "b"]'),
        (None, None),
        (NAN, None),
    ],
)
def test_a_reference_becomes_text(value, expected):
    assert reference(value) == expected


def test_the_column_of_references_is_known_by_its_name():
    assert first_reference(["prompt", "Solution", "answer"]) == "answer"
    assert first_reference(["prompt", "Solution"]) == "Solution"
    assert first_reference(["prompt", "solution_steps"]) is None
