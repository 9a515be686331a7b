"""Effective rank of hidden states, its velocity and acceleration, and an exploration bonus from them (VERL)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from gxpo.parts.registry import part

if TYPE_CHECKING:
    from gxpo.forest.forest import Forest

NAMES = ("effective_rank", "rank_velocity", "rank_acceleration")
SMALL = 1e-12  # smaller eigenvalues of a Gram matrix, relative to the largest, are rounding
BOUND = 5.0  # of a relative deviation


def spectral_rank(singular: Tensor) -> float:
    """Effective rank exp(-sum p ln p), p the singular values [k] (not squared) over their sum; 1 where all are 0.

    >>> round(spectral_rank(torch.tensor([3.0, 1.0, 0.0])), 6)
    1.754765
    """
    total = singular.to(torch.float64).sum()
    p = singular.to(torch.float64) / torch.where(total > 0, total, 1.0)
    return float(torch.special.entr(p).sum().exp())


def rank_dynamics(hidden: Tensor, stride: int) -> tuple[float, float, float]:
    """Effective rank, velocity and acceleration of the states [n, H] of n tokens; all 0 for fewer than two.

    m_j           effective rank of the first j * stride states about their mean; the last m is of all states, if more
                  than one is left over
    velocity      mean over j >= 2 of d_j = m_j - mean(m_1..m_(j-1)): against all that was before, not the last alone
    acceleration  mean over j >= 3 of d_j - d_(j-1); both 0 where there is none
    """
    n, width = hidden.shape
    if n < 2:
        return 0.0, 0.0, 0.0
    x = hidden.to(torch.float64)
    full_rank = _rank(x, width)
    ends = range(stride, n + 1, stride)
    m = [full_rank if k == n else _rank(x[:k], width) for k in ends]
    # The rest after the last full stride is one more prefix, unless it is a single token.
    if m and n - ends[-1] > 1:
        m.append(full_rank)
    ranks = torch.tensor(m, dtype=torch.float64)
    # Velocity is a rank against the mean of all before it, not against the last alone.
    d = ranks[1:] - (ranks.cumsum(0) / torch.arange(1, len(m) + 1))[:-1]
    velocity = float(d.mean()) if len(d) else 0.0
    return full_rank, velocity, float(d.diff().mean()) if len(d) > 1 else 0.0


def _rank(x: Tensor, width: int) -> float:
    """Effective rank of rows about their mean, by the smaller Gram matrix."""
    centred = x - x.mean(0)
    # Squared singular values are the eigenvalues of either Gram matrix: the smaller one is cheaper.
    square = torch.linalg.eigvalsh(centred @ centred.T if len(x) < width else centred.T @ centred).clamp_min(0.0)
    return spectral_rank(torch.where(square > SMALL * square.max(), square, 0.0).sqrt())


def rank_bonus(figures: Tensor, usual: Tensor, gain: float = 2.0, eps: float = 1e-8) -> Tensor:
    """Rank bonus beta tanh(dev rank) + (1 - beta) tanh(dev velocity), beta = sigmoid(gain dev acceleration); [R].

    figures  [R, 3] effective rank, velocity, acceleration;   usual [3]
    dev      (x - usual) / (|usual| + eps), held in [-5, 5]

    Where the rank's growth speeds up, a high rank is what counts (exploration); where it slows, a fast growth.
    """
    rank, velocity, acceleration = ((figures - usual) / (usual.abs() + eps)).clamp(-BOUND, BOUND).unbind(1)
    beta = torch.sigmoid(gain * acceleration)
    return beta * rank.tanh() + (1 - beta) * velocity.tanh()


@part("effective_rank", stage="signal", gives={"bonus": "R"}, remembers=("usual",))
def effective_rank(
    forest: Forest,
    hidden: Tensor,
    past: Mapping[str, list[float]],
    *,
    stride: Annotated[int, Ge(2)] = 40,
    gain: float = 2.0,
    rate: Annotated[float, Interval(gt=0, le=1)] = 0.3,
    scale: float = 1.0,
    layer: int = -1,
) -> tuple[Tensor, dict[str, Any], dict[str, float]]:
    """The signal "bonus" [R]: `scale` times `rank_bonus` of `rank_dynamics` against its running mean; 0 in the first
    step (VERL).

    The running mean is over earlier steps, of each step's mean over its scored trajectories with tokens:
    usual <- usual + rate (mean - usual), initially the first step's mean.

    stride  tokens from one prefix to the next
    layer   which hidden states; -1 the last

    Costs a forward pass, and for every prefix a symmetric eigenvalue problem of min(tokens, width) rows.
    Figures: effective_rank, rank_velocity, rank_acceleration, the step's means.

    Source: VERL, arXiv 2509.23808, and its code, where the average begins at 0 and lags a step behind.
    """
    n = forest.n_trajectories
    rows = [rank_dynamics(hidden[forest.path_token[forest.path_of(r)]], stride) for r in range(n)]
    figures = torch.tensor(rows, dtype=torch.float64).reshape(-1, len(NAMES))
    # The usual figures are of earlier steps: a step is not measured against itself.
    usual = torch.tensor(past["usual"], dtype=torch.float64) if "usual" in past else None
    bonus = torch.zeros(n, dtype=torch.float64) if usual is None else scale * rank_bonus(figures, usual, gain)
    # Unscored rollouts and empty ones say nothing about the policy's usual rank.
    counted_figures = figures[(torch.bincount(forest.path_trajectory, minlength=n) > 0) & forest.scored]
    if not len(counted_figures):
        return bonus, {}, {}
    mean = counted_figures.mean(0)
    usual = mean if usual is None else usual
    return bonus, {"usual": (usual + rate * (mean - usual)).tolist()}, dict(zip(NAMES, mean.tolist(), strict=True))
