"""Credit of a token by the score of its step, against all tokens of the group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gxpo import levels
from gxpo.credit.base import CreditPart
from gxpo.errors import ConfigError, one_of

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals

Vote = Literal["intersection", "majority", "union"]


@torch.no_grad()
def token_normalised(
    value: Tensor, group: Tensor, trainable: Tensor, where: Tensor | None = None, ddof: int = 0, eps: float = 1e-8
) -> Tensor:
    """z = (value - mean) / (std + eps) over the trainable path tokens of the group: a long step weighs more.

    value      [P], nan unknown: such a token enters no statistic and is given 0
    group      [P] int64 dense ids, -1 = in no group
    trainable  [P] bool; the others enter no statistic and are given 0
    where      [P] bool, compared (default: all); the others are measured against these

    Returns [P] float64; sum 0 over the tokens that enter. Equal values, and a single token, have exactly 0.
    """
    known = trainable & value.isfinite()
    enters = known if where is None else known & where
    z = levels.normalize(torch.where(known, value.to(torch.float64), 0.0), group, enters, ddof=ddof, eps=eps)
    return torch.where(known, z, 0.0)


@torch.no_grad()
def voted_wrong(score: Tensor, vote: str = "intersection") -> Tensor:
    """Whether a step is held to be wrong; bool, of any shape; an unknown score (nan) is not.

    score  the share of critiques that find nothing wrong
    vote   "intersection": all of them find something; "majority": more than half; "union": any
    """
    one_of("credit.vote", vote, ("intersection", "majority", "union"))
    return {"intersection": score <= 0, "majority": score < 0.5, "union": score < 1}[vote]


@dataclass(frozen=True)
class TokenNormalised(CreditPart):
    """weight * `token_normalised` of the signal "segment_score" [P]: ProRAG's second level, made to be added to another
    credit (`credit.add.token_normalised`).

    A token shared by several trajectories counts once in each. Groups of equal outcomes, and of one trajectory, learn
    from it.
    """

    weight: float = 0.5
    ddof: int = 0
    eps: float = 1e-8

    needs = ("segment_score",)
    on_equal = "signal"

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        group, compared = forest.ids("group", axis="P"), forest.to_path(forest.compared, "R")
        score = signals["segment_score"]
        return self.weight * token_normalised(score, group, forest.path_trainable, compared, self.ddof, self.eps)


@dataclass(frozen=True)
class PenalisedSteps(CreditPart):
    """`token_normalised` of R = reward * outcome - penalty * (the token's step is `voted_wrong`): CAPO.

    reward   C, of the whole attempt, at least `penalty`: a right attempt with wrong steps stays above a wrong one
    penalty  P, of every token of a wrong step
    vote     over the critiques behind the signal "segment_score" [P]

    A step that nobody could judge is not penalised. With penalty 0 this is GRPO with a mean and std that weigh
    attempts by their length, whatever `reward`.
    """

    reward: float = 2.0
    penalty: float = 1.0
    vote: Vote = "intersection"
    ddof: int = 0
    eps: float = 1e-6

    needs = ("segment_score",)
    on_equal = "signal"

    def __post_init__(self) -> None:
        one_of("credit.vote", self.vote, ("intersection", "majority", "union"))
        if not 0 <= self.penalty <= self.reward or self.reward == 0:
            raise ConfigError(
                f"credit: penalty ({self.penalty:g}) is from 0 to reward ({self.reward:g}), which is above 0: else a "
                "right attempt with wrong steps falls below a wrong one"
            )

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        wrong = voted_wrong(signals["segment_score"], self.vote)
        value = self.reward * forest.to_path(forest.outcome, "R") - self.penalty * wrong.to(torch.float64)
        group, compared = forest.ids("group", axis="P"), forest.to_path(forest.compared, "R")
        return token_normalised(value, group, forest.path_trainable, compared, self.ddof, self.eps)
