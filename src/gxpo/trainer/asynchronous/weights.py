"""The sampler's own copy of the policy, and the versions of its weights that groups are still to be sampled under."""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from gxpo.errors import ModelError
from gxpo.learners.lora import Adapters

if TYPE_CHECKING:
    from gxpo.learners.torch import TorchLearner


class PublishedPolicy:
    """A copy of a learner's model, whose weights are those of a version that was published.

    model      the copy; parameters that are not trained are the learner's own tensors
    policies   as of the learner
    published  versions that `use` can go back to

    Memory beyond the learner's: the trained parameters once for the copy, and once for each version that is kept, on
    the learner's device: at most `async.max_staleness` + 2 times in `async.order: dispatch`.
    """

    def __init__(self, learner: TorchLearner) -> None:
        self._learner, self.policies = learner, dict(learner.policies)
        frozen = {id(p): p for p in learner.model.parameters() if not p.requires_grad}
        self.model: Any = copy.deepcopy(learner.model, frozen).eval()
        self._own = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self.model.requires_grad_(False)
        self._adapters = Adapters(self.model, self.policies) if len(self.policies) > 1 else None
        self.published: dict[int, dict[str, Tensor]] = {}
        self._held: int | None = None

    def acting(self, policy: str) -> AbstractContextManager[None]:
        """Context manager: the copy acts as that policy."""
        if self._adapters is not None:
            return self._adapters.acting(policy)
        if policy not in self.policies:
            raise ModelError(f"there is no policy {policy!r}; the run has {', '.join(self.policies)}")
        return nullcontext()

    @torch.no_grad()
    def publish(self, version: int) -> None:
        """Keep the learner's weights as those of `version`. Between two updates only."""
        theirs = dict(self._learner.model.named_parameters())
        self.published[version] = {name: theirs[name].detach().clone() for name in self._own}

    @torch.no_grad()
    def use(self, version: int) -> None:
        """Give the copy the weights of a published version."""
        if version == self._held:
            return
        for name, x in self.published[version].items():
            self._own[name].copy_(x)
        self._held = version

    def retire(self, needed: set[int]) -> None:
        """Forget all versions but those `needed`."""
        for version in set(self.published) - needed:
            del self.published[version]
