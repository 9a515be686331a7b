"""Credit of each token: generalised advantage estimation over the trajectory's own tokens, with the value head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gxpo.credit.base import CreditPart
from gxpo.credit.batch_whiten import batch_whiten
from gxpo.credit.recursion import linear_recursion, next_in, td_residual
from gxpo.errors import ConfigError, GxpoError, one_of

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals


@torch.no_grad()
def gae(
    reward: Tensor,
    value: Tensor,
    trajectory: Tensor,
    counted: Tensor,
    discount: float | Tensor = 1.0,
    lam: float | Tensor = 1.0,
    cut: Tensor | None = None,
) -> Tensor:
    """delta_i = r_i + discount V_next - V_i;  A_i = delta_i + discount * lam * A_next.

    reward      [P] paid on the entry
    value       [P] of the state in which the entry's token is chosen
    trajectory  [P], entries by trajectory, then time
    counted     [P] bool: the entries that are transitions; the others are given 0 and their values are never read
    discount    of the transition out of each entry, one for all or [P]
    lam         lambda, likewise
    cut         [P] bool (default: none): entries of trajectories that were cut off. What follows their last entry is
                given that entry's own value, V(s_l) := V(s_{l-1}) (extended GAE); otherwise it is 0

    Next is the next counted entry of the trajectory, so the value that is bootstrapped at the last token of a turn is
    that of the first token of the next turn, whatever observation lies between. Returns [P] float64; A + V is the
    lambda-return, the target of the value. With lam 1 and discount 1, A = (sum of the rewards from here on) - V; with
    lam 0 the temporal difference.

    Source: GAE, arXiv 1506.02438; over language-model tokens as in verl and Agent-R1. verl's older recursion steps
    through observation tokens and uses their values; its newer one, like this, does not. `cut`: T-PPO, arXiv
    2506.15050.

    >>> one = torch.zeros(3, dtype=torch.int64)
    >>> v = torch.tensor([0.4, 0.5, 0.6], dtype=torch.float64)
    >>> gae(torch.zeros(3), v, one, one == 0, lam=0.9, cut=one == 0).round(decimals=9).tolist()
    [0.19, 0.1, 0.0]
    """
    following = next_in(trajectory, counted)
    value = torch.where(counted, value.to(torch.float64), 0.0)
    at_end = None if cut is None else torch.where(cut, value, 0.0)
    delta = td_residual(reward, value, following, discount, at_end)
    return torch.where(counted, linear_recursion(delta, discount * lam, following), 0.0)


@torch.no_grad()
def on_tokens(payment: Tensor, step_trajectory: Tensor, path_step: Tensor, counted: Tensor) -> Tensor:
    """[P] float64: what each step is paid, on its last counted entry.

    payment [S]; step_trajectory [S]; path_step [P]; counted [P] bool. A step without a counted entry is paid on the
    last one before it in its trajectory; where there is none, nothing that is counted led to the payment, and nothing
    receives it.
    """
    last = torch.full(payment.shape, -1, dtype=torch.int64)
    entries = counted.nonzero().squeeze(1)
    last.scatter_reduce_(0, path_step[entries], entries, "amax")
    if len(last):
        last = last.cummax(0).values
    owner = step_trajectory[path_step[last.clamp_min(0)]] if len(path_step) else torch.full_like(last, -1)
    due = (last >= 0) & (owner == step_trajectory)
    return torch.zeros(counted.shape, dtype=torch.float64).index_add_(0, last[due], payment.to(torch.float64)[due])


@dataclass(frozen=True)
class Gae(CreditPart):
    """`gae` of the value head over each trajectory's trainable tokens, and the target that the head is trained to.

    discount    per token, not per turn
    lam         lambda of the advantage
    target_lam  lambda of the target that is left to the value term (None: `lam`); 1 is the Monte-Carlo return
    cut         truncated trajectories: "end" (they are over: what follows is worth 0, the outcome is theirs) or
                "extend" (they are unfinished: extended GAE, the outcome is not paid, step rewards are, and the value
                is not trained on them)
    whiten      "none" | "token": (A - mean) / sqrt(var + 1e-8) over the trainable tokens of the batch, unbiased
                variance, as verl does by default; long trajectories then move the mean more

    Rewards: each turn's step reward on its last trainable token; in a trajectory that has none, the outcome on its
    last trainable token. Tokens of other authors (`trainable` false) are passed over like observations: their values
    are not trained either. Time is the order of P, under `after` too. No group is compared, so equal rewards are a
    signal, and a group of one learns.

    Leaves "value_target" [P] to the objective: lambda-return before whitening, nan where the value is not trained.
    Raises GxpoError where a trainable token has no finite value.
    """

    discount: float = 1.0
    lam: float = 1.0
    target_lam: float | None = None
    cut: Literal["end", "extend"] = "end"
    whiten: Literal["none", "token"] = "none"

    needs = ("value",)
    provides = ("value_target",)
    on_equal = "signal"

    def __post_init__(self) -> None:
        one_of("credit.cut", self.cut, ("end", "extend"))
        one_of("credit.whiten", self.whiten, ("none", "token"))
        for name in ("discount", "lam", "target_lam"):
            given = getattr(self, name)
            if given is not None and not 0 <= given <= 1:
                raise ConfigError(f"credit.{name} is {given}; it lies between 0 and 1")

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        advantage = self._estimate(forest, signals, self.lam)
        if self.whiten == "none":
            return advantage
        return batch_whiten(advantage, forest.path_trainable, forest.to_path(forest.compared, "R"))

    def targets(self, forest: Forest, signals: Signals, step: int) -> dict[str, Tensor]:
        """{"value_target": [P]}: A + V with `target_lam`; nan on entries that the value is not trained on."""
        lam = self.lam if self.target_lam is None else self.target_lam
        target = self._estimate(forest, signals, lam) + signals["value"].to(torch.float64)
        trained = forest.path_trainable & ~self._unfinished(forest)
        return {"value_target": torch.where(trained, target, torch.nan)}

    def _unfinished(self, forest: Forest) -> Tensor:
        unfinished = forest.truncated if self.cut == "extend" else torch.zeros_like(forest.truncated)
        return forest.to_path(unfinished, "R")

    def _estimate(self, forest: Forest, signals: Signals, lam: float) -> Tensor:
        value, counted = signals["value"], forest.path_trainable
        if missing := int((~value.isfinite() & counted).sum()):
            raise GxpoError(f"the value of {missing} of {int(counted.sum())} trainable tokens is not finite")
        paid = forest
        if self.cut == "extend":  # an outcome without step rewards would stand for a whole trajectory
            paid = forest.replace(outcome=torch.where(forest.truncated, 0.0, forest.outcome))
        payment = paid.returns(0.0)
        reward = on_tokens(payment, forest.step_trajectory, forest.path_step, counted)
        cut = self._unfinished(forest)
        return gae(reward, value, forest.path_trajectory, counted, self.discount, lam, cut)
