"""Base of learners over a plain module: one optimiser, and a frozen copy of the module as the reference policy."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from gxpo.base import runtime
from gxpo.base.errors import ConfigError, ModelError
from gxpo.learning.base import InProcess
from gxpo.learning.optimiser import Optimiser, Schedule
from gxpo.learning.optimiser_kinds import Rule


class ModuleLearner(InProcess):
    """Base of learners of models that do not write from left to right: flows, masked language models.

    model      the policy's module, kept in eval mode; parameters that need no gradient stay as they are
    lr, optimiser, betas, eps, weight_decay, max_grad_norm, rule   see `Optimiser`
    schedule, warmup_steps, total_steps   see `Schedule`
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
        optimiser: str = "adamw",
        betas: Sequence[float] | None = None,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        max_grad_norm: float | None = 1.0,
        schedule: Literal["constant", "cosine", "linear"] = "constant",
        warmup_steps: int = 0,
        total_steps: int | None = None,
        tokens_per_microbatch: int = 8192,
        device: str | torch.device = "cpu",
        reference: bool = False,
        rule: Rule | None = None,
    ) -> None:
        if tokens_per_microbatch < 1:
            raise ModelError(f"learner.tokens_per_microbatch is {tokens_per_microbatch}; it must be at least 1")
        if optimiser == "muon":
            raise ConfigError(
                f"learner.optimiser=muon is for causal language models: use another one for {self.family}"
            )
        self.device, self.tokens_per_microbatch = torch.device(device), tokens_per_microbatch
        self.model = model.to(self.device).eval()
        # copied before the first step: the reference is what the policy begins with
        self._reference: Any = copy.deepcopy(self.model).requires_grad_(False) if reference else None
        kind_settings: dict[str, Any] = {
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "max_grad_norm": max_grad_norm,
            "rule": rule,
        }
        # a second learner has them too
        self._optimiser_settings = {"optimiser": optimiser, **kind_settings}
        self.optimiser = Optimiser(
            {name: p for name, p in self.model.named_parameters() if p.requires_grad},
            lr=lr,
            kind=optimiser,
            **kind_settings,
            schedule=Schedule(schedule, warmup_steps, total_steps),
        )

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
            **self._optimiser_settings,
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
