"""Decoupled normalisation of several rewards (GDPO): each in its group, then weighted and summed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from gxpo.algorithms.credit.batch_whiten import batch_whiten
from gxpo.algorithms.credit.relative import Single, alone, group_relative
from gxpo.base.errors import ConfigError, did_you_mean
from gxpo.forest import grouped
from gxpo.forest.forest import Forest
from gxpo.parts.functions import checked_by
from gxpo.parts.registry import part

OTHERS = "*"  # in weights: every component that is not named


@torch.no_grad()
def decoupled_sum(
    rewards: Tensor,
    weights: Tensor,
    group: Tensor,
    where: Tensor | None = None,
    ddof: int = 1,
    eps: float = 1e-4,
    singleton: str = "zero",
    only: Tensor | None = None,
) -> Tensor:
    """s = sum_k w_k z_k, z_k = (r_k - mean_g r_k) / (std_g r_k + eps), for each reward k over the group.

    rewards  [R, K] any float dtype;   weights  [K];   group  [R] int64 dense ids, -1 = in no group
    where    [R] bool (default: all): which enter the statistics; the others are measured by them
    singleton  what z is in a group of one: "zero", or "raw", r_k / (1 + eps)
    only     [R, K] bool (default: all): of which trajectories reward k has statistics and z; z is 0 for the others, and
             where it has fewer than two of a group

    Returns [R] float64. A reward whose values are equal in a group adds exactly 0 there, whatever its weight.
    """
    options = {"ddof": ddof, "eps": eps, "where": where}
    columns = []
    for k, r in enumerate(rewards.unbind(1)):
        if only is None or bool(only[:, k].all()):
            columns.append(group_relative(r, group, **options, singleton=singleton))
        else:
            own = torch.where(only[:, k], group, -1)
            columns.append(torch.where(only[:, k], group_relative(r, own, **options), 0.0))
    return torch.stack(columns, 1) @ weights.to(torch.float64)


@torch.no_grad()
def batch_normalized(value: Tensor, moved: Tensor, where: Tensor, ddof: int = 1, eps: float = 1e-4) -> Tensor:
    """(value - mean) / (std + eps) over the trajectories of the batch: [R] float64.

    moved  [R] bool: the others (of groups that are equal in every reward) enter the statistics and are given exactly 0
    where  [R] bool: which enter the statistics
    """
    batch = torch.zeros(value.shape, dtype=torch.int64)
    out = grouped.normalize(value, batch, where, ddof=ddof, eps=eps)
    return torch.where(moved, out, torch.zeros_like(out))


def _rewards(forest: Forest, weights: Mapping[str, float] | None) -> tuple[tuple[str, ...], Tensor, Tensor]:
    """Names [K] of the components that have a weight, their columns [R, K], and the weights [K]."""
    names = tuple(forest.component_names)
    if weights is None:
        columns = forest.components if names else forest.outcome[:, None]
        return names or ("outcome",), columns, torch.ones(columns.shape[1], dtype=torch.float64)
    if OTHERS in weights:
        if not set(names) - set(weights):
            raise ConfigError("credit.weights names '*', and these rollouts have no component but those it names")
        weights = {**dict.fromkeys(names, weights[OTHERS]), **{k: w for k, w in weights.items() if k != OTHERS}}
    for name in weights:
        if name not in names:
            there = ", ".join(names) or "none"
            raise ConfigError(
                f"credit.weights names {name!r}, which is no component of these rollouts"
                f"{did_you_mean(name, names)}; there is {there}"
            )
    weighted = {name: weight for name, weight in weights.items() if weight != 0}
    chosen = torch.tensor([names.index(name) for name in weighted])
    return tuple(weighted), forest.components[:, chosen], torch.tensor(list(weighted.values()), dtype=torch.float64)


def _channels(forest: Forest, names: Sequence[str], only: Mapping[str, str] | None) -> Tensor | None:
    """[R, K] bool: of which trajectories each component is taken; None where it is of all."""
    if not only:
        return None
    for name in only:
        if name not in names:
            raise ConfigError(f"credit.only names {name!r}, which has no weight{did_you_mean(name, names)}")
    forest.need_verdicts("credit.only", each=True)
    right = forest.success >= 1
    return torch.stack([right if name in only else torch.ones_like(right) for name in names], 1)


def _some(weights: Mapping[str, float] | None, **_: Any) -> str | None:
    nothing = weights is not None and not any(weights.values())
    return "weights: no reward has a weight other than 0" if nothing else None


@part("decoupled", stage="credit", gives="P", learns_from_equal_groups=lambda over, **_: over == "tokens")
@checked_by(_some)
def decoupled(
    group: Tensor,
    forest: Forest,
    *,
    weights: Mapping[str, Annotated[float, Interval(gt=-math.inf, lt=math.inf)]] | None = None,
    over: Literal["trajectories", "tokens", "none"] = "trajectories",
    only: Mapping[str, Literal["success"]] | None = None,
    ddof: int = 1,
    eps: float = 1e-4,
    singleton: Single = "zero",
) -> Tensor:
    """Decoupled normalisation of several rewards (GDPO): each in its group, then weighted, summed and normalised.

    `decoupled_sum` of `forest.components`, then normalised over the batch; the same for every token; [P] float64.

    weights  {component: weight}, "*" every other one; null: every component, each with weight 1 (the outcome, if there
             are no components)
    over     what the batch is made of. "trajectories": each counts once (TRL, NeMo). "tokens": (s - mean) / sqrt(var +
             1e-8) over trainable tokens, so that long answers weigh more (verl); groups of equal rewards then have
             credit, too, since the mean over tokens is not 0. "none": no second normalisation
    only     {component: "success"}: this component is compared among successes alone: failures have no share in its
             statistics and 0 from it, and so has a group with a single success (HDPO, arXiv 2604.08545)
    ddof, eps  of the standard deviations
    singleton  z of a group of one: "zero" (TRL), or the "raw" rewards (verl), which the batch then is normalised with

    With a single reward the second normalisation is left out, as in TRL: then this is `group_relative`. The
    batch's mean and std are of what is given to it: the trajectories of one step. A trajectory with nan in a weighted
    component is taken as unscored: it is in no statistic, and its advantage is exactly 0 (it stays in the loss's
    denominators unless the same components are counted under `reward`). Weights are by name: one that is not among the
    components is an error.

    Source: GDPO (arXiv 2601.05242), both of its ports; eps 1e-4 as in TRL's.
    """
    names, rewards, factors = _rewards(forest, weights)
    usable = rewards.isfinite().all(1)
    rewards = torch.where(usable[:, None], rewards, torch.zeros_like(rewards))
    enters, group = forest.compared & usable, torch.where(usable, group, -1)
    channels = _channels(forest, names, only)
    total = decoupled_sum(rewards, factors, group, enters, ddof, eps, singleton, channels)
    if len(factors) == 1 or over == "none":
        return forest.to_path(total, "R")
    if over == "tokens":
        trained = forest.path_trainable & forest.to_path(usable, "R")
        return batch_whiten(forest.to_path(total, "R"), trained, forest.to_path(enters, "R"))
    moved = alone(group, enters) if singleton == "raw" else torch.zeros_like(usable)
    for k, reward in enumerate(rewards.unbind(1)):
        own = group if channels is None else torch.where(channels[:, k], group, -1)
        moved |= ~grouped.degenerate(reward, own, enters) | ~enters
    return forest.to_path(batch_normalized(total, moved & usable, enters, ddof, eps), "R")
