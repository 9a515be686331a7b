"""`gxpo methods`: the published methods as data and as text."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gxpo.compose import method
from gxpo.errors import ConfigError, did_you_mean
from gxpo.keys import EVIDENCE, Definition, show
from gxpo.methods import METHODS


def entry(definition: Definition) -> dict[str, Any]:
    """One method as an object."""
    made = method(definition.name)
    return {
        "name": definition.name,
        "title": definition.title,
        "arxiv": definition.arxiv,
        "idea": definition.idea,
        "stages": list(definition.stages),
        "formula": definition.formula,
        "evidence": definition.evidence,
        "defaults": _typed(definition.keys),
        "paper_defaults": _typed(definition.paper_defaults),
        "needs": list(made.needs),
        "requires": list(made.requires),
        "cost": definition.cost,
        "choices": definition.choices,
        "alias_of": definition.alias_of,
        "refuses": [f"{k}={show(v)}" for k, values in definition.refuses.items() for v in values],
    }


def _typed(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Keys as they are typed; numbers stay numbers."""
    return {k: v if isinstance(v, (int, float)) else show(v) for k, v in keys.items()}


def entries() -> list[dict[str, Any]]:
    """Every method, those with the weakest evidence last."""
    return [entry(d) for d in sorted(METHODS.values(), key=lambda d: (EVIDENCE.index(d.evidence), d.name))]


def one(name: str, *, bibtex: bool = False, as_json: bool = False) -> str:
    """One method (or composition) in full."""
    if bibtex:
        if name not in METHODS:
            raise ConfigError(f"unknown method {name!r}{did_you_mean(name, METHODS)}")
        return METHODS[name].bibtex
    if name in METHODS:
        facts = entry(METHODS[name])
        if as_json:
            return json.dumps(facts, indent=1)
        lines = [f"{k:<15} {_text(v)}" for k, v in facts.items() if v not in ([], {}, "", None)]
        return "\n".join([*lines, "", repr(method(name))])
    return repr(method(name))


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{k}={v}" for k, v in value.items())
    return ", ".join(value) if isinstance(value, list) else str(value)


def table() -> None:
    """The list, and how many methods stand on which evidence."""
    from rich.console import Console
    from rich.table import Table

    rows = entries()
    shown = Table("name", "stages", "evidence", "idea", box=None, header_style="bold")
    for row in rows:
        shown.add_row(row["name"], " ".join(row["stages"]) or "base", row["evidence"], row["idea"])
    console = Console(width=max(120, Console().width))
    console.print(shown)
    counts = {tier: sum(r["evidence"] == tier for r in rows) for tier in EVIDENCE}
    console.print(f"{len(rows)} methods: " + ", ".join(f"{n} {tier}" for tier, n in counts.items() if n))
    console.print("compose with +: gxpo methods dr_grpo+gspo")
