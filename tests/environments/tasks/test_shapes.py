"""Coloured squares: the picture shows what the question asks."""

from __future__ import annotations

import numpy as np

from gxpo.base.media import PICTURES
from gxpo.environments.tasks import make
from gxpo.parts.protocols import Task


def seen(task: Task) -> tuple[np.ndarray, str]:
    """Pixels and text of a task's question."""
    (message,) = task.prompt
    image, text = message["content"]
    assert (message["role"], image["type"], text["type"]) == ("user", "image", "text")
    return PICTURES.pixels(image["image"]).astype(int), text["text"]


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
