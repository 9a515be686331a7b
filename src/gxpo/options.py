"""Stated keys to typed options and parts: dotted keys, types and ranges of options, parts by name, file or object."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from gxpo import former, functions, ranges, registry
from gxpo.definition import Stated, finite, kind_of, show
from gxpo.errors import ConfigError, did_you_mean
from gxpo.functions import Formula
from gxpo.usercode import NotRun, Unusable, object_at


def dotted(given: Mapping[str, Any]) -> dict[str, Stated]:
    """Keys from Python, `Stated` or plain values, nested or dotted, as dotted ones. ConfigError where two are one."""
    out: dict[str, Stated] = {}
    for key, value in given.items():
        held = value if isinstance(value, Stated) else Stated(value, "override")
        for leaf, stated in leaves(key, held.value, held.origin):
            if leaf in out:
                raise ConfigError(f"{leaf} is set twice")
            out[leaf] = replace(held, value=stated.value)
    return out


def leaves(key: str, value: Any, origin: str, source: str | None = None) -> Iterator[tuple[str, Stated]]:
    """The dotted keys that a value stands for: `{"kl": {"coef": 0.1}}` under "objective" states "objective.kl.coef".

    `part` names the part of a key that takes one: `{"part": "gae", "lam": 1.0}` under "credit" states "credit" and
    "credit.lam". Settings that are mappings themselves (`is_mapping`) stay whole.

    source  the file, whose lines are told beside it
    """
    if not isinstance(value, Mapping) or is_mapping(key):
        yield key, Stated(value, origin)
        return
    lines = getattr(getattr(value, "lc", None), "data", None) or {}
    rewards = {k: v for k, v in value.items() if k not in ("part", "add", "shape", "step")} if key == "reward" else {}
    if rewards:  # the weights of rewards, by their former key
        yield key, Stated(rewards, origin)
    for name, inner in value.items():
        if name in rewards:
            continue
        at = f"{source}:{lines[name][0] + 1}" if source and name in lines else origin
        part = name == "part" and (key == "reward" or former.folder_of(key) is not None)
        yield from leaves(key if part else f"{key}.{name}" if key else str(name), inner, at, source)


def is_mapping(key: str) -> bool:
    """Whether a key's value is itself a mapping: of some settings, and of the `weights` that parts have."""
    if not key:
        return False
    from gxpo.settings import MAPPINGS

    return key == "versions" or key in MAPPINGS or key.endswith(".weights")


@cache
def hints_of(kind: type) -> dict[str, Any]:
    """Types of a part's fields; resolving them costs more than making the part."""
    return get_type_hints(kind)


class Unexecuted:
    """Stand-in for a part whose file must not be run (`usercode.unexecuted`): needs nothing, accepts any setting."""

    provides = needs = requires = outputs = ()
    couples, axes, calls = "token", {}, None

    def __init__(self, path: str, fields: Mapping[str, Any] | None = None) -> None:
        self.path = path
        vars(self).update(fields or {})

    def __add__(self, other: Any) -> Unexecuted:
        return self

    __radd__ = __add__

    def __call__(self, *args: Any) -> Any:
        raise ConfigError(f"{self.path} is not run here")

    def optimiser_steps(self, tasks: int) -> int:
        raise ConfigError(f"update={self.path} is not run here, so how many optimiser steps it takes is not known")


