"""Down-sampling: rollouts of maximum advantage variance, and their tokens of largest |A| times entropy."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from gxpo import levels
from gxpo.registry import part
from gxpo.weighting.base import WeightPart
from gxpo.weighting.columns import Columns
from gxpo.weighting.largest import largest

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals

Share = Annotated[float, Interval(gt=0, le=1)]


@torch.no_grad()
def max_variance(x: Tensor, k: int, where: Tensor) -> Tensor:
    """Subset of `k` counting members whose values have the largest variance, [n] bool.

    The j smallest and the k - j largest for the best j (of equally good ones the smallest): variance is convex in each
    member. A member that does not count is kept where it is as extreme as one that is kept. k >= 1.

    >>> a = torch.tensor([1.5, 0.9, 0.2, -0.1, -0.8, -1.7])
    >>> a[max_variance(a, 4, a < 9)].tolist()
    [1.5, 0.8999999761581421, -0.800000011920929, -1.7000000476837158]
    """
    rows = where.nonzero().squeeze(1)
    n, k = len(rows), min(k, len(rows))
    if k == n:
        return torch.ones_like(where)
    x = levels.settled(x, torch.zeros(x.shape, dtype=torch.int64))
    own = x[rows]
    order = torch.argsort(own, stable=True)
    values = own[order]
    values, zero = values - values.mean(), values.new_zeros(1)
    total, square = torch.cat([zero, values.cumsum(0)]), torch.cat([zero, values.square().cumsum(0)])
    low = torch.arange(k + 1)
    high = n - (k - low)
    spread = square[low] + square[n] - square[high] - (total[low] + total[n] - total[high]).square() / k
    j = int((spread >= spread.max() - levels.DEGENERATE * square[n]).nonzero()[0])
    kept = torch.zeros_like(where)
    kept[rows[order[:j]]] = True
    kept[rows[order[n - k + j :]]] = True
    out = torch.zeros_like(where)
    if j:
        out |= x <= x[rows[order[j - 1]]]
    if j < k:
        out |= x >= x[rows[order[n - k + j]]]
    return kept | (~where & out)


@part("down_sampling", stage="weight")
@dataclass(frozen=True)
class DownSampling(WeightPart):
    """Keep rollouts by `max_variance` of their mean advantage over the step, and their tokens of largest |A| H.

    rows, tokens          shares kept at the start, each rounded up
    rows_end, tokens_end  shares kept at step `total_steps` and after; in between a straight line
    total_steps           None: the run's; outside a run the shares are those of the start

    Kept rollouts weigh M / N, so that a mean over trajectories is over the kept ones; dropped tokens stay in the
    denominators. H is the entropy of the policy at the start of the step, signal "entropy". Credit is not normalised
    again: that of the kept ones has no mean of 0. Trajectories that are not compared do not compete.

    Source: D3S, arXiv 2509.22115, from a summary: rollouts of the whole step compete, not those of a group.
    """

    rows: Share = 0.5
    rows_end: Share = 1.0
    tokens: Share = 0.5
    tokens_end: Share = 1.0
    total_steps: Annotated[int, Ge(1)] | None = None

    needs = ("entropy",)

    def shares(self, step: int) -> tuple[float, float]:
        """Shares of rollouts and of tokens kept at this step."""
        done = 0.0 if self.total_steps is None else min(max(step / self.total_steps, 0.0), 1.0)
        return (1 - done) * self.rows + done * self.rows_end, (1 - done) * self.tokens + done * self.tokens_end

    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        columns = Columns(forest, credit, signals)
        counted = columns.of("acts", "R")
        n = int(counted.sum())
        if not n:
            return torch.ones(forest.n_entries, dtype=torch.float64)
        of_rows, of_tokens = self.shares(step)
        k = math.ceil(of_rows * n - 1e-9)
        kept = max_variance(columns.of("mean_credit", "R"), k, counted)
        entropy = columns.of("entropy", "P").to(torch.float64)
        competes = (kept & counted)[columns.owner]
        quota = torch.full_like(columns.owner, math.ceil(of_tokens * int(competes.sum()) - 1e-9))
        chosen = largest(columns.of("credit", "P").abs() * entropy, torch.zeros_like(quota), quota, competes)
        weight = torch.zeros(forest.n_entries, dtype=torch.float64)
        weight[columns.entries] = (chosen & kept[columns.owner]).to(torch.float64) * n / k
        return weight
