"""The five tokens on which every objective's numbers were worked out by hand, and forests from a few words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from gxpo.algorithms.objectives import evaluate
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import PolicyTokens


class Toy(NamedTuple):
    forest: Forest
    old: Tensor
    logprob: Tensor  # a leaf that wants its gradient
    reference: Tensor
    credit: Tensor
    weight: Tensor

    def policy(self, **changes: Any) -> PolicyTokens:
        fields: dict[str, Any] = {"logprob": self.logprob, "behaviour_logprob": self.old}
        return PolicyTokens(**fields | changes)

    def loss(self, term: Any, **changes: Any) -> tuple[float, list[float]]:
        """Value and gradient of a term."""
        self.logprob.grad = None
        weight = changes.pop("weight", self.weight)
        value = term(self.forest, self.policy(**changes), self.credit, weight, {}, 0)[0]
        value.backward()
        assert self.logprob.grad is not None
        return float(value.detach()), self.logprob.grad.tolist()


def figures_of(term: Any, forest: Forest, policy: PolicyTokens, credit: Any, weight: Any, signals: Any = None) -> Any:
    """Metrics that the term reports."""
    return evaluate(term, forest, policy, credit, weight, signals or {}, 0)[1]


def grow_forest(rows: Sequence[tuple[Any, ...]]) -> Forest:
    """Rows (group, length, fields of the record...); single turns."""
    records = []
    for i, (group, n, *rest) in enumerate(rows):
        fields = dict(rest[0]) if rest else {}
        turn = {"action": list(range(10, 10 + n)), "logprob": [-1.0] * n, "trainable": fields.pop("trainable", True)}
        record = {"schema": "gxpo.rollouts/1", "group": group, "id": f"t{i}", "prompt": [1, 2], "reward": 1.0}
        records.append(record | {"turns": [turn]} | fields)
    return Forest.from_records(records)


@pytest.fixture(scope="session")
def grow() -> Callable[[Sequence[tuple[Any, ...]]], Forest]:
    return grow_forest


@pytest.fixture
def toy() -> Toy:
    old = torch.tensor([-0.5, -1.0, -2.0, -0.3, -0.7], dtype=torch.float64)
    change = torch.tensor([0.3, -0.1, -0.4, 0.2, 0.5], dtype=torch.float64)
    reference = old - torch.tensor([0.1, 0.0, 0.2, -0.1, 0.0], dtype=torch.float64)
    credit = torch.tensor([1.0, 1.0, -1.0, -1.0, -1.0], dtype=torch.float64)
    forest = grow_forest([("a", 2), ("a", 3)])
    return Toy(forest, old, (old + change).requires_grad_(), reference, credit, torch.ones(5, dtype=torch.float64))
