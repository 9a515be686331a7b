"""Advantage by change of value: V(state after) - V(state before) of each step, segment or token (VinePPO, SPO, PAV)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from gxpo.algorithms.credit.base import CreditPart
from gxpo.algorithms.credit.batch_whiten import batch_whiten
from gxpo.algorithms.credit.branch_points import branch_values, less_where_longer
from gxpo.algorithms.credit.recursion import next_in
from gxpo.base.errors import ConfigError, GxpoError
from gxpo.forest import grouped
from gxpo.forest.reshape import pieces_of
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Signals

VALUE = "state_value"  # extra of the forest, [T] float64: value of the state just before a token, nan unknown


@torch.no_grad()
def value_delta(before: Tensor, after: Tensor, best_of: int = 1, form: str = "prob") -> Tensor:
    """Change of value f(V(after)) - f(V(before)), [n] float64; 0 where either is nan, or within rounding (1e-12).

    best_of  K: values are chances v of success, and f(v) = 1 - (1 - v)^K, the chance of the best of K attempts
    form     "prob", or "log": f is the logarithm, so that this is log(V(after) / V(before))

    >>> value_delta(torch.tensor([0.25, 0.5]), torch.tensor([0.5, 0.25])).tolist()
    [0.25, -0.25]
    """
    before, after = before.to(torch.float64), after.to(torch.float64)
    # PAV: the advantage under a stronger prover, the best of K attempts.
    if best_of > 1:
        before, after = 1 - (1 - before) ** best_of, 1 - (1 - after) ** best_of
    if form == "log":
        smallest = torch.finfo(torch.float64).tiny  # a product of many small probabilities may be 0
        before, after = before.clamp_min(smallest).log(), after.clamp_min(smallest).log()
    # Means of the same outcomes in another order differ by rounding, which must not become a direction.
    rounding = grouped.DEGENERATE * torch.maximum(before.abs(), after.abs())
    return torch.where((after - before).abs() > rounding, after - before, 0.0)


# ---------------------------------------------------------------- where values come from
class ValuedStretches(NamedTuple):
    """Stretches of action tokens from one valued state to the next in their trajectory; [n] of them.

    row            [P] the stretch of each path token, -1 none
    before, after  [n] float64 values of the states that it begins and ends in, nan unknown
    """

    row: Tensor
    before: Tensor
    after: Tensor


class KnownStretches(NamedTuple):
    """ValuedStretches between states of known value: one begins at each such state; [n] of them.

    begin      [n] the entry that each begins with
    following  [n] the stretch after it in its trajectory, -1 none
    row        [P] the stretch of each entry, -1 before the first of its trajectory
    """

    begin: Tensor
    following: Tensor
    row: Tensor


def known_stretches(value: Tensor, trajectory: Tensor) -> KnownStretches:
    """Split trajectories at known values: values [P], nan unknown; trajectory [P], by trajectory, then time."""
    finite = value.isfinite()
    begin = finite.nonzero().squeeze(1)
    owner = torch.cat([trajectory[begin], torch.full((1,), -1)])  # what is before the first, counted from the end
    # The newest begin before an entry; it may be one of another trajectory, for entries before the first of their own.
    row = finite.cumsum(0) - 1
    return KnownStretches(begin, next_in(owner[:-1]), torch.where(owner[row] == trajectory, row, -1))


def column(value: Tensor, forest: Forest) -> ValuedStretches:
    """Stretches from values [P] of the states just before each token, nan unknown; the last one of a trajectory ends
    with the outcome. Tokens before the first known value are in none."""
    begin, following, row = known_stretches(value, forest.path_trajectory)
    before = value.to(torch.float64)[begin]
    outcome = forest.outcome.to(torch.float64)[forest.path_trajectory[begin]]
    return ValuedStretches(
        row, before, torch.where(following >= 0, before[following], outcome)
    )  # -1 reads what is not taken


def state_values(forest: Forest, reader: str) -> Tensor:
    """Values of the states before the action tokens, [P], nan unknown; GxpoError without such a column."""
    if VALUE not in forest.extras:
        raise GxpoError(f"{reader} reads forest.extras[{VALUE!r}], which is not there: use rollout=monte_carlo_values")
    return forest.to_path(forest.extras[VALUE].to(torch.float64), "T")


def pieces(forest: Forest) -> ValuedStretches:
    """Stretches by segments, or whole turns: V after one is the mean outcome of the group's compared rollouts through
    its last token; before the first one the group's mean, after the last one the outcome. Without a compared rollout
    through a state, its value is the rollout's own outcome."""
    group, outcome, is_compared_R = forest.ids("group", axis="R"), forest.outcome.to(torch.float64), forest.compared
    pieces, path = pieces_of(forest), forest.path_trajectory
    owner = pieces.trajectory

    def mean(x: Tensor, ids: Tensor, where: Tensor) -> Tensor:
        return torch.where(grouped.count(ids, where) > 0, grouped.mean(x, ids, where), x)

    # The value after a piece: rollouts that share its last token have all that came before in common.
    through = mean(outcome[path], forest.ids("group", "token", axis="P"), is_compared_R[path])[pieces.last]
    following = next_in(owner)
    after = torch.where(following >= 0, through, outcome[owner])
    before = mean(outcome, group, is_compared_R)[owner]
    # A piece begins where the one before ends; the first begins at the prompt, with the group's mean.
    before[following[following >= 0]] = after[following >= 0]
    return ValuedStretches(pieces.piece, before, after)


