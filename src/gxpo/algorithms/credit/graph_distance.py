"""Shortest distances in a graph."""

from __future__ import annotations

import torch
from torch import Tensor


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
