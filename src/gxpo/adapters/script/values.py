"""Values of a script that is read and not run: constants, unknown values and objects, and operators on them."""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

LONGEST = 10_000  # characters of a text, items of a list, bits of an integer
_numbers = itertools.count()


@dataclass(frozen=True)
class Unknown:
    """A value that only a run of the script gives, with the reason and its place ("line 12")."""

    reason: str
    where: str

    def __deepcopy__(self, memo: dict[int, Any]) -> Unknown:
        return self


@dataclass(frozen=True)
class Noted:
    """A value that holds unless something changes it, as a default of a command line does.

    notes  what changes it: "--lr", "environment variable LR"
    """

    value: Any
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Import:
    """A name of another module, such as `trl.GRPOConfig` or `torch`."""

    path: str

    def __deepcopy__(self, memo: dict[int, Any]) -> Import:
        return self

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]


@dataclass(frozen=True)
class Function:
    """A function of the script: its syntax, the frames that it sees, and the class that it is a method of."""

    node: Any
    frames: tuple[int, ...]
    kind: str = "function"  # or "property", "classmethod", "staticmethod"
    notes: tuple[str, ...] = ()  # what sets arguments that a call leaves out, as a decorator does

    def __deepcopy__(self, memo: dict[int, Any]) -> Function:
        return self


class PathText(str):
    """A text that stands for a `pathlib.Path`."""


@dataclass
class Thing:
    """An object: a configuration, a trainer, a model, a data set, a parser, a class of the script or an instance.

    kind    "config", "trainer", "model", "dataset", "class", "instance", "parser", "lora", "partial", "namespace"
    name    of its class;   fields: attributes or arguments;   places: where they were set;   of: class of an instance
    notes   what is to be said of it;   extra_fields: why others may be set, as by `**arguments`
    """

    kind: str
    name: str
    where: str
    fields: dict[str, Any] = field(default_factory=dict)
    places: dict[str, str] = field(default_factory=dict)
    of: Any = None
    extra_fields: Unknown | None = None
    notes: list[tuple[str, str]] = field(default_factory=list)
    number: int = field(default_factory=lambda: next(_numbers))


def without_notes(value: Any) -> tuple[Any, tuple[str, ...]]:
    """Return a value without its notes, and these."""
    return (value.value, value.notes) if isinstance(value, Noted) else (value, ())


