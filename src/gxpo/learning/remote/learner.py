"""Learner over a remote training engine: the objective is computed here, weights and gradient stay there."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gxpo.base.errors import CheckpointError, ConfigError, ModelError
from gxpo.forest.forest import Forest
from gxpo.learning.base import default_outputs, gradient_of
from gxpo.learning.optimiser import Schedule
from gxpo.learning.remote.rows import Rows
from gxpo.parts.protocols import LossFunction, Output, StepInfo, TrainEngine

OUTPUTS = ("logprob", "entropy")  # of a training engine


class RemoteLearner:
    """Steps on L(x) with a training engine (`gxpo.parts.protocols.TrainEngine`): the same gradient as in one process.

    dL/dw = sum_p (dL/dx_p) dx_p/dw: the outputs x of the whole optimiser step come from the engine's `forward`, their
    slopes dL/dx from autograd here in float64, and `pull` back-propagates the sum of slope times output. The engine
    knows nothing of groups, trees or the objective; 16 bytes a token cross.

    lr, schedule, max_grad_norm  as of `gxpo.learning.optimiser.Optimiser`; decay and moments are the engine's
    tokens_per_microbatch        tokens of the rows of one `forward` or `pull`
    """

    def __init__(
        self,
        engine: TrainEngine,
        *,
        lr: float,
        schedule: Schedule | None = None,
        max_grad_norm: float | None = 1.0,
        tokens_per_microbatch: int = 8192,
    ) -> None:
        self.engine, self.tokens_per_microbatch = engine, tokens_per_microbatch
        self.optimiser = Steps(lr, schedule or Schedule())
        self.max_grad_norm = max_grad_norm
        self.policies = {"main": "trained"}
        self.gives = tuple(name for name in OUTPUTS if name in engine.abilities)

    # ------------------------------------------------------------ outputs
    def outputs(
        self,
        forest: Forest,
        names: Sequence[str] = ("logprob",),
        *,
        policy: str = "current",
        constants: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Detached float64 [P] outputs ("logprob", "entropy") of the "current" or the "reference" policy."""
        self._can_read(names, constants)
        if policy == "reference" and "reference" not in self.engine.abilities:
            raise ModelError("the training engine keeps no reference policy: leave out what compares with one")
        everything = torch.arange(forest.n_entries)
        if not forest.n_entries:
            return {name: torch.zeros(0, dtype=torch.float64) for name in names}
        return self._forward(Rows.of(forest, everything), names, policy)

    def _can_read(self, names: Sequence[str], constants: Mapping[str, Tensor] | None) -> None:
        """Raise ModelError for outputs that the engine does not compute."""
        for name in names:
            if name not in self.gives:
                has = ", ".join(self.gives)
                raise ModelError(f"a remote training engine has no output {name!r}; this one has {has}")
        if constants:
            raise ModelError(f"a remote training engine has no outputs computed with {', '.join(constants)}")

    def _forward(self, rows: Rows, names: Sequence[str], policy: str) -> dict[str, Tensor]:
        """[E] outputs of the rows' entries."""
        readings: dict[str, list[Tensor]] = {name: [] for name in names}
        for chunk in rows.chunks(self.tokens_per_microbatch):
            chunk_rows = [rows.rows[i] for i in chunk]
            out = self.engine.forward(chunk_rows, tuple(names), policy)
            for name in names:
                if [x.numel() for x in out[name]] != [row.read.numel() for row in chunk_rows]:
                    raise ModelError(f"the training engine returned {name} for another number of tokens than requested")
                readings[name] += out[name]
        return {name: rows.gather(parts) for name, parts in readings.items()}

    # ------------------------------------------------------------ steps
    def step(
        self,
        forest: Forest,
        loss: LossFunction,
        *,
        names: Sequence[str] = ("logprob",),
        couples: str = "token",
        active: Tensor | None = None,
        constants: Mapping[str, Tensor] | None = None,
    ) -> StepInfo:
        """One optimiser step on L(x). Nothing changes if no token is active, or if the gradient is not finite."""
        info = self.accumulate(forest, loss, names=names, active=active, constants=constants)
        if info.empty:
            return info
        norm = self.engine.step(self.optimiser.current_lr, self.max_grad_norm)
        if not math.isfinite(norm):
            return replace(info, grad_norm=norm, nonfinite="the training engine's gradient")
        self.optimiser.steps += 1
        return replace(info, grad_norm=norm)

    def accumulate(
        self,
        forest: Forest,
        loss: LossFunction,
        *,
        names: Sequence[str] = ("logprob",),
        active: Tensor | None = None,
        constants: Mapping[str, Tensor] | None = None,
    ) -> StepInfo:
        """Accumulate the gradient of L in the engine, without a step (`engine.discard` drops it)."""
        self._can_read(names, constants)
        if active is None:
            active = torch.ones(forest.n_entries, dtype=torch.bool)
        if active.shape != (forest.n_entries,) or active.dtype != torch.bool:
            raise ValueError(f"active must be bool [{forest.n_entries}], not {active.dtype} {tuple(active.shape)}")
        entries = active.nonzero().squeeze(1)
        if not entries.numel():
            return StepInfo(empty=True)
        # x of the whole optimiser step first: L may couple tokens of different rows
        rows = Rows.of(forest, entries)
        x = default_outputs(forest, names)
        for name, value in self._forward(rows, names, "current").items():
            x[name] = x[name].index_copy(0, entries, value)
        slope = gradient_of(loss, x)
        # then the slopes row by row; an error in between must leave no part of a gradient in the engine
        row_slopes = {name: rows.scatter(g[entries]) for name, g in slope.items() if bool(g[entries].any())}
        pull_count = 0
        # what an earlier call may have left there
        self.engine.discard()
        try:
            for chunk in rows.chunks(self.tokens_per_microbatch) if row_slopes else ():
                self.engine.pull(
                    [rows.rows[i] for i in chunk], {name: [part[i] for i in chunk] for name, part in row_slopes.items()}
                )
                pull_count += 1
        except BaseException:
            self.engine.discard()
            raise
        with torch.no_grad():
            value = float(loss(x))
        return StepInfo(
            empty=False,
            loss=value,
            tokens_forward=rows.tokens,
            tokens_flat=rows.tokens,
            microbatches=pull_count,
            outputs={name: v.masked_fill(~active, torch.nan) for name, v in x.items()},
        )

    # ------------------------------------------------------------ unsupported: weights in this process
    def _needs_local_weights(self, subject: str) -> ConfigError:
        return ConfigError(f"{subject} needs the weights in this process: use cluster.backend=local or fsdp")

    def gradient(self, *_: Any, **__: Any) -> dict[str, Tensor]:
        raise self._needs_local_weights("an update that asks for gradients")

    def snapshot(self) -> dict[str, Tensor]:
        raise self._needs_local_weights("an update that copies and restores the parameters")

    def restore(self, snapshot: Mapping[str, Tensor]) -> None:
        raise self._needs_local_weights("an update that copies and restores the parameters")

    def hidden(self, forest: Forest, layer: int = -1) -> Tensor:
        raise self._needs_local_weights("a part that reads hidden states")

    def logits(self, states: Tensor) -> Tensor:
        raise self._needs_local_weights("a part that reads logits")

    def second_learner(self, *, lr: float) -> RemoteLearner:
        raise self._needs_local_weights("a part that trains a second model")

    def follow(self, policy: Any, rate: float) -> None:
        raise self._needs_local_weights("a model that follows the policy")

    # ------------------------------------------------------------ state
    def publish(self) -> None:
        """Nothing: samplers of a training engine fetch the version that they need."""

    def tensors(self) -> dict[str, Tensor]:
        """Empty: `save` writes the engine's own files."""
        return {}

    def meta(self) -> dict[str, Any]:
        """State of a checkpoint besides the engine's files, as JSON."""
        return {"steps": self.optimiser.steps}

    def checksum(self) -> dict[str, int]:
        """Checksum of the trained parameters, for the step's line."""
        return {"weights_fingerprint": self.engine.fingerprint()}

    def save(self, path: Path) -> None:
        """Write the engine's files below `path`."""
        self.engine.save(path)

    def load(self, path: Path, meta: Mapping[str, Any]) -> None:
        """Load the files of `save` and the state of `meta`."""
        steps = meta.get("steps")
        if not isinstance(steps, int) or steps < 0:
            raise CheckpointError(f"the learner's part of the checkpoint has steps {steps!r}; it must be a number >= 0")
        self.engine.load(path)
        self.optimiser.steps = steps


