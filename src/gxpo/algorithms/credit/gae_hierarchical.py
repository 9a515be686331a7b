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
    """One number per turn for each kind of decision, [n] float64."""

    low: Tensor  # what to do
    high: Tensor  # which sub-goal; 0 at turns that don't begin an option
    switch: Tensor  # whether to begin one


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

    upcoming = torch.where(following >= 0, high[following.clamp_min(0)], 0.0)  # read at last turns of options only
    ends_here = (following < 0) & unfinished
    residual = td_residual(reward, low, inside, discount, torch.where(ends_here, low, upcoming))
    a_low = linear_recursion(residual, discount * lam, inside)

    beyond = torch.where(ends_here, high[first[option]], upcoming)
    seeded = reward.to(torch.float64) + discount * torch.where(inside < 0, beyond, 0.0)
    total = linear_recursion(seeded, discount, inside)

    earned, after = semi_mdp(reward, inside, discount)
    next_option = next_in(trajectory[first])
    residual = td_residual(
        earned[first], high[first], next_option, after[first], torch.where(unfinished, high, 0.0)[first]
    )
    a_high = torch.zeros_like(total)
    a_high[first] = linear_recursion(residual, after[first] * high_lam, next_option)
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
    begin = begins_of(step, len(chain))
    count = begin.diff()
    known = count > 0
    known[1:] &= (count[:-1] > 0) & (chain[1:] == chain[:-1])
    known[:1] = False
    partner = begin[(step - 1).clamp_min(0)] + torch.arange(len(step)) - begin[step]
    other = (token != token[partner.clamp(0, max(len(token) - 1, 0))]).to(torch.float64) if len(token) else token
    changed = on_steps(other.to(torch.float64), step, len(chain)) > 0
    changed[1:] |= count[1:] != count[:-1]
    return known & changed


