"""Generalised advantage estimation (GAE) with a value head: over tokens, over turns, or over both."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from gxpo.algorithms.credit.base import CreditPart
from gxpo.algorithms.credit.batch_whiten import batch_whiten
from gxpo.algorithms.credit.recursion import linear_recursion, next_in, td_residual
from gxpo.base.errors import ConfigError, GxpoError
from gxpo.forest import grouped
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Signals

Share = Annotated[float, Interval(ge=0, le=1)]


@torch.no_grad()
def gae(
    reward: Tensor,
    value: Tensor,
    trajectory: Tensor,
    is_counted: Tensor,
    discount: float | Tensor = 1.0,
    lam: float | Tensor = 1.0,
    cut: Tensor | None = None,
) -> Tensor:
    """Advantages by GAE: delta_i = r_i + discount V_next - V_i;  A_i = delta_i + discount * lam * A_next.

    reward      [n] paid on the row: an entry of P, or a turn
    value       [n] value of the state in which the row's token, or turn, is chosen
    trajectory  [n], rows by trajectory, then time
    is_counted  [n] bool: the rows that are transitions; the others are given 0 and their values are never read
    discount    of the transition out of each row, one for all or [n]
    lam         lambda, likewise
    cut         [n] bool (default: none): rows of trajectories that were cut off. What follows their last row is given
                that row's own value, V(s_l) := V(s_{l-1}) (extended GAE); otherwise it is 0

    Next is the next counted row of the trajectory, so the value that is bootstrapped at the last token of a turn is
    that of the first token of the next turn, whatever observation lies between. Returns [n] float64; A + V is the
    lambda-return, the target of the value. With lam 1 and discount 1, A = (sum of the rewards from here on) - V; with
    lam 0 the temporal difference.

    Source: GAE, arXiv 1506.02438; over language-model tokens as in verl and Agent-R1. verl's older recursion steps
    through observation tokens and uses their values; its newer one, like this, does not. `cut`: T-PPO, arXiv
    2506.15050. A `discount` that is 1 except out of a turn's last token: POAD, arXiv 2405.15821.

    >>> one = torch.zeros(3, dtype=torch.int64)
    >>> v = torch.tensor([0.4, 0.5, 0.6], dtype=torch.float64)
    >>> gae(torch.zeros(3), v, one, one == 0, lam=0.9, cut=one == 0).round(decimals=9).tolist()
    [0.19, 0.1, 0.0]
    """
    # Observation tokens between two turns are no rows: the value after a turn is that of the next turn's first token.
    next_row = next_in(trajectory, is_counted)
    value = torch.where(is_counted, value.to(torch.float64), 0.0)
    # Extended GAE: a cut trajectory goes on with the value that its last state had, not with 0.
    at_end = None if cut is None else torch.where(cut, value, 0.0)
    delta = td_residual(reward, value, next_row, discount, at_end)
    return torch.where(is_counted, linear_recursion(delta, discount * lam, next_row), 0.0)


@torch.no_grad()
def bilevel_gae(
    turn_return: Tensor,
    last_entry_S: Tensor,
    value: Tensor,
    turn: Tensor,
    is_counted_P: Tensor,
    discount: float = 1.0,
    lam: float = 1.0,
) -> Tensor:
    """Second pass of bi-level GAE: `gae` inside each turn, whose last token is paid the turn's lambda-return.

    turn_return   [S] A + V of each turn from a first pass over turns, with V at the turn's first token or its last
    last_entry_S  [S] its last counted entry, -1 none
    value         [P] of the state in which each token is chosen
    turn          [P] the step of each entry
    is_counted_P  [P] bool

    Nothing is bootstrapped across turns but through `turn_return`. Where the first pass had V at the last token, that
    token's advantage is the turn's; with lam 1 both are the same, turn_return discounted to the token, less its value.

    Source: VAGEN and RAGEN (their "bi-level GAE"), which read V at the last token.
    """
    # The turn's lambda-return is all that the second pass is paid, at the turn's last token.
    reward = torch.zeros(value.shape, dtype=torch.float64)
    reward[last_entry_S[last_entry_S >= 0]] = turn_return[last_entry_S >= 0]
    return gae(reward, value, turn, is_counted_P, discount, lam)


@torch.no_grad()
def on_tokens(payment: Tensor, step_trajectory: Tensor, path_step: Tensor, is_counted_P: Tensor) -> Tensor:
    """Step rewards placed on each step's last counted token, [P] float64.

    payment [S]; step_trajectory [S]; path_step [P]; is_counted_P [P] bool. A step without a counted entry is paid on
    the last one before it in its trajectory; where there is none, nothing that is counted led to the payment, and
    nothing receives it.
    """
    last_entry_S = ends(path_step, is_counted_P, len(payment))[1]
    # A step without a token of its own is paid on the last one before it, if that is of the same trajectory.
    if len(last_entry_S):
        last_entry_S = last_entry_S.cummax(0).values
    owner = (
        step_trajectory[path_step[last_entry_S.clamp_min(0)]] if len(path_step) else torch.full_like(last_entry_S, -1)
    )
    is_due = (last_entry_S >= 0) & (owner == step_trajectory)
    return torch.zeros(is_counted_P.shape, dtype=torch.float64).index_add_(
        0, last_entry_S[is_due], payment.to(torch.float64)[is_due]
    )


def ends(path_step: Tensor, is_counted_P: Tensor, steps: int) -> tuple[Tensor, Tensor]:
    """First and last counted token of each step, [S] and [S] int64; -1 without one."""
    entries = is_counted_P.nonzero().squeeze(1)
    last_S = torch.full((steps,), -1).scatter_reduce_(0, path_step[entries], entries, "amax")
    first_S = torch.full((steps,), len(path_step)).scatter_reduce_(0, path_step[entries], entries, "amin")
    return torch.where(last_S >= 0, first_S, -1), last_S


def step_rewards(forest: Forest, unfinished: Tensor | None = None) -> Tensor:
    """Reward of each step, [S] float64; in a trajectory without step rewards, the outcome at its last step.

    Trajectories that are `unfinished` [R] bool are not paid their outcome: it is the score of a complete attempt.
    """
    if unfinished is not None and bool(unfinished.any()):
        forest = forest.replace(outcome=torch.where(unfinished, 0.0, forest.outcome))
    return forest.returns(0.0)


def payments(forest: Forest, by_step: Tensor | None = None) -> Tensor:
    """Step rewards [S] (default: `step_rewards`) placed on each step's last trainable token, [P] float64."""
    by_step = step_rewards(forest) if by_step is None else by_step
    return on_tokens(by_step, forest.step_trajectory, forest.path_step, forest.path_trainable)


