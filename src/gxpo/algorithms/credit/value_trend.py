"""Step rewards by change of value, with look-ahead over flat steps (VSRM)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor

from gxpo.algorithms.credit.batch_whiten import batch_whiten
from gxpo.algorithms.credit.columns import column
from gxpo.algorithms.credit.recursion import linear_recursion, next_in
from gxpo.algorithms.credit.value_delta import known_stretches, state_values
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest


@torch.no_grad()
def trend(change: Tensor, chain: Tensor, decay: float = 0.7, lookahead: int = 4, tolerance: float = 1e-5) -> Tensor:
    """Trend rewards: r_j = d_k decay^(k - j), d_k the first change of at least `tolerance`, k at most j + `lookahead`.

    change  [n] d_j of each stretch;  chain  [n] trajectory of each, ascending: the search stops at its end

    Returns [n] float64; exactly 0 where all of d_j ... d_(j + lookahead), or all to the end, are flat. At the end of a
    trajectory the reference pays a flat row the sum of its changes, each below the tolerance: 0 here.

    Source: VSRM, arXiv 2508.10293, and its code (0.7, 4, 1e-5).

    >>> trend(torch.tensor([0.25, 0.0, 0.0, 0.25]), torch.zeros(4, dtype=torch.int64)).round(decimals=4).tolist()
    [0.25, 0.1225, 0.175, 0.25]
    """
    change, n = change.to(torch.float64), len(change)
    rows = torch.arange(n)
    changed_row = torch.where(change.abs() >= tolerance, rows, n)
    # Row of the next change from each on: a running minimum from the end.
    first_change = changed_row.flip(0).cummin(0).values.flip(0) if n else changed_row
    steps_ahead, change_row = first_change - rows, first_change.clamp_max(n - 1)
    is_within_reach = (first_change < n) & (steps_ahead <= lookahead) & (chain[change_row] == chain)
    return torch.where(is_within_reach, change[change_row] * decay ** steps_ahead.to(torch.float64), 0.0)


@torch.no_grad()
def trend_return(
    value: Tensor, trajectory: Tensor, decay: float = 0.7, lookahead: int = 4, tolerance: float = 1e-5
) -> Tensor:
    """Return of the `trend` rewards: the sum over each token's stretch and all later ones of its trajectory.

    value       [P] of the state just before each entry, nan unknown: a stretch goes from one known value to the next,
                and its d is their difference. What follows the last known value is no stretch, and has no reward
    trajectory  [P] int64, entries by trajectory, then time

    Returns [P] float64. Without look-ahead (lookahead 0) an entry has V(last known) - V(begin of its stretch).
    """
    stretches = known_stretches(value, trajectory)
    inner = (stretches.following >= 0).nonzero().squeeze(1)
    value_at_begin = value.to(torch.float64)[stretches.begin]
    change = value_at_begin[stretches.following[inner]] - value_at_begin[inner]
    reward_P = torch.zeros(value.shape, dtype=torch.float64)
    # A stretch's reward is paid on its last entry, so that its own tokens have it in their return.
    last_entry = stretches.begin[stretches.following[inner]] - 1  # the stretch's last entry
    reward_P[last_entry] = trend(change, trajectory[last_entry], decay, lookahead, tolerance)
    return linear_recursion(reward_P, 1.0, next_in(trajectory))


@column("P")
def state_value(forest: Forest) -> Tensor:
    """Values of the states before the action tokens, nan unknown."""
    return state_values(forest, "credit=value_trend")


@part("value_trend", stage="credit", axis="P", requires=("state_values",), learns_from_equal_groups=True)
def value_trend(
    state_value: Tensor,
    outcome: Tensor,
    trajectory: Tensor,
    trainable: Tensor,
    where: Tensor | None = None,
    *,
    decay: Annotated[float, Interval(ge=0, le=1)] = 0.7,
    lookahead: Annotated[int, Ge(0)] = 4,
    tolerance: Annotated[float, Gt(0)] = 1e-5,
    whiten: Literal["token", "none"] = "token",
) -> Tensor:
    """Stepwise rewards by change of value (VSRM): outcome + `trend_return`, the return from each token on; [P] float64.

    state_value                  [P] of the state just before each token: `forest.extras["state_value"]`
    decay, lookahead, tolerance  see `trend`
    whiten                       "token": (x - mean) / sqrt(var + 1e-8) over the trainable entries of the batch, as
                                 REINFORCE++ does | "none"

    The rewards are added to those of later steps (a return, discount 1), so an early step has all that came after it.
    Nothing else is taken off: without whitening there is no baseline.
    """
    total = trend_return(state_value, trajectory, decay, lookahead, tolerance) + outcome
    return total if whiten == "none" else batch_whiten(total, trainable, where)
