"""`gxpo methods`: list, show or recommend methods, as text or JSON."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gxpo.adapters import available
from gxpo.base import terminal
from gxpo.base.errors import ConfigError
from gxpo.doctor.evidence import IN_WORDS, LIMITS
from gxpo.explain import advice
from gxpo.explain.catalogue import (
    EVIDENCE_MEANING,
    check_conditions,
    citations,
    entries,
    entry,
    families,
    is_free,
    select,
    tiers,
)
from gxpo.explain.measurements import NOT_MEASURED, effects, effects_text
from gxpo.explain.symptoms import SYMPTOMS
from gxpo.methods import METHODS
from gxpo.methods.compat import COMPAT
from gxpo.methods.compose import method
from gxpo.parts.definition import EVIDENCE, Definition
from gxpo.parts.definition import show as format_value
from gxpo.training.phase_plan import expand

WIDTH, MARGIN = 116, 15
EQUAL_GROUPS_MEANING = {
    "zero": "a group of equal rewards teaches nothing",
    "signal": "a group of equal rewards can teach something: no filter may drop it",
}
FORMULA_FROM: Mapping[str, str] = dict(
    zip(EVIDENCE, ("authors' code", "paper", "another's port", "reconstruction"), strict=True)
)
RECONSTRUCTION = EVIDENCE[-1]
AT_SOURCE = EVIDENCE[:2]
OTHER_WAYS = (
    "a family        gxpo methods --family clips",
    "by words        gxpo methods --search 'length bonus'",
    "by a trouble    gxpo methods --for 'answers get longer and longer'",
    textwrap.fill(
        ", ".join(SYMPTOMS),
        WIDTH,
        initial_indent=" " * 16 + "known: ",
        subsequent_indent=" " * 23,
        break_on_hyphens=False,
    ),
    "relatives       gxpo methods --like gspo",
    "one whole       gxpo methods gspo",
)
SECTIONS = {  # sections of the list with their headings, in order
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
    "likelihood": "how answers of masked models are weighed",
    RECONSTRUCTION: EVIDENCE_MEANING[RECONSTRUCTION],
}


def show(
    name: str | None,
    symptom: str | None,
    *,
    trainer: str | None = None,
    as_json: bool,
    bibtex: bool,
    lists_all: bool = False,
    conditions: Mapping[str, Any],
) -> str:
    """Return the output of the command: one method (`name`), recommendations (`symptom`), the families or a list.

    symptom     in free words, or the path of a run, which is diagnosed
    trainer     "trl" | "verl": what works there; default: the trainer of the run, gxpo itself otherwise
    lists_all   all methods instead of their families, where no condition is given
    conditions  keywords of `catalogue.select`; they narrow recommendations and the list
    """
    conditional = any(conditions.values())
    check_conditions(**conditions)
    if name is not None:
        if symptom is not None or conditional:
            raise ConfigError("give a method's NAME, or conditions for the list, not both")
        if trainer is not None:
            row = available.available(trainer, [name])
            return available.as_json(trainer, row) if as_json else available.as_text(trainer, row)
        if bibtex:
            return citations(name)
        return _as_json(name) if as_json else method_text(name)
    if symptom is not None:
        cause = ""
        if Path(symptom).exists():
            symptom_name, trainer_of_run, cause = advice.of_run(Path(symptom))
            trainer = trainer or trainer_of_run
        else:
            symptom_name = advice.find(symptom)
        recommended = advice.recommendations(symptom_name)
        # a composition is kept if all of its methods meet the conditions
        if conditional:
            selected = {row["name"] for row in select(entries(), **conditions)}
            recommended = [row for row in recommended if selected.issuperset(row["method"].split("+"))]
        if bibtex:
            return citations("+".join(row["method"] for row in recommended)) if recommended else ""
        usage_by_method = (
            {} if trainer is None else {r["method"]: of_trainer(trainer, r["method"], r["sets"]) for r in recommended}
        )
        if as_json:
            return _to_json(
                {"symptom": symptom_name, "what": SYMPTOMS[symptom_name].what, "cause": cause or None,
                 "trainer": trainer or "gxpo",
                 "recommendations": [{**r, **usage_by_method.get(r["method"], {})} for r in recommended]}
            )  # fmt: skip
        return "\n".join(filter(None, [cause, advice_text(symptom_name, recommended, trainer, usage_by_method)]))
    if trainer is not None:
        rows_of_trainer = available.available(trainer)
        return available.as_json(trainer, rows_of_trainer) if as_json else available.as_text(trainer, rows_of_trainer)
    rows = select(entries(), **conditions)
    if bibtex:
        return "\n\n".join(METHODS[row["name"]].bibtex for row in rows)
    if as_json:
        return _to_json(rows)
    if not conditional and not lists_all:
        return families_table(rows)
    table = methods_table(rows, by_section=not conditions.get("like"))
    return table if conditional else terminal.Styled("\n".join([table, *OTHER_WAYS]))


def _as_json(name: str) -> str:
    if name not in METHODS:
        composed = method(name)  # a composition, or an error that says what is close
        keys = {k: {"value": _value(s.value), "origin": s.origin} for k, s in composed.keys.items()}
        return _to_json({"name": name, "methods": [d.name for d in composed.definitions], "keys": keys})
    return _to_json(entry(METHODS[name]))


def _value(value: Any) -> str:
    """Format a key's value, a part by its name."""
    return format_value(value) if isinstance(value, type) else str(value)


