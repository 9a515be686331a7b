"""HGPO: nested groups by history, and how their levels are weighed."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.credit.compositions import anchor_state_credit
from tests.algorithms.credit.walks import walks_of, wandering, z

import gxpo
from gxpo.algorithms.credit.state_relative import history_groups
from gxpo.base.errors import ConfigError
from gxpo.parts.registry import CREDITS

HistoryGroups = CREDITS["history_groups"]

SEEDS = st.integers(0, 10**6)
CARD = [
    ("a", 1.0, [1, 1, 1], {"states": ["s0", "s1", "s2"]}),
    ("a", 0.0, [1, 1, 1], {"states": ["s0", "s1", "s2"]}),
    ("a", 1.0, [1, 1, 1], {"states": ["s0", "s3", "s2"]}),
]
ONE = {"history": 1, "discount": 0.9}


def test_the_card(grow):
    """Returns .81 .9 1, 0 0 0, .81 .9 1. Of a's s2: level 0 (1/3), level 1 with b alone (1/2): (1/3 + 2 * 1/2) / 3."""
    forest = grow(CARD)
    plain = HistoryGroups(scale="none", **ONE)(forest, {}, 0)
    expected = [0.27, 0.45, 0.444444, -0.54, -0.45, -0.555556, 0.27, 0, 0.333333]
    assert plain.tolist() == pytest.approx(expected, abs=1e-6)
    scaled = HistoryGroups(**ONE)(forest, {}, 0)
    expected = [0.707105, 0.999998, 0.902367, -1.414210, -0.999998, -1.138069, 0.707105, 0, 0.707105]
    assert scaled.tolist() == pytest.approx(expected, abs=2e-6)


def test_the_recipes_weights(grow):
    """(2 * 1/3 + 3 * 1/2) / 5"""
    found = HistoryGroups(scale="none", offset=2, ignore="zero", **ONE)(grow(CARD), {}, 0)
    assert float(found[2]) == pytest.approx(0.433333, abs=1e-6)
    assert float(found[5]) == pytest.approx(-0.566667, abs=1e-6)


def loop(forest, history, alpha, offset, ignore, scaled) -> list[float]:
    worth, walks = forest.returns(0.95).tolist(), walks_of(forest)
    groups: dict[tuple, list[float]] = {}
    for walk in walks:
        names = [m.state for m in walk.moves]
        for t, move in enumerate(walk.moves):
            for h in range(min(history, t) + 1):
                if walk.compared:
                    groups.setdefault((walk.group, *names[t - h : t + 1]), []).append(worth[move.row])
    out = [0.0] * forest.n_steps
    for walk in walks:
        names = [m.state for m in walk.moves]
        for t, move in enumerate(walk.moves):
            top = bottom = 0.0
            for h in range(min(history, t) + 1):
                members = groups.get((walk.group, *names[t - h : t + 1]), [])
                a = z(worth[move.row], members, walk.compared, scaled, 0, 1e-6)
                equal = bool(members) and max(members) - min(members) <= 1e-12 * max(map(abs, members))
                alone = len(members) < (2 if walk.compared else 1)
                if alone or (ignore == "equal" and equal and a == 0):
                    continue
                weight = (h + offset) ** alpha
                top, bottom = top + weight * a, bottom + weight
            out[move.row] = top / bottom if bottom else 0.0
    return out


@given(SEEDS, st.integers(0, 3), st.sampled_from([0.0, 1.0, 2.0]), st.integers(1, 2), st.booleans(), st.booleans())
def test_it_agrees_with_a_loop(seed, history, alpha, offset, leaves_out, scaled):
    forest = wandering(seed)
    ignore = "equal" if leaves_out else "none"
    part = HistoryGroups(history=history, alpha=alpha, offset=offset, ignore=ignore, scale="std" if scaled else "none")
    expected = loop(forest, history, alpha, offset, ignore, scaled)
    assert part(forest, {}, 0).tolist() == pytest.approx([expected[s] for s in forest.path_step.tolist()], abs=1e-9)


