"""A forest as the forward pass sees it: unique tokens once, positions by depth, who may attend to whom."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gxpo.forest import Forest
from gxpo.trees import last_before, sum_before


@dataclass(frozen=True, eq=False)
class Packed:
    """Columns over stored tokens (T) and nodes (N) of a forest.

    position [T]     depth of the token on its root path
    predecessor [T]  the token whose hidden state predicts it; -1 for the first token of a root path
    node_of_token [T], tree [N] (root of each node), parent [N], begin [N] (position of the node's first token)
    """

    token: Tensor
    position: Tensor
    predecessor: Tensor
    node_of_token: Tensor
    tree: Tensor
    parent: Tensor
    begin: Tensor

    @classmethod
    def of(cls, forest: Forest) -> Packed:
        """Refused where text without token ids would leave gaps in the positions."""
        forest.need_ids("pack()")
        sizes, parent, node = forest.first_token.diff(), forest.parent, forest.token_node
        begin = sum_before(parent, sizes)
        tree = last_before(parent, torch.ones_like(parent, dtype=torch.bool))
        filled = last_before(parent, sizes == 0)  # the node itself, or its nearest ancestor that holds a token
        last = torch.where(sizes[filled] > 0, forest.first_token[filled + 1] - 1, -1)
        above = torch.where(parent >= 0, last[parent.clamp_min(0)], -1)
        index = torch.arange(forest.n_tokens)
        offset = index - forest.first_token[node]
        predecessor = torch.where(offset > 0, index - 1, above[node])
        return cls(forest.token, begin[node] + offset, predecessor, node, tree, parent, begin)

    def ancestors(self, nodes: Tensor) -> Tensor:
        """[k, k] bool over distinct `nodes`: the column's node is the row's or one of its ancestors."""
        size = self.parent.numel()
        place = torch.full((size,), -1)
        place[nodes] = torch.arange(nodes.numel())
        out = torch.eye(nodes.numel(), dtype=torch.bool)
        row, current = torch.arange(nodes.numel()), self.parent[nodes]
        while bool((alive := current >= 0).any()):
            row, current = row[alive], current[alive]
            inside = place[current] >= 0
            out[row[inside], place[current][inside]] = True
            current = self.parent[current]
        return out

    def mask(self, tokens: Tensor) -> Tensor:
        """[n, n] bool: the row's token may attend to the column's."""
        nodes, node = torch.unique(self.node_of_token[tokens], return_inverse=True)
        above = self.ancestors(nodes)[node][:, node]
        position = self.position[tokens]
        return above & (position[None, :] <= position[:, None])
