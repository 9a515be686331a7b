"""Twin critics of utterances (ArCHer): min(Q1, Q2) - min(V1, V2), minus a token-level baseline."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from gxpo.algorithms.credit.base import CreditPart
from gxpo.algorithms.credit.gae import Share, ends, on_steps, payments, value_of
from gxpo.algorithms.credit.recursion import next_in, td_residual
from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest
    from gxpo.parts.protocols import Signals


@torch.no_grad()
def twin_critic(q1: Tensor, q2: Tensor, v1: Tensor, v2: Tensor) -> Tensor:
    """Twin-critic advantage A = min(Q1, Q2) - min(V1, V2), [n] float64: the lower of two estimates on each side.

    Source: ArCHer, arXiv 2402.19446, and its code.

    >>> x = [torch.tensor([v], dtype=torch.float64) for v in (0.7, 0.8, 0.5, 0.4)]
    >>> round(float(twin_critic(*x)), 12)
    0.3
    """
    q1, q2, v1, v2 = (x.to(torch.float64) for x in (q1, q2, v1, v2))
    return torch.minimum(q1, q2) - torch.minimum(v1, v2)


@part("twin_critic", stage="credit")
@dataclass(frozen=True)
class TwinCritic(CreditPart):
    """Utterance-level advantage (ArCHer): `twin_critic` of each turn, minus a learned baseline of each of its tokens.

    discount  from turn to turn
    baseline  the head "value@baseline", fitted to the turn's advantage in the state of each token, is taken off;
              without it all tokens of a turn have the same advantage

    V ("value@v1", "value@v2") is read at a turn's first trainable token, Q ("value@q1", "value@q2") at its last: in the
    state that holds all of the utterance but that token, which is as a rule the one that ends it. Of a turn of one
    token, Q knows nothing that V does not.

    Each of the two is fitted to trajectories of its own, by the checksum of their ids: linear heads that begin alike
    and are fitted alike stay alike, and the lower of two equal estimates is no more careful than one.

    Leaves to the objective, each at the tokens where it is read, nan elsewhere and in the other's trajectories:
      value_target@qI        r + discount * V_I of the next turn, 0 after the last
      value_target@vI        Q_I of the action
      value_target@baseline  A of the turn, at all of its tokens
    with values at the start of the step. Step rewards, or the outcome on the last turn, are r. No group is compared.
    """

    discount: Share = 0.9
    baseline: bool = True

    learns_from_equal_groups = True

    def __post_init__(self) -> None:
        heads = ("q1", "q2", "v1", "v2", *(("baseline",) if self.baseline else ()))
        object.__setattr__(self, "needs", tuple(f"value@{name}" for name in heads))
        object.__setattr__(self, "provides", tuple(f"value_target@{name}" for name in heads))

    def __call__(self, forest: Forest, signals: Signals, step: int) -> Tensor:
        is_counted_P = forest.path_trainable
        q1, q2, v1, v2, rows, *_ = self._read(forest, signals)
        turn = torch.zeros(forest.n_steps, dtype=torch.float64).index_copy_(0, rows, twin_critic(q1, q2, v1, v2))
        credit = forest.to_path(turn, "S")
        if self.baseline:
            credit = credit - value_of(signals, "value@baseline", is_counted_P)
        return torch.where(is_counted_P, credit, 0.0)

    def targets(self, forest: Forest, signals: Signals, step: int) -> dict[str, Tensor]:
        q1, q2, v1, v2, rows, first, last = self._read(forest, signals)
        reward = on_steps(payments(forest), forest.path_step, forest.n_steps)[rows]
        next_row = next_in(forest.step_trajectory[rows])
        # Twin heads fitted to the same trajectories would stay alike: each learns from its own half.
        in_second_half = torch.tensor([_half_of(name) == 1 for name in forest.id])[forest.step_trajectory[rows]]

        def column(place: Tensor, target: Tensor) -> Tensor:
            nowhere = torch.full((forest.n_entries,), torch.nan, dtype=torch.float64)
            return nowhere.index_copy_(0, place, target)

        target_by_name = {}
        for i, q, v, in_half in (("1", q1, v1, ~in_second_half), ("2", q2, v2, in_second_half)):
            # r + discount V(next): the residual plus the value that it subtracts.
            target_of_q = td_residual(reward, v, next_row, self.discount) + v
            target_by_name[f"value_target@q{i}"] = column(last[in_half], target_of_q[in_half])
            target_by_name[f"value_target@v{i}"] = column(first[in_half], q[in_half])
        # The baseline is fitted at every token to its turn's advantage.
        if self.baseline:
            turn = torch.full((forest.n_steps,), torch.nan, dtype=torch.float64)
            spread = forest.to_path(turn.index_copy_(0, rows, twin_critic(q1, q2, v1, v2)), "S")
            target_by_name["value_target@baseline"] = torch.where(forest.path_trainable, spread, torch.nan)
        return target_by_name

    def _read(self, forest: Forest, signals: Signals) -> tuple[Tensor, ...]:
        """Values q1, q2, v1, v2 of the turns with trainable tokens; these turns, their first and last such entries."""
        first_entry_S, last_entry_S = ends(forest.path_step, forest.path_trainable, forest.n_steps)
        rows = (last_entry_S >= 0).nonzero().squeeze(1)
        values = []
        # V before the action, Q after all of it but the last token, which mostly only ends it.
        for name, entry_S in (("q1", last_entry_S), ("q2", last_entry_S), ("v1", first_entry_S), ("v2", first_entry_S)):
            is_read_P = torch.zeros(forest.n_entries, dtype=torch.bool).index_fill_(0, entry_S[rows], True)
            values.append(value_of(signals, f"value@{name}", is_read_P)[entry_S[rows]])
        return *values, rows, first_entry_S[rows], last_entry_S[rows]


def _half_of(name: str) -> int:
    """Assign an id to half 0 or 1: pseudo-random, and the same in every run."""
    return hashlib.blake2b(name.encode(), digest_size=1).digest()[0] % 2
