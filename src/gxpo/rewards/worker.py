"""The program of a scoring process: loads functions, then scores what it is sent, one item after the other.

It needs the standard library alone (see `gxpo.processes`). The other side is `gxpo.rewards.pool`.

Replies are JSON lists `[status, payload]`: "ok" with a number or named numbers, "raised" or "nonsense" with a message.
"""

from __future__ import annotations

import inspect
import json
import math
import pickle
import types
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from gxpo.usercode import Unusable, described, from_file, hint, one_line, unusable

ARGUMENTS = ("prompt", "completion", "answer", "task", "info", "tokens", "finish")

Reply = tuple[str, Any]


def parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """Which of `ARGUMENTS` a reward declares, in its order; it is called with these by keyword."""
    try:
        declared = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise Unusable(f"its parameters can't be read ({one_line(str(error))}); wrap it in a def") from error
    wanted = []
    for p in declared:
        if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
            continue
        if p.name in ARGUMENTS and p.kind is not p.POSITIONAL_ONLY:
            wanted.append(p.name)
        elif p.default is p.empty:
            raise Unusable(f"it asks for {p.name!r}; a reward is given {', '.join(ARGUMENTS)}{hint(p.name, ARGUMENTS)}")
    return tuple(wanted)


def number(value: Any) -> float:
    """A finite float; booleans count 0 and 1, zero-dimensional arrays and tensors are their value."""
    plain = value if isinstance(value, (bool, int, float)) or not hasattr(value, "item") else value.item()
    if not isinstance(plain, (bool, int, float)):
        raise ValueError(f"{value!r} ({type(value).__name__}), not a number")
    result = float(plain)
    if not math.isfinite(result):
        raise ValueError(f"{result}, not a finite number")
    return result


def judge(value: Any) -> float | dict[str, float]:
    """What a reward returned, as a number or named numbers; ValueError where it is neither."""
    if not isinstance(value, Mapping):
        return number(value)
    if not value or not all(isinstance(name, str) for name in value):
        raise ValueError(f"{dict(value)!r}, not named numbers")
    named = {}
    for name, x in value.items():
        try:
            named[name] = number(x)
        except ValueError as error:
            raise ValueError(f"for {name!r} {error}") from error
    return named


def attempt(function: Callable[..., Any], args: tuple[Any, ...], keywords: dict[str, Any]) -> Reply:
    """Call a reward and say what came of it; of what it raises only `KeyboardInterrupt` gets out."""
    try:
        value = function(*args, **keywords)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return "raised", described(error)
    try:
        return "ok", judge(value)
    except Exception as error:
        return "nonsense", one_line(f"returned {error}")


def load(source: Mapping[str, Any], index: int = 0) -> Callable[..., Any]:
    """The function of `source`: {"file", "folder", "code", "name"} or {"pickle"}, and maybe {"rehearsal"}.

    The code travels with it: a worker that starts later in a run holds what the first one held. A rehearsal is a
    pickled call whose result nobody needs: it imports and caches what the function is slow to get, before the clock of
    any item runs.
    """
    try:
        if "file" in source:
            function = from_file(source, types.FunctionType, f"gxpo_reward_file_{index}")
        else:
            function = pickle.loads(source["pickle"])
        if source.get("rehearsal") is not None:
            args, keywords = pickle.loads(source["rehearsal"])
            attempt(function, args, keywords)
    except BaseException as error:
        raise unusable(error) from error
    return function


def serve(connection: Connection) -> None:
    """Load the functions of the first message; then reply to each item of each further message, in order."""
    functions = []
    sources = pickle.loads(connection.recv_bytes())
    for index, source in enumerate(sources):
        try:
            function = load(source, index)
            functions.append(function)
            declared = None if source["is_scorer"] else parameters(function)
        except Unusable as error:
            connection.send_bytes(json.dumps(["unusable", index, str(error)]).encode())
            return
        connection.send_bytes(json.dumps(["loaded", index, declared]).encode())
    while True:
        for index, call in pickle.loads(connection.recv_bytes()):
            try:
                args, keywords = pickle.loads(call)
            except BaseException as error:
                reply = "raised", one_line(f"its arguments can't be read: {type(error).__name__}: {error}")
            else:
                reply = attempt(functions[index], args, keywords)
            connection.send_bytes(json.dumps(reply).encode())
