"""A whole copy of a policy's model for samplers in this process, with weights of its own."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from gxpo.errors import ModelError
from gxpo.learners.lora import Adapters


class SamplingCopy:
    """A copy of a model; `put` gives it weights.

    model         the copy, without gradients
    policies      as of the learner: several are adapters, of which one acts at a time
    names         of the trained parameters, which `put` sets
    share_frozen  parameters that are not trained are the model's own tensors, at no cost
    """

    def __init__(self, model: Any, policies: Mapping[str, str], *, share_frozen: bool = False) -> None:
        frozen = {id(p): p for p in model.parameters() if not p.requires_grad} if share_frozen else {}
        self.model: Any = copy.deepcopy(model, frozen).eval()
        self.policies = dict(policies)
        self._own = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self.names = frozenset(self._own)
        self.model.requires_grad_(False)
        self._adapters = Adapters(self.model, self.policies) if len(self.policies) > 1 else None

    def acting(self, policy: str) -> AbstractContextManager[None]:
        """Context manager: the copy acts as that policy."""
        if self._adapters is not None:
            return self._adapters.acting(policy)
        if policy not in self.policies:
            raise ModelError(f"there is no policy {policy!r}; the run has {', '.join(self.policies)}")
        return nullcontext()

    @torch.no_grad()
    def put(self, values: Iterable[tuple[str, Tensor]]) -> None:
        """Set trained parameters, one after the other."""
        for name, x in values:
            self._own[name].copy_(x)
