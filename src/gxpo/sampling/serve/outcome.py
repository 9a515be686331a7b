"""Parse an agent's result: a reward, a verdict, or an answer to be scored."""

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
COMPONENT = "agent"  # name of an agent's own reward among the components of the outcome
LONGEST = 1 << 20  # characters of `info` as JSON, and of an answer
MOST_REWARDS = 64  # named values
LONGEST_NAME = 200  # characters
NUMBER = re.compile(r"[+-]?(\d+(?:\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)


class Nonsense(Exception):
    """An agent's result can't be parsed; the message is one line."""


@dataclass(frozen=True)
class Outcome:
    """Result of an agent's episode.

    reward   None: the run's reward function scores the answer
    success  verdict
    answer   text to be scored; None: the policy's last reply
    rewards  further named values, recorded only
    """

    reward: float | None = None
    success: bool | None = None
    answer: str | None = None
    rewards: Mapping[str, float] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)


def outcome_of(value: Any) -> Outcome:
    """Parse a returned value: a number is the reward, a boolean reward and verdict, a text the answer, and a mapping
    may have `KEYS`. Raises `Nonsense`.

    >>> outcome_of(True)
    Outcome(reward=1.0, success=True, answer=None, rewards={}, info={})
    >>> outcome_of({"answer": "42"}).answer
    '42'
    """
    # Booleans come before numbers: in Python they are numbers, too.
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
    """Convert a number or its text to a finite float; None if that is impossible.

    >>> number_of("0.5"), number_of(10**400), number_of("1_0")
    (0.5, None, None)
    """
    if isinstance(value, str) and not NUMBER.fullmatch(value.strip()):
        return None
    try:
        number = float(value)
    except Exception:  # a class's own conversion may raise anything; a whole number may be too large
        return None
    return number if math.isfinite(number) else None


def short_repr(value: Any) -> str:
    """Short representation of a value for an error message, even if its own `__repr__` fails.

    >>> short_repr("x" * 100)
    "'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx..."
    """
    try:
        text = repr(value[:100] if isinstance(value, str | list | tuple) else value)
    except Exception:  # such as that of a whole number of more than 4300 digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def last_line(output: bytes, is_whole: bool = True) -> Any:
    """Parse the last line of a program's output as JSON; None if it printed nothing. `strict_json.Malformed` if the
    line is not JSON.

    is_whole  True if nothing was dropped from the beginning of the output

    >>> last_line(b"working...\\n0.5\\n"), last_line(b"\\n")
    (0.5, None)
    """
    text = output.rstrip()
    begin = text.rfind(b"\n") + 1
    if begin == 0 and not is_whole:
        raise strict_json.Malformed(f"it is longer than {len(output)} bytes")
    return strict_json.parse(text[begin:]) if text else None


def _plain(value: Any) -> Any:
    """Convert a tensor or array of one number to Python's; return other values as they are."""
    if isinstance(value, Mapping) or not hasattr(value, "item"):
        return value
    try:
        return value.item()
    except Exception as error:  # it has more than one
        raise Nonsense(f"it returned a {type(value).__name__} that is not one number") from error


def _finite(value: Any, name: str) -> float:
    """Convert to a finite number, or raise `Nonsense`."""
    number = number_of(value)
    if number is None:
        raise Nonsense(f"{name} is {short_repr(value)}, not a finite number")
    return number


def _verdict(value: Any) -> bool:
    """Convert true, false, 1 or 0 to a boolean, or raise `Nonsense`."""
    value = _plain(value)
    if not isinstance(value, bool | numbers.Real) or value not in (0, 1):
        raise Nonsense(f"success is {short_repr(value)}, not true or false")
    return bool(value)


def _answer(value: Any) -> str:
    """Convert to a text that UTF-8 can hold, of bounded length, or raise `Nonsense`."""
    try:
        text = str(value)
        strict_json.check_texts(text)
    except Exception as error:  # a class's own conversion may raise anything
        raise Nonsense(f"the answer can't be written as text: {error}") from error
    if len(text) > LONGEST:
        raise Nonsense(f"the answer has {len(text)} characters, more than {LONGEST}")
    return text


def _rewards(value: Any) -> dict[str, float]:
    """Validate further named rewards, or raise `Nonsense`."""
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
    """Copy info through JSON, so that the record can be written, or raise `Nonsense`."""
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
