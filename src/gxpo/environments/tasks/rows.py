"""Convert rows of data to tasks: the columns of prompt and answer, validation of rows, verl's layout."""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from gxpo.base import cells
from gxpo.base.errors import ModelError, TaskError
from gxpo.models.chat.messages import normal_messages, without_prefill
from gxpo.parts.protocols import Message, Task

VERL_ANSWER = "reward_model.ground_truth"
VERL_PICTURES = ("images", "videos")  # columns that verl's `<image>` and `<video>` in a text stand for
SHOWN = 3  # places and kinds of faults in an error
Row = tuple[str, str, Mapping[str, Any]]  # (place for messages, id if it has none, columns)


@dataclass(frozen=True)
class Columns:
    """Columns that tasks are made of; all others go to `task.info`.

    prompt, answer  their names; the prompt's may hold messages. `a.b` is what the column `a` has under the key `b`
    answer_after    the answer is the text after this mark in its column (GSM8K: "####")
    template        text of the prompt; must hold {prompt}
    """

    prompt: str = "prompt"
    answer: str = "answer"
    answer_after: str = ""
    template: str = "{prompt}"

    options: ClassVar[Mapping[str, type]] = {"prompt": str, "answer": str, "answer_after": str, "template": str}

    @classmethod
    def among(cls, options: Mapping[str, Any]) -> tuple[Columns, dict[str, Any]]:
        """Split options of a task into `Columns` and all others."""
        column_options = {k: v for k, v in options.items() if k in cls.options}
        return cls(**column_options), {k: v for k, v in options.items() if k not in column_options}

    def check(self, label: str) -> None:
        """Raise TaskError for a template without {prompt}."""
        if "{prompt}" not in self.template:
            raise TaskError(f"task {label!r}: template must contain {{prompt}}, not {self.template!r}")


COLUMNS = Columns()


def tasks_of(rows: Iterable[Row | TaskError], columns: Columns, label: str, example: str = "") -> list[Task]:
    """Convert rows to tasks, in order; one TaskError reports all rows at fault, and nothing is half-loaded.

    rows     or, in place of a row that could not be read, its error
    label    name of the file, data set or argument, for messages
    example  ending of the message about an empty source

    A row's `id` is the task's. Without a column of answers, tasks have none; a row that lacks a column that others have
    is an error. An answer or an id that is a number becomes text, and `info` keeps the number.
    """
    # layouts of other tools become rows with a prompt and an answer, before anything is checked
    rows_or_errors = [row if isinstance(row, TaskError) else with_prompt(row, columns) for row in rows]
    if columns.answer in (COLUMNS.answer, VERL_ANSWER):
        rows_or_errors = with_verl_answers(rows_or_errors, columns.answer, label)
    readable = [row for row in rows_or_errors if not isinstance(row, TaskError)]
    if not rows_or_errors:
        raise TaskError(f"{label}: no tasks in it{example}")
    if not readable:
        raise faults_error(label, [row for row in rows_or_errors if isinstance(row, TaskError)], len(rows_or_errors))
    # a column that no row has is one error, not one for each row
    _check_columns(readable, columns, label)
    has_answers = any(cells.cell(row, columns.answer) is not None for _, _, row in readable)
    tasks: list[Task] = []
    faults: list[TaskError] = []
    place_by_id: dict[str, str] = {}
    for entry in rows_or_errors:
        if isinstance(entry, TaskError):
            faults.append(entry)
            continue
        where, default_id, row = entry
        try:
            task = task_of(where, default_id, row, columns, has_answers=has_answers)
            if task.id in place_by_id:
                raise TaskError(f"{where}: id {task.id!r} is already that of {place_by_id[task.id]}")
        except TaskError as error:
            faults.append(error)
            continue
        place_by_id[task.id] = where.rpartition(", ")[2]
        tasks.append(task)
    if faults:
        raise faults_error(label, faults, len(rows_or_errors))
    return tasks


def with_prompt(row: Row, columns: Columns) -> Row:
    """Add the prompt to a row of a preference data set: the messages that open both of its answers.

    A row with a prompt, or of another layout, is returned unchanged.
    """
    where, default_id, cells_by_name = row
    answers = [cells_by_name.get(column) for column in ("chosen", "rejected")]
    if cells.has_cell(cells_by_name, columns.prompt) or not all(isinstance(x, (list, tuple)) for x in answers):
        return row
    chosen, rejected = (list(x or ()) for x in answers)
    common = [a for a, _ in itertools.takewhile(lambda two: two[0] == two[1], zip(chosen, rejected, strict=False))]
    # at least one message of each conversation is its answer, even where both are the same
    opening = common[: min(len(common), len(chosen) - 1, len(rejected) - 1)]
    while opening and isinstance(opening[-1], Mapping) and opening[-1].get("role") == "assistant":
        opening.pop()
    return (where, default_id, {**cells_by_name, columns.prompt: opening}) if opening else row


