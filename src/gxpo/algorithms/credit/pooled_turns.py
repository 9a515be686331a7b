"""Turn advantages (IGPO): information gain and outcome, normalised over all turns of the group, then summed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from gxpo.algorithms.credit.columns import column
from gxpo.algorithms.credit.recursion import linear_recursion
from gxpo.algorithms.credit.value_delta import value_delta
from gxpo.forest import grouped
from gxpo.forest.grouped import begins_of
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest


@column("S")
def reward(
    forest: Forest,
    following: Tensor,
    belief_before: Tensor,
    belief_after: Tensor,
    *,
    gain: Literal["prob", "log"] = "prob",
) -> Tensor:
    """Gain in the belief in the right answer over a turn, nan unknown; for a trajectory's last turn, its outcome."""
    first = begins_of(forest.path_step, forest.n_steps)
    has_tokens_S = first.diff() > 0
    gain_S = torch.full((forest.n_steps,), torch.nan, dtype=torch.float64)
    # The belief is the same for all tokens of a turn: its first one is read.
    belief_before_S, belief_after_S = belief_before[first[:-1][has_tokens_S]], belief_after[first[:-1][has_tokens_S]]
    gain_S[has_tokens_S] = torch.where(
        (belief_before_S + belief_after_S).isfinite(),
        value_delta(belief_before_S, belief_after_S, form=gain),
        torch.nan,
    )
    return torch.where(following < 0, forest.outcome[forest.step_trajectory], gain_S)


@column("S")
def pooled(group: Tensor, following: Tensor, *, pool: Literal["joint", "separate"] = "joint") -> Tensor:
    """Ids of turns that share a mean and a std: all of a group, or its last turns apart from the others."""
    return group if pool == "joint" else torch.where(group >= 0, 2 * group + (following < 0), -1)


@part("pooled_turns", stage="credit", axis="S", learns_from_equal_groups=True)
def pooled_turns(
    reward: Tensor,
    pooled: Tensor,
    following: Tensor,
    where: Tensor | None = None,
    *,
    discount: Annotated[float, Interval(ge=0, le=1)] = 1.0,
    ddof: int = 1,
    eps: float = 1e-6,
    scale: Literal["std", "none"] = "std",
    floor: Annotated[float, Interval(ge=0)] = 1e-4,
) -> Tensor:
    """Information-gain advantage (IGPO): normalised rewards of the turns, summed over what follows.

    A_t = sum over k >= t of discount^(k - t) (reward_k - mean) / (spread + eps), in each trajectory

    reward     [S] of each turn by itself; nan: none, it is in no statistic and adds nothing. The rise of the belief in
               the right answer (signals "belief_before", "belief_after"), with `gain` "log" of its logarithm; of a
               trajectory's last turn, its outcome
    pooled     [S] int64 ids, -1 = in no group; mean and std are over all turns of the group, of whatever place. `pool`
               "joint": outcomes and gains have one mean and one spread; "separate": each kind its own
    following  [S] the turn that follows, -1 none
    where      [S] bool, compared (default: all): turns that enter the statistics
    scale      "std": spread = sqrt(std^2 + floor^2) | "none": rewards are centred and nothing more, so that advantages
               are in units of the belief and the outcome
    floor      of the std: rewards that spread much less than this have advantages in proportion to it, not of order 1.
               Where a whole group fails and no turn tells the policy anything, gains are noise, and their std is no
               yardstick

    Returns [S] float64; all 0 in a group of equal rewards. In one of equal outcomes the earlier turns may differ. What
    is added up is centred over turns, not over trajectories: a turn has the more summands the earlier it is, and where
    the mean is above 0, as with rewards that are mostly won in the last turn, a long trajectory is worse off by that.

    >>> x = torch.tensor([0.1, 0.2, 1.0, 0.0, 0.3, -0.1, 0.1, 0.0, 0.0], dtype=torch.float64)
    >>> after = torch.tensor([1, 2, -1, 4, -1, 6, 7, 8, -1])
    >>> [round(v, 6) for v in pooled_turns(x, torch.zeros(9).long(), after, floor=0.0).tolist()[:3]]
    [2.31744, 2.552542, 2.48537]
    """
    is_counted_S = reward.isfinite() if where is None else reward.isfinite() & where
    # Unknown rewards are masked out of the statistics; as numbers they have to be finite.
    filled_S = reward.nan_to_num(nan=0.0)
    centred_S = grouped.normalize(filled_S, pooled, is_counted_S, scale="none")
    if scale == "std":
        std = grouped.std(filled_S, pooled, is_counted_S, ddof)
        # The floor keeps the noise of a group that learns nothing from being scaled up to order 1.
        root = (std.square() + floor**2).sqrt()
        spread = torch.where(torch.isfinite(root), root, std) + eps  # a square that overflows
        centred_S = torch.where(std > 0, centred_S / spread, 0.0)
    # A turn without a reward adds nothing itself, but passes on what follows.
    return linear_recursion(torch.where(reward.isfinite(), centred_S, 0.0), discount, following)
