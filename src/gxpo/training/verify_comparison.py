"""A step's recorded log-probs beside those recomputed from a version of the weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gxpo.base.errors import GxpoError
from gxpo.forest.forest import Forest
from gxpo.training import checkpoint, config, setup
from gxpo.training.directory import METRICS
from gxpo.training.metrics import read as read_metrics
from gxpo.training.start import parameters_of, restore_shared, start_from

# By dtype of the weights, in nats: a difference below the first is rounding; above the second, more than rounding ever
# makes of equal programs. Between the two, twice the gap that the run itself saw in the step is allowed.
TOLERANCE = {"float64": (1e-6, 1e-3), "float32": (1e-4, 0.1), "bfloat16": (0.1, 1.0)}


@dataclass(frozen=True)
class Place:
    """A recorded token, turns[turn].action[token] of its record (indices from 0).

    recorded, recomputed  log-probs, nats
    """

    step: int
    rollout: str
    turn: int
    token: int
    id: int
    version: int
    recorded: float
    recomputed: float

    def __str__(self) -> str:
        return (
            f"step {self.step}, rollout {self.rollout!r}, turns[{self.turn}].action[{self.token}] (id {self.id}, "
            f"policy version {self.version}): recorded {self.recorded:.4g}, recomputed {self.recomputed:.4g}"
        )


# ---------------------------------------------------------------- weights
class Weights:
    """The learner of a run, or of one of its phases, under any version of its weights that is there: that of a
    checkpoint, or the start's.

    resolved  of the phase, of a run with phases;   number  of the phase, from 1; None: a run without
    notes     what could not be loaded
    """

    def __init__(
        self,
        run: Path,
        resolved: config.Resolved,
        notify: Callable[[str], None] = lambda line: None,
        number: int | None = None,
    ) -> None:
        self.run, self.settings, self.notes = run, resolved.settings, list[str]()
        self.learner: Any = setup.policy_of(resolved, notify).learner
        rows = read_metrics(run / METRICS)
        # A fingerprint counts value heads, which the learner of another phase may not have.
        of_phase = [row for row in rows if number is None or row.get("phase") == number]
        self.fingerprint_by_step = {row["step"]: row.get("weights_fingerprint") for row in of_phase}
        self.gaps = {row["step"]: row.get("sampler_gap") for row in rows}
        self.versions = set(checkpoint.steps(run))
        self._version: int | None = None
        # A phase with `weights: reset` samples its first step with the weights of the start, whatever came before.
        is_reset = resolved.phase is not None and resolved.phase.weights == "reset" and bool(of_phase)
        self._reset_at = min(row["step"] for row in of_phase) - 1 if is_reset else None
        # Version 0: the model as it is loaded, with the parameters of another run where it began with those.
        if 0 not in self.versions:
            try:
                if (start := resolved.settings.init_from) is not None:
                    start_from(self.learner, start)
                self._start = self.learner.snapshot()
                self.versions.add(0)
            except GxpoError as error:
                self.notes.append(f"version 0: {error}")

    @property
    def dtype(self) -> str:
        return self.settings.learner.dtype

    def use(self, version: int) -> str:
        """Load a version; "" or why its weights are not the recorded ones. CheckpointError where it is damaged."""
        recorded_version, version = version, 0 if version == self._reset_at else version
        if version != self._version:
            if version == 0 and 0 not in checkpoint.steps(self.run):
                self.learner.restore(self._start)
            else:
                checkpoint.verify(checkpoint.at_step(self.run, version))
                restore_shared(self.learner, parameters_of(self.run, version))
            self._version = version
        fingerprint = self.fingerprint_by_step.get(version) if version == recorded_version else None
        if fingerprint is None or (number := self.learner.fingerprint()) == fingerprint:
            return ""
        return (
            f"checkpoints/step-{version:06d} has weights of fingerprint {number}, and metrics.jsonl says {fingerprint} "
            f"(weights_fingerprint) for step {version}"
        )

    def logprobs(self, forest: Forest) -> Tensor:
        """[P] float64, of the version in use."""
        return self.learner.outputs(forest, ("logprob",))["logprob"]


# ---------------------------------------------------------------- comparison
@dataclass
class Comparison:
    """Recorded and recomputed log-probs of a step.

    is_compared  [P] bool: recorded, and of a version whose weights are there
    recomputed   [P] nan where it is not compared;   version [P] of the policy
    tolerance    nats
    trouble      why weights of a version are not the recorded ones, by version
    """

    step: int
    forest: Forest
    is_compared: Tensor
    version: Tensor
    recomputed: Tensor
    tolerance: float
    gap_then: float | None
    trouble: dict[int, str]

    @property
    def deviation(self) -> Tensor:
        """[P] |recomputed - recorded|, 0 where it is not compared, infinite where it is no number."""
        difference = (self.recomputed - self.forest.path_behaviour_logprob).abs().nan_to_num(nan=torch.inf)
        return torch.where(self.is_compared, difference, 0.0)

    @property
    def is_different(self) -> Tensor:
        return self.deviation > self.tolerance

    def place(self, entry: int) -> Place:
        forest = self.forest
        s = int(forest.path_step[entry])
        first = int((forest.path_step == s).nonzero()[0])
        return Place(
            self.step,
            forest.id[int(forest.path_trajectory[entry])],
            int(forest.step_turn[s]),
            entry - first,
            int(forest.token[forest.path_token[entry]]),
            int(self.version[entry]),
            float(forest.path_behaviour_logprob[entry]),
            float(self.recomputed[entry]),
        )


def with_sampling(forest: Forest, **settings: Any) -> Forest:
    """The forest as if sampled with other settings."""
    return replace(forest, sampling=[{**s, **settings} for s in forest.sampling])
