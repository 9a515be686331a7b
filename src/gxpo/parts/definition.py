"""Composition by leaf key: each method states the keys in which it differs from the base; equal values merge, different
values are a conflict unless the caller decides the key."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from gxpo.base.errors import ConfigError, MethodConflict, did_you_mean
from gxpo.parts.ranges import snake

STAGES = (
    "credit",
    "weight",
    "rollout",
    "segment",
    "reward",
    "signal",
    "objective",
    "update",
    "tasks.sampler",
    "likelihood",
)
JOINED = "scoring.options"  # a mapping of which the caller states entries beside those that methods state
EVIDENCE = ("reference-code", "paper", "secondary", "reconstruction")
CODE = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{7,40}( [^\s@]+)*")
_IDEA = re.compile(r"\A(?:[^\n:]+: )?(.+?)(?=\n\n|\Z)", re.DOTALL)
_FORMULA = re.compile(r"\A.+?\n\n(?!Choices\. )(.+?)(?=\n\n|\nChoices\. |\Z)", re.DOTALL)
_CHOICES = re.compile(r"^Choices\. (.+?)(?=\n\n|\Z)", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Paper:
    """Bibliography of a method: authors as "SURNAME, GIVEN and ...", `arxiv` the preprint's number, "" for none."""

    title: str = ""
    authors: str = ""
    year: int = 0
    arxiv: str = ""

    def bibtex(self, key: str) -> str:
        fields = {
            "title": self.title,
            "author": self.authors,
            "year": str(self.year or ""),
            "eprint": self.arxiv,
            "archivePrefix": "arXiv" if self.arxiv else "",
        }
        body = ",\n".join(f"  {k} = {{{v}}}" for k, v in fields.items() if v)
        return f"@misc{{{key},\n{body}\n}}"


@dataclass(frozen=True)
class Definition:
    """A published method: the keys in which it differs from the base, and where they come from.

    doc       "NAME: IDEA.", the mathematics as a paragraph of its own, and a paragraph "Choices. ..." on what its
              sources leave open: from it come `idea`, `formula` and `choices`
    name      the attribute's, which the catalogue sets
    cite      its key in methods.bib; of a method elsewhere its `Paper`
    evidence  "reference-code": the authors' own code was read; "paper": their equations; "secondary": somebody else's
              port or summary; "reconstruction": an abstract and general knowledge, never called verified. The first two
              are read at source. A doc whose first line says "(mostly ours)" has less than half from its sources
    code      the authors' code that was read, "OWNER/NAME@COMMIT PATH..." on GitHub: what "reference-code" means
    keys      parts by the names that they are registered under; of a user's method also functions and classes
    papers    the bibliography that `cite` is a key of, which the catalogue sets
    """

    doc: str | None = None
    _: KW_ONLY
    name: str = ""
    cite: str | Paper = ""
    evidence: str  # one of EVIDENCE
    code: str = ""
    keys: Mapping[str, Any] = field(default_factory=dict)
    paper_defaults: Mapping[str, Any] = field(default_factory=dict)  # what NAME@paper adds
    refuses: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # key -> values it can't work with
    alias_of: str | None = None
    cost: str = "none beyond the base"
    papers: Mapping[str, Paper] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("keys", "paper_defaults"):
            object.__setattr__(self, name, {k: kind_of(v) for k, v in getattr(self, name).items()})
        title = self.name or (self.doc or "").strip().partition("\n")[0]
        if self.evidence not in EVIDENCE:
            raise ValueError(f"{title}: evidence is one of {EVIDENCE}, not {self.evidence!r}")
        if self.code and not CODE.fullmatch(self.code):
            raise ValueError(f"{title}: code is 'OWNER/NAME@COMMIT PATH...', not {self.code!r}")

    @property
    def idea(self) -> str:
        """Its first line without the name, in one line."""
        return " ".join(self._read(_IDEA).split()).removesuffix(".")

    @property
    def formula(self) -> str:
        """Its mathematics, line by line as in the docstring."""
        return self._read(_FORMULA).strip().removesuffix(".")

    @property
    def choices(self) -> str:
        """One-line note of the choices made where the sources leave something open."""
        return " ".join(self._read(_CHOICES).split()).removesuffix(".")

    def _read(self, pattern: re.Pattern[str]) -> str:
        match = pattern.search(inspect.cleandoc(self.doc or ""))
        return "" if match is None else match[1]

    @property
    def paper(self) -> Paper:
        """Bibliography entry, read on first access. KeyError for a key that the file does not have."""
        if isinstance(self.cite, Paper):
            return self.cite
        return self.papers[self.cite] if self.cite else Paper()

    @property
    def title(self) -> str:
        return self.paper.title

    @property
    def authors(self) -> str:
        return self.paper.authors

    @property
    def year(self) -> int:
        return self.paper.year

    @property
    def arxiv(self) -> str:
        return self.paper.arxiv

    @property
    def code_links(self) -> tuple[str, ...]:
        """Addresses of the files in `code`, at the commit that was read; the repository's where it names no file."""
        if not self.code:
            return ()
        where, *paths = self.code.split()
        repo, commit = where.split("@")
        home = f"https://github.com/{repo}"
        return tuple(f"{home}/blob/{commit}/{path}" for path in paths) or (f"{home}/tree/{commit}",)

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages that it changes."""
        return tuple(s for s in STAGES if s in {stage_of(k) for k in self.keys})

    @property
    def bibtex(self) -> str:
        return self.paper.bibtex(self.name)


@dataclass(frozen=True)
class SettingValue:
    """A value and where it came from: a method's name, `NAME@system`, a file and line, `--set`...

    optional   left out, with a warning, where no part of the composition has such a key
    by_method  the value is the name of a method that states nothing of the key, as does none of the composition
    """

    value: Any
    origin: str
    optional: bool = False
    by_method: bool = False

    def over_options(self, below: Any) -> SettingValue:
        """Options of rewards as the caller states them, over those that a method states of the same rewards."""
        if not isinstance(self.value, Mapping):
            return self
        both = {name: {**below.get(name, {}), **self.value.get(name, {})} for name in {**below, **self.value}}
        return dataclasses.replace(self, value=both)

    @property
    def is_silent(self) -> bool:
        """True of an empty mapping (`credit: {}`), and of a method that says nothing of the key: defaults hold."""
        return self.by_method or (isinstance(self.value, Mapping) and not self.value)

    @property
    def error_prefix(self) -> str:
        """Beginning of an error about the value: "FILE:3: "; empty for a default."""
        return "" if self.origin == "default" else f"{self.origin}: "


def stage_of(key: str) -> str | None:
    """The stage that a key belongs to; None: it is a setting of the run."""
    return next((stage for stage in STAGES if key == stage or key.startswith(f"{stage}.")), None)


def kind_of(value: Any) -> Any:
    """Part that a pure function implements, if it states a part's name; any other value is returned unchanged."""
    return vars(value).get("__kind__", value) if inspect.isfunction(value) else value


