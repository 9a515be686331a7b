"""Small programs as tasks."""

from __future__ import annotations

import doctest

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.environments.rewards.scored_tasks import forest_of

import gxpo.environments.tasks.code as module
from gxpo.base.errors import TaskError
from gxpo.environments.rewards import RewardSet
from gxpo.environments.tasks.code import HIDDEN, Code, NotAnExpression, evaluate, expression, score


def test_tasks_depend_on_the_seed_and_the_split_holds():
    one, other = Code(seed=3), Code(seed=4)
    assert one.draw(8, 2) == Code(seed=3).draw(8, 2) == one.draw(12, 2)[:8] and one.draw(8, 2) != other.draw(8, 2)
    held_outs = {t.id for t in one.held_out(40)}
    assert len(held_outs) == 40 and held_outs == {t.id for t in other.held_out(40)}
    assert not held_outs & {t.id for step in range(20) for t in one.draw(16, step)}


def test_the_tests_are_hidden_and_the_answer_passes_them():
    for task in Code(slope=5).draw(30, 0):
        a, b = task.info["slope"], task.info["offset"]
        output = [int(part.split(")")[0][2:]) for part in task.prompt[:-1].split(",")]
        assert not set(output) & set(HIDDEN) and len(set(output)) == 2
        assert task.prompt == ",".join(f"f({x})={a * x + b}" for x in output) + ":"
        assert task.info["tests"] == [f"assert f({x}) == {a * x + b}" for x in HIDDEN]
        assert score(task.answer, task) == {"correct": 1.0, "format": 1.0}


def test_two_shown_values_determine_the_function():
    for task in Code(slope=9).draw(30, 1):
        (x, y), (u, v) = [[int(n) for n in part[2:].split(")=")] for part in task.prompt[:-1].split(",")]
        assert ((v - y) / (u - x), y - x * (v - y) / (u - x)) == (task.info["slope"], task.info["offset"])


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 9), st.integers(0, 9), st.integers(-20, 20))
def test_expressions_have_the_value_they_are_written_for(a, b, x):
    assert evaluate(expression(a, b), x) == a * x + b == eval(expression(a, b), {"x": x})


@pytest.mark.parametrize(
    "text", ["", "x**9", "__import__('os')", "x if x else 1", "y", "1.5", "x+" * 40 + "x", "True", "f(x)", "((", "1;2"]
)
def test_what_is_no_expression(text):
    with pytest.raises(NotAnExpression):
        evaluate(text, 1)
    assert score(text, Code().draw(1, 0)[0]) == {"correct": 0.0, "format": 0.0}


def test_the_sandbox_says_what_reading_says():
    source = Code(seed=1)
    tasks = [t for t in source.draw(3, 0) for _ in range(4)]
    texts = [x for t in tasks[::4] for x in (t.answer, f"{t.answer}+0*x", "x-1", "import os")]
    with RewardSet.make(None, source=source) as rewards:
        forest = rewards.score(forest_of(texts), texts, tasks)
    read = [score(text, task)["correct"] for text, task in zip(texts, tasks, strict=True)]
    assert forest.outcome.tolist() == read == forest.success.tolist() and 1.0 in read and 0.0 in read
    assert set(forest.component_names) == {"correct", "tests", "format"}


def test_in_words_a_function_is_asked_for_and_only_run_to_score():
    source = Code(style="words")
    assert source.scorer is None and Code().scorer is not None
    task = source.draw(1, 0)[0]
    assert "Write a Python function f(x) that returns" in task.prompt and "template" not in task.info
    texts = [source.worked_example(task), "```python\ndef f(x):\n    return None\n```"]
    with RewardSet.make(None, source=source) as rewards:
        assert rewards.score(forest_of(texts), texts, [task, task]).outcome.tolist() == [1, 0]


def test_values_alone_do_not_tell_the_function():
    for task in Code(style="values", slope=9).draw(10, 0):
        assert "linear in x" in task.prompt and "times" not in task.prompt and "plus" not in task.prompt
        assert task.id not in {t.id for t in Code(style="words", slope=9).draw(10, 0)}


def test_an_author_may_err():
    source = Code(seed=2, slope=9)
    task = source.draw(1, 0)[0]
    assert source.worked_example(task) == task.answer
    assert source.worked_example(task, lambda question, value: value + 1) == expression(
        task.info["slope"] + 1, task.info["offset"] + 1
    )


def test_wrong_options_and_doctests():
    for wrong in ({"style": "loud"}, {"slope": -1}, {"offset": 100}, {"slope": "3"}):
        with pytest.raises(TaskError, match="task 'code'"):
            Code(**wrong)
    assert doctest.testmod(module).failed == 0
