"""`Row`: one rollout as a reader found it, and how rows become `Rollouts`."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gxpo.doctor.rollouts import Rollouts

NAN = math.nan
_ANSWER_KEYS = ("answer", "ground_truth", "target", "solution", "label", "value", "reference")
REFERENCES = ("answer", "solution", "gts", "ground_truth", "target", "reference", "label", "gold", "gold_answer")


@dataclass
class Row:
    """One rollout. `group` is compared together with the file, the step and `held_out`; None: unknown."""

    step: int
    prompt: str
    completion: str
    score: float
    group: Hashable = None
    components: dict[str, float] = field(default_factory=dict)
    advantage: float = NAN
    tokens: float = NAN
    truncated: float = NAN
    success: float = NAN
    reference: str | None = None
    held_out: bool = False
    temperature: float = NAN
    where: str = ""


def assemble(rows: Iterable[Row], of: int, grouped_by: str) -> Rollouts | None:
    """Rows by step, training before held out, the rows of a group adjacent; None where there is no row.

    Groups keep the order in which their first rows were read.
    """
    found = list(rows)
    if not found:
        return None
    first: dict[Hashable, int] = {}
    place = [i if r.group is None else first.setdefault((r.held_out, r.step, r.group), i) for i, r in enumerate(found)]
    order = sorted(range(len(found)), key=lambda i: (found[i].step, found[i].held_out, place[i], i))
    dense: dict[int, int] = {}
    group = [-1 if found[i].group is None else dense.setdefault(place[i], len(dense)) for i in order]
    found = [found[i] for i in order]
    names = list(dict.fromkeys(n for r in found for n in r.components))
    return Rollouts(
        step=np.array([r.step for r in found], dtype=np.int64),
        group=np.array(group, dtype=np.int64),
        prompt=[r.prompt for r in found],
        completion=[r.completion for r in found],
        score=_floats(r.score for r in found),
        components={n: _floats(r.components.get(n, NAN) for r in found) for n in names},
        advantage=_floats(r.advantage for r in found),
        tokens=_floats(r.tokens for r in found),
        truncated=_floats(r.truncated for r in found),
        success=_floats(r.success for r in found),
        reference=[r.reference for r in found],
        held_out=np.array([r.held_out for r in found], dtype=bool),
        temperature=_floats(r.temperature for r in found),
        where=[r.where for r in found],
        of=max(of, len(found)),
        grouped_by=grouped_by,
    )


def _floats(values: Iterable[float]) -> Any:
    return np.array(list(values), dtype=np.float64)


def number(value: Any) -> float:
    """A number, a truth value or a text of one as a float; nan for anything else and for infinity."""
    try:
        found = float(value) if isinstance(value, (int, float, str)) else NAN
    except (ValueError, OverflowError):
        return NAN
    return found if math.isfinite(found) else NAN


def whole(value: Any, default: int = -1) -> int:
    """A step number; `default` where it is none."""
    found = number(value)
    return int(found) if abs(found) < 2**62 else default


def text(value: Any) -> str:
    """A text, or a conversation as text: one message alone as its content, several with their roles before them."""
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
    """A completion as text: of a conversation what the assistant wrote, its calls of tools included, turn by turn."""
    messages = None if isinstance(value, str) else _messages(value)
    if not messages:
        return text(value)
    own = [m for m in messages if m.get("role") in ("assistant", None)]
    return "\n\n".join(_content(m) for m in own or messages)


def _messages(value: Any) -> list[dict[str, Any]] | None:
    if isinstance(value, dict):
        value = [value]
    if not isinstance(value, (list, tuple, np.ndarray)):
        return None
    found = list(value)
    is_chat = found and all(isinstance(m, dict) and ("content" in m or "tool_calls" in m) for m in found)
    return found if is_chat else ([] if not found else None)


def _content(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, (list, tuple, np.ndarray)):
        parts = [p.get("text") if isinstance(p, dict) else p for p in content]
        content = "".join(str(p) for p in parts if p is not None)
    said = [] if content in (None, "") else [str(content)]
    for call in message.get("tool_calls") or ():
        called = (call.get("function") if isinstance(call, dict) else None) or call
        if isinstance(called, dict):
            arguments = called.get("arguments")
            shown = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False, default=str)
            said.append(f"{called.get('name')}({shown})")
        else:
            said.append(str(called))
    return "\n".join(said)


def reference(value: Any) -> str | None:
    """The reference answer as text, of any JSON: a scalar, a list of one, an object with a field for it."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
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
    """The column that holds reference answers."""
    lower = {c.lower(): c for c in reversed(columns)}
    return next((lower[n] for n in REFERENCES if n in lower), None)
