"""Task samplers: draw tasks in proportion to a function of their measured success rates.

Each function takes columns by name, one value a task [N] (see `COLUMNS`), and gives weights [N], finite and 0 or more.
A task is drawn with a chance that is proportional to its weight, one of weight 0 never.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor

from gxpo.base.errors import ConfigError, TaskError, did_you_mean
from gxpo.parts.functions import FunctionPart, checked_by, in_words, place_of, signature
from gxpo.parts.registry import part

Share = Annotated[float, Interval(ge=0, le=1)]
TIE = 1e-9  # by which a mean of rates may miss a threshold that it reaches: .6 + .7 + .8 is below 3 * .7 in floats

COLUMNS: Mapping[str, str] = {  # what a score may read by the names of its parameters, [N] float64
    "rate": "(right + prior / 2) / (verdicts + prior), earlier visits discounted; 0.5 where nothing is known",
    "smoothed": "moving average of the success rates of its visits, from 0.5: the newest counts 1 - discount",
    "counted": "the discounted number of verdicts; 0: nothing is known",
    "recent": "mean success rate of the newest `window` visits; nan: there were fewer",
    "streak": "visits in a row, up to the newest, in which all answers were right",
    "drawn": "how often it was drawn in the steps before",
    "outcome_variance": "population variance of a group's outcomes, a discounted mean over visits; nan: not known",
    "logprob_variance": "the same of its answers' mean log-probs a token",
    "level": "its place in `levels`, or in the list",
}


@dataclass(frozen=True)
class SamplerOptions:
    """Options of every task sampler.

    uniform_share  share of the draws in which all tasks are equally likely
    discount  what earlier verdicts of a task count for at each further visit, since the policy has moved
    prior     verdicts, half of them right, that a rate begins with: 2 gives the mean of Beta(1 + right, 1 + wrong)
    key       what is measured and drawn: each task by its "id", or a level: a column of the list, or an option of a
              source that generates tasks
    levels    values of that option or column, easiest first; of a column by default all there are
    window    visits of which `recent` is the mean
    epochs    each task with a weight above 0 once before any of them again
    """

    uniform_share: Annotated[float, Interval(ge=0, le=1)] = 0.0
    discount: Annotated[float, Interval(ge=0, le=1)] = 0.8
    prior: Annotated[float, Ge(0)] = 2.0
    key: str = "id"
    levels: tuple[Any, ...] = ()
    window: Annotated[int, Ge(1)] = 3
    epochs: bool = False


class TaskSampler(FunctionPart):
    """Part that draws tasks in proportion to a function whose parameters are named after columns (`COLUMNS`).

    `tasks.sampler: variance`, or `my_scores.py:function` of the user's, whose keyword-only parameters are options.
    """

    slot: ClassVar[str] = "tasks.sampler"

    @classmethod
    def bases(cls, function: Callable[..., Any]) -> tuple[type, ...]:
        return (cls, SamplerOptions)

    @classmethod
    def accepts(cls, function: Callable[..., Any]) -> bool:
        return True

    @classmethod
    def facts(cls, function: Callable[..., Any]) -> dict[str, Any]:
        """Raise ConfigError for a function with a parameter that is no column."""
        name = getattr(function, "__name__", "function")
        for column in signature(function).columns:
            if column not in COLUMNS:
                column_names = ", ".join(COLUMNS)
                raise ConfigError(
                    f"tasks.sampler={name} reads {column!r}{did_you_mean(column, COLUMNS)}: use {column_names}"
                )
        return {}

    def __post_init__(self) -> None:
        super().__post_init__()
        options: Any = self
        if options.epochs and (options.uniform_share or options.key != "id"):
            raise ConfigError(
                "tasks.sampler.epochs=true draws every task that has a weight, by id: set "
                "tasks.sampler.uniform_share=0 and tasks.sampler.key=id"
            )

    @property
    def reads(self) -> tuple[str, ...]:
        """Columns that the function reads."""
        return signature(self.function).columns

    @property
    def options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in signature(self.function).options}

    def weights(self, columns: Mapping[str, Tensor]) -> Tensor:
        """Chances of the tasks, [N] float64 with sum 1, or all 0 where no task has a weight.

        columns  the columns that `reads` names, [N] each
        """
        inputs = [columns[name] for name in self.reads]
        name = type(self).__name__
        weights = self.function(*inputs, **self.options)
        if not isinstance(weights, Tensor) or weights.shape != inputs[0].shape:
            raise TaskError(
                f"tasks.sampler={name}{place_of(self.function)} gave {in_words(weights)}; it has to give shape "
                f"{tuple(inputs[0].shape)}, a weight for each of {len(inputs[0])} tasks"
            )
        weights = weights.detach().to(torch.float64)
        if not bool((weights.isfinite() & (weights >= 0)).all()):
            raise TaskError(
                f"tasks.sampler={name}{place_of(self.function)} gave weights that are negative or not finite"
            )
        return mix_uniform(weights, self.uniform_share)  # type: ignore[attr-defined]  # of `SamplerOptions`


def mix_uniform(score: Tensor, uniform_share: float) -> Tensor:
    """uniform / N + (1 - uniform) score / sum: chances [N] from scores [N].

    A score of 0 is never drawn but by the uniform share. Where all are 0, that share is all of the draws, and without
    one all chances are 0.

    >>> mix_uniform(torch.tensor([3.0, 1.0]), 0.5).tolist()
    [0.625, 0.375]
    >>> mix_uniform(torch.zeros(2), 0.1).tolist(), mix_uniform(torch.zeros(2), 0.0).tolist()
    ([0.5, 0.5], [0.0, 0.0])
    """
    # no weight anywhere and no uniform share: the caller tells that the source is exhausted
    flat = torch.full_like(score, 1 / len(score))
    total = float(score.sum())
    if total == 0:
        return flat if uniform_share > 0 else torch.zeros_like(score)
    return uniform_share * flat + (1 - uniform_share) * score / total


# ---------------------------------------------------------------- weights by name
@part("variance", stage="sampler")
def variance(rate: Tensor, *, stretch: bool = False) -> Tensor:
    """p (1 - p): the variance of a verdict, most at one half.

    stretch  over the tasks to 0 for the least and 1 for the most: the tasks of least variance have no weight

    Source: VAS (MMR1, arXiv 2509.21268), outcome variance score, which its code stretches.

    >>> variance(torch.tensor([0.0, 0.25, 0.5])).tolist()
    [0.0, 0.1875, 0.25]
    """
    variances = rate * (1 - rate)
    if not stretch or not variances.numel():
        return variances
    return (variances - variances.min()) / (variances.max() - variances.min() + 1e-8)


@part("std", stage="sampler")
def std(rate: Tensor, *, temperature: Annotated[float, Gt(0), "unbounded"] = math.inf) -> Tensor:
    """sqrt(p (1 - p)): the standard deviation of a verdict; with a temperature, exp(std / temperature), a softmax.

    Source: CurES (arXiv 2510.01037), whose optimum under an entropy bonus is the softmax.

    >>> [round(x, 6) for x in std(torch.tensor([0.1, 0.5], dtype=torch.float64)).tolist()]
    [0.3, 0.5]
    """
    deviations = (rate * (1 - rate)).clamp_min(0).sqrt()
    return deviations if math.isinf(temperature) else ((deviations - 0.5) / temperature).exp()  # of at most 1


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
def drop_solved(streak: Tensor, *, min_streak: Annotated[int, Ge(1)] = 1) -> Tensor:
    """0 where all answers of the newest `min_streak` visits were right, 1 elsewhere.

    Such a task does not come back by itself, and nothing keeps the policy from forgetting it: `uniform` above 0 does.
    Source: SRPO (arXiv 2504.14286), history resampling.

    >>> drop_solved(torch.tensor([2.0, 1.0, 0.0])).tolist()
    [0.0, 0.0, 1.0]
    """
    return (streak < min_streak).to(torch.float64)


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
    # phase j begins once every remaining task was drawn j times; later phases choose among the remaining ones
    remaining = torch.arange(len(rate))
    for phase, kept_share in enumerate(shares or (share,) * phases, 1):
        if float(drawn[remaining].min()) < phase:
            break
        order = torch.argsort(rate[remaining], stable=True)
        # TIE: 0.55 * 100 is above 55 in floats, so that 56 would stay
        remaining = remaining[order[: max(1, math.ceil(kept_share * len(remaining) - TIE))]]
    return torch.zeros(len(rate), dtype=torch.float64).index_fill_(0, remaining, 1.0)


@part("first_unmastered", stage="sampler")
def first_unmastered(recent: Tensor, *, mastery_rate: Share = 0.7) -> Tensor:
    """1 for the first level that is not mastered, or the last of all; 0 for the others.

    A level is mastered where the mean success rate of its newest `tasks.sampler.window` visits reaches `mastery_rate`.
    Levels are in the order of `tasks.sampler.levels`. Source: CRAFT-GUI (arXiv 2508.11360), curriculum.

    >>> first_unmastered(torch.tensor([0.9, 0.7, 0.2, float("nan")])).tolist()
    [0.0, 0.0, 1.0, 0.0]
    """
    unmastered = (~(recent >= mastery_rate - TIE)).nonzero().flatten().tolist()  # nan: not known yet
    current = unmastered[0] if unmastered else len(recent) - 1
    return torch.zeros(len(recent), dtype=torch.float64).index_fill_(0, torch.tensor([current]), 1.0)


@part("disagreement", stage="sampler")
def disagreement(outcome_variance: Tensor, logprob_variance: Tensor) -> Tensor:
    """Std of a group's outcomes times std of its answers' mean log-probs; where nothing is known, the largest there is.

    What FaVChat's (arXiv 2503.09158) utility of a task measures, without the gate that it is put through.

    >>> disagreement(torch.tensor([0.25, 0.0, float("nan")]), torch.tensor([0.16, 0.16, float("nan")])).tolist()
    [0.20000000298023224, 0.0, 0.20000000298023224]
    """
    disagreements = (outcome_variance * logprob_variance).sqrt()
    finite = disagreements[disagreements.isfinite()]
    largest = float(finite.max()) if finite.numel() and float(finite.max()) > 0 else 1.0
    return torch.where(disagreements.isfinite(), disagreements, largest)
