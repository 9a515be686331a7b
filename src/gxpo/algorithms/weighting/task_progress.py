"""Weights of kinds of tasks by their progress (ARSPO): what falls back or lags counts more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from gxpo.algorithms.weighting.base import WeightPart
from gxpo.base.errors import ConfigError
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Signals


def updated_weights(
    weights: Mapping[str, float],
    scores: Mapping[str, float],
    best: Mapping[str, float],
    *,
    boost: float = 1.1,
    decay: float = 0.9,
    mastery_rate: float = 0.9,
    tolerance: float = 0.02,
    max_weight: float = 4.0,
) -> dict[str, float]:
    """Move the weight of each kind that has a score, by what it is doing; the least weight of all is 1.

    A kind that is at least `mastery_rate` goes towards 1, w <- 1 + decay (w - 1). One whose score is more than
    `tolerance` below its best so far, and, of several, the one with the lowest score, is multiplied by `boost`. Others
    stay. All are bounded by `max_weight` and divided by the least.

    >>> {k: round(w, 4) for k, w in updated_weights({"a": 1.0, "b": 2.0}, {"a": 0.95, "b": 0.4}, {"b": 0.4}).items()}
    {'a': 1.0, 'b': 2.2}
    """
    weight_by_kind = dict(weights)
    lowest = min(scores, key=lambda kind: scores[kind]) if len(scores) > 1 else None
    for kind, score in scores.items():
        weight = weight_by_kind.get(kind, 1.0)
        if score >= mastery_rate:
            weight_by_kind[kind] = 1.0 + decay * (weight - 1.0)
        elif score < best.get(kind, score) - tolerance or kind == lowest:
            weight_by_kind[kind] = min(boost * weight, max_weight)
        else:
            weight_by_kind[kind] = weight
    least = min(weight_by_kind.values(), default=1.0)
    return {kind: weight / least for kind, weight in weight_by_kind.items()}


@part("task_progress", stage="weight")
@dataclass(frozen=True)
class TaskProgress(WeightPart):
    """Weight of each kind of task by its progress: `updated_weights` of the mean score of its rollouts in each step.

    kinds  components of the reward, one for each kind of task, from 0 to 1: a rollout is of the first kind whose
           component it has. Rollouts without any have weight 1
    boost, decay, mastery_rate, tolerance, max_weight  see `updated_weights`

    A weight moves after the step, so the first step has 1 everywhere. In the checkpoint: a weight and the best score of
    each kind. A weight is not undone by standardising, as a factor of the reward is.
    """

    kinds: list[str] = field(default_factory=list)
    boost: Annotated[float, Ge(1)] = 1.1
    decay: Annotated[float, Interval(ge=0, le=1)] = 0.9
    mastery_rate: Annotated[float, Interval(gt=0, le=1)] = 0.9
    tolerance: Annotated[float, Ge(0)] = 0.02
    max_weight: Annotated[float, Ge(1)] = 4.0
    memory: dict[str, Any] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.memory.update(weights={}, best={})

    def _kind_R(self, forest: Forest) -> list[str | None]:
        """Return the kind of each trajectory's task."""
        missing = [kind for kind in self.kinds if kind not in forest.component_names]
        if missing or not self.kinds:
            component_names = ", ".join(forest.component_names) or "none"
            problem = f"has no {missing[0]!r}" if missing else "needs one for each kind of task"
            raise ConfigError(
                f"weight task_progress: kinds are components of the reward, which {problem}: it has {component_names}"
            )
        places = [forest.component_names.index(kind) for kind in self.kinds]
        has_component = forest.components[:, places].isfinite().tolist()
        return [next((kind for kind, x in zip(self.kinds, row, strict=True) if x), None) for row in has_component]

    @torch.no_grad()
    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        weights = self.memory["weights"]
        weight_R = [weights.get(kind, 1.0) for kind in self._kind_R(forest)]
        return forest.to_path(torch.tensor(weight_R, dtype=torch.float64), "R")

    def observe(self, forest: Forest) -> None:
        """Move the weights by the step's scores."""
        scores: dict[str, list[float]] = {}
        for r, kind in enumerate(self._kind_R(forest)):
            if kind is not None and bool(forest.compared[r]):
                scores.setdefault(kind, []).append(float(forest.components[r, forest.component_names.index(kind)]))
        means = {kind: sum(values) / len(values) for kind, values in scores.items()}
        options = {name: getattr(self, name) for name in ("boost", "decay", "mastery_rate", "tolerance", "max_weight")}
        self.memory["weights"] = updated_weights(self.memory["weights"], means, self.memory["best"], **options)
        best = self.memory["best"]
        self.memory["best"] = best | {kind: max(score, best.get(kind, score)) for kind, score in means.items()}

    def state_dict(self) -> dict[str, Any]:
        return dict(self.memory)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.memory.update(state)
