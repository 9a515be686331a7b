"""Parse what an agent returns: a reward, a verdict, or an answer to be scored."""

from __future__ import annotations

import json
import math
import numbers
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gxpo.sampling.serve import strict_json

KEYS = ("reward", "success", "answer", "rewards", "info")
COMPONENT = "agent"  # the component of the outcome that an agent's own reward is
LONGEST = 1 << 20  # characters of `info` as JSON, and of an answer
MOST_REWARDS = 64  # named values
LONGEST_NAME = 200  # characters
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)


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
    value = _plain(value)
    if value is None:
        return Outcome()
    if isinstance(value, bool):
        return Outcome(float(value), value)
    if isinstance(value, numbers.Real):
        return Outcome(_finite(value, "the reward"))
    if isinstance(value, str):
        return Outcome(answer=_answer(value))
    if not isinstance(value, Mapping):
        raise Nonsense(f"it returned a {type(value).__name__}, not a number, a text or a mapping")
    if unknown := [k for k in value if k not in KEYS]:
        raise Nonsense(
            f"it returned the key {short_repr(unknown[0])}; there are {', '.join(KEYS)} (other values go into info)"
        )
    reward, success, answer = (value.get(k) for k in ("reward", "success", "answer"))
    return Outcome(
        None if reward is None else _finite(reward, "the reward"),
        None if success is None else _verdict(success),
        None if answer is None else _answer(answer),
        _rewards(value.get("rewards")),
        _info(value.get("info")),
    )


def number_of(value: Any) -> float | None:
    """The finite number that a value is, or that its text writes; None where it is neither.

    >>> number_of("0.5"), number_of(10**400), number_of("1_0")
    (0.5, None, None)
    """
    if isinstance(value, str) and not NUMBER.fullmatch(value.strip()):
        return None
    try:
        number = float(value)
    except Exception:  # of any class's own conversion; a whole number may be too large
        return None
    return number if math.isfinite(number) else None


def short_repr(value: Any) -> str:
    """A value as an error names it: short, and whatever its own way to write it does.

    >>> short_repr("x" * 100)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx..."
    """
    try:
        text = repr(value[:100] if isinstance(value, str | list | tuple) else value)
    except Exception:  # a whole number of more than 4300 digits is not written at all
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def last_line(output: bytes, whole: bool = True) -> Any:
    """The value that a program printed last, in JSON; None: it printed nothing. `strict_json.Malformed` for a last line
    that is no JSON.

    whole  the output begins where the program's did

    >>> last_line(b"working...\\n0.5\\n"), last_line(b"\\n")
    (0.5, None)
    """
    text = output.rstrip()
    begin = text.rfind(b"\n") + 1
    if begin == 0 and not whole:
        raise strict_json.Malformed(f"it is longer than {len(output)} bytes")
    return strict_json.parse(text[begin:]) if text else None


def _plain(value: Any) -> Any:
    """A number of a tensor or an array as Python's."""
    if isinstance(value, Mapping) or not hasattr(value, "item"):
        return value
    try:
        return value.item()
    except Exception as error:  # it has more than one
        raise Nonsense(f"it returned a {type(value).__name__} that is not one number") from error


def _finite(value: Any, name: str) -> float:
    number = number_of(value)
    if number is None:
        raise Nonsense(f"{name} is {short_repr(value)}, not a finite number")
    return number


def _verdict(value: Any) -> bool:
    value = _plain(value)
    if not isinstance(value, bool | numbers.Real) or value not in (0, 1):
        raise Nonsense(f"success is {short_repr(value)}, not true or false")
    return bool(value)


def _answer(value: Any) -> str:
    try:
        text = str(value)
        strict_json.check_texts(text)
    except Exception as error:  # of any class's own conversion
        raise Nonsense(f"the answer can't be written as text: {error}") from error
    if len(text) > LONGEST:
        raise Nonsense(f"the answer has {len(text)} characters, more than {LONGEST}")
    return text


def _rewards(value: Any) -> dict[str, float]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or len(value) > MOST_REWARDS:
        raise Nonsense(f"rewards is a mapping of at most {MOST_REWARDS} names to numbers")
    for name in value:
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= LONGEST_NAME:
            raise Nonsense(f"rewards has the name {short_repr(name)}: a name is a short text of printable characters")
    if COMPONENT in value:
        raise Nonsense(f"rewards has the name {COMPONENT!r}, which is that of the reward: use another")
    return {name: _finite(x, f"rewards.{name}") for name, x in value.items()}


def _info(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise Nonsense("info is a mapping")
    try:
        text = json.dumps(dict(value), allow_nan=False)
        plain = strict_json.parse(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise Nonsense(f"info can't be written as JSON: {error}") from error
    if len(text) > LONGEST:
        raise Nonsense(f"info has {len(text)} characters as JSON, more than {LONGEST}")
    return plain
