"""`Case`: a run's log with the statistics that several checks share, each computed once."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from gxpo.doctor.rollout_answers import CORRECT, STYLE
from gxpo.doctor.rollout_facts import Facts
from gxpo.doctor.runlog import Floats, Rollouts, RunLog
from gxpo.doctor.trend import Trend, trend

__all__ = ["CORRECT", "STYLE", "Case"]
FRESH = 5  # steps that count as the beginning of a run


class Case:
    """A run under diagnosis.

    log   what was read
    """

    def __init__(self, log: RunLog) -> None:
        self.log = log
        self._trends: dict[str, Trend | None] = {}

    # ---------------------------------------------------------------- series
    def has(self, *names: str) -> bool:
        """Whether all of these series have a finite value."""
        return all(name in self.log for name in names)

    def values(self, name: str) -> Floats:
        return self.log.values(name)

    def trend(self, name: str) -> Trend | None:
        """None where the series has fewer than 6 steps."""
        if name not in self._trends:
            self._trends[name] = trend(self.values(name))
        return self._trends[name]

    def rises(self, name: str) -> bool:
        found = self.trend(name)
        return found is not None and found.rises

    def falls(self, name: str) -> bool:
        found = self.trend(name)
        return found is not None and found.falls

    def mean(self, name: str) -> float:
        """Over the run; nan where there is nothing."""
        values = self.values(name)
        return float(values.mean()) if len(values) else float("nan")

    def first(self, name: str) -> float:
        """Mean over the first steps; nan where there is nothing."""
        values = self.values(name)[:FRESH]
        return float(values.mean()) if len(values) else float("nan")

    def last(self, name: str) -> float:
        """Mean over the last fifth of the steps, at least three; nan where there is nothing."""
        values = self.values(name)
        return float(values[-max(3, len(values) // 5) :].mean()) if len(values) else float("nan")

    def all(self, name: str, low: float, high: float) -> bool:
        """Whether the series has values and all lie in [low, high]."""
        values = self.values(name)
        return len(values) > 0 and bool((values >= low).all() and (values <= high).all())

    def constant(self, name: str) -> bool:
        values = self.values(name)
        return len(values) > 1 and float(np.ptp(values)) <= 1e-9 * max(1.0, float(np.abs(values).max()))

    def quote(self, name: str, form: str = ".3g") -> str:
        """Evidence: the series under the trainer's own key, first and last steps; "" where it was not recorded."""
        steps, values, key = self.log.steps(name), self.values(name), self.log.key(name)
        if not len(values):
            return ""
        if len(values) == 1:
            return f"{key} = {values[0]:{form}} at step {steps[0]:.0f}, the only one logged"
        if self.constant(name):
            return f"{key} = {values[0]:{form}} in all {len(values)} logged steps"
        if len(values) <= FRESH:
            at = ", ".join(f"{s:.0f}" for s in steps)
            return f"{key} {', '.join(f'{v:{form}}' for v in values)} at steps {at}"
        if name.startswith("eval/"):
            return f"{key} {values[0]:{form}} at step {steps[0]:.0f}, {values[-1]:{form}} at step {steps[-1]:.0f}"
        begin = f"{self.first(name):{form}} in the first steps"
        if abs(float(values[0]) - self.first(name)) > 0.4 * float(np.ptp(values)):  # it changed at once
            begin = f"{values[0]:{form}} at step {steps[0]:.0f}"
        return f"{key} {begin}, {self.last(name):{form}} in the last (steps {steps[0]:.0f} to {steps[-1]:.0f})"

    def setting(self, name: str) -> Any:
        """A setting of the run's configuration; None where it is unknown."""
        return self.log.config.get(name)

    def number(self, name: str) -> float | None:
        """A setting as a number; None where it is unknown or none."""
        try:
            return float(self.log.config[name])
        except (KeyError, TypeError, ValueError):
            return None

    # ---------------------------------------------------------------- shared judgements
    @cached_property
    def n(self) -> int:
        """Steps with a logged reward, or with anything."""
        sizes = [len(self.values(n)) for n in ("reward", "success", "loss", "grad_norm") if n in self.log]
        return max(sizes, default=max((len(s) for s in self.log.series.values()), default=0))

    @cached_property
    def correctness(self) -> str | None:
        """The series that says how many answers are right: verdicts, else the component that is named so; None where
        only one total reward is known."""
        if self.has("success"):
            return "success"
        names = [n for n in self.log.components() if CORRECT.search(n) and not STYLE.search(n)]
        return f"component/{names[0]}" if names and len(self.log.components()) > 1 else None

    @cached_property
    def held_out(self) -> str | None:
        """The series of evaluations; None where there are fewer than two."""
        for name in ("eval/accuracy", "eval/success", "eval/reward"):
            if len(self.values(name)) >= 2:
                return name
        return None

    @cached_property
    def gains(self) -> bool:
        """Whether reward, verdicts or evaluations rise beyond their noise."""
        return self.rises("reward") or self.rises("success") or self.held_out_gain > 0

    @cached_property
    def held_out_gain(self) -> float:
        """Sign of the change of the evaluations from the first to the best of the last two: 1, -1, or 0 (in the noise,
        or none)."""
        if self.held_out is None:
            return 0.0
        values = self.values(self.held_out)
        change = float(values[-2:].mean() - values[0]) if len(values) > 2 else float(values[-1] - values[0])
        return float(np.sign(change)) if abs(change) > 2 * self.held_out_error else 0.0

    @cached_property
    def held_out_error(self) -> float:
        """Standard error of a difference of two evaluations: from the recorded intervals, else binomial from the number
        of held-out tasks, else from neighbouring evaluations."""
        name = self.held_out
        if name is None:
            return float("inf")
        if self.has("eval/low", "eval/high"):
            half = (self.values("eval/high") - self.values("eval/low")).mean() / 2 / 1.96
            return float(half * np.sqrt(2))
        values = self.values(name)
        tasks = self.held_out_tasks
        if tasks and float(values.min()) >= 0 and float(values.max()) <= 1:
            p = min(max(float(values.mean()), 0.5 / tasks), 1 - 0.5 / tasks)
            return float(np.sqrt(2 * p * (1 - p) / tasks))
        scale = max(float(np.abs(values).max()), 1e-9)
        return max(float(np.sqrt(np.mean(np.diff(values) ** 2))) if len(values) >= 4 else 0.0, 0.05 * scale)

    @cached_property
    def held_out_tasks(self) -> int | None:
        """Held-out tasks of one evaluation: recorded, or counted in the rollouts."""
        if self.has("eval/tasks"):
            return int(self.values("eval/tasks")[-1])
        if (counted := self._denominator) is not None:
            return counted
        r = self.log.rollouts
        if r is None or not r.held_out.any():
            return None
        last = r.held_out & (r.step == r.step[r.held_out].max())
        return len({p for p, use in zip(r.prompt, last.tolist(), strict=True) if use})

    @cached_property
    def _denominator(self) -> int | None:
        """Smallest number of tasks, from 3 to 1,000, of which all held-out accuracies are whole parts, where there are
        three different ones: 0.578125 and 0.59375 are parts of 64."""
        values = self.values(self.held_out) if self.held_out is not None else np.empty(0)
        if len(np.unique(values)) < 3 or values.min() < 0 or values.max() > 1:
            return None
        for n in range(3, 1001):
            if float(np.abs(values * n - np.round(values * n)).max()) < min(2e-3, 2e-4 * n):
                return n if n < 500 else None
        return None

    @cached_property
    def rollouts(self) -> Rollouts | None:
        """Training rollouts; None where there are none."""
        r = self.log.rollouts
        if r is None or r.held_out.all():
            return None
        return r.select(~r.held_out) if r.held_out.any() else r

    @cached_property
    def in_parts(self) -> bool:
        """Whether rows without a score are parts of rollouts that go on in a later step: no score is missed."""
        r = self.rollouts
        if r is None or not self.has("unscored") or float(self.values("unscored").max()) > 0:
            return False
        parts = np.isnan(r.score)
        if r.components:
            parts |= np.all([np.isnan(v) for v in r.components.values()], axis=0)
        return float(parts.mean()) > 0.05

    @cached_property
    def top(self) -> float:
        """The largest reward that the run has seen, of a step's mean or of a rollout."""
        seen = [self.values(n).max() for n in ("reward", "reward_max") if n in self.log]
        if self.rollouts is not None and np.isfinite(self.rollouts.score).any():
            seen.append(np.nanmax(self.rollouts.score))
        return max((float(x) for x in [*seen, *([1.0] if seen and self.binary else [])]), default=float("nan"))

    @cached_property
    def binary(self) -> bool:
        """Whether rewards are 0 or 1, as far as means and deviations tell: a deviation^2 of p (1 - p) at most steps."""
        p, spread = self.values("reward"), self.values("reward_std")
        if len(p) < 5 or len(p) != len(spread) or p.min() < 0 or p.max() > 1 or not (p * (1 - p) > 0.02).any():
            return False
        return float(np.median(np.abs(spread**2 - p * (1 - p)))) < 0.02

    @cached_property
    def covered(self) -> tuple[float, float] | None:
        """(first, last) share of groups with at least one right answer: as recorded, else, for rewards of 0 and 1,
        1 - the share of silent groups x that of all-wrong ones among them, if mixed groups are half right. None where
        neither is known."""
        if self.has("zero_wrong"):
            return 1 - self.first("zero_wrong"), 1 - self.last("zero_wrong")
        if not (self.binary and self.has("zero_signal")):
            return None

        def estimate(reward: float, silent: float) -> float:
            right = (reward - (1 - silent) / 2) / max(silent, 1e-9)
            return 1 - silent * (1 - min(max(right, 0.0), 1.0))

        pairs = [(getattr(self, at)("reward"), getattr(self, at)("zero_signal")) for at in ("first", "last")]
        return estimate(*pairs[0]), estimate(*pairs[1])

    @cached_property
    def finished(self) -> bool:
        """Whether the run has solved its tasks: at its end nearly all groups are at the largest reward seen."""
        if len(self.values("reward")) < 8 or not np.isfinite(self.top):
            return False
        spread = self.top - min(float(self.values("reward").min()), 0.0)
        return spread > 0 and self.last("reward") >= self.top - 0.05 * spread and self.last("reward") > 0

    @cached_property
    def silent(self) -> bool:
        """Whether hardly any group had a signal in any step."""
        if self.has("zero_signal"):
            return self.mean("zero_signal") >= 0.98
        if self.has("advantage_max", "advantage_min"):
            return self.all("advantage_max", 0.0, 0.0) and self.all("advantage_min", 0.0, 0.0)
        return self.has("grad_norm") and self.all("grad_norm", 0.0, 0.0)

    @cached_property
    def silent_at_once(self) -> bool:
        """Whether the very first step had no signal."""
        name = "zero_signal" if self.has("zero_signal") else "grad_norm"
        values = self.values(name)
        return len(values) > 0 and bool(values[0] >= 0.95 if name == "zero_signal" else values[0] == 0)

    @cached_property
    def silent_from_start(self) -> bool:
        if self.has("zero_signal"):
            return self.first("zero_signal") >= 0.95
        return self.has("grad_norm") and self.first("grad_norm") == 0.0

    @cached_property
    def reuse(self) -> float | None:
        """Updates on the same rollouts: as configured, or rows with a loss for each row with a reward (TRL logs rewards
        where it samples)."""
        stated = self.number("epochs")
        rows, fresh = len(self.values("loss")), len(self.values("reward"))
        counted = round(rows / fresh) if fresh and rows >= 2 * fresh and self.log.source == "trl" else None
        return float(counted) if counted is not None and (stated is None or counted > stated) else stated

    @property
    def falls_or_few(self) -> bool:
        """Whether the reward falls, or has too few values to tell its noise."""
        return len(self.values("reward")) < 6 or self.falls("reward")

    @property
    def entropy_first(self) -> float:
        """Entropy of the first steps; 1 where none was logged."""
        return self.first("entropy") if self.has("entropy") else 1.0

    @property
    def group_size(self) -> float | None:
        """Rollouts a prompt: from the configuration, the metrics or the rollouts."""
        stated = self.number("group_size")
        if stated is not None:
            return stated
        if self.has("rollouts", "groups"):
            return float(np.median(self.values("rollouts") / np.maximum(self.values("groups"), 1)))
        return None if self.facts is None else self.facts.group_size

    def top_of(self, name: str) -> float:
        """Largest value of a series; 0 where there is none."""
        return float(self.values(name).max()) if self.has(name) else 0.0

    @cached_property
    def facts(self) -> Facts | None:
        """What the training rollouts show; None where there are none."""
        return None if self.rollouts is None or not len(self.rollouts) else Facts(self.rollouts, self.log.rollouts)
