"""Base of generated tasks about a picture; its control `shuffled` shows the picture of another task."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gxpo.environments.tasks.source import GeneratedTasks

if TYPE_CHECKING:
    import numpy as np

    from gxpo.parts.protocols import Task


class PicturedTasks(GeneratedTasks):
    """Base of sources whose tasks show one picture; a task's `info["number"]` is what it was made of.

    shuffled  the picture is another task's: what a policy reads in it, and not in the text, is then wrong
    """

    shuffled: bool

    @abstractmethod
    def numbered(self, number: int) -> Task:
        """Make the task of a number from 0 on, with its own picture."""

    def propose(self, random: np.random.Generator) -> Task:
        # the next number's picture: another task with probability near 1, and the same one on every machine
        task = self.numbered(int(random.integers(1 << 62)))
        return with_picture(task, picture_of(self.numbered(task.info["number"] + 1))) if self.shuffled else task


def picture_prompt(ref: str, text: str) -> tuple[Mapping[str, Any], ...]:
    """Prompt of one picture and a question."""
    return ({"role": "user", "content": [{"type": "image", "image": ref}, {"type": "text", "text": text}]},)


def picture_of(task: Task) -> str:
    """Reference of the picture in a prompt made by `picture_prompt`."""
    return _parts(task)[0]["image"]


def with_picture(task: Task, ref: str) -> Task:
    """Copy of a task with another picture and the same answer."""
    return replace(task, prompt=picture_prompt(ref, _parts(task)[1]["text"]))


def _parts(task: Task) -> Sequence[Mapping[str, Any]]:
    message: Any = task.prompt[0]
    return message["content"]
