import itertools
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gxpo.base.errors import TaskError
from gxpo.environments.tasks.countdown import Countdown, NotAnExpression, evaluate, score, worked_example
from gxpo.parts.protocols import Task


def task_of(numbers: list[int], target: int, use_all: bool = True) -> Task:
    return Task("t", "", "", {"numbers": numbers, "target": target, "use_all": use_all, "steps": []})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("7", 7),
        ("2+3*4", 14),
        ("(2+3)*4", 20),
        ("20-3-4", 13),
        ("24/4/3", 2),
        ("24/(4/3)", 18),
        ("1/3", Fraction(1, 3)),
        (" ( 1 + 2 ) * 3 ", 9),
        ("((((5))))", 5),
    ],
)
def test_values(text: str, value: int | Fraction):
    assert evaluate(text)[0] == value


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "()", "1+", "+1", "-1", "1 2", "(1", "1)", "2(3)", "a", "1e3", "1.5", "\u0663"),
        *("2**3", "2//1", "1/0", "1/(2-2)"),
        # code, parentheses deeper than Python's stack, more characters than are looked at
        *("__import__('os')", "(" * 5000, "1+" * 101 + "1"),
    ],
)
def test_what_is_no_expression(text: str):
    with pytest.raises(NotAnExpression):
        evaluate(text)


expressions = st.recursive(
    st.integers(0, 30).map(str),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda t: f"({t[0]}{t[1]}{t[2]})"),
    max_leaves=8,
)


@given(expressions)
def test_values_agree_with_python(text: str):
    # Fractions in Python's own grammar, as an independent evaluator of a text made here
    numbers = "".join(c if c.isdigit() else " " for c in text).split()
    python = "".join(
        f"Fraction({''.join(run)})" if digit else "".join(run) for digit, run in itertools.groupby(text, str.isdigit)
    )
    try:
        expected = eval(python, {"Fraction": Fraction})
    except ZeroDivisionError:
        with pytest.raises(NotAnExpression):
            evaluate(text)
        return
    assert evaluate(text) == (expected, Counter(map(int, numbers)))


@pytest.mark.parametrize(
    ("text", "use_all", "correct", "well_formed"),
    [
        ("#(7-3)*2", True, 1, 1),
        ("#2*(7-3)", True, 1, 1),  # any correct expression
        ("7-3=4,4*2=8#(7-3)*2", True, 1, 1),
        ("#7+3-2", True, 1, 1),
        ("#7*3-2", True, 0, 1),
        ("#2*2*2", True, 0, 1),  # a number used three times
        ("#8", True, 0, 1),  # a number that was not given
        ("#3+3+2", True, 0, 1),
        ("#3*2+2", False, 0, 1),
        ("(7-3)*2", True, 0, 0),
        ("#(7-3)*2=8", True, 0, 0),
        ("#(7-3*2", True, 0, 0),
        ("##(7-3)*2", True, 0, 0),
        ("", True, 0, 0),
    ],
)
def test_score(text: str, use_all: bool, correct: int, well_formed: int):
    assert score(text, task_of([2, 3, 7], 8, use_all)) == {"correct": correct, "format": well_formed}


def test_use_all_decides_whether_numbers_may_be_left_out():
    assert score("#3+7", task_of([2, 3, 7], 10, use_all=True))["correct"] == 0
    assert score("#3+7", task_of([2, 3, 7], 10, use_all=False))["correct"] == 1


@pytest.mark.parametrize("options", [{}, {"count": 2}, {"count": 5, "operations": "+-*/"}, {"operations": "-"}])
def test_every_task_has_the_solution_it_was_made_with(options: dict):
    source = Countdown(seed=5, **options)
    for task in source.draw(60, 2) + source.held_out(60):
        assert score(f"#{task.answer}", task)["correct"] == 1
        text = worked_example(task)
        assert score(text, task) == {"correct": 1.0, "format": 1.0}
        for line in text.partition("#")[0].split(","):
            left, right = line.split("=")
            assert evaluate(left)[0] == int(right) >= 0
        numbers = ",".join(map(str, task.info["numbers"]))
        assert task.prompt == f"{numbers}={task.info['target']}:"


def test_contents_ignore_the_order_of_the_numbers():
    source = Countdown(seed=0)
    training = {(*sorted(t.info["numbers"]), t.info["target"]) for s in range(40) for t in source.draw(64, s)}
    held_out = {(*sorted(t.info["numbers"]), t.info["target"]) for t in source.held_out(1500)}
    assert len(held_out) > 500 and not training & held_out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"count": 1}, "count must be from 2"),
        ({"maximum": 1}, "maximum must be from 2"),
        ({"operations": "/"}, "one of"),
        ({"operations": "%"}, "one of"),
        ({"use_all": 1}, "'use_all' must be bool"),
    ],
)
def test_bad_options(options: dict, message: str):
    with pytest.raises(TaskError, match=message):
        Countdown(**options)
