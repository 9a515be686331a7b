"""`gxpo parts`: every part by stage, with its options, its needs, and the methods that use it."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from gxpo.base.errors import ConfigError, did_you_mean
from gxpo.methods import METHODS
from gxpo.methods.compose import method
from gxpo.parts import ranges
from gxpo.parts.definition import Definition, show, stage_of
from gxpo.parts.registry import PLACES, STAGES, part_at
from gxpo.training.phase_plan import expand

TYPE_WORDS = {int: "integer", float: "number", bool: "true or false", str: "text", type(None): "null"}


@cache
def entries() -> tuple[dict[str, Any], ...]:
    """List all parts as plain values: name, stage, slot, text, options, needs, requires, provides, methods."""
    users, base = _methods_by_part(), _base_parts()
    return tuple(
        {
            "name": name,
            "stage": stage_of(slot) or slot,
            "slot": slot,
            "stages": _stage_words(folder, slot, table.stage),
            "summary": _first_line(kind),
            "text": inspect.cleandoc(kind.__doc__ or ""),
            "file": f"{kind.__module__.replace('.', '/')}.py",
            "options": _options(kind, slot),
            **{key: list(_declared_names(kind, key)) for key in ("needs", "requires", "provides")},
            "methods": users.get(kind, []),
            "default": kind in base,
        }
        for folder, slot, table in PLACES
        for name, kind in sorted(table.items())
    )


def _stage_words(folder: str, slot: str, stage: str) -> tuple[str, ...]:
    """Return the words that users may call a stage: of keys, of `registry.part`, and the folder's."""
    key = slot.removesuffix(".NAME")
    further = {"credit": ("advantage", "credit.add"), "reward.add": ("reward.shape", "reward.step")}.get(key, ())
    return tuple(dict.fromkeys((stage_of(slot) or slot, stage, key, slot, folder, *further)))


def show_parts(name: str | None, stage: str | None, *, as_json: bool) -> str:
    """Return the output of the command: the parts called `name`, or the list by stage.

    Raises ConfigError for an unknown name or stage, with the closest ones.
    """
    rows = entries()
    stages = list(dict.fromkeys(name for row in rows for name in row["stages"]))
    if stage is not None and stage not in stages:
        stage_words = dict.fromkeys(
            word for row in rows for word in row["stages"] if word in STAGES or word == row["stage"]
        )
        raise ConfigError(f"no stage {stage!r}{did_you_mean(stage, stages)}; there is {', '.join(stage_words)}")
    rows = tuple(row for row in rows if stage is None or stage in row["stages"])
    if name is None:
        return _to_json(rows) if as_json else _list_text(rows)
    matches = [row for row in rows if row["name"] == name]
    if not matches:
        raise ConfigError(_unknown_part(name, [row["name"] for row in rows]))
    return _to_json(matches) if as_json else "\n\n".join(map(_part_text, matches))


def _unknown_part(name: str, part_names: list[str]) -> str:
    published = f"; {name} is a method: gxpo methods {name}" if name in METHODS else ""
    return f"no part {name!r}{did_you_mean(name, part_names)}{published} (`gxpo parts` lists them)"


def _methods_by_part() -> dict[type, list[str]]:
    """Map each part to the methods whose definitions name it."""
    methods_by_part: dict[type, list[str]] = {}
    for name in METHODS:
        for kind in dict.fromkeys(_parts_of(METHODS[name])):
            methods_by_part.setdefault(kind, []).append(name)
    return methods_by_part


def _base_parts() -> set[type]:
    """Return the parts of the base method, which every method without others has."""
    return {s.value if isinstance(s.value, type) else type(s.value) for s in method("grpo").keys.values()}


def _parts_of(definition: Definition) -> list[type]:
    """List the parts that a definition names, in its phases too."""
    keys = {**definition.paper_defaults, **definition.keys}
    phases = expand(keys["phases"]) if "phases" in keys else []
    out = []
    for key, value in [*keys.items(), *((k, s.value) for phase in phases for k, s in phase.keys.items())]:
        value = part_at(key, value)
        if isinstance(value, type) or dataclasses.is_dataclass(value):
            out.append(value if isinstance(value, type) else type(value))
    return out


