"""Trajectories that have a teacher get no policy gradient."""

import math
import random

import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.weighting.verdict_rows import part_of
from tests.battery import battery

from gxpo.algorithms.weighting.scores import taught as score


def untaught_weight(**options):
    return part_of("srpo_routing", "untaught", **options)


NAN = math.nan


@given(st.integers(0, 10**6))
def test_a_loop(seed):
    rng = random.Random(seed)
    owner = sorted(rng.randrange(5) for _ in range(rng.randrange(12)))
    entropy = [rng.choice((NAN, NAN, rng.random())) for _ in owner]
    taught = {r for r, h in zip(owner, entropy, strict=True) if not math.isnan(h)}
    found = 1 - score(torch.tensor(entropy), torch.tensor(owner, dtype=torch.int64))
    assert found.tolist() == [0.0 if r in taught else 1.0 for r in owner]


def test_the_part():
    forest = battery(1)
    entropy = torch.full((forest.n_entries,), NAN, dtype=torch.float64)
    part = untaught_weight()
    everything = part(forest, entropy, {"teacher_entropy": entropy}, 1)
    assert bool((everything == 1).all()) and part.needs == ("teacher_entropy",)
    entropy[forest.path_of(2)[-1]] = 0.5  # one token is enough: a rollout goes one way as a whole
    found = part(forest, entropy, {"teacher_entropy": entropy}, 1)
    assert torch.equal(found == 0, forest.path_trajectory == 2)
