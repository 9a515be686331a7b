"""Step potential (SPAE): potential-based shaping by answer correctness and confidence after each step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from gxpo.algorithms.credit.batch_whiten import batch_whiten
from gxpo.algorithms.credit.recursion import next_in
from gxpo.algorithms.credit.relative import group_relative
from gxpo.forest import grouped
from gxpo.forest.columns import sum_before
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest


@torch.no_grad()
def step_potential(belief: Tensor, confidence: Tensor) -> Tensor:
    """Step potential Phi = 1.5 belief confidence + 0.5 belief - confidence, from -1 (sure, wrong) to 1 (sure, right).

    Unsure and wrong is 0, right by luck 0.5.

    >>> step_potential(torch.tensor([1.0, 0.0, 1.0, 0.0, 0.5]), torch.tensor([1.0, 1.0, 0.0, 0.0, 0.5])).tolist()
    [1.0, -1.0, 0.5, 0.0, 0.125]
    """
    belief, confidence = belief.to(torch.float64), confidence.to(torch.float64)
    return 1.5 * belief * confidence + 0.5 * belief - confidence


@torch.no_grad()
def saturation(potential: Tensor, previous: Tensor, threshold: float = 0.9, alpha: float = 0.5) -> Tensor:
    """Saturation f = 1 - alpha (1 - exp(-c)), c the number of earlier steps with a potential above `threshold`; [n].

    previous  [n] the step before, -1 none
    """
    count = sum_before(previous, (potential > threshold).to(torch.float64))
    return 1 - alpha * (1 - (-count).exp())


@torch.no_grad()
def shaping(change: Tensor, where: Tensor | None = None) -> Tensor:
    """Shaping reward g = exp(d) - mean exp(d), d the change scaled to [0, 1] by the batch's extremes; [n] float64.

    where  [n] bool: rows in extremes and mean (default: all); the others are clipped to [0, 1] first. nan: in no
           statistic, and 0. All are 0 where the counted are equal, or there are none. Their sum is 0.
    """
    is_known = change.isfinite()
    is_counted = is_known if where is None else is_known & where
    x, one_group = change.nan_to_num(nan=0.0).to(torch.float64), torch.zeros(change.shape, dtype=torch.int64)
    low, high = grouped.min(x, one_group, is_counted), grouped.max(x, one_group, is_counted)
    is_equal = grouped.degenerate(x, one_group, is_counted)
    # Clipped to [0, 1]: one that is not counted may lie outside the extremes.
    raised = ((x - low) / torch.where(is_equal, 1.0, high - low)).clamp(0.0, 1.0).exp()
    return torch.where(is_known & ~is_equal, raised - grouped.mean(raised, one_group, is_counted), 0.0)


@part(
    "step_potential",
    stage="credit",
    axis="P",
    requires=("segments",),
    learns_from_equal_groups=lambda xi, **_: bool(xi),
)
def potential_shaped(
    belief_after: Tensor,
    answer_confidence: Tensor,
    forest: Forest,
    *,
    xi: Annotated[float, Ge(0)] = 0.5,
    alpha: Annotated[float, Interval(ge=0, le=1)] = 0.5,
    threshold: float = 0.9,
    eps: float = 1e-8,
) -> Tensor:
    """Step-potential advantage (SPAE): A = whiten(A_group f + xi g), Phi the `step_potential` after each segment.

    A_group    outcome - mean of the group, no std
    f          `saturation` of the segments: the outcome's advantage fades, of either sign, once the answer was found
    g          `shaping` of Phi's change over the segment, 0 for a trajectory's first; extremes and mean are over the
               batch's segments, each once, whatever its length
    whiten     over the batch's trainable tokens, as REINFORCE++-baseline: see `batch_whiten`

    Signals [P]: nan is f = 1, g = 0. Segments are the forest's; a token without one has f = 1 and g = 0. Returns [P]
    float64. With alpha and xi 0 this is `batch_whiten` of the outcomes less their group's mean.
    """
    group, compared = forest.ids("group", axis="R"), forest.compared
    advantage_P = forest.to_path(group_relative(forest.outcome, group, "mean", "none", where=compared), "R")
    segment_P, entry_P = forest.ids("step", "segment", axis="P"), torch.arange(forest.n_entries)
    in_segment_P = segment_P >= 0
    n_segments = int(segment_P.max()) + 1 if len(segment_P) else 0
    # Segments in the order of time, each by its first entry: ids are dense, but not in that order.
    first_entry = torch.full((n_segments,), forest.n_entries)
    first_entry = first_entry.scatter_reduce_(0, segment_P[in_segment_P], entry_P[in_segment_P], "amin").sort().values
    segment_row_P = torch.zeros_like(segment_P)
    # An entry's segment is the newest that has begun, by a running count of begins.
    segment_row_P[first_entry] = 1
    segment_row_P = segment_row_P.cumsum(0) - 1
    phi = step_potential(belief_after[first_entry], answer_confidence[first_entry])
    next_segment = next_in(forest.path_trajectory[first_entry])
    # `next_segment` turned around; a trajectory's first segment has none, and a change of 0.
    previous_segment = torch.full((n_segments,), -1)
    previous_segment[next_segment[next_segment >= 0]] = (next_segment >= 0).nonzero().squeeze(1)
    # 0.0 * phi is 0, but nan where the potential is unknown, so that `shaping` leaves it out.
    change = torch.where(previous_segment >= 0, phi - phi[previous_segment.clamp_min(0)], 0.0 * phi)
    fading = saturation(phi, previous_segment, threshold, alpha)
    gain = shaping(change, compared[forest.path_trajectory[first_entry]])
    # Tokens without a segment keep the outcome's advantage as it is.
    if n_segments:
        row_P = segment_row_P.clamp_min(0)
        advantage_P = torch.where(in_segment_P, advantage_P * fading[row_P] + xi * gain[row_P], advantage_P)
    return batch_whiten(advantage_P, forest.path_trainable, forest.to_path(compared, "R"), eps)
