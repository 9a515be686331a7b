"""Weights by a score: `TokenWeight` of tokens and trajectories, `GroupWeight` of groups, each with a curve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor

from gxpo.algorithms.weighting.columns import SCORES, Columns, ScoreWeight
from gxpo.parts.functions import expect
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Signals


@part("token_weight", stage="weight")
@dataclass(frozen=True)
class TokenWeight(ScoreWeight):
    """Token or trajectory weight by a score: w = curve(score) within a scope, a 0/1 mask or a factor.

    score    the score: a signal ("entropy", ...), a column ("credit", "outcome", "version", ...), "mean_NAME" (a token
             column's mean over its trajectory), a name in `gxpo.algorithms.weighting.scores`, or a function of columns
    curve    a function in `weighting.token_curves` by name, `file.py:function` or a function: of the score, and of
             other columns by the names of its parameters (`gxpo.algorithms.weighting.columns`)
    unit     what is kept or weighed: each "token", or each "trajectory" with all of its tokens
    scope    compared with those of the "batch" (the step), of its "group", or of its "trajectory"
    sign     sign of the advantage that is weighed: "all", "positive" alone, or "nonzero": tokens without an advantage
             enter no statistic either; 1 elsewhere
    options  of both functions, each an option of the weight: `weight.NAME.share`

    A token that is left out keeps its place in every denominator. Trajectories that are not compared, or have no
    trained tokens, enter no statistic of the batch or of their group. Tokens that are not trained weigh 1, of no
    consequence.
    """

    score: Any = "entropy"
    curve: Any = "above_quantile"
    unit: Literal["token", "trajectory"] = "token"
    scope: Literal["batch", "group", "trajectory"] = "batch"
    sign: Literal["all", "positive", "nonzero"] = "all"
    options: Mapping[str, Any] = field(default_factory=dict)

    functions: ClassVar[Mapping[str, tuple[str, bool]]] = {
        "score": (SCORES, True),
        "curve": ("gxpo.algorithms.weighting.token_curves", False),
    }

    @torch.no_grad()
    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        # tokens that are not trained keep the weight 1: the columns hold trained ones alone
        columns = Columns(forest, credit, signals, self.scope, step, self.sign == "nonzero")
        axis = "R" if self.unit == "trajectory" else "P"
        score = columns.score_values(self.score, axis, self.options)
        weight = self.apply(self.curve, columns.arguments_of(self.curve, axis, score))
        unit = "trajectory" if axis == "R" else "trained token"
        weight = expect(weight, score.shape, "curve of token_weight", self.curve, unit).to(torch.float64)
        if axis == "R":
            weight = forest.to_path(weight, "R")
        else:
            weight = torch.ones(forest.n_entries, dtype=torch.float64).index_copy(0, columns.entries, weight)
        return torch.where(credit > 0, weight, 1.0) if self.sign == "positive" else weight


@part("group_weight", stage="weight")
@dataclass(frozen=True)
class GroupWeight(ScoreWeight):
    """Group weight w = curve(statistic of the group), the same for every token of its trajectories.

    statistic  a score of groups in `weighting.scores` by name ("success_rate", "mean_outcome", ...), or a function
               of columns [R] that gives [R], the same for all of a group
    curve      a function in `weighting.group_curves` by name, `file.py:function` or a function: of the statistic
               [G], and of other scores of groups by the names of its parameters, [G] each. It gives the weights [G], or
               [G, 2]: for positive advantages, and for the rest
    options    of both, each an option of the weight: `weight.NAME.flip`

    `weight.mine: group_weight`, `weight.mine.curve: my_weights.py:easy_first`. A group without compared members has
    rate and mean 0, and `size` 0.
    """

    statistic: Any = "success_rate"
    curve: Any = "gaussian_rate"
    options: Mapping[str, Any] = field(default_factory=dict)

    functions: ClassVar[Mapping[str, tuple[str, bool]]] = {
        "statistic": (SCORES, True),
        "curve": ("gxpo.algorithms.weighting.group_curves", False),
    }

    @torch.no_grad()
    def __call__(self, forest: Forest, credit: Tensor, signals: Signals, step: int) -> Tensor:
        columns, group_R = Columns(forest, credit, signals), forest.ids("group", axis="R")
        first_row_G = torch.zeros(int(group_R.max()) + 1 if len(group_R) else 0, dtype=torch.int64)
        # group values are the same for all members: read them at a group's first one
        first_row_G[group_R.flip(0)] = torch.arange(len(group_R)).flip(0)
        statistic_R = columns.score_values(self.statistic, "R", self.options)
        weight = self.apply(
            self.curve, [part[first_row_G] for part in columns.arguments_of(self.curve, "R", statistic_R)]
        )
        # [G, 2]: one weight for positive advantages, one for the rest
        if getattr(weight, "shape", None) != (len(first_row_G), 2):
            expect(weight, (len(first_row_G),), "curve of group_weight", self.curve, "group")
        weight_P = weight[group_R][forest.path_trajectory]
        return weight_P if weight.dim() == 1 else torch.where(credit > 0, weight_P[:, 0], weight_P[:, 1])
