"""Reworded prompts: templates around a task's own prompt, and the hints, drafts or attempts that they show."""

from __future__ import annotations

import dataclasses
import re
import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from gxpo.base.errors import ConfigError, TaskError
from gxpo.base.media import with_marks
from gxpo.parts.protocols import Message, Task


def check_template(key: str, template: str, required_fields: Sequence[str], optional: Sequence[str] = ()) -> None:
    """Raise ConfigError for a template that lacks a required field, or has one that nothing fills.

    >>> check_template("rollout.template", "{prompt}{hint}", ("prompt", "hint"))
    """
    try:
        places_found = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
    except ValueError as error:
        raise ConfigError(f"{key}={template!r} is not a template: {error}; a brace itself is written twice") from None
    missing_places = [name for name in required_fields if name not in places_found]
    unknown_places = sorted(places_found - {*required_fields, *optional})
    if missing_places or unknown_places:
        problem = f"lacks {{{missing_places[0]}}}" if missing_places else f"has {{{unknown_places[0]}}}"
        places = ", ".join(f"{{{name}}}" for name in (*required_fields, *optional))
        raise ConfigError(f"{key}={template!r} {problem}: its places are {places}")


def reword(task: Task, template: str, **fields: str) -> Task:
    """Return the task with its prompt put into a template: {prompt} is its text, of a chat the last user message.

    >>> reword(Task("a", "37+48="), "{prompt}{hint}", hint="7+8").prompt
    '37+48=7+8'
    """
    prompt = task.prompt
    if isinstance(prompt, str):
        return dataclasses.replace(task, prompt=template.format(prompt=prompt, **fields))
    # of a chat the last user message that is text: the question, whatever was said before
    for i in reversed(range(len(prompt))):
        message = prompt[i]
        if not isinstance(message, Mapping) or message["role"] != "user":
            continue
        message = with_marks(message)
        if isinstance(message["content"], str):
            new_message = {**message, "content": template.format(prompt=message["content"], **fields)}
            return dataclasses.replace(task, prompt=(*prompt[:i], new_message, *prompt[i + 1 :]))  # type: ignore[arg-type]
    raise TaskError(
        f"task {task.id!r}: nothing can be added to its prompt, which is neither a text nor a chat with a text of the "
        "user's: give it as one of these"
    )


@dataclass(frozen=True)
class Wording:
    """A template around a prompt: {prompt} is the prompt itself, `fields` fill its other places.

    >>> Wording("{prompt}{hint}", {"hint": "7+8"}).of_task(Task("a", "37+48=")).prompt
    '37+48=7+8'
    """

    template: str
    fields: Mapping[str, str]

    def of_task(self, task: Task) -> Task:
        """Return the task with its prompt put into the template; see `reword`."""
        return reword(task, self.template, **self.fields)

    def of_messages(self, messages: Sequence[Message]) -> list[Message]:
        """Put the first user message of an episode's context into the template; add one if there is none."""
        for i, message in enumerate(messages):
            if message["role"] == "user" and isinstance(message["content"], str):
                content = self.template.format(prompt=message["content"], **self.fields)
                return [*messages[:i], {**message, "content": content}, *messages[i + 1 :]]
        return [*messages, {"role": "user", "content": self.template.format(prompt="", **self.fields).strip()}]


Cut = Literal["words", "characters"]
Solution = Callable[[Task], "str | None"]


def prefix(text: str, fraction: float, cut: str = "words") -> str:
    """Return the first round(`fraction` x length) characters of a text; halves are rounded to the even number.

    cut  "words": drop a last word that would be cut in two, unless nothing else is left | "characters": exactly these |
         "lines": whole lines, at least one

    >>> [prefix("48/2 = 24 in May", f) for f in (0.25, 0.5, 0.75)], prefix("48/2 = 24 in May", 0.5, "characters")
    (['48/2', '48/2 =', '48/2 = 24 in'], '48/2 = 2')
    """
    if cut == "lines":
        lines = text.splitlines()
        return "\n".join(lines[: max(1, round(fraction * len(lines)))])
    n = round(fraction * len(text))
    if cut == "characters" or n >= len(text):
        return text[:n]
    whole_words = text[:n] if text[n].isspace() else re.sub(r"\S+$", "", text[:n])
    return whole_words.rstrip() or text[:n]


def hints_of(task: Task, solution: Solution, fractions: Sequence[float], cut: str = "words") -> list[str]:
    """Return the hints for a task, from the least to the most revealing.

    They are `task.info["hints"]`: a list of texts, or of tiers, which are lists of texts; each text of a tier is shown
    after those before it, joined by spaces. An empty list means no hints. Without that key the hints are the
    `prefix`es of `solution(task)`. TaskError if a task has neither. Source: Scaf-GRPO, GHPO.

    >>> hints_of(Task("a", "?", info={"hints": [["think", "of sums"], ["carry the one"]]}), None, ())
    ['think', 'think of sums', 'carry the one']
    """
    if "hints" in task.info:
        hints = task.info["hints"]
        tiers = [[x] if isinstance(x, str) else x for x in hints] if isinstance(hints, list | tuple) else [None]
        if not all(isinstance(tier, list | tuple) and all(isinstance(x, str) for x in tier) for tier in tiers):
            raise TaskError(f"task {task.id!r}: info['hints'] is a list of texts, or of lists of texts, not {hints!r}")
        return [" ".join(tier[: i + 1]) for tier in tiers if tier for i in range(len(tier))]
    worked_solution = solution(task)
    if worked_solution is None:
        raise TaskError(
            f"task {task.id!r} has no hints: give info['hints'] ([] for none) or a worked solution as "
            "info['solution']; an environment's solution is the actions of its expert()"
        )
    return [prefix(worked_solution, f, cut) for f in fractions]
