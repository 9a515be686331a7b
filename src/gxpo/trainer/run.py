"""`gxpo.train(...)` and `gxpo.trainer.resume(...)`: a whole run, and what it leaves."""

from __future__ import annotations

import inspect
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gxpo import config, runtime
from gxpo.callbacks import Callback
from gxpo.definition import Stated
from gxpo.doctor.finding import Diagnosis
from gxpo.errors import ConfigError
from gxpo.pipeline import Method
from gxpo.trainer import export
from gxpo.trainer.checkup import verdict_of
from gxpo.trainer.directory import EVALUATIONS, METRICS, free, run_of
from gxpo.trainer.display import Display, display, no_loading_bars
from gxpo.trainer.interrupts import interactive, of_python
from gxpo.trainer.loop import Trainer
from gxpo.trainer.metrics import MetricsFile
from gxpo.trainer.report import write_report
from gxpo.trainer.start import checkpoint_of, inherited, verified
from gxpo.trainer.statistics import paired_interval
from gxpo.trainer.step import Tally

Watch = Callable[[dict[str, Any]], "bool | None"]
_BEST = ("metric", "value", "step")


@dataclass(frozen=True)
class Run:
    """A finished (or stopped) run: its directory, and the trainer that made it."""

    path: Path
    trainer: Trainer

    @property
    def config(self) -> dict[str, Any]:
        """Every key of config.yaml with its value."""
        return {key: stated.value for key, stated in self.trainer.resolved.keys.items()}

    @property
    def step(self) -> int:
        """Number of the newest step."""
        return self.trainer.step_number

    @property
    def resumed(self) -> bool:
        """Whether it went on from a checkpoint in this process."""
        return self.trainer.resumed

    @property
    def stopped(self) -> str | None:
        """Why it ended before its last step (or is about to); None where it did not."""
        return self.trainer.stopped

    def stop(self, reason: str) -> None:
        """For callbacks: end the run after this step; it is saved, and `gxpo resume` goes on."""
        self.trainer.stopped = self.trainer.stopped or reason

    @property
    def best(self) -> dict[str, Any] | None:
        """{"metric", "value", "step"} of the checkpoint that `trainer.keep_best` keeps; None without one."""
        best = self.trainer.best
        return None if best is None or best.value is None else {k: best.state_dict()[k] for k in _BEST}

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl."""
        return MetricsFile(self.path / METRICS).read()

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """Held-out figures; the first is before any step."""
        return MetricsFile(self.path / EVALUATIONS).read()

    @property
    def gain(self) -> tuple[float, float, float] | None:
        """Mean change of a held-out task's verdict from the first evaluation to the last, and its 95% interval over
        tasks (Student's, paired: every task is its own control). None before a second evaluation."""
        files = sorted((self.path / "evaluations").glob("step-*.json"))
        if len(files) < 2:
            return None
        before, after = (json.loads(f.read_text()) for f in (files[0], files[-1]))
        tasks = sorted(before.keys() & after.keys())
        first, last = [before[t] for t in tasks], [after[t] for t in tasks]
        return (sum(last) / len(tasks) - sum(first) / len(tasks), *paired_interval(first, last))

    @property
    def tally(self) -> Tally:
        """What was unscored, without signal or without an update in all of its steps."""
        return Tally.of(self.metrics)

    @property
    def problem(self) -> str | None:
        """Why nothing can have been learned in it, in a line: no rollout was scored, or no group had a signal. None
        where something could."""
        return self.tally.problem(self.trainer.method, self.trainer.failures)

    @cached_property
    def diagnosis(self) -> Diagnosis | None:
        """What `gxpo doctor` finds in it; None where that failed, which is warned of."""
        return verdict_of(self.path)

    @property
    def samples(self) -> list[dict[str, Any]]:
        """Records (`gxpo schema`) of the last step whose rollouts were written."""
        files = sorted((self.path / "rollouts").glob("step-*.jsonl"))
        return [json.loads(line) for line in files[-1].read_text().splitlines()] if files else []

    def save_pretrained(self, directory: str | Path, *, adapter: bool = False) -> Path:
        """The policy as it is now, as `gxpo export` writes it: merged, or, `adapter`, the LoRA adapter as peft has it.

        The trainer's own model is not touched. `directory` must not exist or be empty.
        """
        parameters = {name: x.cpu() for name, x in self.trainer.learner.snapshot().items()}
        step = self.trainer.step_number
        return export.write(self.trainer.resolved, parameters, self.path, step, directory, adapter=adapter)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, step {self.trainer.step_number})"


