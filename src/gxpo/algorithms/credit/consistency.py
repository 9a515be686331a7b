"""Intra- and inter-group advantages, blended by answer entropy (COPO)."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from gxpo.algorithms.credit.relative import group_relative
from gxpo.forest import grouped
from gxpo.parts.registry import part


@torch.no_grad()
def between_groups(
    outcome: Tensor, group: Tensor, where: Tensor | None = None, scale: str = "std", ddof: int = 1, eps: float = 1e-6
) -> Tensor:
    """A = (R_g - mean R) / (std R + eps), R_g the group's mean outcome, over the batch's groups: [R] float64.

    outcome  [R];   group  [R] int64 dense ids, -1 = in no group;   where  [R] bool, compared (default: all)
    scale    "std" with `ddof` degrees of freedom taken off | "none"

    Every group counts once, whatever its size; all its members have the same. 0 where the batch has one group, where
    all groups are equal, and for a group without compared members.
    """
    enters = group >= 0 if where is None else (group >= 0) & where
    place = torch.arange(len(group))
    first = enters & (grouped.min(place, group, enters) == place)
    batch = torch.zeros_like(group)
    mean = grouped.mean(outcome, group, enters)
    found = grouped.normalize(mean, batch, first, scale=scale, ddof=ddof, eps=eps)
    differ = ~grouped.degenerate(mean, batch, first) & (grouped.count(group, enters) > 0)
    return torch.where(differ, found, 0.0)


@torch.no_grad()
def answer_disagreement(cluster: Tensor, group: Tensor, where: Tensor | None = None) -> Tensor:
    """H = -sum_k p_k log p_k over the group's answers, in nats: [R] float64, the same for all of a group.

    cluster  [R] int64 ids, equal inside a group where the answers are, -1 none;   where  [R] bool, whose answers count
    """
    counts = (group >= 0) & (cluster >= 0)
    counts = counts if where is None else counts & where
    share = grouped.count(cluster, counts) / grouped.count(group, counts).clamp_min(1)
    return -grouped.mean(torch.where(counts, share, 1.0).log(), group, counts)


@torch.no_grad()
def blended(
    inside: Tensor, between: Tensor, disagreement: Tensor, steepness: float = 20.0, middle: float = 1.5
) -> Tensor:
    """Blend w inside + (1 - w) between, float64, w = 1 / (1 + exp(-steepness (H - middle))), H the disagreement in the
    unit of `middle`.

    >>> w = blended(torch.ones(3), torch.zeros(3), torch.tensor([1.0, 4.0, 8.0]).log())  # 1, 4 and 8 answers
    >>> [round(x, 4) for x in w.tolist()]
    [0.0, 0.0933, 1.0]
    """
    w = torch.sigmoid(steepness * (disagreement.to(torch.float64) - middle))
    return w * inside + (1.0 - w) * between


@part("consistency_blended", stage="credit", learns_from_equal_groups=True)
def consistency_blended(
    outcome: Tensor,
    group: Tensor,
    answer_cluster: Tensor,
    where: Tensor | None = None,
    *,
    steepness: float = 20.0,
    middle: float = 1.5,
    unit: Literal["bits", "nats"] = "bits",
    failures: Literal["blend", "between"] = "blend",
    scale: Literal["std", "none"] = "std",
    ddof: int = 1,
    eps: float = 1e-6,
) -> Tensor:
    """Intra- and inter-group advantages, blended by answer entropy (COPO); [R] float64.

    `blended` of `group_relative` and `between_groups` by `answer_disagreement`

    answer_cluster  [R] int64 signal, ids of equal answers
    steepness, middle  of the blend
    unit      of H and `middle`: "bits" or "nats". G attempts can disagree by log2 G bits at most, log G nats
    failures  "blend", or "between": an attempt of outcome 0 is measured between groups alone, w = 0 for it
    scale, ddof, eps   of both advantages

    A group that agrees is measured by its mean outcome against the other groups of the step, so groups of equal
    outcomes learn, unless the step has one group or all its groups have one mean.

    Source: COPO, arXiv 2508.04138, and its code, which takes logarithms to base 2.
    """
    inside = group_relative(outcome, group, "mean", scale, ddof, eps, where)
    between = between_groups(outcome, group, where, scale, ddof, eps)
    disagreement = answer_disagreement(answer_cluster, group, where) / (math.log(2) if unit == "bits" else 1.0)
    found = blended(inside, between, disagreement, steepness, middle)
    return torch.where(outcome == 0, between, found) if failures == "between" else found