def faults_error(label: str, faults: Sequence[TaskError], row_count: int) -> TaskError:
    """Join the errors of several rows: the kinds of faults, each with its first few places."""
    if len(faults) == 1:
        return faults[0]
    places: dict[str, list[str]] = {}
    for fault in faults:
        # two rows with the same fault differ in their place alone, which begins the message
        where, _, fault_text = str(fault).removeprefix(f"{label}, ").partition(": ")
        places.setdefault(fault_text, []).append(where)
    messages = [f"{_first_few(wheres)}: {fault_text}" for fault_text, wheres in list(places.items())[:SHOWN]]
    if len(places) > SHOWN:
        messages.append(f"and {len(places) - SHOWN} more kinds of faults")
    return TaskError(f"{label}: {len(faults)} of {row_count} rows are at fault; {'; '.join(messages)}")


def _first_few(places: Sequence[str]) -> str:
    """List the first few places: "line 2, line 5, line 8 and 4 more"."""
    more = f" and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
    return ", ".join(places[:SHOWN]) + more


def _check_columns(rows: list[Row], columns: Columns, label: str) -> None:
    """Raise TaskError for a column that no row has; the default column of answers may be missing."""
    column_by_option = {"prompt": columns.prompt, "answer": columns.answer}
    for option, column in column_by_option.items():
        if (option == "answer" and column == option) or any(cells.has_cell(row, column) for _, _, row in rows):
            continue
        hint = cells.lacking([row for _, _, row in rows], column)
        raise TaskError(f"{label}: no column {column!r}{hint} (set tasks.options.{option} to the name of the column)")


def task_of(where: str, default_id: str, row: Mapping[str, Any], columns: Columns, *, has_answers: bool) -> Task:
    """Convert one row to a task, which must have an answer if `answered`."""
    row = dict(row)
    for column in (columns.prompt, *([columns.answer] if has_answers else [])):
        if not cells.has_cell(row, column):
            raise TaskError(f"{where}: field {column!r} is missing, which other rows have")
    # a column that is taken whole leaves `info`; one that is read by a dotted name stays
    prompt, answer = (row.pop(c) if c in row else cells.cell(row, c) for c in (columns.prompt, columns.answer))
    name = row.pop("id", default_id)
    if isinstance(name, int) and not isinstance(name, bool):
        row["id"], name = name, str(name)
    if not isinstance(name, str) or not name:
        raise TaskError(f"{where}: field 'id' must be a text that is not empty or a whole number, not {name!r}")
    prompt_text = _prompt(where, prompt, columns)
    # `info` keeps a number as it was: a reward of the user's may compute with it
    if has_answers:
        if isinstance(answer, bool) or not isinstance(answer, (str, int, float)) or answer == "":
            raise TaskError(
                f"{where}: field {columns.answer!r} must be a text that is not empty or a number, not {answer!r}; "
                "under another name any value is allowed, and a reward finds it in `info`"
            )
        if not isinstance(answer, str):
            row["answer"] = answer
        answer = str(answer)
        if columns.answer_after:
            _, mark, answer = answer.rpartition(columns.answer_after)
            if not mark:
                raise TaskError(f"{where}: its {columns.answer!r} has no {columns.answer_after!r} in it")
            answer = answer.strip()
    return Task(name, prompt_text, answer, row)


def _prompt(where: str, prompt: Any, columns: Columns) -> str | tuple[Message, ...]:
    """Validate a prompt: a text, put into the template, or messages, which take none."""
    if isinstance(prompt, (list, tuple)):
        return messages(list(prompt), where)
    if not isinstance(prompt, str) or not prompt:
        raise TaskError(
            f"{where}: field {columns.prompt!r} must be a text that is not empty or messages, not {prompt!r}"
        )
    return columns.template.replace("{prompt}", prompt)


def messages(entries: list[Any], where: str) -> tuple[Message, ...]:
    """Validate a prompt of messages, each {"role": text, "content": text or parts of text}; see `normal_messages`.

    Keys that are null are left out, and the arguments of tool calls become objects.
    """
    if not entries:
        raise TaskError(f"{where}: field 'prompt' holds no message")
    try:
        conversation = normal_messages(entries)
        without_prefill(conversation)  # an answer that is begun must be one that can be continued
    except ModelError as error:
        raise TaskError(f"{where}: field 'prompt' must hold messages with 'role' and 'content': {error}") from None
    for i, message in enumerate(conversation):
        if not isinstance(message["content"], str):
            raise TaskError(
                f"{where}: field 'prompt': message {i}: rows of data hold texts: a prompt with a picture comes from a "
                "task source in Python (docs/vision.md)"
            )
    return tuple(conversation)


