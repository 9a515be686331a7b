"""Tasks with pictures: what is drawn is what is asked for, and the blank picture tells nothing."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from gxpo.base.errors import TaskError
from gxpo.base.media import PICTURES
from gxpo.environments.tasks import make
from gxpo.environments.tasks.charts import draw_chart, score
from gxpo.environments.tasks.source import solution_of
from gxpo.parts.protocols import Task

PURE = {
    "red": (220, 40, 40), "green": (40, 190, 60), "blue": (60, 90, 240), "yellow": (235, 215, 50),
    "purple": (170, 60, 200), "cyan": (60, 210, 220),
}  # fmt: skip


def seen(task: Task) -> tuple[np.ndarray, str]:
    """Pixels and text of a task's question."""
    (message,) = task.prompt
    image, text = message["content"]
    assert (message["role"], image["type"], text["type"]) == ("user", "image", "text")
    return PICTURES.pixels(image["image"]).astype(int), text["text"]


def is_of(pixels: np.ndarray, colour: str) -> np.ndarray:
    """[H, W] whether a pixel is of the colour, to 30."""
    return (abs(pixels - np.array(PURE[colour])) <= 30).all(axis=2)


def heights(pixels: np.ndarray) -> dict[str, int]:
    """Rows of each bar's colour, by looking at the pixels alone."""
    return {colour: rows for colour in PURE if (rows := int(is_of(pixels, colour).any(axis=1).sum()))}


def test_a_chart_by_hand():
    pixels = draw_chart([3, 9], ["red", "blue"], tick=1)
    assert pixels.shape == (64, 64, 3) and pixels.dtype == np.uint8
    # six rows a unit above the ground at row 60
    rows = {colour: np.flatnonzero(is_of(pixels.astype(int), colour).any(axis=1)) for colour in ("red", "blue")}
    assert (rows["red"].min(), rows["red"].max()) == (42, 59) and (rows["blue"].min(), rows["blue"].max()) == (6, 59)
    columns = {colour: np.flatnonzero(is_of(pixels.astype(int), colour).any(axis=0)) for colour in ("red", "blue")}
    assert columns["red"].max() < columns["blue"].min() and len(columns["red"]) == len(columns["blue"])
    ticks = [row for row in range(64) if (pixels[row, 5] == 255).all()]
    assert ticks == [6, 12, 18, 24, 30, 36, 42, 48, 54, 60]
    assert [r for r in range(64) if (draw_chart([1], ["red"], tick=3)[r, 5] == 255).all()] == [6, 24, 42, 60]


