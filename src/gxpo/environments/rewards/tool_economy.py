"""Tool economy: shares of a reward, from 0 to 1, by the number of tool calls and the fewest that do.

calls   [R] calls of each attempt
fewest  [R] calls that are known to suffice for its task
"""

from __future__ import annotations

import math
from typing import Annotated

import torch
from annotated_types import Ge, Gt
from torch import Tensor


def otc(calls: Tensor, fewest: Tensor, *, smooth: Annotated[float, Gt(0)] = 1.0) -> Tensor:
    """OTC-GRPO: sin(pi m / (m + n)) for m calls where n suffice; where none are needed cos(pi m / (2 m + smooth)).

    smooth  the larger, the less a first call costs where none is needed; the paper sets the most calls there may be

    1 at m = n. Source: OTC, arXiv 2504.14870, by two public reimplementations.

    >>> otc(torch.tensor([2, 4, 8]), torch.tensor([2, 2, 2]))
    tensor([1.0000, 0.8660, 0.5878], dtype=torch.float64)
    >>> otc(torch.tensor([0, 1, 2]), torch.tensor([0, 0, 0]), smooth=4.0)
    tensor([1.0000, 0.8660, 0.7071], dtype=torch.float64)
    """
    m, n = calls.to(torch.float64), fewest.to(torch.float64)
    needed = torch.sin(math.pi * m / torch.where(m + n > 0, m + n, 1.0))
    return torch.where(n > 0, needed, torch.cos(math.pi * m / (2 * m + smooth)))


def linear(calls: Tensor, fewest: Tensor, *, cost: Annotated[float, Ge(0)] = 0.1) -> Tensor:
    """1 less `cost` for each call beyond the fewest, 0 at least."""
    return (1.0 - cost * (calls - fewest).to(torch.float64).clamp_min(0)).clamp_min(0)


def inverse(calls: Tensor, fewest: Tensor) -> Tensor:
    """1 / (m + 1), whatever suffices. Source: HDPO, arXiv 2604.08545, and its code."""
    return 1.0 / (calls.to(torch.float64) + 1.0)


def zero_if_unneeded(calls: Tensor, fewest: Tensor) -> Tensor:
    """1 for an attempt that calls where calls are needed, or does not where none is; else 0. Source: SEM, arXiv
    2505.07903, reconstructed."""
    return ((calls > 0) == (fewest > 0)).to(torch.float64)
