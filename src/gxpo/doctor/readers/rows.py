"""Readers of JSON documents and JSON Lines: `trainer_state.json`, metrics of any trainer."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gxpo.doctor.readers import keys
from gxpo.doctor.readers.table import STEP_KEYS, Row, Table, figures, flat, number, of_group, step_of

# Texts of a rollout: a file whose rows have them is a dump, which `gxpo.doctor.rollout_files` reads.
ROLLOUT_KEYS = {
    "prompt",
    "completion",
    "completions",
    "input",
    "output",
    "response",
    "messages",
    "nodes",
    "trajectories",
    "gts",
    "turns",
    "responses",
    "content",  # NeMo-RL's train_data_step1.jsonl, which is large and has no figures of steps
    "token_ids",
}
MOST_ABORTED = 12  # rows of starts that were given up


def from_text(text: str) -> Table | None:
    """Read a JSON document; of one that is cut short the complete rows. None if it has no figures and no settings."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        if '"log_history"' not in text:
            return None
        begin = text.index('"log_history"')
        table = _state({"log_history": list(_objects(text, begin))})
        table.is_torn = True
        return table
    return from_document(document)


def from_document(document: Any) -> Table | None:
    """Make a table of parsed JSON: a trainer's state, a list of rows, or settings; None for anything else."""
    if isinstance(document, Mapping):
        if isinstance(document.get("log_history"), list):
            return _state(document)
        if isinstance(document.get("history"), list):
            return from_document(document["history"])
        lists = [value for value in document.values() if isinstance(value, list)]
        if len(lists) == 1 and len(lists[0]) >= 3 and all(map(_is_row, lists[0][:3])):
            return _rows(lists[0])
        if document and all(map(_is_curve, document.values())):
            return _curves(document)
        if (rows := _of_columns(document)) is not None:
            return _rows(rows)
        settings = flat(document)
        return Table("config", settings=settings) if settings else None
    if isinstance(document, list) and document and all(isinstance(row, Mapping) for row in document[:10]):
        if is_rollout(document[0]):
            return None
        return _rows(document)
    return None


def _of_columns(document: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Rows of a mapping of lists of figures of one length, as notebooks save them; None for anything else."""
    lists = {key: value for key, value in document.items() if isinstance(value, list)}
    sizes = {len(value) for value in lists.values()}
    is_figures = all(number(v) is not None for value in lists.values() for v in value)
    if len(lists) < 2 or len(sizes) != 1 or min(sizes) < 3 or not is_figures or not keys.is_training(list(lists)):
        return None
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


def _is_row(value: Any) -> bool:
    """True for a mapping with a step and a metric."""
    return isinstance(value, Mapping) and step_of(value)[0] is not None and any(map(keys.is_metric, map(str, value)))


def _is_curve(value: Any) -> bool:
    """True for figures by step, as NeMo-RL's metrics.json has them: {"1": 0.5, "2": 0.25}."""
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(str(k).isdigit() and number(v) is not None for k, v in value.items())
    )


def _curves(document: Mapping[str, Mapping[str, Any]]) -> Table:
    """Make a table of figures by key, then by step."""
    rows: dict[float, dict[str, float]] = {}
    for key, curve in document.items():
        for step, value in curve.items():
            rows.setdefault(float(step), {})[key] = number(value) or 0.0
    return Table("rows", sorted(rows.items()))


def is_rollout(row: Any) -> bool:
    """True if a row is a rollout, not figures of a step."""
    if not isinstance(row, Mapping):
        return False
    if str(row.get("schema", row.get("format", ""))).startswith("gxpo.sampling.rollouts"):
        return True
    return any(isinstance(row.get(key), (str, list, dict)) for key in ROLLOUT_KEYS & set(map(str, row)))


_TEXTS = re.compile(
    r"\{\"(?:schema|prompt|completion|input|output|response|messages|request_id|(?:\w*_)?step)\": ?[\"\[{]"
)


def is_dump(first: str) -> bool:
    """True if the first line of a text is a rollout; a long line may be cut short."""
    try:
        return is_rollout(json.loads(first))
    except (ValueError, RecursionError):
        return _TEXTS.match(first) is not None