def _options(kind: type, slot: str) -> list[dict[str, Any]]:
    hints, rules = get_type_hints(kind, include_extras=True), ranges.rules(kind)
    # surrogate and ratio share the keys of the objective: `objective.clip_low`, not `objective.surrogate.clip_low`
    prefix = "objective" if slot in ("objective.surrogate", "objective.ratio") else slot
    out = []
    for field in dataclasses.fields(kind):
        if not field.init or field.name.startswith("_"):
            continue
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        rule = rules.get(field.name)
        out.append(
            {
                "key": f"{prefix}.{field.name}",
                "name": field.name,
                "type": type_in_words(hints[field.name]),
                "range": None if rule is None or rule.choices else rule.text,
                "choices": None if rule is None or not rule.choices else [str(c) for c in rule.choices],
                "default": None if default is dataclasses.MISSING else _as_json_value(default),
                "required": default is dataclasses.MISSING,
            }
        )
    return out


def type_in_words(hint: Any) -> str:
    """Describe a type hint in the words of users: integer, number, text, list, word (one of several)."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return type_in_words(args[0])
    if origin is Literal:
        return "word"
    if hint in TYPE_WORDS:
        return TYPE_WORDS[hint]
    if args and origin is not None and not (isinstance(origin, type) and issubclass(origin, (list, tuple, Mapping))):
        return " or ".join(dict.fromkeys(map(type_in_words, args)))
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "mapping"
    if isinstance(origin, type) and issubclass(origin, (list, tuple)):
        return "list"
    return getattr(hint, "__name__", "any")


def _as_json_value(value: Any) -> Any:
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    if isinstance(value, (list, tuple)):
        return [_as_json_value(v) for v in value]
    if isinstance(value, Mapping):
        return {str(k): _as_json_value(v) for k, v in value.items()}
    return show(value)


def _declared_names(kind: type, name: str) -> tuple[str, ...]:
    """Return what a part class declares under `needs`, `requires` or `provides`.

    Where that depends on settings it is a property, which only an instance can answer: one with its defaults.
    """
    value = getattr(kind, name, ())
    if isinstance(value, (tuple, list)):
        return tuple(value)
    try:
        return tuple(getattr(kind(), name))
    except Exception:  # an option without default, or a part whose checks refuse its defaults
        return ()


def _first_line(kind: type) -> str:
    paragraph = inspect.cleandoc(kind.__doc__ or "").split("\n\n")[0].split("\n")
    sentence = re.split(r"(?<=\.)\s", " ".join(line.strip() for line in paragraph), maxsplit=1)[0]
    return sentence.rstrip(".:;")


def _list_text(rows: tuple[dict[str, Any], ...]) -> str:
    width, lines = max(len(row["name"]) for row in rows), []
    for slot in dict.fromkeys(row["slot"] for row in rows):
        lines += ["", slot]
        for row in (r for r in rows if r["slot"] == slot):
            users_text = "all" if row["default"] else len(row["methods"]) or "-"
            lines.append(f"  {row['name']:<{width}}  {users_text:>3}  {row['summary']}")
    header = f"{len(rows)} parts: name, how many methods name it, what it is. `gxpo parts NAME` shows options."
    return "\n".join([header, *lines])


def _part_text(row: Mapping[str, Any]) -> str:
    lines = [f"{row['name']}: a part for {row['slot']} ({row['file']})", "", row["text"], ""]
    if row["options"]:
        widths = [max(len(x) for x in column) for column in zip(*map(_option_cells, row["options"]), strict=True)]
        lines.append("options")
        for option in row["options"]:
            cells = (cell.ljust(width) for cell, width in zip(_option_cells(option), widths, strict=True))
            lines.append(f"  {'  '.join(cells)}".rstrip())
    for key, meaning in (("needs", "reads signals"), ("requires", "rollouts carry"), ("provides", "provides")):
        if row[key]:
            lines.append(f"{meaning}: {', '.join(row[key])}")
    default_users = "every method that names no other" if row["default"] else ""
    lines.append(f"used by: {', '.join(filter(None, [*row['methods'], default_users])) or 'no method'}")
    return "\n".join(lines)


def _option_cells(option: Mapping[str, Any]) -> tuple[str, str, str]:
    range_text = "|".join(option["choices"] or [", ".join(filter(None, (option["type"], option["range"])))])
    return option["key"], "(required)" if option["required"] else f"= {show(option['default'])}", range_text


def _to_json(rows: Any) -> str:
    return json.dumps(
        [{k: v for k, v in row.items() if k not in ("text", "stages")} for row in rows], indent=1, default=str
    )
