"""Advantages of denoising models: against a task's reward buffer (DDPO), and of steps by their look-ahead (VGPO)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor

from gxpo.algorithms.credit.columns import column
from gxpo.forest import grouped
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest


@part("standardised", stage="credit", axis="R", learns_from_equal_groups=True)
def standardised(
    outcome: Tensor,
    baseline: Tensor,
    spread: Tensor,
    *,
    eps: Annotated[float, Ge(0)] = 1e-6,
    bound: Annotated[float, Gt(0)] = 10.0,
) -> Tensor:
    """Advantage against given statistics (DDPO), [R]: clip((outcome - baseline) / (spread + eps), -bound, bound).

    baseline, spread  [R] signals, such as those of `signal.reward_buffer`; without a spread the advantage is 0

    Source: DDPO, arXiv 2305.13301, and its code.
    """
    scaled = (outcome.to(torch.float64) - baseline) / torch.where(spread > 0, spread + eps, torch.ones_like(spread))
    return torch.where(spread > 0, scaled, 0.0).clamp(-bound, bound)


@column("R")
def sample(forest: Forest) -> Tensor:
    """Ids of the samples whose steps the trajectories are."""
    return _step_facts(forest)[0]


@column("R")
def denoising_step(forest: Forest) -> Tensor:
    """Denoising step of each trajectory."""
    return _step_facts(forest)[1]


def _step_facts(forest: Forest) -> tuple[Tensor, Tensor]:
    """Sample and number of each trajectory that is a step of a sample; any other is a sample of one step."""
    names: dict[Any, int] = {}
    rows = zip(forest.info, forest.id, strict=True)
    sample = [names.setdefault(info.get("sample", name), len(names)) for info, name in rows]
    return torch.tensor(sample), torch.tensor([info.get("denoising_step", 0) for info in forest.info])


@part("anchored_value", stage="credit", axis="R", learns_from_equal_groups=lambda kappa, **_: kappa > 0)
def anchored_value(
    outcome: Tensor,
    group: Tensor,
    sample: Tensor,
    denoising_step: Tensor,
    where: Tensor | None = None,
    *,
    gamma: Annotated[float, Interval(ge=0, le=1)] = 0.9,
    kappa: Annotated[float, Ge(0)] = 0.1,
    weighted: bool = True,
    first: Annotated[int, Ge(0)] = 5,
    eps: Annotated[float, Ge(0)] = 1e-8,
) -> Tensor:
    """Anchored value advantage of denoising steps (VGPO), [R]: A = omega ((Q - mean) / (std + eps) + kappa Q).

    Q_k = sum_{j >= k} gamma^(j - k) R_j over the later steps of the sample, R_j the outcome of step j's look-ahead, and
    omega_k = Q_k / mean_k Q_k of the sample; mean and std are of Q over the group, one step's.

    outcome, group, sample, denoising_step  [R] of a trajectory, which is one step of a sample (where its record does
              not say of which: a sample of one step)
    weighted  False: omega is 1
    first     steps, from the first, in which kappa Q is added

    kappa Q is what is left where a group's Q are equal. Rewards are 0 or more: where the mean of a sample's Q is not
    above 0, omega is 1. Source: VGPO, arXiv 2512.12387.

    >>> q = torch.tensor([0.2, 0.6, 1.0], dtype=torch.float64)
    >>> one = torch.zeros(3, dtype=torch.int64)
    >>> anchored_value(q, torch.arange(3), one, torch.arange(3), gamma=0.9, kappa=1.0).round(decimals=6).tolist()
    [1.77963, 1.666667, 0.740741]
    """
    # one row a step, from the last to the first: each adds its own reward to what comes after it
    n = int(sample.max()) + 1 if len(sample) else 0
    value, total = torch.zeros(len(outcome), dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
    for k in denoising_step.unique().flip(0):
        rows = (denoising_step == k).nonzero().squeeze(1)
        total[sample[rows]] = outcome[rows].to(torch.float64) + gamma * total[sample[rows]]
        value[rows] = total[sample[rows]]
    mean = grouped.mean(value, sample)
    omega = torch.where(mean > 0, value / torch.where(mean > 0, mean, 1.0), 1.0) if weighted else torch.ones_like(value)
    relative = grouped.normalize(value, group, where, ddof=0, eps=eps)
    return omega * (relative + torch.where(denoising_step < first, kappa * value, 0.0))
