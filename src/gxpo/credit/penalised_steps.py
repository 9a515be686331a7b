"""Step penalties from critiques (CAPO): less reward for tokens of wrong steps, normalised over the group's tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from gxpo.credit.relative import Relative, Unit
from gxpo.errors import ConfigError, one_of
from gxpo.registry import part

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals

Vote = Literal["intersection", "majority", "union"]


@torch.no_grad()
def voted_wrong(score: Tensor, vote: str = "intersection") -> Tensor:
    """Whether a step is voted wrong; bool, of any shape; an unknown score (nan) is not.

    score  the share of critiques that find nothing wrong
    vote   "intersection": all of them find something; "majority": more than half; "union": any
    """
    one_of("credit.vote", vote, ("intersection", "majority", "union"))
    return {"intersection": score <= 0, "majority": score < 0.5, "union": score < 1}[vote]


@part("penalised_steps", stage="credit")
@dataclass(frozen=True)
class PenalisedSteps(Relative):
    """`Relative` of R = reward * outcome - penalty * (the token's step is `voted_wrong`) over tokens: CAPO.

    reward   C, of the whole attempt, at least `penalty`: a right attempt with wrong steps stays above a wrong one
    penalty  P, of every token of a wrong step
    vote     over the critiques behind the signal "segment_score" [P]

    An unjudged step is not penalised. With penalty 0 this is GRPO with a mean and std that weigh
    attempts by their length, whatever `reward`.
    """

    reward: Annotated[float, Gt(0)] = 2.0
    penalty: Annotated[float, Ge(0)] = 1.0
    vote: Vote = "intersection"
    unit: Unit = "token"
    ddof: Annotated[int, Ge(0)] = field(default=0, kw_only=True)

    needs = ("segment_score",)
    learns_from_equal_groups = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.penalty > self.reward:
            raise ConfigError(
                f"credit.penalty ({self.penalty:g}) is at most credit.reward ({self.reward:g}): else a right attempt "
                "with wrong steps falls below a wrong one"
            )

    def values(self, forest: Forest, signals: Signals) -> tuple[Tensor, str]:
        wrong = voted_wrong(signals["segment_score"], self.vote).to(torch.float64)
        return self.reward * forest.to_path(forest.outcome, "R") - self.penalty * wrong, "P"
