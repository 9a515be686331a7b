"""The program of a scoring process: loads functions, then scores what it is sent, one item after the other.

It is run by path, in an interpreter of its own, on the standard library alone. So it starts in milliseconds, shares no
threads with torch, and never runs the user's script a second time. The other side is `gxpo.rewards.pool`.

Replies are JSON lists `[status, payload]`: "ok" with a number or named numbers, "raised" or "nonsense" with a message.
"""

from __future__ import annotations

import contextlib
import difflib
import inspect
import json
import math
import os
import pickle
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

ARGUMENTS = ("prompt", "completion", "answer", "task", "info", "tokens", "finish")
LONGEST = 300  # characters of a message

Reply = tuple[str, Any]


class Unusable(Exception):
    """A function can't be loaded or called; the message is one line."""


def one_line(text: str) -> str:
    """`text` without line breaks and not longer than `LONGEST`."""
    words = " ".join(str(text).split())
    return words if len(words) <= LONGEST else words[: LONGEST - 3] + "..."


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
            close = difflib.get_close_matches(p.name, ARGUMENTS, 1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            raise Unusable(f"it asks for {p.name!r}; a reward is given {', '.join(ARGUMENTS)}{hint}")
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
        return "raised", one_line(f"{type(error).__name__}: {error}{_where(error)}")
    try:
        return "ok", judge(value)
    except Exception as error:
        return "nonsense", one_line(f"returned {error}")


def _where(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({os.path.basename(frames[-1].filename)} line {frames[-1].lineno})" if len(frames) > 1 else ""


def load(source: Mapping[str, Any], index: int = 0) -> Callable[..., Any]:
    """The function of `source`: {"file", "folder", "code", "name"} or {"pickle"}, and maybe {"rehearsal"}.

    The code travels with it: a worker that starts later in a run holds what the first one held. A rehearsal is a
    pickled call whose result nobody needs: it imports and caches what the function is slow to get, before the clock of
    any item runs.
    """
    try:
        function = _from_file(source, index) if "file" in source else _unpickled(source)
        if source.get("rehearsal") is not None:
            args, keywords = pickle.loads(source["rehearsal"])
            attempt(function, args, keywords)
    except Unusable:
        raise
    except SyntaxError as error:
        raise Unusable(f"{error.filename} line {error.lineno}: {one_line(error.msg)}") from error
    except BaseException as error:
        raise Unusable(one_line(f"{type(error).__name__} while loading: {error}{_where(error)}")) from error
    return function


def _unpickled(source: Mapping[str, Any]) -> Callable[..., Any]:
    return pickle.loads(source["pickle"])


def _from_file(source: Mapping[str, Any], index: int) -> Callable[..., Any]:
    path, name = source["file"], source["name"]
    if source["folder"] not in (None, *sys.path):
        sys.path.append(source["folder"])  # last: what stands beside a reward hides no library
    module = types.ModuleType(f"gxpo_reward_file_{index}")
    module.__file__ = path
    sys.modules[module.__name__] = module
    exec(compile(source["code"], path, "exec"), vars(module))
    function = getattr(module, name, None)
    if function is None:
        own = [n for n, f in vars(module).items() if callable(f) and getattr(f, "__module__", None) == module.__name__]
        close = difflib.get_close_matches(name, own, 1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; it has {', '.join(own) or 'none'}"
        raise Unusable(f"{path} has no function {name!r}{hint}")
    if not callable(function):
        raise Unusable(f"{name!r} in {path} is a {type(function).__name__}, not a function")
    return function


def _end_with(parent: int) -> None:
    """Leave when the parent is gone, even while a reward hangs."""

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


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


if __name__ == "__main__":
    _end_with(int(sys.argv[2]))
    os.set_inheritable(int(sys.argv[1]), False)  # what a reward starts does not hold the line open
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        serve(Connection(int(sys.argv[1])))
