"""`Rollouts`: a sample of a run's single rollouts as columns; `Row`: one of them as a reader makes it."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gxpo.doctor.series import Floats

NAN = math.nan
_ANSWER_KEYS = ("answer", "ground_truth", "target", "solution", "label", "value", "reference")
REFERENCES = ("answer", "solution", "gts", "ground_truth", "target", "reference", "label", "gold", "gold_answer")


@dataclass
class Rollouts:
    """A sample of single rollouts, one row each; rows of a group are adjacent.

    step        [n] training step (-1: unknown)
    group       [n] dense id of the rollouts that were compared, unique over the whole sample; -1: unknown
    prompt      [n] texts
    completion  [n] texts (several turns joined by a blank line)
    score       [n] total reward; nan: unscored
    components  name -> [n]; nan: missing
    advantage   [n] mean advantage; nan: not recorded, or of no trained token
    compared    [n] whether it takes part in its group's statistics
    tokens      [n] completion length in tokens; nan: unknown
    truncated   [n] 1: cut at the limit, 0: ended by itself, nan: unknown
    success     [n] the verifier's verdict; nan: unknown
    reference   [n] reference answers; None: not recorded
    held_out    [n] whether the row is of an evaluation
    temperature [n] it was sampled at; nan: unknown
    observation [n] what the environment replied; None: other agents play along, so that equal texts may score unequally
    where       [n] "file:row" of each, for evidence
    total       number of rows of the run, of which these are a sample
    grouped_by  "recorded", "blocks" (consecutive rows) or "prompt" (equal prompts: two groups of one prompt merge)
    """

    step: NDArray[np.int64]
    group: NDArray[np.int64]
    prompt: list[str]
    completion: list[str]
    score: Floats
    components: dict[str, Floats]
    advantage: Floats
    tokens: Floats
    truncated: Floats
    success: Floats
    reference: list[str | None]
    held_out: NDArray[np.bool_]
    temperature: Floats
    observation: list[str | None]
    where: list[str]
    total: int
    grouped_by: str = "recorded"
    compared: NDArray[np.bool_] = field(default=None)  # type: ignore[assignment]  # all of them, below

    def __post_init__(self) -> None:
        if self.compared is None:
            self.compared = np.ones(len(self.score), dtype=bool)

    def __len__(self) -> int:
        return len(self.score)

    def select(self, rows: Any) -> Rollouts:
        """Select rows by a boolean mask or an index array, in its order."""
        index = np.flatnonzero(rows) if np.asarray(rows).dtype == bool else np.asarray(rows)
        return Rollouts(
            step=self.step[index],
            group=self.group[index],
            prompt=[self.prompt[i] for i in index],
            completion=[self.completion[i] for i in index],
            score=self.score[index],
            components={name: values[index] for name, values in self.components.items()},
            advantage=self.advantage[index],
            tokens=self.tokens[index],
            truncated=self.truncated[index],
            success=self.success[index],
            reference=[self.reference[i] for i in index],
            held_out=self.held_out[index],
            temperature=self.temperature[index],
            observation=[self.observation[i] for i in index],
            where=[self.where[i] for i in index],
            total=self.total,
            grouped_by=self.grouped_by,
            compared=self.compared[index],
        )


@dataclass
class Row:
    """One rollout as a reader makes it.

    Rows are of one group if step, `held_out` and `group` are equal; `group` None: unknown.
    """

    step: int
    prompt: str
    completion: str
    score: float
    group: Hashable = None
    components: dict[str, float] = field(default_factory=dict)
    advantage: float = NAN
    compared: bool = True
    tokens: float = NAN
    truncated: float = NAN
    success: float = NAN
    reference: str | None = None
    held_out: bool = False
    temperature: float = NAN
    observation: str | None = ""
    where: str = ""


def assemble(rows: Iterable[Row], total: int, grouped_by: str) -> Rollouts | None:
    """Order rows by step, training before held out, the rows of a group adjacent; None if there is no row.

    Groups keep the order in which their first rows were read.
    """
    unordered = list(rows)
    if not unordered:
        return None
    # a group is known by its first row: a group's own key comes again in other steps and in the evaluation
    first_row: dict[Hashable, int] = {}
    group_begin = [
        i if r.group is None else first_row.setdefault((r.held_out, r.step, r.group), i)
        for i, r in enumerate(unordered)
    ]
    order = sorted(range(len(unordered)), key=lambda i: (unordered[i].step, unordered[i].held_out, group_begin[i], i))
    # ids are dense in the final order, so that equal files give equal ids whatever their readers' keys are
    dense_id: dict[int, int] = {}
    group = [-1 if unordered[i].group is None else dense_id.setdefault(group_begin[i], len(dense_id)) for i in order]
    ordered = [unordered[i] for i in order]
    names = list(dict.fromkeys(n for r in ordered for n in r.components))
    return Rollouts(
        step=np.array([r.step for r in ordered], dtype=np.int64),
        group=np.array(group, dtype=np.int64),
        prompt=[r.prompt for r in ordered],
        completion=[r.completion for r in ordered],
        score=_floats(r.score for r in ordered),
        components={n: _floats(r.components.get(n, NAN) for r in ordered) for n in names},
        advantage=_floats(r.advantage for r in ordered),
        tokens=_floats(r.tokens for r in ordered),
        truncated=_floats(r.truncated for r in ordered),
        success=_floats(r.success for r in ordered),
        reference=[r.reference for r in ordered],
        held_out=np.array([r.held_out for r in ordered], dtype=bool),
        temperature=_floats(r.temperature for r in ordered),
        observation=[r.observation for r in ordered],
        where=[r.where for r in ordered],
        total=max(total, len(ordered)),
        grouped_by=grouped_by,
        compared=np.array([r.compared for r in ordered], dtype=bool),
    )


def _floats(values: Iterable[float]) -> Any:
    return np.array(list(values), dtype=np.float64)


def number(value: Any) -> float:
    """Convert a number, a truth value or a text of a number to a float; nan for anything else and for infinity."""
    try:
        figure = float(value) if isinstance(value, (int, float, str)) else NAN
    except (ValueError, OverflowError):
        return NAN
    return figure if math.isfinite(figure) else NAN


def integer(value: Any, default: int = -1) -> int:
    """Convert to an integer, `default` if there is none; beyond 2^62 an int64 array would overflow."""
    figure = number(value)
    return int(figure) if abs(figure) < 2**62 else default


def text(value: Any) -> str:
    """Render a text or a conversation as text: a single message as its content, several with their roles."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    messages = _messages(value)
    if messages is None:
        return json.dumps(value, ensure_ascii=False, default=str)
    if len(messages) == 1 and messages[0].get("role") in ("user", None):
        return _content(messages[0])
    return "\n\n".join(f"{m.get('role')}: {_content(m)}" for m in messages)


