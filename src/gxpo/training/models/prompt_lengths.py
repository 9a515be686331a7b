"""Prompts that are too long for an answer: find them before a run; refuse, drop or shorten them from the left."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gxpo.base.errors import TaskError
from gxpo.models import chat, smollm2
from gxpo.models.chat.messages import prompt_messages
from gxpo.models.tiny import built_in
from gxpo.parts.protocols import Chat, Task
from gxpo.parts.settings import RunSettings
from gxpo.training.models.load import is_path, rows_of_model
from gxpo.training.models.without_weights import positions, tokenizer_of

MAX_EXAMPLES = 3  # tasks that a message names
MARGIN = 8  # tokens by which a text in a template may be longer than the text alone
MAX_DRAW_FACTOR = 64  # draw at most so many times a step's tasks, to replace those that are too long
REMEDY = "shorten them, lower sampling.max_new_tokens, or set tasks.too_long=drop or truncate_left"


@dataclass
class PromptLengths:
    """Prompt lengths as the model reads them, and the treatment of prompts that are too long.

    limit     tokens of a context
    answer    tokens of an action: a prompt may have `limit - answer`
    too_long  "error", "drop" or "truncate_left"
    """

    chat: Chat
    system: str | None
    limit: int
    answer: int
    too_long: str = "error"

    def __post_init__(self) -> None:
        self._template_sizes: dict[Any, int] = {}

    @property
    def prompt_limit(self) -> int:
        """Largest number of tokens of a prompt."""
        return self.limit - self.answer

    def tokens(self, prompt: Any) -> int:
        """Count the tokens of a prompt, template and system message included."""
        if _is_ids(prompt):
            return len(prompt)
        return len(self.chat.start(prompt_messages(self.chat, self.system, prompt)).context)

    def excess(self, task: Task) -> int:
        """Return the number of tokens beyond the limit; 0 if the prompt fits. Short prompts are not tokenized."""
        return 0 if self._is_short(task.prompt) else max(self.tokens(task.prompt) - self.prompt_limit, 0)

    def _is_short(self, prompt: Any) -> bool:
        """Return True if a prompt of plain messages certainly fits, without rendering its template.

        It does if, beside the tokens that the template adds for these roles, twice the bytes of its texts fit (a token
        has at least a byte, and normalisation may lengthen a text), or their tokens with a margin.
        """
        if _is_ids(prompt):
            return False
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        if any(set(m) != {"role", "content"} or not isinstance(m["content"], str) for m in messages):
            return False  # pictures, tool calls
        roles = tuple(m["role"] for m in messages)
        if roles not in self._template_sizes:
            empty: Any = "x" if isinstance(prompt, str) else [{"role": role, "content": "x"} for role in roles]
            self._template_sizes[roles] = self.tokens(empty)
        n_bytes = sum(len(m["content"].encode("utf-8", "surrogatepass")) for m in messages)
        room = self.prompt_limit - self._template_sizes[roles]
        tokens = getattr(self.chat, "tokens", None)
        if 2 * n_bytes <= room or tokens is None:
            return 2 * n_bytes <= room
        if n_bytes > 64 * room:
            return False
        return sum(MARGIN + len(tokens.encode(tokens.typed(m["content"]))) for m in messages) <= room

    # ------------------------------------------------------------ treatment
    def fit(self, task: Task) -> Task | None:
        """Return the task if its prompt fits; else raise `TaskError`, or return None or a shortened task."""
        if not self.excess(task):
            return task
        if self.too_long == "error":
            raise TaskError(f"task {task.id!r}: {self.describe([task], 1)}: {REMEDY}")
        return None if self.too_long == "drop" else self.shorten(task)

    def shorten(self, task: Task) -> Task:
        """Cut the beginning of the task's longest text until the prompt fits.

        The system message, roles, tool calls, pictures and the template's own tokens stay; of token ids the last ones
        stay, after a bos.
        """
        prompt: Any = task.prompt
        if _is_ids(prompt):
            has_bos = prompt[0] == getattr(getattr(self.chat, "tokenizer", None), "bos_token_id", None)
            head = tuple(prompt[:1]) if has_bos else ()
            return replace(task, prompt=(*head, *prompt[len(prompt) - self.prompt_limit + len(head) :]))
        # The longest text is cut by characters, since its tokens change with the cut; once one character is left, the
        # next text is the longest.
        while True:
            texts = _texts(prompt)
            text, place = max(((t, p) for p, t in texts), key=lambda pair: len(pair[0]), default=("", None))
            if len(text) <= 1:
                raise TaskError(
                    f"task {task.id!r}: its prompt has {self.tokens(prompt)} tokens even without its texts, and "
                    f"{self.prompt_limit} fit: raise the model's context, lower sampling.max_new_tokens, or set "
                    "tasks.too_long=drop"
                )
            low, high = 0, len(text) - 1  # bisect the number of characters cut: too few, perhaps enough
            while high - low > 1:
                middle = (low + high) // 2
                if self.tokens(_with_text(prompt, place, text[middle:])) > self.prompt_limit:
                    low = middle
                else:
                    high = middle
            prompt = _with_text(prompt, place, text[high:])
            if self.tokens(prompt) <= self.prompt_limit:
                return replace(task, prompt=prompt)

    def describe(self, tasks: Sequence[Task], total: int) -> str:
        """Describe how many prompts are too long, which, and what would fit."""
        examples = ", ".join(f"{t.id!r} with {self.tokens(t.prompt)}" for t in tasks[:MAX_EXAMPLES])
        more = f" and {len(tasks) - MAX_EXAMPLES} more" if len(tasks) > MAX_EXAMPLES else ""
        has = "has" if len(tasks) == 1 else "have"
        return (
            f"{len(tasks)} of {total} prompts {has} more than {self.prompt_limit} tokens ({examples}{more}), what the "
            f"context of {self.limit} leaves beside sampling.max_new_tokens={self.answer}"
        )


def training_list(source: Any) -> Sequence[Task]:
    """Return the training tasks of a source that has them as a list; () if it makes them as they are drawn."""
    return getattr(source, "training", None) or getattr(source, "pool_tasks", None) or ()


class FittingTasks:
    """Task source that checks prompts as they are drawn: too long ones are refused, replaced by the next, or shortened.

    All other attributes are those of `inner`.
    """

    def __init__(self, inner: Any, lengths: PromptLengths) -> None:
        self._inner, self._lengths, self._has_warned = inner, lengths, False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._inner, name)

    def draw(self, n: int, step: int) -> list[Task]:
        """Draw `n` training tasks of a step whose prompts fit."""
        # A generator's larger draw of a step begins with the same tasks: the result does not depend on the tries.
        draw_size, tasks = n, []
        while True:
            candidates = self._inner.draw(draw_size, step)
            tasks = [fitting for t in candidates if (fitting := self._fit(t)) is not None]
            if len(tasks) >= n:
                return tasks[:n]
            if draw_size >= MAX_DRAW_FACTOR * n:
                name = getattr(self._inner, "name", "tasks")
                raise TaskError(
                    f"task {name!r}: {draw_size - len(tasks)} of {draw_size} prompts of step {step} have more than "
                    f"{self._lengths.prompt_limit} tokens: make them shorter, or lower sampling.max_new_tokens"
                )
            draw_size = min(2 * draw_size, MAX_DRAW_FACTOR * n)

    def held_out(self, n: int) -> list[Task]:
        """Return up to `n` held-out tasks whose prompts fit."""
        return [fitting for t in self._inner.held_out(n) if (fitting := self._lengths.fit(t)) is not None]

    def _fit(self, task: Task) -> Task | None:
        """Treat a drawn task by `PromptLengths.fit`, with a warning for the first one that is too long."""
        fitted_task = self._lengths.fit(task)
        if fitted_task is not task and not self._has_warned:
            self._has_warned = True
            outcome = "left out" if fitted_task is None else "shortened from the left"
            warnings.warn(
                f"task {task.id!r}: its prompt is too long and is {outcome} (tasks.too_long={self._lengths.too_long}), "
                "as further ones are without a word",
                stacklevel=4,
            )
        return fitted_task


def _is_ids(prompt: Any) -> bool:
    return not isinstance(prompt, str) and (not prompt or isinstance(prompt[0], int))


def _texts(prompt: Any) -> list[tuple[Any, str]]:
    """List (place, text) of the texts that may be shortened.

    A place is None if the prompt is a text, else (index of the message, index of the part or None).
    """
    if isinstance(prompt, str):
        return [(None, prompt)]
    texts: list[tuple[Any, str]] = []
    for i, message in enumerate(prompt):
        content = message.get("content")
        if message.get("role") == "system":
            continue
        if isinstance(content, str):
            texts.append(((i, None), content))
        elif isinstance(content, (list, tuple)):
            parts = [(k, part.get("text")) for k, part in enumerate(content) if isinstance(part, Mapping)]
            texts += [((i, k), text) for k, text in parts if isinstance(text, str)]
    return texts


def _with_text(prompt: Any, place: Any, text: str) -> Any:
    """Replace the text at a place of `_texts`."""
    if place is None:
        return text
    i, part = place
    content: Any = prompt[i]["content"]
    new = text if part is None else [*content[:part], {**content[part], "text": text}, *content[part + 1 :]]
    return (*prompt[:i], {**prompt[i], "content": new}, *prompt[i + 1 :])


def fit(
    source: Any, lengths: PromptLengths, held_out: int, name: str, *, training: bool = True, refuses: bool = True
) -> tuple[Any, list[str]]:
    """Return the source with tasks whose prompts fit, and lines that describe the changes.

    held_out  number of tasks that evaluations sample; of a source with a list all are checked
    training  False if training samples under other prompts than the tasks'
    refuses   False if tasks that are too long under tasks.too_long=error are only described, True to raise TaskError

    Tasks that a source makes at each step are checked as they are drawn.
    """
    # A source with a list is changed once; any other is wrapped, unless training does not use its prompts.
    is_finite = hasattr(source, "keep_fitting")
    training_tasks = list(training_list(source)) if training else []
    held_out_tasks = source.held_out(1 << 30 if is_finite else held_out)
    long = [task for task in (*training_tasks, *held_out_tasks) if lengths.excess(task)]
    if not long:
        return (source if is_finite or not training else FittingTasks(source, lengths)), []
    summary = f"{name}: {lengths.describe(long, len(training_tasks) + len(held_out_tasks))}"
    if lengths.too_long == "error":
        if refuses:
            raise TaskError(f"{summary}: {REMEDY}")
        return source, [f"{summary}; the run ends where one of them is drawn"]
    outcome = "left out" if lengths.too_long == "drop" else "shortened from the left"
    if not is_finite:
        return FittingTasks(source, lengths), [f"{summary}: {outcome} (tasks.too_long={lengths.too_long})"]
    # By identity, since the source calls back with the same objects.
    fitted_by_id = {id(task): lengths.fit(task) for task in long}
    source.keep_fitting(lambda task: fitted_by_id.get(id(task), task))
    return source, [f"{summary}: {outcome} (tasks.too_long={lengths.too_long})"]


def lengths_of_model(s: RunSettings) -> PromptLengths | None:
    """Build the prompt lengths of a run's model without its weights; None if it is not local or has no limit."""
    if not (built_in(s.model) or (is_path(s.model) and Path(s.model).expanduser().is_dir())) or s.model == smollm2.NAME:
        return None
    limit = positions(s.model, s.task)
    if not limit:
        return None
    c = s.chat
    model_chat = chat.make(
        tokenizer_of(s.model),
        template=c.template,
        kwargs=c.kwargs,
        tools_format=c.tools,
        rewrites=c.rewrites,
        rows_of=rows_of_model(s.model, s.task),
    )
    return PromptLengths(model_chat, c.system, limit, s.sampling.max_new_tokens, s.tasks.too_long)
