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
    """State values of the empirical policy on a graph, by value iteration; [n] float64.

    V(s) = mean over the edges out of s of payment + discount V(target), the Bellman equation

    source   [E] node that the edge leaves
    target   [E] node that it leads to, -1: the end
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
    n_states = len(start)
    # Every edge out of a state is as likely as it was taken: the empirical policy.
    out_degree = torch.bincount(source, minlength=n_states).clamp_min(1).to(torch.float64)
    share = 1.0 / out_degree[source]
    mean_payment = torch.zeros(n_states, dtype=torch.float64).index_add_(0, source, share * payment.to(torch.float64))
    goes_on = target >= 0
    next_state, left_state, weight = target[goes_on], source[goes_on], discount * share[goes_on]
    value = start.to(torch.float64)
    # Relative to the largest start value, so that the unit of rewards does not matter.
    threshold = tolerance * float(value.abs().max()) if n_states else 0.0
    while True:
        new_value = mean_payment.index_add(0, left_state, weight * value[next_state])
        if not n_states or float((new_value - value).abs().max()) <= threshold:
            return new_value
        value = new_value


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
    where       [S] bool, compared (default: all): steps that make values
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
    is_compared_S = torch.ones_like(state, dtype=torch.bool) if where is None else where
    # A state that no compared step was in has no value; such steps are passed over, their payment goes back a step.
    has_value_S = (state >= 0) & (grouped.count(state, is_compared_S) > 0)
    following = next_in(trajectory, has_value_S)
    payment_S = on_tokens(paid, trajectory, torch.arange(len(paid)), has_value_S)  # of others to the step before
    # Value iteration starts at the mean Monte-Carlo return of each state, which is near the solution.
    return_S = linear_recursion(payment_S, discount, following)  # Monte-Carlo returns: the values to start at
    n_states = int(state.max()) + 1 if len(state) else 0
    start = torch.zeros(n_states, dtype=torch.float64)
    start[state[has_value_S]] = grouped.mean(return_S, state, is_compared_S)[has_value_S]
    edges = (has_value_S & is_compared_S).nonzero().squeeze(1)
    next_state_S = torch.where(following >= 0, state[following.clamp_min(0)], -1)
    # Edges are the compared steps alone; what leads out of the graph ends it.
    value = graph_values(state[edges], next_state_S[edges], payment_S[edges], start, discount)
    value = torch.where(has_value_S, value[state.clamp_min(0)], 0.0) if n_states else torch.zeros_like(payment_S)
    advantage = gae(payment_S, value, trajectory, has_value_S, discount, lam)
    # Rounding of sums as long as the returns is no advantage: exactly 0 within 1e-12 of the largest return.
    rounding = grouped.DEGENERATE * float(return_S.abs().max()) if len(return_S) else 0.0
    advantage = torch.where(has_value_S & (advantage.abs() > rounding), advantage, 0.0)
    if scale == "none":
        return advantage
    # A std of what the sweeps left over would blow it up to order 1: such differences are 0 before scaling.
    solver_error = UNSOLVED * float(paid.abs().max()) if len(paid) else 0.0
    return grouped.normalize(torch.where(advantage.abs() > solver_error, advantage, 0.0), state, is_compared_S)
