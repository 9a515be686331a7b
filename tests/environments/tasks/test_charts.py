"""Bar charts: the picture shows what the question asks, and answers are scored by closeness."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from gxpo.base.media import PICTURES
from gxpo.environments.tasks import make
from gxpo.environments.tasks.charts import draw_chart, score
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
    requests = Counter()
    scale = options.get("scale", 1)
    for task in make("charts", seed=1, options=options).draw(60, 0):
        pixels, text = seen(task)
        assert pixels.shape == (64 * scale, 64 * scale, 3)
        values = {colour: rows // (6 * scale) for colour, rows in heights(pixels).items()}
        assert values == task.info["bars"] and len(set(values.values())) == len(values)
        requests[task.info["question"]] += 1
        if text == "how many bars?":
            assert task.answer == str(len(values))
        elif " or " in text:
            pair = text.removesuffix("?").split(" or ")
            assert task.answer == max(pair, key=values.__getitem__) and task.info["answers"] == pair
        else:
            assert task.answer == str(values[text.removesuffix("?")])
    assert set(requests) == {"value", "larger", "count"} and min(requests.values()) >= 10


def test_answers_to_charts():
    value = Task("t", "", "5", {"answers": [str(v) for v in range(1, 10)]})
    # closeness: 1 - |a - 5| / 5
    expected = {
        "5": (1, 1, 1), " 5\n": (1, 1, 1), "4": (0, 1, 0.8), "9": (0, 1, 0.2), "1": (0, 1, 0.2), "05": (0, 0, 0),
        "five": (0, 0, 0), "": (0, 0, 0), "50": (0, 0, 0),
    }  # fmt: skip
    for text, numbers in expected.items():
        actual = score(text, value)
        assert (actual["correct"], actual["format"], actual["closeness"]) == pytest.approx(numbers)
    small = Task("t", "", "2", {"answers": ["1", "2", "9"]})
    assert score("9", small)["closeness"] == 0.0  # 1 - 7 / 2
    larger = Task("t", "", "red", {"answers": ["blue", "red"]})
    assert score("blue", larger) == {"correct": 0.0, "format": 1.0, "closeness": 0.0}
    assert score("red", larger)["closeness"] == 1.0 and score("green", larger)["format"] == 0.0


def test_charts_that_are_shuffled_do_not_show_what_they_ask():
    """Seen in the picture, the bars are another task's: an answer read there is right by chance alone."""
    tasks = make("charts", seed=2, options={"questions": ["value"], "shuffled": True}).draw(60, 0)
    read = [heights(seen(t)[0]).get(seen(t)[1].removesuffix("?"), 0) // 6 == int(t.answer) for t in tasks]
    assert sum(read) <= 15
    plain = make("charts", seed=2, options={"questions": ["value"]}).draw(60, 0)
    assert all(heights(seen(t)[0])[seen(t)[1].removesuffix("?")] // 6 == int(t.answer) for t in plain)