@part("hierarchical_gae", stage="credit")
@dataclass(frozen=True)
class HierarchicalGae(CreditPart):
    """`hierarchical_gae` of three value heads over turns whose tokens are labelled: KEEP 1 and SWITCH 2 (the tag that
    says so), SUBGOAL 3, ACTION 4, anything else 0.

    A turn that says SWITCH begins an option, whether it names a sub-goal or not; one that says nothing goes on. Tokens
    of the switch tag are given the switch advantage, those of the sub-goal the high one where an option begins, those
    of the action the low one; all others 0, so that thinking is not trained. A turn without an action is the action as
    a whole: all of its tokens are given the low advantage, those of the other tags theirs besides.

    discount, lam        from turn to turn; high_lam from option to option
    keep_penalty         added to the reward of turns that say KEEP, below 0 to discourage: "each" time the whole, or
    keep_mode            "shared": a T-th of it, T the trajectory's turns, so that always keeping costs one penalty; of
                         a trajectory of one turn none
    consistency_penalty  added to the reward of turns that keep but write another sub-goal than the turn before
    normalize            each of the three over its own turns of the batch, (A - mean) / (std + 1e-8), ddof 0
    cut                  truncated trajectories: "end" (they are over) or "extend" (what follows is worth what was
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
    cut: Literal["end", "extend"] = "end"

    needs = ("value@low", "value@high", "value@switch")
    requires = ("segments",)
    provides = ("value_target@low", "value_target@high", "value_target@switch")
    learns_from_equal_groups = True

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        turns = _Turns.of(forest)
        found = self._estimate(forest, signals, turns)[0]
        kind, at, compared = turns.kind, turns.at, forest.compared[forest.step_trajectory[turns.rows]]
        masks = {
            "low": (kind == ACTION) | turns.bare[at],
            "high": (kind == SUBGOAL) & turns.begins[at],
            "switch": (kind == KEEP) | (kind == SWITCH),
        }
        out = torch.zeros(len(kind), dtype=torch.float64)
        for name, mask in masks.items():
            given = getattr(found, name)
            if self.normalize:
                has = torch.zeros(len(given), dtype=torch.bool).index_fill_(0, at[mask], True)
                given = grouped.normalize(given, torch.where(has, 0, -1), compared, ddof=0, eps=1e-8)
            out += torch.where(mask, given[at], 0.0)
        return torch.zeros(forest.n_entries, dtype=torch.float64).index_copy_(0, turns.entries, out)

    def targets(self, forest: Forest, signals: Signals, step: int) -> dict[str, Tensor]:
        turns = _Turns.of(forest)
        found, places = self._estimate(forest, signals, turns)[1], Decisions(turns.low, turns.first, turns.first)
        out = {}
        for name, target, place in zip(Decisions._fields, found, places, strict=True):
            column = torch.full((forest.n_entries,), torch.nan, dtype=torch.float64)
            column[place] = target
            out[f"value_target@{name}"] = column
        return out

    def _share(self, trajectory: Tensor) -> Tensor:
        """[n] how much of a keep penalty each turn bears."""
        turns = grouped.count(trajectory)
        if self.keep_mode == "each":
            return torch.ones_like(turns)
        return torch.where(turns > 1, 1.0 / turns.clamp_min(1), 0.0)

    def _estimate(self, forest: Forest, signals: Signals, turns: _Turns) -> tuple[Decisions, Decisions]:
        heads = {}
        for name, place in (("low", turns.low), ("high", turns.first), ("switch", turns.first)):
            read = torch.zeros(forest.n_entries, dtype=torch.bool).index_fill_(0, place, True)
            heads[name] = value_of(signals, f"value@{name}", read)[place]
        unfinished = forest.truncated if self.cut == "extend" else torch.zeros_like(forest.truncated)
        trajectory = forest.step_trajectory[turns.rows]
        reward = on_steps(payments(forest), forest.path_step, forest.n_steps)[turns.rows]
        reward = reward + self.keep_penalty * self._share(trajectory) * turns.keeps
        reward = reward + self.consistency_penalty * turns.broken.to(torch.float64)
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
    """The turns that have trainable tokens [n], and those tokens [m]."""

    rows: Tensor  # [n] into S
    first: Tensor  # [n] into P
    low: Tensor  # [n] into P: where the value of acting on the sub-goal is read
    begins: Tensor  # [n] bool: begins an option
    keeps: Tensor  # [n] bool: doesn't say SWITCH
    broken: Tensor  # [n] bool: keeps, but writes another sub-goal
    entries: Tensor  # [m] into P
    at: Tensor  # [m] into n
    kind: Tensor  # [m] label
    bare: Tensor  # [n] bool: has no action, so that all of it is one

    @classmethod
    def of(cls, forest: Forest) -> _Turns:
        if "label" not in forest.extras:
            raise GxpoError("these rollouts have no labels of switch, sub-goal and action: set segment=spans")
        counted, step = forest.path_trainable, forest.path_step
        first, last = ends(step, counted, forest.n_steps)
        rows = (last >= 0).nonzero().squeeze(1)
        place = torch.full((forest.n_steps,), -1).index_copy_(0, rows, torch.arange(len(rows)))
        entries = counted.nonzero().squeeze(1)
        at, label = place[step[entries]], forest.extras["label"][forest.path_token[entries]].to(torch.int64)
        follows = next_in(at)

        def has(kind: int) -> Tensor:
            """[n] bool: turns with a token of this kind."""
            return torch.zeros(len(rows), dtype=torch.bool).index_fill_(0, at[label == kind], True)

        def after(*kinds: int) -> Tensor:
            """The token after the last of these kinds in each turn, -1 none."""
            marked = torch.isin(label, torch.tensor(kinds)).nonzero().squeeze(1)
            newest = torch.full((len(rows),), -1).scatter_reduce_(0, at[marked], marked, "amax")
            return torch.where(newest >= 0, follows[newest.clamp_min(0)], -1) if len(follows) else newest

        goal, said = after(SUBGOAL), after(KEEP, SWITCH)
        read = torch.where(goal >= 0, goal, said)
        low = torch.where(read >= 0, entries[read.clamp_min(0)], first[rows]) if len(entries) else first[rows]
        keeps, marked = ~has(SWITCH), label == SUBGOAL
        token, chain = forest.token[forest.path_token[entries]], forest.step_trajectory[rows]
        broken = keeps & differs_from_before(token[marked], at[marked], chain)
        starts = option_starts(~keeps, chain)
        return cls(rows, first[rows], low, starts, keeps, broken, entries, at, label, ~has(ACTION))
