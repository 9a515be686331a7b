"""Figures of teams: the cards' numbers."""

from __future__ import annotations

import math

import pytest

from gxpo.base.errors import ConfigError
from gxpo.explain.team_figures import certified_success, harmonic_of_normalised, influence, risk_adjusted


def test_influence_of_the_card() -> None:
    assert influence([0.7, 0.2, 0.1], [0.5, 0.3, 0.2]) == pytest.approx(0.085123, abs=1e-6)
    assert influence([0.5, 0.5], [0.5, 0.5]) == 0.0 and influence([0.5, 0.5], [1.0, 0.0]) == math.inf
    assert influence([1.0, 0.0], [0.5, 0.5]) == pytest.approx(math.log(2))
    for bad in ([0.5, 0.4], [1.0], [1.5, -0.5]):
        with pytest.raises(ConfigError, match="no distribution over the same actions"):
            influence([0.5, 0.5], bad)


def test_certified_success_of_the_card() -> None:
    assert certified_success(0.9, 0.2, 0.1) == pytest.approx(0.782761, abs=1e-6)
    assert certified_success(0.9, 0.2, 0.3) == pytest.approx(0.413540, abs=1e-6)
    assert certified_success(0.9, 0.2, 0.0) == pytest.approx(0.9)
    with pytest.raises(ConfigError, match="a rate between 0 and 1"):
        certified_success(1.0, 0.2, 0.1)


def test_risk_of_the_cards() -> None:
    assert risk_adjusted([[3.0, 0.0], [1.5, 1.5]], [0.5, 0.5], 1.0) == pytest.approx([-0.75, 1.5])
    # means 1 and 1, variances 0 and 4: at .5 they are 1 and -1
    assert risk_adjusted([[1.0, 1.0], [3.0, -1.0]], [0.5, 0.5], 0.5) == pytest.approx([1.0, -1.0])


def test_a_harmonic_mean_depends_on_the_set() -> None:
    pair = [[0.2, 10.0], [0.4, 20.0]]
    assert harmonic_of_normalised(pair) == [0.0, 1.0]
    # with a worse third the first is no longer the worst: 1/3 and 1/2 of the spans, 2 / (3 + 2)
    assert harmonic_of_normalised([*pair, [0.1, 0.0]]) == pytest.approx([0.4, 1.0, 0.0])