def with_notes(value: Any, notes: Sequence[str]) -> Any:
    """Add notes to a value; lists and mappings carry them on their items, so that they stay lists and mappings."""
    if not notes or isinstance(value, (Unknown, Import, Thing)):
        return value
    if isinstance(value, dict):
        return {k: with_notes(v, notes) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(with_notes(v, notes) for v in value)
    inner, earlier = without_notes(value)
    return Noted(inner, tuple(dict.fromkeys([*earlier, *notes])))


def plain(value: Any) -> tuple[Any, tuple[str, ...]]:
    """Return a value of constants alone, with lists for tuples, and its notes; the first `Unknown` if it holds one."""
    value, notes = without_notes(value)
    if isinstance(value, Mapping):
        pairs = {k: plain(v) for k, v in value.items()}
        bad = next((v for v, _ in pairs.values() if isinstance(v, Unknown)), None)
        return bad or {k: v for k, (v, _) in pairs.items()}, tuple(n for _, ns in pairs.values() for n in ns) + notes
    if isinstance(value, (list, tuple)):
        items = [plain(v) for v in value]
        bad = next((v for v, _ in items if isinstance(v, Unknown)), None)
        return bad or [v for v, _ in items], tuple(n for _, ns in items for n in ns) + notes
    if isinstance(value, Import):
        return Unknown(f"{value.path} is code of another file", ""), notes
    if isinstance(value, (bool, int, float, str, type(None), Unknown)):
        return str(value) if isinstance(value, PathText) else value, notes
    return Unknown("an object of the script", getattr(value, "where", "")), notes


def truth(value: Any) -> bool | None:
    """Return whether a value counts as true; None if that is unknown."""
    value, _ = without_notes(value)
    if isinstance(value, (Unknown, Import)):
        return None
    if isinstance(value, (dict, list, tuple, str, int, float, type(None))):
        return bool(value)
    return True


# ---------------------------------------------------------------- operators
def _is_small(value: Any) -> bool:
    if isinstance(value, int):
        return value.bit_length() <= LONGEST
    return not isinstance(value, (str, list, tuple, dict, bytes)) or len(value) <= LONGEST


def _power(a: Any, b: Any) -> Any:
    if isinstance(a, int) and isinstance(b, int) and (b > LONGEST or a.bit_length() * max(b, 1) > LONGEST):
        raise OverflowError
    return a**b


def _product(a: Any, b: Any) -> Any:
    for text, times in ((a, b), (b, a)):
        if isinstance(text, (str, list, tuple)) and isinstance(times, int) and len(text) * times > LONGEST:
            raise OverflowError
    return a * b


def _shifted(a: Any, b: Any) -> Any:
    if b > LONGEST:
        raise OverflowError
    return a << b


def _remainder(a: Any, b: Any) -> Any:
    if isinstance(a, str) and re.search(r"\*|\d{4}", a):  # "%1000000000d"
        raise OverflowError
    return a % b


def _quotient(a: Any, b: Any) -> Any:
    return PathText(PurePosixPath(a) / b) if isinstance(a, PathText) or isinstance(b, PathText) else a / b


OPERATORS: Mapping[str, Callable[..., Any]] = {
    "Add": operator.add, "Sub": operator.sub, "Mult": _product, "Div": _quotient, "FloorDiv": operator.floordiv,
    "Pow": _power, "Mod": _remainder, "LShift": _shifted, "RShift": operator.rshift, "BitOr": operator.or_,
    "BitAnd": operator.and_, "BitXor": operator.xor, "USub": operator.neg, "UAdd": operator.pos,
    "Eq": operator.eq, "NotEq": operator.ne, "Lt": operator.lt, "LtE": operator.le, "Gt": operator.gt,
    "GtE": operator.ge, "In": lambda a, b: a in b, "NotIn": lambda a, b: a not in b,
    "Is": lambda a, b: a is b, "IsNot": lambda a, b: a is not b,
}  # fmt: skip


def _formatted(template: str, *values: Any, **keywords: Any) -> str:
    if re.search(r"\{[^}]*(\d{4}|[.\[{])", template):  # wide columns, attributes
        raise ValueError
    return template.format(*values, **keywords)


def _path(*parts: str) -> str:
    return PathText(PurePosixPath(*map(str, parts)))


# functions of constants, by the name that they are called by; bounded in what they return
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "int": int, "float": float, "str": str, "bool": bool, "len": len, "min": min, "max": max, "abs": abs,
    "round": round, "sum": sum, "list": list, "tuple": tuple, "sorted": sorted, "any": any, "all": all, "repr": repr,
    "enumerate": lambda x: list(enumerate(x)), "zip": lambda *x: list(zip(*x, strict=False)),
    "range": lambda *x: list(range(*x)[:100]) if len(range(*x)) <= 100 else OPERATORS["Pow"](2, 1 << 20),
    "math.ceil": math.ceil, "math.floor": math.floor, "math.sqrt": math.sqrt, "math.log2": math.log2,
    "math.prod": math.prod, "os.path.join": lambda *x: str(_path(*x)), "os.path.basename": lambda x: x.rsplit("/")[-1],
    "pathlib.Path": _path, "os.path.expanduser": str, "os.fspath": str, "ast.literal_eval": str,
}  # fmt: skip
TEXTS = """lower upper strip lstrip rstrip split rsplit startswith endswith removeprefix removesuffix partition count
find rpartition title capitalize isdigit splitlines join replace"""
METHODS = {str: TEXTS.split(), dict: ["get", "items", "keys", "values", "copy"], list: ["copy", "count", "index"],
           int: ["bit_length"]}  # fmt: skip
CHANGES = {dict: ["update", "pop", "setdefault", "clear"], list: ["append", "extend", "insert", "pop", "remove"]}


def compute(function: Callable[..., Any], arguments: Sequence[Any], unknown: Unknown) -> Any:
    """Compute a function of values: `unknown` if it fails or is too large; notes of the arguments stay on the result.

    An unknown argument makes the result unknown for the same reason.
    """
    values, notes = [], []
    for argument in arguments:
        value, why = without_notes(argument)
        if isinstance(value, Import):
            return Unknown(f"{value.path} is code of another file", unknown.where)
        if isinstance(value, (Unknown, Thing, Function)):
            return value if isinstance(value, Unknown) else unknown
        values.append(value)
        notes += why
    try:
        result = function(*values)
    except Exception:  # of whatever the script's constants make of a builtin function
        return unknown
    is_text_of_objects = isinstance(result, str) and re.search(r"\b(Import|Thing|Unknown|Function|Noted)\(", result)
    if is_text_of_objects and any(isinstance(v, (list, tuple, dict)) for v in values):
        return unknown
    if isinstance(result, (map, filter, zip)) or not _is_small(result):
        return unknown
    if isinstance(result, type({}.keys()) | type({}.values()) | type({}.items())):
        result = list(result)
    return with_notes(result, notes)


def method_of(value: Any, name: str) -> Callable[..., Any] | None:
    """Return a method of a constant that changes nothing, or changes this list or mapping alone."""
    for kind in METHODS:
        if isinstance(value, kind) and name in (*METHODS[kind], *CHANGES.get(kind, ())):
            member = getattr(value, name)
            if name == "replace":
                return lambda a, b, *n: member(a, b, *n) if len(value) * (len(b) + 1) < 10**6 else [][0]
            return member
    return _formatted.__get__(value) if isinstance(value, str) and name == "format" else None


class _Absent:
    """A field that is not set, but for what a note says."""

    def __deepcopy__(self, memo: dict[int, Any]) -> _Absent:
        return self


ABSENT = _Absent()
