"""Another trainer's model as a learner: its log-probs, hidden states, and further outputs with their gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor

from gxpo.base.errors import GxpoError
from gxpo.forest.forest import Forest
from gxpo.learning.lora import ALONE
from gxpo.learning.readout import Readout
from gxpo.learning.torch import TorchLearner


class ExternalModel(TorchLearner):
    """Reads a model that somebody else trains; it has no optimiser, and never moves a parameter.

    model     a transformers causal language model (of peft: with its adapters in it), in memory as a whole
    autocast  the context of its forward passes
    tokens_per_microbatch  that go through it together, padding included
    """

    def __init__(
        self,
        model: Any,
        *,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
        tokens_per_microbatch: int = 8192,
    ) -> None:
        self.model, self.device, self._autocast = model, next(model.parameters()).device, autocast
        self.tokens_per_microbatch, self.images_per_microbatch = tokens_per_microbatch, None
        self.logits_at_once = 2**23
        self.lora, self._adapters, self._reference = None, None, None
        self.layout, self.policies = "flat", {ALONE: "trained"}
        self.attention, self._blocks_from = "dense", math.inf
        self.value_head, self.value_heads = None, ()
        self._moves: dict[str, Any] = {}
        self._kernels = {"kernels": "transformers", "products": "auto", "recompute": False}
        with self._read():
            self._readout = Readout(model, **self._kernels)

    @contextmanager
    def _read(self) -> Iterator[None]:
        """The model without dropout, and as it was afterwards."""
        training = self.model.training
        self.model.eval()
        try:
            with self._autocast():
                yield
        finally:
            self.model.train(training)

    def outputs(self, *given: Any, policy: str = "current", **named: Any) -> dict[str, Tensor]:
        """See `TorchLearner.outputs`; there is no reference policy."""
        if policy != "current":
            raise GxpoError(f"the {policy} policy is not lent")
        with self._read():
            return super().outputs(*given, **named)

    def hidden(self, forest: Forest, layer: int = -1) -> Tensor:
        with self._read():
            return super().hidden(forest, layer)

    def logits(self, states: Tensor) -> Tensor:
        with self._read():
            return super().logits(states)

    def live(
        self, forest: Forest, names: Sequence[str], given: Mapping[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """Outputs [P] float64 with their gradient."""
        packing = self._packing(forest)
        batches = packing.microbatches(torch.arange(forest.n_entries))
        with self._read():
            found = [(b.entries, self._live(b, names, *([given] if given else []))) for b in batches]
        order = torch.cat([entries for entries, _ in found]).argsort()
        return {name: torch.cat([x[name] for _, x in found])[order] for name in names}

    def snapshot(self) -> dict[str, Tensor]:
        """Copies of the trainable parameters, in order of names."""
        named = sorted(self.model.named_parameters())
        return {name: p.detach().clone() for name, p in named if p.requires_grad}
