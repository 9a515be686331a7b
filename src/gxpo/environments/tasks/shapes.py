"""Questions about pictures of coloured squares in a grid: colour, row, column, count, same colour, box."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gxpo.base.errors import TaskError, did_you_mean
from gxpo.base.media import PICTURES
from gxpo.environments.tasks.source import Author, PicturedTasks, exact, picture_of, picture_prompt
from gxpo.parts.protocols import Task

if TYPE_CHECKING:
    from gxpo.base.media import Pixels

COLOURS = {"red": (220, 40, 40), "green": (40, 200, 60), "blue": (50, 80, 230), "yellow": (230, 210, 40)}
CELLS = 4  # of a side
QUESTIONS = {
    "colour": "colour?", "row": "row?", "column": "column?", "count": "how many?", "same": "same colour?",
    "box": "box?",
}  # fmt: skip
PLACES = tuple("1234")
ANSWERS: dict[str, tuple[str, ...]] = {
    "colour": tuple(COLOURS), "row": PLACES, "column": PLACES, "count": PLACES, "same": ("yes", "no"),
}  # fmt: skip

ALL = tuple(dict.fromkeys(x for answers in ANSWERS.values() for x in answers))


def draw_squares(squares: Mapping[tuple[int, int], str], random: np.random.Generator, cell: int, noise: int) -> Pixels:
    """Draw squares on grey, pixels [4 cell, 4 cell, 3]; every value is off by up to `noise`.

    squares  (row, column), from 0 at the top left, -> colour
    """
    pixels = np.full((CELLS * cell, CELLS * cell, 3), 100, dtype=np.int64)
    for (row, column), colour in squares.items():
        pixels[row * cell : (row + 1) * cell, column * cell : (column + 1) * cell] = COLOURS[colour]
    return (pixels + random.integers(-noise, noise + 1, pixels.shape)).clip(0, 255).astype(np.uint8)


def box(row: int, column: int, cell: int) -> str:
    """Box of a place as `[left,top,right,bottom]` in pixels.

    >>> box(1, 3, 8)
    '[24,8,32,16]'
    """
    return f"[{column * cell},{row * cell},{(column + 1) * cell},{(row + 1) * cell}]"


def score(text: str, task: Task) -> dict[str, float]:
    """Score an answer. `format`: one of the answers that the question can have (any question, where the task does not
    say); `correct`: and the right one.

    >>> score("red", Task("", "", "red", {"answers": ["red", "blue"]}))
    {'correct': 1.0, 'format': 1.0}
    """
    answer = text.strip()
    return {"correct": float(answer == task.answer), "format": float(answer in task.info.get("answers", ALL))}


@dataclass
class Shapes(PicturedTasks):
    """Questions about a picture of coloured squares, 4 x 4 places: colour, row, column or box of one; count; same.

    questions  of "colour", "row", "column" (of the one square; rows and columns from 1 at the top left), "count" (one
               to four squares), "same" (of two squares: are they of one colour?) and "box" (of the one square, as
               [x, y, x, y] in pixels), each as often
    cell       pixels of a place's side
    noise      how far any value of a pixel may be off
    blank      the picture is grey, whatever is asked: what the question alone gives
    shuffled   the picture is another task's
    leak_share  share of training tasks whose text gives the answer away; held-out tasks never do

    A quarter of all pictures is held out. `info["kind"]` is the kind of an answer: "choice", "number" or "box".
    """

    seed: int = 0
    questions: tuple[str, ...] | list[str] = ("colour", "row", "column")
    cell: int = 8
    noise: int = 10
    blank: bool = False
    shuffled: bool = False
    leak_share: float = 0.0

    name: ClassVar[str] = "shapes"
    scorer_name: ClassVar[str] = "shapes"
    scorer = staticmethod(score)
    reward_default: ClassVar[str] = "correct"
    options: ClassVar[Mapping[str, Any]] = {
        "questions": (list, tuple), "cell": int, "noise": int, "blank": bool, "shuffled": bool,
        "leak_share": (int, float),
    }  # fmt: skip

    def __post_init__(self) -> None:
        for question in self.questions:
            if question not in QUESTIONS:
                raise TaskError(f"shapes: no question {question!r}{did_you_mean(str(question), QUESTIONS)}")
        if (
            not self.questions
            or not 2 <= self.cell <= 64
            or not 0 <= self.noise <= 100
            or not 0 <= self.leak_share <= 1
        ):
            raise TaskError("shapes: questions must not be empty, cell is 2 to 64, noise 0 to 100, leak_share 0 to 1")

    def numbered(self, number: int) -> Task:
        """The task of a number, with its picture."""
        # the number alone decides everything, so that `shuffled` can show the next number's picture
        random = np.random.Generator(np.random.Philox(number))
        question = str(random.choice(list(self.questions)))
        n = {"count": int(random.integers(1, 5)), "same": 2}.get(question, 1)
        places = [divmod(int(p), CELLS) for p in random.permutation(CELLS * CELLS)[:n]]
        colours = [str(c) for c in random.choice(list(COLOURS), n)]
        # two of four colours are equal in a quarter of the pictures; half of the others are made so: 5 of 8 are "yes"
        if question == "same" and random.random() < 0.5:
            colours[1] = colours[0]
        (row, column), colour = places[0], colours[0]
        answer = {
            "colour": colour, "row": str(row + 1), "column": str(column + 1), "count": str(n),
            "same": "yes" if len(set(colours)) == 1 else "no", "box": box(row, column, self.cell),
        }[question]  # fmt: skip
        squares = {} if self.blank else dict(zip(places, colours, strict=True))
        ref = PICTURES.put(draw_squares(squares, random, self.cell, self.noise))
        kind = {"count": "number", "box": "box"}.get(question, "choice")
        info = {"question": question, "kind": kind, "answers": self._answers(question), "number": number}
        return Task(f"shapes/{question}/{number}", picture_prompt(ref, QUESTIONS[question]), answer, info)

    def _answers(self, question: str) -> list[str]:
        """Possible answers to a question."""
        if question == "box":
            return [box(row, column, self.cell) for row in range(CELLS) for column in range(CELLS)]
        return list(ANSWERS[question])

    def draw(self, n: int, step: int) -> list[Task]:
        """Draw `n` training tasks, a share `leak_share` of them with the answer in their text."""
        return [self._with_answer_in_text(task) for task in super().draw(n, step)]

    def _with_answer_in_text(self, task: Task) -> Task:
        # a stream beside that of the picture: the task is the same with and without the leak
        random = np.random.Generator(np.random.Philox((1 << 63) + task.info["number"]))
        if not random.random() < self.leak_share:
            return task
        text = f"{task.answer}. {QUESTIONS[task.info['question']]}"
        return Task(task.id, picture_prompt(picture_of(task), text), task.answer, {**task.info, "told": True})

    def worked_example(self, task: Task, author: Author = exact) -> str:
        """Answer as this author writes it: an author who errs is off by some places in the list of answers."""
        answers = task.info["answers"]
        return answers[author(task.id, answers.index(task.answer)) % len(answers)]
