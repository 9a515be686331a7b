"""Signals of a step: named tensors and the axis of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from gxpo.errors import MissingSignal
from gxpo.forest import Forest
from gxpo.learning import ALIASES
from gxpo.reshape import kept

BUILT_IN: Mapping[str, tuple[str, str]] = {  # name -> (axis, what it is)
    "behaviour_logprob": ("P", "log-probs of the sampler; comes with the rollouts"),
    "proximal_logprob": ("P", "log-probs of the policy at the start of the step; the trainer computes them"),
    "reference_logprob": ("P", "log-probs of the frozen reference model; computed where a part needs them"),
    "entropy": ("P", "entropy of the policy's distribution at each token, in nats"),
    "value": ("P", "the value head's estimate of the state in which each token is chosen"),
    "hidden": ("T", "the policy's last hidden state at every stored token, [T, H]"),
}


class Signals(Mapping[str, Any]):
    """Named tensors of a step, read-only; a missing one raises with what it is and which part provides it.

    `old_logprob` and `rollout_logprob` (TRL's and verl's names) are `proximal_logprob` and `behaviour_logprob`.

    axes   name -> "R" | "S" | "T" of the signals that are not on P
    """

    def __init__(self, values: Mapping[str, Any] | None = None, axes: Mapping[str, str] | None = None) -> None:
        self._values = {ALIASES.get(name, name): x for name, x in (values or {}).items()}
        self.axes = dict(axes or {})

    @classmethod
    def of(
        cls, forest: Forest, given: Mapping[str, Any] | None = None, axes: Mapping[str, str] | None = None
    ) -> Signals:
        """Signals of a step: `given`, and the sampler's log-probs, also in place of missing proximal log-probs."""
        values = {ALIASES.get(name, name): x for name, x in (given or {}).items()}
        values.setdefault("behaviour_logprob", forest.path_behaviour_logprob)
        values.setdefault("proximal_logprob", values["behaviour_logprob"])
        return cls(values, {**(given.axes if isinstance(given, Signals) else {}), **(axes or {})})

    def __getitem__(self, name: str) -> Any:
        name = ALIASES.get(name, name)
        if name not in self._values:
            what = BUILT_IN.get(name.partition("@")[0], ("", "no part of this method provides it"))[1]
            raise MissingSignal(f"signal {name!r} is missing ({what}): pass it as signals={{{name!r}: ...}}")
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def axis(self, name: str) -> str:
        """Axis of a signal's leading dimension."""
        return self.axes.get(name, BUILT_IN[name][0] if name in BUILT_IN else "P")

    def select(self, forest: Forest, rows: torch.Tensor) -> Signals:
        """Signals of `forest.select(rows)`; `rows` [R] bool or distinct indices."""
        places = kept(forest, forest._rows(rows))
        out = {}
        for name, value in self._values.items():
            if isinstance(value, torch.Tensor) and value.dim():
                axis = self.axis(name)
                if len(value) != forest._size(axis):
                    raise ValueError(
                        f"signal {name!r} has {len(value)} rows; axis {axis} of this forest has {forest._size(axis)}"
                    )
                value = value[places[axis]]
            out[name] = value
        return Signals(out, self.axes)
