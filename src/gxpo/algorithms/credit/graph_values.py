"""GAE over turns with state values from the graph of the group's trajectories (GRAFT)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from gxpo.algorithms.credit.gae import Share, gae, on_tokens
from gxpo.algorithms.credit.recursion import linear_recursion, next_in
from gxpo.forest import grouped
from gxpo.parts.registry import part

TOLERANCE = 1e-10  # a sweep that changes no value by more, relative to the largest, is the last
UNSOLVED = 1e-8  # of the largest payment: a change of value within it may be what the sweeps left over


@torch.no_grad()
def graph_values(
    source: Tensor, target: Tensor, payment: Tensor, start: Tensor, discount: float = 1.0, tolerance: float = TOLERANCE
) -> Tensor:
    """V(s) = mean over the edges out of s of payment + discount V(target), [n] float64: the Bellman equation of
    the empirical policy.

    source   [E] node that the edge leaves
    target   [E] node that it leads to, -1: it is over
    payment  [E]
    start    [n] values to start from

    Value iteration: all nodes at once, until a sweep changes no value by more than `tolerance` of the largest
    magnitude in `start`. From every node that was left a trajectory leads to its end, so that this ends with discount 1
    and with cycles too, after about as many sweeps as turns that a walk over the graph takes. Nodes without an edge are
    worth 0.

    >>> edges = torch.tensor([[0, 0, 1], [1, -1, -1]])
    >>> graph_values(*edges, torch.tensor([0.0, 0.0, 1.0]), torch.zeros(2) + 1).tolist()
    [0.5, 1.0]
    """
    n = len(start)
    times = torch.bincount(source, minlength=n).clamp_min(1).to(torch.float64)
    share = 1.0 / times[source]
    paid = torch.zeros(n, dtype=torch.float64).index_add_(0, source, share * payment.to(torch.float64))
    onward = target >= 0
    leads, leaves, carried = target[onward], source[onward], discount * share[onward]
    value = start.to(torch.float64)
    small = tolerance * float(value.abs().max()) if n else 0.0
    while True:
        swept = paid.index_add(0, leaves, carried * value[leads])
        if not n or float((swept - value).abs().max()) <= small:
            return swept
        value = swept


@part("graph_values", stage="credit", axis="S")
def graph_advantage(
    paid: Tensor,
    state: Tensor,
    trajectory: Tensor,
    where: Tensor | None = None,
    *,
    discount: Share = 1.0,
    lam: Share = 0.95,
    scale: Literal["none", "std"] = "none",
) -> Tensor:
    """GAE over turns with state values of the group's graph (GRAFT), the same for every token of a step.

    delta_t = paid_t + discount V(s_{t+1}) - V(s_t);  A_t = delta_t + discount lam A_{t+1}, along each trajectory

    V are the `graph_values` of the steps of all trajectories, 0 at a trajectory's end, and where it was cut off.

    paid        [S] step rewards, the outcome on the last step where there are none
    state       [S] int64 dense ids of (group, state), -1 unknown
    trajectory  [S], steps by trajectory, then time
    where       [S] bool, compared (default: all): whose steps make values
    discount    per turn; below 1, equal outcomes after more or fewer turns differ
    lam         lambda: 0 trusts the graph's values alone, 1 each trajectory's own return against them
    scale       "none": with outcomes of 0 and 1, values are success rates and advantages their changes; "std": less the
                mean and over the std (1 degree of freedom, eps 1e-6) of the steps out of the same state (eq. 11)

    Returns [S] float64. With lam 0 it is the edge's own advantage, whose sum over the compared steps of a state is 0,
    and which is 0 for a step that no other rollout took from its state; with lam 1 it is return - V(s_t), which differs
    from GiGPO's A^S (with the mean alone) where trajectories met later on. With discount 1 and lam 0 a trajectory's
    advantages sum to its return - V(s_0). Steps without a value (in an unknown state, or in one that no compared
    trajectory was in) are passed over and given 0; what they were paid goes to the step before. Exactly 0 where it is
    within 1e-12 of the largest return of the batch: with discount 1, where all of a group return the same.

    Source: GRAFT, arXiv 2609.28963, eq. 5 to 8. Its sum over the graph (eq. 9, 10) adds, k steps on, the mean delta of
    all edges out of the states that can be reached: under values that solve Bellman's equation that is 0 for every
    state, so that GRAFT's estimate is `lam` 0 for every lambda. Above 0, `lam` here follows each trajectory's own
    steps. The paper discounts the outcome once more, on the way into the end: its values and advantages are `discount`
    times these.
    """
    enters = torch.ones_like(state, dtype=torch.bool) if where is None else where
    counted = (state >= 0) & (grouped.count(state, enters) > 0)
    following = next_in(trajectory, counted)
    payment = on_tokens(paid, trajectory, torch.arange(len(paid)), counted)  # of others to the step before
    onward = linear_recursion(payment, discount, following)  # Monte-Carlo returns: the values to start at
    n = int(state.max()) + 1 if len(state) else 0
    start = torch.zeros(n, dtype=torch.float64)
    start[state[counted]] = grouped.mean(onward, state, enters)[counted]
    edges = (counted & enters).nonzero().squeeze(1)
    after = torch.where(following >= 0, state[following.clamp_min(0)], -1)
    value = graph_values(state[edges], after[edges], payment[edges], start, discount)
    value = torch.where(counted, value[state.clamp_min(0)], 0.0) if n else torch.zeros_like(payment)
    advantage = gae(payment, value, trajectory, counted, discount, lam)
    rounding = grouped.DEGENERATE * float(onward.abs().max()) if len(onward) else 0.0
    advantage = torch.where(counted & (advantage.abs() > rounding), advantage, 0.0)
    if scale == "none":
        return advantage
    left_over = UNSOLVED * float(paid.abs().max()) if len(paid) else 0.0
    return grouped.normalize(torch.where(advantage.abs() > left_over, advantage, 0.0), state, enters)
