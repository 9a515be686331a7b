"""Catalogue of methods for `gxpo methods`: entries as data, and filters."""

from __future__ import annotations

import dataclasses
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

FREE = str(next(f.default for f in dataclasses.fields(Definition) if f.name == "cost"))  # nothing beyond the base
EXPLAINED = {
    "reference-code": "the authors' own code was read",
    "paper": "the paper's equations were read",
    "secondary": "somebody else's port or summary was read",
    "reconstruction": "made from an abstract and general knowledge; not verified, and may change without notice",
}
# the first that it changes
HOMES = ("rollout", "update", "credit", "reward", "weight", "objective", "signal", "segment", "tasks.sampler")
_OBJECTIVE = ("surrogate", "kl", "entropy", "add", "context")  # what follows "objective." and is no field of its part


def entry(definition: Definition, known: Sequence[Definition] = ()) -> dict[str, Any]:
    """Catalogue entry of one method; `known`: all methods, if they were already loaded."""
    known = known or list(METHODS.values())
    made = method(definition.name)
    return {
        "name": definition.name,
        "title": definition.title,
        "arxiv": definition.arxiv,
        "idea": definition.idea,
        "stage": home(definition),
        "stages": list(definition.stages),
        "formula": definition.formula,
        "evidence": definition.evidence,
        "code": list(definition.code_links),
        "defaults": _typed(definition.keys),
        "paper_defaults": _typed(definition.paper_defaults),
        "options": options(definition, made),
        "needs": list(made.needs),
        "computes": [name for part in made.signals.values() for name in part.provides],
        "requires": list(made.requires),
        "cost": definition.cost,
        "on_equal": on_equal(made),
        "choices": definition.choices,
        "alias_of": definition.alias_of,
        "aliases": [d.name for d in known if d.alias_of == definition.name],
        "refuses": [f"{k}={show(v)}" for k, values in definition.refuses.items() for v in values],
        "conflicts": conflicts(definition, known),
    }


def options(definition: Definition, made: Method) -> dict[str, Any]:
    """Further keys of a method's own parts (of every part, for the base), with their defaults."""
    found: dict[str, Any] = {}
    for key, stated in made.keys.items():
        part = part_at(key, stated.value)
        if not dataclasses.is_dataclass(part) or (definition.keys and key not in definition.keys):
            continue
        slot = "objective" if key == "objective.surrogate" else key
        names = [f"{slot}.{field.name}" for field in dataclasses.fields(part)]
        found |= {name: made.keys[name].value for name in names if name in made.keys and name not in definition.keys}
    return _typed({name: value for name, value in found.items() if not dataclasses.is_dataclass(value)})


def entries() -> list[dict[str, Any]]:
    """Entries of all methods, those with the weakest evidence last."""
    known = list(METHODS.values())
    return [entry(d, known) for d in sorted(known, key=lambda d: (EVIDENCE.index(d.evidence), d.name))]


def free(cost: str) -> bool:
    """Whether a method costs nothing beyond the base."""
    return cost == FREE or cost.startswith(f"{FREE};")