def same(a: Any, b: Any) -> bool:
    """Equal as settings: the same part, itself or by its name, or an equal value."""
    a, b = kind_of(a), kind_of(b)
    if isinstance(a, str) != isinstance(b, str) and isinstance(a if isinstance(b, str) else b, type):
        return show(a) == show(b)
    numbers = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in (a, b))
    return a is b or ((numbers or type(a) is type(b)) and bool(a == b))


def merge(
    definitions: Sequence[tuple[str, Definition, Mapping[str, Any]]],
    overrides: Mapping[str, SettingValue],
    methods: Mapping[str, Definition],
) -> dict[str, SettingValue]:
    """The stated keys of a composition.

    definitions  (label, method, keys) from left to right; `keys` are the method's own and those of its `@system`
    overrides    the caller's keys; they decide conflicts. The value of a stage key may be a method's name: as in it.

    An override that takes nothing from that method, and nothing of the composition away, is `SettingValue.by_method`.
    """
    # an override either states a value, or borrows a stage from another method by that method's name
    values, stage_sources = {}, {}
    for key, override in overrides.items():
        if isinstance(override.value, str) and override.value in methods:
            stage_sources[key] = override
        else:
            values[key] = override
    # methods merge without an order: two different values of one key are an error with a remedy, never the last one
    merged_keys: dict[str, SettingValue] = {}
    for label, _, keys in definitions:
        for key, value in keys.items():
            # options of rewards are joined by reward and name: a method states those of its own rewards only
            if key == JOINED and key in values:
                values[key] = values[key].over_options(value)
            if key in values or any(_governs(k, key, keys) for k in stage_sources):
                continue
            # what a method adds to its own part goes with that part when the caller replaces it
            if any(key.startswith(f"{stage}.add.") and stage in keys for stage in values):
                continue
            # values are compared and not texts, so that 1 and 1.0 from two files are no conflict
            if key in merged_keys and not same(merged_keys[key].value, value):
                first = merged_keys[key]
                raise MethodConflict(
                    f"{first.origin} sets {key}={show(first.value)} and {label} sets {key}={show(value)}: decide with "
                    f"--set {key}={first.origin.split('@')[0]} (or ={label.split('@')[0]}, or a value), "
                    f"in Python {{{key!r}: {first.origin.split('@')[0]!r}}}"
                )
            merged_keys.setdefault(key, SettingValue(value, label))
    for key, override in stage_sources.items():
        # a stage is borrowed with its parameters: half of another method's stage would be a method that nobody has
        # published
        source = methods[override.value]
        stage_keys = {k: v for k, v in source.keys.items() if _governs(key, k, source.keys)}
        merged_keys |= {k: SettingValue(v, f"{override.origin} (as in {source.name})") for k, v in stage_keys.items()}
        # a method that has nothing at this stage: the stage is as in the base, which has to be said and not dropped
        if not stage_keys and not any(_governs(key, k, keys) for _, _, keys in definitions for k in keys):
            merged_keys[key] = dataclasses.replace(override, by_method=True)
    return merged_keys | values


