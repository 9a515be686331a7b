"""What learners in process share: exact steps over micro-batches, and the parameters that are trained."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gxpo.errors import CheckpointError, ModelError
from gxpo.forest import Forest
from gxpo.learners import accumulate
from gxpo.learners.finite import first_not_finite
from gxpo.learners.optimiser import Optimiser
from gxpo.learners.packing import whole_units
from gxpo.memory import memory_is_short
from gxpo.protocols import LossFunction, StepInfo


class InProcess:
    """Base of learners that hold a module's parameters in an `Optimiser` and go through it in micro-batches.

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
        """`given`: nothing, or what `step` was given beside the loss."""
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
        """One optimiser step on L(x); nothing changes at all if no entry is active, or where the gradient is not finite
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
        """The gradient of L by parameter name, without a step. `two_pass` True or False insists on that way."""
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
        """Leaves the summed gradient in the optimiser.

        active [P] bool: entries whose outputs L reads (None: all). The others are not run; their outputs are nan.
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
        unit = accumulate.unit_of(forest, couples)
        entries = active.nonzero().squeeze(1)
        if not entries.numel():
            return StepInfo(empty=True)
        packing = self._packing(forest)
        batches = self._microbatches(packing, entries, cuts)
        start = accumulate.fill(forest, names)
        whole = whole_units(unit, batches)
        if two_pass is False and not whole:
            raise ModelError(f"these micro-batches cut through a {couples}: the gradient needs two passes")
        way = accumulate.one_pass if whole and not two_pass else accumulate.two_pass
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
        """Copies of the trainable parameters."""
        return self.optimiser.parameters()

    def restore(self, snapshot: Mapping[str, Tensor]) -> None:
        """Sets the trainable parameters to a snapshot; the optimiser's state stays."""
        self.optimiser.set_parameters(snapshot)

    def tensors(self) -> dict[str, Tensor]:
        """Everything that a checkpoint must hold as tensors, for safetensors."""
        return {name: x.cpu() for name, x in self.optimiser.tensors().items()}

    def meta(self) -> dict[str, Any]:
        """What goes beside `tensors` as JSON."""
        return {"steps": self.optimiser.steps}

    def load_tensors(self, tensors: Mapping[str, Tensor], meta: Mapping[str, Any]) -> None:
        """The inverse of `tensors` and `meta`."""
        steps = meta.get("steps")
        if not isinstance(steps, int) or steps < 0:
            raise CheckpointError(f"the learner's part of the checkpoint has steps {steps!r}; it must be a number >= 0")
        self.optimiser.load_tensors(tensors, steps)

    def weights_crc(self) -> int:
        """CRC-32 of the trainable parameters in order of their names."""
        crc = 0
        for _, p in sorted(self.optimiser.named.items()):
            crc = zlib.crc32(p.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes(), crc)
        return crc
