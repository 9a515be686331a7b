"""Completions that test a reward: right answers in several forms, wrong answers, reward hacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gxpo.explain.probes import CLAIM, PROBES, WRONG, texts_of, variants
from gxpo.parts.protocols import Task

Form = Callable[[Task], str]

FORMS: dict[str, Form] = {
    "bare": lambda t: f"{t.answer}",
    "boxed": lambda t: f"\\boxed{{{t.answer}}}",
    "tags": lambda t: f"<answer>{t.answer}</answer>",
    "thought and tags": lambda t: f"<think>\nLet me see.\n</think>\n<answer>{t.answer}</answer>",
    "thought and boxed": lambda t: f"<think>\nLet me see.\n</think>\n\\boxed{{{t.answer}}}",
    "hash": lambda t: f"#{t.answer}",
    "four hashes": lambda t: f"#### {t.answer}",
    "sentence": lambda t: f"The answer is {t.answer}.",
}
JUNK = "\u202e\ufffd\u0000\ud7ff \U0001f9e8\u0301\u0301\u0301 \\boxed{ </answer> $$ {{ ]] \u200b\x1b[31m \U0010ffff"
LONG_TEXT = 20_000  # characters of the long text without an answer
LENGTHS = (50, 200, 800, 3200)  # characters of filler before an answer
REPEATS = 20


@dataclass(frozen=True)
class Trial:
    """A text, scored as if it were a completion of `task`.

    kind  "reference: FORM", "variant: NAME", "wrong", "wrong: FORM", or a name of `EXPLOITS`, `HEDGES`, "repeated",
          "right after N", "wrong after N"
    """

    kind: str
    text: str
    task: Task


EXPLOITS: dict[str, str] = {
    "empty": "an empty completion",
    "whitespace": "nothing but whitespace",
    "empty form": "the form without an answer in it",
    "echo": "the prompt given back",
    "all answers": "every answer of the tasks, one after another",
    "long": "a very long text without an answer",
    "junk": "control characters, open brackets, emoji",
    **{kind: probe.meaning for kind, probe in PROBES.items()},
}
HEDGES = ("right, then wrong", "wrong, then right")


def forms(source: Any) -> dict[str, Form]:
    """List the forms in which an answer can be written; a source that writes worked examples has them as one more."""
    worked_example = getattr(source, "worked_example", None)
    return FORMS if worked_example is None else {**FORMS, "worked": lambda t: str(worked_example(t) or t.answer)}


def references(tasks: Sequence[Task], ways: Mapping[str, Form]) -> list[Trial]:
    """Write the reference answers of all tasks in all forms."""
    return [Trial(f"reference: {name}", form(t), t) for t in tasks for name, form in ways.items()]


def cheating_trials(tasks: Sequence[Task], form: Form, *, empty: bool = True) -> list[Trial]:
    """Write wrong, hedged and cheating completions of all tasks, with answers in `form`.

    empty  the form can be written without an answer
    """
    out: list[Trial] = []
    for index, task in enumerate(tasks):
        # a wrong answer is another task's right one: of the same kind and length, so that only its truth differs
        following = [*tasks[index + 1 :], *tasks[:index]]
        wrong = next(t for t in following if str(t.answer) != str(task.answer))
        texts = {
            "wrong": form(wrong),
            "empty": "",
            "whitespace": " \n\t ",
            "echo": prompt_text(task),
            "long": filler(LONG_TEXT, index),
            "junk": JUNK,
            "repeated": "\n".join([form(task)] * REPEATS),
            "right, then wrong": f"{form(task)}\n{form(wrong)}",
            "wrong, then right": f"{form(wrong)}\n{form(task)}",
        }
        if empty:
            texts["empty form"] = form(replace(task, answer=""))
        if tasks_listed := _answer_in_the_middle(task, following):
            texts["all answers"] = "\n".join(form(t) for t in tasks_listed)
        for length in LENGTHS:
            padding = filler(length, index)
            texts[f"right after {length}"] = f"{padding}\n{form(task)}"
            texts[f"wrong after {length}"] = f"{padding}\n{form(wrong)}"
        out += [Trial(kind, text, task) for kind, text in texts.items()]
        for kind in PROBES:
            out += [
                Trial(kind, _fill(text, task, wrong, form), task)
                for text in texts_of(kind, index, len(tasks))
                if empty or not text.startswith(CLAIM)
            ]
    return out


def _fill(text: str, task: Task, wrong: Task, form: Form) -> str:
    """Write a probe out, with a wrong answer or a claim in the form of a right answer."""
    if text.startswith(CLAIM):
        return form(replace(task, answer=text.removeprefix(CLAIM)[:-1]))
    return text.replace(WRONG, form(wrong))


def variant_trials(tasks: Sequence[Task], form: Form) -> list[Trial]:
    """Write the right answers of all tasks in other ways that mean the same, in `form`."""
    return [
        Trial(f"variant: {name}", form(replace(task, answer=text)), task)
        for task in tasks
        for name, text in variants(str(task.answer)).items()
    ]


def wrong_answers_in(tasks: Sequence[Task], ways: Mapping[str, Form]) -> list[Trial]:
    """Write another task's answer in each of these forms."""
    out: list[Trial] = []
    for index, task in enumerate(tasks):
        following = [*tasks[index + 1 :], *tasks[:index]]
        wrong = next(t for t in following if str(t.answer) != str(task.answer))
        out += [Trial(f"wrong: {name}", form(wrong), task) for name, form in ways.items()]
    return out


def _answer_in_the_middle(task: Task, following: Sequence[Task]) -> list[Task]:
    """List one task for each answer, `task` in the middle: a reward that reads only one end never finds its answer.

    Empty where there are fewer than three answers.
    """
    distinct = list({str(t.answer): t for t in following if str(t.answer) != str(task.answer)}.values())
    half = len(distinct) // 2
    return [*distinct[:half], task, *distinct[half:]] if half else []


def prompt_text(task: Task) -> str:
    """Return the text of the prompt; empty for token ids."""
    if isinstance(task.prompt, str):
        return task.prompt
    messages: Any = task.prompt
    return "\n".join(str(m["content"]) for m in messages if isinstance(m, Mapping) and m.get("content"))


def filler(length: int, seed: int) -> str:
    """Return `length` characters of meaningless words; the same for the same seed.

    >>> filler(20, 0) == filler(40, 0)[:20]
    True
    """
    random = np.random.Generator(np.random.Philox(seed))
    syllables = [c + v for c in "bdfgklmnprstv" for v in "aeiou"]
    words: list[str] = []
    size = 0
    while size < length:
        word = "".join(syllables[int(i)] for i in random.integers(len(syllables), size=3))
        words.append(word)
        size += len(word) + 1
    return " ".join(words)[:length]
