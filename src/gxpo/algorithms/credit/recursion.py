"""Temporal-difference residuals and the linear recursion over them, for GAE and lambda-returns.

Rows form chains: each has at most one that follows it, and -1 where the chain ends. What follows a token is the
next token of its author's in the trajectory, what follows a turn the next turn; observations are no rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from gxpo.forest.columns import with_end


def next_in(chain: Tensor, is_counted: Tensor | None = None) -> Tensor:
    """Next row of each row in its chain, [n] int64; -1 for the last.

    chain       [n] chain of each row, in order of time within a chain (P by trajectory, S by trajectory)
    is_counted  [n] bool (default: all): rows that are in their chain; the others have -1

    >>> next_in(torch.tensor([0, 0, 0, 1, 1]), torch.tensor([True, False, True, True, True])).tolist()
    [2, -1, -1, 4, -1]
    """
    next_row = torch.full(chain.shape, -1, dtype=torch.int64)
    rows = torch.arange(len(chain)) if is_counted is None else is_counted.nonzero().squeeze(1)
    owner = chain[rows]
    # P and S come sorted by trajectory, so that the sort is rarely needed.
    if bool((owner[1:] < owner[:-1]).any()):
        order = torch.argsort(owner, stable=True)
        rows, owner = rows[order], owner[order]
    next_row[rows[:-1]] = torch.where(owner[1:] == owner[:-1], rows[1:], -1)
    return next_row


def td_residual(
    reward: Tensor, value: Tensor, following: Tensor, discount: float | Tensor, at_end: Tensor | None = None
) -> Tensor:
    """Temporal-difference residual: delta_i = reward_i + discount_i * value(row after i) - value_i, [n] float64.

    discount  of the transition out of each row, one for all or [n]
    at_end    [n] the value of what would follow the last row of each chain (default: 0, the chain is over)
    """
    reward, value = reward.to(torch.float64), value.to(torch.float64)
    if at_end is None:
        # The end's value 0 is appended as a row of its own, which -1 reads.
        next_value = torch.cat([value, value.new_zeros(1)]).index_select(0, with_end(following)[:-1])
    else:
        next_value = torch.where(following >= 0, value[following.clamp_min(0)], at_end.to(torch.float64))
    return reward + discount * next_value - value


@torch.no_grad()
def linear_recursion(delta: Tensor, coefficient: float | Tensor, following: Tensor) -> Tensor:
    """Backward recursion A_i = delta_i + coefficient_i * A(row after i), [n] float64; A = delta at the end of a chain.

    delta        [n]
    coefficient  of the transition out of each row, one for all or [n]: discount * lambda for GAE, discount^k for a
                 transition over k steps, 0 to cut a chain
    following    [n] the row that follows, -1 none (`next_in`); without cycles

    By doubling: after k rounds each row holds its own 2^k terms and the product of coefficients that leads beyond
    them, so that log2 of the longest chain rounds are enough. Nothing is divided and no logarithm taken: exact for
    coefficients of any sign, 0 included, up to the order of the additions. A row's result depends on what follows it
    and on nothing else in the batch.

    >>> d = torch.tensor([1.0, 2.0, 3.0])
    >>> linear_recursion(d, 0.5, torch.tensor([1, 2, -1])).tolist()
    [2.75, 3.5, 3.0]
    """
    jump, end = with_end(following), len(following)
    total = torch.cat([delta.to(torch.float64), torch.zeros(1, dtype=torch.float64)])
    coefficient_product = torch.zeros_like(total)  # 0 at the end, so that nothing goes on there
    coefficient_product[:-1] = coefficient
    # Buffers of the loop: the recursion runs over every token of a step.
    buffer, jump_buffer = torch.empty_like(total), torch.empty_like(jump)
    while int(jump.min()) < end:
        # Each round adds the terms of the row jumped to, which holds as many, and doubles the jump.
        total.addcmul_(coefficient_product, torch.index_select(total, 0, jump, out=buffer))
        coefficient_product.mul_(torch.index_select(coefficient_product, 0, jump, out=buffer))
        torch.index_select(jump, 0, jump, out=jump_buffer)
        jump, jump_buffer = jump_buffer, jump
    return total[:-1]


@torch.no_grad()
def semi_mdp(reward: Tensor, inside: Tensor, discount: float) -> tuple[Tensor, Tensor]:
    """Semi-MDP returns (R, g): reward from each row to the end of its option, and the discount of what follows.

    R_i = reward_i + discount * R(what follows i inside), g_i = discount^(rows from i to the end). At an option's first
    row these are sum_j discount^j r_j and discount^d of its d rows, the reward and the discount of one transition of
    the semi-Markov process: an option that lasts counts as the time that it takes.

    reward  [n]
    inside  [n] the row that follows within the same option, -1 at its last (`next_in` of the options)

    >>> earned, after = semi_mdp(torch.tensor([0.0, 0.0, 0.5, 0.0, 1.0]), torch.tensor([1, -1, 3, 4, -1]), 0.5)
    >>> earned.tolist(), after.tolist()
    ([0.0, 0.0, 0.75, 0.5, 1.0], [0.25, 0.5, 0.125, 0.25, 0.5])
    """
    # Rows from each to its option's end, counted by the same recursion.
    rows = linear_recursion(torch.ones_like(reward, dtype=torch.float64), 1.0, inside)
    return linear_recursion(reward, discount, inside), discount**rows
