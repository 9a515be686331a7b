"""Which tokens the newest version wrote, by a loop; with one version it changes nothing."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.weighting.verdict_rows import part_of
from tests.strategies import forests

from gxpo.algorithms.weighting.token_curves import at_maximum
from gxpo.forest.forest import Forest


def newest_version_weight(**options):
    return part_of("t_ppo", "newest_version", **options)


def test_worked() -> None:
    """Trajectory 0 over three steps, trajectory 1 from one, trajectory 2 begun later than it ends in the batch."""
    version, trajectory = torch.tensor([1, 1, 2, 3, 3, 1, 1, 5]), torch.tensor([0, 0, 0, 0, 0, 1, 1, 2])
    assert at_maximum(version, trajectory).tolist() == [0, 0, 0, 1, 1, 1, 1, 1]


@settings(max_examples=25, deadline=None)
@given(forest=forests(), same=st.booleans())
def test_equals_a_loop(forest: Forest, same: bool) -> None:
    if same:
        forest = forest.replace(policy_version=torch.zeros_like(forest.policy_version))
    found = newest_version_weight()(forest, torch.zeros(forest.n_entries), {}, 0).tolist()
    for r in range(forest.n_trajectories):
        entries = forest.path_of(r).tolist()
        wrote = [int(forest.policy_version[forest.token_node[forest.path_token[p]]]) for p in entries]
        trained = forest.path_trainable[entries].tolist()
        newest = max((v for v, own in zip(wrote, trained, strict=True) if own), default=0)
        assert [found[p] for p in entries] == [
            float(v == newest or not own) for v, own in zip(wrote, trained, strict=True)
        ]
    assert not same or found == [1.0] * forest.n_entries
