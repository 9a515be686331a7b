"""The pieces that trajectories are made of: the segments of each turn, or, where it has none, the turn."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from gxpo.forest import Forest


class Pieces(NamedTuple):
    """The pieces of all trajectories, by trajectory, then time.

    piece       [P] which piece each path token is of
    number      [P] of the piece within its trajectory, from 0
    first       [K] the path token that each piece begins with; `last`: that it ends with
    trajectory  [K]
    """

    piece: Tensor
    number: Tensor
    first: Tensor
    last: Tensor
    trajectory: Tensor


def pieces_of(forest: Forest) -> Pieces:
    """The pieces: a new one begins with every turn and with every change of `segment`."""
    step, segment, owner = forest.path_step, forest.segment[forest.path_token], forest.path_trajectory
    begins = torch.ones(len(step), dtype=torch.bool)
    begins[1:] = (step[1:] != step[:-1]) | (segment[1:] != segment[:-1])
    piece = begins.cumsum(0) - 1
    first = begins.nonzero().squeeze(1)
    last = torch.cat([first[1:], torch.tensor([len(step)])])[: len(first)] - 1
    trajectory = owner[first]
    lowest = torch.zeros(forest.n_trajectories, dtype=torch.int64)
    lowest = lowest.scatter_reduce_(0, trajectory, torch.arange(len(first)), "amin", include_self=False)
    return Pieces(piece, piece - lowest[owner], first, last, trajectory)
