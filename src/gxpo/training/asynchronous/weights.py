"""Versions of the policy's weights that groups are still to be sampled under, and the copy that has one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.learning.sampling_copy import SamplingCopy

if TYPE_CHECKING:
    from gxpo.learning.torch import TorchLearner


class PublishedPolicy(SamplingCopy):
    """A copy of a learner's model, whose weights are those of a version that was published.

    published  versions that `use` can go back to

    Memory beyond the learner's: the trained parameters once for the copy, and once for each version that is kept, on
    the learner's device: at most `async.max_staleness` + 2 times in `async.order: dispatch`.
    """

    def __init__(self, learner: TorchLearner) -> None:
        super().__init__(learner.model, learner.policies, share="frozen")
        self._learner = learner
        self.published: dict[int, dict[str, Tensor]] = {}
        self._held: int | None = None

    @torch.no_grad()
    def publish(self, version: int) -> None:
        """Keep the learner's weights as those of `version`. Between two updates only."""
        theirs = dict(self._learner.model.named_parameters())
        self.published[version] = {name: theirs[name].detach().clone() for name in sorted(self.names)}

    def use(self, version: int) -> None:
        """Give the copy the weights of a published version."""
        if version == self._held:
            return
        self.put(self.published[version].items())
        self._held = version

    def retire(self, needed: set[int]) -> None:
        """Forget all versions but those `needed`."""
        for version in set(self.published) - needed:
            del self.published[version]
