"""A component that counts between two bounds."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.environments.rewards.shapes import shape
from tests.environments.rewards.test_tiered import grown

from gxpo.base.errors import ConfigError
from gxpo.environments.rewards.outcomes import rescaled

Rescaled = shape("rescaled")


@given(st.lists(st.floats(-1, 2), min_size=1), st.floats(0, 0.5), st.floats(0.6, 1))
def test_it_equals_a_loop_and_keeps_the_order(values, low, high):
    x = torch.tensor(values, dtype=torch.float64)
    found = rescaled(x, lambda name, share: x, low=low, high=high).tolist()
    assert found == pytest.approx([min(1.0, max(0.0, (v - low) / (high - low))) for v in values])
    assert [x for _, x in sorted(zip(values, found, strict=True))] == sorted(found)


def test_the_component_takes_its_own_place_in_the_outcome():
    # outcomes 1 0 1 0 of which .6, .3, .9 are the overlap: + (.75 - .6), + (0 - .3), + (1 - .9); the last has none
    forest = grown([("g", True, 0.6), ("g", False, 0.3), ("g", True, 0.9), ("g", False, None)], "iou")
    found = Rescaled(low=0.3, high=0.7)(forest)
    assert found.tolist() == pytest.approx([1.15, -0.3, 1.1, 0.0])
    assert Rescaled()(forest).tolist() == forest.outcome.tolist()  # 0 and 1 change nothing


def test_refusals():
    with pytest.raises(ConfigError, match="rescaled reads component 'iou', which no reward computes"):
        Rescaled()(grown([("g", True, 0.6)]))
    with pytest.raises(ConfigError, match=r"low .* must be below high"):
        Rescaled(low=1.0)
    assert bool(Rescaled(low=-1.0)(grown([("g", None, 0.6)], "iou")).isnan())
