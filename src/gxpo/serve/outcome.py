"""Parse what an agent returns: a reward, a verdict, or an answer to be scored."""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

KEYS = ("reward", "success", "answer", "rewards", "info")


class Nonsense(Exception):
    """An agent's result can't be read; the message says why, in a line."""


@dataclass(frozen=True)
class Outcome:
    """An agent's result.

    reward   None: the run's reward judges the answer
    success  the verdict
    answer   what is judged; None: what the policy said last
    rewards  further named values, recorded
    """

    reward: float | None = None
    success: bool | None = None
    answer: str | None = None
    rewards: Mapping[str, float] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)


def outcome_of(value: Any) -> Outcome:
    """The outcome that a returned value means: a number is the reward, a truth value the verdict too, a text the
    answer, and a mapping may have `KEYS`. Raises `Nonsense`.

    >>> outcome_of(True)
    Outcome(reward=1.0, success=True, answer=None, rewards={}, info={})
    >>> outcome_of({"answer": "42"}).answer
    '42'
    """
    value = value.item() if hasattr(value, "item") and not isinstance(value, Mapping) else value
    if value is None:
        return Outcome()
    if isinstance(value, bool):
        return Outcome(float(value), value)
    if isinstance(value, numbers.Real):
        return Outcome(_finite(value, "the reward"))
    if isinstance(value, str):
        return Outcome(answer=value)
    if not isinstance(value, Mapping):
        raise Nonsense(f"it returned a {type(value).__name__}, not a number, a text or a mapping")
    if unknown := [k for k in value if k not in KEYS]:
        raise Nonsense(f"it returned the key {unknown[0]!r}; there are {', '.join(KEYS)} (other values go into info)")
    reward, success, answer = (value.get(k) for k in ("reward", "success", "answer"))
    rewards, info = value.get("rewards") or {}, value.get("info") or {}
    if not isinstance(rewards, Mapping) or not isinstance(info, Mapping):
        raise Nonsense("rewards and info are mappings")
    try:
        json.dumps(dict(info), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise Nonsense(f"info can't be written as JSON: {error}") from error
    return Outcome(
        None if reward is None else _finite(reward, "the reward"),
        None if success is None else bool(success),
        None if answer is None else str(answer),
        {str(k): _finite(v, f"rewards.{k}") for k, v in rewards.items()},
        dict(info),
    )


def _finite(value: Any, name: str) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise Nonsense(f"{name} is {value!r}, not a number") from error
    if not math.isfinite(number):
        raise Nonsense(f"{name} is {number}")
    return number


def last_line(text: str) -> Any:
    """The value that a program printed last: JSON, or else nothing.

    >>> last_line("working...\\n0.5\\n"), last_line("done\\n")
    (0.5, None)
    """
    lines = [line for line in text.splitlines() if line.strip()]
    try:
        return json.loads(lines[-1]) if lines else None
    except (ValueError, RecursionError):
        return None
