"""Prompts that leave no room for an answer: found before a run, refused, dropped or shortened from the left."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gxpo.base.errors import TaskError
from gxpo.models import chat, smollm2
from gxpo.models.tiny import built_in
from gxpo.parts.protocols import Chat, Task
from gxpo.parts.settings import RunSettings
from gxpo.sampling.rollouts.context import prompt_messages
from gxpo.training.models.load import is_path, rows_of_model
from gxpo.training.models.without_weights import positions, tokenizer_of

NAMED = 3  # tasks that a message names
MARGIN = 8  # tokens by which a text in a template may be longer than the text alone
TRIES = 64  # times as many tasks as a step has that are drawn at most, in the place of those that are too long
REMEDY = "shorten them, lower sampling.max_new_tokens, or set tasks.too_long=drop or truncate_left"


@dataclass
class PromptLengths:
    """Lengths of tasks' prompts as the model reads them, and what is done with those that are too long.

    limit   tokens of a context
    answer  tokens of an action: a prompt may have `limit - answer`
    """

    chat: Chat
    system: str | None
    limit: int
    answer: int
    too_long: str = "error"

    def __post_init__(self) -> None:
        self._frames: dict[Any, int] = {}

    @property
    def most(self) -> int:
        """Tokens that a prompt may have."""
        return self.limit - self.answer

    def tokens(self, prompt: Any) -> int:
        """Number of tokens of a prompt, template and system message included."""
        if _is_ids(prompt):
            return len(prompt)
        return len(self.chat.start(prompt_messages(self.chat, self.system, prompt)).context)

    def excess(self, task: Task) -> int:
        """Tokens beyond what fits; 0 where it fits. A prompt whose bytes fit is not tokenised."""
        return 0 if self._is_short(task.prompt) else max(self.tokens(task.prompt) - self.most, 0)

    def _is_short(self, prompt: Any) -> bool:
        """True if the texts alone, with what a template adds to these roles, certainly fit: twice their bytes do (a
        token is at least a byte, and what a tokenizer normalises may grow), or their tokens do by a margin."""
        if _is_ids(prompt):
            return False
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        if any(set(m) != {"role", "content"} or not isinstance(m["content"], str) for m in messages):
            return False  # pictures, tool calls
        roles = tuple(m["role"] for m in messages)
        if roles not in self._frames:
            empty: Any = "x" if isinstance(prompt, str) else [{"role": role, "content": "x"} for role in roles]
            self._frames[roles] = self.tokens(empty)
        size = sum(len(m["content"].encode("utf-8", "surrogatepass")) for m in messages)
        room = self.most - self._frames[roles]
        tokens = getattr(self.chat, "tokens", None)
        if 2 * size <= room or tokens is None:
            return 2 * size <= room
        if size > 64 * room:
            return False
        return sum(MARGIN + len(tokens.encode(tokens.typed(m["content"]))) for m in messages) <= room

    # ------------------------------------------------------------ what is done
    def fitted(self, task: Task) -> Task | None:
        """The task as it is where its prompt fits; else a `TaskError`, None, or the task with a shortened prompt."""
        if not self.excess(task):
            return task
        if self.too_long == "error":
            raise TaskError(f"task {task.id!r}: {self.said([task], 1)}: {REMEDY}")
        return None if self.too_long == "drop" else self.shortened(task)

    def shortened(self, task: Task) -> Task:
        """The task with the beginning of its longest text cut off, until the prompt fits.

        The system message, roles, tool calls, pictures and what the template adds stay; of token ids the last stay,
        after a bos.
        """
        prompt: Any = task.prompt
        if _is_ids(prompt):
            begins = prompt[0] == getattr(getattr(self.chat, "tokenizer", None), "bos_token_id", None)
            head = tuple(prompt[:1]) if begins else ()
            return replace(task, prompt=(*head, *prompt[len(prompt) - self.most + len(head) :]))
        while True:
            places = _texts(prompt)
            text, place = max(((t, p) for p, t in places), key=lambda found: len(found[0]), default=("", None))
            if len(text) <= 1:
                raise TaskError(
                    f"task {task.id!r}: its prompt has {self.tokens(prompt)} tokens even without its texts, and "
                    f"{self.most} fit: raise the model's context, lower sampling.max_new_tokens, or set "
                    "tasks.too_long=drop"
                )
            low, high = 0, len(text) - 1  # characters cut: too few, perhaps enough
            while high - low > 1:
                middle = (low + high) // 2
                if self.tokens(_with_text(prompt, place, text[middle:])) > self.most:
                    low = middle
                else:
                    high = middle
            prompt = _with_text(prompt, place, text[high:])
            if self.tokens(prompt) <= self.most:
                return replace(task, prompt=prompt)

    def said(self, tasks: Sequence[Task], total: int) -> str:
        """Describe how many prompts are too long, which, and what would fit."""
        examples = ", ".join(f"{t.id!r} with {self.tokens(t.prompt)}" for t in tasks[:NAMED])
        more = f" and {len(tasks) - NAMED} more" if len(tasks) > NAMED else ""
        has = "has" if len(tasks) == 1 else "have"
        return (
            f"{len(tasks)} of {total} prompts {has} more than {self.most} tokens ({examples}{more}), what the context "
            f"of {self.limit} leaves beside sampling.max_new_tokens={self.answer}"
        )


def listed_of(source: Any) -> Sequence[Task]:
    """The training tasks of a source that has a list of them."""
    return getattr(source, "training", None) or getattr(source, "pool_tasks", None) or ()


class FittingTasks:
    """A source whose tasks are looked at as they are drawn: those too long are refused, replaced by the next, or
    shortened. Whatever else it is asked for, `inner` answers."""

    def __init__(self, inner: Any, lengths: PromptLengths) -> None:
        self._inner, self._lengths, self._warned = inner, lengths, False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def draw(self, n: int, step: int) -> list[Task]:
        """`n` training tasks of a step whose prompts fit."""
        draw_size, tasks = n, []
        while True:
            candidates = self._inner.draw(draw_size, step)
            tasks = [found for t in candidates if (found := self._fitted(t)) is not None]
            if len(tasks) >= n:
                return tasks[:n]
            if draw_size >= TRIES * n:
                name = getattr(self._inner, "name", "tasks")
                raise TaskError(
                    f"task {name!r}: {draw_size - len(tasks)} of {draw_size} prompts of step {step} have more than "
                    f"{self._lengths.most} tokens: make them shorter, or lower sampling.max_new_tokens"
                )
            draw_size = min(2 * draw_size, TRIES * n)

    def held_out(self, n: int) -> list[Task]:
        """Up to `n` held-out tasks whose prompts fit."""
        return [found for t in self._inner.held_out(n) if (found := self._lengths.fitted(t)) is not None]

    def _fitted(self, task: Task) -> Task | None:
        fitted_task = self._lengths.fitted(task)
        if fitted_task is not task and not self._warned:
            self._warned = True
            what = "left out" if fitted_task is None else "shortened from the left"
            warnings.warn(
                f"task {task.id!r}: its prompt is too long and is {what} (tasks.too_long={self._lengths.too_long}), as "
                "further ones are without a word",
                stacklevel=4,
            )
        return fitted_task


def _is_ids(prompt: Any) -> bool:
    return not isinstance(prompt, str) and (not prompt or isinstance(prompt[0], int))


def _texts(prompt: Any) -> list[tuple[Any, str]]:
    """(place, text) of the texts that may be shortened; a place is None in a prompt that is a text, else (message, part
    or None)."""
    if isinstance(prompt, str):
        return [(None, prompt)]
    out: list[tuple[Any, str]] = []
    for i, message in enumerate(prompt):
        content = message.get("content")
        if message.get("role") == "system":
            continue
        if isinstance(content, str):
            out.append(((i, None), content))
        elif isinstance(content, (list, tuple)):
            parts = [(k, part.get("text")) for k, part in enumerate(content) if isinstance(part, Mapping)]
            out += [((i, k), text) for k, text in parts if isinstance(text, str)]
    return out


def _with_text(prompt: Any, place: Any, text: str) -> Any:
    """The prompt with another text at a place of `_texts`."""
    if place is None:
        return text
    i, part = place
    content: Any = prompt[i]["content"]
    new = text if part is None else [*content[:part], {**content[part], "text": text}, *content[part + 1 :]]
    return (*prompt[:i], {**prompt[i], "content": new}, *prompt[i + 1 :])


def fit(
    source: Any, lengths: PromptLengths, held_out: int, name: str, *, training: bool = True, refuses: bool = True
) -> tuple[Any, list[str]]:
    """The source with tasks whose prompts fit, and lines that say what was done.

    held_out  tasks that evaluations sample, where the source makes them as they are asked for; of a list all are read
    training  whether training samples under the tasks' prompts
    refuses   whether tasks that are too long raise TaskError under tasks.too_long=error, or are only told

    What a source makes anew at each step is looked at as it is drawn.
    """
    finite = hasattr(source, "keep_fitting")
    training_tasks = list(listed_of(source)) if training else []
    held_out_tasks = source.held_out(1 << 30 if finite else held_out)
    long = [task for task in (*training_tasks, *held_out_tasks) if lengths.excess(task)]
    if not long:
        return (source if finite or not training else FittingTasks(source, lengths)), []
    summary = f"{name}: {lengths.said(long, len(training_tasks) + len(held_out_tasks))}"
    if lengths.too_long == "error":
        if refuses:
            raise TaskError(f"{summary}: {REMEDY}")
        return source, [f"{summary}; the run ends where one of them is drawn"]
    what = "left out" if lengths.too_long == "drop" else "shortened from the left"
    if not finite:
        return FittingTasks(source, lengths), [f"{summary}: {what} (tasks.too_long={lengths.too_long})"]
    changed = {id(task): lengths.fitted(task) for task in long}
    source.keep_fitting(lambda task: changed.get(id(task), task))
    return source, [f"{summary}: {what} (tasks.too_long={lengths.too_long})"]


def of_name(s: RunSettings) -> PromptLengths | None:
    """The lengths as the run's model reads them, without its weights; None where it is not here, or has no limit."""
    if not (built_in(s.model) or (is_path(s.model) and Path(s.model).expanduser().is_dir())) or s.model == smollm2.NAME:
        return None
    limit = positions(s.model, s.task)
    if not limit:
        return None
    c = s.chat
    talk = chat.make(
        tokenizer_of(s.model),
        template=c.template,
        kwargs=c.kwargs,
        tools_format=c.tools,
        rewrites=c.rewrites,
        rows_of=rows_of_model(s.model, s.task),
    )
    return PromptLengths(talk, c.system, limit, s.sampling.max_new_tokens, s.tasks.too_long)
