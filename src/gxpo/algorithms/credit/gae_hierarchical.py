"""Hierarchical GAE over options (HiPER): advantages of switch, sub-goal and action."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor

from gxpo.algorithms.credit.base import CreditPart
from gxpo.algorithms.credit.gae import Share, ends, on_steps, payments, value_of
from gxpo.algorithms.credit.recursion import linear_recursion, next_in, semi_mdp, td_residual
from gxpo.base.errors import GxpoError
from gxpo.forest import grouped
from gxpo.forest.grouped import begins_of
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Signals

KEEP, SWITCH, SUBGOAL, ACTION = 1, 2, 3, 4  # labels of tokens, in the order of the segmenter's patterns


class Decisions(NamedTuple):
    """Numbers per turn for each kind of decision, [n] float64."""

    low: Tensor  # choice of an action
    high: Tensor  # choice of a sub-goal; 0 at turns that don't begin an option
    switch: Tensor  # choice to begin an option or to keep the present one


@torch.no_grad()
def hierarchical_gae(
    reward: Tensor,
    begins: Tensor,
    value: Decisions,
    trajectory: Tensor,
    discount: float = 1.0,
    lam: float = 1.0,
    high_lam: float = 0.95,
    cut: Tensor | None = None,
) -> tuple[Decisions, Decisions]:
    """Hierarchical GAE: advantages and value targets of the three decisions; an option lasts until the next begins.

    low     inside an option delta_t = r_t + g V' - VL_t, A_t = delta_t + g lam A_{t+1}; V' = VL_{t+1}, at its last turn
            VH of the next option's first; nothing of A goes from option to option
    high    at an option's first turn, over its d turns: D = sum_j g^j r_j + g^d VH(next option) - VH,
            A = D + g^d high_lam A(next option)
    switch  A_t = T_t - VT_t; T_t = r_t + g T_{t+1} inside the option, g VH(next option) after its last turn

    reward      [n] of each turn
    begins      [n] bool: turns that begin an option; a trajectory's first does in any case
    value       VL, VH (read where an option begins), VT of each turn
    trajectory  [n], turns by trajectory, then time
    cut         [n] bool (default: none): turns of trajectories that were cut off. What follows their last option is
                then given a value known already: VL of the last turn (low), VH of its own first turn (the others)

    After the last option all is worth 0. Where each turn is an option, `high` with VH = V is GAE over turns. Source:
    HiPER, arXiv 2602.16165, and its code (`cut` is its bootstrap_truncated).
    """
    unfinished = torch.zeros_like(begins) if cut is None else cut
    following, starts = next_in(trajectory), option_starts(begins, trajectory)
    option = starts.cumsum(0) - 1
    inside, first = next_in(option), starts.nonzero().squeeze(1)
    low, high, term = (v.to(torch.float64) for v in value)

    # Low level: inside an option the next turn's VL is bootstrapped, after its last turn the next option's VH.
    next_high_value = torch.where(
        following >= 0, high[following.clamp_min(0)], 0.0
    )  # read at last turns of options only
    is_cut_end = (following < 0) & unfinished
    residual = td_residual(reward, low, inside, discount, torch.where(is_cut_end, low, next_high_value))
    a_low = linear_recursion(residual, discount * lam, inside)

    # Switch level: the return of the option's rewards, seeded at its last turn with the value of what follows.
    value_beyond = torch.where(is_cut_end, high[first[option]], next_high_value)
    seeded_reward = reward.to(torch.float64) + discount * torch.where(inside < 0, value_beyond, 0.0)
    total = linear_recursion(seeded_reward, discount, inside)

    # High level: an option is one transition of a semi-Markov process, discounted by the turns that it took.
    option_reward, option_discount = semi_mdp(reward, inside, discount)
    next_option = next_in(trajectory[first])
    residual = td_residual(
        option_reward[first],
        high[first],
        next_option,
        option_discount[first],
        torch.where(unfinished, high, 0.0)[first],
    )
    # Only first turns choose a sub-goal; the others have 0, and no target.
    a_high = torch.zeros_like(total)
    a_high[first] = linear_recursion(residual, option_discount[first] * high_lam, next_option)
    targets = Decisions(a_low + low, torch.where(starts, a_high + high, torch.nan), total)
    return Decisions(a_low, a_high, total - term), targets


def option_starts(begins: Tensor, trajectory: Tensor) -> Tensor:
    """Turns that begin an option, the first of each trajectory included; [n] bool."""
    opening = torch.ones_like(begins)
    opening[1:] = trajectory[1:] != trajectory[:-1]
    return begins | opening


@torch.no_grad()
def differs_from_before(token: Tensor, step: Tensor, chain: Tensor) -> Tensor:
    """Steps whose marked tokens differ from those of the step before; False where either has none; [S] bool.

    token  [m] ids of the marked tokens, by step, then time
    step   [m] of each, ascending
    chain  [S] the trajectory of each step
    """
    begin_S = begins_of(step, len(chain))
    count_S = begin_S.diff()
    # Compared are neighbouring turns of one trajectory that both mark tokens, the first turn of all never.
    has_both_S = count_S > 0
    has_both_S[1:] &= (count_S[:-1] > 0) & (chain[1:] == chain[:-1])
    has_both_S[:1] = False
    # Tokens are compared place by place with those of the turn before; a partner past its end is caught by the
    # counts below.
    partner = begin_S[(step - 1).clamp_min(0)] + torch.arange(len(step)) - begin_S[step]
    differs = (token != token[partner.clamp(0, max(len(token) - 1, 0))]).to(torch.float64) if len(token) else token
    differs_S = on_steps(differs.to(torch.float64), step, len(chain)) > 0
    differs_S[1:] |= count_S[1:] != count_S[:-1]
    return has_both_S & differs_S


@part("hierarchical_gae", stage="credit")
@dataclass(frozen=True)
class HierarchicalGae(CreditPart):
    """Hierarchical GAE over options (HiPER): `hierarchical_gae` of three value heads over turns of labelled tokens.

    Labels are KEEP 1 and SWITCH 2 (the tag that decides), SUBGOAL 3, ACTION 4, and 0 for anything else. A turn with
    SWITCH begins an option, with or without a sub-goal; one without a tag goes on. Tokens of the switch tag are given
    the switch advantage, those of the sub-goal the high one where an option begins, those of the action the low one;
    all others 0, so that thinking is not trained. A turn without an action is the action as a whole: all of its tokens
    are given the low advantage, those of the other tags theirs in addition.

    discount, lam        from turn to turn; high_lam from option to option
    keep_penalty         added to the reward of turns with KEEP, below 0 to discourage: "each" time the whole, or
    keep_mode            "shared": a T-th of it, T the trajectory's turns, so that always keeping costs one penalty; of
                         a trajectory of one turn none
    consistency_penalty  added to the reward of turns that keep but write another sub-goal than the turn before
    normalize            each of the three over its own turns of the batch, (A - mean) / (std + 1e-8), ddof 0
    truncation           truncated trajectories: "end" (they are over) or "extend" (what follows is worth what was
                         expected at the last turn). What they are paid is paid in both: they are not gone on with

    The penalties are added to what the turn is paid, here and nowhere else: as step rewards they would take the place
    of the outcome in trajectories that have no others. Values: "value@high" and "value@switch" at a turn's first
    trainable token, "value@low" at the first after the sub-goal, or else after the switch, or else the turn's first.
    Leaves "value_target@low", "@high", "@switch" [P] to the objective, nan elsewhere. No group is compared. Raises
    GxpoError where the rollouts have no labels.
    """

    discount: Share = 1.0
    lam: Share = 1.0
    high_lam: Share = 0.95
    keep_penalty: float = 0.0
    keep_mode: Literal["each", "shared"] = "shared"
    consistency_penalty: float = 0.0
    normalize: bool = True
    truncation: Literal["end", "extend"] = "end"

    needs = ("value@low", "value@high", "value@switch")
    requires = ("segments",)
    provides = ("value_target@low", "value_target@high", "value_target@switch")
    learns_from_equal_groups = True

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        turns = _Turns.of(forest)
        advantages = self._estimate(forest, signals, turns)[0]
        kind_m, turn_m, compared = turns.kind, turns.turn_of_token, forest.compared[forest.step_trajectory[turns.rows]]
        # Each tag is trained by the advantage of the decision that it states; thinking by none.
        masks = {
            "low": (kind_m == ACTION) | turns.has_no_action[turn_m],
            "high": (kind_m == SUBGOAL) & turns.begins[turn_m],
            "switch": (kind_m == KEEP) | (kind_m == SWITCH),
        }
        out = torch.zeros(len(kind_m), dtype=torch.float64)
        for name, mask in masks.items():
            advantage = getattr(advantages, name)
            # Over the turns where this decision was made: the 0 of the others is no sample.
            if self.normalize:
                is_used = torch.zeros(len(advantage), dtype=torch.bool).index_fill_(0, turn_m[mask], True)
                advantage = grouped.normalize(advantage, torch.where(is_used, 0, -1), compared, ddof=0, eps=1e-8)
            out += torch.where(mask, advantage[turn_m], 0.0)
        return torch.zeros(forest.n_entries, dtype=torch.float64).index_copy_(0, turns.entries, out)

    def targets(self, forest: Forest, signals: Signals, step: int) -> dict[str, Tensor]:
        turns = _Turns.of(forest)
        target_decisions, read_at = (
            self._estimate(forest, signals, turns)[1],
            Decisions(turns.low, turns.first, turns.first),
        )
        out = {}
        for name, target, entry in zip(Decisions._fields, target_decisions, read_at, strict=True):
            column = torch.full((forest.n_entries,), torch.nan, dtype=torch.float64)
            column[entry] = target
            out[f"value_target@{name}"] = column
        return out

    def _share(self, trajectory: Tensor) -> Tensor:
        """[n] share of the keep penalty that each turn bears."""
        turns = grouped.count(trajectory)
        if self.keep_mode == "each":
            return torch.ones_like(turns)
        return torch.where(turns > 1, 1.0 / turns.clamp_min(1), 0.0)

    def _estimate(self, forest: Forest, signals: Signals, turns: _Turns) -> tuple[Decisions, Decisions]:
        heads = {}
        # Each head is read in the state before its decision: the action after the sub-goal, the others at the start.
        for name, entry in (("low", turns.low), ("high", turns.first), ("switch", turns.first)):
            is_read_P = torch.zeros(forest.n_entries, dtype=torch.bool).index_fill_(0, entry, True)
            heads[name] = value_of(signals, f"value@{name}", is_read_P)[entry]
        unfinished = forest.truncated if self.truncation == "extend" else torch.zeros_like(forest.truncated)
        trajectory = forest.step_trajectory[turns.rows]
        reward = on_steps(payments(forest), forest.path_step, forest.n_steps)[turns.rows]
        # Penalties join what a turn is paid: as step rewards they would replace the outcome of an episode without any.
        reward = reward + self.keep_penalty * self._share(trajectory) * turns.keeps
        reward = reward + self.consistency_penalty * turns.is_inconsistent.to(torch.float64)
        return hierarchical_gae(
            reward,
            turns.begins,
            Decisions(**heads),
            trajectory,
            self.discount,
            self.lam,
            self.high_lam,
            unfinished[trajectory],
        )


class _Turns(NamedTuple):
    """Turns with trainable tokens [n], and these tokens [m]."""

    rows: Tensor  # [n] into S
    first: Tensor  # [n] into P
    low: Tensor  # [n] into P: where the value of acting on the sub-goal is read
    begins: Tensor  # [n] bool: begins an option
    keeps: Tensor  # [n] bool: has no SWITCH tag
    is_inconsistent: Tensor  # [n] bool: keeps, but writes another sub-goal
    entries: Tensor  # [m] into P
    turn_of_token: Tensor  # [m] into n
    kind: Tensor  # [m] label
    has_no_action: Tensor  # [n] bool: all of the turn counts as the action

    @classmethod
    def of(cls, forest: Forest) -> _Turns:
        if "label" not in forest.extras:
            raise GxpoError("these rollouts have no labels of switch, sub-goal and action: set segment=spans")
        is_counted_P, step = forest.path_trainable, forest.path_step
        # Turns without trainable tokens decide nothing and are no rows.
        first_entry_S, last_entry_S = ends(step, is_counted_P, forest.n_steps)
        rows = (last_entry_S >= 0).nonzero().squeeze(1)
        turn_of_step = torch.full((forest.n_steps,), -1).index_copy_(0, rows, torch.arange(len(rows)))
        entries = is_counted_P.nonzero().squeeze(1)
        turn_m, label_m = (
            turn_of_step[step[entries]],
            forest.extras["label"][forest.path_token[entries]].to(torch.int64),
        )
        next_token = next_in(turn_m)

        # Labels are the segmenter's, in the order of its patterns (KEEP, SWITCH, SUBGOAL, ACTION).
        def has(kind: int) -> Tensor:
            """Return [n] bool: turns with a token of this kind."""
            return torch.zeros(len(rows), dtype=torch.bool).index_fill_(0, turn_m[label_m == kind], True)

        def after(*kinds: int) -> Tensor:
            """Token after the last one of these kinds in each turn, -1 none."""
            marked = torch.isin(label_m, torch.tensor(kinds)).nonzero().squeeze(1)
            last_marked = torch.full((len(rows),), -1).scatter_reduce_(0, turn_m[marked], marked, "amax")
            return (
                torch.where(last_marked >= 0, next_token[last_marked.clamp_min(0)], -1)
                if len(next_token)
                else last_marked
            )

        after_goal, after_switch = after(SUBGOAL), after(KEEP, SWITCH)
        # The low value is read once the sub-goal is written, or else after the tag, or at the turn's first token.
        read_token = torch.where(after_goal >= 0, after_goal, after_switch)
        low = (
            torch.where(read_token >= 0, entries[read_token.clamp_min(0)], first_entry_S[rows])
            if len(entries)
            else first_entry_S[rows]
        )
        keeps, marked = ~has(SWITCH), label_m == SUBGOAL
        token, chain = forest.token[forest.path_token[entries]], forest.step_trajectory[rows]
        is_inconsistent = keeps & differs_from_before(token[marked], turn_m[marked], chain)
        # The first turn of a trajectory begins an option in any case.
        starts = option_starts(~keeps, chain)
        return cls(
            rows, first_entry_S[rows], low, starts, keeps, is_inconsistent, entries, turn_m, label_m, ~has(ACTION)
        )
