"""Bonuses that turn nothing around: the card's pair, bounds, where they stand, and GRPO without them."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import forests

import gxpo
from gxpo.credit.clipped_bonus import ClippedBonus, clipped_bonus
from gxpo.errors import ConfigError
from gxpo.forest import Forest

F64 = torch.float64
NUMBERS = st.floats(-3, 3, allow_nan=False)


def test_card() -> None:
    """A = [1, -1], bonuses [.3, .9], kappa 2: 1 + .3; -1 + min(.9, .5)."""
    assert clipped_bonus(torch.tensor([1.0, -1.0]), torch.tensor([0.3, 0.9])).tolist() == pytest.approx([1.3, -0.5])


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=8), st.sampled_from([1.0, 2.0, 5.0]))
def test_bounds(rows: list[tuple[float, float]], kappa: float) -> None:
    a, bonus = torch.tensor(rows, dtype=F64).unbind(1)
    moved = clipped_bonus(a, bonus, kappa) - a
    assert bool((moved >= 0).all()) and bool((moved <= a.abs() / kappa + 1e-12).all())
    assert bool((moved[(bonus <= 0) | (a == 0)] == 0).all())
    assert bool(((a + moved) * a >= 0).all())


@settings(max_examples=25, deadline=None)
@given(forest=forests(), seed=st.integers(0, 99), at=st.sampled_from(["all", "last"]))
def test_equals_a_loop_over_grpo(forest: Forest, seed: int, at: str) -> None:
    generator = torch.Generator().manual_seed(seed)
    bonus = torch.randn(forest.n_trajectories, generator=generator, dtype=F64)
    bonus[::3] = math.nan
    plain = gxpo.method("grpo").advantages(forest)
    found = gxpo.method("verl_rank", {"credit.at": at}).advantages(forest, {"bonus": bonus})
    for r in range(forest.n_trajectories):
        trained = [p for p in forest.path_of(r).tolist() if bool(forest.path_trainable[p])]
        for p in forest.path_of(r).tolist():
            a, b = float(plain[p]), float(bonus[r])
            raise_ = at == "all" or p == (trained[-1] if trained else None)
            more = min(b, abs(a) / 2) if raise_ and b > 0 else 0.0
            assert float(found[p]) == pytest.approx(a + more, abs=1e-12)


# errata
def test_a_bonus_on_the_last_token_is_worth_one_token() -> None:
    """The released code: of four tokens of A = 1 and a bonus of .5, [1, 1, 1, 1.5]; the paper's is 1.5 throughout."""
    forest = Forest.from_completions([[1]], [[[2, 3, 4, 5], [6]]], [1.0, 0.0])
    signals = {"bonus": torch.tensor([0.5, -1.0], dtype=F64)}
    changed = {"credit.scale": "none", "credit.kappa": 1.0}
    all_ = gxpo.method("verl_rank", changed).advantages(forest, signals)
    last = gxpo.method("verl_rank", {**changed, "credit.at": "last"}).advantages(forest, signals)
    assert all_.tolist() == [1.0] * 4 + [-0.5] and last.tolist() == [0.5, 0.5, 0.5, 1.0, -0.5]


def test_bad_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"credit\.kappa is 0.5"):
        ClippedBonus(kappa=0.5)
    with pytest.raises(ConfigError, match=r"credit\.at is 'first'"):
        ClippedBonus(at="first")  # type: ignore[arg-type]  # wrong on purpose
