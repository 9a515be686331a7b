"""`gxpo methods`: list, show or recommend methods."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gxpo.base.errors import ConfigError
from gxpo.explain import advice, method_text
from gxpo.explain.catalogue import citations, entries, entry, select
from gxpo.explain.symptoms import SYMPTOMS
from gxpo.methods import METHODS
from gxpo.parts.definition import show as typed


def show(
    name: str | None,
    symptom: str | None,
    *,
    as_json: bool,
    bibtex: bool,
    conditions: Mapping[str, Any],
) -> str:
    """Output of the command: one method (`name`), recommendations (`symptom`) or the list, as text or JSON.

    conditions  of `catalogue.select`; they narrow recommendations and the list
    """
    conditional = any(conditions.values())
    if name is not None:
        if symptom is not None or conditional:
            raise ConfigError("give a method's NAME, or conditions for the list, not both")
        if bibtex:
            return citations(name)
        return _as_json(name) if as_json else method_text.one(name)
    if symptom is not None:
        found = advice.find(symptom)
        advised = advice.recommendations(found)
        if conditional:
            kept = {row["name"] for row in select(entries(), **conditions)}
            advised = [row for row in advised if kept.issuperset(row["method"].split("+"))]
        if bibtex:
            return citations("+".join(row["method"] for row in advised)) if advised else ""
        if as_json:
            return _dumped({"symptom": found, "what": SYMPTOMS[found].what, "recommendations": advised})
        return method_text.advised(found, advised)
    rows = select(entries(), **conditions)
    if bibtex:
        return "\n\n".join(METHODS[row["name"]].bibtex for row in rows)
    return _dumped(rows) if as_json else method_text.table(rows)


def _as_json(name: str) -> str:
    if name not in METHODS:
        from gxpo.methods.compose import method

        made = method(name)  # a composition, or an error that says what is close
        keys = {k: {"value": _value(s.value), "origin": s.origin} for k, s in made.keys.items()}
        return _dumped({"name": name, "methods": [d.name for d in made.definitions], "keys": keys})
    return _dumped(entry(METHODS[name]))


def _value(value: Any) -> str:
    """A key's value as text, a part by its name."""
    return typed(value) if isinstance(value, type) else str(value)


def _dumped(value: Any) -> str:
    return json.dumps(value, indent=1)
