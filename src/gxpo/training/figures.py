"""Progress figures that fit one line: which metrics, in what format, and the time left."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FORMATS = {  # names as in metrics.jsonl; the first ones are kept where the line is short
    "step": "{:>5.0f}",
    "reward_mean": "{:>7.3f}",
    "eval_accuracy": "{:>8.3f}",
    "zero_signal_groups": "{:>6.0%}",
    "clip_fraction": "{:>6.1%}",
    "approx_kl": "{:>8.1e}",
    "kl": "{:>8.1e}",
    "entropy": "{:>7.3f}",
    "length_mean": "{:>6.1f}",
    "time_step_s": "{:>6.1f}",
    "time_sample_tokens_per_s": "{:>9,.0f}",
    "time_update_tokens_per_s": "{:>9,.0f}",
}
GAP = "  "


@dataclass
class Table:
    """Lines of a table as wide as `width` columns allow."""

    width: int
    columns: list[str] = field(default_factory=list)

    def lines(self, row: Mapping[str, Any]) -> list[str]:
        """Format a row; before it the heading, if it is the first row or has other columns."""
        columns = self.columns if row["step"] == 0 and self.columns else self._fitting(row)
        head = [] if columns == self.columns else [GAP.join(f"{c:>{_width(c)}}" for c in columns)]
        self.columns = columns
        return [*head, GAP.join(_cell(name, row.get(name)) for name in columns)]

    def _fitting(self, row: Mapping[str, Any]) -> list[str]:
        """Choose the columns that fit the width: `kl`, to the reference, in place of `approx_kl` if the row has it."""
        # Both are the divergence to something: the one to the reference is what a user watches.
        left_out = "approx_kl" if row.get("kl") is not None else "kl"
        names: list[str] = []
        room = self.width + len(GAP)
        for name in FORMATS:
            if name == left_out:
                continue
            room -= _width(name) + len(GAP)
            if room < 0:
                break
            names.append(name)
        return names


def _width(name: str) -> int:
    return max(len(name), len(FORMATS[name].format(0.0)))


def _cell(name: str, value: Any) -> str:
    return f"{'' if value is None else format_value(name, value):>{_width(name)}}"


def format_value(name: str, value: float) -> str:
    """Format a figure for display."""
    return FORMATS[name].format(value).strip()


LIVE = ("reward_mean", "zero_signal_groups", "eval_accuracy")


class Latest:
    """The newest figures of a run, and the time that is left by the time that it has taken so far."""

    def __init__(self, run: Any) -> None:
        self.run, self.figures, self.first = run, dict[str, float](), dict[str, float]()
        self._start, self._share_before = time.monotonic(), self.share

    def take(self, row: Mapping[str, Any]) -> None:
        for name in LIVE:
            if row.get(name) is not None:
                self.figures[name] = row[name]
                self.first.setdefault(name, row[name])
        if row["step"] == 0:
            self._start = time.monotonic()  # the evaluation before training says nothing about steps

    @property
    def share(self) -> float:
        """Share of the run that is done: of its steps, or of its budget if that is spent sooner."""
        trainer = self.run.trainer
        return min(1.0, max(self.run.step / trainer.settings.trainer.steps, trainer.budget_share))

    @property
    def time_left(self) -> str:
        """Time left, "" where it is not known yet."""
        seconds, progress = time.monotonic() - self._start, self.share - self._share_before
        return f"{clock(seconds * (1 - self.share) / progress)} left" if progress > 0 and self.share < 1 else ""

    def text(self, width: int | None = None) -> str:
        """One line: the step, the time that is left, and as many figures as fit `width` columns."""
        steps = self.run.trainer.settings.trainer.steps
        line = GAP.join(x for x in (f"step {self.run.step}/{steps}", self.time_left) if x)
        for name in LIVE:
            if name in self.figures:
                longer = f"{line}{GAP}{name} {format_value(name, self.figures[name])}"
                if width is not None and len(longer) > width:
                    break
                line = longer
        return line


def clock(seconds: float) -> str:
    """
    >>> clock(3725.4)
    '1:02:05'
    """
    total = round(seconds)
    return f"{total // 3600}:{total // 60 % 60:02d}:{total % 60:02d}"
