"""Copy of a policy's model for samplers in this process, with its own weights."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gxpo.learning.base import acting
from gxpo.learning.lora import Adapters


class SamplingCopy:
    """Copy of a model for samplers; `set_weights` loads its weights.

    model         the copy, without gradients
    policies      as of the learner: several are adapters, of which one acts at a time
    names         of the trained parameters, which `set_weights` loads
    share         "frozen": parameters that are not trained are the model's own, at no cost. "all": all parameters have
                  the memory of the model's own, which gets other memory afterwards (as shards)
    """

    def __init__(
        self, model: Any, policies: Mapping[str, str], *, share: Literal["nothing", "frozen", "all"] = "nothing"
    ) -> None:
        self.model: Any = (alias(model) if share == "all" else _copy(model, frozen=share != "frozen")).eval()
        self.policies = dict(policies)
        self._parameters = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self.names = frozenset(self._parameters)
        self.model.requires_grad_(False)
        self._adapters = Adapters(self.model, self.policies) if len(self.policies) > 1 else None

    def acting(self, policy: str) -> AbstractContextManager[None]:
        """Context manager: the copy acts as that policy."""
        return acting(self._adapters, self.policies, policy)

    @torch.no_grad()
    def set_weights(self, values: Iterable[tuple[str, Tensor]]) -> None:
        """Set trained parameters by name."""
        for name, x in values:
            self._parameters[name].copy_(x)


def alias(model: Any) -> Any:
    """Copy a model, with parameters that share the memory of the model's own."""
    memo = {id(p): nn.Parameter(p.detach(), requires_grad=p.requires_grad) for p in model.parameters()}
    return copy.deepcopy(model, memo)


def _copy(model: Any, *, frozen: bool) -> Any:
    """Copy a model; `frozen`: parameters that are not trained, too."""
    return copy.deepcopy(model, {} if frozen else {id(p): p for p in model.parameters() if not p.requires_grad})
