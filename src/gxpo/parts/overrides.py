"""Overrides: the keys of a method that the caller has replaced in a composition, and those that remain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gxpo.parts.definition import Definition, SettingValue, same, show, stage_of

# The base's part of each stage; that of weight.NAME, signal.NAME... is the part called NAME.
_BASE = {
    "credit": "relative",
    "rollout": "independent",
    "update": "epochs",
    "objective": "policy_gradient",
    "objective.surrogate": "clip",
    "objective.ratio": "token",
}
_NAMED = ("weight", "signal", "reward")


@dataclass(frozen=True)
class Remains:
    """A method's own keys in a composition.

    intact        those that hold as the method states them
    overridden    those that do not
    replacements  the settings in their place: "credit=mine.py:f [--set]"
    is_replaced   whether a part that the method's formula is about is another, not one of its numbers alone; of the
                  base, which has no keys of its own, the advantage estimator
    """

    intact: tuple[str, ...]
    overridden: tuple[str, ...]
    replacements: tuple[str, ...]
    is_replaced: bool

    @property
    def text(self) -> str:
        """One-line summary of the method's remaining keys; "" if its formula is what is computed."""
        replacements = ", ".join(self.replacements)
        if self.overridden and not self.intact:
            return f"nothing of it is left: {', '.join(self.overridden)} gave way to {replacements}"
        if self.overridden and self.is_replaced:
            return f"{', '.join(self.overridden)} gave way to {replacements}; left of it: {', '.join(self.intact)}"
        if self.is_replaced:
            return f"its advantage gave way to {replacements}; the rest of the base is left"
        return ""


def remains(definition: Definition, keys: Mapping[str, SettingValue]) -> Remains:
    """Compare a method's keys with the keys of a composition."""
    method_keys = definition.keys
    stages = {key: _stage(key) for key in method_keys} or {"credit": "credit"}
    # where the stage has another part, the method's parameters of it count as replaced too
    replaced_stages = {stage for stage in stages.values() if _is_replaced(stage, definition, keys)}
    intact, overridden, replacements = [], [], []
    for key, value in method_keys.items():
        stage, entry = stages[key], keys.get(key)
        if entry is not None and entry.origin.startswith(f"{definition.name}@"):  # a system's own version of it
            intact.append(key)
            continue
        # the origin matters beside the value: a default that happens to be equal is not the method's statement
        if (
            stage not in replaced_stages
            and entry is not None
            and entry.origin != "default"
            and _equal(entry.value, value)
        ):
            intact.append(key)
            continue
        overridden.append(key)
        replacements.append(_replacement(key, stage if stage in replaced_stages or entry is None else key, keys))
    if not method_keys:
        replacements = [_replacement(stage, stage, keys) for stage in replaced_stages]
    has_unset = any(key not in keys for key in overridden)
    return Remains(
        tuple(intact), tuple(overridden), tuple(dict.fromkeys(replacements)), bool(replaced_stages) or has_unset
    )


def _stage(key: str) -> str:
    """The key of the part that a key belongs to; its own where it is added to a stage or belongs to the objective."""
    words = key.split(".")
    if words[0] == "objective":
        return key
    if words[0] in _NAMED:
        return ".".join(words[: 3 if words[0] == "reward" else 2])
    return stage_of(key) or words[0]


def _is_replaced(stage: str, definition: Definition, keys: Mapping[str, SettingValue]) -> bool:
    """Return True if the stage has another part than the method has there."""
    words = stage.split(".")
    # objectives are sums of terms: a further term leaves the method's in place
    if words[0] == "objective" and stage not in _BASE:
        return False
    entry = keys.get(stage)
    default = words[-1] if words[0] in _NAMED else _BASE.get(stage)
    # a system's version of a method replaces the published part by its own, which is no override
    if entry is None or entry.origin.startswith(f"{definition.name}@"):
        return False
    return not _equal(entry.value, definition.keys.get(stage, default))


def _replacement(key: str, stage: str, keys: Mapping[str, SettingValue]) -> str:
    """The setting that a key of the method gave way to."""
    replacement = keys.get(stage)
    if replacement is not None and replacement.origin != "default":
        return f"{stage}={show(replacement.value)} [{replacement.origin}]"
    head = key.split(".")[0]
    origins = [s.origin for k, s in keys.items() if k.split(".")[0] == head and s.origin != "default"]
    return f"{head} [{origins[0]}]" if origins else f"the base's {head}"


def _equal(a: object, b: object) -> bool:
    a, b = (list(x) if isinstance(x, tuple) else x for x in (a, b))  # files have lists alone
    return same(a, b) or show(a) == show(b)
