"""Output of `gxpo train` on the command line: lines while the run goes on, a summary at its end."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from gxpo.base import runtime
from gxpo.base.terminal import console, say
from gxpo.doctor.live import closing
from gxpo.environments.rewards.scoring import LIMIT
from gxpo.training.callbacks import Callback
from gxpo.training.checkup import NOTHING_LEARNED
from gxpo.training.display import Display, TerminalBar
from gxpo.training.figures import Table
from gxpo.training.interrupts import Interrupts

WIDTH = 120  # columns of the lines where there is no terminal


class Progress(Callback):
    """Progress on the command line: a line every few steps and at every evaluation; in a terminal above a bar.

    A context manager, and a callback of the run; `interrupts` is the `watch`.
    """

    def __init__(self, *, quiet: bool = False, every: int = 5) -> None:
        quiet = quiet or runtime.environment("RANK", 0) > 0
        self.console = console(stderr=quiet, soft_wrap=True)
        self.quiet, self.every = quiet, every
        self.table = Table(self.console.width if self.console.is_terminal else WIDTH)
        self.interrupts = Interrupts(lambda line: self.console.print(line, style="yellow"))
        self._bar = TerminalBar(self.console) if self.console.is_terminal and not quiet else Display()

    @property
    def signal(self) -> int | None:
        """The first signal that asked the run to end; None without."""
        return self.interrupts.signal

    def __enter__(self) -> Progress:
        self.interrupts.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.interrupts.__exit__(*error)

    def say(self, line: str) -> None:
        """Print a line before the first step."""
        if not self.quiet:
            self.console.print(line, style="dim")

    def on_start(self, run: Any) -> None:
        if run.resumed:
            every = run.config["trainer.checkpoint_every"]
            self.say(f"going on from the newest checkpoint, of step {run.step} (trainer.checkpoint_every={every})")
        self._bar.on_start(run)

    def on_step(self, row: Mapping[str, Any], run: Any) -> None:
        is_shown = row["step"] % self.every == 0 or row["step"] == 1 or "eval_accuracy" in row
        if is_shown and not self.quiet:
            *head, line = self.table.lines(row)
            for heading in head:
                self.console.print(heading, style="bold")
            self.console.print(line)
        self._bar.on_step(row, run)

    def on_end(self, run: Any, error: BaseException | None) -> None:
        self._bar.on_end(run, error)

    def close(self, run: Any, *, as_json: bool = False) -> None:
        """Print the closing lines: accuracy before and after, problems, paths, how to go on; as JSON on request."""
        if runtime.rank() != 0:
            return
        held_out = run.evaluations
        first, last = (held_out[0], held_out[-1]) if held_out else ({}, {})
        gain = run.gain
        counts = {k: v for k, v in run.trainer.rewards.counts.items() if v}
        n_over_limit = counts.pop(LIMIT, 0)
        # One summary for both forms; its keys are read by scripts.
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
            "over_limit": n_over_limit,
            "stopped": run.stopped,
            "best": run.best,
            "problem": run.problem,
            "verdict": diagnosis and diagnosis.verdict,
            "findings": [id for f in diagnosis.findings for id in f.ids] if diagnosis else [],
        }
        if as_json:
            say(json.dumps(summary))
            return
        # For people: the gain first, then what could not be scored, then whether anything could be learned.
        if held_out:
            self.console.print(
                f"held-out accuracy {first['eval_accuracy']:.3f} -> {last['eval_accuracy']:.3f} "
                f"(95% {last['eval_low']:.3f} to {last['eval_high']:.3f}, {last['eval_tasks']:.0f} tasks)"
            )
        if gain and math.isfinite(gain[1]):  # of one task there is no interval
            self.console.print(f"task by task {gain[0]:+.3f} (95% {gain[1]:+.3f} to {gain[2]:+.3f}, paired)")
        if counts:
            self.console.print(f"could not be scored: {counts}", style="yellow")
            for kind, message in run.trainer.rewards.messages.items():
                self.console.print(f"  first {kind}: {message}", style="yellow")
        for kind, message in run.trainer.lost_episodes.items():
            self.console.print(f"first {kind}: {message}", style="yellow")
        if n_over_limit:
            self.console.print(f"counted as wrong, too large to be checked: {n_over_limit}", style="yellow")
        # The doctor's first finding may say the same as `problem`, and closer: then it is left to it.
        first = set(diagnosis.findings[0].ids) if diagnosis and diagnosis.sick else set()
        if run.problem and (run.tally.all_unscored or not first & NOTHING_LEARNED):
            self.console.print(run.problem, style="bold red")
        if run.best is not None:
            self.console.print(f"best checkpoint: {run.trainer.best} (gxpo export {run.path} DIR --best)")
        if run.stopped is not None and run.trainer.is_finished:
            self.console.print(f"stopped early: {run.stopped}")
        self.console.print(f"run: {run.path}  report: {run.path}/report.html")
        if not run.trainer.is_finished:
            reason = f" ({run.stopped})" if self.signal is None and run.stopped is not None else ""
            self.console.print(f"stopped at step {run.trainer.step_number}{reason}; go on with: gxpo resume {run.path}")
        if diagnosis:
            for line in closing(diagnosis, str(run.path)):
                self.console.print(line, style="bold" if diagnosis.sick else None)