def train(
    model: str | None = None,
    task: str | None = None,
    method: str | Method | None = None,
    steps: int | None = None,
    reward: Callable[..., Any] | str | Mapping[str, float] | None = None,
    *,
    seed: int | None = None,
    out: str | Path | None = None,
    set: Mapping[str, Any] | None = None,
    from_run: str | Path | None = None,
    resolved: config.Resolved | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool | str | None = None,
    watch: Watch | None = None,
    notify: Callable[[str], None] | None = None,
) -> Run:
    """Train a policy.

    model   "tiny", a local directory or a hub id
    task    "arithmetic", "countdown", "reasoning_gym:NAME", or a .jsonl file of prompts and answers
    method  a composition such as "dr_grpo+gspo", or what `gxpo.method` made
    steps   steps of the loop; each draws `tasks.per_step` tasks
    reward  a function of one rollout that declares what it wants among prompt, completion, answer, task, info, tokens,
            finish and gives a number (or named numbers); or `file.py:function`; or {name: weight}
    set     any other key, e.g. {"optim.lr": 1e-4, "rollout.group_size": 16}
    from_run  start from the newest parameters of this run (or of RUN/checkpoints/step-N) with a fresh optimiser; keys
            that are not given are the run's. The default of `out` is then RUN-2, RUN-3...
    callbacks  loggers and others, beside those of the key trainer.callbacks (docs/logging.md)
    progress  what is shown on standard error or in the notebook's cell. None: a bar in a terminal or notebook, else a
            line now and then; True: the bar; False: the lines; "none": nothing
    watch   called with every line of metrics; returning True ends the run early
    notify  called with a line of text where something takes long before the first step; None: shown with the progress

    Ctrl-C (in a notebook, the stop button) ends the run after the step and saves it. A notebook gets the `Run` then,
    whose `stopped` says so; a script a KeyboardInterrupt, so that it ends. A second one stops at once.

    Raises GxpoError subclasses whose message says what to change.
    """
    if resolved is None:
        values = {"model": model, "task": task, "trainer.steps": steps, "seed": seed}
        given = {k: Stated(v, "argument") for k, v in values.items() if v is not None}
        if isinstance(method, str):
            given["method"] = Stated(method, "argument")
        if reward is not None:
            key = "scoring.weights" if isinstance(reward, Mapping) else "reward"
            given[key] = Stated(_name(reward) if callable(reward) else reward, "argument")
        given |= {k: Stated(v, "argument") for k, v in (set or {}).items()}
        composed = method if isinstance(method, Method) else None
        if from_run is not None:
            given = continued(from_run, given, composed=composed is not None)
        resolved = config.resolve(given, composed=composed)
    elif from_run is not None:
        raise ConfigError("from_run: what is resolved already has its init_from; see gxpo.trainer.run.continued")
    if out is None and resolved.settings.out is None and resolved.settings.init_from is not None:
        out = free(run_of(Path(resolved.settings.init_from)))
    shown = display(progress)
    function = reward if callable(reward) else None
    with no_loading_bars():
        trainer = Trainer(resolved, out=out, reward=function, notify=notify or shown.say, callbacks=[*callbacks, shown])
    (notify or shown.say)(f"run directory: {trainer.out}")
    return _go(trainer, watch, shown)


def continued(from_run: str | Path, given: Mapping[str, Stated], *, composed: bool = False) -> dict[str, Stated]:
    """The keys of a run that starts from the newest checkpoint of `from_run` (or from that checkpoint): what is
    `given` over the other run's, and which checkpoint."""
    path = Path(from_run)
    keys = inherited(run_of(path), given, composed=composed)
    if "reward" not in given and str(getattr(keys.get("reward"), "value", None)).startswith("python:"):
        raise ConfigError(
            f"the reward of {path} was a Python function ({keys['reward'].value}): give it again, or put it into a "
            "file (reward=my_rewards.py:FUNCTION)"
        )
    return keys | {"init_from": Stated(str(checkpoint_of(path)), "from")}


def resume(
    out: str | Path,
    *,
    steps: int | None = None,
    allow_changed_data: bool = False,
    callbacks: Sequence[Callback] = (),
    progress: bool | str | None = None,
    watch: Watch | None = None,
    reward: Callable[..., Any] | None = None,
) -> Run:
    """Go on with a stopped run, to the bit as if it had never stopped; `steps` may extend it.

    Refused where config.yaml, or a file of data or code that it names, is not what the checkpoint was made with; files
    may differ where `allow_changed_data` says so. Nothing that config.yaml names is loaded before that is known.
    """
    out = Path(out)
    keys, text = verified(out, allow_changed_data=allow_changed_data)
    resolved = config.resolve(keys)
    extended = steps is not None and steps != resolved.settings.trainer.steps
    if extended:
        if resolved.settings.optim.schedule != "constant":
            raise ConfigError(
                f"trainer.steps can't change under optim.schedule={resolved.settings.optim.schedule}: the "
                "learning rate depends on it; start another run"
            )
        resolved = config.resolve(keys | {"trainer.steps": Stated(steps, "resume")})
    shown = display(progress)
    with no_loading_bars():
        trainer = Trainer(resolved, out=out, resume=True, reward=reward, callbacks=[*callbacks, shown])
    try:
        trainer.resume(text, allow_changed_data=allow_changed_data)
        if extended:
            if trainer.early is not None:
                trainer.early.again()
            trainer.reconfigure(resolved.to_yaml())
    except BaseException:
        trainer.close()
        raise
    return _go(trainer, watch, shown)


def _go(trainer: Trainer, watch: Watch | None, shown: Display) -> Run:
    def watched(row: dict[str, Any]) -> bool:
        return bool(watch is not None and watch(row)) or interrupts(row)

    with of_python(shown.say) as interrupts:
        try:
            trainer.train(watched)
        finally:
            trainer.close()
        run = Run(trainer.out, trainer)
        if interrupts.signal is not None:
            trainer.stopped = "interrupted"
        if runtime.rank() == 0:
            write_report(trainer.out, run.diagnosis)
    if interrupts.signal is not None:
        shown.say(f"interrupted at step {run.step}, which is saved: gxpo.resume({str(run.path)!r}) goes on")
        if not interactive():
            raise KeyboardInterrupt
    if not trainer.warned and (problem := run.problem):
        warnings.warn(problem, stacklevel=3)
    return run


def _name(function: Callable[..., Any]) -> str:
    """`file.py:name` where a new process can find the function again."""
    source = inspect.getsourcefile(function) if inspect.isfunction(function) else None
    if source is None or "<" in source or "<" in function.__qualname__ or "." in function.__qualname__:
        return f"python:{getattr(function, '__name__', 'function')}"
    return f"{source}:{function.__name__}"
