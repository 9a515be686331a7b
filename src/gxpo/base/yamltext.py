"""YAML 1.2 to plain values and back, with bounded input and exact round trips."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import date
from functools import partial
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent, CollectionEndEvent, CollectionStartEvent, NodeEvent
from ruamel.yaml.parser import RoundTripParser
from ruamel.yaml.scalarbool import ScalarBoolean

from gxpo.base.errors import ConfigError

DEEPEST = 32  # levels of lists and mappings within one another
MOST = 20_000  # values of a document, those behind an alias counted each time
LARGEST = 2**63  # of integers
OPEN = "???"  # a value that somebody has to fill in, as in OmegaConf
_PLAIN = re.compile(r"[A-Za-z_/][A-Za-z0-9_./+@:-]*(?<!:)\Z")  # texts that need no quotes, but for
_OTHER_VALUES = ("true", "false", "null", "yes", "no", "on", "off")


def load(text: str, where: str) -> Any:
    """Parse a YAML document into mappings and lists that know their lines.

    Raises `YAMLError` where it is not YAML, and `ConfigError`, which begins with `where`, where it is too large or too
    deep or holds what is no value.
    """
    yaml = YAML(typ="rt")
    yaml.Parser = partial(_Parser, where=where)
    try:
        # round trip, for its mappings know the lines of their keys
        return yaml.load(text)
    except (YAMLError, ConfigError):
        raise
    except Exception as error:  # a number of 5,000 digits, a date that does not exist: the constructors raise anything
        problem = " ".join(str(error).split("; use sys.")[0].split())
        raise ConfigError(f"{where}: a value can't be read: {problem or type(error).__name__}") from None


def problem_of(error: YAMLError) -> tuple[str, str]:
    """Description of a YAML error, and ":LINE" where that is known."""
    mark = error.problem_mark if isinstance(error, MarkedYAMLError) else None
    problem = getattr(error, "problem", None) or str(error).splitlines()[0]
    return str(problem), "" if mark is None else f":{mark.line + 1}"


def plain(value: Any, where: str, depth: int = 0) -> Any:
    """Plain values (lists, mappings with texts as keys, texts, numbers, null) without the loader's own types; other
    Python objects (a function, a part) stay as they are. ConfigError for a value that a file can't hold."""
    if isinstance(value, (Mapping, list)):
        # before recursion: a document of brackets alone would end in a RecursionError
        if depth >= DEEPEST:
            raise ConfigError(f"{where}: lists and mappings are nested more than {DEEPEST} deep")
        if isinstance(value, list):
            return [plain(v, where, depth + 1) for v in value]
        return {plain(str(k), where): plain(v, where, depth + 1) for k, v in value.items()}
    # before int: a bool is one, and ruamel's ScalarBoolean is an int that is no bool
    if isinstance(value, (bool, ScalarBoolean)):
        return bool(value)
    if isinstance(value, int):
        if not -LARGEST <= value < LARGEST:
            raise ConfigError(f"{where}: an integer has more than 64 bits")
        return int(value)
    # half of a surrogate pair passes through YAML's escapes, and then can't be saved in any file
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ConfigError(f"{where}: {value!a} is not valid Unicode: it holds half of a surrogate pair") from None
        return str(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, (date, bytes, set)) or type(value).__module__.startswith("ruamel."):
        raise ConfigError(f"{where}: a setting is no {type(value).__name__}: put a text into quotes")
    return value


def is_open(value: Any) -> bool:
    """True if a value, or one within a list or mapping, is still to be filled in."""
    if isinstance(value, (Mapping, list)):
        return any(map(is_open, value.values() if isinstance(value, Mapping) else value))
    return isinstance(value, str) and value == OPEN


def dump(document: Mapping[str, Any], comments: Mapping[str, str]) -> str:
    """YAML with a line for each key, which `load` reads back equal; `comments` follow the lines of their keys."""
    lines = []
    for key, value in document.items():
        note = comments.get(key, "")
        entries = list(value) if isinstance(value, (list, tuple)) and all(isinstance(x, Mapping) for x in value) else []
        scalar = "" if entries else f" {_flow(value)}"
        lines.append(f"{_text(key)}:{scalar}{note and f' {comment(note)}'}\n")
        lines += [f"  - {_flow(entry)}\n" for entry in entries]
    return "".join(lines)


def comment(text: str) -> str:
    """A comment of YAML, on one line whatever the text holds."""
    return "# " + "".join(c if c.isprintable() else " " for c in text)


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_key(str(k))}: {_inner(v)}" for k, v in value.items()) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_inner, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    return json.dumps(value) if isinstance(value, (int, float)) or value is None else _text(str(value))


def _inner(value: Any) -> str:
    """A value inside a list or a mapping, where a colon would begin another."""
    return _quoted(value) if isinstance(value, str) and (":" in value or value == OPEN) else _flow(value)


def _key(text: str) -> str:
    """A key inside a mapping; a long one needs its question mark."""
    return _inner(text) if len(text) < 100 else f"? {_quoted(text)} "


def _text(text: str) -> str:
    """Names, paths and the like unquoted, all else in quotes."""
    is_plain = _PLAIN.match(text) and text.lower() not in _OTHER_VALUES
    return text if is_plain or text == OPEN else _quoted(text)


def _quoted(text: str) -> str:
    """Whatever is not printable is escaped: a line break of any kind would be read as a blank."""
    return '"' + "".join(f"\\{c}" if c in '"\\' else c if c.isprintable() else f"\\U{ord(c):08x}" for c in text) + '"'


class _Parser(RoundTripParser):
    """Raises an error as soon as it meets what is nested too deeply, or too large with its aliases expanded."""

    def __init__(self, loader: Any, where: str) -> None:
        super().__init__(loader)
        self.where = where
        self.sizes: dict[str, int] = {}
        self.within: list[tuple[str | None, int]] = []  # of each open list or mapping: anchor, values so far

    def get_event(self) -> Any:
        """The next event, each once."""
        event = super().get_event()
        self._count(event)
        return event

    def _count(self, event: Any) -> None:
        anchor, size = getattr(event, "anchor", None), 1
        # counted by event, before any value is made: aliases of aliases grow exponentially
        if isinstance(event, CollectionStartEvent):
            self.within.append((anchor, 1))
            if len(self.within) > DEEPEST:
                raise ConfigError(f"{self._line(event)}: lists and mappings are nested more than {DEEPEST} deep")
            return
        if isinstance(event, AliasEvent):
            # an alias within its own anchor is a value without end
            if any(anchor == name for name, _ in self.within):
                raise ConfigError(f"{self._line(event)}: {anchor} refers to itself")
            # an alias counts as all that it repeats
            size = self.sizes.get(str(anchor), 1)
        elif isinstance(event, CollectionEndEvent):
            anchor, size = self.within.pop()
        elif not isinstance(event, NodeEvent):
            return
        if anchor is not None:
            self.sizes[anchor] = size
        if self.within:
            name, so_far = self.within[-1]
            self.within[-1] = (name, so_far + size)
            if so_far + size > MOST:
                raise ConfigError(f"{self._line(event)}: more than {MOST:,} values")

    def _line(self, event: Any) -> str:
        return self.where if event.start_mark is None else f"{self.where}:{event.start_mark.line + 1}"
