"""Former names of parts and options: what configurations, code and saved runs of the release before use.

Each stage's folder keeps its own in `former.py`, as `FORMER: dict[str, Former]` by the part's former name; a method
whose definition has changed keeps those of its options in `Definition.renamed`. A former name that is used gives the
new composition, and one FutureWarning that says the new name.
"""

from __future__ import annotations

import importlib
import importlib.util
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeVar

from gxpo.definition import Definition, Stated, same, show
from gxpo.errors import ConfigError
from gxpo.ranges import snake

_T = TypeVar("_T")
_FOLDERS = {  # slots that take one part, and those that take any number by name -> the folder of their parts
    "credit": "credit",
    "credit.add.": "credit",
    "weight.": "weighting",
    "rollout": "rollouts",
    "segment": "segments",
    "tasks.sampler": "tasks",
    "reward.shape.": "rewards",
    "reward.step.": "rewards",
    "reward.add.": "rewards",
    "signal.": "signals",
    "update": "learners",
    "objective": "objectives",
    "objective.surrogate": "objectives",
    "objective.ratio": "objectives",
    "objective.add.": "objectives",
}
ALSO = {  # other words for settings, accepted for good
    f"update.{name}": f"optim.{name}"
    for name in ("lr", "betas", "weight_decay", "max_grad_norm", "schedule", "warmup_steps")
}
SETTINGS = {  # settings and slots by their former keys
    "objective.gate": "objective.surrogate",
    "sampling.server": "sampling.servers",
}
OPTIONS = {  # options by their former names: (stage, last word of the key) -> the word now
    ("credit", "single"): "singleton",
    ("objective", "once_per_token"): "dedup_shared_tokens",
}
LISTED = {"trainer.tensorboard": ("trainer.callbacks", "tensorboard")}  # switches that are words of a list now
_REWARD_STAGES = ("add", "shape", "step")
_INNER = {"objective.surrogate": "objective", "objective.ratio": "objective"}  # their options are the term's


@dataclass(frozen=True)
class Former:
    """What a part that is no more has become.

    now      the part in its place; None: the slot keeps what it has
    options  what `now` needs to be the same: options of its own by their names, or whole keys ("credit.add.state")
    keys     former option -> its new name: an option of `now`, or whole keys; () where there is nothing to set any
             more. Options that are left out keep their names
    values   former option -> {former value: new value}, where a value's name has changed

    Whole keys are written as for the stage's only part, or for one with the part's former or new name: `credit.scale`,
    `weight.token.share`. In another slot (`credit.add.mine`, `weight.mine`) they are that slot's.
    """

    now: Any
    options: Mapping[str, Any] = field(default_factory=dict)
    keys: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    values: Mapping[str, Mapping[Any, Any]] = field(default_factory=dict)


class FormerPart:
    """A former part's class in Python: as the value of a key it means what its name means, and a call composes the
    parts in its place from the same options."""

    def __init__(self, folder: str, class_name: str, name: str) -> None:
        self.folder, self.name, self.__name__ = folder, name, class_name

    def __repr__(self) -> str:
        return f"<former part {self.name} of {self.folder}>"

    def __call__(self, **options: Any) -> Any:
        compose = importlib.import_module("gxpo.compose")  # above this module: only a call needs it
        return compose.part_of(self.folder, self, options)


def classes(folder: str, *functions: str, **homes: str) -> Callable[[str], Any]:
    """The `__getattr__` of a stage's folder or module: former classes by their names.

    functions  classes of parts that keep their names and are functions now
    homes      name -> module of the folder that is loaded when the name is first asked for

    __getattr__ = former.classes("credit", "MixedScale", mixed_scale="success_rate")
    """

    def find(name: str) -> Any:
        if name in homes:
            return getattr(importlib.import_module(f"gxpo.{folder}.{homes[name]}"), name)
        if name in functions or (name[:1].isupper() and snake(name) in table(folder)):
            return FormerPart(folder, name, snake(name))
        raise AttributeError(f"module 'gxpo.{folder}' has no attribute {name!r}")

    return find


@cache
def table(folder: str) -> Mapping[str, Former]:
    """The former names of a folder's parts."""
    if importlib.util.find_spec(f"gxpo.{folder}.former") is None:
        return {}
    return importlib.import_module(f"gxpo.{folder}.former").FORMER