class Keys:
    """Stated keys being consumed; every resolved value is noted with its origin."""

    def __init__(self, stated: Mapping[str, Stated]) -> None:
        self.stated, self.used, self.resolved, self.valid = stated, set[str](), dict[str, Stated](), list[str]()

    def take(self, key: str, default: Any) -> Any:
        self.valid.append(key)
        self.used.add(key)
        found = self.stated.get(key, Stated(default, "default"))
        self.resolved[key] = found
        return found.value

    def names(self, prefix: str) -> list[str]:
        """NAME of every stated `prefix.NAME`, in order; optional options of a part that is not stated make none."""
        words = len(prefix.split("."))
        below = {k: k.split(".")[words] for k in self.stated if k.startswith(f"{prefix}.")}
        return list(dict.fromkeys(n for k, n in below.items() if k == f"{prefix}.{n}" or not self.stated[k].optional))

    def part(
        self,
        slot: str,
        value: Any,
        table: Mapping[str, Any],
        prefix: str | None = None,
        what: str = "part",
        main: str | None = None,
    ) -> Any:
        """The part that `value` names, its fields filled from `prefix.FIELD`.

        main  the slot of the part that it is added to: fields that its class names in `follows`, and those whose
              default is None, are as they are there unless they are stated
        """
        kind = resolve_part(value, table, slot, what)
        if isinstance(kind, Unexecuted):
            for key in [k for k in self.stated if k.startswith(f"{prefix or slot}.")]:
                self.take(key, None)
            return kind
        check_protocol(f"{slot}={show(value)}", kind, what)
        if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
            return kind
        prefix = slot if prefix is None else prefix
        hints = hints_of(kind)
        fields: dict[str, Any] = {}
        for entry in dataclasses.fields(kind):
            if not entry.init or (entry.name == "options" and issubclass(kind, Formula)):
                continue
            default = entry.default_factory() if entry.default_factory is not dataclasses.MISSING else entry.default
            key = f"{prefix}.{entry.name}"
            if entry.name == "control":
                fields["control"] = self.control(key, default)
            elif main is not None and self.follows(kind, entry, key, f"{main}.{entry.name}"):
                self.take(key, None)
                of_main = self.resolved[f"{main}.{entry.name}"].value
                fields[entry.name] = default if of_main is None else of_main
            else:
                fields[entry.name] = self.field(key, default, hints[entry.name], "unbounded" in entry.metadata)
        self.check(kind, fields, prefix)
        try:
            if issubclass(kind, Formula):
                fields["options"] = self.options(kind, fields, prefix)
            return kind(**fields)
        except NotRun as needed:
            return Unexecuted(str(needed), fields)

    def follows(self, kind: type, entry: dataclasses.Field[Any], key: str, of_main: str) -> bool:
        """Whether a field of an added part is as in the part that it is added to."""
        may = entry.default is None or entry.name in getattr(kind, "follows", ())
        return may and of_main in self.resolved and (key not in self.stated or self.stated[key].value is None)

    def check(self, kind: type, fields: Mapping[str, Any], prefix: str) -> None:
        """Refuse values that the annotations of a part's fields exclude, by their whole keys."""
        keys = [f"{prefix}.{name}" for name in fields]
        fields = {name: value for name, value in fields.items() if not isinstance(value, Unexecuted)}
        ranges.check(kind, fields, prefix, {k: said(self.stated[k]) for k in keys if k in self.stated})

    def options(self, kind: type[Formula], fields: dict[str, Any], prefix: str) -> dict[str, Any]:
        """Options of the functions that a part applies: they lie beside its fields, under `prefix.OPTION`."""
        out: dict[str, Any] = {}
        for name, (module, free) in kind.functions.items():
            fields[name] = functions.named(fields[name], module, f"{prefix}.{name}", free=free)
            if callable(fields[name]):
                for option, (hint, default) in functions.signature(fields[name]).options.items():
                    if option in fields:
                        continue
                    out[option] = self.field(f"{prefix}.{option}", default, hint, default == math.inf)
                    rule, key = ranges.rule_of(hint, default == math.inf), f"{prefix}.{option}"
                    if rule is not None and not rule.holds(out[option]):
                        raise ConfigError(ranges.refusal(key, out[option], rule, said(self.stated[key])))
        return out

    def control(self, key: str, default: Any) -> Any:
        """What moves a coefficient: a part inside a part, its fields under `KEY.FIELD`."""
        named = self.take(key, None if default is None else type(default))
        made = None if named is None else self.part(key, named, registry.CONTROLS, what="control")
        return None if isinstance(made, Unexecuted) else made

    def field(self, key: str, default: Any, hint: Any, unbounded: bool = False) -> Any:
        """What is stated, of the field's type, or the default as it is.

        Numbers are finite, but where the default is inf or the field's metadata says `unbounded`.
        """
        value = self.take(key, default)
        if value is dataclasses.MISSING:
            raise ConfigError(f"{key} has no default: set it")
        if key not in self.stated:
            return value
        stated = self.stated[key]
        found = typed(key, value, hint, stated)
        if not finite(found, unbounded or default in (math.inf, -math.inf)):
            raise ConfigError(f"{key}={show(value)} ({stated.origin}): it must be a finite number")
        return found

    def leftover(self) -> list[str]:
        return [k for k in self.stated if k not in self.used]


