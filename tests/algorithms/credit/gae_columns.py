"""Columns for tests of GAE, and its advantages and targets on a forest."""

from __future__ import annotations

import torch

from gxpo.algorithms.credit.gae import Gae
from gxpo.forest.forest import Forest

F64 = torch.float64


def one(n: int) -> torch.Tensor:
    return torch.zeros(n, dtype=torch.int64)


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


def credit(forest: Forest, value: torch.Tensor, **fields) -> torch.Tensor:
    return Gae(**fields)(forest, {"value": value}, 0)


def target(forest: Forest, value: torch.Tensor, **fields) -> torch.Tensor:
    return Gae(**fields).targets(forest, {"value": value}, 0)["value_target"]