class Source(NamedTuple):
    """Source of named values: how they are computed, and the signals and rollouts they need."""

    compute: Callable[[Forest, Signals, ValueDelta], ValuedStretches]
    needs: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    learns_from_equal_groups: bool = False


VALUES: Mapping[str, Source] = {
    "continuations": Source(
        lambda forest, signals, part: column(state_values(forest, "credit.value=continuations"), forest),
        requires=("state_values",),
        learns_from_equal_groups=True,
    ),
    "pieces": Source(lambda forest, signals, part: pieces(forest)),
    "branch_points": Source(
        lambda forest, signals, part: ValuedStretches(*branch_values(forest, part.branch_key)), requires=("forks",)
    ),
    "belief": Source(
        lambda forest, signals, part: ValuedStretches(
            torch.arange(forest.n_entries), signals["belief_before"], signals["belief_after"]
        ),
        needs=("belief_before", "belief_after"),
        learns_from_equal_groups=True,
    ),
}


@part("value_delta", stage="credit")
@dataclass(frozen=True)
class ValueDelta(CreditPart):
    """Value-difference advantage: A = factor * `value_delta` of each stretch, the same for all of its tokens.

    value         whose values, and so what a stretch is
                    "continuations"  of the states from which rollout=monte_carlo_values went on, to the next such state
                    "pieces"         segments or turns, by what came of the rollouts through them (see `pieces`)
                    "branch_points"  stretches between two branch points of a tree, likewise (see `branch_values`)
                    "belief"         the signals "belief_before" and "belief_after" of a turn or segment
                    NAME             a signal [P]: of the state just before each token, nan unknown (see `column`)
    factor        weight relative to other advantages
    best_of,form  see `value_delta`; with best_of above 1, values and outcomes have to lie between 0 and 1
    target        where a value head is trained: on the "last" token of a stretch (all but that token has been read) to
                  V after it, or on its "first" to V before it; None: nowhere. Leaves "value_target" [P] to the
                  objective, nan at all other tokens
    max_probability  tokens of more than this probability under the sampler have advantage 0 (SPO's probability mask:
                  0.9). They keep their place in every denominator; SPO's code takes them out there too, so that its
                  gradient is this one, under a token mean, divided by the share of tokens that are left
    whiten        "token": (A - mean) / sqrt(var + 1e-8) over the trainable tokens of the batch that `max_probability`
                  keeps, unbiased variance; a stretch that changed nothing is then given -mean / std
    branch_key    "node" or "position": which rollouts are at one branch point
    length_power  beta of `shorter_is_better`, 0: off; with branch points

    Over a trajectory the differences add up to outcome - V(its first known state), or the last belief less the first.
    Tokens in no stretch have 0, and so has a stretch of unknown value.

    With these settings this is
      VinePPO     continuations from every step: r + V(next) - V(current)           arXiv 2410.01679
      SPO-chain   continuations from cut points, confident 0.9                      arXiv 2505.23564
      PAV         continuations, best_of 4: the advantage under a stronger prover   arXiv 2410.08146
      AlphaMath   pieces, factor 0, target last: at the break that ends a step      arXiv 2405.03553
      MASPRM      pieces, target last                                               arXiv 2510.24803
      ROSE        branch_points (code: branch_key position)                           arXiv 2601.05053
      GRPO-VPS    belief, added to GRPO's advantage
    The code of VinePPO and SPO whitens over tokens, beyond their papers' formulas.
    """

    value: str = "continuations"
    factor: float = 1.0
    best_of: Annotated[int, Ge(1)] = 1
    form: Literal["prob", "log"] = "prob"
    target: Literal["last", "first"] | None = None
    max_probability: Annotated[float, Interval(gt=0, le=1)] = 1.0
    whiten: Literal["none", "token"] = "none"
    branch_key: Literal["node", "position"] = "node"
    length_power: Annotated[float, Ge(0)] = 0.0

    def __post_init__(self) -> None:
        if self.length_power and self.value != "branch_points":
            raise ConfigError(f"credit.length_power is of branch points, not of {self.value}: set it to 0")
        # A named source, or a signal of that name: its needs are the part's.
        source = self._source
        object.__setattr__(self, "needs", source.needs)
        object.__setattr__(self, "requires", source.requires)
        object.__setattr__(self, "provides", () if self.target is None else ("value_target",))
        object.__setattr__(self, "learns_from_equal_groups", self.whiten == "token" or source.learns_from_equal_groups)

    @property
    def _source(self) -> Source:
        read = Source(lambda forest, signals, part: column(signals[self.value], forest), (self.value,), (), True)
        return VALUES.get(self.value, read)

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        row, before, after = self._source.compute(forest, signals, self)
        if self.best_of > 1:
            self._check_chances(before, after)
        change = self.factor * value_delta(before, after, self.best_of, self.form)
        # Row -1, tokens in no stretch, reads the 0 that is appended.
        advantage_P = torch.cat([change, change.new_zeros(1)])[row]
        if self.length_power:
            advantage_P = less_where_longer(advantage_P, forest, self.branch_key, self.length_power)
        # SPO's probability mask: tokens that the sampler was sure of carry no decision.
        is_confident_P = forest.path_behaviour_logprob.exp() > self.max_probability
        if self.whiten == "token":
            return batch_whiten(
                advantage_P, forest.path_trainable & ~is_confident_P, forest.to_path(forest.compared, "R")
            )
        return torch.where(is_confident_P, 0.0, advantage_P)

    def targets(self, forest: Forest, signals: Signals, step: int) -> dict[str, Tensor]:
        """{"value_target": [P]}: V at one token of each stretch, nan elsewhere."""
        if self.target is None:
            return {}
        row, before, after = self._source.compute(forest, signals, self)
        entry_P = torch.arange(len(row))
        # A value head reads all of a stretch but its last token there, or nothing of it at its first.
        target_entry = entry_P.new_zeros(len(before)).scatter_reduce_(
            0, row[row >= 0], entry_P[row >= 0], "amin" if self.target == "first" else "amax", include_self=False
        )
        target = torch.full((len(row),), math.nan, dtype=torch.float64)
        target[target_entry] = before if self.target == "first" else after
        return {"value_target": target}

    def _check_chances(self, before: Tensor, after: Tensor) -> None:
        chances = torch.cat([before, after])
        if bool(((chances < 0) | (chances > 1)).any()):
            raise GxpoError(
                f"credit.best_of={self.best_of} is of chances of success, and values or outcomes are not between 0 and "
                "1: set credit.best_of=1, or leave the rewards unshaped"
            )
