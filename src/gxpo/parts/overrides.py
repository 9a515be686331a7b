"""Overrides: which of a method's keys the caller has replaced in a composition, and what is left of the method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gxpo.parts.definition import Definition, Stated, same, show, stage_of

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

    left      those that hold as the method states them
    lost      those that do not
    why       the settings in their place: "credit=mine.py:f [--set]"
    replaced  whether a part that the method's formula is about is another, not one of its numbers alone; of the base,
              which has no keys of its own, the advantage estimator
    """

    left: tuple[str, ...]
    lost: tuple[str, ...]
    why: tuple[str, ...]
    replaced: bool

    @property
    def text(self) -> str:
        """One-line summary of the method's remaining keys; "" if its formula is what is computed."""
        why = ", ".join(self.why)
        if self.lost and not self.left:
            return f"nothing of it is left: {', '.join(self.lost)} gave way to {why}"
        if self.lost and self.replaced:
            return f"{', '.join(self.lost)} gave way to {why}; left of it: {', '.join(self.left)}"
        if self.replaced:
            return f"its advantage gave way to {why}; the rest of the base is left"
        return ""


def remains(definition: Definition, resolved: Mapping[str, Stated]) -> Remains:
    """Compare a method's keys with `resolved`, the keys of a composition."""
    method_keys = definition.keys
    stages = {key: _stage(key) for key in method_keys} or {"credit": "credit"}
    # where the stage has another part, the method's parameters of it are gone too
    gone = {stage for stage in stages.values() if _replaced(stage, definition, resolved)}
    left, lost, why = [], [], []
    for key, value in method_keys.items():
        stage, now = stages[key], resolved.get(key)
        if now is not None and now.origin.startswith(f"{definition.name}@"):  # a system's own version of it
            left.append(key)
            continue
        # the origin matters beside the value: a default that happens to be equal is not the method's statement
        if stage not in gone and now is not None and now.origin != "default" and _equal(now.value, value):
            left.append(key)
            continue
        lost.append(key)
        why.append(_in_its_place(key, stage if stage in gone or now is None else key, resolved))
    if not method_keys:
        why = [_in_its_place(stage, stage, resolved) for stage in gone]
    dropped = any(key not in resolved for key in lost)
    return Remains(tuple(left), tuple(lost), tuple(dict.fromkeys(why)), bool(gone) or dropped)


def _stage(key: str) -> str:
    """The key of the part that a key belongs to; its own where it is added to a stage or belongs to the objective."""
    words = key.split(".")
    if words[0] == "objective":
        return key
    if words[0] in _NAMED:
        return ".".join(words[: 3 if words[0] == "reward" else 2])
    return stage_of(key) or words[0]


def _replaced(stage: str, definition: Definition, resolved: Mapping[str, Stated]) -> bool:
    """Return True if the stage has another part than the method has there."""
    words = stage.split(".")
    # objectives are sums of terms: a further term leaves the method's in place
    if words[0] == "objective" and stage not in _BASE:
        return False
    now = resolved.get(stage)
    default = words[-1] if words[0] in _NAMED else _BASE.get(stage)
    # a system's version of a method replaces the published part by its own, which is no override
    if now is None or now.origin.startswith(f"{definition.name}@"):
        return False
    return not _equal(now.value, definition.keys.get(stage, default))


def _in_its_place(key: str, stage: str, resolved: Mapping[str, Stated]) -> str:
    """The setting that a key of the method gave way to."""
    replacement = resolved.get(stage)
    if replacement is not None and replacement.origin != "default":
        return f"{stage}={show(replacement.value)} [{replacement.origin}]"
    head = key.split(".")[0]
    others = [s.origin for k, s in resolved.items() if k.split(".")[0] == head and s.origin != "default"]
    return f"{head} [{others[0]}]" if others else f"the base's {head}"


def _equal(a: object, b: object) -> bool:
    a, b = (list(x) if isinstance(x, tuple) else x for x in (a, b))  # files have lists alone
    return same(a, b) or show(a) == show(b)
