"""Make parts from configuration keys: dotted keys, types and ranges of options, parts by name, file or object."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from gxpo.base.errors import ConfigError, did_you_mean
from gxpo.base.usercode import NotRun, Unusable, object_at
from gxpo.parts import functions, ranges, registry
from gxpo.parts.definition import SettingValue, finite, is_schedule, is_section, kind_of, same, show, stage_of
from gxpo.parts.functions import Formula
from gxpo.parts.schedule import Schedule, Scheduled, read

_SYNONYMS = {  # words for the same settings
    "advantage": "credit",
    **{
        f"update.{name}": f"optim.{name}"
        for name in ("lr", "betas", "weight_decay", "max_grad_norm", "schedule", "warmup_steps")
    },
}


def canonical(key: str) -> str:
    """Replace a synonym by its key: "credit.scale" for "advantage.scale"; other keys are returned unchanged."""
    head, dot, rest = key.partition(".")
    return f"credit{dot}{rest}" if head == "advantage" else _SYNONYMS.get(key, key)


def canonical_keys(entries: Mapping[str, SettingValue]) -> dict[str, SettingValue]:
    """The stated keys, synonyms under the keys that they stand for. ConfigError where two of one key differ."""
    out: dict[str, SettingValue] = {}
    for key, entry in entries.items():
        name = canonical(key)
        if name in out and not same(out[name].value, entry.value):
            raise ConfigError(f"{name} is set twice: {show(out[name].value)} and {show(entry.value)}")
        out[name] = entry
    return out


def flatten_keys(entries: Mapping[str, Any]) -> dict[str, SettingValue]:
    """Dotted keys of Python keys, nested or dotted, of `SettingValue`s or values. ConfigError where two are one."""
    out: dict[str, SettingValue] = {}
    for key, value in entries.items():
        if not isinstance(key, str):
            raise ConfigError(f"key {key!r} is a {type(key).__name__}: keys are texts, as 'credit.scale'")
        entry = value if isinstance(value, SettingValue) else SettingValue(value, "override")
        for leaf, leaf_entry in leaves(key, entry.value, entry.origin):
            if leaf in out:
                # nested and dotted spellings of one key must not override each other by order
                raise ConfigError(f"{leaf} is set twice")
            out[leaf] = replace(entry, value=leaf_entry.value)
    return out


def nest_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nest dotted keys: {"optim.lr": 0.1} becomes {"optim": {"lr": 0.1}}."""
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *sections, leaf = key.split(".")
        target = tree
        for section in sections:
            target = target.setdefault(section, {})
        target[leaf] = value
    return tree


def leaves(key: str, value: Any, origin: str, source: str | None = None) -> list[tuple[str, SettingValue]]:
    """The dotted keys that a value stands for: `{"kl": {"coef": 0.1}}` under "objective" states "objective.kl.coef".

    `part` names the part of a key that takes one: `{"part": "gae", "lam": 1.0}` under "credit" states "credit" and
    "credit.lam". Settings that are mappings themselves (`is_mapping`), schedules of a number and empty mappings
    (`SettingValue.is_silent`) stay whole.

    source  the file, whose lines are told beside it
    """
    # an empty mapping states that the defaults hold, which is not the same as stating nothing
    if not isinstance(value, Mapping) or (not value and key not in ("", "reward")):
        return [(key, SettingValue(value, origin))]
    # a mapping that is a value itself: its keys are not keys of the configuration
    if is_mapping(key) or ("schedule" in value and is_schedule(value)):
        return [(key, SettingValue(value, origin))]
    out: list[tuple[str, SettingValue]] = []
    # ruamel's mappings know their lines: an error about a key can name the file's line
    lines = getattr(getattr(value, "lc", None), "data", None) or {}
    for name, inner in value.items():
        place = f"{source}:{lines[name][0] + 1}" if source and name in lines else origin
        # `part` is a key of its own only where a part can stand; elsewhere it may be the name of an option
        part = name == "part" and (key == "reward" or registry.table_at(key) is not None)
        out += leaves(key if part else f"{key}.{name}" if key else str(name), inner, place, source)
    return out


