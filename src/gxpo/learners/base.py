"""Optimiser steps with exact gradient accumulation: the gradient of L(x) for any partition into micro-batches.

L is one function of the policy's outputs x on all action tokens of the step; its gradient is the sum over p of
(dL/dx_p) grad x_p, so micro-batches may be cut anywhere:

one pass    every unit within which tokens are coupled is whole in one micro-batch: L is evaluated for each with its
            own tokens live and all others constants. Exact because dL/dx_p depends on the tokens of p's unit alone.
two passes  otherwise: a forward pass without gradient gives x, autograd on that float64 vector gives g = dL/dx, and
            each micro-batch back-propagates sum over p of g_p x_p.
No mean is taken over a micro-batch, and processes are summed."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gxpo import runtime
from gxpo.errors import CheckpointError, ModelError
from gxpo.forest import Forest
from gxpo.learners.finite import first_not_finite
from gxpo.learners.optimiser import Optimiser
from gxpo.learners.packing import MicroBatch, whole_units
from gxpo.protocols import LossFunction, StepInfo
from gxpo.runtime import memory_is_short

Forward = Callable[[MicroBatch], Mapping[str, Tensor]]  # named outputs of the micro-batch's tokens, float64, live


def unit_of(forest: Forest, couples: str) -> Tensor:
    """[P] dense ids of sets of action tokens that may influence each other's derivative."""
    if couples == "token":
        return torch.arange(forest.n_entries)
    if couples == "trajectory":
        return forest.path_trajectory
    if couples == "group":
        return forest.ids("group", axis="P")
    if couples == "step":
        return torch.zeros(forest.n_entries, dtype=torch.int64)
    raise ModelError(f"couples is 'token', 'trajectory', 'group' or 'step', not {couples!r}")


def constants(forest: Forest, names: Sequence[str]) -> dict[str, Tensor]:
    """Constants [P] for tokens that are not computed: the rollout log-prob where known, else 0."""
    behaviour = forest.path_behaviour_logprob.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
    return {name: behaviour if name == "logprob" else torch.zeros_like(behaviour) for name in names}


