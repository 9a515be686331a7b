"""Updates and in-process learners: a step's optimiser steps, and one of them on the exact gradient of L(x)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from annotated_types import Ge
from torch import Tensor

from gxpo.base import runtime
from gxpo.base.errors import CheckpointError, GxpoError, ModelError
from gxpo.forest.forest import Forest
from gxpo.forest.grouped import dense
from gxpo.learning.optimiser import Optimiser, local
from gxpo.learning.packing import MicroBatch
from gxpo.learning.parameter_checks import fingerprint
from gxpo.parts.definition import show
from gxpo.parts.functions import place_of
from gxpo.parts.protocols import LossFunction, StepInfo, StepRunner
from gxpo.parts.ranges import Part
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.learning.lora import Adapters


# ---------------------------------------------------------------- updates
class UpdatePart(Part):
    """Base class of updates: a frozen dataclass with `run` and `optimiser_steps` (`gxpo.parts.protocols.Update`).

    sets_parameters  True if it reads gradients, or copies and sets parameters, besides taking steps
    trains           False if it moves no parameter, by design
    """

    slot = "update"
    sets_parameters: ClassVar[bool] = False
    trains: ClassVar[bool] = True


def steps_of(update: Any, groups: int) -> int:
    """Return `optimiser_steps` of an update; raise GxpoError unless it is a positive integer."""
    step_count = update.optimiser_steps(groups)
    if isinstance(step_count, bool) or not isinstance(step_count, int) or step_count < 1:
        raise GxpoError(
            f"update {show(update)}{place_of(update.optimiser_steps)} gave {step_count!r} optimiser steps for {groups} "
            "groups; it has to give a whole number, 1 or more"
        )
    return step_count


def deal(group: Tensor, minibatches: int) -> list[Tensor]:
    """Split rows into `minibatches` parts of whole groups, in group order; fewer parts if there are fewer groups.

    group [R]: dense ids. The numbers of groups of two parts differ by at most one.

    >>> [part.tolist() for part in deal(torch.tensor([0, 0, 1, 1, 2, 2]), 2)]
    [[0, 1, 2, 3], [4, 5]]
    """
    groups = int(group.max()) + 1 if group.numel() else 0
    parts = torch.arange(groups).tensor_split(min(minibatches, max(groups, 1)))
    return [torch.isin(group, part).nonzero().squeeze(1) for part in parts if part.numel()]


@part("epochs", stage="update")
@dataclass(frozen=True)
class Epochs(UpdatePart):
    """`epochs` passes over the step's trajectories, each in `minibatches` optimiser steps; groups in forest order.

    first  None, or an origin ("replay") whose rollouts have minibatches of their own before all others, so that each
           step is a mean over its own kind. There are none where none of them has an advantage. With
           `objective.ratio_over: behaviour` each step takes its importance ratio against the rollout policy. Source:
           PIPO, arXiv 2604.00860 (retrospective step, then base step)
    """

    epochs: Annotated[int, Ge(1)] = 1
    minibatches: Annotated[int, Ge(1)] = 1
    first: str | None = None

    def optimiser_steps(self, groups: int) -> int:
        """Number of optimiser steps in a step of `groups` groups."""
        return self.epochs * min(self.minibatches, groups) * (1 if self.first is None else 2)

    def run(self, forest: Forest, credit: Tensor, weight: Tensor, learner: StepRunner) -> list[StepInfo]:
        parts = self._parts(forest, credit * weight)
        return [learner.step(forest, credit, weight, part) for _ in range(self.epochs) for part in parts]

    def _parts(self, forest: Forest, coefficient: Tensor) -> list[Tensor] | list[None]:
        """Rows of R that each optimiser step trains on; None: all."""
        group_R = forest.ids("group", axis="R")
        is_early_R = torch.tensor([origin == self.first for origin in forest.origin], dtype=torch.bool)
        if not bool(is_early_R.any()):
            parts = deal(group_R, self.minibatches)
            return parts if len(parts) > 1 else [None] * len(parts)
        # early rollouts without any advantage would make steps that move nothing (PIPO skips its retrospective step)
        has_advantage = bool(coefficient[forest.to_path(is_early_R, "R")].any())
        row_sets = [kind.nonzero().squeeze(1) for kind in ([is_early_R] if has_advantage else []) + [~is_early_R]]
        return [rows[part] for rows in row_sets for part in deal(dense(group_R[rows]), self.minibatches)]


@part("none", stage="update")
@dataclass(frozen=True)
class NoUpdate(UpdatePart):
    """No optimiser step: rollouts, rewards and figures of a policy that stays what it is.

    For baselines that do not train, such as a search over prompts (`tasks.prompts`). A step costs its sampling alone,
    and counts as one step of a schedule and of `trainer.max_updates`.
    """

    trains = False

    def optimiser_steps(self, groups: int) -> int:
        """Return 1: schedules go on."""
        return 1

    def run(self, forest: Forest, credit: Tensor, weight: Tensor, learner: StepRunner) -> list[StepInfo]:
        return []


# ---------------------------------------------------------------- learners
class InProcess:
    """Base of learners in this process: a module's parameters in an `Optimiser`, updated in micro-batches.

    A learner gives `outputs`, and for the steps: what a forest's tokens are for its model (`_packing`, which has
    `flat_tokens(entries)`), sets of entries that go through it together (`_microbatches`; each has `entries` and
    `stored`, the number of stored tokens), and the named outputs of one of them, live (`_live`).
    """

    model: Any
    optimiser: Optimiser
    tokens_per_microbatch: int
    lockstep = False  # True if every process must make equally many passes: parameters are sharded over them

    def _packing(self, forest: Forest) -> Any:
        """Arrange the stored tokens of a forest for the model."""
        raise NotImplementedError

    def _microbatches(self, packing: Any, entries: Tensor, cuts: Sequence[Tensor] | None) -> list[Any]:
        """Split action tokens (of P) into micro-batches; `cuts` sets their boundaries."""
        raise NotImplementedError

    def _live(self, batch: Any, names: Sequence[str], *constants: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Outputs [E] of a micro-batch, with gradient; `constants`: nothing, or the `constants` of `step`."""
        raise NotImplementedError

    def _short_memory(self, doing: str) -> AbstractContextManager[None]:
        return runtime.memory_is_short(doing, f"learner.tokens_per_microbatch (now {self.tokens_per_microbatch})")

    # ------------------------------------------------------------ steps
    def step(
        self,
        forest: Forest,
        loss: LossFunction,
        *,
        names: Sequence[str] = ("logprob",),
        couples: str = "token",
        active: Tensor | None = None,
        cuts: Sequence[Tensor] | None = None,
        constants: Mapping[str, Tensor] | None = None,
    ) -> StepInfo:
        """One optimiser step on L(x). Nothing changes if no token is active, or if the gradient is not finite
        (`StepInfo.nonfinite`). Every process has the summed gradient, so all of them decide alike.

        constants  [P, ...] by name that some outputs are computed with, such as a teacher's log-probs
        """
        try:
            with self._short_memory("updating"):
                info = self._accumulate(forest, loss, names, couples, active, cuts, two_pass=None, constants=constants)
                norm = 0.0 if info.empty else self.optimiser.step()
            if info.empty:
                return info
            # the optimiser has left everything as it was; the reason names the parameter for the warning
            if not math.isfinite(norm):
                from gxpo.learning.parameter_checks import first_not_finite

                local_gradients = {name: local(g) for name, g in self.optimiser.gradients().items()}
                culprit = runtime.first_of(first_not_finite(local_gradients) or "") or "the sum of its squares"
                return replace(info, grad_norm=norm, nonfinite=culprit)
            return replace(info, grad_norm=norm, moved_share=self.optimiser.moved_share)
        finally:  # an error must not leave a half-summed gradient for the next step
            self.optimiser.zero()

    def gradient(
        self,
        forest: Forest,
        loss: LossFunction,
        *,
        names: Sequence[str] = ("logprob",),
        couples: str = "token",
        active: Tensor | None = None,
        cuts: Sequence[Tensor] | None = None,
        two_pass: bool | None = None,
        constants: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Gradient of L by parameter name, without a step. `two_pass` True or False forces that method."""
        try:
            with self._short_memory("updating"):
                self._accumulate(forest, loss, names, couples, active, cuts, two_pass, constants)
            return {name: g.clone() for name, g in self.optimiser.gradients().items()}
        finally:
            self.optimiser.zero()

    def _accumulate(
        self,
        forest: Forest,
        loss: LossFunction,
        names: Sequence[str],
        couples: str,
        active: Tensor | None,
        cuts: Sequence[Tensor] | None,
        two_pass: bool | None,
        constants: Mapping[str, Tensor] | None = None,
    ) -> StepInfo:
        """Accumulate the gradient of L in the optimiser, without a step.

        active [P] bool: tokens whose outputs L reads (None: all). The others are not run; their outputs are nan.
        cuts: the entries (of P) of each micro-batch.
        """
        constant_args = () if not constants else (constants,)
        for name, x in (constants or {}).items():
            # a constant of another forest would be indexed without an error
            if len(x) != forest.n_entries:
                raise ValueError(f"{name} has {len(x)} rows; the forest has {forest.n_entries} path tokens")
        # tokens without a coefficient in any term are left out of the forward pass
        if active is None:
            active = torch.ones(forest.n_entries, dtype=torch.bool)
        if active.shape != (forest.n_entries,) or active.dtype != torch.bool:
            raise ValueError(f"active must be bool [{forest.n_entries}], not {active.dtype} {tuple(active.shape)}")
        # units of tokens that the loss couples (a token, a trajectory, a group): they have to be live together
        unit_P = unit_of(forest, couples)
        entries = active.nonzero().squeeze(1)
        if not entries.numel():
            return StepInfo(empty=True)
        # L is evaluated on all of P: tokens outside of a micro-batch enter it as constants
        packing = self._packing(forest)
        batches = self._microbatches(packing, entries, cuts)
        start_values = default_outputs(forest, names)
        # one pass is exact only where no unit of coupled tokens is cut; two passes are exact for any cut
        units_whole = whole_units(unit_P, batches)
        if two_pass is False and not units_whole:
            raise ModelError(f"these micro-batches cut through a {couples}: the gradient needs two passes")
        accumulate = in_one_pass if units_whole and not two_pass else in_two_passes
        x = accumulate(
            lambda b: self._live(b, names, *constant_args),
            batches,
            loss,
            start_values,
            self.optimiser.collect,
            lockstep=self.lockstep,
        )
        self.optimiser.share()  # a sum over processes, never a mean: L has its own denominators
        # report nan, not the constants, for tokens that were not run
        is_computed_P = torch.zeros(forest.n_entries, dtype=torch.bool)
        is_computed_P[entries] = True
        with torch.no_grad():
            value = float(loss(x))
        return StepInfo(
            empty=False,
            loss=value,
            tokens_forward=sum(batch.n_stored for batch in batches),
            tokens_flat=packing.flat_tokens(entries),
            microbatches=len(batches),
            outputs={name: v.masked_fill(~is_computed_P, torch.nan) for name, v in x.items()},
        )

    # ------------------------------------------------------------ samplers
    def publish(self) -> None:
        """Nothing: samplers in this process read the parameters in place."""

    # ------------------------------------------------------------ parameters
    def snapshot(self) -> dict[str, Tensor]:
        """Copy the trainable parameters."""
        return self.optimiser.parameters()

    def restore(self, snapshot: Mapping[str, Tensor]) -> None:
        """Restore the trainable parameters from a snapshot; the optimiser's state stays."""
        self.optimiser.set_parameters(snapshot)

    def tensors(self) -> dict[str, Tensor]:
        """All tensors of a checkpoint, for safetensors."""
        return {name: x.cpu() for name, x in self.optimiser.tensors().items()}

    def meta(self) -> dict[str, Any]:
        """State of a checkpoint besides its tensors, as JSON; of a base in NF4, which no checkpoint holds, the checksum
        of its codes and scales."""
        from gxpo.models import nf4  # methods load this module, and no models

        base = nf4.tensors_of(self.model)
        return {"steps": self.optimiser.steps, **({"base_fingerprint": fingerprint(base)} if base else {})}

    def load_tensors(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Load a checkpoint's state from what `tensors` and `meta` returned."""
        steps = meta.get("steps")
        if not isinstance(steps, int) or steps < 0:
            raise CheckpointError(f"the learner's part of the checkpoint has steps {steps!r}; it must be a number >= 0")
        from gxpo.models import nf4

        # 4-bit weights are made anew from the model's files; another version may round another way
        recorded = meta.get("base_fingerprint")
        if recorded is not None and recorded != (number := fingerprint(nf4.tensors_of(self.model))):
            raise CheckpointError(
                f"the model's 4-bit weights have fingerprint {number}, and the checkpoint's adapters were trained over "
                f"{recorded}: take the model's files and the bitsandbytes of the run (config.yaml names its version)"
            )
        self.optimiser.load_tensors(tensors, steps)

    def checksum(self) -> dict[str, int]:
        """Checksum of the trainable parameters, for the step's line."""
        return {"weights_fingerprint": self.fingerprint()}

    def fingerprint(self) -> int:
        """Fingerprint of the trainable parameters, computed on their device."""
        return fingerprint(self.optimiser.parameter_by_name)


# ---------------------------------------------------------------- several policies
def acting(adapters: Adapters | None, policies: Mapping[str, str], policy: str) -> AbstractContextManager[None]:
    """Context manager: activate a policy's adapters; without adapters (None), only check that the policy exists."""
    if adapters is not None:
        return adapters.acting(policy)
    if policy not in policies:
        raise ModelError(f"there is no policy {policy!r}; the run has {', '.join(policies)}")
    return nullcontext()


# ---------------------------------------------------------------- the exact gradient of L(x), over any micro-batches
# L is one function of the policy's outputs x on all action tokens of the step; its gradient is the sum over p of
# (dL/dx_p) grad x_p, so micro-batches may be cut anywhere:
#
# one pass    every unit within which tokens are coupled is whole in one micro-batch: L is evaluated for each with its
#             own tokens live and all others constants. Exact because dL/dx_p depends on the tokens of p's unit alone.
# two passes  otherwise: a forward pass without gradient gives x, autograd on that float64 vector gives g = dL/dx, and
#             each micro-batch back-propagates sum over p of g_p x_p.
#
# No mean is taken over a micro-batch, and processes are summed.
Forward = Callable[[MicroBatch], Mapping[str, Tensor]]  # named outputs of the micro-batch's tokens, float64, live


def whole_units(unit: Tensor, batches: Sequence[MicroBatch]) -> bool:
    """Return True if no unit (dense ids over P) is split between two micro-batches."""
    pairs = [torch.unique(unit[batch.entries]) for batch in batches]
    return torch.cat(pairs).unique().numel() == sum(p.numel() for p in pairs) if pairs else True


def unit_of(forest: Forest, couples: str) -> Tensor:
    """[P] dense ids of the sets of action tokens within which derivatives are coupled."""
    if couples == "token":
        return torch.arange(forest.n_entries)
    if couples == "trajectory":
        return forest.path_trajectory
    if couples == "group":
        return forest.ids("group", axis="P")
    if couples == "step":
        return torch.zeros(forest.n_entries, dtype=torch.int64)
    raise ModelError(f"couples is 'token', 'trajectory', 'group' or 'step', not {couples!r}")


def default_outputs(forest: Forest, names: Sequence[str]) -> dict[str, Tensor]:
    """Constants [P] for tokens that are not computed: the rollout log-prob where known, else 0."""
    behaviour = forest.path_behaviour_logprob.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    return {name: behaviour if name == "logprob" else torch.zeros_like(behaviour) for name in names}


def outputs_of(
    forward: Forward, batches: Sequence[MicroBatch], start: Mapping[str, Tensor], *, lockstep: bool = False
) -> dict[str, Tensor]:
    """Outputs [P] of all micro-batches, computed by all processes; `start` for tokens in none of them.

    lockstep  every process makes equally many passes, as sharded parameters need; a last one may be unused
    """
    with torch.no_grad():
        own_passes = [(batch, forward(batch), real) for batch, real in _batches_of_rank(batches, lockstep)]
    return _merge([(batch, outputs) for batch, outputs, real in own_passes if real], batches, start)


def in_one_pass(
    forward: Forward,
    batches: Sequence[MicroBatch],
    loss: LossFunction,
    start: Mapping[str, Tensor],
    collect: Callable[[], None],
    *,
    lockstep: bool = False,
) -> dict[str, Tensor]:
    """Accumulate the gradient of `loss` over micro-batches of whole units; return the outputs [P]."""
    own_outputs = []
    for batch, real in _batches_of_rank(batches, lockstep):
        live = forward(batch)
        if not real:  # in lockstep: this process only keeps the collectives of the others going
            _backward(_zero_of(live, start), collect)
            continue
        # L sees all of P, with this micro-batch's tokens live and the others as constants
        x = {name: start[name].index_copy(0, batch.entries, live[name]) for name in start}
        value = loss(x)
        _backward(value + _zero_of(live, start) if lockstep else value, collect)
        own_outputs.append((batch, {name: live[name].detach() for name in start}))
    return _merge(own_outputs, batches, start)


def in_two_passes(
    forward: Forward,
    batches: Sequence[MicroBatch],
    loss: LossFunction,
    start: Mapping[str, Tensor],
    collect: Callable[[], None],
    *,
    lockstep: bool = False,
) -> dict[str, Tensor]:
    """Accumulate the gradient of `loss` over any micro-batches, in two passes; return the outputs [P]."""
    # the first pass needs no gradient: the loss is evaluated on its outputs, and its slopes are constants in the second
    x = outputs_of(forward, batches, start, lockstep=lockstep)
    slope = gradient_of(loss, x)
    # a micro-batch whose slopes are all 0 needs no forward pass, except in lockstep
    for batch, real in _batches_of_rank(batches, lockstep):
        g = {name: slope[name][batch.entries] for name in x}
        has_slope = real and any(bool(part.any()) for part in g.values())
        if has_slope or lockstep:
            live = forward(batch)
            value = (
                torch.stack([(g[name] * live[name]).sum() for name in x]).sum() if has_slope else _zero_of(live, start)
            )
            _backward(value, collect)
    return x


def gradient_of(loss: LossFunction, x: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """dL/dx [P] of each output, by autograd in float64."""
    leaves = {name: value.detach().clone().requires_grad_() for name, value in x.items()}
    value = loss(leaves)
    if not value.requires_grad:
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    gradients = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    return {
        n: torch.zeros_like(leaf) if g is None else g for (n, leaf), g in zip(leaves.items(), gradients, strict=True)
    }


def _batches_of_rank(batches: Sequence[MicroBatch], lockstep: bool) -> list[tuple[MicroBatch, bool]]:
    """Micro-batches that this process runs, and True for those whose result counts.

    In lockstep every process has equally many, and those that go through the model together are of one policy: the
    parameters whose gradients are summed are the same everywhere.
    """
    rank, world = runtime.rank(), runtime.world()
    if not lockstep:
        return [(batch, True) for batch in batches[rank::world]]
    out = []
    for _, of_policy in groupby(batches, key=lambda batch: batch.policy):
        policy_batches = list(of_policy)
        for i in range(rank, -(-len(policy_batches) // world) * world, world):
            out.append((policy_batches[i], True) if i < len(policy_batches) else (policy_batches[-1], False))
    return out


def _zero_of(live: Mapping[str, Tensor], names: Iterable[str]) -> Tensor:
    """Return 0 with a gradient of 0 in every parameter that the outputs depend on."""
    return torch.stack([live[name].nan_to_num(0.0, 0.0, 0.0).sum() for name in names]).sum() * 0.0


def _backward(value: Tensor, collect: Callable[[], None]) -> None:
    if value.requires_grad:
        value.backward()
        collect()


def _merge(
    own_outputs: Sequence[tuple[MicroBatch, Mapping[str, Tensor]]],
    batches: Sequence[MicroBatch],
    start: Mapping[str, Tensor],
) -> dict[str, Tensor]:
    sum_by_name = {name: torch.zeros_like(x) for name, x in start.items()}
    for batch, outputs in own_outputs:
        for name, x in sum_by_name.items():
            x[batch.entries] = outputs[name]
    runtime.all_sum([sum_by_name[name] for name in sorted(sum_by_name)])
    computed_P = torch.zeros(len(next(iter(start.values()))), dtype=torch.bool)
    for batch in batches:
        computed_P[batch.entries] = True
    computed_mask = {name: computed_P.view(-1, *[1] * (x.dim() - 1)) for name, x in start.items()}
    return {name: torch.where(computed_mask[name], sum_by_name[name], x) for name, x in start.items()}
