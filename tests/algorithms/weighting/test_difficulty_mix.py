"""A-GRAE: the card's numbers with both easy terms, the loop, bounds."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.weighting.verdict_rows import forest_of, group_of, part_of, peers_of, rows_of_verdicts, weighted

from gxpo.algorithms.weighting.group_curves import difficulty_mix
from gxpo.base.errors import ConfigError


def difficulty_mix_weight(**options):
    return part_of("a_grae", "difficulty_mix", **options)


TWO = group_of(1, 0, 0, 0) + group_of(1, 1, 1, 0, name="b")


def test_card() -> None:
    coded = [0.749997, *[-0.499998] * 3, *[0.538670] * 3, -3.232023]
    assert weighted("a_grae", forest_of(TWO)) == pytest.approx(coded, abs=2e-6)
    mirrored = [0.591504, *[-0.394336] * 3, *[0.197168] * 3, -1.183008]
    found = weighted("a_grae", forest_of(TWO), {"weight.difficulty_mix.easy": "root_of_rest"})
    assert found == pytest.approx(mirrored, abs=2e-6)


def by_hand(p: float, m: float, easy: str) -> float:
    if not 0 < p < 1:
        return 1.0
    rest = 1 - math.sqrt(p) if easy == "one_minus_root" else math.sqrt(1 - p)
    return (1 - m) * 0.5 / (rest + 1e-6) + m * 0.5 / (math.sqrt(p) + 1e-6)


@settings(max_examples=60, deadline=None)
@given(rows_of_verdicts, st.sampled_from(["one_minus_root", "root_of_rest"]), st.sampled_from([0.5, 1.0]))
def test_it_equals_a_loop(rows, easy, full) -> None:
    forest = forest_of(rows)
    credit = torch.tensor([(-1.0) ** int(r) for r in forest.path_trajectory], dtype=torch.float64)
    found = difficulty_mix_weight(full=full, easy=easy)(forest, credit, {}, 0)
    peers = {g: peers_of(rows, g) for g in {row[0] for row in rows}}
    rates = [statistics.fmean(p) for p in peers.values() if p]
    m = statistics.fmean(rates) if rates else 0.0
    for r, (g, *_) in enumerate(rows):
        w = by_hand(statistics.fmean(peers[g]) if peers[g] else 0.0, m, easy)
        w *= min(1.0, m / full) if r % 2 == 0 else 1.0
        assert found[forest.path_of(r)].tolist() == pytest.approx([w] * len(forest.path_of(r)))


def mix_at(rates: torch.Tensor, accuracy: float) -> torch.Tensor:
    """The curve where the mean over the step's groups is the accuracy: it is that of many further groups."""
    others = torch.full((10**6,), accuracy, dtype=torch.float64)
    both = torch.cat([rates, others])
    return difficulty_mix(both, torch.ones_like(both), easy="root_of_rest")[: len(rates), 1]


def test_the_focus_moves_from_easy_to_hard() -> None:
    rates = torch.linspace(0.05, 0.95, 19, dtype=torch.float64)
    weak, able = (mix_at(rates, m) for m in (0.0, 1.0))
    assert bool((weak.diff() > 0).all()) and bool((able.diff() < 0).all())
    assert torch.allclose(weak, able.flip(0), rtol=1e-3)  # mirrors of each other


def test_successes_are_held_back_and_failures_are_not() -> None:
    forest = forest_of(TWO)
    part = difficulty_mix_weight(full=1.0)
    up, down = (part(forest, sign * torch.ones(8), {}, 0) for sign in (1.0, -1.0))
    assert torch.allclose(up, 0.5 * down)  # M = .5
    assert torch.equal(difficulty_mix_weight(full=0.5)(forest, torch.ones(8), {}, 0), down)
    assert torch.equal(part(forest, torch.zeros(8), {}, 0), down)


def test_groups_without_contrast_have_no_pole() -> None:
    forest = forest_of(group_of(0, 0) + group_of(1, 1, name="b") + group_of(1, 0, name="c"))
    found = difficulty_mix_weight()(forest, -torch.ones(6), {}, 0)
    assert found[:4].tolist() == [1.0] * 4 and bool((found < 3).all())


def test_options() -> None:
    for bad in ({"full": 0.0}, {"full": 1.5}, {"easy": "rest"}, {"eps": -1.0}):
        with pytest.raises(ConfigError, match=next(iter(bad))):
            difficulty_mix_weight(**bad)
