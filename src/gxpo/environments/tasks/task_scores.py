"""Scores by which a task sampler draws tasks: pure functions of their measured success rates.

Each takes columns by name, one value a task [N] (see `tasks.sampler.COLUMNS`), and gives weights [N], finite and
0 or more. A task is drawn with a chance that is proportional to its weight, one of weight 0 never.
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor

from gxpo.parts.functions import checked_by
from gxpo.parts.registry import part

Share = Annotated[float, Interval(ge=0, le=1)]
TIE = 1e-9  # by which a mean of rates may miss a threshold that it reaches: .6 + .7 + .8 is below 3 * .7 in floats


@part("variance", stage="sampler")
def variance(rate: Tensor, *, stretch: bool = False) -> Tensor:
    """p (1 - p): the variance of a verdict, most at one half.

    stretch  over the tasks to 0 for the least and 1 for the most: the tasks of least variance have no weight

    Source: VAS (MMR1, arXiv 2509.21268), outcome variance score, which its code stretches.

    >>> variance(torch.tensor([0.0, 0.25, 0.5])).tolist()
    [0.0, 0.1875, 0.25]
    """
    found = rate * (1 - rate)
    if not stretch or not found.numel():
        return found
    return (found - found.min()) / (found.max() - found.min() + 1e-8)


@part("std", stage="sampler")
def std(rate: Tensor, *, temperature: Annotated[float, Gt(0), "unbounded"] = math.inf) -> Tensor:
    """sqrt(p (1 - p)): the standard deviation of a verdict; with a temperature, exp(std / temperature), a softmax.

    Source: CurES (arXiv 2510.01037), whose optimum under an entropy bonus is the softmax.

    >>> [round(x, 6) for x in std(torch.tensor([0.1, 0.5], dtype=torch.float64)).tolist()]
    [0.3, 0.5]
    """
    found = (rate * (1 - rate)).clamp_min(0).sqrt()
    return found if math.isinf(temperature) else ((found - 0.5) / temperature).exp()  # of at most 1


@part("hardest", stage="sampler")
def hardest(rate: Tensor, *, power: Annotated[float, Ge(0)] = 1.0) -> Tensor:
    """(1 - p)^power: the harder, the more often.

    >>> hardest(torch.tensor([0.0, 0.5, 1.0])).tolist()
    [1.0, 0.5, 0.0]
    """
    return (1 - rate) ** power


def _ordered(*, low: float, high: float) -> str | None:
    return None if low <= high else f"low is {low}, above high={high}"


@part("band", stage="sampler")
@checked_by(_ordered)
def band(rate: Tensor, counted: Tensor, *, low: Share = 0.1, high: Share = 0.9) -> Tensor:
    """1 from `low` to `high`, and where nothing is known yet; 0 elsewhere.

    >>> band(torch.tensor([0.05, 0.1, 0.5, 0.95]), torch.tensor([8.0, 8.0, 8.0, 0.0])).tolist()
    [0.0, 1.0, 1.0, 1.0]
    """
    return ((rate >= low - TIE) & (rate <= high + TIE) | (counted == 0)).to(rate.dtype)


@part("gaussian", stage="sampler")
def gaussian(smoothed: Tensor, *, mean: Share = 0.5, width: Annotated[float, Gt(0)] = 0.35) -> Tensor:
    """exp(-(p - mean)^2 / (2 width^2)), p the moving average of a task's success rates.

    Source: FG-ExPO (arXiv 2605.11403), eqs. 6 and 7, whose average has discount 0.9.

    >>> [round(x, 6) for x in gaussian(torch.tensor([0.0, 0.25, 0.5], dtype=torch.float64)).tolist()]
    [0.360448, 0.774837, 1.0]
    """
    return (-((smoothed - mean) ** 2) / (2 * width**2)).exp()


@part("drop_solved", stage="sampler")
def drop_solved(streak: Tensor, *, after: Annotated[int, Ge(1)] = 1) -> Tensor:
    """0 where all answers of the newest `after` visits were right, 1 elsewhere.

    Such a task does not come back by itself, and nothing keeps the policy from forgetting it: `uniform` above 0 does.
    Source: SRPO (arXiv 2504.14286), history resampling.

    >>> drop_solved(torch.tensor([2.0, 1.0, 0.0])).tolist()
    [0.0, 0.0, 1.0]
    """
    return (streak < after).to(torch.float64)


def _fractions(*, shares: tuple[float, ...], **_: float) -> str | None:
    return None if all(0 < x < 1 for x in shares) else f"shares are between 0 and 1, not {list(shares)}"


@part("keep_hardest", stage="sampler")
@checked_by(_fractions)
def keep_hardest(
    rate: Tensor,
    drawn: Tensor,
    *,
    share: Annotated[float, Interval(gt=0, lt=1)] = 0.5,
    phases: Annotated[int, Ge(1)] = 3,
    shares: tuple[float, ...] = (),
) -> Tensor:
    """1 for the hardest: once all that are left were drawn j times, the share of them with the lowest rates is left.

    At most `phases` times, and never fewer than one task; of equal rates the earlier tasks stay. Rates are the newest,
    so a task that has become easy makes room for one that was left out. Source: DRIVE (arXiv 2511.06307), stage 2.

    shares  the share of each phase, one after the other, instead of `share` and `phases`

    >>> p = torch.tensor([0.9, 0.2, 0.5, 0.0])
    >>> keep_hardest(p, torch.tensor([1, 1, 1, 0])).tolist(), keep_hardest(p, torch.tensor([1, 1, 1, 1])).tolist()
    ([1.0, 1.0, 1.0, 1.0], [0.0, 1.0, 0.0, 1.0])
    """
    left = torch.arange(len(rate))
    for phase, kept in enumerate(shares or (share,) * phases, 1):
        if float(drawn[left].min()) < phase:
            break
        order = torch.argsort(rate[left], stable=True)
        left = left[order[: max(1, math.ceil(kept * len(left) - TIE))]]
    return torch.zeros(len(rate), dtype=torch.float64).index_fill_(0, left, 1.0)


@part("first_unmastered", stage="sampler")
def first_unmastered(recent: Tensor, *, mastered: Share = 0.7) -> Tensor:
    """1 for the first level that is not mastered, or the last of all; 0 for the others.

    A level is mastered where the mean success rate of its newest `tasks.sampler.window` visits reaches `mastered`.
    Levels are in the order of `tasks.sampler.levels`. Source: CRAFT-GUI (arXiv 2508.11360), curriculum.

    >>> first_unmastered(torch.tensor([0.9, 0.7, 0.2, float("nan")])).tolist()
    [0.0, 0.0, 1.0, 0.0]
    """
    open_ = (~(recent >= mastered - TIE)).nonzero().flatten().tolist()  # nan: not known yet
    now = open_[0] if open_ else len(recent) - 1
    return torch.zeros(len(recent), dtype=torch.float64).index_fill_(0, torch.tensor([now]), 1.0)


@part("disagreement", stage="sampler")
def disagreement(outcome_variance: Tensor, logprob_variance: Tensor) -> Tensor:
    """Std of a group's outcomes times std of its answers' mean log-probs; where nothing is known, the largest there is.

    What FaVChat's (arXiv 2503.09158) utility of a task measures, without the gate that it is put through.

    >>> disagreement(torch.tensor([0.25, 0.0, float("nan")]), torch.tensor([0.16, 0.16, float("nan")])).tolist()
    [0.20000000298023224, 0.0, 0.20000000298023224]
    """
    found = (outcome_variance * logprob_variance).sqrt()
    known = found[found.isfinite()]
    most = float(known.max()) if known.numel() and float(known.max()) > 0 else 1.0
    return torch.where(found.isfinite(), found, most)