def completion_text(value: Any) -> str:
    """Render a completion as text: of a conversation the assistant's turns, tool calls included."""
    messages = None if isinstance(value, str) else _messages(value)
    if not messages:
        return text(value)
    # what tools answered is no text of the policy
    assistant_messages = [m for m in messages if m.get("role") in ("assistant", None)]
    return "\n\n".join(_content(m) for m in assistant_messages or messages)


def _messages(value: Any) -> list[dict[str, Any]] | None:
    """Messages of a chat; None if the value is none."""
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, (list, tuple, np.ndarray)):
        return None
    messages = list(value)
    is_chat = messages and all(isinstance(m, dict) and ("content" in m or "tool_calls" in m) for m in messages)
    return messages if is_chat else ([] if not messages else None)


def _content(message: dict[str, Any]) -> str:
    """Text of a message: its content, of which the text parts, then its tool calls as `name(arguments)`."""
    content = message.get("content")
    if isinstance(content, (list, tuple, np.ndarray)):
        parts = [p.get("text") if isinstance(p, dict) else p for p in content]
        content = "".join(str(p) for p in parts if p is not None)
    lines = [] if content in (None, "") else [str(content)]
    for call in message.get("tool_calls") or ():
        function = (call.get("function") if isinstance(call, dict) else None) or call
        if isinstance(function, dict):
            arguments = function.get("arguments")
            is_text = isinstance(arguments, str)  # servers send arguments as JSON in a text already
            arguments = arguments if is_text else json.dumps(arguments, ensure_ascii=False, default=str)
            lines.append(f"{function.get('name')}({arguments})")
        else:
            lines.append(str(function))
    return "\n".join(lines)


def reference(value: Any) -> str | None:
    """Render a reference answer as text, from any JSON: a scalar, a list of one, an object with a field for it."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, bool):  # before numbers, since True is an int
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return f"{value:g}" if isinstance(value, float) and value.is_integer() and abs(value) < 1e15 else str(value)
    if isinstance(value, (list, tuple, np.ndarray)) and len(value) == 1:
        return reference(value[0])
    if isinstance(value, dict):
        for key in _ANSWER_KEYS:
            if key in value:
                return reference(value[key])
    return json.dumps(value, ensure_ascii=False, default=str)


def first_reference(columns: Sequence[str]) -> str | None:
    """Find the column of reference answers by its usual names; None if there is none."""
    lower = {c.lower(): c for c in reversed(columns)}
    return next((lower[n] for n in REFERENCES if n in lower), None)