@pytest.mark.parametrize("options", [{}, {"bars": 6, "tick": 3, "noise": 0}, {"scale": 2}])
def test_charts_show_what_they_ask(options):
    asked = Counter()
    scale = options.get("scale", 1)
    for task in make("charts", seed=1, options=options).draw(60, 0):
        pixels, text = seen(task)
        assert pixels.shape == (64 * scale, 64 * scale, 3)
        values = {colour: rows // (6 * scale) for colour, rows in heights(pixels).items()}
        assert values == task.info["bars"] and len(set(values.values())) == len(values)
        asked[task.info["question"]] += 1
        if text == "how many bars?":
            assert task.answer == str(len(values))
        elif " or " in text:
            pair = text.removesuffix("?").split(" or ")
            assert task.answer == max(pair, key=values.__getitem__) and task.info["answers"] == pair
        else:
            assert task.answer == str(values[text.removesuffix("?")])
    assert set(asked) == {"value", "larger", "count"} and min(asked.values()) >= 10


def test_answers_to_charts():
    value = Task("t", "", "5", {"answers": [str(v) for v in range(1, 10)]})
    # closeness: 1 - |a - 5| / 5
    expected = {
        "5": (1, 1, 1), " 5\n": (1, 1, 1), "4": (0, 1, 0.8), "9": (0, 1, 0.2), "1": (0, 1, 0.2), "05": (0, 0, 0),
        "five": (0, 0, 0), "": (0, 0, 0), "50": (0, 0, 0),
    }  # fmt: skip
    for text, numbers in expected.items():
        found = score(text, value)
        assert (found["correct"], found["format"], found["closeness"]) == pytest.approx(numbers)
    small = Task("t", "", "2", {"answers": ["1", "2", "9"]})
    assert score("9", small)["closeness"] == 0.0  # 1 - 7 / 2
    larger = Task("t", "", "red", {"answers": ["blue", "red"]})
    assert score("blue", larger) == {"correct": 0.0, "format": 1.0, "closeness": 0.0}
    assert score("red", larger)["closeness"] == 1.0 and score("green", larger)["format"] == 0.0


@pytest.mark.parametrize("name", ["charts", "shapes"])
def test_a_blank_picture_tells_nothing_and_asks_the_same(name):
    with_pictures, blank = (make(name, seed=0, options={"blank": b, "noise": 5}).draw(30, 0) for b in (False, True))
    assert [(t.id, t.answer, seen(t)[1]) for t in with_pictures] == [(t.id, t.answer, seen(t)[1]) for t in blank]
    for task in blank:
        pixels, _ = seen(task)
        assert pixels.max() - pixels.min() <= 10
    assert all(seen(t)[0].max() - seen(t)[0].min() > 100 for t in with_pictures)


@pytest.mark.parametrize("name", ["charts", "shapes"])
def test_a_shuffled_picture_is_another_tasks_and_the_question_and_answer_stay(name):
    own, other = (make(name, seed=0, options={"shuffled": b}).draw(40, 0) for b in (False, True))
    assert [(t.id, t.answer, seen(t)[1], t.info) for t in own] == [(t.id, t.answer, seen(t)[1], t.info) for t in other]
    assert not any(np.array_equal(seen(a)[0], seen(b)[0]) for a, b in zip(own, other, strict=True))
    shown = {t.prompt[0]["content"][0]["image"] for t in other}
    assert len(shown) == 40 and not shown & {t.prompt[0]["content"][0]["image"] for t in own}
    held_out = (make(name, seed=0, options={"shuffled": b}).held_out(8) for b in (False, True))
    assert len({tuple((t.id, t.answer) for t in tasks) for tasks in held_out}) == 1


def test_charts_that_are_shuffled_do_not_show_what_they_ask():
    """Seen in the picture, the bars are another task's: an answer read there is right by chance alone."""
    tasks = make("charts", seed=2, options={"questions": ["value"], "shuffled": True}).draw(60, 0)
    read = [heights(seen(t)[0]).get(seen(t)[1].removesuffix("?"), 0) // 6 == int(t.answer) for t in tasks]
    assert sum(read) <= 15
    plain = make("charts", seed=2, options={"questions": ["value"]}).draw(60, 0)
    assert all(heights(seen(t)[0])[seen(t)[1].removesuffix("?")] // 6 == int(t.answer) for t in plain)


@pytest.mark.parametrize("name", ["charts", "shapes"])
def test_worked_examples_are_right_and_planted_mistakes_are_wrong(name):
    source = make(name, seed=3)
    for task in source.draw(30, 0):
        assert source.scorer(solution_of(source, task), task)["correct"] == 1.0
        wrong = source.scorer(source.worked_example(task, lambda question, value: value + 1), task)
        assert (wrong["correct"], wrong["format"]) == (0.0, 1.0)


@pytest.mark.parametrize("name", ["charts", "shapes"])
def test_pictures_follow_the_number_of_the_task_alone(name):
    first, again = make(name, seed=4).draw(5, 2), make(name, seed=4).draw(5, 2)
    assert first == again and len({t.prompt[0]["content"][0]["image"] for t in first}) == 5


def test_shapes_show_what_they_ask():
    for task in make("shapes", seed=0).draw(40, 0):
        pixels, text = seen(task)
        assert pixels.shape == (32, 32, 3)
        bright = pixels.max(axis=2) - pixels.min(axis=2) > 60
        (row, *_), (column, *_) = np.nonzero(bright)
        place = {"row?": row // 8 + 1, "column?": column // 8 + 1}
        assert bright.sum() == 64 and (text == "colour?" or task.answer == str(place[text]))


def test_the_box_of_a_square_is_where_its_pixels_are():
    for task in make("shapes", seed=0, options={"questions": ["box"], "cell": 10}).draw(40, 0):
        pixels, text = seen(task)
        rows, columns = np.nonzero(pixels.max(axis=2) - pixels.min(axis=2) > 60)
        box = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        assert text == "box?" and task.answer == "[" + ",".join(map(str, box)) + "]"
        assert len(set(task.info["answers"])) == 16 and task.answer in task.info["answers"]


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
def test_a_pool_of_pictures_is_the_same_for_every_run_and_is_gone_through_evenly(name):
    one, other = (make(name, seed=seed, options={"pool": 5, "noise": 0}, per_step=5) for seed in (3, 4))
    assert one.pool_tasks == other.pool_tasks and len({t.id for t in one.pool_tasks}) == 5
    drawn = [t.id for t in one.draw(15, 2)]
    assert sorted(drawn) == sorted(3 * [t.id for t in one.pool_tasks])
    assert drawn != [t.id for t in one.draw(15, 3)] and [t.id for t in other.draw(15, 2)] != drawn
    assert one.held_out(6) == make(name, seed=0, options={"noise": 0}).held_out(6)
    assert not {t.id for t in one.held_out(6)} & set(drawn)
    assert one.scorer(one.pool_tasks[0].answer, one.pool_tasks[0])["correct"] == 1.0


def test_a_pool_keeps_what_a_source_does_to_its_training_tasks():
    told = make("shapes", seed=0, options={"pool": 20, "told": 1.0})
    assert all(seen(t)[1].startswith(f"{t.answer}. ") for t in told.draw(20, 1))
    assert not any(t.info.get("told") for t in told.held_out(20))


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
