"""Phases of a run: settings that hold one after the other in one run directory, and when each of them ends.

phases:
  - {method: dpo, steps: 20}
  - {method: grpo, until: success_rate >= 0.8 over 5, reference: previous, objective.kl.coef: 0.05}
  - {repeat: 3, phases: [{method: grpo}, {method: dpo}]}
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from gxpo.base.errors import ConfigError, one_of
from gxpo.parts.definition import SettingValue
from gxpo.parts.options import flatten_keys
from gxpo.parts.settings import RUN_KEYS

MOST = 1000  # phases of a run, repetitions counted
REFERENCES, OPTIMISERS = ("start", "previous"), ("fresh", "keep")
WEIGHTS = ("keep", "reset")
RULES = ("steps", "until", "reference", "optimiser", "weights")  # keys of a phase that are no settings
# Settings that a phase may have of its own; those of the method's parts are beside them.
SETTINGS = ("task", "reward", "learner.optimiser")
SECTIONS = ("tasks", "env", "chat", "sampling", "optim", "scoring")
_UNTIL = re.compile(r"\s*([\w@./-]+)\s*(>=|<=)\s*([-+0-9.eE]+)(?:\s+over\s+([1-9]\d*))?\s*")


@dataclass(frozen=True)
class Until:
    """A condition on a metric: the mean of its last `over` readings in the phase is at least, or at most, `bound`.

    >>> until = Until.parse("success_rate >= 0.8 over 2")
    >>> until.is_met([0.9]), until.is_met([0.5, 0.8]), until.is_met([0.7, 0.9])
    (False, False, True)
    """

    metric: str
    sign: str
    bound: float
    over: int = 1

    @classmethod
    def parse(cls, text: Any) -> Until:
        """From `METRIC >= NUMBER`, or with `<=`, and `over N` behind it; ConfigError otherwise."""
        match = _UNTIL.fullmatch(text) if isinstance(text, str) else None
        try:
            return cls(match[1], match[2], float(match[3]), int(match[4] or 1))  # type: ignore[index]
        except (TypeError, ValueError):
            raise ConfigError(
                f"until is {text!r}: write METRIC >= NUMBER (or <=), and over N for the mean of N readings, as in "
                "success_rate >= 0.8 over 5"
            ) from None

    def is_met(self, readings: Sequence[float]) -> bool:
        """Return True if the condition holds after these readings of the phase."""
        if len(readings) < self.over:
            return False
        mean = sum(readings[-self.over :]) / self.over
        return mean >= self.bound if self.sign == ">=" else mean <= self.bound

    def __str__(self) -> str:
        return f"{self.metric} {self.sign} {self.bound:g}" + (f" over {self.over}" if self.over > 1 else "")


@dataclass(frozen=True)
class Phase:
    """One phase.

    keys       settings over the run's, dotted, with their origin; `method` among them
    steps      steps at most; None: an equal share of what is left of the run when the phase begins
    until      ends it before that
    reference  "start": the model that the run loaded; "previous": the policy as it was when the phase began
    optimiser  "fresh": moments, count and learning-rate schedule begin anew; "keep": they go on
    weights    "keep": the policy of the phase before; "reset": that with which the run began
    """

    keys: Mapping[str, SettingValue] = field(default_factory=dict)
    steps: int | None = None
    until: Until | None = None
    reference: Literal["start", "previous"] = "start"
    optimiser: Literal["fresh", "keep"] = "fresh"
    weights: Literal["keep", "reset"] = "keep"

    def __str__(self) -> str:
        steps = "an equal share of what is left" if self.steps is None else f"{self.steps} steps"
        until = "" if self.until is None else f" or until {self.until}"
        previous = ", reference: previous" if self.reference == "previous" else ""
        reset = ", weights: reset" if self.weights == "reset" else ""
        return f"{steps}{until}{previous}{reset}, optimiser {self.optimiser}"


def expand(value: Any) -> list[Phase]:
    """Parse a value of the key `phases` into phases, in order, with repetitions written out.

    Raises ConfigError that names the entry.
    """
    phases = _expand(value, "phases")
    if len(phases) > MOST:
        raise ConfigError(f"phases: {len(phases)} of them, at most {MOST} are allowed: lower repeat")
    return phases


def _expand(value: Any, parent: str, depth: int = 0) -> list[Phase]:
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(x, Mapping) for x in value):
        raise ConfigError(f"{parent}: write a list of mappings, as [{{method: dpo, steps: 10}}, {{method: grpo}}]")
    phases: list[Phase] = []
    for number, entry in enumerate(value, 1):
        place = f"{parent}[{number}]"
        if "repeat" not in entry and "phases" not in entry:
            phases.append(_phase(entry, place))
            continue
        if set(entry) != {"repeat", "phases"}:
            raise ConfigError(f"{place}: a repetition has repeat and phases, and nothing else")
        times = _positive_int(entry["repeat"], f"{place}.repeat")
        if depth >= 3:
            raise ConfigError(f"{place}: repetitions are nested too deep: write them out")
        inner = _expand(entry["phases"], f"{place}.phases", depth + 1)
        # Counted before they are made: repetitions multiply.
        if len(inner) * times > MOST:
            raise ConfigError(f"{place}: {len(inner) * times} phases, at most {MOST} are allowed: lower repeat")
        phases += inner * times
    return phases


def _phase(entry: Mapping[str, Any], place: str) -> Phase:
    keys = flatten_keys({k: SettingValue(v, place) for k, v in entry.items() if k not in RULES})
    for key in keys:
        if not may_change(key):
            raise ConfigError(f"{place}: {key} holds for the whole run: state it beside phases, not in one of them")
    try:
        until = None if entry.get("until") is None else Until.parse(entry["until"])
    except ConfigError as error:
        raise ConfigError(f"{place}: {error}") from None
    reference, optimiser = entry.get("reference", "start"), entry.get("optimiser", "fresh")
    one_of(f"{place}.reference", reference, REFERENCES)
    one_of(f"{place}.optimiser", optimiser, OPTIMISERS)
    weights = entry.get("weights", "keep")
    one_of(f"{place}.weights", weights, WEIGHTS)
    steps = entry.get("steps")
    return Phase(
        keys,
        None if steps is None else _positive_int(steps, f"{place}.steps"),
        until,
        cast("Literal['start', 'previous']", reference),
        cast("Literal['fresh', 'keep']", optimiser),
        cast("Literal['keep', 'reset']", weights),
    )


def may_change(key: str) -> bool:
    """Return True if a phase may state a key: any of the method's parts, and settings of `SECTIONS` and `SETTINGS`."""
    return key not in RUN_KEYS or key in SETTINGS or key.partition(".")[0] in SECTIONS


def _positive_int(value: Any, key: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{key} is {value!r}: a whole number, 1 or more")
    return value


def shares(phases: Sequence[Phase], steps: int) -> list[int]:
    """Steps of each phase in a run of `steps`, where no `until` and no budget ends one: stated ones, and for the others
    equal shares of what the phases after them leave.

    >>> shares([Phase(steps=4), Phase(), Phase()], 11)
    [4, 3, 4]
    """
    out: list[int] = []
    for number, phase in enumerate(phases):
        out.append(share(phases[number:], steps - sum(out)) if phase.steps is None else phase.steps)
    return out


def share(phases: Sequence[Phase], steps_left: int) -> int:
    """Steps of the first of `phases`, which states none, where `left` steps are left for all of them; at least 1."""
    open_ones = sum(phase.steps is None for phase in phases)
    return max(1, (steps_left - sum(phase.steps or 0 for phase in phases)) // open_ones)
