"""Task samplers: tasks are drawn by a score of their measured success rates instead of in the order of the list."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from gxpo.base.errors import ConfigError, TaskError, did_you_mean
from gxpo.parts.functions import FunctionPart, in_words, place_of, signature

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

    uniform   share of the draws in which all tasks are equally likely
    discount  what earlier verdicts of a task count for at each further visit, since the policy has moved
    prior     verdicts, half of them right, that a rate begins with: 2 gives the mean of Beta(1 + right, 1 + wrong)
    by        what is measured and drawn: each task by its "id", or a level: a column of the list, or an option of a
              source that generates tasks
    levels    values of that option or column, easiest first; of a column by default all there are
    window    visits of which `recent` is the mean
    epochs    each task with a weight above 0 once before any of them again
    """

    uniform: Annotated[float, Interval(ge=0, le=1)] = 0.0
    discount: Annotated[float, Interval(ge=0, le=1)] = 0.8
    prior: Annotated[float, Ge(0)] = 2.0
    by: str = "id"
    levels: tuple[Any, ...] = ()
    window: Annotated[int, Ge(1)] = 3
    epochs: bool = False


class TaskSampler(FunctionPart):
    """Sampler that draws in proportion to a function of columns (`COLUMNS`) by the names of its parameters.

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
        """Refuses a function that reads what there is not."""
        name = getattr(function, "__name__", "function")
        for column in signature(function).columns:
            if column not in COLUMNS:
                known = ", ".join(COLUMNS)
                raise ConfigError(
                    f"tasks.sampler={name} reads {column!r}{did_you_mean(column, COLUMNS)}: a score reads {known}"
                )
        return {}

    def __post_init__(self) -> None:
        super().__post_init__()
        options: Any = self
        if options.epochs and (options.uniform or options.by != "id"):
            raise ConfigError(
                "tasks.sampler.epochs=true draws every task that has a weight, by id: set tasks.sampler.uniform=0 and "
                "tasks.sampler.by=id"
            )

    @property
    def reads(self) -> tuple[str, ...]:
        """The columns of its function."""
        return signature(self.function).columns

    @property
    def options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in signature(self.function).options}

    def weights(self, columns: Mapping[str, Tensor]) -> Tensor:
        """[N] float64: the chances of the tasks, which add up to 1, or all 0 where nothing is left to draw. `columns`:
        those that `reads` names."""
        given = [columns[name] for name in self.reads]
        name = type(self).__name__
        found = self.function(*given, **self.options)
        if not isinstance(found, Tensor) or found.shape != given[0].shape:
            raise TaskError(
                f"tasks.sampler={name}{place_of(self.function)} gave {in_words(found)}; it has to give shape "
                f"{tuple(given[0].shape)}, a weight for each of {len(given[0])} tasks"
            )
        found = found.detach().to(torch.float64)
        if not bool((found.isfinite() & (found >= 0)).all()):
            raise TaskError(
                f"tasks.sampler={name}{place_of(self.function)} gave weights that are negative or not finite"
            )
        return mixed(found, self.uniform)  # type: ignore[attr-defined]  # of `SamplerOptions`


def mixed(score: Tensor, uniform: float) -> Tensor:
    """uniform / N + (1 - uniform) score / sum: chances [N] from scores [N].

    A score of 0 is never drawn but by the uniform share. Where all are 0, that share is all of the draws, and without
    one all chances are 0.

    >>> mixed(torch.tensor([3.0, 1.0]), 0.5).tolist()
    [0.625, 0.375]
    >>> mixed(torch.zeros(2), 0.1).tolist(), mixed(torch.zeros(2), 0.0).tolist()
    ([0.5, 0.5], [0.0, 0.0])
    """
    flat = torch.full_like(score, 1 / len(score))
    total = float(score.sum())
    if total == 0:
        return flat if uniform > 0 else torch.zeros_like(score)
    return uniform * flat + (1 - uniform) * score / total