def was_carried_out(forest: Forest) -> Tensor:
    """Return [S] bool: turns whose action the environment carried out (no "action_error" in `info`), and last turns."""
    return (next_in(forest.step_trajectory) < 0) | (forest.ids("step_info.action_error", axis="S") < 0)


def on_steps(x: Tensor, path_step: Tensor, steps: int) -> Tensor:
    """Sum of `x` [P] over the tokens of each step, [S] float64."""
    return torch.zeros(steps, dtype=torch.float64).index_add_(0, path_step, x)


def value_of(signals: Signals, name: str, entries: Tensor) -> Tensor:
    """Output of a value head, [P] float64; GxpoError where it is not finite at `entries` [P] bool."""
    value = signals[name].to(torch.float64)
    if missing := int((~value.isfinite() & entries).sum()):
        label = name if name == "value" else repr(name)
        raise GxpoError(f"the {label} of {missing} of {int(entries.sum())} trainable tokens is not finite")
    return value


@part("gae", stage="credit")
@dataclass(frozen=True)
class Gae(CreditPart):
    """Generalised advantage estimation (GAE) over tokens, turns, or both, and the regression target of the value head.

    level          "token": one advantage a token; "turn": one for all tokens of a turn; "both": over turns, then inside
                   each turn over its tokens, whose last is paid the turn's lambda-return (`bilevel_gae`)
    discount       from token to token, at level "turn" from turn to turn
    turn_discount  from a turn's last token to the next turn's first, and from turn to turn (None: `discount`). With
                   discount 1, time passes between turns only
    lam            lambda of the advantage, at both levels
    target_lam     lambda of the target that is left to the value term (None: `lam`); 1 is the Monte-Carlo return
    anchor         where the value of a turn is read, at the levels that have one: at its "first" token, before the turn
                   is chosen, or at its "last", when most of it is
    target_at      the value is trained on "all" tokens, or, at level "turn", on each turn's "anchor" only
    truncation     truncated trajectories: "end" (they are over: what follows is worth 0, the outcome is theirs) or
                   "extend" (they are unfinished: extended GAE, the outcome is not paid, step rewards are, and the value
                   is not trained on them) or "trim" (the same, and their last `tail` tokens have advantage 0 and are
                   not whitened)
    whiten         "none"; "token": (A - mean) / sqrt(var + 1e-8) over the trainable tokens of the batch, unbiased
                   variance, as verl does by default, long trajectories and turns moving the mean more; "turn":
                   (A - mean) / (std + 1e-8) over the turns of the batch, ddof 1, at level "turn"
    reward         None, or the signal [S] that is paid, times `weight`, in the place of the environment's rewards
    bonus          added to the reward of turns whose action `was_carried_out`
    roles          agents with a value head each, "value@ROLE" (none: one head for all). Its term is
                   `objective.add.ROLE: value_regression` with `head: ROLE`

    With these settings this is
      verl, Agent-R1's token_gae   level token
      POAD                         level token, turn_discount below 1
      Agent-R1's gae, StepPO       level turn, whiten turn
      VAGEN, RAGEN                 level both, anchor last, turn_discount 0.95, whiten token
      SPA-RL                       level turn, reward progress, bonus 0.5   arXiv 2505.20732

    Rewards: each turn's step reward on its last trainable token; in a trajectory that has none, the outcome on its
    last trainable token. Tokens of other authors (`trainable` false) are passed over like observations: their values
    are not trained either. Time is the order of P, under `after` too. No group is compared, so equal rewards are a
    signal, and a group of one learns.

    Leaves "value_target" [P] to the objective: lambda-return before whitening, nan where the value is not trained.
    Raises GxpoError where a trainable token has no finite value.
    """

    level: Literal["token", "turn", "both"] = "token"
    discount: Share = 1.0
    turn_discount: Share | None = None
    lam: Share = 1.0
    target_lam: Share | None = None
    anchor: Literal["first", "last"] = "first"
    target_at: Literal["all", "anchor"] = "all"
    truncation: Literal["end", "extend", "trim"] = "end"
    whiten: Literal["none", "token", "turn"] = "none"
    reward: str | None = None
    weight: float = 1.0
    bonus: float = 0.0
    tail: Annotated[int, Ge(0)] = field(default=8, kw_only=True)
    roles: tuple[str, ...] = field(default=(), kw_only=True)

    provides = ("value_target",)
    learns_from_equal_groups = True

    def __post_init__(self) -> None:
        heads = tuple(f"value@{role}" for role in self.roles) or ("value",)
        object.__setattr__(self, "needs", heads if self.reward is None else (*heads, self.reward))
        if self.roles:
            object.__setattr__(self, "provides", tuple(f"value_target@{role}" for role in self.roles))
        if self.tail != 8 and self.truncation != "trim":
            raise ConfigError(
                "credit.tail is what credit.truncation=trim leaves out: set that, or leave credit.tail out"
            )
        if self.whiten == "turn" and self.level != "turn":
            raise ConfigError("credit.whiten=turn is of one advantage a turn: set credit.level=turn, or whiten=token")
        if self.target_at == "anchor" and self.level != "turn":
            raise ConfigError(
                f"credit.level={self.level} reads the value of every token, and credit.target_at=anchor trains it on "
                "one a turn: set credit.target_at=all"
            )
        # Without discounting or lambda both passes only add up rewards, and the result is that of level token.
        if self.level == "both" and self.lam == self.discount == self._discount_between_turns == 1:
            raise ConfigError(
                "credit.level=both without discounts and with lam 1 is credit.level=token: set "
                "credit.turn_discount (0.95) or credit.lam below 1"
            )

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        estimate_P, is_kept_P = self._estimate(forest, signals, self.lam)[0], ~self._tails(forest)
        advantage_P = torch.where(is_kept_P, estimate_P, 0.0)
        if self.whiten == "none":
            return advantage_P
        # Trimmed tokens are cut off what is whitened: their 0 is no advantage that the batch's mean should know.
        if self.whiten == "token":
            return batch_whiten(advantage_P, forest.path_trainable & is_kept_P, forest.to_path(forest.compared, "R"))
        # Every token of a turn has the turn's advantage: the first stands for it, each turn counts once.
        first, _ = ends(forest.path_step, forest.path_trainable, forest.n_steps)
        turn_advantage_S = (
            estimate_P[first.clamp_min(0)] if len(estimate_P) else torch.zeros(forest.n_steps, dtype=torch.float64)
        )
        compared = forest.compared[forest.step_trajectory]
        whitened_S = grouped.normalize(turn_advantage_S, torch.where(first >= 0, 0, -1), compared, eps=1e-8)
        return torch.where(forest.path_trainable & is_kept_P, forest.to_path(whitened_S, "S"), 0.0)

    def targets(self, forest: Forest, signals: Signals, step: int) -> dict[str, Tensor]:
        """{"value_target": [P]}: A + V with `target_lam`; nan on tokens that the value is not trained on."""
        lam = self.lam if self.target_lam is None else self.target_lam
        is_trained_P = forest.path_trainable & ~forest.to_path(self._unfinished(forest), "R")
        # Only the token whose value the turn was estimated with is trained.
        if self.target_at == "anchor":
            anchor = ends(forest.path_step, forest.path_trainable, forest.n_steps)[self.anchor == "last"]
            is_anchor_P = torch.zeros_like(is_trained_P).index_fill_(0, anchor[anchor >= 0], True)
            is_trained_P &= is_anchor_P
        target_P = torch.where(is_trained_P, self._estimate(forest, signals, lam)[1], torch.nan)
        if not self.roles:
            return {"value_target": target_P}
        role_P = self._role(forest)
        return {
            f"value_target@{role}": torch.where(role_P == i, target_P, torch.nan) for i, role in enumerate(self.roles)
        }

    def _role(self, forest: Forest) -> Tensor:
        """[P] index in `roles` of the agent that wrote each token; GxpoError for an agent without a head."""
        index_A = torch.tensor([self.roles.index(n) if n in self.roles else -1 for n in forest.agent_names])
        role_P = forest.to_path(index_A[forest.step_agent], "S")
        if bool((role_P[forest.path_trainable] < 0).any()):
            strangers = [name for name in forest.agent_names if name not in self.roles]
            raise GxpoError(f"credit.roles={list(self.roles)} has no head for {strangers[0]!r}: add it")
        return role_P

    def _value(self, forest: Forest, signals: Signals, is_counted_P: Tensor) -> Tensor:
        """[P] value of each token: that of the one head, or of its agent's."""
        if not self.roles:
            return value_of(signals, "value", is_counted_P)
        role_P = self._role(forest)
        value_P = torch.zeros(forest.n_entries, dtype=torch.float64)
        for i, role in enumerate(self.roles):
            value_P = torch.where(
                role_P == i, value_of(signals, f"value@{role}", is_counted_P & (role_P == i)), value_P
            )
        return value_P

    @property
    def _discount_between_turns(self) -> float:
        """Discount from turn to turn."""
        return self.discount if self.turn_discount is None else self.turn_discount

    def _discounts(self, forest: Forest) -> float | Tensor:
        """Discount of the transition out of each token: one number, or [P] where a turn's last token has another."""
        if self.turn_discount is None:
            return self.discount
        last_entry_S = ends(forest.path_step, forest.path_trainable, forest.n_steps)[1]
        out = torch.full((forest.n_entries,), self.discount, dtype=torch.float64)
        out[last_entry_S[last_entry_S >= 0]] = self.turn_discount
        return out

    def _unfinished(self, forest: Forest) -> Tensor:
        # [R]: under "end" a truncated trajectory counts as finished, with its outcome
        return torch.zeros_like(forest.truncated) if self.truncation == "end" else forest.truncated

    def _tails(self, forest: Forest) -> Tensor:
        """[P] bool: the last `tail` trainable tokens of each unfinished trajectory."""
        if self.truncation != "trim":
            return torch.zeros_like(forest.path_trainable)
        # Tokens left to the end, by the running count of trainable ones: the total is the count at the last.
        count_P = forest.path_trainable.cumsum(0)
        total_R = torch.zeros(forest.n_trajectories, dtype=torch.int64)
        total_R.scatter_reduce_(0, forest.path_trajectory, count_P, "amax")
        is_near_end_P = forest.to_path(total_R, "R") - count_P < self.tail
        return forest.path_trainable & forest.to_path(self._unfinished(forest), "R") & is_near_end_P

    def _step_payment(self, forest: Forest, signals: Signals, unfinished: Tensor) -> Tensor:
        """[S] payment of each step: the environment's reward or a signal, and the bonus."""
        if self.reward is None:
            payment_S = step_rewards(forest, unfinished)
        else:
            payment_S = self.weight * signals[self.reward].to(torch.float64)
        return payment_S + self.bonus * was_carried_out(forest) if self.bonus else payment_S

    def _estimate(self, forest: Forest, signals: Signals, lam: float) -> tuple[Tensor, Tensor]:
        """[P] advantages and lambda-returns."""
        is_counted_P, unfinished = forest.path_trainable, self._unfinished(forest)
        value = self._value(forest, signals, is_counted_P)
        reward, step_P = payments(forest, self._step_payment(forest, signals, unfinished)), forest.path_step
        # One pass over tokens; the discount out of a turn's last token may differ.
        if self.level == "token":
            cut_P = forest.to_path(unfinished, "R")
            advantage = gae(reward, value, forest.path_trajectory, is_counted_P, self._discounts(forest), lam, cut_P)
            return advantage, advantage + value
        # First pass, over turns: one value a turn, read at its anchor, and all that the turn was paid.
        first_entry_S, last_entry_S = ends(step_P, is_counted_P, forest.n_steps)
        anchor, owner = (first_entry_S if self.anchor == "first" else last_entry_S), forest.step_trajectory
        has_anchor_S = anchor >= 0
        turn_value_S = torch.zeros(forest.n_steps, dtype=torch.float64)
        turn_value_S[has_anchor_S] = value[anchor[has_anchor_S]]
        turn_payment_S = on_steps(reward, step_P, forest.n_steps)
        turn_advantage_S = gae(
            turn_payment_S, turn_value_S, owner, has_anchor_S, self._discount_between_turns, lam, unfinished[owner]
        )
        if self.level == "turn":
            return torch.where(is_counted_P, turn_advantage_S[step_P], 0.0), (turn_advantage_S + turn_value_S)[step_P]
        # Second pass, over the tokens inside each turn.
        advantage = bilevel_gae(
            turn_advantage_S + turn_value_S, last_entry_S, value, step_P, is_counted_P, self.discount, lam
        )
        return advantage, advantage + value
