"""What a run shows while it goes on; SIGINT (Ctrl-C) and SIGTERM save and end it, a second Ctrl-C ends it at once."""

from __future__ import annotations

import json
import signal
from types import FrameType
from typing import Any

from rich.console import Console

from gxpo import runtime
from gxpo.doctor.live import closing
from gxpo.errors import need
from gxpo.rewards.scoring import LIMIT
from gxpo.trainer.checkup import NOTHING_LEARNED

COLUMNS = (
    ("step", "step", "{:>5.0f}"),
    ("reward", "reward_mean", "{:>7.3f}"),
    ("held-out", "eval_accuracy", "{:>8.3f}"),
    ("silent", "zero_signal_groups", "{:>6.0%}"),
    ("clip", "clip_fraction", "{:>6.1%}"),
    ("kl", "kl", "{:>8.1e}"),
    ("entropy", "entropy", "{:>7.3f}"),
    ("length", "length_mean", "{:>6.1f}"),
    ("sample tok/s", "time_sample_tokens_per_s", "{:>12,.0f}"),
    ("update tok/s", "time_update_tokens_per_s", "{:>12,.0f}"),
)


class Progress:
    """A `watch` for `gxpo.train`: a line every few steps and at every evaluation."""

    def __init__(self, *, quiet: bool = False, every: int = 5) -> None:
        quiet = quiet or runtime.environment("RANK", 0) > 0
        self.console = Console(stderr=quiet, highlight=False, soft_wrap=True)
        self.quiet, self.every, self._headed = quiet, every, False
        self.signal: int | None = None  # the first that asked the run to end
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Progress:
        _no_progress_bars()
        self._previous = {n: signal.signal(n, self._interrupt) for n in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            # torchrun passes on a signal that its processes may have been sent already, so the second may be the first
            if number == signal.SIGINT and runtime.environment("WORLD_SIZE", 1) == 1:
                raise KeyboardInterrupt
            return
        self.signal = number
        again = "; once more to stop at once" if number == signal.SIGINT else ""
        self.console.print(f"[yellow]stopping after this step{again}[/yellow]")

    def say(self, line: str) -> None:
        """A line before the first step."""
        if not self.quiet:
            self.console.print(line, style="dim")

    def __call__(self, row: dict[str, Any]) -> bool:
        shown = row["step"] % self.every == 0 or row["step"] == 1 or "eval_accuracy" in row
        if shown and not self.quiet:
            if not self._headed:
                widths = [max(len(title), len(form.format(0.0))) for title, _, form in COLUMNS]
                self.console.print(
                    "  ".join(f"{c[0]:>{w}}" for c, w in zip(COLUMNS, widths, strict=True)), style="bold"
                )
                self._headed = True
            cells = []
            for title, key, form in COLUMNS:
                width = max(len(title), len(form.format(0.0)))
                value = row.get(key, row.get("approx_kl") if key == "kl" else None)  # no reference: the step's own
                cells.append(f"{'' if value is None else form.format(value):>{width}}")
            self.console.print("  ".join(cells))
        return self.signal is not None

    def close(self, run: Any, *, as_json: bool = False) -> None:
        """The closing lines: before and after, where everything is, how to go on."""
        lines = run.evaluations
        first, last = (lines[0], lines[-1]) if lines else ({}, {})
        gain = run.gain
        counts = {k: v for k, v in run.trainer.rewards.counts.items() if v}
        over_limit = counts.pop(LIMIT, 0)
        diagnosis = run.diagnosis
        summary = {
            "out": str(run.path),
            "steps": run.trainer.step_number,
            "before": first.get("eval_accuracy"),
            "after": last.get("eval_accuracy"),
            "after_low": last.get("eval_low"),
            "after_high": last.get("eval_high"),
            "gain": gain and gain[0],
            "gain_low": gain and gain[1],
            "gain_high": gain and gain[2],
            "unscored": counts,
            "over_limit": over_limit,
            "problem": run.problem,
            "verdict": diagnosis and diagnosis.verdict,
            "findings": [id for f in diagnosis.findings for id in f.ids] if diagnosis else [],
        }
        if as_json:
            print(json.dumps(summary))
            return
        if lines:
            self.console.print(
                f"held-out accuracy {first['eval_accuracy']:.3f} -> {last['eval_accuracy']:.3f} "
                f"(95% {last['eval_low']:.3f} to {last['eval_high']:.3f}, {last['eval_tasks']:.0f} tasks)"
            )
        if gain:
            self.console.print(f"task by task {gain[0]:+.3f} (95% {gain[1]:+.3f} to {gain[2]:+.3f}, paired)")
        if counts:
            self.console.print(f"could not be scored: {counts}", style="yellow")
            for kind, message in run.trainer.rewards.messages.items():
                self.console.print(f"  first {kind}: {message}", style="yellow", markup=False)
        for kind, message in run.trainer.lost.items():
            self.console.print(f"first {kind}: {message}", style="yellow", markup=False)
        if over_limit:
            self.console.print(f"counted as wrong, too large to be checked: {over_limit}", style="yellow")
        first = set(diagnosis.findings[0].ids) if diagnosis and diagnosis.sick else set()
        if run.problem and (run.tally.all_unscored or not first & NOTHING_LEARNED):
            self.console.print(run.problem, style="bold red", markup=False)
        self.console.print(f"run: {run.path}  report: {run.path}/report.html")
        if not run.trainer.finished:
            self.console.print(f"stopped at step {run.trainer.step_number}; go on with: gxpo resume {run.path}")
        if diagnosis:
            for line in closing(diagnosis, str(run.path)):
                self.console.print(line, style="bold" if diagnosis.sick else None, markup=False)


def _no_progress_bars() -> None:
    """Loading a tiny model needs no bars; transformers has no setting for it but this."""
    need("transformers.utils.logging", "train").disable_progress_bar()
