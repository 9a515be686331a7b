"""ASPO's bonus: the card's numbers, a loop, its bounds, who is eligible."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.weighting.verdict_rows import forest_of, part_of

from gxpo.algorithms.weighting.scores import lateness
from gxpo.base.errors import ConfigError


def early_use_weight(**options):
    return part_of("aspo", "early_use", **options)


NAN = math.nan


def column(*x):
    return torch.tensor(x, dtype=torch.float64)


def test_card() -> None:
    one, yes = torch.zeros(3, dtype=torch.int64), torch.ones(3, dtype=torch.bool)
    bonus = -2.0 * lateness(column(100, 300, 200), column(1000, 1000, 1000), one, yes, yes)
    assert bonus.tolist() == pytest.approx([0.2, -0.2, 0.0])
    forest = forest_of([("a", 1.0, 10)] * 3)
    weight = early_use_weight()(forest, torch.full((30,), 0.5, dtype=torch.float64), {"first_use": column(1, 3, 2)}, 0)
    assert [float(0.5 * weight[i]) for i in (0, 10, 20)] == pytest.approx([0.7, 0.3, 0.5])


def test_the_bonus_is_held_and_never_turns_the_sign() -> None:
    forest = forest_of([("a", 1.0, 2), ("a", 1.0, 2)])
    for a in (1e-3, -1e-3, 0.2, -5.0):
        weight = early_use_weight()(forest, column(a, a, a, a), {"first_use": column(0, 2)}, 0)
        sign = 1 if a > 0 else -1
        wanted = [a + min(max(b, -0.7 * abs(a)), 0.7 * abs(a)) for b in (1, 1, -1, -1)]
        assert (weight * a).tolist() == pytest.approx(wanted) and bool((sign * weight * a > 0).all())
    assert early_use_weight()(forest, column(0, 0, 0, 0), {"first_use": column(0, 2)}, 0).tolist() == [1] * 4


ROWS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.sampled_from([0.0, 1.0]),
        st.integers(1, 3),
        st.sampled_from([NAN, 0.0, 1.0, 2.0]),
        st.booleans(),
        st.sampled_from([-0.5, 0.0, 0.3, 2.0]),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=100, deadline=None)
@given(ROWS)
def test_equals_a_loop(rows):
    forest = forest_of([(g, r, n, {"compared": c}) for g, r, n, _, c, _ in rows])
    credit = forest.to_path(column(*(r[5] for r in rows)), "R")
    found = early_use_weight()(forest, credit, {"first_use": column(*(r[3] for r in rows))}, 0)
    for i, (g, reward, _, p, _, a) in enumerate(rows):
        peers = [(q, m) for h, r, m, q, c, _ in rows if h == g and r and c and not math.isnan(q)]
        wanted = a
        if reward and not math.isnan(p) and peers:
            mean, size = sum(q for q, _ in peers) / len(peers), sum(m for _, m in peers) / len(peers)
            wanted = a + min(max(-2 * (p - mean) / size, -0.7 * abs(a)), 0.7 * abs(a))
        own = (found * credit)[forest.path_of(i)]
        assert own.tolist() == pytest.approx([wanted] * len(own))


def test_bad_options() -> None:
    with pytest.raises(ConfigError, match="early_use"):
        early_use_weight(bound=-0.1)
