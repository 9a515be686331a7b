"""Groups weighed by how far their attempts agree on the answer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gxpo import levels
from gxpo.errors import ConfigError, one_of
from gxpo.weighting.base import WeightPart

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals

TINY = 1e-300  # the least probability of a cluster, where likelihoods give it none


@torch.no_grad()
def answer_entropy(
    cluster: Tensor,
    group: Tensor,
    where: Tensor | None = None,
    likelihood: Tensor | None = None,
    estimator: str = "mean_log",
) -> Tensor:
    """Uncertainty of each group about its answer, in nats: [R] float64, the same for all of a group; 0 where all agree.

    cluster     [R] int64 ids, equal inside a group where the answers are, -1 none;   group  [R] int64 ids, -1 none
    where       [R] bool, compared (default: all): whose answers count
    likelihood  [R] log-probability of each attempt: p_k is then its cluster's share of their total (default: of heads)
    estimator   "mean_log": -(1/K) sum_k log p_k over the group's K clusters; "shannon": -sum_k p_k log p_k

    Mean_log is not an entropy: a split of 3 against 1 has 0.837, one of 2 against 2 has 0.693 (Shannon: 0.562, 0.693).
    """
    counts = (group >= 0) & (cluster >= 0)
    counts = counts if where is None else counts & where
    score = torch.zeros(group.shape, dtype=torch.float64) if likelihood is None else likelihood
    p = levels.sum(levels.softmax(score, group, counts), cluster, counts)
    surprise = -p.clamp(TINY, 1.0).log()
    once = 1.0 / levels.count(cluster, counts).clamp_min(1)  # every cluster counts once, however many are in it
    if estimator == "mean_log":
        return levels.mean(surprise, group, counts, weight=once)
    return levels.sum(once * p * surprise, group, counts)


@torch.no_grad()
def damped(share: Tensor, alpha: float = 1.0, decay: str = "linear", power: float = 2.0) -> Tensor:
    """w(x), x = alpha * share: "linear" 1 - x; "exponential" e^-x; "focal" (1 - x)^power. Never below 0.

    >>> damped(torch.tensor([0.0, 0.5, 1.2])).tolist()
    [1.0, 0.5, 0.0]
    """
    x = alpha * share.to(torch.float64)
    if decay == "exponential":
        return (-x).exp()
    left = (1.0 - x).clamp_min(0.0)
    return left**power if decay == "focal" else left


@dataclass(frozen=True)
class AnswerEntropy(WeightPart):
    """`damped` by `answer_entropy` over log G, its largest value by heads, G the group's compared attempts (SEED-GRPO).

    alpha      how much; at 1 and "linear" a group in which no two answers agree is not trained at all
    decay      "linear" | "exponential" | "focal", with `power`
    estimator  "mean_log" | "shannon"
    mass       what a cluster's probability is made of: "count", or "likelihood": e to the mean log-probability of an
               attempt's tokens, by the policy at the start of the step. Mean_log may then exceed log G: no weight is
               below 0

    Reads signal "answer_cluster" [R]. Attempts that are not compared have their group's weight and no say in it.
    """

    alpha: float = 1.0
    decay: Literal["linear", "exponential", "focal"] = "linear"
    power: float = 2.0
    estimator: Literal["mean_log", "shannon"] = "mean_log"
    mass: Literal["count", "likelihood"] = "count"

    needs = ("answer_cluster",)

    def __post_init__(self) -> None:
        one_of("weight.answer_entropy.decay", self.decay, ("linear", "exponential", "focal"))
        one_of("weight.answer_entropy.estimator", self.estimator, ("mean_log", "shannon"))
        one_of("weight.answer_entropy.mass", self.mass, ("count", "likelihood"))
        if not (self.alpha >= 0 and self.power > 0):
            raise ConfigError(
                f"weight.answer_entropy: alpha ({self.alpha}) is 0 or more, and power ({self.power}) above 0"
            )

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        group = forest.ids("group", axis="R")
        likely = None
        if self.mass == "likelihood":
            trained = torch.where(forest.path_trainable, signals["proximal_logprob"], 0.0)
            total = torch.bincount(forest.path_trajectory, trained, forest.n_trajectories)
            likely = total / forest.lengths().clamp_min(1)
        entropy = answer_entropy(signals["answer_cluster"], group, forest.compared, likely, self.estimator)
        largest = levels.count(group, forest.compared).clamp_min(1).log()
        share = torch.where(largest > 0, entropy / torch.where(largest > 0, largest, 1.0), 0.0)
        return forest.to_path(damped(share, self.alpha, self.decay, self.power), "R")
