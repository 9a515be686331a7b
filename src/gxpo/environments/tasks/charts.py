"""Questions about pictures of bar charts: a bar's value, the larger of two bars, the number of bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gxpo.base.drawing import COLOURS, GREY, WHITE, canvas, fill, noisy, scaled, write
from gxpo.base.errors import TaskError, did_you_mean
from gxpo.base.media import PICTURES
from gxpo.environments.tasks.source import Author, PicturedTasks, check_options, exact, picture_prompt
from gxpo.parts.protocols import Task

if TYPE_CHECKING:
    from gxpo.base.media import Pixels

QUESTIONS = ("value", "larger", "count")
SIDE = 64  # pixels of the picture's side, times `scale`
BACKGROUND, LINES = (24, 24, 24), (70, 70, 70)
TOP = 9  # largest value; 1 is the least
UNIT, GROUND, AXIS = 6, 60, 7  # pixels of one unit; row of the value 0; column of the axis
LEAST = 2  # bars


def draw_chart(values: Sequence[int], colours: Sequence[str], tick: int) -> Pixels:
    """Draw a chart, pixels [64, 64, 3]: an axis with a number at every `tick`, and bars from the left."""
    pixels = _axis(tick).copy()  # the cached axis is shared by all charts of a tick
    slot = (SIDE - AXIS - 1) // len(values)
    for k, (value, colour) in enumerate(zip(values, colours, strict=True)):
        box = (AXIS + 3 + k * slot, GROUND - UNIT * value, slot - 3, UNIT * value)
        fill(pixels, box, COLOURS[colour])
    return pixels


@lru_cache
def _axis(tick: int) -> Pixels:
    """The axis of a chart, without bars."""
    pixels = canvas(SIDE, SIDE, BACKGROUND)
    for value in range(0, TOP + 1, tick):
        row = GROUND - UNIT * value
        fill(pixels, (AXIS + 1, row, SIDE, 1), LINES)
        fill(pixels, (AXIS - 2, row, 2, 1), WHITE)
        write(pixels, str(value), 1, row - 2 if value else SIDE - 5, WHITE)
    fill(pixels, (AXIS, GROUND - UNIT * TOP, 1, UNIT * TOP + 1), WHITE)
    fill(pixels, (AXIS, GROUND, SIDE, 1), WHITE)
    return pixels


def score(text: str, task: Task) -> dict[str, float]:
    """Score an answer. `format`: one of those that the question can have; `correct`: and the right one; `closeness` of
    a number: max(0, 1 - |a - b| / b) from the right one, b; of a colour as `correct`.

    >>> score("3", Task("", "", "4", {"answers": ["1", "2", "3", "4"]}))
    {'correct': 0.0, 'format': 1.0, 'closeness': 0.75}
    """
    answer, reference = text.strip(), str(task.answer)
    well_formed = answer in task.info.get("answers", ())
    closeness = float(answer == reference)
    # a colour has no distance: it stays right or wrong
    if well_formed and reference.isdecimal():
        closeness = max(0.0, 1 - abs(int(answer) - int(reference)) / int(reference))
    return {"correct": float(answer == reference), "format": float(well_formed), "closeness": closeness}


@dataclass
class Charts(PicturedTasks):
    """Questions about a bar chart: the value of one, which of two is larger, how many there are.

    questions  of "value" (1 to 9), "larger" and "count", each as often
    bars       largest number of bars in a chart, 2 to 6
    tick       numbers on the axis: 1: every value; 2, 3: every other or third, so that values between are estimated
    scale      the picture is 64 times that wide and high
    noise      how far any value of a pixel may be off
    blank      the picture is grey, whatever is asked: what the question alone gives
    shuffled   the picture is another task's

    A quarter of all pictures is held out. `info["kind"]` is the kind of an answer: "number" or "choice".
    """

    seed: int = 0
    questions: tuple[str, ...] | list[str] = QUESTIONS
    bars: int = 4
    tick: int = 1
    scale: int = 1
    noise: int = 10
    blank: bool = False
    shuffled: bool = False

    name: ClassVar[str] = "charts"
    scorer_name: ClassVar[str] = "charts"
    scorer = staticmethod(score)
    reward_default: ClassVar[str] = "correct"
    options: ClassVar[Mapping[str, Any]] = {
        "questions": (list, tuple), "bars": int, "tick": int, "scale": int, "noise": int, "blank": bool,
        "shuffled": bool,
    }  # fmt: skip

    def __post_init__(self) -> None:
        check_options(self.name, {name: getattr(self, name) for name in self.options}, self.options)
        if not self.questions:
            raise TaskError(f"charts: questions must name some of {', '.join(QUESTIONS)}")
        for question in self.questions:
            if question not in QUESTIONS:
                raise TaskError(f"charts: no question {question!r}{did_you_mean(str(question), QUESTIONS)}")
        limits = {"bars": (LEAST, len(COLOURS)), "tick": (1, 3), "scale": (1, 8), "noise": (0, 100)}
        for name, (low, high) in limits.items():
            if not low <= getattr(self, name) <= high:
                raise TaskError(f"charts: {name} must be from {low} to {high}, not {getattr(self, name)}")

    def numbered(self, number: int) -> Task:
        """The task of a number, with its picture."""
        # the number alone decides everything, so that `shuffled` can show the next number's picture
        random = np.random.Generator(np.random.Philox(number))
        question = str(random.choice(list(self.questions)))
        n = int(random.integers(LEAST, self.bars + 1))
        values = [int(v) + 1 for v in random.permutation(TOP)[:n]]  # all different: one of two is larger
        colours = [str(c) for c in random.permutation(list(COLOURS))[:n]]
        text, answers, answer = self._question_and_answers(question, colours, values, random)
        # `blank` keeps all draws above, so question and answer are those of the picture that is not shown
        chart = canvas(SIDE, SIDE, GREY) if self.blank else draw_chart(values, colours, self.tick)
        pixels = noisy(scaled(chart, self.scale * SIDE, self.scale * SIDE), random, self.noise)
        bars = dict(zip(colours, values, strict=True))
        kind = "choice" if question == "larger" else "number"
        info = {"question": question, "kind": kind, "answers": answers, "number": number, "bars": bars}
        return Task(f"charts/{question}/{number}", picture_prompt(PICTURES.put(pixels), text), answer, info)

    def _question_and_answers(
        self, question: str, colours: Sequence[str], values: Sequence[int], random: np.random.Generator
    ) -> tuple[str, list[str], str]:
        """Question in words, its possible answers, and the right one."""
        if question == "count":
            return "how many bars?", [str(n) for n in range(LEAST, self.bars + 1)], str(len(colours))
        first, second = (int(k) for k in random.permutation(len(colours))[:2])
        if question == "value":
            return f"{colours[first]}?", [str(v) for v in range(1, TOP + 1)], str(values[first])
        pair = [colours[first], colours[second]]
        return f"{pair[0]} or {pair[1]}?", pair, pair[int(values[second] > values[first])]

    def worked_example(self, task: Task, author: Author = exact) -> str:
        """Answer as this author writes it: an author who errs is off by some places in the list of answers."""
        answers = task.info["answers"]
        return answers[author(task.id, answers.index(task.answer)) % len(answers)]
