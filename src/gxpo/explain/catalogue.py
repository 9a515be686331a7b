"""Catalogue of methods for `gxpo methods`: entries as data, conflicts between methods, filters."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from gxpo.algorithms.objectives import PolicyGradient
from gxpo.algorithms.signals import BUILT_IN
from gxpo.base.errors import ConfigError, did_you_mean, one_of
from gxpo.explain.effect import on_equal
from gxpo.methods import METHODS
from gxpo.methods.compose import method
from gxpo.methods.method import Method
from gxpo.parts.definition import EVIDENCE, STAGES, Definition, same, show, stage_of
from gxpo.parts.registry import part_at

FREE = str(next(f.default for f in dataclasses.fields(Definition) if f.name == "cost"))  # text of no cost beyond GRPO
EVIDENCE_MEANING = {  # where the formula is from: what it does for a run is another matter, and is measured
    "reference-code": "formula read in the authors' code",
    "paper": "formula read in the paper",
    "secondary": "formula read in somebody else's port or summary",
    "reconstruction": "formula from an abstract and general knowledge; not verified, may change without notice",
}
# A method is listed under the first of these that it changes.
HOMES = (
    "likelihood", "rollout", "update", "credit", "reward", "weight", "objective", "signal", "segment", "tasks.sampler",
)  # fmt: skip
OBJECTIVE_SLOTS = (
    "surrogate",
    "kl",
    "entropy",
    "add",
    "context",
)  # keys below "objective." that are no field of its part


def entry(definition: Definition, all_methods: Sequence[Definition] = ()) -> dict[str, Any]:
    """Describe one method as plain values.

    all_methods  methods in which aliases and conflicts are looked for; default: the whole catalogue
    """
    all_methods = all_methods or list(METHODS.values())
    # composed: a definition has only the keys in which it differs from the base, needs and options are of all parts
    composed = method(definition.name)
    return {
        "name": definition.name,
        "title": definition.title,
        "arxiv": definition.arxiv,
        "idea": definition.idea,
        "stage": home(definition),
        "family": family(definition.name),
        "stages": list(definition.stages),
        "formula": definition.formula,
        "evidence": definition.evidence,
        "code": list(definition.code_links),
        "defaults": _typed_values(definition.keys),
        "paper_defaults": _typed_values(definition.paper_defaults),
        "options": options(definition, composed),
        "needs": list(composed.needs),
        "computes": [name for part in composed.signals.values() for name in part.provides],
        "requires": list(composed.requires),
        "cost": definition.cost,
        "on_equal": on_equal(composed),
        "choices": definition.choices,
        "alias_of": definition.alias_of,
        "aliases": [d.name for d in all_methods if d.alias_of == definition.name],
        "refuses": [f"{k}={show(v)}" for k, values in definition.refuses.items() for v in values],
        "conflicts": conflicts(definition, all_methods),
    }


def options(definition: Definition, method: Method) -> dict[str, Any]:
    """List further keys of a method's own parts (of every part, for the base), with their defaults."""
    values_by_key: dict[str, Any] = {}
    for key, setting in method.keys.items():
        part = part_at(key, setting.value)
        if not dataclasses.is_dataclass(part) or (definition.keys and key not in definition.keys):
            continue
        slot = "objective" if key == "objective.surrogate" else key
        names = [f"{slot}.{field.name}" for field in dataclasses.fields(part)]
        values_by_key |= {
            name: method.keys[name].value for name in names if name in method.keys and name not in definition.keys
        }
    return _typed_values({name: value for name, value in values_by_key.items() if not dataclasses.is_dataclass(value)})


def entries() -> list[dict[str, Any]]:
    """List the entries of all methods, those with the weakest evidence last."""
    all_methods = list(METHODS.values())
    return [entry(d, all_methods) for d in sorted(all_methods, key=lambda d: (EVIDENCE.index(d.evidence), d.name))]


def is_free(cost: str) -> bool:
    """Return True if a method costs nothing beyond the base."""
    return cost == FREE or cost.startswith(f"{FREE};")