class Steps:
    """Stand-in for a remote optimiser: the learning rate's schedule and the number of steps taken."""

    copies = False
    parameter_by_name: Mapping[str, Tensor] = {}

    def __init__(self, lr: float, schedule: Schedule) -> None:
        self.lr, self.schedule, self.steps = lr, schedule, 0

    @property
    def current_lr(self) -> float:
        """Learning rate of the next step."""
        return self.lr * self.schedule(self.steps)


def unsupported(method: Any, abilities: frozenset[str], update: Any = None) -> str | None:
    """Reason why an engine with these abilities can't train a method; None if it can.

    method  a `gxpo.methods.method.Method`
    """
    needs, outputs = set(method.needs), [Output(name) for name in method.outputs]
    if method.value_heads:
        return "it trains a value head"
    if unknown := [o for o in outputs if o not in OUTPUTS]:
        return f"it reads the output {str(unknown[0])!r}"
    if lacking := [o for o in outputs if o not in abilities and o != "entropy"]:
        return f"it reads the output {str(lacking[0])!r}"
    if "entropy" in set(map(str, outputs)) | needs and "entropy" not in abilities:
        return "it reads entropies"
    if "hidden" in needs:
        return "it reads hidden states"
    if "reference_logprob" in needs and "reference" not in abilities:
        return "it compares with a reference policy"
    if len(getattr(method.rollout, "policies", None) or ()) > 1:
        return "it trains several policies"
    if getattr(method.update, "sets_parameters", False):
        return f"its update ({type(method.update).__name__}) reads and sets parameters"
    return None
