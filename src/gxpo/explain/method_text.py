"""Text output of `gxpo methods`: the table, one method, the recommendations for a symptom."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from gxpo.doctor.evidence import IN_WORDS, LIMITS
from gxpo.explain.catalogue import EXPLAINED, entry, free, tiers
from gxpo.explain.symptoms import SYMPTOMS
from gxpo.methods import METHODS
from gxpo.methods.compat import COMPAT
from gxpo.methods.compose import method
from gxpo.parts.definition import EVIDENCE, Definition, show
from gxpo.training.phase_plan import expand

WIDTH, MARGIN = 116, 15
EQUAL = {
    "zero": "a group of equal rewards teaches nothing",
    "signal": "a group of equal rewards can teach something: no filter may drop it",
}
UNVERIFIED = EVIDENCE[-1]
AT_SOURCE = EVIDENCE[:2]
SECTIONS = {  # of the list, in order
    "base": "what the others state their differences from",
    "rollout": "how groups are grown",
    "update": "how parameters move",
    "credit": "how the outcome is divided",
    "reward": "what is paid for",
    "weight": "which rollouts and tokens count",
    "objective": "ratio, clip, aggregation, other losses",
    "signal": "what others read",
    "segment": "where actions are cut",
    "tasks.sampler": "which tasks are drawn",
    UNVERIFIED: EXPLAINED[UNVERIFIED],
}


def sections(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Entries by section: the base, then stage by stage, reconstructions at the end."""
    found: dict[str, list[Mapping[str, Any]]] = {section: [] for section in SECTIONS}
    for row in rows:
        found[UNVERIFIED if row["evidence"] == UNVERIFIED else row["stage"]].append(row)
    return {section: members for section, members in found.items() if members}


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Table of methods by stage, with their number by level of evidence."""
    from rich.table import Table
    from rich.text import Text

    from gxpo.base import terminal

    shown = Table(box=None, header_style="bold")
    for column in ("name", "evidence", "equal groups", "cost", "idea"):
        shown.add_column(column, no_wrap=column != "idea")
    for section, members in sections(rows).items():
        shown.add_row(Text(section, style="bold"), "", "", "", Text(SECTIONS[section], style="bold"))
        for row in members:
            cost = "" if free(row["cost"]) else "*"
            cells = (f"  {row['name']}", row["evidence"], row["on_equal"], cost, row["idea"])
            shown.add_row(*(Text(cell) for cell in cells))
    console = terminal.console(width=max(120, terminal.console().width))
    with console.capture() as captured:
        if rows:
            console.print(shown)
    lines = (
        captured.get() + counted(rows),
        "* has costs (or savings) of its own; one whole: gxpo methods NAME; a composition: gxpo methods dapo+gmpo",
        "by what goes wrong: gxpo methods --for SYMPTOM, one of",
        textwrap.fill(", ".join(SYMPTOMS), WIDTH, initial_indent="  ", subsequent_indent="  "),
    )
    return terminal.Styled("\n".join(lines))


def counted(rows: Sequence[Mapping[str, Any]]) -> str:
    """Number of methods, in total, read at source or not, and by evidence."""
    if not rows:
        return "0 methods: no method meets these conditions"
    found = tiers(rows)
    sides = ((AT_SOURCE, "read at source"), (EVIDENCE[len(AT_SOURCE) :], "not"))
    told = []
    for side, name in sides:
        own = {tier: found[tier] for tier in side if tier in found}
        if own:
            told.append(f"{sum(own.values())} {name} ({', '.join(f'{n} {tier}' for tier, n in own.items())})")
    return f"{len(rows)} methods: {', '.join(told)}"


def one(spec: str) -> str:
    """Full text of a method; a composition as its equation and the keys it resolves to."""
    made = repr(method(spec))
    if spec not in METHODS:
        return made
    row = entry(METHODS[spec])
    phases = phases_of(METHODS[spec])
    systems = [f"{spec}@{system}" for system, methods in COMPAT.items() if spec in methods]
    systems += [f"{spec}@paper ({_pairs(row['paper_defaults'])})"] if row["paper_defaults"] else []
    shown = {
        "idea": row["idea"],
        "formula": row["formula"],
        "evidence": f"{row['evidence']}: {EXPLAINED[row['evidence']]}",
        "code": " ".join(row["code"]),
        "stages": ", ".join(row["stages"]) or ("phases" if phases else "none: it is the base"),
        "phases": "; ".join(phases),
        "defaults": _pairs({k: v for k, v in row["defaults"].items() if k != "phases"}),
        "options": _pairs(row["options"]),
        "also as": ", ".join(systems),
        "needs": ", ".join(row["needs"]),
        "computes": ", ".join(row["computes"]),
        "requires": ", ".join(row["requires"]),
        "cost": row["cost"],
        "equal groups": f"{row['on_equal']}: {EQUAL[row['on_equal']]}",
        "choices": row["choices"],
        "merges with": "none: its phases name their methods" if phases else merges(row),
        "refuses": ", ".join(row["refuses"]),
        "alias of": row["alias_of"] or "",
        "aliases": ", ".join(row["aliases"]),
        "try it": f"gxpo train CONFIG --set method={spec}",
    }
    arxiv = f", arXiv {row['arxiv']}" if row["arxiv"] else ""
    head = textwrap.fill(f"{spec}: {row['title']}{arxiv}", WIDTH)
    return "\n".join([head, "", *(_field(k, v) for k, v in shown.items() if v), "", made])


def phases_of(definition: Definition) -> list[str]:
    """Each phase of a method that states some: its method, its rule, and the keys that it sets."""
    if "phases" not in definition.keys:
        return []
    found = []
    for number, phase in enumerate(expand(definition.keys["phases"]), 1):
        keys = {k: show(s.value) for k, s in phase.keys.items()}
        name = keys.pop("method", definition.name)
        found.append(f"{number} {name} ({', '.join([str(phase), *(f'{k}={v}' for k, v in keys.items())])})")
    return found


def merges(row: Mapping[str, Any]) -> str:
    """How many methods it merges with, and which keys have to be set for the others."""
    others = {d.name for d in METHODS.values()} - {row["name"]}
    met = {name for names in row["conflicts"].values() for name in names}
    keys = "; ".join(f"{k}: {_few(names)}" for k, names in row["conflicts"].items())
    text = f"{len(others - met)} of {len(others)} others"
    return f"{text}; with the rest decide {keys}" if keys else text


def _few(names: Sequence[str], most: int = 6) -> str:
    return " ".join(names) if len(names) <= most else f"{' '.join(names[:most])} and {len(names) - most} more"


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{k}={v}" for k, v in values.items())


def _field(name: str, text: str) -> str:
    if "\n" in text:  # mathematics of several lines, as wide as its file: below its name, line by line
        return f"{name}\n" + textwrap.indent(text, "  ")
    indent = " " * MARGIN
    return textwrap.fill(f"{name:<{MARGIN}}{text}", WIDTH, subsequent_indent=indent, break_long_words=False)


def advised(symptom: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Text of the recommendations for a symptom."""
    lines = [f"{symptom}: {SYMPTOMS[symptom].what}", ""]
    for row in rows:
        lines += [
            f"{row['method']:<{MARGIN - 1}} {row['why']}",
            _field("", f"evidence: {row['evidence']}; cost: {row['cost']}"),
            *([_field("", f"measured, {IN_WORDS[m['verdict']]}: {m['said']}")] if (m := row["measured"]) else []),
            f"{'':<{MARGIN}}{row['line']}",
        ]
    lines += [] if rows else ["no recommendation meets these conditions"]
    limits = [f"measured: {LIMITS}"] if any(row["measured"] for row in rows) else []
    return "\n".join([*lines, "", *limits, "more of one: gxpo methods NAME"])