def _typed_values(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Format values as they are typed on the command line; numbers stay numbers."""
    return {k: v if isinstance(v, (int, float)) else show(v) for k, v in keys.items()}


def home(definition: Definition) -> str:
    """Return the stage under which a method is listed.

    That is the first of HOMES in which it has a part, or any key of credit; else the first of STAGES in which it sets a
    key. A credit with a signal of the method's own is listed under credit: its rollouts only serve that signal.
    """
    if "phases" in definition.keys:
        return "update"
    parts = {stage_of(k) for k, v in definition.keys.items() if k in HOMES or isinstance(part_at(k, v), type)}
    parts |= {"credit"} & set(definition.stages)
    if {"credit", "signal"} <= parts:
        return "credit"
    return next((stage for stage in HOMES if stage in parts), next(iter(definition.stages), "base"))


def family(name: str) -> str:
    """Return the family of a method, its module's name: "clips"; "yours" for a method of the user's."""
    try:
        return METHODS.module_of(name).removeprefix("catalogue.")
    except KeyError:
        return "yours"


def families() -> dict[str, str]:
    """Map each family to what its methods do, the first line of its module."""
    meanings = {}
    for module in METHODS.modules():
        first_line = (importlib.import_module(f"gxpo.methods.{module}").__doc__ or "").strip().partition("\n")[0]
        words = (
            first_line.removesuffix(".")
            .removeprefix("Reconstructed ")
            .removeprefix("Methods ")
            .removeprefix("methods ")
        )
        meanings[module.removeprefix("catalogue.")] = words.removeprefix("that ")
    return meanings


def alike(name: str, rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Sort entries by likeness to a method, those that share no setting with it left out.

    Likeness is the number of settings that both change in the same way over the number that either changes (Jaccard).
    """

    def settings(method_name: str) -> set[str]:
        return {f"{k}={show(v)}" for k, v in METHODS[method_name].keys.items()}

    target = settings(name)
    settings_by_name = {r["name"]: settings(r["name"]) for r in rows}
    likeness = {
        n: len(target & settings_changed) / max(1, len(target | settings_changed))
        for n, settings_changed in settings_by_name.items()
    }
    near = [dict(r) for r in rows if likeness[r["name"]] > 0 and r["name"] != name]
    return sorted(near, key=lambda r: -likeness[r["name"]])


# ---------------------------------------------------------------- composition
def conflicts(definition: Definition, other_methods: Sequence[Definition]) -> dict[str, list[str]]:
    """Map each key to the methods among `others` with which this one merges only if the caller sets that key."""
    names_by_key: dict[str, list[str]] = {}
    for other_method in other_methods:
        if other_method.name != definition.name:
            keys = (
                _unequal_keys(definition, other_method)
                | _orphaned_stages(definition, other_method)
                | _orphaned_stages(other_method, definition)
            )
            for key in sorted(keys):
                names_by_key.setdefault(key, []).append(other_method.name)
    return dict(sorted(names_by_key.items()))


def _unequal_keys(a: Definition, b: Definition) -> set[str]:
    return {k for k in a.keys.keys() & b.keys.keys() if not same(a.keys[k], b.keys[k])}


def _orphaned_stages(owner: Definition, second: Definition) -> set[str]:
    """Return the stages in which `owner` puts a part without a field that `other` sets."""
    stages = set()
    # the merged method would have `owner`'s part and `other`'s setting of it, which that part does not take
    for key in second.keys:
        stage, _, field = key.rpartition(".")
        if stage in ("credit", "rollout", "update"):
            part = part_at(stage, owner.keys.get(stage))
            if stage not in second.keys and dataclasses.is_dataclass(part) and field not in _fields(part):
                stages.add(stage)
        elif key.startswith("objective."):
            field = key.split(".")[1]
            for slot in ("objective", "objective.surrogate"):
                part = part_at(slot, owner.keys.get(slot))
                if part is None or slot in second.keys or not dataclasses.is_dataclass(part):
                    continue
                if isinstance(part, type) and issubclass(part, PolicyGradient):
                    continue  # it takes a surrogate and a ratio, as the base's does
                accepted_fields = (
                    *OBJECTIVE_SLOTS[slot == "objective" :],
                    *(_fields(PolicyGradient) if slot != "objective" else ()),
                )
                if field not in (*accepted_fields, *_fields(part)):
                    stages.add(slot)
    return stages


def _fields(part: Any) -> tuple[str, ...]:
    return _fields_of(part if isinstance(part, type) else type(part))


@cache
def _fields_of(kind: Any) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(kind))


