"""Outcomes against a given baseline."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.credit.compositions import against_baseline_credit

from gxpo.algorithms.credit import GroupRelative
from gxpo.algorithms.signals import Signals
from gxpo.base.errors import ConfigError, MissingSignal
from gxpo.forest.forest import Forest

Grow = Callable[..., Forest]
F64 = torch.float64


def test_card_of_two_rollouts(grow: Grow) -> None:
    """r = [1, 0], b1 = g(phi2) = .3, b2 = g(phi1) = .7: A = [1 - .3, 0 - .7]."""
    forest = grow([("a", 1.0, [1]), ("a", 0.0, [1])])
    found = against_baseline_credit()(forest, {"baseline": torch.tensor([0.3, 0.7], dtype=F64)}, 0)
    assert found.tolist() == pytest.approx([0.7, -0.7])


def test_every_token_has_its_trajectory_s_credit_and_equal_groups_learn(grow: Grow) -> None:
    forest = grow([("a", 1.0, [2, 1]), ("a", 1.0, [1])])
    found = against_baseline_credit()(forest, {"baseline": torch.tensor([0.25, 0.5], dtype=F64)}, 0)
    assert found.tolist() == [0.75] * 3 + [0.5] and against_baseline_credit().learns_from_equal_groups


@settings(max_examples=25, deadline=None)
@given(rewards=st.lists(st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=1, max_size=4), min_size=1, max_size=4))
def test_the_mean_as_a_baseline_is_the_centred_outcome(grow: Grow, rewards) -> None:
    """Reduction: baseline = group mean is Dr. GRPO's credit, but for residues of rounding."""
    forest = grow([(f"g{g}", r, [1 + i % 2]) for g, group in enumerate(rewards) for i, r in enumerate(group)])
    mean = torch.tensor([sum(group) / len(group) for group in rewards for _ in group], dtype=F64)
    wanted = GroupRelative(scale="none")(forest, {}, 0)
    assert against_baseline_credit()(forest, {"baseline": mean}, 0).tolist() == pytest.approx(
        wanted.tolist(), abs=1e-12
    )


def test_a_missing_baseline_and_a_scale_are_refused(grow: Grow) -> None:
    forest = grow([("a", 1.0, [1])])
    with pytest.raises(MissingSignal, match="baseline"):
        against_baseline_credit()(forest, Signals.of(forest), 0)
    with pytest.raises(ConfigError, match=r"^credit\.scale is 'std'; with credit\.center=baseline it is 'none'$"):
        GroupRelative(center="baseline")