def _governs(decision: str, key: str, keys: Mapping[str, Any]) -> bool:
    """Return True if a decision for a stage key carries `key` of a method with it: the stage's parameters do, and so do
    parts added to the stage where the method states both (GiGPO's two levels), not those that are added to any."""
    return key == decision or (key.startswith(decision + ".") and not _added_to_any(decision, key, keys))


def _added_to_any(stage: str, key: str, keys: Mapping[str, Any]) -> bool:
    return key.startswith(stage + ".add.") and stage not in keys


def check_refusals(
    definitions: Sequence[tuple[str, Definition, Mapping[str, Any]]], key_values: Mapping[str, Any]
) -> None:
    """Raise where a method of the composition can't work with a value that came out."""
    for label, definition, _ in definitions:
        for key, values in definition.refuses.items():
            if key in key_values and any(same(key_values[key], v) for v in values):
                raise ConfigError(f"{label} can't work with {key}={show(key_values[key])}: set {key} to another value")


def check_allowed(part: Any, keys: Mapping[str, SettingValue]) -> None:
    """Raise where a setting of the run has a value that a part can't work with: it `allows` other ones alone."""
    for key, (values, reason) in getattr(part, "allows", {}).items():
        if key in keys and not any(same(keys[key].value, v) for v in values):
            alternatives = " or ".join(map(show, values))
            raise ConfigError(f"{key}={show(keys[key].value)}: {show(part)} {reason}: set {key} to {alternatives}")


def finite(value: Any, unbounded: bool = False) -> bool:
    """Return True if every number in a value is finite; with `unbounded` infinity passes, nan never does."""
    if isinstance(value, float):
        return math.isfinite(value) or (unbounded and math.isinf(value))
    if isinstance(value, Mapping):
        return all(finite(v, unbounded) for v in value.values())
    return not isinstance(value, (list, tuple)) or all(finite(v, unbounded) for v in value)


def is_schedule(value: Any) -> bool:
    """True of a value that is a schedule (`gxpo.parts.schedule`): a mapping with `schedule` and one of its ends."""
    return isinstance(value, Mapping) and "schedule" in value and ("from" in value or "to" in value)


def show(value: Any) -> str:
    """A value as it is typed: a part by its name, which is its class's in lower case with underscores, or, where it is
    none of gxpo's own, by its file and class."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    # a function that is a part stands for its part's class
    value = kind_of(value)
    if isinstance(value, type):
        return _part_name(value)
    if dataclasses.is_dataclass(value):
        return getattr(value, "label", None) or show(type(value))
    if inspect.isfunction(value) and str(value.__module__).startswith("gxpo."):
        return value.__name__
    if inspect.isfunction(value):
        return f"{inspect.getsourcefile(value)}:{value.__name__}"
    return str(value)


def _part_name(kind: type) -> str:
    if not str(kind.__module__).startswith("gxpo."):
        with suppress(TypeError, OSError):  # of a notebook or an interpreter's line: it has no file
            return f"{inspect.getsourcefile(kind)}:{kind.__name__}"
    stage_and_name = vars(kind).get("__part__")  # of `gxpo.parts.registry.part`
    return snake(kind.__name__) if stage_and_name is None else stage_and_name[1]


def is_section(key: str, keys: Iterable[str]) -> bool:
    """True if some of the keys lie below this one."""
    return any(k.startswith(f"{key}.") for k in keys)


def unknown_key(key: str, valid: Sequence[str]) -> ConfigError:
    """Error for a key that no part has, with the nearest known key."""
    weights = "; weights of several rewards are scoring.weights" if key.startswith("reward.") else ""
    return ConfigError(f"unknown key {key!r}{did_you_mean(key, valid)}{weights}")
