"""Worker process of rewards: loads functions, then scores the items it is sent, in order.

It needs the standard library alone (see `gxpo.base.processes`). The other side is `gxpo.environments.rewards.pool`.

Replies are JSON lists `[status, payload]`: "ok" with a number or named numbers, or a message with "raised", "nonsense"
or "limit", which is a check that would have taken more than it may.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import os
import pickle
import signal
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gxpo.base.usercode import OverLimit, Unusable, described, from_file, hint, one_line, unusable

if TYPE_CHECKING:
    from gxpo.base.processes import Line

ARGUMENTS = ("prompt", "completion", "answer", "task", "info", "tokens", "finish", "completion_raw")

Reply = tuple[str, Any]
Call = tuple[tuple[Any, ...], dict[str, Any]]  # positional arguments, keywords
_FLOAT, _TEXT = {float}, {str}  # types of plain scores and of their names


def parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """Parameters of a reward, of `ARGUMENTS` and in its order; it is called with these by keyword."""
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
            given = f"a reward is given {', '.join(ARGUMENTS)}{hint(p.name, ARGUMENTS)}"
            raise Unusable(f"it asks for {p.name!r}; {given} (other columns of the data are in `info`)")
    return tuple(wanted)


def number(value: Any) -> float:
    """Convert to a finite float: booleans are 0 and 1, zero-dimensional arrays and tensors their value."""
    plain = value if isinstance(value, (bool, int, float)) or not hasattr(value, "item") else value.item()
    if not isinstance(plain, (bool, int, float)):
        raise ValueError(f"{value!r} ({type(value).__name__}), not a number")
    result = float(plain)
    if not math.isfinite(result):
        raise ValueError(f"{result}, not a finite number")
    return result


def judge(value: Any) -> float | dict[str, float]:
    """Validate a reward's return value: a number or named numbers; ValueError otherwise."""
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


def attempts(function: Callable[..., Any], calls: Iterable[Call]) -> list[Reply]:
    """Call a reward once for each of the arguments; of its exceptions only `KeyboardInterrupt` propagates.

    A child that the reward has forked, and that returns from it as its parent does, ends here.
    """
    own, replies = os.getpid(), list[Reply]()
    for args, keywords in calls:
        try:
            value = function(*args, **keywords)
        except KeyboardInterrupt:
            raise
        except OverLimit as error:
            replies.append(("limit", one_line(str(error))))
            continue
        except BaseException as error:
            replies.append(("raised", described(error)))
            continue
        finally:
            if os.getpid() != own:
                os._exit(0)
        # judged before the next call, which may change what this one has returned
        named = value if type(value) is dict else {"": value}
        is_plain = set(map(type, named.values())) == _FLOAT and set(map(type, named)) == _TEXT
        if is_plain and all(map(math.isfinite, named.values())):
            replies.append(("ok", dict(named) if named is value else value))
            continue
        try:
            replies.append(("ok", judge(value)))
        except Exception as error:
            replies.append(("nonsense", one_line(f"returned {error}")))
    return replies


def reply_of(answer: Any) -> Reply:
    """Validate a reply from JSON, whatever wrote it: a status with its payload."""
    status, payload = answer
    if status == "ok":
        return status, judge(payload)
    if status in ("raised", "nonsense", "limit") and isinstance(payload, str):
        return status, one_line(payload)
    raise ValueError("not a status with a score or a message")


@contextlib.contextmanager
def computing(seconds: float) -> Iterator[None]:
    """Limit of processor time inside the context: the kernel ends this process by SIGPROF; 0: no limit.

    No handler: it would have to wait until a product of large numbers is done.
    """
    if not seconds:
        yield
        return
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def load(source: Mapping[str, Any], index: int = 0) -> Callable[..., Any]:
    """Load a function from `source`: {"file", "folder", "code", "name"} or {"pickle"}, and maybe {"rehearsal"}.

    A source that "computes" alone, and waits for nothing, has a limit of processor time in place of the clock's.

    The code travels with it: a worker that starts later in a run holds what the first one held. A rehearsal is a
    pickled call whose result is discarded: it imports and caches what the function is slow to get, before the clock of
    any item runs.
    """
    try:
        if "file" in source:
            function = from_file(source, types.FunctionType, f"gxpo_reward_file_{index}")
        else:
            function = pickle.loads(source["pickle"])
        if source.get("rehearsal") is not None:
            args, keywords = pickle.loads(source["rehearsal"])
            attempts(function, [(args, keywords)])
    except BaseException as error:
        raise unusable(error) from error
    return function


def serve(line: Line) -> None:
    """Load the functions of the first list; then reply to each item of each further list, in order."""
    functions, seconds = [], []
    for index, source in enumerate(line.receive()):
        try:
            function = load(source, index)
            functions.append(function)
            seconds.append(source["seconds"])
            declared = None if source["is_scorer"] else parameters(function)
        except Unusable as error:
            line.answer(json.dumps(["unusable", str(error)]))
            return
        line.answer(json.dumps(["loaded", declared]))
    while True:
        for index, call in line.receive():
            try:
                args, keywords = pickle.loads(call)
            except BaseException as error:
                reply = "raised", one_line(f"its arguments can't be read: {type(error).__name__}: {error}")
            else:
                with computing(seconds[index]):
                    (reply,) = attempts(functions[index], [(args, keywords)])
            line.answer(json.dumps(reply))
