"""Progress of a run through its phases: the current one, since which step, and when it ends. Also checks of phases."""

from __future__ import annotations

import math
import shutil
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gxpo.base.errors import ConfigError, did_you_mean
from gxpo.parts.definition import show
from gxpo.parts.settings import RUN_KEYS
from gxpo.sampling.rollouts.logged import OF_PHASES
from gxpo.training.config import RunConfig
from gxpo.training.metrics import NAMES, metric
from gxpo.training.phase_plan import Phase, Until, may_change, share


class PhaseTracker:
    """The phases of a run, and its place in them.

    number   of the phase, from 0
    begins   of each phase so far the steps that had been taken when it began
    updates  optimiser steps of the phases before, where their count was not kept
    """

    def __init__(self, resolved: RunConfig) -> None:
        self.steps = resolved.settings.trainer.steps
        self.phases = [one.phase for one in resolved.phases if one.phase is not None]
        self.begins, self.updates = [0], 0
        self.begin_share = 0.0  # share of the budget that was spent when it began
        self.readings: list[float] = []  # of the phase's `until`

    @property
    def number(self) -> int:
        return len(self.begins) - 1

    @property
    def start_step(self) -> int:
        """Steps that had been taken when the phase began."""
        return self.begins[-1]

    @property
    def phase(self) -> Phase:
        """The current phase."""
        return self.phases[self.number]

    @property
    def is_last(self) -> bool:
        return self.number == len(self.phases) - 1

    def add_row(self, row: Mapping[str, Any]) -> None:
        """Add a step's line; warn if the first one of a phase lacks the metric of its `until`."""
        until = self.phase.until
        self.add_reading(row)
        if (
            until is None
            or until.metric in row
            or until.metric.startswith("eval_")
            or row["step"] != self.start_step + 1
        ):
            return
        warnings.warn(f"phase {self.number + 1}: until {until}: its first step has no such figure", stacklevel=3)

    def add_reading(self, figures: Mapping[str, Any]) -> None:
        """Add the reading of `until` from the figures of a step or an evaluation."""
        until = self.phase.until
        value = None if until is None else figures.get(until.metric)
        if until is not None and isinstance(value, (int, float)) and math.isfinite(value):
            self.readings = [*self.readings, float(value)][-until.over :]

    def is_over(self, step: int, budget_share: float) -> bool:
        """Return True if the phase ends after this step. spent: share of the run's budget, 0 without one."""
        # A phase has one step at least: figures of the phase before do not end it.
        if step <= self.start_step:
            return False
        if self.phase.until is not None and self.phase.until.is_met(self.readings):
            return True
        if self.phase.steps is not None:
            return step - self.start_step >= self.phase.steps
        # Phases without steps share what is left of the run, or of its budget.
        ahead = self.phases[self.number :]
        if step - self.start_step >= share(ahead, self.steps - self.start_step):
            return True
        open_ones = sum(phase.steps is None for phase in ahead)
        return budget_share > 0.0 and budget_share - self.begin_share >= (1.0 - self.begin_share) / open_ones

    def enter(self, step: int, budget_share: float, updates: int) -> None:
        """Begin the next phase after this step. updates: optimiser steps so far."""
        self.begins.append(step)
        self.begin_share, self.readings = budget_share, []
        if self.phase.optimiser == "fresh":
            self.updates += updates

    def state_dict(self) -> dict[str, Any]:
        return {
            "begins": list(self.begins),
            "updates": self.updates,
            "spent": self.begin_share,
            "readings": list(self.readings),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.begins, self.updates = list(state["begins"]), state["updates"]
        self.begin_share, self.readings = state["spent"], list(state["readings"])


def collect(run: Path, phases: Sequence[RunConfig], begins: Sequence[int], last_step: int) -> Path:
    """Copy the earlier rollouts that the next phase reads (`rollout.file`) into a folder of its own.

    begins  steps before each phase that has begun; now: the step that ended the last of them
    """
    reader = phases[len(begins)]
    selection = reader.method.rollout.file
    folder = folder_of(run, len(begins))
    # A folder left by a run that was killed while copying.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    ends = [*begins[1:], last_step]
    for number, (first, end) in enumerate(zip(begins, ends, strict=True)):
        is_sampled = getattr(phases[number].method.rollout, "file", None) is None
        # Demonstrations of a file are no rollouts of this run: phases that sampled are read, or the one before.
        if number == len(begins) - 1 if selection == "previous" else is_sampled:
            for step in range(first + 1, end + 1):
                shutil.copy(run / "rollouts" / f"step-{step:06d}.jsonl", folder)
    return folder


def folder_of(run: Path, number: int) -> Path:
    """The folder of earlier rollouts that a phase (from 0) reads."""
    return run / "rollouts" / f"phase-{number + 1}"


# ---------------------------------------------------------------- what can't be had
def check_phases(resolved: RunConfig) -> None:
    """Refuse phases that contradict themselves, and a run that can't change from one to the next."""
    if not resolved.phases:
        return
    s = resolved.settings
    if s.async_.max_staleness:
        raise ConfigError("phases need async.max_staleness=0: what is sampled ahead would be of the phase before")
    if s.cluster.backend not in ("local", "fsdp"):
        raise ConfigError(f"phases can't be had with cluster.backend={s.cluster.backend}: use local or fsdp")
    for number, one in enumerate(resolved.phases, 1):
        # Each with the phase before it, the first one with itself.
        try:
            _check(one, resolved.phases[max(number - 2, 0)])
        except ConfigError as error:
            raise ConfigError(f"phase {number}: {error}") from None


def _check(resolved: RunConfig, previous: RunConfig) -> None:
    """Refuse a phase with settings it can't have. previous: the phase before it, or itself."""
    s, phase = resolved.settings, resolved.phase
    assert phase is not None
    # Settings of the whole run: they were read when it began.
    for key in (k for k in RUN_KEYS if not may_change(k)):
        if resolved.keys[key].value != previous.keys[key].value:
            statement = f"{resolved.keys[key].origin} sets {key}={show(resolved.keys[key].value)}"
            raise ConfigError(f"{statement}, which holds for the whole run: state it beside phases")
    # Optimiser states belong to policies, which can't be added in the middle of a run.
    policies = getattr(resolved.method.rollout, "policies", None)
    if policies != getattr(previous.method.rollout, "policies", None):
        raise ConfigError("its rollout trains other policies than the phase before: they are the run's")
    if s.optim.schedule != "constant" and (phase.steps is None or phase.optimiser == "keep"):
        missing_key = "steps" if phase.steps is None else "optimiser: fresh"
        raise ConfigError(f"optim.schedule={s.optim.schedule} is of one phase: state its {missing_key}")
    # Moments can only be kept for the same parameters under the same optimiser.
    if phase.optimiser == "keep" and (previous.settings.learner, previous.method.value_heads) != (
        s.learner,
        resolved.method.value_heads,
    ):
        raise ConfigError("optimiser: keep, and another optimiser or other value heads: say optimiser: fresh")
    if phase.reference == "previous":
        _check_reference(resolved, policies)
    if phase.weights == "reset" and "previous" in (phase.reference, phase.optimiser.replace("keep", "previous")):
        raise ConfigError("weights: reset goes with optimiser: fresh and reference: start")
    # Rollouts that were not written can't be read by a later phase.
    if (file := getattr(resolved.method.rollout, "file", None)) in OF_PHASES and s.trainer.rollouts_every != 1:
        raise ConfigError(f"rollout.file={file} reads what is written of every step: set trainer.rollouts_every=1")
    if phase.until is not None:
        _check_until(phase.until)


def _check_reference(one: RunConfig, policies: Mapping[str, str] | None) -> None:
    if "reference_logprob" not in one.method.needs:
        raise ConfigError(
            f"reference: previous, and {one.method.name} reads no reference policy: set objective.kl.coef, or leave it "
            "out"
        )
    if len(policies or [0]) > 1:
        raise ConfigError("reference: previous is of one policy, and there are several: leave it out")
    if one.settings.cluster.backend == "fsdp" and one.settings.learner.lora_rank:
        raise ConfigError("reference: previous with adapters needs cluster.backend=local, or learner.lora_rank=0")


def _check_until(until: Until) -> None:
    """Refuse a metric that does not exist, or differs between equal runs."""
    if until.metric.startswith(("time_", "memory_")):
        raise ConfigError(f"until {until}: it differs between equal runs, so a resumed run could go otherwise")
    if metric(until.metric) is None or "NAME" in until.metric:
        hint = did_you_mean(until.metric, NAMES)
        raise ConfigError(f"until {until}: no metric has that name{hint} (docs/metrics.md)")
