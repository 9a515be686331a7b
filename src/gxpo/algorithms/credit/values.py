"""Values that `Relative` compares, by name, as functions of columns: rewards of tokens or steps."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt, Interval
from torch import Tensor

from gxpo.algorithms.credit.columns import column
from gxpo.algorithms.credit.state_keys import Moves
from gxpo.base.errors import one_of
from gxpo.forest import grouped
from gxpo.parts.functions import checked_by


# ---------------------------------------------------------------- graph distance
# Shortest distances in a graph.
@torch.no_grad()
def graph_distance(source: Tensor, target: Tensor, goal: Tensor) -> Tensor:
    """Shortest distance from each node to a goal in edges, [n] float64; inf where there is no path.

    source, target  [E] nodes that each edge joins; goal [n] bool

    A sweep over the edges finds the nodes that are one further, so there are as many sweeps as the longest distance;
    edges out of nodes that are found are left out of the next.

    >>> edges = torch.tensor([[0, 1, 0, 3], [1, 2, 3, 3]])
    >>> graph_distance(*edges, torch.tensor([False, False, True, False])).tolist()
    [2.0, 1.0, 0.0, inf]
    """
    distance = torch.where(goal, 0.0, torch.inf).to(torch.float64)
    sweep = 0
    while len(source):
        open_ = distance[source].isinf()
        source, target = source[open_], target[open_]
        found = source[distance[target] == sweep]
        if not len(found):
            break
        sweep += 1
        distance[found] = sweep
    return distance


# ---------------------------------------------------------------- values
def _in_order(reward: float, penalty: float, vote: str) -> str | None:
    if penalty <= reward:
        return None
    ends = "else a right attempt with wrong steps falls below a wrong one"
    return f"penalty ({penalty:g}) is at most reward ({reward:g}): {ends}"


@column("P")
@checked_by(_in_order)
def penalised_outcome(
    outcome: Tensor,
    segment_score: Tensor,
    *,
    reward: Annotated[float, Gt(0)] = 2.0,
    penalty: Annotated[float, Ge(0)] = 1.0,
    vote: Literal["intersection", "majority", "union"] = "intersection",
) -> Tensor:
    """Step penalties from critiques (CAPO): reward * outcome - penalty * (the token's step is voted wrong), [P].

    segment_score  [P] signal, the share of critiques that find nothing wrong; an unknown one (nan) is no penalty
    reward         C, of the whole attempt, at least `penalty`: a right attempt with wrong steps stays above a wrong one
    penalty        P, of every token of a wrong step
    vote           wrong is where "intersection": all critiques find something; "majority": more than half; "union": any
    """
    one_of("credit.vote", vote, ("intersection", "majority", "union"))
    wrong = {"intersection": segment_score <= 0, "majority": segment_score < 0.5, "union": segment_score < 1}[vote]
    return reward * outcome - penalty * wrong.to(torch.float64)


@column("S")
def graph_return(
    moves: Moves,
    group: Tensor,
    correct: Tensor,
    where: Tensor | None = None,
    *,
    discount: Annotated[float, Interval(gt=0, lt=1)] = 0.1,
    form: Literal["distance", "progress"] = "distance",
    worth: Annotated[float, Gt(0)] = 10.0,
) -> Tensor:
    """Step rewards by distance to success in the graph of the group's states (GraphGPO), [S] float64.

    R = worth * discount^d(after), or "progress": worth * discount^(d(after) - d(before) + 1), by which a step was
    nearer than the state it was taken in. d is the distance to success in the graph of the group's steps; from where
    nothing leads there it is one more than the largest of the group (1 without a success: then all are equal).

    moves     steps between states; unknown ones are as far as what leads nowhere
    group     [S] int64 dense ids
    correct   [S] bool, of the trajectory: the verdict, or, where it has none, an outcome above 0. The last step of a
              correct one leads to success itself
    where     [S] bool, compared (default: all): whose steps are edges
    discount  for each step that is left to success: far below 1, so that nearer is better by orders of magnitude
    worth     value of success itself; it matters without scaling

    It is whatever became of the step's own trajectory. `history` tells the groups that are compared, never the nodes.

    Source: GraphGPO, arXiv 2605.26684, and its recipe in verl-agent, whose numbers these are. The paper counts the
    step itself as well, discount^(d(after) + 1), a constant factor that scaling by a std takes out.

    >>> after, following = torch.tensor([1, -1, 2, 3]), torch.tensor([1, -1, 3, -1])
    >>> moves = Moves(torch.tensor([0, 1, 0, 2]), after, following)
    >>> graph_return(moves, torch.zeros(4, dtype=torch.int64), torch.tensor([True, True, False, False])).tolist()
    [1.0, 10.0, 0.010000000000000002, 0.010000000000000002]
    """
    before, after, following = moves
    n = int(torch.maximum(before, after).max()) + 1 if len(before) else 0
    groups = int(group.max()) + 1 if len(group) else 0
    success = n + group  # a node of its own for each group, behind the states
    after = torch.where(correct & (before >= 0) & (following < 0), success, after)
    of_group = torch.full((n + groups,), -1)
    of_group[n:] = torch.arange(groups)
    for node in (before, after):
        of_group[node[node >= 0]] = group[node >= 0]
    edges = (before >= 0) & (after >= 0) & (torch.ones_like(correct) if where is None else where)
    distance = graph_distance(before[edges], after[edges], torch.arange(n + groups) >= n)
    known = distance.isfinite()
    far = grouped.max(torch.where(known, distance, 0.0), of_group, known) + 1
    distance = torch.where(known, distance, far)
    there = torch.where(after >= 0, distance[torch.where(after >= 0, after, success)], far[success])
    if form == "progress":
        here = torch.where(before >= 0, distance[before.clamp_min(0)], far[success])
        there = there - here + 1
    return worth * discount**there