def from_lines(lines: Iterable[str]) -> Table | None:
    """Read JSON Lines; None if the first objects are rollouts or messages of a chat.

    The last line of a run that is still going may be cut: the table is torn, and the line not counted as unreadable.
    """
    rows: list[Mapping[str, Any]] = []
    unreadable, torn, n_lines = 0, False, 0
    for line in lines:
        line = line.strip()
        if not line or line in "[],":
            continue
        n_lines += 1
        torn = False
        try:
            row = json.loads(line.rstrip(","))
        except (ValueError, RecursionError):
            # a text that begins like JSON Lines and is not: given up once half of its lines are unreadable
            unreadable, torn = unreadable + 1, True
            if unreadable >= 20 and unreadable > n_lines / 2:
                return None
            continue
        if not isinstance(row, Mapping):
            unreadable += 1
            continue
        if len(rows) < 3 and is_rollout(row):
            return None
        rows.append(row)
    if not rows:
        return None
    # a file of one line may be a whole document: settings, or a state
    nested = any(isinstance(v, Mapping) and k not in ("data", "metrics") for k, v in rows[0].items())
    if len(rows) == 1 and (nested or "log_history" in rows[0] or not any(key in rows[0] for key in STEP_KEYS)):
        return from_document(rows[0])
    table = _rows(rows)
    table.n_unreadable += unreadable - torn
    table.is_torn = torn
    return table if table.rows else None


def _rows(rows: list[Any]) -> Table:
    """Make a table of rows; those without a step are counted, or are of the step before if others have one."""
    table = Table("rows")
    # verl's FileLogger writes {"step": n, "data": {...}} (verl/utils/tracking.py, 0.9.1)
    if any(isinstance(row, Mapping) and isinstance(row.get("data"), Mapping) for row in rows[:3]):
        table.hints.add("verl")
    padded = _pad(rows)
    for row in rows:
        if not isinstance(row, Mapping):
            table.n_unreadable += 1
            continue
        step, values = _row(row)
        if step is None:
            table.is_numbered = False
        values = {k: v for k, v in values.items() if not (k in padded and math.isnan(v))} if padded else values
        if values:
            table.rows.append((math.nan if step is None else step, values))
    if not table.is_numbered:
        count = iter(range(1, len(table.rows) + 1))
        table.is_numbered = any(not math.isnan(step) for step, _ in table.rows)
        last = 0.0  # a row without a number among numbered ones belongs to the step before it
        renumbered: list[Row] = []
        for step, values in table.rows:
            last = step if not math.isnan(step) else last if table.is_numbered else float(next(count))
            renumbered.append((last, values))
        table.rows = renumbered
    steps = [step for step, _ in table.rows]
    # starts that were given up after a few rows, in a file that every start appends to
    begins = [i for i in range(1, min(len(steps), MOST_ABORTED)) if steps[i] == steps[0] < steps[i - 1]]
    if begins and begins[-1] < len(steps) / 10:
        table.rows = table.rows[begins[-1] :]
        table.notes.append(f"{begins[-1]} rows of starts that were given up were left out")
    return table


def _row(row: Mapping[str, Any]) -> tuple[float | None, dict[str, float]]:
    """Split a row into step and figures, which may stand in an object of their own."""
    inner = row.get("data", row.get("metrics"))
    step, step_key = step_of(row)
    if isinstance(inner, Mapping):
        return step, figures(inner)
    return step, (of_group(row) if step is not None else {}) | figures(row, leave=step_key)


def _pad(rows: list[Any]) -> set[str]:
    """Keys whose null stands for "not measured in this row": a table whose columns have several cadences.

    A figure that becomes NaN stays so; one that comes and goes, mostly null, was measured now and then.
    """
    changes: dict[str, int] = {}
    nulls: dict[str, int] = {}
    for row in rows:
        if isinstance(row, Mapping):
            for key, value in row.items():
                if value is None or (type(value) is float and math.isnan(value)):
                    nulls[key] = nulls.get(key, 0) + 1
                    changes[key] = changes.get(key, 0) | 1
                elif key in changes and changes[key] % 2:
                    changes[key] += 1
    return {k for k, n in nulls.items() if n >= len(rows) / 2 and changes[k] >= 4}


def _state(state: Mapping[str, Any]) -> Table:
    """Read transformers' `trainer_state.json`: rows of training and evaluation, without the summary at the end."""
    table = Table("state")
    for row in state["log_history"]:
        # ROLL's state has the step under a key of its own
        step, key = step_of(row) if isinstance(row, Mapping) else (None, None)
        if step is None:
            table.n_unreadable += 1
            continue
        if "train_runtime" in row:
            continue  # means over the whole run
        values = figures(row, leave=key)
        if values:
            table.rows.append((step, values))
    table.settings = {
        f"trainer_state.{k}": state[k]
        for k in ("max_steps", "logging_steps", "eval_steps", "global_step", "num_train_epochs")
        if isinstance(state.get(k), (int, float))
    }
    return table


def _objects(text: str, place: int) -> Iterator[Any]:
    """Parse the complete objects of a list in JSON that is cut short, from index `at` of the text on."""
    decoder = json.JSONDecoder()
    place = text.find("[", place) + 1
    while place:
        start = text.find("{", place)
        if start < 0:
            return
        try:
            value, place = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            return
        yield value