# ---------------------------------------------------------------- filters
def check_conditions(
    stage: str | None = None,
    evidence: Sequence[str] = (),
    zero_variance: str | None = None,
    family: str | None = None,
    like: str | None = None,
    **unchecked: Any,
) -> None:
    """Refuse conditions of `select` that no method can meet, before any entry is made. ConfigError."""
    del unchecked
    if stage is not None:
        one_of("--stage", stage, STAGES)
    for tier in evidence:
        one_of("--evidence", tier, EVIDENCE)
    if zero_variance is not None:
        one_of("--zero-variance", zero_variance, ("zero", "signal"))
    if family is not None:
        one_of("--family", family, (*families(), "yours"))
    if like is not None:
        _check_name(like)


def select(
    rows: Iterable[Mapping[str, Any]],
    *,
    stage: str | None = None,
    needs: str | None = None,
    evidence: Sequence[str] = (),
    cheap: bool = False,
    zero_variance: str | None = None,
    family: str | None = None,
    search: str | None = None,
    like: str | None = None,
) -> list[dict[str, Any]]:
    """Filter entries: those that meet all conditions.

    stage          one of STAGES: methods that change it
    needs          a signal: methods that read or compute it; "none": those without any
    evidence       tiers: methods of one of them
    cheap          methods that cost nothing beyond the base
    zero_variance  "zero" | "signal": methods that learn nothing, or something, from groups of equal rewards
    family         methods of one of `families()`
    search         words that all occur in a method's name, title, idea, formula, choices or settings
    like           a method: those that share settings with it, the most alike first

    Raises ConfigError for a stage, tier, signal, family or method that does not exist.
    """
    check_conditions(stage, evidence, zero_variance, family, like)
    selected = [dict(row) for row in rows]
    if stage is not None:
        selected = [r for r in selected if stage in r["stages"]]
    if evidence:
        selected = [r for r in selected if r["evidence"] in evidence]
    # the entries left so far decide which signals exist; those that every run has (`BUILT_IN`) always do
    if needs is not None:
        signals = list(dict.fromkeys([*BUILT_IN, *(x for r in selected for x in _signal_names(r))]))
        if needs != "none" and needs not in signals:
            raise ConfigError(
                f"--needs is 'none' or a signal, and {needs!r} is none{did_you_mean(needs, signals)}; there is "
                f"{', '.join(signals)}"
            )
        selected = [r for r in selected if (not _signal_names(r) if needs == "none" else needs in _signal_names(r))]
    if cheap:
        selected = [r for r in selected if is_free(r["cost"])]
    if zero_variance is not None:
        selected = [r for r in selected if r["on_equal"] == zero_variance]
    if family is not None:
        selected = [r for r in selected if r["family"] == family]
    if search is not None:
        words = search.lower().split()
        selected = [r for r in selected if all(word in _searched_text(r) for word in words)]
    return alike(like, selected) if like is not None else selected


def _searched_text(row: Mapping[str, Any]) -> str:
    fields = ("name", "title", "arxiv", "idea", "formula", "choices")
    settings = (f"{k}={v}" for k, v in row["defaults"].items())
    return " ".join([*(str(row[name]) for name in fields), *settings]).lower()


def _signal_names(row: Mapping[str, Any]) -> list[str]:
    return [*row["needs"], *row["computes"]]


def tiers(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Count methods by level of evidence, strongest first."""
    evidence_of_rows = [row["evidence"] for row in rows]
    return {tier: evidence_of_rows.count(tier) for tier in EVIDENCE if tier in evidence_of_rows}


def citations(spec: str) -> str:
    """Return the BibTeX entries of all methods of a composition."""
    names = [name.strip().split("@")[0] for name in spec.split("+")]
    for name in names:
        _check_name(name)
    return "\n\n".join(METHODS[name].bibtex for name in dict.fromkeys(names))


def _check_name(name: str) -> None:
    if name not in METHODS:
        raise ConfigError(f"unknown method {name!r}{did_you_mean(name, METHODS)} (`gxpo methods --all` lists them)")
