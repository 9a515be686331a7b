"""Values of options: one payment and one discount for n turns or tokens; distilled critics; imitation weights."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from gxpo.algorithms.credit.base import CreditPart
from gxpo.algorithms.credit.gae import Share, ends, on_steps, payments, value_of
from gxpo.algorithms.credit.recursion import linear_recursion, next_in
from gxpo.base.errors import ConfigError
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Signals


@torch.no_grad()
def option_targets(
    reward: Tensor, value: Tensor, following: Tensor, n: int, discount: float, at_end: Tensor | float = 0.0
) -> Tensor:
    """Targets of an option of n rows: the sum of their rewards + discount * value(row after them), [n] float64.

    reward     [n] paid on each row, not discounted inside an option
    value      [n] of the state before each row
    following  [n] the next row of the chain, -1 at its end (`next_in`)
    at_end     [n] or one number: value of what follows the end of the row's chain; its last option may be shorter

    Source: options of OTA, arXiv 2505.12737, which cost one reward and one discount, whatever their length.

    >>> row = torch.tensor([1, 2, -1])
    >>> option_targets(torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.25, 0.5, 0.75]), row, 2, 0.5).tolist()
    [0.375, 1.0, 1.0]
    """
    to_end = linear_recursion(reward.to(torch.float64), 1.0, following)
    place, jump = torch.arange(len(value)), following
    # n rows ahead, by jumps of 1, 2, 4... rows
    while n:
        if n % 2:
            place = torch.where(place >= 0, jump[place.clamp_min(0)], -1)
        jump, n = torch.where(jump >= 0, jump[jump.clamp_min(0)], -1), n // 2
    has_next, after = place >= 0, place.clamp_min(0)
    paid = to_end - torch.where(has_next, to_end[after], 0.0)
    return paid + discount * torch.where(has_next, value.to(torch.float64)[after], at_end)


def imitation_weight(advantage: Tensor, temperature: float, max_weight: float) -> Tensor:
    """Advantage-weighted imitation (AWR): min(e^(A / temperature), max_weight), elementwise.

    >>> imitation_weight(torch.tensor([0.5, -0.5, 2.0]).double(), 1 / 3, 100.0).round(decimals=6).tolist()
    [4.481689, 0.22313, 100.0]
    """
    return (advantage / temperature).exp().clamp_max(max_weight)


@part("option_values", stage="credit")
@dataclass(frozen=True)
class OptionValues(CreditPart):
    """Temporal-difference values of options (`option_targets`), and what the policy learns from them.

    level     rows of an option: "turn", whose value is read before its first trainable token, or "token"
    option    n, rows of an option: its rewards are added up, and one discount follows
    discount  from option to option
    cost      None: the payments of the rollouts. A number, as -1: the reward of each option until success; after a
              success follows 0, after anything else cost / (1 - discount), as if it went on for ever
    policy_credit  what the policy gets: "weight", min(e^(A / temperature), max_weight) with A = target - value (AWR:
              with `objective.surrogate: log_likelihood`); "advantage", A; "all", 1 (imitation of what is logged);
              "none", 0, so that the heads alone are trained
    two_heads  False: one head, "value". True: two, each fitted to the other's value after the option: "value@chunk" by
              a mean (mse, bce), so an option as it is; "value@short" by a form above the mean, so the best of them
    logits    the heads that are fitted by cross-entropy give log-odds (`form: bce`): "value", or "value@chunk"

    Leaves "value_target" (of log-odds "value_logit_target") to the objective, nan where nothing is read. No group is
    compared. Sources: OTA, arXiv 2505.12737; SAW, arXiv 2505.14975; DQC's code (chunk critic, distilled critic).
    """

    level: Literal["turn", "token"] = "turn"
    option: Annotated[int, Ge(1)] = 1
    discount: Share = 0.99
    cost: float | None = None
    policy_credit: Literal["weight", "advantage", "all", "none"] = "weight"
    temperature: Annotated[float, Gt(0)] = 1.0
    max_weight: Annotated[float, Gt(0)] = 100.0
    two_heads: bool = False
    logits: bool = False

    learns_from_equal_groups = True

    def __post_init__(self) -> None:
        if self.cost is not None and self.discount >= 1:
            raise ConfigError("credit.cost is paid for ever where nothing succeeds: set credit.discount below 1")
        heads = ("value@chunk", "value@short") if self.two_heads else ("value",)
        object.__setattr__(self, "needs", heads)
        object.__setattr__(self, "provides", tuple(self._target(head) for head in heads))

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        rows, following = self._rows(forest)
        if self.policy_credit in ("all", "none"):
            worth = torch.full((len(rows),), float(self.policy_credit == "all"), dtype=torch.float64)
        else:
            head = "value@short" if self.two_heads else "value"
            worth = self._row_targets(forest, signals, rows, following)[head] - self._value(signals, head, rows, forest)
            worth = (
                imitation_weight(worth, self.temperature, self.max_weight) if self.policy_credit == "weight" else worth
            )
        # a turn's weight is that of all its tokens
        if self.level == "turn":
            by_step = torch.zeros(forest.n_steps, dtype=torch.float64).index_copy_(0, forest.path_step[rows], worth)
            return torch.where(forest.path_trainable, forest.to_path(by_step, "S"), 0.0)
        return torch.zeros(forest.n_entries, dtype=torch.float64).index_copy_(0, rows, worth)

    def targets(self, forest: Forest, signals: Signals, step: int) -> dict[str, Tensor]:
        rows, following = self._rows(forest)
        nowhere = torch.full((forest.n_entries,), torch.nan, dtype=torch.float64)
        by_head = self._row_targets(forest, signals, rows, following)
        return {self._target(head): nowhere.index_copy(0, rows, target) for head, target in by_head.items()}

    def _rows(self, forest: Forest) -> tuple[Tensor, Tensor]:
        """Entries at which a row's value is read, and the next row of each (places in this list)."""
        if self.level == "turn":
            first, _ = ends(forest.path_step, forest.path_trainable, forest.n_steps)
            rows = first[first >= 0].sort().values
        else:
            rows = forest.path_trainable.nonzero().squeeze(1)
        return rows, next_in(forest.path_trajectory[rows])

    def _row_targets(self, forest: Forest, signals: Signals, rows: Tensor, following: Tensor) -> dict[str, Tensor]:
        """Targets of each head at the rows."""
        paid_P, at_end = payments(forest), torch.zeros(len(rows), dtype=torch.float64)
        paid = on_steps(paid_P, forest.path_step, forest.n_steps)[forest.path_step[rows]]
        reward = paid if self.level == "turn" else paid_P[rows]
        is_scored = forest.scored[forest.path_trajectory[rows]]
        # a cost for each option replaces what was paid: it ends with a success, and with nothing else
        if self.cost is not None:
            verdict = torch.where(forest.success.isfinite(), forest.success, (forest.outcome > 0).to(forest.success))
            is_right = (verdict > 0)[forest.path_trajectory[rows]]
            at_end = torch.where(is_right, 0.0, self.cost / (1 - self.discount)).to(torch.float64)
            reward = torch.zeros_like(reward)

        read_from = (
            {"value@chunk": "value@short", "value@short": "value@chunk"} if self.two_heads else {"value": "value"}
        )
        out = {}
        for head, source in read_from.items():
            value = self._value(signals, source, rows, forest)
            target = option_targets(reward, value, following, self.option, self.discount, at_end)
            out[head] = torch.where(is_scored, target + (self.cost or 0.0), torch.nan)
        return out

    def _value(self, signals: Signals, head: str, rows: Tensor, forest: Forest) -> Tensor:
        is_read = torch.zeros(forest.n_entries, dtype=torch.bool).index_fill_(0, rows, True)
        value = value_of(signals, head, is_read)[rows]
        return value.sigmoid() if self.logits and head != "value@short" else value

    def _target(self, head: str) -> str:
        name = "value_logit_target" if self.logits and head != "value@short" else "value_target"
        return name + head.removeprefix("value")
