import pytest
from hypothesis import given
from hypothesis import strategies as st

from gxpo.base.errors import TaskError
from gxpo.environments.tasks.source import Arithmetic, score, worked_example
from gxpo.parts.protocols import Task


def task_of(a: int, operation: str, b: int) -> Task:
    result = {"+": a + b, "-": a - b, "*": a * b}[operation]
    return Task("t", f"{a}{operation}{b}=", str(result), {"a": a, "operation": operation, "b": b})


@pytest.mark.parametrize(
    ("a", "operation", "b", "expected"),
    [
        (37, "+", 48, "7+8=15,3+4+1=8#85"),
        (59, "+", 48, "9+8=17,5+4+1=10#107"),
        (10, "+", 20, "0+0=0,1+2=3#30"),
        (7, "+", 48, "7+8=15,0+4+1=5#55"),
        (123, "+", 989, "3+9=12,2+8+1=11,1+9+1=11#1112"),
        (83, "-", 37, "13-7=6,8-3-1=4#46"),
        (50, "-", 50, "0-0=0,5-5=0#0"),
        (100, "-", 99, "10-9=1,10-9-1=0,1-0-1=0#1"),
        (12, "*", 30, "12*0=0,12*30=360,0+360=360#360"),
    ],
)
def test_working_is_written_as_on_paper(a: int, operation: str, b: int, expected: str):
    assert worked_example(task_of(a, operation, b)) == expected


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from("+-*"))
def test_a_worked_example_is_correct_and_each_line_of_it_is_true(a: int, b: int, operation: str):
    a, b = max(a, b), min(a, b)
    task = task_of(a, operation, b)
    text = worked_example(task)
    assert score(text, task) == {"correct": 1.0, "format": 1.0}
    for line in text.partition("#")[0].split(","):
        left, right = line.split("=")
        assert eval(left) == int(right)  # our own text of digits and operators


@pytest.mark.parametrize(
    ("text", "correct", "well_formed"),
    [
        ("#85", 1, 1),
        ("7+8=15,3+4+1=8#85\n", 1, 1),
        ("nonsense is not working#85", 0, 0),
        ("7+8=1#85", 1, 1),  # the working is not judged
        ("#86", 0, 1),
        ("85", 0, 0),
        ("#085", 0, 1),
        ("#+85", 0, 0),
        ("#85#85", 0, 0),
        ("#85 ", 1, 1),
        ("#8 5", 0, 0),
        ("#85.", 0, 0),
        ("#", 0, 0),
        ("", 0, 0),
        ("#\u0668\u0665", 0, 0),  # Arabic digits, which int() would take
    ],
)
def test_score(text: str, correct: int, well_formed: int):
    assert score(text, task_of(37, "+", 48)) == {"correct": correct, "format": well_formed}


def test_an_author_who_errs_goes_on_from_what_was_written():
    # 7+8 is written as 9: no carry, so the tens are 3+4=7
    author = {"7+8": 9}
    text = worked_example(task_of(37, "+", 48), lambda question, value: author.get(question, value))
    assert text == "7+8=9,3+4=7#79"
    # written as 25, it carries one ten, as on paper
    text = worked_example(task_of(37, "+", 48), lambda question, value: 25 if question == "7+8" else value)
    assert text == "7+8=25,3+4+1=8#85"


@pytest.mark.parametrize(("digits", "operations"), [(1, "+"), (2, "+-"), (3, "+-*"), (5, "*")])
def test_operands_have_the_digits_asked_for(digits: int, operations: str):
    source = Arithmetic(seed=3, digits=digits, operations=operations)
    tasks = source.draw(40, 0) + source.held_out(40)
    for task in tasks:
        a, b, operation = task.info["a"], task.info["b"], task.info["operation"]
        assert len(str(a)) <= digits and len(str(b)) <= digits
        assert digits == 1 or len(str(a)) == len(str(b)) == digits
        assert task.prompt == f"{a}{operation}{b}="
        assert int(task.answer) == eval(f"{a}{operation}{b}") >= 0
    assert {t.info["operation"] for t in tasks} == set(operations)


@pytest.mark.slow
def test_sums_are_split_as_unordered_pairs():
    source = Arithmetic(seed=0)
    training = {frozenset((t.info["a"], t.info["b"])) for step in range(60) for t in source.draw(64, step)}
    held_out = {frozenset((t.info["a"], t.info["b"])) for t in source.held_out(3000)}
    assert not training & held_out
    # 8100 ordered pairs of two-digit numbers, about a quarter held out, all of them found
    assert 1700 < len(source.held_out(3000)) < 2300


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"digits": 0}, "digits must be from 1 to 18"),
        ({"digits": 2.5}, "'digits' must be int, not 2.5"),
        ({"digits": True}, "'digits' must be int, not True"),
        ({"operations": "+^"}, "must be some of"),
        ({"operations": ""}, "must be some of"),
    ],
)
def test_bad_options(options: dict, message: str):
    with pytest.raises(TaskError, match=message):
        Arithmetic(**options)