def is_mapping(key: str) -> bool:
    """Return True if a key's value is itself a mapping: of some settings, and of these options of parts."""
    if not key:
        return False
    from gxpo.parts.settings import MAPPINGS

    return (
        key == "versions"
        or key in MAPPINGS
        or key.endswith((".weights", ".conditions", "rollout.models", "rollout.observed_roles"))
    )


def silent_keys(entries: Mapping[str, SettingValue]) -> set[str]:
    """The keys that only have to exist (`SettingValue.is_silent`); a setting that is a mapping may well be empty."""
    return {key for key, entry in entries.items() if entry.is_silent and not is_mapping(key)}


def settings_of(keys: Iterable[str]) -> dict[str, tuple[str, list[str]]]:
    """(setting, names from there on) of each key: of `tasks.options.digits` the mapping and ["digits"]."""
    return {key: _setting_of(key) for key in keys}


def _setting_of(key: str) -> tuple[str, list[str]]:
    words = key.split(".")
    for i in range(1, len(words)):
        parent = ".".join(words[:i])
        if is_mapping(parent):
            by_reward = parent.endswith((".weights", ".conditions"))  # names of rewards may have dots
            return parent, [".".join(words[i:])] if by_reward else words[i:]
    return key, []


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


SECTIONS = (  # keys that take a method's name and are no part's
    "weight",
    "signal",
    "credit.add",
    "reward",
    "reward.add",
    "reward.shape",
    "reward.step",
    "objective.add",
    "objective.entropy",
    "objective.kl",
)