def setting(key: str, value: Any = None) -> str:
    """The key of a setting that is stated under its former one, or another word (`advantage.scale`, `update.lr`)."""
    if key.partition(".")[0] == "advantage":  # the field's word for the stage, accepted as well as "credit"
        key = "credit" + key.removeprefix("advantage")
    key = ALSO.get(key, key)
    new = _setting(key, value)
    if new != key:
        _warn(key, [new])
    return new


def renewed_setting(key: str, entry: Stated) -> tuple[str, Stated]:
    """A stated setting under its new key, where it has one, with what its value is there."""
    if key not in LISTED or not isinstance(entry.value, bool):
        return setting(key, entry.value), entry
    new, word = LISTED[key]
    if entry.value:  # what is off, as in every config.yaml of before, is as it was
        _warn(f"{key}=true", [f"{new}=[{word}]"])
    return new, replace(entry, value=[word] if entry.value else [])


def _setting(key: str, value: Any = None) -> str:
    head, _, rest = key.partition(".")
    if head == "reward" and (isinstance(value, Mapping) if not rest else rest.split(".")[0] not in _REWARD_STAGES):
        return f"scoring.weights.{rest}" if rest else "scoring.weights"
    slot, _, option = key.rpartition(".")
    return f"{slot}.{OPTIONS[head, option]}" if (head, option) in OPTIONS else SETTINGS.get(key, key)


def keyword(function: str, old: str, value: _T, new: str) -> _T:
    """The value of a function's keyword argument that was given by its former name, after a warning."""
    _warn(f"{old} of {function}", [new])
    return value


def learns_from_equal_groups(part: Any) -> bool:
    """Whether a part may have non-zero advantages, or a gradient, in groups of equal outcomes.

    A user's part may still state it as `on_equal = "signal"`.
    """
    return bool(getattr(part, "learns_from_equal_groups", False)) or getattr(part, "on_equal", "zero") == "signal"


def renewed(stated: Mapping[str, Stated], definitions: Iterable[Definition] = ()) -> dict[str, Stated]:
    """The stated keys with new names for former ones.

    definitions  of the composition, for their `renamed`. It holds for options of parts that are not stated themselves,
                 and for names of slots ("weight.top_entropy": "weight.token") with all that is in them

    ConfigError where a former and its new name are both stated, with different values.
    """
    definitions, stated = list(definitions), _with_settings(stated)
    if not any(folder_of(key) or key.count(".") > 1 for key in stated) and not any(d.renamed for d in definitions):
        return stated
    renewal = _Renewal(_with_slots(stated, {key for d in definitions for key in d.keys}))
    for definition in definitions:
        renewal.rename(definition)
    for slot, entry in list(renewal.kept.items()):
        if (old := _former(slot, entry.value)) is not None:
            renewal.replace(slot, entry, *old)
    return renewal.all()


def _with_settings(stated: Mapping[str, Stated]) -> dict[str, Stated]:
    out: dict[str, Stated] = {}
    for key, entry in stated.items():
        new = setting(key, entry.value)
        if new in out and not same(out[new].value, entry.value):
            raise ConfigError(f"{new} is set twice: {show(out[new].value)} and {show(entry.value)}")
        out[new] = entry
    return out


def _with_slots(stated: Mapping[str, Stated], known: Collection[str]) -> dict[str, Stated]:
    """The stated keys, and parts that are named by their slots alone: `weight.peaked.share` without `weight.peaked`."""
    out = dict(stated)
    for key, entry in stated.items():
        slot = next((s for s in _slots_of(key) if s in known or s in stated), "")
        found = [] if slot else [s for s in _slots_of(key) if s.rpartition(".")[2] in table(str(folder_of(s)))]
        out |= {s: replace(entry, value=s.rpartition(".")[2]) for s in found}
    return out


def _slots_of(key: str) -> list[str]:
    """Slots, of those that take parts by name, that an option may be in: `weight.NAME` for `weight.NAME.share`."""
    words = key.split(".")
    heads = [".".join(words[:i]) for i in range(2, len(words))]
    return [s for s in heads if f"{s.rpartition('.')[0]}." in _FOLDERS]


def renewed_keys(keys: Mapping[str, Any], label: str) -> Mapping[str, Any]:
    """A definition's own keys with new names for former ones: a method of a user's may have some."""
    if not any(_former(slot, value) or _setting(slot) != slot for slot, value in keys.items()):
        return keys
    return {k: s.value for k, s in renewed({k: Stated(v, label) for k, v in keys.items()}).items()}