def outputs_of(forward: Forward, batches: Sequence[MicroBatch], start: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Outputs [P] of all micro-batches, divided among the processes; `start` for tokens in none of them."""
    with torch.no_grad():
        mine = [(batch, forward(batch)) for batch in _mine(batches)]
    return _merge(mine, batches, start)


def in_one_pass(
    forward: Forward,
    batches: Sequence[MicroBatch],
    loss: LossFunction,
    start: Mapping[str, Tensor],
    collect: Callable[[], None],
) -> dict[str, Tensor]:
    """Accumulate the gradient of `loss` over micro-batches of whole units; gives the outputs [P]."""
    mine = []
    for batch in _mine(batches):
        live = forward(batch)
        x = {name: start[name].index_copy(0, batch.entries, live[name]) for name in start}
        _backward(loss(x), collect)
        mine.append((batch, {name: live[name].detach() for name in start}))
    return _merge(mine, batches, start)


def in_two_passes(
    forward: Forward,
    batches: Sequence[MicroBatch],
    loss: LossFunction,
    start: Mapping[str, Tensor],
    collect: Callable[[], None],
) -> dict[str, Tensor]:
    """Accumulate the gradient of `loss` over any micro-batches, in two passes; gives the outputs [P]."""
    x = outputs_of(forward, batches, start)
    slope = gradient_of(loss, x)
    for batch in _mine(batches):
        g = {name: slope[name][batch.entries] for name in x}
        if any(bool(part.any()) for part in g.values()):
            live = forward(batch)
            _backward(torch.stack([(g[name] * live[name]).sum() for name in x]).sum(), collect)
    return x


def gradient_of(loss: LossFunction, x: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """dL/dx [P] of each output, by autograd in float64."""
    leaves = {name: value.detach().clone().requires_grad_() for name, value in x.items()}
    value = loss(leaves)
    if not value.requires_grad:
        return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
    found = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
    return {n: torch.zeros_like(leaf) if g is None else g for (n, leaf), g in zip(leaves.items(), found, strict=True)}


def _mine(batches: Sequence[MicroBatch]) -> Sequence[MicroBatch]:
    return batches[runtime.rank() :: runtime.world()]


def _backward(value: Tensor, collect: Callable[[], None]) -> None:
    if value.requires_grad:
        value.backward()
        collect()


def _merge(
    mine: Sequence[tuple[MicroBatch, Mapping[str, Tensor]]], batches: Sequence[MicroBatch], start: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    computed = {name: torch.zeros_like(x) for name, x in start.items()}
    for batch, found in mine:
        for name, x in computed.items():
            x[batch.entries] = found[name]
    runtime.all_sum([computed[name] for name in sorted(computed)])
    where = torch.zeros(len(next(iter(start.values()))), dtype=torch.bool)
    for batch in batches:
        where[batch.entries] = True
    wide = {name: where.view(-1, *[1] * (x.dim() - 1)) for name, x in start.items()}
    return {name: torch.where(wide[name], computed[name], x) for name, x in start.items()}


class InProcess:
    """Base of learners in this process: a module's parameters in an `Optimiser`, updated in micro-batches.

    A learner gives `outputs`, and for the steps: what a forest's tokens are for its model (`_packing`, which has
    `flat_tokens(entries)`), sets of entries that go through it together (`_microbatches`; each has `entries` and
    `stored`, the number of stored tokens), and the named outputs of one of them, live (`_live`).
    """

    optimiser: Optimiser
    tokens_per_microbatch: int

    def _packing(self, forest: Forest) -> Any:
        raise NotImplementedError

    def _microbatches(self, packing: Any, entries: Tensor, cuts: Sequence[Tensor] | None) -> list[Any]:
        raise NotImplementedError

    def _live(self, batch: Any, names: Sequence[str], *given: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """`given`: nothing, or the `given` of `step`."""
        raise NotImplementedError

    def _short_memory(self, doing: str) -> AbstractContextManager[None]:
        return memory_is_short(doing, f"learner.tokens_per_microbatch (now {self.tokens_per_microbatch})")

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
        given: Mapping[str, Tensor] | None = None,
    ) -> StepInfo:
        """One optimiser step on L(x). Nothing changes if no token is active, or if the gradient is not finite
        (`StepInfo.nonfinite`). Every process has the summed gradient, so all of them decide alike.

        given  constants [P, ...] by name that some outputs are made with, such as a teacher's log-probs
        """
        try:
            with self._short_memory("updating"):
                info = self._accumulate(forest, loss, names, couples, active, cuts, two_pass=None, given=given)
                norm = 0.0 if info.empty else self.optimiser.step()
            if info.empty:
                return info
            if not math.isfinite(norm):
                where = first_not_finite(self.optimiser.gradients()) or "the sum of its squares"
                return replace(info, grad_norm=norm, nonfinite=where)
            return replace(info, grad_norm=norm, moved=self.optimiser.moved)
        finally:
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
        given: Mapping[str, Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Gradient of L by parameter name, without a step. `two_pass` True or False forces that method."""
        try:
            with self._short_memory("updating"):
                self._accumulate(forest, loss, names, couples, active, cuts, two_pass, given)
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
        given: Mapping[str, Tensor] | None = None,
    ) -> StepInfo:
        """Accumulate the gradient in the optimiser.

        active [P] bool: tokens whose outputs L reads (None: all). The others are not run; their outputs are nan.
        cuts: micro-batches given as sets of entries.
        """
        beside = () if not given else (given,)
        for name, x in (given or {}).items():
            if len(x) != forest.n_entries:
                raise ValueError(f"{name} has {len(x)} rows; the forest has {forest.n_entries} path tokens")
        if active is None:
            active = torch.ones(forest.n_entries, dtype=torch.bool)
        if active.shape != (forest.n_entries,) or active.dtype != torch.bool:
            raise ValueError(f"active must be bool [{forest.n_entries}], not {active.dtype} {tuple(active.shape)}")
        unit = unit_of(forest, couples)
        entries = active.nonzero().squeeze(1)
        if not entries.numel():
            return StepInfo(empty=True)
        packing = self._packing(forest)
        batches = self._microbatches(packing, entries, cuts)
        start = constants(forest, names)
        whole = whole_units(unit, batches)
        if two_pass is False and not whole:
            raise ModelError(f"these micro-batches cut through a {couples}: the gradient needs two passes")
        way = in_one_pass if whole and not two_pass else in_two_passes
        x = way(lambda b: self._live(b, names, *beside), batches, loss, start, self.optimiser.collect)
        self.optimiser.share()
        computed = torch.zeros(forest.n_entries, dtype=torch.bool)
        computed[entries] = True
        with torch.no_grad():
            value = float(loss(x))
        return StepInfo(
            empty=False,
            loss=value,
            tokens_forward=sum(batch.stored for batch in batches),
            tokens_flat=packing.flat_tokens(entries),
            microbatches=len(batches),
            outputs={name: v.masked_fill(~computed, torch.nan) for name, v in x.items()},
        )

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
        """The rest of a checkpoint's state, as JSON."""
        return {"steps": self.optimiser.steps}

    def load_tensors(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """Load the checkpoint state given by `tensors` and `meta`."""
        steps = meta.get("steps")
        if not isinstance(steps, int) or steps < 0:
            raise CheckpointError(f"the learner's part of the checkpoint has steps {steps!r}; it must be a number >= 0")
        self.optimiser.load_tensors(tensors, steps)

    def weights_crc(self) -> int:
        """CRC-32 of the trainable parameters, in order of names."""
        crc = 0
        for _, p in sorted(self.optimiser.named.items()):
            crc = zlib.crc32(p.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes(), crc)
        return crc
