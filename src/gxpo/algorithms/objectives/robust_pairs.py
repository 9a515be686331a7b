"""Preference pairs with a memory: populations weighted by loss (group-robust), labels that follow the policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import torch
from annotated_types import Interval
from torch import Tensor

from gxpo.algorithms.objectives.preference_pairs import Comparisons, PreferencePairs, options_of
from gxpo.algorithms.objectives.sequence_score import counted_trajectories
from gxpo.algorithms.objectives.surrogate import Width
from gxpo.base.errors import CheckpointError, ConfigError, GxpoError
from gxpo.forest import grouped
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest

LABELS = 100_000  # labels that are remembered, the newest
WEIGHT = "population_weight_"  # figures
LOSS = "population_loss_"


def mirror_step(weight: Tensor, loss: Tensor, rate: float) -> Tensor:
    """Exponentiated-gradient step on the simplex: w e^(rate loss) over its sum, [K]; detached.

    >>> grown = mirror_step(torch.tensor([0.5, 0.5]).double(), torch.tensor([1.0, 0.5]).double(), 0.01)
    >>> [round(x, 9) for x in grown.tolist()]
    [0.501249997, 0.498750003]
    """
    grown = weight * (rate * (loss - loss.max())).detach().exp()
    return grown / grown.sum()


@part("robust_pairs", stage="term")
@dataclass(frozen=True)
class RobustPairs(PreferencePairs):
    """`PreferencePairs` whose populations are weighted by their losses, and whose labels follow the policy.

    population       "info.KEY": the loss is sum_k w_k l_k over the populations k that KEY of the rollouts' `info` (of a
                     data set: a column) tells apart, l_k the mean over k's groups; "": none, and the mean over groups
    population_rate  w_k <- w_k e^(rate l_k) / sum, from equal weights on, with the step's own losses, before they are
                     weighed; one that a step lacks has loss 0 there, one that is new begins with the mean weight
    label_rate       label l of a pair, 1 when it is first seen: its loss is l f(z) + (1 - l) f(-z), and after the step
                     l <- (1 - rate) l + rate sigmoid(z), z as the step began it. A pair is known by the ids of its two
                     rollouts, so labels move where pairs come back: with rollout `logged`

    Figures: population_weight_NAME, population_loss_NAME; pair_label, the mean of the labels used.
    Sources: group-robust preference optimization, arXiv 2405.20304; POWER-DL, arXiv 2412.09544.
    """

    population: str = field(default="", kw_only=True)
    population_rate: Width = field(default=0.01, kw_only=True)
    label_rate: Annotated[float, Interval(ge=0, le=1)] = field(default=0.0, kw_only=True)
    memory: dict[str, dict[str, float]] = field(
        init=False, repr=False, compare=False, default_factory=lambda: {"weights": {}, "labels": {}, "seen": {}}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.population and not self.population.removeprefix("info."):
            raise ConfigError(f"objective.population is {self.population!r}: it is info.KEY, or empty")
        if self.label_rate and "label_smoothing" not in options_of(self.form):
            raise ConfigError(
                "objective.label_rate softens labels of objective.form 'sigmoid': leave one of the two out"
            )
        if self.population:
            object.__setattr__(self, "couples", "step")

    # ------------------------------------------------------------ the loss
    def total(self, forest: Forest, comparisons: Comparisons) -> tuple[Tensor, dict[str, float]]:
        smoothing, figures = self._smoothing(forest, comparisons)
        loss = self.losses(comparisons, smoothing) / grouped.count(comparisons.group)
        group, counted_R = forest.ids("group", axis="R"), counted_trajectories(forest)
        if not self.population:
            return loss.sum() / max(1, torch.unique(group[counted_R]).numel()), figures
        # l_k: mean over the groups of population k, those without a pair included
        names, of_group = self._populations(forest, group, counted_R)
        sums = loss.new_zeros(len(names)).index_add(0, of_group[comparisons.group], loss)
        losses = sums / torch.bincount(of_group[torch.unique(group[counted_R])], minlength=len(names)).clamp_min(1)
        # a population that the step lacks keeps its place in the simplex, with a loss of 0; a new one joins at the mean
        all_names = {**dict.fromkeys(self.memory["weights"], 0.0), **dict.fromkeys(names, 0.0)}
        weight_before = self._weights(list(all_names))
        place = torch.tensor([list(all_names).index(name) for name in names], dtype=torch.int64)
        loss_by_population = losses.new_zeros(len(all_names)).index_copy(0, place, losses)
        # detached: the weights are the maximiser's move, the loss is minimised at fixed weights
        weight = mirror_step(weight_before.to(losses), loss_by_population.detach(), self.population_rate)
        figures |= {f"{WEIGHT}{name}": float(w) for name, w in zip(all_names, weight, strict=True)}
        figures |= {f"{LOSS}{name}": float(x.detach()) for name, x in zip(names, losses, strict=True)}
        return (weight * loss_by_population).sum(), figures

    def _populations(self, forest: Forest, group: Tensor, counted_R: Tensor) -> tuple[list[str], Tensor]:
        """Names of the step's populations, sorted, and the index among them of each group's, [G]."""
        key, population_by_group = self.population.removeprefix("info."), dict[int, str]()
        for row, g, info in zip(counted_R.tolist(), group.tolist(), forest.info, strict=True):
            if row and key not in info:
                raise GxpoError(f"objective.population=info.{key}: a rollout of group {g} has no {key!r} in its info")
            if row and population_by_group.setdefault(g, str(info[key])) != str(info[key]):
                raise GxpoError(f"objective.population=info.{key}: the rollouts of one group are of two populations")
        names = sorted(set(population_by_group.values()))
        population_G = torch.zeros(int(group.max()) + 1, dtype=torch.int64)
        for g, name in population_by_group.items():
            population_G[g] = names.index(name)
        return names, population_G

    def _weights(self, names: Sequence[str]) -> Tensor:
        """Weights of the populations before the step, [K] float64, summing to 1."""
        weight_by_name = self.memory["weights"]
        mean_weight = sum(weight_by_name.values()) / len(weight_by_name) if weight_by_name else 1.0
        weight = torch.tensor([weight_by_name.get(name, mean_weight) for name in names], dtype=torch.float64)
        return weight / weight.sum()

    @torch.no_grad()
    def _smoothing(self, forest: Forest, comparisons: Comparisons) -> tuple[Tensor | float, dict[str, float]]:
        """Label smoothing 1 - l of each comparison; the preferences that labels will follow are remembered."""
        if not self.label_rate:
            return self.label_smoothing, {}
        # a pair is known by its rollouts' ids: labels follow it through the steps in which it comes back
        rows = comparisons.rows.tolist()
        pair_names = [f"{forest.id[a]} {forest.id[b]}" for a, b in rows]
        label = torch.ones(len(comparisons.better), dtype=torch.float64)
        label[: len(pair_names)] = torch.tensor([self.memory["labels"].get(name, 1.0) for name in pair_names])
        z = comparisons.beta * (comparisons.better - self.bias * comparisons.worse) - self.margin
        preference_by_pair = dict(zip(pair_names, torch.sigmoid(z).tolist(), strict=False))
        # of several updates in a step the first one's: labels follow the policy as the step began
        self.memory["seen"] = {**preference_by_pair, **self.memory["seen"]}
        return 1 - label, {"pair_label": float(label[: len(pair_names)].mean())} if pair_names else {}

    # ------------------------------------------------------------ what is remembered
    def adjust(self, figures: Mapping[str, float]) -> dict[str, float]:
        """Update the memory after a step: the populations' weights as used, and the labels of the pairs seen."""
        weights = {k.removeprefix(WEIGHT): x for k, x in figures.items() if k.startswith(WEIGHT)}
        if weights and self.population:
            self.memory["weights"] = weights
        labels, rate = self.memory["labels"], self.label_rate
        for name, preference in self.memory["seen"].items():
            labels[name] = (1 - rate) * labels.pop(name, 1.0) + rate * preference
        # pairs that came back were put at the end: the oldest are forgotten
        self.memory["labels"] = dict(list(labels.items())[-LABELS:])
        self.memory["seen"] = {}
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {name: dict(self.memory[name]) for name in ("weights", "labels")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if set(state) != {"weights", "labels"}:
            raise CheckpointError(f"robust_pairs remembers weights and labels; the checkpoint has {sorted(state)}")
        self.memory.update({name: {k: float(x) for k, x in state[name].items()} for name in state}, seen={})
