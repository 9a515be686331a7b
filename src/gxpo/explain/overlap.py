"""Duplicates among tasks, and held-out tasks that training also has: by text alone, without a model."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from gxpo.explain.trials import prompt_text
from gxpo.parts.protocols import Task

NEAR = 92.0  # similarity (0 to 100, rapidfuzz' ratio) from which two prompts count as nearly the same
LARGEST = 2000  # prompts with the same numbers that are compared pairwise; of more, the first so many

NUMBER = re.compile(r"\d+(?:\.\d+)?")
LETTERS = re.compile(r"[^\w+\-*/=<>^]+")
SIGNS = re.compile(r" ?([+\-*/=<>^]) ?")  # of a text with single spaces


@dataclass
class Overlap:
    """Pairs of task ids; a pair is in one list only.

    duplicates   one prompt, one answer
    conflicts    one prompt, different answers
    near         prompts that differ in spelling alone, with the same numbers and the same answer
    leaks        a training and a held-out task of the same or nearly the same prompt
    compared     False where more than `LARGEST` prompts have the same numbers, so that not all pairs were compared
    """

    duplicates: list[tuple[str, str]] = field(default_factory=list)
    conflicts: list[tuple[str, str]] = field(default_factory=list)
    near: list[tuple[str, str]] = field(default_factory=list)
    leaks: list[tuple[str, str]] = field(default_factory=list)
    compared: bool = True


def plain(text: str) -> str:
    """The text in lower case with neither punctuation nor repeated white space; signs of arithmetic stay.

    >>> plain("What is  2 + 3 ?")
    'what is 2+3'
    """
    return SIGNS.sub(r"\1", " ".join(LETTERS.sub(" ", text.lower()).split()))


def overlap(training: Sequence[Task], held_out: Sequence[Task]) -> Overlap:
    """Find duplicates within both sides together, and leaks between them.

    Numbers must agree: `2+3` and `2+4` are two tasks, however alike the texts are. Of several equal prompts each is
    paired with the first.
    """
    tasks = [*training, *held_out]
    side = [0] * len(training) + [1] * len(held_out)
    texts = [plain(prompt_text(t)) if not _ids(t) else str(t.prompt) for t in tasks]
    found = Overlap()
    by_text: dict[str, list[int]] = defaultdict(list)
    for i, text in enumerate(texts):
        by_text[text].append(i)
    for members in by_text.values():
        for i in members[1:]:
            _same(found, tasks, side, members[0], i)
    by_numbers: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for text, members in by_text.items():
        by_numbers[tuple(sorted(NUMBER.findall(text)))].append(members[0])
    for firsts in by_numbers.values():
        found.compared &= len(firsts) <= LARGEST
        for i, j in _alike(texts, firsts[:LARGEST]):
            if str(tasks[i].answer) == str(tasks[j].answer):
                (found.near if side[i] == side[j] else found.leaks).append((tasks[i].id, tasks[j].id))
    return found


def _ids(task: Task) -> bool:
    return not isinstance(task.prompt, str) and bool(task.prompt) and isinstance(task.prompt[0], int)


def _same(found: Overlap, tasks: Sequence[Task], side: Sequence[int], i: int, j: int) -> None:
    pair = (tasks[i].id, tasks[j].id)
    if side[i] != side[j]:
        found.leaks.append(pair)
    elif str(tasks[i].answer) != str(tasks[j].answer):
        found.conflicts.append(pair)
    else:
        found.duplicates.append(pair)


def _alike(texts: Sequence[str], places: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs of `places` whose texts are nearly the same."""
    import numpy as np
    from rapidfuzz import fuzz, process

    if len(places) < 2:
        return []
    named = [texts[i] for i in places]
    table = process.cdist(named, named, scorer=fuzz.ratio, score_cutoff=NEAR, dtype=np.float32)
    return [(places[i], places[j]) for i, j in np.argwhere(np.triu(table, 1) > 0).tolist()]
