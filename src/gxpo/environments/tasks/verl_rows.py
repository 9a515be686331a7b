"""Rows in verl's layout: messages under `prompt`, the answer under `reward_model.ground_truth`."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from gxpo.base.cells import cell
from gxpo.base.errors import TaskError

ANSWER = "reward_model.ground_truth"
PICTURES = ("images", "videos")  # columns that verl's `<image>` and `<video>` in a text stand for


def with_answers(rows: Sequence[Any], column: str, label: str) -> list[Any]:
    """The rows with an answer in `column`, where they are in verl's layout and lack it.

    column  "answer", or the ground truth by its dotted name, which a list of one text becomes, too

    Where some ground truth is not one text or number, no row gets an answer, and unless the column was named a warning
    says which is first: a reward of the user's reads them in `info`. A row whose prompt shows pictures of a column
    beside it becomes its error.
    """
    rows = [row if isinstance(row, TaskError) or not is_verl(row[2]) else _without_pictures(row) for row in rows]
    readable_rows = [row for row in rows if not isinstance(row, TaskError)]
    verl = [row for row in readable_rows if is_verl(row[2])]
    if not verl or any(column in row[2] for row in readable_rows):
        return rows
    answers: dict[str, Any] = {}
    for where, _, cells in verl:
        truth, why = answer_of(cells)
        if why:
            if column != ANSWER:
                _warn(label, where.removeprefix(f"{label}, "), why)
            return rows
        answers[where] = truth
    answered = [None if isinstance(row, TaskError) else answers.get(row[0]) for row in rows]
    return [
        row if answer is None else (*row[:2], {**row[2], column: answer})
        for row, answer in zip(rows, answered, strict=True)
    ]


def _warn(label: str, place: str, why: str) -> None:
    warnings.warn(
        f"{label}: rows in verl's layout, and of {place} {why}: no task has an answer, which reward=math needs; name "
        "the text, as in tasks.options.answer=reward_model.ground_truth.KEY, or take a reward of your own, which finds "
        "it in info['reward_model']",
        stacklevel=5,
    )


def is_verl(cells: Mapping[str, Any]) -> bool:
    """Return True if a row has verl's columns."""
    model = cells.get("reward_model")
    return "prompt" in cells and isinstance(model, Mapping) and "ground_truth" in model


def answer_of(cells: Mapping[str, Any]) -> tuple[str | int | float | None, str]:
    """(ground truth of a row, "") where it is one text or number, or a list of one; else (None, what it is).

    >>> answer_of({"reward_model": {"style": "rule", "ground_truth": "7"}})
    ('7', '')
    >>> answer_of({"reward_model": {"ground_truth": {"target": ["a", "b"]}}})[1]
    'reward_model.ground_truth is a mapping of target'
    """
    value, style = cell(cells, ANSWER), cell(cells, "reward_model.style")
    if style is not None and not str(style).startswith("rule"):
        return None, f"reward_model.style is {style!r}, not a rule"
    listed = _json(value)
    if isinstance(listed, (list, tuple)) and len(listed) == 1:
        value = listed = listed[0]
    if isinstance(listed, Mapping):
        return None, f"{ANSWER} is a mapping of {', '.join(map(str, listed)) or 'nothing'}"
    if isinstance(listed, (list, tuple)):
        return None, f"{ANSWER} is a list of {len(listed)}"
    if isinstance(value, bool) or not isinstance(value, (str, int, float)) or value == "":
        return None, f"{ANSWER} is {value!r}"
    return value, ""


def _json(value: Any) -> Any:
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


def _without_pictures(row: Any) -> Any:
    where, _, cells = row
    for column in PICTURES:
        mark = f"<{column[:-1]}>"
        if cells.get(column) and mark in str(cells["prompt"]):
            return TaskError(
                f"{where}: its prompt has {mark} where verl puts what the column {column!r} holds, which is not read: "
                "write it as a part of the message, {'type': 'image', 'image': FILE}"
            )
    return row
