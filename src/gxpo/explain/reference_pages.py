"""Generated reference pages: all parts with their options and users, all settings of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from gxpo.explain.parts import entries, type_in_words
from gxpo.parts import ranges
from gxpo.parts.definition import show
from gxpo.parts.settings import RunSettings

FENCE = "```"
SLOTS = {  # purpose of a slot's parts
    "credit": "Advantage estimators; `credit.add.NAME` adds a further one.",
    "weight.NAME": "Weights of tokens, trajectories and groups in the loss; all of a method's are multiplied.",
    "rollout": "How rollouts are sampled and grouped.",
    "reward.add.NAME": "Rewards that are added to the outcome (`reward.add`), reward shaping (`reward.shape`) and "
    "rewards of single turns (`reward.step`).",
    "segment": "Segmenters: how actions are cut into segments.",
    "signal.NAME": "Quantities that other parts read: baselines, judges, beliefs, second models.",
    "objective.surrogate": "Surrogate losses: PPO's clip and others.",
    "objective.ratio": "Importance ratios by level.",
    "objective.kl.control": "Controllers and schedules of a coefficient, also under `objective.entropy.control`.",
    "objective.add.NAME": "Terms of the loss; `objective=NAME` puts one in the policy gradient's place.",
    "update": "How a step's rollouts become optimiser steps.",
    "likelihood": "Estimates of log-likelihoods under masked (diffusion) language models.",
}


def reference() -> dict[str, str]:
    """Generate the reference pages by file name: parts.md and settings.md."""
    return {"parts.md": parts_page(), "settings.md": settings_page()}


def parts_page() -> str:
    """Write the Markdown page of every part by stage, with first line, options, ranges, signals and its methods."""
    rows = entries()
    slots = dict.fromkeys(row["slot"] for row in rows)
    contents = ", ".join(f"[{slot}](#{_anchor(slot)})" for slot in slots)
    lines = [
        *_head("Parts", "gxpo parts relative"),
        f"All {len(rows)} parts that methods are made of, by the key that takes them, with options, ranges, defaults "
        f"and users: {contents}. `file.py:Class` names a part of your own.",
    ]
    for slot in slots:
        lines += ["", f"## {slot}", *(["", SLOTS[slot]] if slot in SLOTS else [])]
        for row in (r for r in rows if r["slot"] == slot):
            lines += ["", f"### {row['name']}", "", f"{row['summary']}. [Source](../../src/{row['file']})"]
            if row["options"]:
                lines += ["", *_table(("option", "type", "range", "default"), map(_option_cells, row["options"]))]
            lines += ["", " ".join(_facts(row))]
    return "\n".join([*lines, ""])


def settings_page() -> str:
    """Write the Markdown page of every setting of a run by section, with type, range, default and meaning."""
    sections = _settings(RunSettings, "")
    lines = [
        *_head("Settings", "gxpo train examples/arithmetic.yaml --dry-run"),
        "All settings of a run that belong to no method, by section. Keys of methods (`credit`, `weight`, `objective`, "
        "`rollout`, `reward`, `segment`, `signal`, `update`) take [parts](parts.md); how files, `--set` and methods "
        "override one another: [configuration](../configuration.md).",
    ]
    for section, rows in sections.items():
        lines += ["", f"## {section or 'Top level'}", ""]
        lines += _table(("key", "type", "range", "default", "meaning"), rows)
    return "\n".join([*lines, ""])


def _head(title: str, command: str) -> list[str]:
    return [f"# {title}", "", f"{FENCE}bash", command, FENCE, ""]


def _anchor(title: str) -> str:
    """Return the fragment that Markdown renderers give a heading."""
    return "".join(c for c in title.lower() if c.isalnum() or c in "_-")


def _table(head: Sequence[str], rows: Any) -> list[str]:
    lines = ["| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in (head, *rows)]
    return [lines[0], "|---" * len(head) + "|", *lines[1:]]


def _default(value: Any) -> str:
    """Format a default as code on one line, since a line break would end the table's row."""
    text = show(value).replace("\n", "\\n")
    return f"`{text}`" if text else "empty"


def _option_cells(option: Mapping[str, Any]) -> tuple[str, str, str, str]:
    values_text = ", ".join(f"`{c}`" for c in option["choices"]) if option["choices"] else option["range"] or ""
    default = "required" if option["required"] else _default(option["default"])
    return f"`{option['key']}`", option["type"], values_text, default


def _facts(row: Mapping[str, Any]) -> list[str]:
    sentences = [
        f"{relation}: {', '.join(f'`{x}`' for x in row[key])}."
        for key, relation in (("needs", "Reads signals"), ("requires", "Rollouts carry"), ("provides", "Provides"))
        if row[key]
    ]
    users = [*(f"[{name}]({name}.md)" for name in row["methods"]), *(["all others"] if row["default"] else [])]
    return [*sentences, f"Used by: {', '.join(users) or 'no method'}."]


def _settings(model: type[BaseModel], section: str) -> dict[str, list[tuple[str, str, str, str, str]]]:
    """Collect the rows of the settings table by section, nested sections under dotted names."""
    hints = get_type_hints(model, include_extras=True)
    rows_by_section: dict[str, list[tuple[str, str, str, str, str]]] = {section: []}
    for field, entry in model.model_fields.items():
        name, kind = entry.alias or field, entry.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            rows_by_section |= _settings(kind, f"{section}.{name}" if section else name)
            continue
        hint = _with_annotated_constraints(hints[field])
        rule = ranges.rule_of(hint)
        values_text = "" if rule is None else ", ".join(f"`{c}`" for c in rule.choices) if rule.choices else rule.text
        key = f"{section}.{name}" if section else name
        default = _default(entry.default)
        rows_by_section[section].append(
            (f"`{key}`", type_in_words(hint), values_text, default, entry.description or "")
        )
    return rows_by_section


def _with_annotated_constraints(hint: Any) -> Any:
    """Rewrite a type hint so that its constraints are `annotated_types`, not inside pydantic's fields."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        constraints = [c for x in args[1:] for c in (x.metadata if isinstance(x, FieldInfo) else [x])]
        return (
            Annotated[(_with_annotated_constraints(args[0]), *constraints)]
            if constraints
            else _with_annotated_constraints(args[0])
        )
    if origin is list:
        return list[_with_annotated_constraints(args[0])]
    if origin in (Union, UnionType):
        return Union[tuple(map(_with_annotated_constraints, args))]  # noqa: UP007  (from a tuple)
    return hint
