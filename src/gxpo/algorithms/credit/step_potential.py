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
    """Phi = 1.5 belief confidence + 0.5 belief - confidence, float64; from -1 (sure and wrong) to 1 (sure and right).

    Unsure and wrong is 0, right by luck 0.5.

    >>> step_potential(torch.tensor([1.0, 0.0, 1.0, 0.0, 0.5]), torch.tensor([1.0, 1.0, 0.0, 0.0, 0.5])).tolist()
    [1.0, -1.0, 0.5, 0.0, 0.125]
    """
    belief, confidence = belief.to(torch.float64), confidence.to(torch.float64)
    return 1.5 * belief * confidence + 0.5 * belief - confidence


@torch.no_grad()
def saturation(potential: Tensor, previous: Tensor, threshold: float = 0.9, alpha: float = 0.5) -> Tensor:
    """f = 1 - alpha (1 - exp(-c)), c = how many of the steps before it have a potential above `threshold`; [n] float64.

    previous  [n] the step before, -1 none
    """
    count = sum_before(previous, (potential > threshold).to(torch.float64))
    return 1 - alpha * (1 - (-count).exp())


@torch.no_grad()
def shaping(change: Tensor, where: Tensor | None = None) -> Tensor:
    """g = exp(d) - mean exp(d), d the change brought to [0, 1] by the batch's extremes; [n] float64.

    where  [n] bool: which enter extremes and mean (default: all); the others are held in [0, 1] before. nan: in no
           statistic, and given 0. 0 for all where these are equal, or there is none. Over them the sum is 0.
    """
    known = change.isfinite()
    enters = known if where is None else known & where
    x, one = change.nan_to_num(nan=0.0).to(torch.float64), torch.zeros(change.shape, dtype=torch.int64)
    low, high = grouped.min(x, one, enters), grouped.max(x, one, enters)
    flat = grouped.degenerate(x, one, enters)
    raised = ((x - low) / torch.where(flat, 1.0, high - low)).clamp(0.0, 1.0).exp()
    return torch.where(known & ~flat, raised - grouped.mean(raised, one, enters), 0.0)


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
    total = forest.to_path(group_relative(forest.outcome, group, "mean", "none", where=compared), "R")
    segment, place = forest.ids("step", "segment", axis="P"), torch.arange(forest.n_entries)
    held = segment >= 0
    n = int(segment.max()) + 1 if len(segment) else 0
    first = torch.full((n,), forest.n_entries).scatter_reduce_(0, segment[held], place[held], "amin").sort().values
    of = torch.zeros_like(segment)
    of[first] = 1  # where segments begin, in time: each entry's is the newest
    of = of.cumsum(0) - 1
    phi = step_potential(belief_after[first], answer_confidence[first])
    following = next_in(forest.path_trajectory[first])
    previous = torch.full((n,), -1)
    previous[following[following >= 0]] = (following >= 0).nonzero().squeeze(1)
    change = torch.where(previous >= 0, phi - phi[previous.clamp_min(0)], 0.0 * phi)
    fading = saturation(phi, previous, threshold, alpha)
    gain = shaping(change, compared[forest.path_trajectory[first]])
    if n:
        total = torch.where(held, total * fading[of.clamp_min(0)] + xi * gain[of.clamp_min(0)], total)
    return batch_whiten(total, forest.path_trainable, forest.to_path(compared, "R"), eps)
