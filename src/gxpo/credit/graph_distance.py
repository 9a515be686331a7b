"""Step rewards by distance to success in the graph of the group's states (GraphGPO)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from gxpo import grouped
from gxpo.credit.state_relative import StateRelative
from gxpo.errors import ConfigError, one_of
from gxpo.registry import part

if TYPE_CHECKING:
    from gxpo.forest import Forest
    from gxpo.protocols import Signals

Form = Literal["distance", "progress"]


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


@torch.no_grad()
def graph_return(
    before: Tensor,
    after: Tensor,
    group: Tensor,
    succeeds: Tensor,
    discount: float = 0.1,
    worth: float = 10.0,
    form: str = "distance",
    where: Tensor | None = None,
) -> Tensor:
    """R = worth * discount^d(after), or "progress": worth * discount^(d(after) - d(before) + 1).

    d is the distance to success in the graph of the group's steps; from where nothing leads there it is one more than
    the largest that there is in the group (1 without a success: then all returns are equal).

    before, after  [S] int64 dense ids of (group, state), -1 unknown: as far as what leads nowhere
    group          [S] int64 dense ids
    succeeds       [S] bool: the step is the last of a successful trajectory, and leads to success itself
    where          [S] bool, compared (default: all): whose steps are edges

    Returns [S] float64, whatever became of the step's own trajectory.

    Source: GraphGPO, arXiv 2605.26684, and its recipe in verl-agent, whose numbers these are. The paper counts the
    step itself as well, discount^(d(after) + 1), a constant factor that scaling by a std takes out.

    >>> ids = torch.tensor([0, 1, 0, 2]), torch.tensor([1, -1, 2, 3]), torch.zeros(4, dtype=torch.int64)
    >>> graph_return(*ids, torch.tensor([False, True, False, False])).tolist()
    [1.0, 10.0, 0.010000000000000002, 0.010000000000000002]
    """
    n = int(torch.maximum(before, after).max()) + 1 if len(before) else 0
    groups = int(group.max()) + 1 if len(group) else 0
    success = n + group  # a node of its own for each group, behind the states
    after = torch.where(succeeds, success, after)
    of_group = torch.full((n + groups,), -1)
    of_group[n:] = torch.arange(groups)
    for node in (before, after):
        of_group[node[node >= 0]] = group[node >= 0]
    edges = (before >= 0) & (after >= 0) & (torch.ones_like(succeeds) if where is None else where)
    distance = graph_distance(before[edges], after[edges], torch.arange(n + groups) >= n)
    known = distance.isfinite()
    far = grouped.max(torch.where(known, distance, 0.0), of_group, known) + 1
    distance = torch.where(known, distance, far)
    there = distance[torch.where(after >= 0, after, success)]
    there = torch.where(after >= 0, there, far[success])
    if form == "progress":
        here = torch.where(before >= 0, distance[before.clamp_min(0)], far[success])
        there = there - here + 1
    return worth * discount**there


@part("graph_return", stage="credit")
@dataclass(frozen=True)
class GraphReturn(StateRelative):
    """Graph-distance advantage (GraphGPO): `StateRelative` of `graph_return`, to be added to `Relative`.

    discount  for each step that is left to success: far below 1, so that nearer is better by orders of magnitude
    form      "distance", or "progress", by which a step was nearer than the state it was taken in
    worth     value of success itself; it matters without scaling

    A trajectory succeeds by its verdict, or, where it has none, by an outcome above 0. `history` tells the groups that
    are compared, never the nodes of the graph.
    """

    discount: float = 0.1
    form: Form = "distance"
    worth: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("credit.form", self.form, ("distance", "progress"))
        if not 0 < self.discount < 1:
            raise ConfigError(f"credit.discount is {self.discount}; each step further is worth less, between 0 and 1")
        if not self.worth > 0:
            raise ConfigError(f"credit.worth is {self.worth}; success is worth more than nothing")

    def values(self, forest: Forest, signals: Signals) -> tuple[Tensor, str]:
        moves, own = self.moves(forest), forest.step_trajectory
        correct = torch.where(forest.success.isfinite(), forest.success >= 1, forest.outcome > 0)
        succeeds = correct[own] & (moves.before >= 0) & (moves.following < 0)
        group = forest.ids("group", axis="S")
        steps = (moves.before, moves.after, group, succeeds)
        return graph_return(*steps, self.discount, self.worth, self.form, forest.compared[own]), "S"