def said(stated: Stated) -> str:
    """Where a value comes from, but for those of a call's own arguments."""
    return "" if stated.origin == "override" else stated.origin


PROTOCOL = {  # what a part must have, where it is more than being callable
    "rollout": ("grow",),
    "signal": ("compute", "provides", "axes"),
    "update": ("run", "optimiser_steps"),
    "surrogate": ("loss", "clipped"),
    "ratio": ("level", "couples"),
    "control": ("coefficient", "adjust"),
    "term": ("__call__", "active", "couples"),
    "term of the objective": ("__call__", "active", "couples"),
}


def check_protocol(stated: str, part: Any, what: str) -> None:
    """Refuse an object that lacks what the protocol of its stage asks for, before a step of a run finds out."""
    needed = PROTOCOL.get(what, ("__call__",))
    if isinstance(part, type):
        if not dataclasses.is_dataclass(part):
            raise ConfigError(f"{stated} is a class but no dataclass: decorate it with @dataclass(frozen=True)")
        lacking = [n for n in needed if not any(n in vars(base) for base in part.__mro__)]
        lacking += sorted(getattr(part, "__abstractmethods__", ()))
    else:
        lacking = [n for n in needed if not hasattr(part, n)]
    if lacking:
        raise ConfigError(f"{stated} can't be a {what}: it has no {', '.join(dict.fromkeys(lacking))}")


def typed(key: str, value: Any, hint: Any, stated: Stated) -> Any:
    """`value` checked against the field's type; an int is taken for a float, a list for a tuple."""
    hint = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if hint is Any:
        return value
    if hint is float and type(value) in (int, float):
        return float(value)
    if (hint in (int, bool, str) and type(value) is hint) or (
        get_origin(hint) is Literal and type(value) is str and value in get_args(hint)
    ):
        return value
    if get_origin(hint) is Literal and type(value) is str:
        rule = ranges.rule_of(hint)
        assert rule is not None
        raise ConfigError(ranges.refusal(key, value, rule, said(stated)))
    if isinstance(value, list) and get_origin(hint) is tuple:
        value = tuple(value)
    from pydantic import TypeAdapter, ValidationError  # a tenth of a second, for what plain comparisons don't decide

    try:
        return TypeAdapter(hint, config={"arbitrary_types_allowed": True, "strict": True}).validate_python(value)
    except ValidationError as error:
        raise ConfigError(f"{key}={show(value)} ({stated.origin}): {error.errors()[0]['msg'].lower()}") from None


def resolve_part(value: Any, table: Mapping[str, Any], slot: str, what: str) -> Any:
    """A name in the table, `file.py:name`, `module:name`, a part class, a part or a function."""
    if not isinstance(value, str):
        if value is None or not (callable(value) or dataclasses.is_dataclass(value)):
            raise ConfigError(f"{slot}={value!r} is neither the name of a {what} nor a function")
        return registry.of_function(kind_of(value), getattr(table, "stage", ""))
    if value in table:
        return table[value]
    if ":" in value:
        return registry.of_function(kind_of(load_object(value, slot)), getattr(table, "stage", ""))
    raise ConfigError(f"{slot}: unknown {what} {value!r}{did_you_mean(value, table)}; there is {', '.join(table)}")


def load_object(path: str, slot: str) -> Any:
    """The object that `file.py:name` or `package.module:name` names."""
    try:
        return object_at(path)
    except NotRun:
        return Unexecuted(path)
    except Unusable as error:
        raise ConfigError(f"{slot}={path}: {error}") from None
