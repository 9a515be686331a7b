from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.thorough import SLOW, some

from gxpo.base.errors import TaskError
from gxpo.base.media import PICTURES
from gxpo.environments.tasks import Arithmetic, make
from gxpo.environments.tasks.source import fraction_of, is_reserved, solution_of, stream
from gxpo.parts.protocols import Task

OWN = [
    ("arithmetic", {}), ("arithmetic", {"digits": 3, "operations": "+-*"}), ("countdown", {"count": 4}),
    ("shapes", {"questions": ["count", "same"], "cell": 2}), ("charts", {"noise": 0}),
]  # fmt: skip


def test_streams_depend_on_the_key_alone():
    first = stream(1, 2, 3).random(4)
    np.random.seed(0)
    random.seed(0)
    assert (stream(1, 2, 3).random(4) == first).all()
    others = [stream(1, 2, 4), stream(1, 2), stream(1, 3, 2), stream(0, 1, 2, 3)]
    assert all((other.random(4) != first).all() for other in others)


def test_the_split_is_fixed():
    # a change here changes every held-out set
    assert fraction_of("37+48") == int.from_bytes(bytes.fromhex("d0d4c3ec29c3edb8"), "big") / 2**64
    assert 0.22 < sum(is_reserved(str(i)) for i in range(4000)) / 4000 < 0.28


@pytest.mark.parametrize(("name", "options"), OWN)
@given(seed=st.integers(0, 2**31), step=st.integers(0, 10**6), n=st.integers(0, 12), more=st.integers(0, 12))
@settings(max_examples=20, deadline=None)
def test_a_draw_depends_on_seed_and_step_and_begins_longer_ones(name, options, seed, step, n, more):
    source = make(name, seed=seed, options=options)
    longer = source.draw(n + more, step)
    source.draw(3, step + 1)  # what else was drawn does not matter
    assert source.draw(n, step) == longer[:n]
    assert make(name, seed=seed, options=options).draw(n + more, step) == longer


@pytest.mark.parametrize(("name", "options"), OWN)
def test_steps_and_seeds_draw_different_tasks(name, options):
    source = make(name, seed=0, options=options)
    draws = [source.draw(16, 0), source.draw(16, 1), make(name, seed=1, options=options).draw(16, 0)]
    ids = [[t.id for t in tasks] for tasks in draws]
    assert ids[0] != ids[1] and ids[0] != ids[2] and ids[1] != ids[2]
    for tasks in ids:
        assert len(set(tasks)) == len(tasks)


@pytest.mark.parametrize(("name", "options"), some(OWN, OWN[:3], SLOW))
def test_held_out_tasks_are_fixed_and_never_drawn(name, options):
    held_out = make(name, seed=0, options=options).held_out(200)
    assert len({t.id for t in held_out}) == 200
    assert make(name, seed=7, options=options).held_out(200) == held_out
    assert make(name, seed=7, options=options).held_out(10) == held_out[:10]
    source = make(name, seed=7, options=options)
    drawn_contents = {source.content(t) for step in range(20) for t in source.draw(64, step)}
    assert not drawn_contents & {source.content(t) for t in held_out}


@pytest.mark.slow
def test_a_small_generator_repeats_tasks_and_holds_out_all():
    source = Arithmetic(digits=1)  # 100 ordered pairs
    held_out = source.held_out(1000)
    expected = {(a, b) for a in range(10) for b in range(10) if fraction_of(f"{min(a, b)}+{max(a, b)}") < 0.25}
    assert {(t.info["a"], t.info["b"]) for t in held_out} == expected
    tasks = source.draw(200, 0)
    assert len(tasks) == 200 and len({t.id for t in tasks}) == 100 - len(expected)


def test_own_sources_keep_no_state():
    source = make("arithmetic", seed=0)
    assert source.state_dict() == {}
    source.load_state_dict({})
    with pytest.raises(TaskError, match="cursor"):
        source.load_state_dict({"cursor": 3})


def test_a_negative_seed_is_refused():
    with pytest.raises(TaskError, match="seed must not be negative, not -1"):
        make("arithmetic", seed=-1)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("arithmetics", {}, "did you mean 'arithmetic'"),
        ("zzz", {}, "reasoning_gym:GENERATOR"),
        ("reasoning_gym", {}, "reasoning_gym:GENERATOR"),
        ("arithmetic", {"digit": 3}, "did you mean 'digits'"),
        ("countdown", {"count": "3"}, "'count' must be int, not '3'"),
    ],
)
def test_bad_names_and_options(name, options, message):
    with pytest.raises(TaskError, match=message) as caught:
        make(name, seed=0, options=options)
    assert "\n" not in str(caught.value)


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
    ids = [t.id for t in one.draw(15, 2)]
    assert sorted(ids) == sorted(3 * [t.id for t in one.pool_tasks])
    assert ids != [t.id for t in one.draw(15, 3)] and [t.id for t in other.draw(15, 2)] != ids
    assert one.held_out(6) == make(name, seed=0, options={"noise": 0}).held_out(6)
    assert not {t.id for t in one.held_out(6)} & set(ids)
    assert one.scorer(one.pool_tasks[0].answer, one.pool_tasks[0])["correct"] == 1.0


def test_a_pool_keeps_what_a_source_does_to_its_training_tasks():
    messages = make("shapes", seed=0, options={"pool": 20, "leak_share": 1.0})
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
