"""Decoupled normalisation of several rewards (GDPO): each in its group, then weighted and summed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from gxpo.algorithms.credit.batch_whiten import batch_whiten
from gxpo.algorithms.credit.relative import Single, group_relative, is_singleton
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
    """Weighted sum of group-normalised rewards: s = sum_k w_k z_k, z_k = (r_k - mean_g r_k) / (std_g r_k + eps).

    rewards  [R, K] any float dtype;   weights  [K];   group  [R] int64 dense ids, -1 = in no group
    where    [R] bool (default: all): trajectories that enter the statistics; the others are measured by them
    singleton  z of a group of one: "zero", or "raw", r_k / (1 + eps)
    only     [R, K] bool (default: all): trajectories that reward k is taken of; z is 0 for the others, and for fewer
             than two of a group

    Returns [R] float64. A reward whose values are equal in a group adds exactly 0 there, whatever its weight.
    """
    options = {"ddof": ddof, "eps": eps, "where": where}
    z_columns = []
    for k, r in enumerate(rewards.unbind(1)):
        # A reward of successes alone is centred among these; `singleton` is not for it: one success alone has 0 (HDPO).
        if only is None or bool(only[:, k].all()):
            z_columns.append(group_relative(r, group, **options, singleton=singleton))
        else:
            group_of_only = torch.where(only[:, k], group, -1)
            z_columns.append(torch.where(only[:, k], group_relative(r, group_of_only, **options), 0.0))
    return torch.stack(z_columns, 1) @ weights.to(torch.float64)


@torch.no_grad()
def batch_normalized(value: Tensor, has_spread_R: Tensor, where: Tensor, ddof: int = 1, eps: float = 1e-4) -> Tensor:
    """Normalise over the trajectories of the batch: (value - mean) / (std + eps), [R] float64.

    has_spread_R  [R] bool: the others (of groups that are equal in every reward) enter the statistics and get exactly 0
    where         [R] bool: trajectories that enter the statistics
    """
    one_batch = torch.zeros(value.shape, dtype=torch.int64)
    out = grouped.normalize(value, one_batch, where, ddof=ddof, eps=eps)
    return torch.where(has_spread_R, out, torch.zeros_like(out))


def _rewards(forest: Forest, weights: Mapping[str, float] | None) -> tuple[tuple[str, ...], Tensor, Tensor]:
    """Names [K] of the weighted components, their columns [R, K], and the weights [K]."""
    names = tuple(forest.component_names)
    # Without weights each component counts 1; records without components have their outcome.
    if weights is None:
        columns = forest.components if names else forest.outcome[:, None]
        return names or ("outcome",), columns, torch.ones(columns.shape[1], dtype=torch.float64)
    if OTHERS in weights:
        if not set(names) - set(weights):
            raise ConfigError("credit.weights lists every component of these rollouts by name: leave '*' out")
        weights = {**dict.fromkeys(names, weights[OTHERS]), **{k: w for k, w in weights.items() if k != OTHERS}}
    for name in weights:
        if name not in names:
            available = ", ".join(names) or "none"
            raise ConfigError(
                f"credit.weights names {name!r}, which is no component of these rollouts"
                f"{did_you_mean(name, names)}; there is {available}"
            )
    # A weight of 0 leaves the component out: it must not make a second normalisation necessary.
    weighted = {name: weight for name, weight in weights.items() if weight != 0}
    component_index = torch.tensor([names.index(name) for name in weighted])
    return (
        tuple(weighted),
        forest.components[:, component_index],
        torch.tensor(list(weighted.values()), dtype=torch.float64),
    )


def _channels(forest: Forest, names: Sequence[str], only: Mapping[str, str] | None) -> Tensor | None:
    """[R, K] bool: trajectories that each component is taken of; None without `only`."""
    if not only:
        return None
    for name in only:
        if name not in names:
            raise ConfigError(f"credit.conditions names {name!r}, which has no weight{did_you_mean(name, names)}")
    forest.need_verdicts("credit.conditions", each=True)
    is_success_R = forest.success >= 1
    return torch.stack([is_success_R if name in only else torch.ones_like(is_success_R) for name in names], 1)


def _check_weights(weights: Mapping[str, float] | None, **_: Any) -> str | None:
    has_no_weight = weights is not None and not any(weights.values())
    return "weights: no reward has a weight other than 0" if has_no_weight else None


@part("decoupled", stage="credit", gives="P", learns_from_equal_groups=lambda batch_unit, **_: batch_unit == "tokens")
@checked_by(_check_weights)
def decoupled(
    group: Tensor,
    forest: Forest,
    *,
    weights: Mapping[str, Annotated[float, Interval(gt=-math.inf, lt=math.inf)]] | None = None,
    batch_unit: Literal["trajectories", "tokens", "none"] = "trajectories",
    conditions: Mapping[str, Literal["success"]] | None = None,
    ddof: int = 1,
    eps: float = 1e-4,
    singleton: Single = "zero",
) -> Tensor:
    """Decoupled normalisation of several rewards (GDPO): each in its group, then weighted, summed and normalised.

    `decoupled_sum` of `forest.components`, then normalised over the batch; the same for every token; [P] float64.

    weights  {component: weight}, "*" every other one; null: every component, each with weight 1 (the outcome, if there
             are no components)
    batch_unit  members of the batch. "trajectories": each counts once (TRL, NeMo). "tokens": (s - mean) / sqrt(var +
             1e-8) over trainable tokens, so that long answers weigh more (verl); groups of equal rewards then have
             credit, too, since the mean over tokens is not 0. "none": no second normalisation
    conditions  {component: "success"}: this component is compared among successes alone: failures have no share in its
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
    # A nan in a weighted component makes the trajectory unscored: in no group, no statistic, exactly 0.
    is_usable_R = rewards.isfinite().all(1)
    rewards = torch.where(is_usable_R[:, None], rewards, torch.zeros_like(rewards))
    is_compared_R, group = forest.compared & is_usable_R, torch.where(is_usable_R, group, -1)
    is_in_channel_RK = _channels(forest, names, conditions)
    total_R = decoupled_sum(rewards, factors, group, is_compared_R, ddof, eps, singleton, is_in_channel_RK)
    # A second normalisation of a single reward would only change its scale; TRL leaves it out.
    if len(factors) == 1 or batch_unit == "none":
        return forest.to_path(total_R, "R")
    # verl whitens over tokens, whose mean is not 0 even where all groups are equal.
    if batch_unit == "tokens":
        is_trained_P = forest.path_trainable & forest.to_path(is_usable_R, "R")
        return batch_whiten(forest.to_path(total_R, "R"), is_trained_P, forest.to_path(is_compared_R, "R"))
    has_spread_R = is_singleton(group, is_compared_R) if singleton == "raw" else torch.zeros_like(is_usable_R)
    # Trajectories of groups that are equal in every reward stay exactly 0 under the batch's mean.
    for k, reward in enumerate(rewards.unbind(1)):
        group_of_reward = group if is_in_channel_RK is None else torch.where(is_in_channel_RK[:, k], group, -1)
        has_spread_R |= ~grouped.degenerate(reward, group_of_reward, is_compared_R) | ~is_compared_R
    return forest.to_path(batch_normalized(total_R, has_spread_R & is_usable_R, is_compared_R, ddof, eps), "R")
