"""U-shaped weights: the card's five tokens, one token, a loop, and what they average to."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.weighting.verdict_rows import part_of
from tests.strategies import forests

from gxpo.algorithms.weighting.scores import position
from gxpo.algorithms.weighting.token_curves import u_shape
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest


def u_shape_weight(**options):
    return part_of("avatar_tas", "u_shape", **options)


def test_card() -> None:
    one = torch.zeros(5, dtype=torch.int64)
    assert u_shape(position(torch.arange(5), one)).tolist() == pytest.approx([1.3, 1.075, 1, 1.075, 1.3])
    assert u_shape(position(torch.tensor([0]), one[:1])).tolist() == pytest.approx([1.3])


def test_the_mean_of_a_long_answer_is_a_third_more_of_the_strength() -> None:
    n = 10_001
    assert float(u_shape(torch.linspace(0, 1, n)).mean()) == pytest.approx(1.1, abs=1e-4)


@settings(max_examples=30, deadline=None)
@given(forest=forests(), strength=st.sampled_from([0.0, 0.3, 2.0]))
def test_equals_a_loop(forest: Forest, strength: float) -> None:
    found = u_shape_weight(strength=strength)(forest, torch.zeros(forest.n_entries), {}, 0)
    for r in range(forest.n_trajectories):
        trained = [p for p in forest.path_of(r).tolist() if bool(forest.path_trainable[p])]
        for p in forest.path_of(r).tolist():
            t = trained.index(p) / max(len(trained) - 1, 1) if p in trained else 0.5
            assert float(found[p]) == pytest.approx(1 + strength * (2 * t - 1) ** 2)


def test_bad_strengths_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"weight\.u_shape\.strength is -1"):
        u_shape_weight(strength=-1.0)
