"""Contract of every advantage estimator, and sums of them."""

from __future__ import annotations

import doctest
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from tests.algorithms.credit.compositions import anchor_state_credit

import gxpo
from gxpo.algorithms.credit import CreditSum, GroupRelative, advantage, length_weighted
from gxpo.algorithms.credit.batch_whiten import batch_relative
from gxpo.algorithms.credit.gae import Gae
from gxpo.algorithms.credit.risk_bundle import RiskBundle
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Credit
from gxpo.parts.registry import CREDITS

Grow = Callable[..., Forest]


# ---------------------------------------------------------------- anchor states
CARD = [
    ("a", 10.0, [1, 1], {"states": ["s0", "s1"], "step_rewards": [0.0, 10.0]}),
    ("a", 0.0, [1, 1, 1], {"states": ["s0", "s0", "s2"], "step_rewards": [0.0, 0.0, 0.0]}),
]


# ---------------------------------------------------------------- common to all
ALL = [GroupRelative(), GroupRelative(scale="none"), GroupRelative(center="none", scale="none"),
       advantage(length_weighted), advantage(batch_relative), advantage(batch_relative, center="mean"),
       anchor_state_credit(), anchor_state_credit(center="none", scale="none")]  # fmt: skip


CENTRED: list[dict[str, Any]] = [
    {"scale": s} for s in ("none", "batch_std", "mean_absolute", "median_absolute", "mean")
] + [{"center": "leave_one_out", "scale": "none"}, {"unit": "trajectory"}, {"ddof": 0}, {"weight": 0.5}]
NOT_CENTRED: list[dict[str, Any]] = [
    {"scale": "leave_one_out_std"}, {"center": "median"}, {"center": "none"}, {"center": "quantile"}, {"shift": -0.1},
    {"center": "baseline", "scale": "none"}, {"value": "turn_rewards"}, {"value": "reward.form"}, {"unit": "token"},
    {"unit": "step"}, {"group_by": ("batch",)}, {"group_by": ("group", "agent")}, {"bound": 1.0}, {"weight": -1.0},
]  # fmt: skip


@pytest.mark.parametrize("part", ALL, ids=str)
def test_every_credit_keeps_the_contract(part: Credit, grow: Grow) -> None:
    rows = [*CARD, ("b", 0.1, [2, 2], {"states": ["s0", "s0"]}), ("c", 0.7, [1]), ("c", 0.7, [4])]
    forest = grow(rows)
    actual = part(forest, {}, 0)
    assert actual.shape == (forest.n_entries,) and actual.dtype == torch.float64
    assert actual.isfinite().all() and not actual.requires_grad
    order = [4, 2, 0, 3, 1]
    moved = part(forest.select(order), {}, 0)
    assert moved.tolist() == pytest.approx(actual[forest.entries_of(order)].tolist(), abs=1e-12)
    equal = grow(
        [(g, r, [n]) for g, r, n in [("a", 0.1, 2), ("a", 0.1, 3), ("b", 0.7, 1), ("b", 0.7, 2), ("c", 0.3, 1)]]
    )
    assert bool(part(equal, {}, 0).any()) == part.learns_from_equal_groups


def test_what_centres_outcomes_gives_the_score_less_the_mean_times_a_number(grow: Grow) -> None:
    """Every registered part that says so, with its defaults; groups: a spread and unequal lengths, two members, equal
    ones, and in each row 3 of a group is measured by the others alone."""
    outcomes = {"a": [1.0, 0.0, 0.5, 1.0], "b": [0.25, 1.0], "c": [0.5, 0.5, 0.5, 0.5]}
    rows = [(g, r, [2 + 3 * i]) for g, values in outcomes.items() for i, r in enumerate(values)]
    forest = grow(rows)
    is_compared = [i != 3 for values in outcomes.values() for i in range(len(values))]
    forest = forest.replace(compared=torch.tensor(is_compared), success=torch.tensor([r for _, r, _ in rows]) > 0.6)
    centring = [part for make in CREDITS.values() if (part := make()).centres_outcomes]
    assert GroupRelative() in centring and len(centring) >= 2
    for part in (*centring, *(GroupRelative(**options) for options in CENTRED), GroupRelative() + 2 * GroupRelative()):
        assert part.centres_outcomes, part
        method = gxpo.method("grpo", {"credit": part})
        advantage_R = [
            float(x[0]) for x in method.advantages(forest).split(torch.bincount(forest.path_trajectory).tolist())
        ]
        for g in outcomes:
            compared = [(a, r) for a, (h, r, _), c in zip(advantage_R, rows, is_compared, strict=True) if h == g and c]
            mean = sum(r for _, r in compared) / len(compared)
            assert sum(a for a, _ in compared) == pytest.approx(0.0, abs=1e-9), (part, g)
            ratios = [a / (r - mean) for a, r in compared if abs(r - mean) > 1e-9]
            assert all(x > 0 and x == pytest.approx(ratios[0]) for x in ratios), (part, g)


