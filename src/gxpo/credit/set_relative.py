"""Set-level advantages (polychromic objectives): mean set score (reward times diversity) per rollout."""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from gxpo import grouped
from gxpo.credit.pass_at_k import missed
from gxpo.forest import Forest
from gxpo.registry import part
from gxpo.trees import begins_of, dense


@torch.no_grad()
def set_relative(outcome: Tensor, group: Tensor, key: Tensor, size: int, where: Tensor | None = None) -> Tensor:
    """A_i = mean of f over the sets of `size` members that hold i, less the mean of f over all sets of the group.

    f(set) = (mean outcome of its members) * (number of their different keys) / size

    outcome  [R], in [0, 1] where the score is to be a share
    group    [R] int64 dense ids, -1 = in no group
    key      [R] int64: equal for members of a group that did the same
    where    [R] bool, compared (default: all): sets are made of these; the others are given 0

    Returns [R] float64 with sum 0 over a group. All C(n, size) sets count alike, in closed form: with m members of a
    key, the chance that a set misses it depends on m alone. Exactly 0 in groups of `size` or fewer. Where all
    keys differ this is Dr. GRPO times (n - size) / (size (n - 1)), with `size` 1 Dr. GRPO itself.

    Source: polychromic objectives, arXiv 2509.25424, after a summary; there a few sets are drawn.
    """
    counts = (group >= 0) & (torch.ones_like(group, dtype=torch.bool) if where is None else where)
    r, group = torch.where(counts, outcome.to(torch.float64), 0.0), torch.where(counts, group, -1)
    key = torch.where(counts, dense(group * (int(key.max()) + 1 if len(key) else 1) + key), -1)
    row = torch.arange(len(key), dtype=torch.float64)
    first = counts & (grouped.min(row, key) == row)
    n, m, keys = grouped.count(group), grouped.count(key), grouped.count(group, first)
    alone = missed((n - 1).clamp_min(0), n - 1 - m, size - 1)  # chance that a key is not in a set with one other member
    beside = missed((n - 2).clamp_min(0), n - 2 - m, max(size - 2, 0))  # ... in a set with two members of other keys
    own = r * (keys - grouped.sum(alone, group, first) + alone)
    rest = grouped.sum(r, group)
    others = (rest - r) * (keys - grouped.sum(beside, group, first) + beside)
    others = others + grouped.sum(r * beside, group) - beside * grouped.sum(r, key)
    score = (own + (size - 1) / (n - 1).clamp_min(1) * others) / size**2
    return torch.where(n > size, grouped.normalize(score, group, scale="none"), 0.0)


@torch.no_grad()
def same_actions(forest: Forest) -> Tensor:
    """Ids of equal action sequences, [R] int64. GxpoError where actions are text without token ids.

    By a 64-bit hash of every token with its place: two that differ pass for the same once in 2^64 pairs.
    """
    if forest.text_only:
        forest.need_ids("credit set_relative")
    owner = forest.path_trajectory
    place = torch.arange(forest.n_entries) - begins_of(owner, forest.n_trajectories)[owner]
    hashed = (forest.token[forest.path_token] + 1) * -0x61C8864680B583EB + place * -0x40A7B892E31B1A47  # modulo 2^64
    for shift, odd in ((30, -0x6B2FB644ECCEEE15), (27, 0x2545F4914F6CDD1D), (31, 1)):  # spreads every bit over all
        hashed = (hashed ^ (hashed >> shift)) * odd
    return dense(torch.zeros(forest.n_trajectories, dtype=torch.int64).index_add_(0, owner, hashed))


@part("set_relative", stage="credit", learns_from_equal_groups=True)
def by_sets(
    outcome: Tensor, group: Tensor, forest: Forest, *, size: Annotated[int, Ge(1)] = 2, same: str = "actions"
) -> Tensor:
    """Set-level advantage (polychromic objectives): mean set score (reward times diversity) per rollout.

    `set_relative` of the outcome; [R] float64.

    size  members of a set; the group needs more
    same  what makes two members the same: "actions", all their tokens, or a level of the forest such as "info.answer";
          a trajectory for which it is unknown is like no other

    A group of equal outcomes has advantages where some of its members are the same.
    """
    key = same_actions(forest) if same == "actions" else forest.ids("group", same, axis="R")
    key = torch.where(key < 0, torch.arange(len(key)) + len(key), key)
    return set_relative(outcome, group, key, size, forest.compared)
