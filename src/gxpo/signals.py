"""Signals: quantities that parts ask for by name, computed once per step by the trainer or handed in by the caller."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from gxpo.errors import MissingSignal
from gxpo.forest import Forest

KNOWN = {
    "behaviour_logprob": "log-probs of who sampled, [P]; comes with the rollouts",
    "proximal_logprob": "log-probs of the policy at the start of the step, [P]; the trainer computes them",
    "reference_logprob": "log-probs of the frozen reference model, [P]; computed where a part needs them",
    "entropy": "entropy of the policy's distribution at each token, [P], nats",
}


class Signals(Mapping[str, Any]):
    """A read-only mapping whose missing keys say what they are and who provides them."""

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._values = dict(values or {})

    @classmethod
    def of(cls, forest: Forest, given: Mapping[str, Any] | None = None) -> Signals:
        """`given` and the sampler's log-probs from the forest, which stand for an absent proximal policy too."""
        values = dict(given or {})
        values.setdefault("behaviour_logprob", forest.path_behaviour_logprob)
        values.setdefault("proximal_logprob", values["behaviour_logprob"])
        return cls(values)

    def __getitem__(self, name: str) -> Any:
        if name not in self._values:
            what = KNOWN.get(name, "no part of gxpo provides it")
            raise MissingSignal(f"signal {name!r} is missing ({what}): pass it as signals={{{name!r}: ...}}")
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def index(self, entries: torch.Tensor, size: int) -> Signals:
        """The same signals on a subset of path tokens; tensors whose leading dimension is `size` are indexed."""
        return Signals(
            {
                k: v[entries] if isinstance(v, torch.Tensor) and v.dim() and v.shape[0] == size else v
                for k, v in self._values.items()
            }
        )
