"""A run directory as an object: metrics, evaluations, gain, and the trained policy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gxpo.base.errors import ConfigError
from gxpo.doctor.finding import Diagnosis
from gxpo.learning.torch import VALUE_HEAD
from gxpo.training import config, export, run_views
from gxpo.training.checkup import verdict_of
from gxpo.training.directory import EVALUATIONS, METRICS, find
from gxpo.training.metrics import MetricsFile
from gxpo.training.start import parameters_of, read_verified_config
from gxpo.training.statistics import paired_interval
from gxpo.training.step_figures import Tally

_BEST = ("metric", "value", "step")


@dataclass(frozen=True)
class Run:
    """A run in its directory; `Run("runs/mine")` opens one that has ended. `trainer`: the one that made it, if it was
    made here."""

    path: Path
    trainer: Any = None  # a gxpo.Trainer

    def __post_init__(self) -> None:
        path = Path(self.path)
        object.__setattr__(self, "path", path if self.trainer is not None else find(path))

    @property
    def config(self) -> dict[str, Any]:
        """Every key of config.yaml with its value."""
        return {key: setting.value for key, setting in self.resolved.keys.items()}

    @property
    def resumed(self) -> bool:
        """True if it went on from a checkpoint in this process."""
        return self.trainer is not None and self.trainer.resumed

    @property
    def stopped(self) -> str | None:
        """Reason why it ended before its last step (or is about to); None if it did not."""
        return None if self.trainer is None else self.trainer.stopped

    def stop(self, reason: str) -> None:
        """End the run after this step, for callbacks; it is saved, and `gxpo resume` goes on."""
        if self.trainer is not None:
            self.trainer.stopped = self.trainer.stopped or reason

    @property
    def best(self) -> dict[str, Any] | None:
        """{"metric", "value", "step"} of the checkpoint that `trainer.keep_best` keeps; None without one."""
        best = None if self.trainer is None else self.trainer.best
        return None if best is None or best.value is None else {k: best.state_dict()[k] for k in _BEST}

    @property
    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, one a step."""
        return MetricsFile(self.path / METRICS).read()

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        """Held-out figures; the first is before any step."""
        return MetricsFile(self.path / EVALUATIONS).read()

    @property
    def step(self) -> int:
        """Steps that were taken."""
        return self.trainer.step_number if self.trainer is not None else len(self.metrics)

    @property
    def gain(self) -> tuple[float, float, float] | None:
        """Mean change of a held-out task's verdict from the first evaluation to the last, and its 95% interval over
        tasks (Student's, paired: every task is its own control). None before a second evaluation, and where the first
        and the last phase have no held-out task in common."""
        files = sorted((self.path / "evaluations").glob("step-*.json"))
        if len(files) < 2:
            return None
        before, after = (json.loads(f.read_text()) for f in (files[0], files[-1]))
        tasks = sorted(before.keys() & after.keys())
        if not tasks:
            return None
        first, last = [before[t] for t in tasks], [after[t] for t in tasks]
        return (sum(last) / len(tasks) - sum(first) / len(tasks), *paired_interval(first, last))

    @property
    def tally(self) -> Tally:
        """Counts over all of its steps: unscored rollouts, groups without signal, updates."""
        return Tally.of(self.metrics)

    @property
    def problem(self) -> str | None:
        """Reason in a line why nothing can have been learned: no rollout scored, or no group with a signal. None where
        something could."""
        method = self.trainer.method if self.trainer is not None else self.resolved.method
        return self.tally.problem(method, None if self.trainer is None else self.trainer.failures)

    @cached_property
    def diagnosis(self) -> Diagnosis | None:
        """Diagnosis of `gxpo doctor`; None if that failed, with a warning."""
        return verdict_of(self.path)

    @property
    def samples(self) -> list[dict[str, Any]]:
        """Records (`gxpo schema`) of the last step whose rollouts were written."""
        files = sorted((self.path / "rollouts").glob("step-*.jsonl"))
        return [json.loads(line) for line in files[-1].read_text().splitlines()] if files else []

    # ------------------------------------------------------------ the policy
    @cached_property
    def resolved(self) -> config.RunConfig:
        """Its configuration: settings, method, and where each key came from."""
        return self.trainer.resolved if self.trainer is not None else config.resolve(read_verified_config(self.path)[0])

    @property
    def _parameters(self) -> Mapping[str, Any]:
        if self.trainer is None:
            return parameters_of(self.path)
        return {name: x.cpu() for name, x in self.trainer.learner.snapshot().items()}

    @cached_property
    def _trained(self) -> tuple[Any, Any]:
        if len(getattr(self.resolved.method.rollout, "policies", None) or [0]) > 1:
            raise ConfigError(f"{self.path} trained several policies: run.save_pretrained(DIR) writes them all")
        parameters = {k: x for k, x in self._parameters.items() if not k.startswith(VALUE_HEAD)}
        return export.load_trained(self.resolved.settings, parameters)

    @property
    def model(self) -> Any:
        """The trained policy as a model of transformers, LoRA merged, on the CPU; a copy, made on the first use."""
        return self._trained[0]

    @property
    def tokenizer(self) -> Any:
        """The policy's tokenizer, with the chat template that it was trained with."""
        return self._trained[1]

    def save_pretrained(self, directory: str | Path, *, adapter: bool = False) -> Path:
        """The policy as it is now, as `gxpo export` writes it: merged, or, `adapter`, the LoRA adapter as peft has it.

        The trainer's own model is not touched. `directory` must not exist or be empty.
        """
        return export.write(self.resolved, self._parameters, self.path, self.step, directory, adapter=adapter)

    # ------------------------------------------------------------ to look at
    def to_pandas(self, which: str = "metrics") -> Any:
        """A DataFrame of "metrics" (a row a step), "evaluations", or "samples" (a row a rollout that was written)."""
        return run_views.table_of(self.path, which)

    def plot(self, path: str | Path | None = None) -> Any:
        """A matplotlib Figure of its curves, written to `path` (.png, .svg, .pdf) if one is given."""
        return run_views.plot(self.path, str(self), path)

    def _repr_html_(self) -> str:
        return run_views.html(self.path, str(self), self.diagnosis and self.diagnosis.verdict)

    def __str__(self) -> str:
        rows = [r for r in self.evaluations if r.get("eval_accuracy") is not None]
        steps = f"step {self.step} of {self.resolved.settings.trainer.steps}"
        held_out = " -> ".join(f"{r['eval_accuracy']:.3f}" for r in ([rows[0], rows[-1]] if len(rows) > 1 else rows))
        return f"{self.path}: {self.resolved.label}, {steps}{held_out and f', held-out {held_out}'}"

    def __repr__(self) -> str:
        return f"<Run {self}>"
