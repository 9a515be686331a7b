"""Tasks for models that make pictures of a class: a condition, scored by what is seen."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from gxpo.base.errors import TaskError, need
from gxpo.base.media import PICTURE, PICTURES
from gxpo.environments.tasks.source import GeneratedTasks, check_options
from gxpo.parts.protocols import Task

if TYPE_CHECKING:
    from torch import Tensor

    from gxpo.base.media import Pixels
    from gxpo.forest.forest import Forest


def brightness(pixels: Pixels) -> float:
    """Mean of all values, 0 (black) to 1 (white).

    >>> brightness(np.full((2, 2, 3), 51, dtype=np.uint8))
    0.2
    """
    return float(pixels.mean() / 255)


def compressibility(pixels: Pixels, quality: int = 95) -> float:
    """Minus the kilobytes of the picture as a JPEG file: less detail is more reward (DDPO, arXiv 2305.13301)."""
    image: Any = need("PIL.Image", "vision")
    file = io.BytesIO()
    image.fromarray(pixels).save(file, "JPEG", quality=quality)
    return -len(file.getvalue()) / 1000


SCORES: Mapping[str, Callable[[Pixels], float]] = {f.__name__: f for f in (brightness, compressibility)}


@dataclass
class Pictures(GeneratedTasks):
    """Pictures of a class: the prompt is its number. Scored by `brightness` and `compressibility`, or by a reward of
    one's own that asks for `picture`, an image of Pillow.

    classes  number of classes, or their list
    success  None, or {component: value}: `correct` is 1 from that value on

    Every class is trained and held out: what is learned is of the reward, not of the class.
    """

    seed: int = 0
    classes: Any = 10
    success: Any = None

    name: ClassVar[str] = "pictures"
    scorer_name: ClassVar[str] = "pictures"
    scorer: ClassVar[None] = None
    reward_default: ClassVar[str] = "brightness"
    options: ClassVar[Mapping[str, Any]] = {"classes": (int, list), "success": (dict, type(None))}

    def __post_init__(self) -> None:
        check_options(self.name, {"classes": self.classes, "success": self.success}, self.options)
        self.numbers = list(range(self.classes)) if isinstance(self.classes, int) else self.classes
        if not self.numbers or not all(type(x) is int and x >= 0 for x in self.numbers):
            raise TaskError(f"task 'pictures': classes is {self.classes!r}; name at least one, by its number")
        if unknown := [name for name in self.success or {} if name not in SCORES]:
            raise TaskError(f"task 'pictures': success reads {unknown[0]!r}; it is {' or '.join(SCORES)}")

    def propose(self, random: np.random.Generator) -> Task:
        return self._task(self.numbers[int(random.integers(len(self.numbers)))])

    @staticmethod
    def _task(number: int) -> Task:
        return Task(f"pictures/{number}", str(number), info={"class": number})

    def draw(self, n: int, step: int) -> list[Task]:
        """Draw `n` classes: all of them in a random order before one comes again."""
        random, numbers = np.random.default_rng((self.seed, step)), list[int]()
        while len(numbers) < n:
            numbers += random.permutation(self.numbers).tolist()
        return [self._task(number) for number in numbers[:n]]

    def held_out(self, n: int) -> list[Task]:
        """The first `n` classes."""
        return [self._task(number) for number in self.numbers[:n]]

    def rate(self, forest: Forest, texts: Sequence[str], tasks: Sequence[Task]) -> dict[str, Tensor]:
        """Score components [R] float64 of the pictures; nan where there is none. Texts are not read."""
        import torch

        refs = [info.get(PICTURE) for info in forest.info]
        if not any(refs) and len(refs) and not bool(forest.truncated.all()):
            raise TaskError(
                "task 'pictures' rates pictures, and these rollouts have none: use model diffusers:DIRECTORY "
                "or tokens:digits"
            )
        columns = {
            name: torch.tensor(
                [float("nan") if ref is None else score(PICTURES.pixels(ref)) for ref in refs], dtype=torch.float64
            )
            for name, score in SCORES.items()
        }
        for name, least in (self.success or {}).items():
            x = columns[name]
            columns["correct"] = torch.where(x.isnan(), x, (x >= least).to(torch.float64))
        return columns
