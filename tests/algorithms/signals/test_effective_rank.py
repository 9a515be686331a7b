"""Effective ranks: the card's spectrum, a loop with singular values, the bonus by hand, averages, resumed runs."""

from __future__ import annotations

import itertools
import json
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.learning.llamas import clean_llama, random_forest

from gxpo.algorithms.signals.effective_rank import effective_rank, rank_bonus, rank_dynamics, spectral_rank
from gxpo.base.errors import CheckpointError, ConfigError
from gxpo.forest.forest import Forest
from gxpo.learning.torch import TorchLearner
from gxpo.parts.definition import kind_of

EffectiveRank = kind_of(effective_rank)

F64 = torch.float64


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


def noise(n: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed), dtype=F64)


def test_card_spectrum() -> None:
    """p = [3/4, 1/4, 0]: exp(.75 ln(4/3) + .25 ln 4)."""
    assert spectral_rank(column(3, 1, 0)) == pytest.approx(1.754765, abs=1e-6)
    assert spectral_rank(column(2, 2, 2, 2)) == pytest.approx(4.0) and spectral_rank(column(0, 0)) == 1.0


def by_hand(states: np.ndarray) -> float:
    """Singular values of the centred states themselves."""
    s = np.linalg.svd(states - states.mean(0), compute_uv=False)
    p = s[s > 1e-9 * s.max()] / s.sum()
    return math.exp(-sum(x * math.log(x) for x in p))


@pytest.mark.parametrize(
    ("n", "width", "stride"), [(23, 5, 4), (23, 40, 4), (24, 6, 4), (25, 6, 4), (7, 6, 4), (3, 4, 4)]
)
def test_dynamics_equal_a_loop(n: int, width: int, stride: int) -> None:
    x = noise(n, width).numpy() * np.arange(1, width + 1)
    m = [by_hand(x[:k]) for k in range(stride, n + 1, stride)]
    if m and n - stride * len(m) > 1:
        m.append(by_hand(x))
    d = [m[j] - sum(m[:j]) / j for j in range(1, len(m))]
    second = [b - a for a, b in itertools.pairwise(d)]
    target = (by_hand(x), sum(d) / len(d) if d else 0.0, sum(second) / len(second) if second else 0.0)
    assert rank_dynamics(torch.from_numpy(x), stride) == pytest.approx(target, abs=1e-7)


def test_velocity_is_against_all_before_not_the_last() -> None:
    """Ranks m = [1, 2, 3] would give 1 and 1 as differences of neighbours; here 2 - 1 and 3 - 1.5."""
    states = torch.zeros(6, 3, dtype=F64)
    states[1, 0], states[3, 1], states[5, 2] = 1.0, 1.0, 1.0
    m = [rank_dynamics(states[:k], 2)[0] for k in (2, 4, 6)]
    _, velocity, acceleration = rank_dynamics(states, 2)
    assert velocity == pytest.approx((m[1] - m[0] + m[2] - (m[0] + m[1]) / 2) / 2)
    assert acceleration == pytest.approx(m[2] - (m[0] + m[1]) / 2 - (m[1] - m[0]))


def test_too_short_has_no_rank() -> None:
    assert rank_dynamics(noise(1, 4), 2) == (0.0, 0.0, 0.0) and rank_dynamics(noise(0, 4), 2) == (0.0, 0.0, 0.0)


def test_bonus_by_hand() -> None:
    """Usual [10, 2, -1]. The first: deviations .2, -.5, 1; beta = sigmoid(2). The second is held at 5 and -5."""
    actual = rank_bonus(torch.tensor([[12.0, 1.0, 0.0], [99.0, -99.0, -1.0]], dtype=F64), column(10, 2, -1))
    beta = 1 / (1 + math.exp(-2))
    assert float(actual[0]) == pytest.approx(beta * math.tanh(0.2) - (1 - beta) * math.tanh(0.5))
    assert float(actual[1]) == pytest.approx(0.5 * math.tanh(5) + 0.5 * math.tanh(-5), abs=1e-9)


class Hidden:
    """A learner whose hidden states are given."""

    def __init__(self, states: torch.Tensor) -> None:
        self.states = states

    def hidden(self, forest: Forest, layer: int = -1) -> torch.Tensor:
        return self.states


def tools(states: torch.Tensor) -> Any:
    return SimpleNamespace(learner=Hidden(states))


def two(seed: int) -> tuple[Forest, Any]:
    """Answers of 9 and 6 tokens, one of them unscored, and one of none."""
    forest = Forest.from_completions([[1]], [[[2] * 9, [3] * 6, []]], [1.0, None, 0.0])
    return forest, tools(noise(forest.n_tokens, 4, seed))


def test_the_first_step_has_no_bonus_and_then_the_average_moves() -> None:
    part, target = EffectiveRank(stride=2, rate=0.25, scale=2.0), None
    for seed in range(3):
        forest, own_value = two(seed)
        actual = part.compute(forest, {}, own_value)["bonus"]
        rows = [own_value.learner.states[forest.path_token[forest.path_of(r)]] for r in range(3)]
        mine = torch.tensor([rank_dynamics(x, 2) for x in rows], dtype=F64)
        expected = torch.zeros(3).double() if target is None else 2 * rank_bonus(mine, target)
        assert torch.allclose(actual, expected, atol=1e-12)
        figures = part.learn(forest, {}, own_value)
        assert list(figures.values()) == pytest.approx(mine[0].tolist()), "the scored one with tokens alone"
        target = mine[0] if target is None else target + 0.25 * (mine[0] - target)
    assert list(figures) == ["effective_rank", "rank_velocity", "rank_acceleration"]


# errata
def test_an_average_that_begins_at_0_has_only_extreme_deviations() -> None:
    """The released code's second step: (x - 0) / 1e-8 is held at +-5 whatever x is, so every bonus is tanh(5) or
    nearly so; begun with a first step's means, equal figures have a bonus of 0."""
    figures = torch.tensor([[9.0, 0.2, 0.1], [3.0, 0.1, 0.3]], dtype=F64)
    assert rank_bonus(figures, column(0, 0, 0)).tolist() == pytest.approx([math.tanh(5)] * 2)
    assert rank_bonus(figures[:1], figures[0]).tolist() == [0.0]


def test_a_resumed_run_goes_on_exactly() -> None:
    first, second = EffectiveRank(stride=2), EffectiveRank(stride=2)
    for seed in range(2):
        forest, own_value = two(seed)
        first.compute(forest, {}, own_value)
        first.learn(forest, {}, own_value)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    forest, own_value = two(5)
    assert torch.equal(*(p.compute(forest, {}, own_value)["bonus"] for p in (first, second)))
    with pytest.raises(CheckpointError, match="effective_rank holds"):
        second.load_state_dict({"means": []})
    bad: list[dict[str, Any]] = [{"stride": 1}, {"rate": 0.0}, {"rate": 1.5}]
    for wrong in bad:
        with pytest.raises(ConfigError, match=r"signal( |\.)effective_rank"):
            EffectiveRank(**wrong)


def test_with_a_model_packed_and_flat_are_one() -> None:
    learner = TorchLearner(clean_llama(), lr=0.0)
    forest = random_forest(2)
    parts = EffectiveRank(stride=2), EffectiveRank(stride=2)
    for part in parts:
        part.memory["usual"] = [1.5, 0.2, 0.1]
    packed, flat = (
        part.compute(f, {}, SimpleNamespace(learner=learner))["bonus"]  # type: ignore[arg-type]  # all it needs
        for part, f in zip(parts, (forest, forest.flatten()), strict=True)
    )
    assert torch.allclose(packed, flat, atol=1e-5)
