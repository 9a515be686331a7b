"""BNPO: the card's numbers, the loop, what it reduces to, steps that say nothing about the distribution."""

from __future__ import annotations

import math
import statistics

import pytest
import torch
from hypothesis import given, settings
from tests.algorithms.weighting.verdict_rows import forest_of, group_of, part_of, peers_of, rows_of_verdicts, weighted

from gxpo.algorithms.weighting.group_curves import _beta_normalizer, beta_density
from gxpo.base.errors import ConfigError


def beta_density_weight(**options):
    return part_of("bnpo", "beta_density", **options)


THREE = group_of(1, 0, 0, 0) + group_of(1, 1, 0, 0, name="b") + group_of(1, 1, 1, 0, name="c")


def by_hand(rates: list[float], p: float) -> float:
    """1 / density, by the Beta function as a product of gammas."""
    v = statistics.variance(rates) if len(rates) > 1 else 0.0
    if v <= 1e-20 or not 0 < p < 1:
        return 1.0
    m = statistics.fmean(rates)
    k = m * (1 - m) / v - 1
    a, b = max(1.0, 1 + k * m / 3), max(1.0, 1 + k * (1 - m) / 3)
    area = math.gamma(a) * math.gamma(b) / math.gamma(a + b)
    return min(area / (p ** (a - 1) * (1 - p) ** (b - 1)), 1e6)


def test_card() -> None:
    rate = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    found = beta_density(rate, torch.tensor([4, 4, 2]))
    assert found.tolist() == pytest.approx([0.906900, 0.785398, 0.906900], abs=1e-6)
    # m .5, v .0625: a = b = 1.5, alpha = beta = 1.5
    ends = _beta_normalizer(torch.tensor(0.5, dtype=torch.float64), torch.tensor(0.0625, dtype=torch.float64))
    assert [float(x) for x in ends] == pytest.approx([1.5, 1.5])
    expected = [0.680175, *[-0.226725] * 3, *[0.392699] * 2, *[-0.392699] * 2, *[0.226725] * 3, -0.680175]
    assert weighted("bnpo", forest_of(THREE)) == pytest.approx(expected, abs=1e-6)


def test_beta_of_three_halves_is_the_scale_of_grpo() -> None:
    grpo = weighted("grpo", forest_of(THREE), {"credit.ddof": 0, "credit.eps": 0.0})
    assert weighted("bnpo", forest_of(THREE)) == pytest.approx([math.pi / 8 * a for a in grpo])


@settings(max_examples=60, deadline=None)
@given(rows_of_verdicts)
def test_it_equals_a_loop(rows) -> None:
    forest = forest_of(rows)
    found = beta_density_weight()(forest, torch.ones(forest.n_entries), {}, 0)
    peers = {g: peers_of(rows, g) for g in {row[0] for row in rows}}
    rates = [statistics.fmean(p) for p in peers.values() if len(p) > 1]
    for r, (g, *_) in enumerate(rows):
        own = statistics.fmean(peers[g]) if peers[g] else 0.0
        assert found[forest.path_of(r)].tolist() == pytest.approx(
            [by_hand(rates, own)] * len(forest.path_of(r)), rel=1e-7
        )


def test_one_group_and_groups_of_equal_rates_are_reinforce_with_a_baseline() -> None:
    one = forest_of(group_of(1, 0, 0))
    same = forest_of(group_of(1, 0, 0) + group_of(0, 1, 0, name="b"))
    for forest in (one, same):
        assert weighted("bnpo", forest) == pytest.approx(weighted("dr_grpo", forest))


def test_groups_without_contrast_weigh_one_but_shape_the_density() -> None:
    with_end = forest_of(THREE + group_of(0, 0, 0, 0, name="d"))
    found = weighted("bnpo", with_end)
    assert found[12:] == [0.0] * 4
    assert found[0] == pytest.approx(0.75 * by_hand([0.25, 0.5, 0.75, 0.0], 0.25))
    assert float(beta_density_weight()(with_end, torch.ones(16), {}, 0)[-1]) == 1.0


def test_the_largest_weight() -> None:
    # rates .5 nearly everywhere: the density at 1 / 20 is far out in a tail
    rows = [row for i in range(60) for row in group_of(1, 0, name=f"g{i}")] + group_of(1, *[0] * 19, name="x")
    forest = forest_of(rows)
    assert float(beta_density_weight()(forest, torch.ones(forest.n_entries), {}, 0).max()) == 1e6
    assert float(beta_density_weight(most=3.0)(forest, torch.ones(forest.n_entries), {}, 0).max()) == 3.0
    with pytest.raises(ConfigError, match="most"):
        beta_density_weight(most=0.0)