@given(SEEDS, st.booleans())
def test_without_history_it_is_gigpos_step_level(seed, scaled):
    forest, scale = wandering(seed), "std" if scaled else "none"
    both = anchor_state_credit(scale=scale, ddof=0)(forest, {}, 0)
    step = both - anchor_state_credit(scale=scale, ddof=0, step_weight=0.0)(forest, {}, 0)
    found = HistoryGroups(history=0, scale=scale)(forest, {}, 0)
    assert torch.allclose(found, step, rtol=0, atol=1e-9)


@given(SEEDS, st.floats(-3, 3))
def test_order_and_a_shift_of_the_returns_do_not_matter(seed, shift):
    forest = wandering(seed)
    credit = HistoryGroups()(forest, {}, 0)
    order = torch.randperm(forest.n_trajectories, generator=torch.Generator().manual_seed(seed))
    assert torch.allclose(HistoryGroups()(forest.select(order), {}, 0), credit[forest.entries_of(order)], atol=1e-9)
    x, keys = torch.tensor([0.0, 1.0, 0.5, 0.5]), [torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, -1, 1])]
    assert torch.allclose(history_groups(x + shift, keys), history_groups(x, keys), atol=1e-4)


def test_a_level_of_equal_returns_and_a_step_that_is_average():
    """Level 0: 0 1 1 .5, mean .625; level 1 pairs the two 1s. Then level 0: 0 .5 1, where the middle one has 0."""
    x = torch.tensor([0.0, 1.0, 1.0, 0.5], dtype=torch.float64)
    keys = [torch.zeros(4, dtype=torch.int64), torch.tensor([-1, 0, 0, -1])]
    plain = {"scale": "none"}
    assert history_groups(x, keys, ignore="equal", **plain).tolist() == pytest.approx([-0.625, 0.375, 0.375, -0.125])
    assert history_groups(x, keys, ignore="none", **plain).tolist() == pytest.approx([-0.625, 0.125, 0.125, -0.125])
    middle = torch.tensor([0.0, 0.5, 1.0, 0.0], dtype=torch.float64)
    keys = [torch.tensor([0, 0, 0, -1]), torch.tensor([-1, 0, -1, 0])]
    # of the middle one: level 0 is 0, level 1 (.5 against 0) .25: averaged 2/3 * .25, or .25 alone
    assert float(history_groups(middle, keys, ignore="equal", **plain)[1]) == pytest.approx(0.166667, abs=1e-6)
    assert float(history_groups(middle, keys, ignore="zero", **plain)[1]) == 0.25


def test_defaults_and_float64():
    x, keys = torch.tensor([0.1, 0.7, 0.3]), [torch.zeros(3, dtype=torch.int64)]
    found = history_groups(x, keys)
    assert found.dtype == torch.float64 and torch.equal(
        found, history_groups(x.double(), keys, alpha=1.0, offset=1, ignore="equal", scale="std")
    )
    assert torch.equal(found, history_groups(x, keys, ddof=0, eps=1e-6, where=torch.ones(3, dtype=torch.bool)))
    # std of 1 and 0 over both is .5
    assert history_groups(torch.tensor([1.0, 0.0]), [torch.zeros(2).long()], eps=0.5).tolist() == [0.5, -0.5]


def test_the_method_and_its_settings():
    m = gxpo.method("hgpo", {"credit.history": 4})
    assert m.credit == HistoryGroups(history=4) and m.requires == ("states",)
    assert math.isclose(gxpo.method("hgpo@paper").keys["objective.kl.coef"].value, 0.01)
    for wrong, said in (
        ({"ignore": "all"}, "credit.ignore is 'all'; it is one of equal, zero, none"),
        ({"scale": "mean"}, "credit.scale is 'mean'; it is one of std, none"),
        ({"history": -1}, "credit.history is -1; it is 0 or more"),
        ({"offset": 0}, "credit.offset is 0; it is 1 or more"),
    ):
        with pytest.raises(ConfigError, match=said.replace(".", r"\.")):
            HistoryGroups(**wrong)
