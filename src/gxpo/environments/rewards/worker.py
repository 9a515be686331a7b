"""Worker process of user rewards: loads functions, then scores the items it receives, in order.

It imports the standard library alone (see `gxpo.base.processes`). `gxpo.environments.rewards.pool` drives it.

Replies are JSON lists `[status, payload]`: "ok" with a number or named numbers, or a message with "raised", "nonsense"
or "limit" (a check beyond its limit of work).
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

ARGUMENTS = ("prompt", "completion", "answer", "task", "info", "tokens", "finish", "completion_raw", "picture")

Reply = tuple[str, Any]
Call = tuple[tuple[Any, ...], dict[str, Any]]  # positional arguments, keywords
_FLOAT, _TEXT = {float}, {str}  # types of plain scores and of their names


def parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """Parameters of a reward, all of them in `ARGUMENTS`: it is called with these by keyword; Unusable for others."""
    try:
        declared = inspect.signature(function).parameters.values()
    except (TypeError, ValueError) as error:
        raise Unusable(f"its parameters can't be read ({one_line(str(error))}); wrap it in a def") from error
    names = []
    for p in declared:
        if p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL):
            continue
        if p.name in ARGUMENTS and p.kind is not p.POSITIONAL_ONLY:
            names.append(p.name)
        # Parameters with a default may stay as they are.
        elif p.default is p.empty:
            known_names = f"a reward is given {', '.join(ARGUMENTS)}{hint(p.name, ARGUMENTS)}"
            raise Unusable(f"it asks for {p.name!r}; {known_names} (other columns of the data are in `info`)")
    return tuple(names)


def number(value: Any) -> float:
    """Convert to a finite float: booleans are 0 and 1, zero-dimensional arrays and tensors their value."""
    plain = value if isinstance(value, (bool, int, float)) or not hasattr(value, "item") else value.item()
    if not isinstance(plain, (bool, int, float)):
        raise ValueError(f"{value!r} ({type(value).__name__}), not a number")
    result = float(plain)
    if not math.isfinite(result):
        raise ValueError(f"{result}, not a finite number")
    return result


def validate_score(value: Any) -> float | dict[str, float]:
    """Validate a reward's return value: a number or named numbers; ValueError otherwise."""
    if not isinstance(value, Mapping):
        return number(value)
    if not value or not all(isinstance(name, str) for name in value):
        raise ValueError(f"{dict(value)!r}, not named numbers")
    values_by_name = {}
    for name, x in value.items():
        try:
            values_by_name[name] = number(x)
        except ValueError as error:
            raise ValueError(f"for {name!r} {error}") from error
    return values_by_name


def call_each(function: Callable[..., Any], calls: Iterable[Call]) -> list[Reply]:
    """Call a reward once for each of the arguments; of its exceptions only `KeyboardInterrupt` propagates.

    A child that the reward has forked, and that returns from it as its parent does, ends here.
    """
    process_id, replies = os.getpid(), list[Reply]()
    for args, keywords in calls:
        try:
            value = function(*args, **keywords)
        # The user's Ctrl-C is no failure of a reward.
        except KeyboardInterrupt:
            raise
        # Too large to be checked counts as wrong, and is told apart from an exception.
        except OverLimit as error:
            replies.append(("limit", one_line(str(error))))
            continue
        except BaseException as error:
            replies.append(("raised", described(error)))
            continue
        finally:
            # A reward may fork and let the child return: it must not go on as a second worker on the same pipe.
            if os.getpid() != process_id:
                os._exit(0)
        # Validated before the next call, which may change the object that this one has returned. Plain finite
        # floats need no validation, name by name.
        values_by_name = value if type(value) is dict else {"": value}
        is_plain = set(map(type, values_by_name.values())) == _FLOAT and set(map(type, values_by_name)) == _TEXT
        if is_plain and all(map(math.isfinite, values_by_name.values())):
            replies.append(("ok", dict(values_by_name) if values_by_name is value else value))
            continue
        try:
            replies.append(("ok", validate_score(value)))
        except Exception as error:
            replies.append(("nonsense", one_line(f"returned {error}")))
    return replies


def reply_of(answer: Any) -> Reply:
    """Validate a reply read from JSON, a status with its payload; ValueError for anything else."""
    status, payload = answer
    if status == "ok":
        return status, validate_score(payload)
    if status in ("raised", "nonsense", "limit") and isinstance(payload, str):
        return status, one_line(payload)
    raise ValueError("not a status with a score or a message")


@contextlib.contextmanager
def processor_time_limit(seconds: float) -> Iterator[None]:
    """Limit processor time inside the context: the kernel ends this process by SIGPROF; 0: no limit.

    There is no handler, as Python runs one only after the current operation, which may be a product of huge numbers.
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

    The code is part of the source, so that a worker that starts later in a run loads what the first one loaded. A
    rehearsal is a pickled call whose result is discarded: it does the function's slow imports and caches before any
    item is timed.
    """
    try:
        if "file" in source:
            function = from_file(source, types.FunctionType, f"gxpo_reward_file_{index}")
        else:
            function = pickle.loads(source["pickle"])
        if source.get("rehearsal") is not None:
            args, keywords = pickle.loads(source["rehearsal"])
            call_each(function, [(args, keywords)])
    # BaseException: a file may call sys.exit when it is imported.
    except BaseException as error:
        raise unusable(error) from error
    return function


def serve(line: Line) -> None:
    """Load the functions of the first list; then reply to each item of each further list, in order."""
    # The first list is sources. The pool raises what can't be used as a ConfigError, so stop at the first such one.
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
            # An argument's class may be missing in this interpreter.
            try:
                args, keywords = pickle.loads(call)
            except BaseException as error:
                reply = "raised", one_line(f"its arguments can't be read: {type(error).__name__}: {error}")
            else:
                with processor_time_limit(seconds[index]):
                    (reply,) = call_each(functions[index], [(args, keywords)])
            line.answer(json.dumps(reply))
