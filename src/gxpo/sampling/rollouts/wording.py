"""Prompts in other words: templates that a task's own prompt, and hints, drafts or attempts, are put into."""

from __future__ import annotations

import dataclasses
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gxpo.base.errors import ConfigError, TaskError
from gxpo.base.media import with_marks
from gxpo.parts.protocols import Message, Task


def check_template(key: str, template: str, required: Sequence[str], optional: Sequence[str] = ()) -> None:
    """Refuse a template without its places, or with places that nothing is put into.

    >>> check_template("rollout.template", "{prompt}{hint}", ("prompt", "hint"))
    """
    try:
        found = {name for _, name, _, _ in string.Formatter().parse(template) if name is not None}
    except ValueError as error:
        raise ConfigError(f"{key}={template!r} is not a template: {error}; a brace itself is written twice") from None
    absent = [name for name in required if name not in found]
    unknown = sorted(found - {*required, *optional})
    if absent or unknown:
        wrong = f"lacks {{{absent[0]}}}" if absent else f"has {{{unknown[0]}}}"
        places = ", ".join(f"{{{name}}}" for name in (*required, *optional))
        raise ConfigError(f"{key}={template!r} {wrong}: its places are {places}")


def reworded(task: Task, template: str, **said: str) -> Task:
    """The task with another prompt: the template's {prompt} is its text, of a chat the user's last message.

    >>> reworded(Task("a", "37+48="), "{prompt}{hint}", hint="7+8").prompt
    '37+48=7+8'
    """
    prompt = task.prompt
    if isinstance(prompt, str):
        return dataclasses.replace(task, prompt=template.format(prompt=prompt, **said))
    for i in reversed(range(len(prompt))):
        message = prompt[i]
        if not isinstance(message, Mapping) or message["role"] != "user":
            continue
        message = with_marks(message)
        if isinstance(message["content"], str):
            changed = {**message, "content": template.format(prompt=message["content"], **said)}
            return dataclasses.replace(task, prompt=(*prompt[:i], changed, *prompt[i + 1 :]))  # type: ignore[arg-type]
    raise TaskError(
        f"task {task.id!r}: nothing can be added to its prompt, which is neither a text nor a chat with a text of the "
        "user's: give it as one of these"
    )


@dataclass(frozen=True)
class Wording:
    """What is asked in other words: a template whose {prompt} is what is asked, and what its other places hold.

    >>> Wording("{prompt}{hint}", {"hint": "7+8"}).of_task(Task("a", "37+48=")).prompt
    '37+48=7+8'
    """

    template: str
    said: Mapping[str, str]

    def of_task(self, task: Task) -> Task:
        """The task with another prompt; see `reworded`."""
        return reworded(task, self.template, **self.said)

    def of_messages(self, messages: Sequence[Message]) -> list[Message]:
        """Messages that begin an episode's context, with another first one of the user's; one is added to none."""
        for i, message in enumerate(messages):
            if message["role"] == "user" and isinstance(message["content"], str):
                content = self.template.format(prompt=message["content"], **self.said)
                return [*messages[:i], {**message, "content": content}, *messages[i + 1 :]]
        return [*messages, {"role": "user", "content": self.template.format(prompt="", **self.said).strip()}]
