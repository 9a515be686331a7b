"""Figures of whole optimiser steps, for coefficients that follow them (`objective.kl.control` and others)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from gxpo.adapters.trl_rollouts import Scored
from gxpo.forest.forest import Forest
from gxpo.methods.method import Method


class Figures:
    """Collects the policy's outputs over the micro-batches of an optimiser step, and figures over those of a step.

    `add` each micro-batch, `close` each optimiser step, `adjust` after the last one of a generation batch.
    """

    def __init__(self, method: Method) -> None:
        self._method = method
        self._outputs: dict[str, Tensor] = {}
        self._steps: list[dict[str, float]] = []

    def add(self, scored: Scored, entries: Tensor, live: Mapping[str, Tensor]) -> None:
        """Outputs of the entries [n] of an optimiser step's rows."""
        for name, x in live.items():
            start = torch.zeros(scored.forest.n_entries, dtype=torch.float64)
            self._outputs[name] = self._outputs.get(name, start).index_copy(0, entries, x.detach().double())

    def close(self, scored: Scored, summed: Callable[[Tensor], Tensor]) -> None:
        """Take the figures of an optimiser step; `summed`: over processes, each of which has added its own rows."""
        x = {name: summed(column) for name, column in self._outputs.items()}
        self._outputs = {}
        method, forest = self._method, scored.forest
        metrics: dict[str, float] = {}
        if bool(method.active(forest, scored.credit, scored.weight, scored.signals).any()):
            read = scored.credit, scored.weight, scored.signals, scored.step
            with torch.no_grad():
                metrics = method.evaluate(forest, scored.policy(x), *read).metrics
        entropy = x["entropy"][forest.path_trainable]  # of a step that moves nothing, too, as TRL measures it
        self._steps.append({**metrics, **({"entropy": float(entropy.mean())} if entropy.numel() else {})})

    def adjust(self, forest: Forest, step: int) -> dict[str, float]:
        """Move the method's coefficients by the means over the optimiser steps; gives what they now say."""
        names = dict.fromkeys(name for found in self._steps for name in found)
        figures: dict[str, Any] = {}
        for name in names:
            known = [found[name] for found in self._steps if name in found]
            figures[name] = sum(known) / len(known)
        self._steps = []
        for name, column in (("reward_mean", forest.outcome), ("success_rate", forest.success)):
            known = column[column.isfinite()]
            if known.numel():
                figures[name] = float(known.mean())
        return self._method.adjust({**figures, "trajectories": forest.n_trajectories, "step": step})