def _to_json(value: Any) -> str:
    return json.dumps(value, indent=1)


# ---------------------------------------------------------------- text
def sections(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Group entries by section: the base, then stage by stage, reconstructions at the end."""
    rows_by_section: dict[str, list[Mapping[str, Any]]] = {section: [] for section in SECTIONS}
    for row in rows:
        rows_by_section[RECONSTRUCTION if row["evidence"] == RECONSTRUCTION else row["stage"]].append(row)
    return {section: members for section, members in rows_by_section.items() if members}


def families_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format a line for each family: its number of methods, what they do, and its first names."""
    lines = []
    for family, meaning in families().items():
        names = [row["name"] for row in rows if row["family"] == family]
        lines.append(f"{family:<26} {len(names):>3}  {meaning}")
    yours = [row["name"] for row in rows if row["family"] == "yours"]
    lines += [f"{'yours':<26} {len(yours):>3}  from GXPO_METHODS: {', '.join(yours)}"] if yours else []
    return "\n".join([*lines, "", count_line(rows), *OTHER_WAYS, "all of them     gxpo methods --all"])


def methods_table(rows: Sequence[Mapping[str, Any]], *, by_section: bool = True) -> str:
    """Format a table of methods with their number by level of evidence, by stage or in the order given."""
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, header_style="bold")
    for column in ("name", "formula from", "measured", "equal groups", "cost", "idea"):
        grid.add_column(column, no_wrap=column != "idea")
    for section, members in (sections(rows) if by_section else {"": rows}).items():
        if section:
            grid.add_row(Text(section, style="bold"), "", "", "", "", Text(SECTIONS[section], style="bold"))
        for row in members:
            cost = "" if is_free(row["cost"]) else "*"
            n_effects = str(len(effects(row["name"])) or "-")
            cells = (f"  {row['name']}", FORMULA_FROM[row["evidence"]], n_effects, row["on_equal"], cost, row["idea"])
            grid.add_row(*(Text(cell) for cell in cells))
    # captured as text, at a fixed least width: the ideas would wrap to columns of one word
    console = terminal.console(width=max(120, terminal.console().width))
    with console.capture() as captured:
        if rows:
            console.print(grid)
    lines = (
        captured.get() + count_line(rows),
        "measured: settings in which our studies compared it; - none; gxpo methods NAME shows the differences",
        "* has costs (or savings) of its own; one whole: gxpo methods NAME; a composition: gxpo methods dapo+gmpo",
    )
    return terminal.Styled("\n".join(lines))


def count_line(rows: Sequence[Mapping[str, Any]]) -> str:
    """Format the number of methods: in total, read at source or not, and by evidence."""
    if not rows:
        return "0 methods: no method meets these conditions"
    count_by_tier = tiers(rows)
    sides = ((AT_SOURCE, "with a formula read at source"), (EVIDENCE[len(AT_SOURCE) :], "not"))
    parts = []
    for side, name in sides:
        tiers_of_side = {tier: count_by_tier[tier] for tier in side if tier in count_by_tier}
        if tiers_of_side:
            counts = ", ".join(f"{n} {FORMULA_FROM[t]}" for t, n in tiers_of_side.items())
            parts.append(f"{sum(tiers_of_side.values())} {name} ({counts})")
    return f"{len(rows)} methods: {', '.join(parts)}"


def method_text(spec: str) -> str:
    """Format all facts of a method; of a composition its equation and the keys that it resolves to."""
    equation = repr(method(spec))
    if spec not in METHODS:
        return equation
    row = entry(METHODS[spec])
    phases = phases_of(METHODS[spec])
    systems = [f"{spec}@{system}" for system, methods in COMPAT.items() if spec in methods]
    systems += [f"{spec}@paper ({_pairs(row['paper_defaults'])})"] if row["paper_defaults"] else []
    # in the order in which a reader decides: what it is, how sure that is, its keys, what it needs, what it merges with
    fields = {
        "idea": row["idea"],
        "formula": row["formula"],
        "source": EVIDENCE_MEANING[row["evidence"]],
        "measured": effects_text(spec),
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
        "equal groups": f"{row['on_equal']}: {EQUAL_GROUPS_MEANING[row['on_equal']]}",
        "choices": row["choices"],
        "merges with": "none: its phases name their methods" if phases else merge_summary(row),
        "refuses": ", ".join(row["refuses"]),
        "alias of": row["alias_of"] or "",
        "aliases": ", ".join(row["aliases"]),
        "try it": f"gxpo train CONFIG --set method={spec}",
    }
    arxiv = f", arXiv {row['arxiv']}" if row["arxiv"] else ""
    head = textwrap.fill(f"{spec}: {row['title']}{arxiv}", WIDTH)
    return "\n".join([head, "", *(labelled(k, v) for k, v in fields.items() if v), "", equation])