class Keys:
    """Stated keys being consumed; every resolved value is noted with its origin.

    stated  keys with a value
    silent  keys that only have to exist: `silent_keys`
    moving  keys whose value is a schedule
    """

    def __init__(self, entries: Mapping[str, SettingValue]) -> None:
        self.all_stated = entries
        silent_names = silent_keys(entries)
        self.stated = {k: s for k, s in entries.items() if k not in silent_names}
        # an empty mapping or a method's name states defaults: kept apart, for it must not count as a value
        self.silent = {k: s for k, s in entries.items() if k in silent_names}
        self.moving = {k for k, s in entries.items() if is_schedule(s.value)}
        # keys that no part has taken at the end are unknown: `valid` is what they are compared with for a suggestion
        self.used_keys, self.resolved, self.valid = set[str](), dict[str, SettingValue](), list[str]()
        self.schedules: dict[str, Schedule] = {}  # of numbers of the parts that are being made, by key
        self.scheduled: list[Scheduled] = []

    def take(self, key: str, default: Any) -> Any:
        self.valid.append(key)
        self.used_keys.add(key)
        entry = self.stated.get(key, SettingValue(default, "default"))
        self.resolved[key] = entry
        return entry.value

    def names(self, prefix: str) -> list[str]:
        """NAME of every stated `prefix.NAME`, in order; optional options of a part that is not stated make none, and
        neither does a method that has no such part."""
        words = len(prefix.split("."))
        stated_keys = [k for k, s in self.all_stated.items() if k.startswith(f"{prefix}.") and not s.by_method]
        below = {k: k.split(".")[words] for k in stated_keys}
        return list(
            dict.fromkeys(n for k, n in below.items() if k == f"{prefix}.{n}" or not self.all_stated[k].optional)
        )

    def parts(self, stage: str, table: Mapping[str, Any], role: str) -> dict[str, Any]:
        """Parts under `stage.NAME` by NAME, which is also the part's name unless another is stated."""
        slots = {name: f"{stage}.{name}" for name in self.names(stage)}
        return {name: self.part(slot, self.take(slot, name), table, role=role) for name, slot in slots.items()}

    def part(
        self,
        slot: str,
        value: Any,
        table: Mapping[str, Any],
        prefix: str | None = None,
        role: str = "part",
        main: str | None = None,
    ) -> Any:
        """The part that `value` names, its fields filled from `prefix.FIELD`.

        main  the slot of the part that it is added to: fields that its class names in `follows`, and those whose
              default is None, are as they are there unless they are stated
        """
        # a user's file that is not run (`gxpo plan`, a dry check) has options that nobody can check: all count as used
        kind = resolve_part(value, table, slot, role)
        if isinstance(kind, Unexecuted):
            for key in [k for k in self.stated if k.startswith(f"{prefix or slot}.")]:
                self.take(key, None)
            return kind
        # a wrong object is refused with its key here; in a run it would fail with an AttributeError in some step
        check_protocol(f"{slot}={show(value)}", kind, role)
        # functions and objects made in Python have no fields to fill
        if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
            return kind
        # an added part follows the one that it is added to (scale, clip bounds), unless it states its own
        prefix, shared = slot if prefix is None else prefix, {}
        for entry in dataclasses.fields(kind) if main is not None else ():
            of_main = self.resolved.get(f"{main}.{entry.name}")
            if of_main is not None and (entry.default is None or entry.name in getattr(kind, "follows", ())):
                shared[entry.name] = default_of(entry) if of_main.value is None else of_main.value
        fields = self.fields(kind, prefix, shared=shared)
        # a file that is not run gives no function: the part stays unmade, with its fields known
        try:
            if issubclass(kind, Formula):
                fields["options"] = self.options(kind, fields, prefix)
            return self.start_schedules(kind(**fields), prefix)
        except NotRun as needed:
            return Unexecuted(str(needed), fields)

    def fields(
        self,
        kind: Any,
        prefix: str,
        *,
        preset: Mapping[str, Any] | None = None,
        shared: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Values for the fields of the part's class `kind`, from what is stated under `prefix.FIELD`.

        made    values of fields that no key states
        shared  what fields are where they are not stated, or null
        """
        # hints and rules are read once per class: resolving annotations costs more than making the part
        fields, shared = dict(preset or {}), shared or {}
        hints, rules = hints_of(kind), ranges.rules(kind)
        for entry in dataclasses.fields(kind):
            name, key, default = entry.name, f"{prefix}.{entry.name}", default_of(entry)
            # options of a formula are known only once its functions are
            if not entry.init or name in fields or (name == "options" and issubclass(kind, Formula)):
                continue
            if name == "control":
                fields[name] = self.control(key, default)
            # a null states that the part it is added to decides
            elif name in shared and (key not in self.stated or self.stated[key].value is None):
                self.take(key, None)
                fields[name] = shared[name]
            else:
                fields[name] = self.field(key, default, hints[name], rules.get(name), "unbounded" in entry.metadata)
        return fields

    def options(self, kind: type[Formula], fields: dict[str, Any], prefix: str) -> dict[str, Any]:
        """Options of the functions that a part applies: they lie beside its fields, under `prefix.OPTION`."""
        out: dict[str, Any] = {}
        for name, (module, free) in kind.functions.items():
            # functions first: they decide which options exist
            fields[name] = functions.look_up(fields[name], module, f"{prefix}.{name}", free=free)
            if callable(fields[name]):
                for option, (hint, default) in functions.signature(fields[name]).options.items():
                    # an option of the same name as a field was checked as the field
                    if option in fields:
                        continue
                    rule = ranges.rule_of(hint, default == math.inf)
                    out[option] = self.field(f"{prefix}.{option}", default, hint, rule)
        return out

    def control(self, key: str, default: Any) -> Any:
        """Make the controller of a coefficient: a part inside a part, its fields under `KEY.FIELD`."""
        value = self.take(key, None if default is None else type(default))
        control = None if value is None else self.part(key, value, registry.CONTROLS, role="control")
        return None if isinstance(control, Unexecuted) else control

    def choice(self, key: str, *choices: str) -> str:
        """Resolve a key that takes one of the choices; the first is the default."""
        hint = Literal[choices]  # type: ignore[valid-type]
        return self.field(key, choices[0], hint, ranges.rule_of(hint))

    def field(self, key: str, default: Any, hint: Any, rule: ranges.Rule | None = None, unbounded: bool = False) -> Any:
        """Resolve the value of a field: checked by its type and its rule, or the default as it is.

        Numbers are finite, but where the default is inf or the field's metadata says `unbounded`.
        """
        value = self.take(key, default)
        if value is dataclasses.MISSING:
            raise ConfigError(f"{key} has no default: set it")
        if key in self.silent:
            return self.silent_field(key, default, hint, rule)
        if key not in self.stated:
            return value
        entry = self.stated[key]
        # a schedule is made with its largest value, since buffers and checks must fit all of them
        if key in self.moving:
            return self.largest(key, entry, hint, rule)
        return self.check_value(key, entry, hint, rule, unbounded or default in (math.inf, -math.inf))

    def silent_field(self, key: str, default: Any, hint: Any, rule: ranges.Rule | None) -> Any:
        """The default where a method is named that does not state the field, unless the field takes that text."""
        silent_value = self.silent[key]
        try:
            value = self.check_value(key, silent_value, hint, rule)
        except ConfigError:
            if not silent_value.by_method:
                raise
            return default
        self.resolved[key] = silent_value
        return value

    def check_value(
        self, key: str, entry: SettingValue, hint: Any, rule: ranges.Rule | None, unbounded: bool = False
    ) -> Any:
        """The stated value, of the type of the hint and as the rule has it."""
        value = convert(key, entry.value, hint, entry)
        if not finite(value, unbounded):
            raise ConfigError(f"{key}={show(entry.value)} ({entry.origin}): it must be a finite number")
        if rule is not None and not rule.holds(value):
            raise ConfigError(ranges.refusal(key, value, rule, origin_of(entry)))
        return value

    def largest(self, key: str, entry: SettingValue, hint: Any, rule: ranges.Rule | None) -> Any:
        """Check both ends of a number's schedule, and return the one that the part is made with: `Schedule.largest`."""
        # a control moves its coefficient itself, and settings of some stages are read once at the start
        if (stage := key.split(".")[0]) in UNSCHEDULED or is_control(key):
            raise ConfigError(
                f"{key}: {UNSCHEDULED.get(stage, 'a control is a schedule itself: move the coefficient')}"
            )
        try:
            schedule = read(entry.value)
        except ConfigError as error:
            raise ConfigError(f"{key} ({entry.origin}): {error}") from None
        # both ends by the field's own rule: with both valid, so is every number between them
        ends = [self.check_value(key, replace(entry, value=x), hint, rule) for x in (schedule.start, schedule.to)]
        if any(isinstance(x, bool) or not isinstance(x, (int, float)) for x in ends):
            raise ConfigError(f"{key} ({entry.origin}): a schedule moves numbers, and this is none")
        self.schedules[key] = replace(schedule, start=ends[0], to=ends[1])
        return self.schedules[key].largest

    def start_schedules(self, part: Any, prefix: str) -> Any:
        """The part, with its numbers that have a schedule under `prefix.NAME` as in step 1.

        Made with either end it must be as good as with the other: whatever a part checks, it checks of both.
        """
        for key in [k for k in self.schedules if k.rpartition(".")[0] == prefix]:
            moving = Scheduled(key, part, key.rpartition(".")[2], self.schedules[key])
            # a key under the same prefix may be another part's
            if moving.name not in moving.values():
                continue
            for end in (moving.schedule.start, moving.schedule.to):
                moving.check(end)
            # made with the largest value, used from here on with that of the first step
            moving.set(moving.at(1))
            self.scheduled.append(moving)
            del self.schedules[key]
        return part

    def leftover(self) -> list[str]:
        """Keys that no part has taken; a section may be silent."""
        unused = [k for k in self.all_stated if k not in self.used_keys]
        return [k for k in unused if k not in self.silent or not self.is_section(k)]

    def is_section(self, key: str) -> bool:
        """True of a key that may stand for all keys below it."""
        return key in SECTIONS or (stage_of(key) is not None and is_section(key, self.valid))


def default_of(entry: dataclasses.Field[Any]) -> Any:
    return entry.default_factory() if entry.default_factory is not dataclasses.MISSING else entry.default


def origin_of(entry: SettingValue) -> str:
    """Origin of a value for a message; "" for those of a call's own arguments."""
    return "" if entry.origin == "override" else entry.origin


UNSCHEDULED = {  # stage -> why its numbers have no schedule
    stage: f"a schedule moves numbers of credit, weight, reward, objective and update; {why}"
    for stage, why in {
        "rollout": "rollouts are sampled as the run began, ahead of the step where asynchronous",
        "segment": "segments are cut as the run began",
        "signal": "signals may own models and a memory that were made with the number",
    }.items()
}


def is_control(key: str) -> bool:
    """Return True if a key is an option of a coefficient's controller."""
    return "control" in key.split(".")[1:-1]


PROTOCOL = {  # what a part must have, where it is more than being callable
    "rollout": ("grow",),
    "signal": ("compute", "provides", "axes"),
    "update": ("run", "optimiser_steps"),
    "surrogate": ("loss", "clipped"),
    "ratio": ("level", "couples"),
    "control": ("coefficient", "adjust"),
    "term": ("__call__", "active", "couples"),
    "term of the objective": ("__call__", "active", "couples"),
    "task sampler": ("weights",),
    "likelihood": ("views",),
}


def check_protocol(label: str, part: Any, role: str) -> None:
    """Refuse an object that lacks attributes of its stage's protocol, before the first step of a run."""
    # of a class by its own and inherited attributes: `hasattr` would find `__call__` on every class
    attributes = PROTOCOL.get(role, ("__call__",))
    if isinstance(part, type):
        if not dataclasses.is_dataclass(part):
            raise ConfigError(f"{label} is a class but no dataclass: decorate it with @dataclass(frozen=True)")
        # a dataclass with abstract methods can be decorated and not be made
        missing = [n for n in attributes if not any(n in vars(base) for base in part.__mro__)]
        missing += sorted(getattr(part, "__abstractmethods__", ()))
    else:
        missing = [n for n in attributes if not hasattr(part, n)]
    if missing:
        raise ConfigError(f"{label} can't be a {role}: it has no {', '.join(dict.fromkeys(missing))}")


def convert(key: str, value: Any, hint: Any, entry: SettingValue) -> Any:
    """`value` checked against the field's type; an int is taken for a float, a list for a tuple."""
    # the bounds are checked by the rule: here only the type counts
    hint = get_args(hint)[0] if get_origin(hint) is Annotated else hint
    if hint is Any:
        return value
    # plain types without pydantic, whose import alone takes longer than all else that `gxpo.method("grpo")` does
    if hint is float and type(value) in (int, float):
        return float(value)
    if type(value) is (str if get_origin(hint) is Literal else hint):  # the choices are the rule's
        return value
    if isinstance(value, list) and get_origin(hint) is tuple:
        value = tuple(value)
    from pydantic import TypeAdapter, ValidationError  # a tenth of a second, for what plain comparisons don't decide

    try:
        return TypeAdapter(hint, config={"arbitrary_types_allowed": True, "strict": True}).validate_python(value)
    except ValidationError as error:
        raise ConfigError(f"{key}={show(value)} ({entry.origin}): {error.errors()[0]['msg'].lower()}") from None


def resolve_part(value: Any, table: Mapping[str, Any], slot: str, role: str) -> Any:
    """A name in the table, `file.py:name`, `module:name`, a part class, a part or a function."""
    if not isinstance(value, str):
        if value is None or not (callable(value) or dataclasses.is_dataclass(value)):
            raise ConfigError(f"{slot}={value!r} is neither the name of a {role} nor a function")
        return registry.of_function(kind_of(value), getattr(table, "stage", ""))
    if value in table:
        return table[value]
    # file:name and module:name are users' code: a name of the table is never looked for there
    if ":" in value:
        return registry.of_function(kind_of(load_object(value, slot)), getattr(table, "stage", ""))
    raise ConfigError(f"{slot}: unknown {role} {value!r}{did_you_mean(value, table)}; there is {', '.join(table)}")


def load_object(path: str, slot: str) -> Any:
    """The object that `file.py:name` or `package.module:name` names."""
    try:
        return object_at(path)
    except NotRun:
        return Unexecuted(path)
    except Unusable as error:
        raise ConfigError(f"{slot}={path}: {error}") from None
