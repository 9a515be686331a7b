"""Validate the time steps of environments, and convert them to and from JSON."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from gxpo.base.errors import GxpoError
from gxpo.base.media import PICTURES
from gxpo.base.picture_files import MAX_BYTES, decoded, png
from gxpo.base.usercode import one_line
from gxpo.parts.protocols import TimeStep

ACTION_ERRORS = (None, "malformed", "illegal")
FIELDS = {field.name for field in fields(TimeStep)}
CARRIED = "data:image/png;base64,"  # how a picture in JSON begins


class Nonsense(Exception):
    """Error of an environment that returned a value outside the protocol; the message names the value."""


def check_step(step: object, *, first: bool = False) -> dict[str, Any]:
    """Convert a `TimeStep` to fields of plain types; raises `Nonsense` for one of the wrong type.

    first  True for the result of `reset`: nothing can be over or paid yet

    numpy's scalars count as numbers and truth values. A step that is `truncated` is over: its `done` is set. Pictures
    in messages (pixels [H, W, 3] uint8, files, Pillow's images) become PNG in base64.
    """
    # a user's code wrote it: every field is looked at, since it travels as JSON from here on
    if not isinstance(step, TimeStep):
        raise Nonsense(f"returned {_name(step)}, not a TimeStep")
    done, truncated = _truth("done", step.done), _truth("truncated", step.truncated)
    fields = {
        "observation": _observation(step.observation),
        "state": _text_or_none("state", step.state),
        "reward": None if step.reward is None else _number(step.reward),
        "done": done or truncated,
        "success": None if step.success is None else _truth("success", step.success),
        "action_error": step.action_error,
        "truncated": truncated,
        "info": step.info,
    }
    if step.action_error not in ACTION_ERRORS:
        raise Nonsense(f"action_error is {step.action_error!r}, not None, 'malformed' or 'illegal'")
    if not isinstance(step.info, Mapping) or not all(isinstance(key, str) for key in step.info):
        raise Nonsense("info is not a mapping of names to values")
    # an episode without an action has no tokens to train on
    if first and fields["done"]:
        raise Nonsense("reset returned an episode that is over")
    if first and fields["reward"] is not None:
        raise Nonsense(f"reset paid a reward ({fields['reward']:g}); a reward belongs to an action")
    return fields


def check_text(label: str, value: object) -> str:
    """Return `value` if it is a text, else raise `Nonsense`."""
    if not isinstance(value, str):
        raise Nonsense(f"{label} is {_name(value)}, not a text")
    return value


def check_texts(label: str, value: object) -> list[str]:
    """Return `value` as a list if it is a sequence of texts, else raise `Nonsense`."""
    # a text is a sequence of texts as well
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise Nonsense(f"{label} is {_name(value)}, not a sequence of texts")
    return [check_text(f"an entry of {label}", x) for x in value]


def check_whole(label: str, value: object) -> int:
    """Return `value` if it is a whole number, else raise `Nonsense`."""
    if type(value) is not int:
        raise Nonsense(f"{label} is {_name(value)}, not a whole number")
    return value


def to_json(value: object) -> str:
    """Encode `value` as JSON; numpy arrays and scalars become lists and numbers."""
    try:
        text = json.dumps(value, allow_nan=False, default=_plain)
        if "\\ud" in text:
            json.dumps(value, ensure_ascii=False, default=_plain).encode()  # half of a surrogate pair is no character
        return text
    except (TypeError, ValueError, RecursionError) as error:
        raise Nonsense(f"it holds what JSON can't: {error}") from error


def from_fields(fields: Mapping[str, Any]) -> TimeStep:
    """Make a `TimeStep` of its fields after a round trip through JSON; pictures become references, so that equal
    observations compare equal."""
    observation = fields["observation"]
    if not isinstance(observation, str):
        observation = tuple(_with_pictures(message, _as_reference) for message in observation)
    return TimeStep(**{**fields, "observation": observation})


def checked_answer(operation: str, answer: Any) -> tuple[str, Any]:
    """Validate a worker's answer to an operation of `Host.run`: a status and its value.

    The process runs code that is not gxpo's, so nothing is taken on trust; any exception means that it is no answer.
    """
    status, value = answer
    if status in ("raised", "nonsense"):
        return status, one_line(check_text("the message", value))
    if status != "ok":
        raise Nonsense(f"the status is {str(status)[:20]!r}")
    if operation in ("reset", "step"):
        if set(value) != FIELDS:
            raise Nonsense("not the fields of a TimeStep")
        return status, check_step(from_fields(value), first=operation == "reset")
    # what each operation of `Host.run` may give: see its table
    if operation in ("restore", "close") and value is not None:
        raise Nonsense(f"{operation} gives nothing")
    if operation in ("restore", "close") or (operation in ("expert", "answer") and value is None):
        return status, None
    check = {"legal": check_texts, "level": check_whole}.get(operation, check_text)
    return status, check(operation, value)


def checked_about(answer: Any) -> tuple[str, Any]:
    """Validate a worker's answer to loading an environment: "loaded" and `Host.about`, or "unusable" and why."""
    status, value = answer
    if status == "unusable":
        return status, one_line(check_text("the message", value))
    if status != "loaded" or set(value) != {"instructions", "max_turns", "tools", "provides", "blocking"}:
        raise Nonsense("neither loaded nor unusable")
    check_text("instructions", value["instructions"])
    check_texts("provides", value["provides"])
    _truth("blocking", value["blocking"])
    if type(value["max_turns"]) is not int or not all(isinstance(tool, dict) for tool in value["tools"]):
        raise Nonsense("max_turns is no whole number, or tools are no schemas")
    return status, value


def _observation(value: object) -> object:
    if isinstance(value, str):
        return value
    if not isinstance(value, Sequence):
        raise Nonsense(f"observation is {_name(value)}, neither a text nor messages")
    for message in value:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str) or "content" not in message:
            raise Nonsense("observation holds something that is no message with a role and content")
    return [_with_pictures(message, _as_data_url) for message in value]