def _typed(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Keys as they are typed; numbers stay numbers."""
    return {k: v if isinstance(v, (int, float)) else show(v) for k, v in keys.items()}


def home(definition: Definition) -> str:
    """Stage under which a method is listed: the first of HOMES in which it has a part, or any key of credit; else the
    first of STAGES in which it sets a key.

    Where a credit reads a signal of the method's own, its rollouts only serve that: it is listed under credit.
    """
    if "phases" in definition.keys:
        return "update"
    parts = {stage_of(k) for k, v in definition.keys.items() if k in HOMES or isinstance(part_at(k, v), type)}
    parts |= {"credit"} & set(definition.stages)
    if {"credit", "signal"} <= parts:
        return "credit"
    return next((stage for stage in HOMES if stage in parts), next(iter(definition.stages), "base"))


# ---------------------------------------------------------------- composition
def conflicts(definition: Definition, known: Sequence[Definition]) -> dict[str, list[str]]:
    """Key -> the `known` methods with which this one merges only after the caller sets that key."""
    found: dict[str, list[str]] = {}
    for other in known:
        if other.name != definition.name:
            keys = _unequal(definition, other) | _homeless(definition, other) | _homeless(other, definition)
            for key in sorted(keys):
                found.setdefault(key, []).append(other.name)
    return dict(sorted(found.items()))


def _unequal(a: Definition, b: Definition) -> set[str]:
    return {k for k in a.keys.keys() & b.keys.keys() if not same(a.keys[k], b.keys[k])}


def _homeless(owner: Definition, other: Definition) -> set[str]:
    """Stages in which `owner` puts a part that lacks a field for which `other` has a value."""
    found = set()
    for key in other.keys:
        stage, _, field = key.rpartition(".")
        if stage in ("credit", "rollout", "update"):
            part = part_at(stage, owner.keys.get(stage))
            if stage not in other.keys and dataclasses.is_dataclass(part) and field not in _fields(part):
                found.add(stage)
        elif key.startswith("objective."):
            field = key.split(".")[1]
            for slot in ("objective", "objective.surrogate"):
                part = part_at(slot, owner.keys.get(slot))
                if part is None or slot in other.keys or not dataclasses.is_dataclass(part):
                    continue
                if isinstance(part, type) and issubclass(part, PolicyGradient):
                    continue  # it takes surrogate and ratio as the base's does
                known = (*_OBJECTIVE[slot == "objective" :], *(_fields(PolicyGradient) if slot != "objective" else ()))
                if field not in (*known, *_fields(part)):
                    found.add(slot)
    return found


def _fields(part: Any) -> tuple[str, ...]:
    return _fields_of(part if isinstance(part, type) else type(part))


@cache
def _fields_of(kind: Any) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(kind))


# ---------------------------------------------------------------- filters
def select(
    rows: Iterable[Mapping[str, Any]],
    *,
    stage: str | None = None,
    needs: str | None = None,
    evidence: Sequence[str] = (),
    cheap: bool = False,
    zero_variance: str | None = None,
) -> list[dict[str, Any]]:
    """Entries that meet all given conditions.

    stage          one of STAGES: it changes that stage
    needs          a signal that it reads or computes; "none": none at all
    evidence       tiers, one of which it is of
    cheap          it costs nothing beyond the base
    zero_variance  "zero" | "signal": what groups of equal rewards teach it

    Raises ConfigError for a stage, tier or signal that does not exist.
    """
    found = [dict(row) for row in rows]
    if stage is not None:
        one_of("--stage", stage, STAGES)
        found = [r for r in found if stage in r["stages"]]
    for tier in evidence:
        one_of("--evidence", tier, EVIDENCE)
    if evidence:
        found = [r for r in found if r["evidence"] in evidence]
    if needs is not None:
        known = list(dict.fromkeys([*BUILT_IN, *(x for r in found for x in _read(r))]))
        if needs != "none" and needs not in known:
            raise ConfigError(
                f"--needs is 'none' or a signal, and {needs!r} is none{did_you_mean(needs, known)}; there is "
                f"{', '.join(known)}"
            )
        found = [r for r in found if (not _read(r) if needs == "none" else needs in _read(r))]
    if cheap:
        found = [r for r in found if free(r["cost"])]
    if zero_variance is not None:
        one_of("--zero-variance", zero_variance, ("zero", "signal"))
        found = [r for r in found if r["on_equal"] == zero_variance]
    return found


def _read(row: Mapping[str, Any]) -> list[str]:
    return [*row["needs"], *row["computes"]]


def tiers(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Number of methods by level of evidence, strongest first."""
    found = [row["evidence"] for row in rows]
    return {tier: found.count(tier) for tier in EVIDENCE if tier in found}


def citations(spec: str) -> str:
    """BibTeX entries of all methods of a composition."""
    words = [word.strip().split("@")[0] for word in spec.split("+")]
    for word in words:
        if word not in METHODS:
            raise ConfigError(f"unknown method {word!r}{did_you_mean(word, METHODS)} (`gxpo methods` lists them)")
    return "\n\n".join(METHODS[word].bibtex for word in dict.fromkeys(words))