# ---------------------------------------------------------------- verl's layout: the answer under `reward_model`
def with_verl_answers(rows: Sequence[Any], column: str, label: str) -> list[Any]:
    """Add answers to rows in verl's layout that have none in `column`.

    column  "answer", or the ground truth by its dotted name, which a list of one text becomes, too

    Where some ground truth is not one text or number, no row gets an answer, and unless the column was named a warning
    says which is first: a reward of the user's reads them in `info`. A row whose prompt shows pictures of a column
    beside it becomes its error.
    """
    rows = [row if isinstance(row, TaskError) or not is_verl(row[2]) else _refuse_verl_pictures(row) for row in rows]
    readable_rows = [row for row in rows if not isinstance(row, TaskError)]
    verl = [row for row in readable_rows if is_verl(row[2])]
    if not verl or any(column in row[2] for row in readable_rows):
        return rows
    answers: dict[str, Any] = {}
    for where, _, row in verl:
        truth, reason = verl_answer(row)
        # all or none: a data set of which some rows are answered would fail on the others
        if reason:
            if column != VERL_ANSWER:
                _warn_of_verl_truths(label, where.removeprefix(f"{label}, "), reason)
            return rows
        answers[where] = truth
    new_rows = [None if isinstance(row, TaskError) else answers.get(row[0]) for row in rows]
    return [
        row if answer is None else (*row[:2], {**row[2], column: answer})
        for row, answer in zip(rows, new_rows, strict=True)
    ]


def _warn_of_verl_truths(label: str, place: str, reason: str) -> None:
    warnings.warn(
        f"{label}: rows in verl's layout, and of {place} {reason}: no task has an answer, which reward=math needs; "
        "name the text, as in tasks.options.answer=reward_model.ground_truth.KEY, or take a reward of your own, which "
        "finds it in info['reward_model']",
        stacklevel=5,
    )


def is_verl(row: Mapping[str, Any]) -> bool:
    """Return True if a row has verl's columns."""
    model = row.get("reward_model")
    return "prompt" in row and isinstance(model, Mapping) and "ground_truth" in model


def verl_answer(row: Mapping[str, Any]) -> tuple[str | int | float | None, str]:
    """Ground truth of a row as (value, "") if it is one text or number, or a list of one; else (None, its description).

    >>> verl_answer({"reward_model": {"style": "rule", "ground_truth": "7"}})
    ('7', '')
    >>> verl_answer({"reward_model": {"ground_truth": {"target": ["a", "b"]}}})[1]
    'reward_model.ground_truth is a mapping of target'
    """
    value, style = cells.cell(row, VERL_ANSWER), cells.cell(row, "reward_model.style")
    if style is not None and not str(style).startswith("rule"):
        return None, f"reward_model.style is {style!r}, not a rule"
    decoded_value = _decode_json(value)
    if isinstance(decoded_value, (list, tuple)) and len(decoded_value) == 1:
        value = decoded_value = decoded_value[0]
    if isinstance(decoded_value, Mapping):
        return None, f"{VERL_ANSWER} is a mapping of {', '.join(map(str, decoded_value)) or 'nothing'}"
    if isinstance(decoded_value, (list, tuple)):
        return None, f"{VERL_ANSWER} is a list of {len(decoded_value)}"
    if isinstance(value, bool) or not isinstance(value, (str, int, float)) or value == "":
        return None, f"{VERL_ANSWER} is {value!r}"
    return value, ""


def _decode_json(value: Any) -> Any:
    """Decode a text of JSON that holds a mapping or a list of texts; return any other value as it is ("[0, 1]" is an
    interval)."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        content = json.loads(value)
    except (ValueError, RecursionError):
        return value
    texts = isinstance(content, list) and content and all(isinstance(x, (str, Mapping)) for x in content)
    return content if isinstance(content, Mapping) or texts else value


def _refuse_verl_pictures(row: Any) -> Any:
    """Return the error of a row whose text refers to pictures of another column; any other row unchanged."""
    where, _, cells = row
    for column in VERL_PICTURES:
        mark = f"<{column[:-1]}>"
        if cells.get(column) and mark in str(cells["prompt"]):
            return TaskError(
                f"{where}: its prompt has {mark} where verl puts what the column {column!r} holds, which is not read: "
                "write it as a part of the message, {'type': 'image', 'image': FILE}"
            )
    return row