def _with_pictures(message: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Copy of a message with `change` applied to its pictures, if its content is a list of parts."""
    content = message["content"]
    if isinstance(content, str) or not isinstance(content, Sequence):
        return dict(message)
    parts = [
        {**part, "image": change(part.get("image"))}
        if isinstance(part, Mapping) and part.get("type") == "image"
        else part
        for part in content
    ]
    return {**message, "content": parts}


def _as_data_url(picture: Any) -> str:
    """Encode a picture for JSON, as a data URL of PNG."""
    try:
        ref = PICTURES.put(picture)
        # PNG bytes are passed on as they are: the same picture has the same reference in every process
        data = PICTURES.data(ref) if ref.endswith(".png") else png(PICTURES.pixels(ref))
    except (GxpoError, OSError, ValueError) as error:
        raise Nonsense(f"observation shows what is no picture: {error}") from error
    return CARRIED + base64.b64encode(data).decode()


def _as_reference(picture: Any) -> Any:
    """Store a picture that came in JSON and return its reference; anything else is returned unchanged."""
    if not isinstance(picture, str) or not picture.startswith(CARRIED):
        return picture
    if len(picture) > MAX_BYTES * 4 // 3 + len(CARRIED) + 4:  # base64 writes 3 bytes as 4 characters
        raise Nonsense(f"observation shows a picture of {len(picture)} characters, whose file is larger than is read")
    try:
        return PICTURES.put(decoded(base64.b64decode(picture.removeprefix(CARRIED), validate=True), "png"))
    except (GxpoError, ValueError) as error:
        raise Nonsense(f"observation shows what is no picture: {error}") from error


def _text_or_none(label: str, value: object) -> str | None:
    return None if value is None else check_text(label, value)


def _number(value: Any) -> float:
    plain = _scalar(value)
    if isinstance(plain, bool) or not isinstance(plain, (int, float)):
        raise Nonsense(f"reward is {_name(value)}, not a number")
    if not math.isfinite(plain):
        raise Nonsense(f"reward is {plain}, not a finite number")
    return float(plain)


def _truth(label: str, value: Any) -> bool:
    plain = _scalar(value)
    if not isinstance(plain, bool):
        raise Nonsense(f"{label} is {_name(value)}, not True or False")
    return plain


def _scalar(value: Any) -> Any:
    """Convert a scalar of numpy or torch to Python's; anything else is returned unchanged."""
    is_array = getattr(value, "shape", None) == () and hasattr(value, "item")
    return value.item() if is_array else value


def _plain(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON serializable")


def _name(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"
