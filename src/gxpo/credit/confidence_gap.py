"""A bonus for answers that the policy is less sure of than of their prompt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo import levels
from gxpo.credit.base import CreditPart
from gxpo.credit.likelihood import answer_logprob, mean_of_lowest
from gxpo.errors import ConfigError

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def confidence_gap(
    prompt: Tensor, answer: Tensor, group: Tensor, correct: Tensor, where: Tensor, alpha: float = 0.3
) -> Tensor:
    """alpha (c(q) - c(o)) in groups with a correct counting member, 0 in the others; [R] float64.

    prompt, answer  [R] confidences: geometric means of token probabilities
    group           [R] int64 dense ids;   correct, where  [R] bool: verdict, compared

    >>> c, right, all_of_it = torch.tensor([0.9, 0.5]), torch.tensor([True, False]), torch.ones(2).bool()
    >>> confidence_gap(torch.full((2,), 0.6), c, torch.zeros(2).long(), right, all_of_it).round(decimals=6).tolist()
    [-0.09, 0.03]
    """
    solved = levels.max(correct, group, where) > 0
    gap = alpha * (prompt.to(torch.float64) - answer.to(torch.float64))
    return torch.where(solved, gap, torch.zeros_like(gap))


@dataclass(frozen=True)
class ConfidenceGap(CreditPart):
    """`confidence_gap`, to be added to another credit; the same for every token of a trajectory, right or wrong.

    alpha  how much a gap is worth, in units of the credit that it is added to
    share  of its tokens over which an answer's confidence is taken, the least probable ones (at least one)

    Reads signal `prompt_confidence` and the sampler's log-probs. A trajectory without a verdict counts as correct where
    its outcome is above 0. Groups in which all are correct learn.

    Source: ProGRPO, arXiv 2602.05281.
    """

    alpha: float = 0.3
    share: float = 0.2

    needs = ("prompt_confidence",)
    on_equal = "signal"

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ConfigError(f"share of confidence_gap is {self.share}; it is a share of tokens above 0, up to 1")

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        answer = mean_of_lowest(*answer_logprob(forest, signals), forest.n_trajectories, self.share).exp()
        correct = torch.where(forest.success.isfinite(), forest.success >= 1, forest.outcome > 0)
        group = forest.ids("group", axis="R")
        gap = confidence_gap(signals["prompt_confidence"], answer, group, correct, forest.compared, self.alpha)
        return forest.to_path(gap, "R")
