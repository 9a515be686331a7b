"""Duplicates among tasks, and held-out tasks that leak into training: by text alone, without a model."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from gxpo.explain.trials import prompt_text
from gxpo.parts.protocols import Task

NEAR_SCORE = 92.0  # similarity (0 to 100, rapidfuzz' ratio) from which two prompts count as nearly the same
MAX_COMPARED = 2000  # prompts with the same numbers that are compared pairwise; of more, only the first ones

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
    compared     False where more than `MAX_COMPARED` prompts have the same numbers, so that not all pairs were compared
    """

    duplicates: list[tuple[str, str]] = field(default_factory=list)
    conflicts: list[tuple[str, str]] = field(default_factory=list)
    near: list[tuple[str, str]] = field(default_factory=list)
    leaks: list[tuple[str, str]] = field(default_factory=list)
    compared: bool = True


def plain(text: str) -> str:
    """Return the text in lower case with neither punctuation nor repeated white space; signs of arithmetic stay.

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
    texts = [plain(prompt_text(t)) if not _has_token_ids(t) else str(t.prompt) for t in tasks]
    pairs = Overlap()
    by_text: dict[str, list[int]] = defaultdict(list)
    for i, text in enumerate(texts):
        by_text[text].append(i)
    for members in by_text.values():
        for i in members[1:]:
            _record_equal_pair(pairs, tasks, side, members[0], i)
    # Comparing only prompts with equal numbers keeps sums such as 2+3 and 2+4 apart, and the pairs few.
    by_numbers: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for text, members in by_text.items():
        by_numbers[tuple(sorted(NUMBER.findall(text)))].append(members[0])
    for firsts in by_numbers.values():
        pairs.compared &= len(firsts) <= MAX_COMPARED
        for i, j in _near_pairs(texts, firsts[:MAX_COMPARED]):
            if str(tasks[i].answer) == str(tasks[j].answer):
                (pairs.near if side[i] == side[j] else pairs.leaks).append((tasks[i].id, tasks[j].id))
    return pairs


def _has_token_ids(task: Task) -> bool:
    return not isinstance(task.prompt, str) and bool(task.prompt) and isinstance(task.prompt[0], int)


def _record_equal_pair(pairs: Overlap, tasks: Sequence[Task], side: Sequence[int], i: int, j: int) -> None:
    pair = (tasks[i].id, tasks[j].id)
    if side[i] != side[j]:
        pairs.leaks.append(pair)
    elif str(tasks[i].answer) != str(tasks[j].answer):
        pairs.conflicts.append(pair)
    else:
        pairs.duplicates.append(pair)


def _near_pairs(texts: Sequence[str], places: Sequence[int]) -> list[tuple[int, int]]:
    """Pairs of `places` whose texts are nearly the same."""
    import numpy as np
    from rapidfuzz import fuzz, process

    if len(places) < 2:
        return []
    compared_texts = [texts[i] for i in places]
    table = process.cdist(compared_texts, compared_texts, scorer=fuzz.ratio, score_cutoff=NEAR_SCORE, dtype=np.float32)
    return [(places[i], places[j]) for i, j in np.argwhere(np.triu(table, 1) > 0).tolist()]
