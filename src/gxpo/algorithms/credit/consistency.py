"""Advantages by the likeness of a group's answers: blended levels (COPO), shared rewards (DRA-GRPO)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gxpo.algorithms.credit.relative import Relative, group_relative
from gxpo.forest import grouped
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Signals


@torch.no_grad()
def between_groups(
    outcome: Tensor, group: Tensor, where: Tensor | None = None, scale: str = "std", ddof: int = 1, eps: float = 1e-6
) -> Tensor:
    """Inter-group advantage: A = (R_g - mean R) / (std R + eps), R_g the mean outcome of group g; [R] float64.

    outcome  [R];   group  [R] int64 dense ids, -1 = in no group;   where  [R] bool, compared (default: all)
    scale    "std" with `ddof` degrees of freedom taken off | "none"

    Every group counts once, whatever its size; all its members have the same. 0 where the batch has one group, where
    all groups are equal, and for a group without compared members.
    """
    is_compared_R = group >= 0 if where is None else (group >= 0) & where
    # A group's first compared member stands for it, so that each group counts once, whatever its size.
    row_R = torch.arange(len(group))
    is_first_R = is_compared_R & (grouped.min(row_R, group, is_compared_R) == row_R)
    batch = torch.zeros_like(group)
    group_mean_R = grouped.mean(outcome, group, is_compared_R)
    advantage_R = grouped.normalize(group_mean_R, batch, is_first_R, scale=scale, ddof=ddof, eps=eps)
    # `normalize` gives the representative 0 alone; its group, or a batch without differences, has to be 0 as well.
    groups_differ = ~grouped.degenerate(group_mean_R, batch, is_first_R) & (grouped.count(group, is_compared_R) > 0)
    return torch.where(groups_differ, advantage_R, 0.0)


@torch.no_grad()
def answer_disagreement(cluster: Tensor, group: Tensor, where: Tensor | None = None) -> Tensor:
    """Answer entropy H = -sum_k p_k log p_k of the group, in nats: [R] float64, the same for all of a group.

    cluster  [R] int64 ids, equal for equal answers of a group, -1 none;   where  [R] bool, answers that count
    """
    is_counted_R = (group >= 0) & (cluster >= 0)
    is_counted_R = is_counted_R if where is None else is_counted_R & where
    # The mean over members of -log p is the sum over answers of -p log p.
    share = grouped.count(cluster, is_counted_R) / grouped.count(group, is_counted_R).clamp_min(1)
    return -grouped.mean(torch.where(is_counted_R, share, 1.0).log(), group, is_counted_R)


@torch.no_grad()
def blended(
    inside: Tensor, between: Tensor, disagreement: Tensor, steepness: float = 20.0, midpoint: float = 1.5
) -> Tensor:
    """Blend w inside + (1 - w) between, float64, w = 1 / (1 + exp(-steepness (H - middle))), H the disagreement in the
    unit of `midpoint`.

    >>> w = blended(torch.ones(3), torch.zeros(3), torch.tensor([1.0, 4.0, 8.0]).log())  # 1, 4 and 8 answers
    >>> [round(x, 4) for x in w.tolist()]
    [0.0, 0.0933, 1.0]
    """
    w = torch.sigmoid(steepness * (disagreement.to(torch.float64) - midpoint))
    return w * inside + (1.0 - w) * between


@part("consistency_blended", stage="credit", learns_from_equal_groups=True)
def consistency_blended(
    outcome: Tensor,
    group: Tensor,
    answer_cluster: Tensor,
    where: Tensor | None = None,
    *,
    steepness: float = 20.0,
    midpoint: float = 1.5,
    unit: Literal["bits", "nats"] = "bits",
    failures: Literal["blend", "between"] = "blend",
    scale: Literal["std", "none"] = "std",
    ddof: int = 1,
    eps: float = 1e-6,
) -> Tensor:
    """Intra- and inter-group advantages, blended by answer entropy (COPO); [R] float64.

    `blended` of `group_relative` and `between_groups` by `answer_disagreement`

    answer_cluster  [R] int64 signal, ids of equal answers
    steepness, midpoint  of the blend
    unit      of H and `midpoint`: "bits" or "nats". G attempts can disagree by log2 G bits at most, log G nats
    failures  "blend", or "between": an attempt of outcome 0 is measured between groups alone, w = 0 for it
    scale, ddof, eps   of both advantages

    A group that agrees is measured by its mean outcome against the other groups of the step, so groups of equal
    outcomes learn, unless the step has one group or all its groups have one mean.

    Source: COPO, arXiv 2508.04138, and its code, which takes logarithms to base 2.
    """
    within_groups_R = group_relative(outcome, group, "mean", scale, ddof, eps, where)
    between_groups_R = between_groups(outcome, group, where, scale, ddof, eps)
    # COPO's code takes logarithms to base 2, and its `midpoint` of 1.5 is in bits.
    entropy_R = answer_disagreement(answer_cluster, group, where) / (math.log(2) if unit == "bits" else 1.0)
    blend_R = blended(within_groups_R, between_groups_R, entropy_R, steepness, midpoint)
    return torch.where(outcome == 0, between_groups_R, blend_R) if failures == "between" else blend_R


@torch.no_grad()
def diversity_adjusted(
    outcome: Tensor, embedding: Tensor, group: Tensor, where: Tensor | None = None, eps: float = 1e-6
) -> Tensor:
    """Diversity-adjusted reward: r' = r / (max(1, sum_j cos(e_i, e_j)) + eps) over compared members j; [R] float64.

    outcome    [R] any float dtype
    embedding  [R, H] of any length; a zero vector is like nothing
    group      [R] int64 dense ids, -1 = in no group;   where  [R] bool, compared (default: all)

    The sum is 1 for an attempt unlike all others and G where all G say the same: so many share one reward. Where the
    others point away it would fall below 1, or to 0: it is held at 1. Rewards below 0 are divided alike, so a redundant
    failure costs less.

    Source: DRA-GRPO (arXiv 2505.09655, the graph cut), whose code divides without the bound.

    >>> e = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    >>> diversity_adjusted(torch.ones(3), e, torch.zeros(3).long(), eps=0.0).tolist()
    [0.5, 0.5, 1.0]
    """
    # Cosines of unit vectors: their sum over a group is one product with the sum of its directions.
    direction = torch.nn.functional.normalize(embedding.to(torch.float64), dim=1)
    is_compared_R = group >= 0 if where is None else (group >= 0) & where
    rows = is_compared_R.nonzero().squeeze(1)
    n_groups = int(group.max()) + 1 if len(rows) else 1
    direction_sum = torch.zeros(n_groups, direction.shape[1], dtype=torch.float64).index_add_(
        0, group[rows], direction[rows]
    )
    # One that is not compared is in no sum: its likeness to itself is added.
    similarity_R = (direction * direction_sum[group.clamp(0, n_groups - 1)]).sum(1) + (~is_compared_R).to(torch.float64)
    return outcome.to(torch.float64) / (torch.where(group >= 0, similarity_R, 1.0).clamp_min(1.0) + eps)


@part("diversity_adjusted", stage="credit")
@dataclass(frozen=True)
class DiversityAdjusted(Relative):
    """Diversity-adjusted advantage (DRA-GRPO): `Relative` of the `diversity_adjusted` outcome, equal for all tokens.

    Reads signal "embedding" [R, H]. A group of equal outcomes other than 0 learns: what is unlike the others earns
    more (less, where outcomes are below 0). One of outcomes 0 does not.
    """

    needs = ("embedding",)
    learns_from_equal_groups = True

    def is_centred(self) -> bool:
        return False  # what is centred is the adjusted outcome, which no record has

    def values(self, forest: Forest, signals: Signals) -> tuple[Tensor, str]:
        group = forest.ids("group", axis="R")
        return diversity_adjusted(forest.outcome, signals["embedding"], group, forest.compared), "R"