def phases_of(definition: Definition) -> list[str]:
    """List the phases of a method: its number, method, rule, and the keys that it sets; [] for a method without."""
    if "phases" not in definition.keys:
        return []
    lines = []
    for number, phase in enumerate(expand(definition.keys["phases"]), 1):
        keys = {k: format_value(s.value) for k, s in phase.keys.items()}
        name = keys.pop("method", definition.name)
        lines.append(f"{number} {name} ({', '.join([str(phase), *(f'{k}={v}' for k, v in keys.items())])})")
    return lines


def merge_summary(row: Mapping[str, Any]) -> str:
    """Format the number of methods that it merges with, and the keys to set for merging with the others."""
    other_methods = {d.name for d in METHODS.values()} - {row["name"]}
    conflicting = {name for names in row["conflicts"].values() for name in names}
    keys = "; ".join(f"{k}: {_first_names(names)}" for k, names in row["conflicts"].items())
    text = f"{len(other_methods - conflicting)} of {len(other_methods)} others"
    return f"{text}; with the rest decide {keys}" if keys else text


def _first_names(names: Sequence[str], limit: int = 6) -> str:
    return " ".join(names) if len(names) <= limit else f"{' '.join(names[:limit])} and {len(names) - limit} more"


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{k}={v}" for k, v in values.items())


def labelled(name: str, text: str) -> str:
    """Format a field: its name in the left margin, its text wrapped beside it."""
    if "\n" in text:  # mathematics of several lines, as wide as its file: below its name, line by line
        return f"{name}\n" + textwrap.indent(text, "  ")
    indent = " " * MARGIN
    return textwrap.fill(f"{name:<{MARGIN}}{text}", WIDTH, subsequent_indent=indent, break_long_words=False)


def of_trainer(trainer: str, name: str, sets: Sequence[str] = ()) -> dict[str, Any]:
    """Describe how a method is used in another trainer: `line` to type there, or `reason` why it does not work.

    sets  keys that it is recommended with
    """
    (row,) = available.available(trainer, [name])
    usage = {
        "trl": f'GRPOTrainer(model, method="{name}", ...) of gxpo.adapters.trl',
        "verl": " ".join(
            key
            for part, key in (
                ("advantage", f"algorithm.adv_estimator=gxpo/{name}"),
                ("loss", f"actor_rollout_ref.actor.policy_loss.loss_mode=gxpo/{name}"),
            )
            if part in row.parts
        ),
    }[trainer]
    requirements = [*row.given, *(f"overrides: {key}" for key in sets)]
    requirements_text = f"; give {', '.join(requirements)}" if requirements else ""
    return {
        "works": row.works,
        "line": f"{usage}{requirements_text}" if row.works else None,
        "reason": row.reason or None,
    }


def advice_text(
    symptom: str,
    rows: Sequence[Mapping[str, Any]],
    trainer: str | None = None,
    usage_by_method: Mapping[str, Mapping[str, Any]] | None = None,
) -> str:
    """Format the recommendations for a symptom, in the lines of another trainer where one is given."""
    usage_by_method = usage_by_method or {}
    lines = [f"{symptom}: {SYMPTOMS[symptom].what}", ""]
    unavailable_rows = [row for row in rows if not usage_by_method.get(row["method"], {}).get("works", True)]
    for row in (row for row in rows if row not in unavailable_rows):
        line = usage_by_method[row["method"]]["line"] if row["method"] in usage_by_method else row["line"]
        lines += [
            f"{row['method']:<{MARGIN - 1}} {row['why']}",
            *(labelled("", text) for text in _measured_texts(row)),
            labelled("", f"{EVIDENCE_MEANING[row['evidence']]}; cost: {row['cost']}"),
            f"{'':<{MARGIN}}{line}",
        ]
    lines += [] if rows else ["no recommendation meets these conditions"]
    if unavailable_rows:
        lines += [
            "",
            f"not in {trainer}:",
            *(labelled(r["method"], usage_by_method[r["method"]]["reason"]) for r in unavailable_rows),
        ]
    limits = [f"measured: {LIMITS}"] if any(row["measured"] or row["elsewhere"] for row in rows) else []
    return "\n".join([*lines, "", *limits, "more of one: gxpo methods NAME"])


def _measured_texts(row: Mapping[str, Any]) -> list[str]:
    """Return lines of a recommendation on what was measured: on this symptom, else elsewhere, else that nothing was."""
    if measurement := row["measured"]:
        return [f"measured, {IN_WORDS[measurement['verdict']]}: {measurement['figures']}"]
    if not row["elsewhere"]:
        return [NOT_MEASURED]
    first, *further = row["elsewhere"]
    return [f"{NOT_MEASURED} on this symptom; elsewhere {first}{f'; and {len(further)} more' if further else ''}"]
