"""Replayed rollouts against what is usual now: worked rows, a loop, groups that are right throughout."""

from __future__ import annotations

import math
import random
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import forests

import gxpo
from gxpo.algorithms.credit import GroupRelative, advantage
from gxpo.algorithms.credit.baselines import against, replay_baseline
from gxpo.forest.forest import Forest

F64 = torch.float64


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


def test_worked() -> None:
    """Outcomes [1, 0], baseline .25: (.75, -.25) / sqrt(1/2); [1, 1] has no std; of the last task nothing is known."""
    group = torch.tensor([0, 0, 1, 1, 2])
    found = against(column(1, 0, 1, 1, 1), column(0.25, 0.25, 0.25, 0.25, math.nan), group, eps=0.0)
    assert found.tolist() == pytest.approx([0.75 * 2**0.5, -0.25 * 2**0.5, 0.75, 0.75, 0.0])


@settings(max_examples=40, deadline=None)
@given(forest=forests(), seed=st.integers(0, 99))
def test_equals_a_loop(forest: Forest, seed: int) -> None:
    rng = random.Random(seed)
    baseline = [rng.choice([0.25, -1.0, math.nan]) for _ in range(forest.n_trajectories)]
    found = gxpo.method("avatar_tas").advantages(forest, {"baseline": column(*baseline)})
    plain = gxpo.method("grpo").advantages(forest)
    outcome = forest.outcome.tolist()
    for r in range(forest.n_trajectories):
        mine = forest.path_of(r)
        if forest.origin[r] != "replay" or not math.isfinite(outcome[r]):
            assert torch.equal(found[mine], plain[mine])
            continue
        peers = [
            outcome[q]
            for q in range(forest.n_trajectories)
            if (forest.group[q], forest.origin[q]) == (forest.group[r], "replay")
            and bool(forest.compared[q])
            and math.isfinite(outcome[q])
        ]
        wanted = 0.0 if math.isnan(baseline[r]) else outcome[r] - baseline[r]
        if len(peers) > 1 and max(peers) > min(peers):
            wanted /= statistics.stdev(peers) + 1e-6
        assert found[mine].tolist() == pytest.approx([wanted] * len(mine), abs=1e-9)


def test_without_replayed_rollouts_it_is_grpo() -> None:
    forest = Forest.from_completions([[1], [2]], [[[3], [4, 5]], [[6], [7]]], [1.0, 0.0, 0.5, 0.25])
    found = advantage(replay_baseline)(forest, {"baseline": column(9, 9, 9, 9)}, 0)
    assert torch.equal(found, GroupRelative()(forest, {}, 0))
