"""Schedules of numbers over the steps of a run: linear, cosine, exponential, dip; each a pure function of the step.

    reward.add.length.coef: {schedule: linear, from: 0, to: 0.5, over: 200}

stands in the place of a number of a method's part. `Scheduled` is such a number of one part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from gxpo.base.errors import ConfigError, did_you_mean, one_of

WORDS = ("schedule", "from", "to", "over", "every", "turn")


def exponential(start: float, to: float, progress: float) -> float:
    """Equal factors; neither end may be 0, nor may they differ in sign."""
    return start * (to / start) ** progress


def cosine(start: float, to: float, progress: float) -> float:
    """Slow at both ends."""
    return linear(start, to, (1 - math.cos(math.pi * progress)) / 2)


def linear(start: float, to: float, progress: float) -> float:
    """Equal differences."""
    return start + (to - start) * progress


def dip(start: float, to: float, progress: float, turn: float = 0.3) -> float:
    """From the middle of the two ends down to the first in the share `turn` of the steps, then up to the second."""
    return linear(start, to, (1 - progress / turn) / 2 if progress <= turn else (progress - turn) / (1 - turn))


SHAPES: Mapping[str, Callable[..., float]] = {
    "linear": linear, "cosine": cosine, "exponential": exponential, "geometric": exponential, "dip": dip,
}  # fmt: skip


@dataclass(frozen=True)
class Schedule:
    """A number that is a function of the step: `start` in step 1, that of progress k / over in step 1 + k, then `to`.

    shape  one of SHAPES; "geometric" is "exponential", the word of curricula
    over   steps; None: the run's
    every  steps for which it stays as it is: progress moves in stairs of so many
    turn   of "dip", a share of the steps

    >>> budget = Schedule("geometric", 256.0, 87.808, over=450, every=150)
    >>> [round(budget.at(step, 600), 3) for step in (1, 150, 151, 301, 600)]
    [256.0, 256.0, 179.2, 125.44, 87.808]
    """

    shape: str
    start: float
    to: float
    over: int | None = None
    every: int = 1
    turn: float = 0.3

    def __post_init__(self) -> None:
        one_of("schedule", self.shape, tuple(SHAPES))
        for name, x in (("over", self.over), ("every", self.every)):
            if x is not None and (type(x) is not int or x < 1):
                raise ConfigError(f"{name} is {x!r}: a number of steps, 1 or more")
        # a geometric path between two signs, or from 0, does not exist
        if SHAPES[self.shape] is exponential and self.start * self.to <= 0:
            raise ConfigError(
                f"an exponential schedule goes from {self.start:g} to {self.to:g}: both must be above 0, or below; "
                "take schedule: cosine"
            )
        if not 0 < self.turn < 1:
            raise ConfigError(f"turn is {self.turn!r}: above 0 and below 1")

    @property
    def is_integer(self) -> bool:
        """True if it goes from integer to integer."""
        return isinstance(self.start, int) and isinstance(self.to, int)

    @property
    def largest(self) -> float:
        """The end farther from 0, which asks most of a part that is made with it."""
        return max(self.start, self.to, key=abs)

    def at(self, step: int, total_steps: int | None = None) -> float:
        """Value in a step, counted from 1; ConfigError where its length is neither stated nor known."""
        total = total_steps if self.over is None else self.over
        # steps are rounded down to the last change, so that a value holds for `every` steps
        past = max(step - 1, 0) // self.every * self.every
        if past and not total:
            raise ConfigError("a schedule without `over` lasts as long as the run, and the run's length is not known")
        # in the first step no length is needed
        progress = min(past / total, 1.0) if total else 0.0
        # the ends exactly: interpolation would miss them by a rounding error. The dip does not begin at an end
        if progress in (0.0, 1.0) and self.shape != "dip":
            return self.to if progress else self.start
        options = {"turn": self.turn} if self.shape == "dip" else {}
        return SHAPES[self.shape](self.start, self.to, progress, **options)


def read(value: Mapping[str, Any]) -> Schedule:
    """The schedule that a setting's value states; ConfigError in one line, without the key."""
    for word in value:
        if word not in WORDS:
            raise ConfigError(f"a schedule has no {word!r}{did_you_mean(word, WORDS)}; there is {', '.join(WORDS)}")
    ends: list[Any] = [value.get(name) for name in ("from", "to")]
    # a bool is an int for Python, and no end of a schedule
    if any(isinstance(x, bool) or not isinstance(x, (int, float)) or not math.isfinite(x) for x in ends):
        raise ConfigError("a schedule needs its two ends, `from` and `to`, as finite numbers")
    options: dict[str, Any] = {name: value[name] for name in ("over", "every", "turn") if name in value}
    return Schedule(value["schedule"], *ends, **options)


@dataclass(frozen=True, eq=False)
class Scheduled:
    """A number of a method's part that a schedule moves: the field, or the option, `name` of `part`.

    total_steps  the run's, where the schedule does not say how long it lasts
    """

    key: str
    part: Any
    name: str
    schedule: Schedule
    total_steps: int | None = None

    def at(self, step: int) -> float:
        """Value in a step, from 1; an integer where both ends are."""
        value = self.schedule.at(step, self.total_steps)
        return round(value) if self.schedule.is_integer else value

    def set(self, value: float) -> None:
        """Write the value into the part, whose memory stays."""
        if self.name in {f.name for f in fields(self.part)}:
            object.__setattr__(self.part, self.name, value)
        else:
            self.part.options[self.name] = value

    def check(self, value: float) -> None:
        """Raise the part's own error for a value that it can't have, by making a copy with it."""
        overrides: dict[str, Any] = {self.name: value}
        if self.name not in {f.name for f in fields(self.part)}:
            overrides = {"options": {**self.part.options, **overrides}}
        replace(self.part, **overrides)

    def values(self) -> Mapping[str, Any]:
        """The part's numbers by name."""
        values = {f.name: getattr(self.part, f.name) for f in fields(self.part) if f.init}
        return {**getattr(self.part, "options", {}), **values}