class _Renewal:
    """Stated keys on their way from former names to new ones.

    kept      still under the names that they were stated with
    moved     under new names
    defaults  what parts in place of former ones need, unless it is stated
    """

    def __init__(self, stated: dict[str, Stated]) -> None:
        self.kept, self.moved, self.defaults = stated, dict[str, Stated](), dict[str, Stated]()

    def rename(self, definition: Definition) -> None:
        slots = [k for k in self.kept if folder_of(k) is not None]
        for old, new in definition.renamed.items():
            if old in self.kept and folder_of(old) is None and not any(old.startswith(f"{slot}.") for slot in slots):
                self.move(old, (new,) if isinstance(new, str) else new, f" of {definition.name}")
        for old, new in definition.renamed.items():
            if folder_of(old) is not None and isinstance(new, str):  # a slot: what was stated in it goes with it
                kept = {new + k[len(old) :] if f"{k}.".startswith(f"{old}.") else k: s for k, s in self.kept.items()}
                if kept.keys() != self.kept.keys():
                    _warn(f"{old} of {definition.name}", [new])
                self.kept = kept

    def replace(self, slot: str, entry: Stated, name: str, former: Former) -> None:
        """A former part by what it is now, and its options by their new names."""
        prefix = _INNER.get(slot, slot)
        own = {_key(slot, name, former, k): v for k, v in former.options.items()}
        if former.now is None:
            del self.kept[slot]
        else:
            self.kept[slot] = replace(entry, value=former.now)
            own = {slot: former.now, **own}
        origin = f"{entry.origin} (as {name})"
        self.defaults |= {k: Stated(v, origin) for k, v in own.items() if k != slot}
        _warn(f"{slot}={name}", [f"{k}={show(v)}" for k, v in own.items()])
        for option, values in former.values.items():
            if (key := f"{prefix}.{option}") in self.kept:
                given = self.kept[key]
                new = next((n for o, n in values.items() if same(o, given.value)), given.value)
                self.kept[key] = replace(given, value=new)
        for option, new in former.keys.items():
            if (key := f"{prefix}.{option}") in self.kept:
                self.move(key, [_key(slot, name, former, k) for k in ((new,) if isinstance(new, str) else new)])

    def move(self, old: str, new: Sequence[str], of: str = "") -> None:
        entry = self.kept.pop(old)
        for key in new:
            if key in self.moved and not same(self.moved[key].value, entry.value):
                raise ConfigError(f"{key} is set twice: {show(self.moved[key].value)} and {show(entry.value)} ({old})")
            self.moved[key] = entry
        if list(new) != [old]:
            _warn(old + of, new)

    def all(self) -> dict[str, Stated]:
        for key, entry in self.moved.items():
            if key in self.kept and not same(self.kept[key].value, entry.value):
                given = f"{show(self.kept[key].value)}, and {show(entry.value)} under its former name"
                raise ConfigError(f"{key} is set twice: {given}")
        return {**self.defaults, **self.kept, **self.moved}


def _key(slot: str, name: str, former: Former, written: str) -> str:
    """A key of a `Former` in the slot that states it."""
    prefix = _INNER.get(slot, slot)
    if "." not in written:
        return f"{prefix}.{written}"
    head, _, named = slot.rpartition(".")
    if prefix == slot and named and not written.startswith("credit.add."):
        homes = [f"{head}.{name}", *([] if former.now is None else [f"{head}.{show(former.now)}"])]
        for home in [*homes, *(["credit"] if head == "credit.add" else [])]:
            if written.startswith(f"{home}."):
                return prefix + written[len(home) :]
    return written


def folder_of(key: str) -> str | None:
    """The folder of the parts that a key may name."""
    if key in _FOLDERS:
        return _FOLDERS[key]
    if key.endswith(".control"):
        return "objectives"
    head, _, name = key.rpartition(".")
    return _FOLDERS.get(f"{head}.") if name else None


def _former(slot: str, value: Any) -> tuple[str, Former] | None:
    """(former name, what it is now), where a key states a former part."""
    if isinstance(value, FormerPart):
        found = table(value.folder).get(value.name)
        return (value.__name__, Former(value.name)) if found is None else (value.name, found)
    if not isinstance(value, str) or (folder := folder_of(slot)) is None:
        return None
    found = table(folder).get(value)
    return None if found is None else (value, found)


def _warn(old: str, new: Sequence[str]) -> None:
    text = f"is now {', '.join(new)}" if new else "has no effect any more"
    warnings.warn(f"{old} {text}", FutureWarning, stacklevel=2)
