"""Weights that train the tokens at which the policy is least sure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gxpo import levels
from gxpo.errors import ConfigError, MissingSignal, one_of
from gxpo.weighting.base import WeightPart

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def above_quantile(entropy: Tensor, unit: Tensor, share: float = 0.2, where: Tensor | None = None) -> Tensor:
    """[n] float64: 1 where the entropy is at least the (1 - share)-quantile of its unit, else 0.

    entropy  [n] nats;   unit  [n] int64
    where    [n] bool, who makes up the quantile, which is interpolated linearly (default: all)

    >>> above_quantile(torch.tensor([0.1, 2.0, 0.5, 0.05, 1.5]), torch.zeros(5, dtype=torch.int64)).tolist()
    [0.0, 1.0, 0.0, 0.0, 0.0]
    """
    return (entropy >= levels.quantile(entropy, unit, 1 - share, where)).to(torch.float64)


@dataclass(frozen=True)
class EntropyQuantile(WeightPart):
    """`above_quantile` of the policy's entropy at the start of the step, over the trainable tokens.

    share  of the tokens that are trained; the others keep their place in every denominator
    scope  "batch": the quantile of all tokens of the step's compared trajectories | "trajectory": of each one's own

    Reads signal `entropy`. Source: Wang et al., arXiv 2506.01939 (20 %, over the batch); TRL's `top_entropy_quantile`.
    """

    share: float = 0.2
    scope: Literal["batch", "trajectory"] = "batch"

    needs = ("entropy",)

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError(
                f"weight.entropy_quantile.share is {self.share}; it is a share of tokens above 0, up to 1"
            )
        one_of("weight.entropy_quantile.scope", self.scope, ("batch", "trajectory"))

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        entries = forest.path_trainable.nonzero().squeeze(1)
        entropy, owner = signals["entropy"][entries].to(torch.float64), forest.path_trajectory[entries]
        if missing := int(entropy.isnan().sum()):
            raise MissingSignal(f"entropy is nan for {missing} of {entries.numel()} trainable tokens")
        alone = self.scope == "trajectory"
        where = torch.ones_like(owner, dtype=torch.bool) if alone else forest.compared[owner]
        weight = torch.zeros(forest.n_entries, dtype=torch.float64)
        unit = owner if alone else torch.zeros_like(owner)
        weight[entries] = above_quantile(entropy, unit, self.share, where)
        return weight