@pytest.mark.parametrize("options", NOT_CENTRED, ids=str)
def test_other_baselines_promise_no_sum_of_zero(options: dict[str, Any]) -> None:
    assert not GroupRelative(**options).centres_outcomes
    assert not (GroupRelative() + GroupRelative(**options)).centres_outcomes


def test_subclasses_and_negative_sums_promise_no_sum_of_zero() -> None:
    assert not CREDITS["state_relative"](value="outcome", unit="trajectory").centres_outcomes
    assert not CREDITS["diversity_adjusted"]().centres_outcomes
    assert not (GroupRelative() * -1.0).centres_outcomes
    assert not (GroupRelative() + advantage(length_weighted)).centres_outcomes


def test_credits_add_and_scale(grow: Grow) -> None:
    forest = grow(CARD)
    a, b = GroupRelative(scale="none"), advantage(batch_relative)
    both = 2 * a + b * 0.5 + a
    assert isinstance(both, CreditSum) and len(both.parts) == 3
    expected = 3 * a(forest, {}, 0) + 0.5 * b(forest, {}, 0)
    assert both(forest, {}, 0).tolist() == pytest.approx(expected.tolist())
    assert both.learns_from_equal_groups and not (a + a).learns_from_equal_groups
    assert (a + anchor_state_credit()).requires == ("states",)
    assert torch.equal((3 * (a + b))(forest, {}, 0), 3 * (a + b)(forest, {}, 0))


def test_a_plain_function_adds_to_a_part(grow: Grow) -> None:
    forest = grow(CARD)

    def last_turn(forest: Forest, signals, step: int) -> torch.Tensor:
        return forest.to_path(torch.tensor([0.0, 1, 0, 0, 1], dtype=torch.float64), "S")

    def number(forest: Forest, signals, step: int) -> torch.Tensor:
        return torch.full((forest.n_entries,), float(step), dtype=torch.float64)

    assert (number + GroupRelative())(forest, {}, 7).tolist() == (GroupRelative()(forest, {}, 0) + 7).tolist()
    for both in (GroupRelative() + last_turn, last_turn + GroupRelative()):
        expected = GroupRelative()(forest, {}, 0) + last_turn(forest, {}, 0)
        assert torch.equal(both(forest, {}, 0), expected)


def test_a_wrong_word_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"credit\.center is 'median'"):
        advantage(batch_relative, center="median")  # type: ignore[arg-type]  # the point of the test
    with pytest.raises(ConfigError, match=r"credit\.center is 'middle'"):
        anchor_state_credit(center="middle")  # type: ignore[arg-type]  # the point of the test


def test_the_functions_doctests_hold() -> None:
    for name in ("relative", "baselines", "batch_whiten"):
        assert doctest.testmod(import_module(f"gxpo.algorithms.credit.{name}")).failed == 0


def test_sums_pass_on_targets_memory_and_observations(grow: Grow) -> None:
    forest = grow([("a", 1.0, [1]), ("a", 0.0, [1]), ("b", 1.0, [1]), ("b", 1.0, [1])])
    value = {"value": torch.tensor([0.25, 0.5, 0.0, 1.0], dtype=torch.float64)}
    both = RiskBundle(size=2, low=0.25, high=0.75) + 0.5 * Gae() + GroupRelative()
    assert both.provides == ("value_target",) and both.needs == ("value",)
    assert both.targets(forest, value, 0)["value_target"].tolist() == [1.0, 0.0, 1.0, 1.0]
    both.observe(forest)  # the sheets' sums are 2 and 1
    assert both.state_dict() == {"0": {"low": 1.25, "high": 1.75}}
    other = RiskBundle(size=2, low=0.25, high=0.75) + Gae()
    other.load_state_dict(both.state_dict())
    assert other.state_dict() == both.state_dict()
    with pytest.raises(ConfigError, match=r"^two credits of a sum both hand over value_target: leave one out$"):
        Gae() + Gae(lam=0.5)
    with pytest.raises(ConfigError, match=r"^a sum of 1 credits needs as many factors, not 2$"):
        CreditSum((GroupRelative(),), (1.0, 2.0))
    assert (GroupRelative() + 2 * Gae()).__mul__(4).factors == (4.0, 8.0)
