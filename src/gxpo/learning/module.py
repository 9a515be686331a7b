"""Base of learners over a plain module: one optimiser, and a frozen copy of the module as the reference policy."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from gxpo.base import runtime
from gxpo.base.errors import ConfigError, ModelError
from gxpo.learning.base import InProcess
from gxpo.learning.optimiser import Optimiser, OptimiserSettings, with_constant_rate

if TYPE_CHECKING:
    from typing_extensions import Unpack  # of typing from Python 3.11 on


class ModuleLearner(InProcess):
    """Base of learners of models that do not write from left to right: flows, masked language models.

    model      the policy's module, kept in eval mode; parameters that need no gradient stay as they are
    lr         learning rate;   settings: of the optimiser, by keyword
    tokens_per_microbatch  stored tokens that go through the model together
    reference  keep a frozen copy of the module as it is now

    A subclass names its `family` for messages, and gives `_packing`, `_live` and `outputs`. `tokens_per_microbatch`
    below 1 raises ModelError, and the optimiser "muon", which is for hidden matrices of causal models, ConfigError.
    """

    family: ClassVar[str]

    def __init__(
        self,
        model: Any,
        *,
        lr: float,
        tokens_per_microbatch: int = 8192,
        device: str | torch.device = "cpu",
        reference: bool = False,
        **settings: Unpack[OptimiserSettings],
    ) -> None:
        if tokens_per_microbatch < 1:
            raise ModelError(f"learner.tokens_per_microbatch is {tokens_per_microbatch}; it must be at least 1")
        if settings.get("optimiser") == "muon":
            raise ConfigError(
                f"learner.optimiser=muon is for causal language models: use another one for {self.family}"
            )
        self.device, self.tokens_per_microbatch = torch.device(device), tokens_per_microbatch
        self.model = model.to(self.device).eval()
        # copied before the first step: the reference is what the policy begins with
        self._reference: Any = copy.deepcopy(self.model).requires_grad_(False) if reference else None
        self._optimiser_settings = settings
        trained_parameters = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self.optimiser = Optimiser.of(trained_parameters, settings, lr=lr)

    def _like(self, model: Any, **settings: Any) -> Any:
        """Make a learner of the same kind of another module."""
        return type(self)(model, **settings)

    def second_learner(self, *, lr: float) -> Any:
        """Create another learner of the same kind from a copy of the parameters, with its own optimiser and a constant
        rate."""
        return self._like(
            copy.deepcopy(self.model),
            lr=lr,
            tokens_per_microbatch=self.tokens_per_microbatch,
            device=self.device,
            **with_constant_rate(self._optimiser_settings),
        )

    def follow(self, policy: ModuleLearner, rate: float) -> None:
        """Move every parameter by `rate` towards another learner's (exponential moving average)."""
        target = policy.snapshot()
        self.restore({name: torch.lerp(x, target[name].to(x), rate) for name, x in self.snapshot().items()})

    @torch.no_grad()
    def refer(self, parameters: Mapping[str, Tensor]) -> None:
        """Make the policy with these parameters the reference."""
        for name, p in self.module_of("reference").named_parameters():
            if name in parameters:  # beside adapters nothing moves
                p.copy_(parameters[name])

    def module_of(self, policy: str) -> Any:
        """Module of the "current" or the "reference" policy; ModelError for another, or without a reference."""
        if policy == "current":
            return self.model
        if policy != "reference":
            raise ModelError(f"policy is 'current' or 'reference', not {policy!r}")
        if self._reference is None:
            raise ModelError("no reference policy is kept: make the learner with reference=True")
        return self._reference

    def _microbatches(self, packing: Any, entries: Tensor, cuts: Sequence[Tensor] | None) -> list[Any]:
        return packing.microbatches(entries, cuts, at_least=runtime.world())
