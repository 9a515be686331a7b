"""Tasks with pictures: what is drawn is what is asked for, and the blank picture tells nothing."""

from __future__ import annotations

import numpy as np
import pytest

from gxpo.base.errors import TaskError
from gxpo.base.media import PICTURES
from gxpo.environments.tasks import make
from gxpo.environments.tasks.source import solution_of
from gxpo.parts.protocols import Task


def seen(task: Task) -> tuple[np.ndarray, str]:
    """Pixels and text of a task's question."""
    (message,) = task.prompt
    image, text = message["content"]
    assert (message["role"], image["type"], text["type"]) == ("user", "image", "text")
    return PICTURES.pixels(image["image"]).astype(int), text["text"]


@pytest.mark.parametrize("name", ["charts", "shapes"])
def test_a_blank_picture_tells_nothing_and_asks_the_same(name):
    with_pictures, blank = (make(name, seed=0, options={"blank": b, "noise": 5}).draw(30, 0) for b in (False, True))
    assert [(t.id, t.answer, seen(t)[1]) for t in with_pictures] == [(t.id, t.answer, seen(t)[1]) for t in blank]
    for task in blank:
        pixels, _ = seen(task)
        assert pixels.max() - pixels.min() <= 10
    assert all(seen(t)[0].max() - seen(t)[0].min() > 100 for t in with_pictures)


@pytest.mark.parametrize("name", ["charts", "shapes"])
def test_shuffled_pictures_keep_question_and_answer(name):
    own_value, other = (make(name, seed=0, options={"shuffled": b}).draw(40, 0) for b in (False, True))
    assert [(t.id, t.answer, seen(t)[1], t.info) for t in own_value] == [
        (t.id, t.answer, seen(t)[1], t.info) for t in other
    ]
    assert not any(np.array_equal(seen(a)[0], seen(b)[0]) for a, b in zip(own_value, other, strict=True))
    output = {t.prompt[0]["content"][0]["image"] for t in other}
    assert len(output) == 40 and not output & {t.prompt[0]["content"][0]["image"] for t in own_value}
    held_out = (make(name, seed=0, options={"shuffled": b}).held_out(8) for b in (False, True))
    assert len({tuple((t.id, t.answer) for t in tasks) for tasks in held_out}) == 1


@pytest.mark.parametrize("name", ["charts", "shapes"])
def test_worked_examples_are_right_and_planted_errors_wrong(name):
    source = make(name, seed=3)
    for task in source.draw(30, 0):
        assert source.scorer(solution_of(source, task), task)["correct"] == 1.0
        wrong = source.scorer(source.worked_example(task, lambda question, value: value + 1), task)
        assert (wrong["correct"], wrong["format"]) == (0.0, 1.0)


@pytest.mark.parametrize("name", ["charts", "shapes"])
def test_pictures_follow_the_number_of_the_task_alone(name):
    first, again = make(name, seed=4).draw(5, 2), make(name, seed=4).draw(5, 2)
    assert first == again and len({t.prompt[0]["content"][0]["image"] for t in first}) == 5


@pytest.mark.parametrize(
    ("name", "options", "match"),
    [
        ("charts", {"questions": ["valu"]}, "did you mean 'value'"),
        ("charts", {"questions": []}, "questions must name some of value, larger, count"),
        ("charts", {"bars": 7}, "bars must be from 2 to 6, not 7"),
        ("charts", {"tick": 0}, "tick must be from 1 to 3"),
        ("charts", {"noise": 101}, "noise must be from 0 to 100"),
        ("charts", {"scale": True}, "'scale' must be int"),
        ("charts", {"bar": 3}, "did you mean 'bars'"),
        ("shapes", {"questions": ["color"]}, "did you mean 'colour'"),
    ],
)
def test_options_that_make_no_sense(name, options, match):
    with pytest.raises(TaskError, match=match) as caught:
        make(name, seed=0, options=options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["charts", "shapes"])
def test_a_pool_of_pictures_is_fixed_and_repeats_evenly(name):
    one, other = (make(name, seed=seed, options={"pool": 5, "noise": 0}, per_step=5) for seed in (3, 4))
    assert one.pool_tasks == other.pool_tasks and len({t.id for t in one.pool_tasks}) == 5
    drawn_values = [t.id for t in one.draw(15, 2)]
    assert sorted(drawn_values) == sorted(3 * [t.id for t in one.pool_tasks])
    assert drawn_values != [t.id for t in one.draw(15, 3)] and [t.id for t in other.draw(15, 2)] != drawn_values
    assert one.held_out(6) == make(name, seed=0, options={"noise": 0}).held_out(6)
    assert not {t.id for t in one.held_out(6)} & set(drawn_values)
    assert one.scorer(one.pool_tasks[0].answer, one.pool_tasks[0])["correct"] == 1.0


def test_a_pool_keeps_what_a_source_does_to_its_training_tasks():
    messages = make("shapes", seed=0, options={"pool": 20, "told": 1.0})
    assert all(seen(t)[1].startswith(f"{t.answer}. ") for t in messages.draw(20, 1))
    assert not any(t.info.get("told") for t in messages.held_out(20))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "pool", "match"),
    [
        ("shapes", 0, "'pool' must be a number of instances, not 0"),
        ("shapes", True, "not True"),
        ("arithmetic", 200, r"has only \d+ different training instances: lower tasks\.options\.pool"),
    ],
)
def test_a_pool_that_cannot_be_is_refused(name, pool, match):
    with pytest.raises(TaskError, match=match):
        make(name, seed=0, options={"pool": pool, **({"digits": 1} if name == "arithmetic" else {})})
