"""Weights of kinds of tasks by their progress: who gains, who loses, and that it is saved."""

from __future__ import annotations

import math

import pytest
import torch

import gxpo
from gxpo.algorithms.weighting.task_progress import TaskProgress, updated_weights
from gxpo.base.errors import ConfigError

nan = math.nan


def forest(**components: list[float]) -> gxpo.Forest:
    n = len(next(iter(components.values())))
    forest = gxpo.Forest.from_completions([[1]] * n, [[[2], [3]]] * n, [[1.0, 0.0]] * n)
    columns = {k: torch.tensor([x for x in v for _ in range(2)], dtype=torch.float64) for k, v in components.items()}
    return forest.with_rewards(forest.outcome, components=columns)


def rounded(weights: dict[str, float]) -> dict[str, float]:
    return {kind: round(w, 6) for kind, w in weights.items()}


def test_a_kind_that_lags_or_falls_back_gains() -> None:
    assert rounded(updated_weights({}, {"a": 0.5, "b": 0.3}, {})) == {"a": 1.0, "b": 1.1}  # the lowest of two
    # a fell from 0.7 and b is the lowest: both are boosted, and the least is 1
    assert rounded(updated_weights({"a": 1.0, "b": 2.0}, {"a": 0.5, "b": 0.3}, {"a": 0.7})) == {"a": 1.0, "b": 2.0}
    # within the tolerance it stays; a mastered one goes back towards 1; 4 is the most
    assert rounded(updated_weights({"a": 3.9, "b": 2.0, "c": 1.0}, {"a": 0.1, "b": 0.95, "c": 0.69}, {"c": 0.7})) == {
        "a": 4.0, "b": 1.9, "c": 1.0,
    }  # fmt: skip
    assert updated_weights({}, {}, {}) == {} and updated_weights({}, {"a": 0.4}, {"a": 0.4}) == {"a": 1.0}


def test_weights_move_after_the_step_and_are_saved() -> None:
    part = TaskProgress(kinds=["exact", "iou"])
    step = forest(exact=[1.0, nan, nan], iou=[nan, 0.2, nan])
    assert part(step, torch.zeros(6), {}, 1).tolist() == [1.0] * 6
    part.observe(step)
    weights = [1.0, 1.0, 1.1, 1.1, 1.0, 1.0]
    assert [round(x, 9) for x in part(step, torch.zeros(6), {}, 2).tolist()] == weights
    other = TaskProgress(kinds=["exact", "iou"])
    other.load_state_dict(part.state_dict())
    assert [round(x, 9) for x in other(step, torch.zeros(6), {}, 3).tolist()] == weights


@pytest.mark.parametrize(("kinds", "message"), [([], "needs one for each kind"), (["f1"], "has no 'f1': it has exact")])
def test_kinds_that_no_reward_has_are_refused(kinds, message) -> None:
    with pytest.raises(ConfigError, match=message):
        TaskProgress(kinds=kinds)(forest(exact=[1.0]), torch.zeros(2), {}, 1)


def test_an_exponential_reward_leaves_its_shape_alone() -> None:
    x = torch.tensor([0.2, 0.4, 0.6, 0.8], dtype=torch.float64)
    plain, mapped = (
        gxpo.method("grpo").advantages(gxpo.Forest.from_completions([[1]], [[[2], [3], [4], [5]]], [v.tolist()]))
        for v in (x, (3 * x).exp())
    )
    assert [round(a, 5) for a in plain.tolist()] == [-1.16189, -0.3873, 0.3873, 1.16189]
    assert [round(a, 5) for a in mapped.tolist()] == [-0.92264, -0.55226, 0.12261, 1.3523]
