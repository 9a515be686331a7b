"""Advantages under an order of prefixes: the worked example, the projection against scipy, prefixes in the forest."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from tests import strategies

from gxpo.algorithms.credit import advantage
from gxpo.algorithms.credit.ordered import order_of, ordered, pairs_of, prefix_ordered, prefixes_of, project
from gxpo.base.errors import ConfigError, GxpoError
from gxpo.forest.forest import Forest

F64 = torch.float64
ZERO3 = torch.zeros(3, dtype=torch.int64)


def rows(*places: int) -> torch.Tensor:
    return torch.tensor(places, dtype=torch.int64)


# ---------------------------------------------------------------- the projection
def test_the_card():
    reward = torch.tensor([0.0, 1.0, 0.0], dtype=F64)
    one = ordered(reward, ZERO3, rows(0), rows(1))
    assert one.tolist() == pytest.approx([-1 / 3, 2 / 3, -1 / 3], abs=1e-12)  # already met
    two = ordered(reward, ZERO3, rows(0, 0), rows(1, 2))
    assert two.tolist() == pytest.approx([-0.338333, 0.666667, -0.328333], abs=1e-6)


def test_without_constraints_it_is_the_centred_reward():
    reward = torch.tensor([0.2, 1.0, 0.0, 4.0], dtype=F64)
    actual = ordered(reward, rows(0, 0, 0, 1), rows(), rows())
    assert actual.tolist() == pytest.approx([-0.2, 0.6, -0.4, 0.0])


def solved(start: np.ndarray, low: list[int], high: list[int], margin: float, radius: float | None) -> np.ndarray:
    """By scipy's general solver."""
    constraints: list[dict[str, Any]] = [{"type": "eq", "fun": lambda a: a.sum()}]
    constraints += [
        {"type": "ineq", "fun": lambda a, i=i, j=j: a[j] - a[i] - margin} for i, j in zip(low, high, strict=True)
    ]
    if radius is not None:
        constraints.append({"type": "ineq", "fun": lambda a: radius - a @ a})
    actual = minimize(
        lambda a: 0.5 * ((a - start) ** 2).sum(),
        np.zeros_like(start),
        jac=lambda a: a - start,
        constraints=constraints,
        options={"ftol": 1e-15, "maxiter": 500},
    )
    return actual.x


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 8), st.sampled_from([0.0, 0.01, 0.3]), st.sampled_from([1.0, 6.0]))
def test_it_is_the_nearest_point_that_scipy_finds(seed, n, margin, size):
    rng = np.random.default_rng(seed)
    reward = size * rng.normal(size=n)
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n) if rng.random() < 0.3]
    low, high = [i for i, _ in pairs], [j for _, j in pairs]
    actual = ordered(torch.tensor(reward), torch.zeros(n, dtype=torch.int64), rows(*low), rows(*high), margin).numpy()
    expected = solved(reward - reward.mean(), low, high, margin, float(n))
    assert abs(actual.sum()) < 1e-9 and actual @ actual <= n * (1 + 1e-9)
    assert all(actual[j] - actual[i] >= margin - 1e-9 for i, j in pairs)
    assert actual == pytest.approx(expected, abs=2e-5)


def test_groups_do_not_touch_each_other():
    reward = torch.tensor([1.0, 0.0, 0.0, 3.0, 1.0], dtype=F64)
    together = ordered(reward, rows(0, 0, 0, 1, 1), rows(0, 3), rows(1, 4), 0.1)
    apart = ordered(reward[:3], ZERO3, rows(0), rows(1), 0.1), ordered(reward[3:], rows(0, 0), rows(0), rows(1), 0.1)
    assert together.tolist() == pytest.approx([*apart[0].tolist(), *apart[1].tolist()], abs=1e-10)


def test_long_rewards_are_shrunk_to_the_bound():
    actual = ordered(torch.tensor([10.0, -10.0], dtype=F64), rows(0, 0), rows(), rows())
    assert actual.tolist() == pytest.approx([1.0, -1.0], abs=1e-9)  # |a|^2 = 2 = n
    lone = ordered(torch.tensor([10.0, -10.0, 1.0, 0.0], dtype=F64), rows(0, 0, 1, 1), rows(), rows())
    assert lone[2:].tolist() == [0.5, -0.5]


@pytest.mark.slow
def test_constraints_in_a_circle_are_refused():
    with pytest.raises(GxpoError, match="circle"):
        project(torch.zeros(2, dtype=F64), rows(0, 1), rows(1, 0), 0.01)


# ---------------------------------------------------------------- prefixes
def prefixed(*given: tuple[Any, ...]) -> Forest:
    """(name, reward, lengths of the prefix's own pieces, (base, tokens kept) or None): completions of one token."""
    records = []
    for name, reward, lengths, base in given:
        size = sum(lengths)
        begins = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
        records.append(
            {
                "schema": "gxpo.rollouts/1",
                "group": "g",
                "id": name,
                "reward": reward,
                "success": reward > 0.5,
                "turns": [
                    {"action": [5] * (size + 1), "trainable": [False] * size + [True], "segments": sorted(set(begins))}
                ],
                **({"prompt": [1]} if base is None else {"fork": {"of": base[0], "turn": 0, "token": base[1]}}),
            }
        )
    return Forest.from_records(records)


FAMILY = (
    ("root", 0.0, [], None),
    ("x", 0.0, [2], None),  # prefix x
    ("xy", 1.0, [3], ("x", 2)),  # extends x, proves it
    ("z", 0.0, [2], None),  # a sibling of x, not proven
    ("x2", 0.0, [], ("x", 2)),  # the same prefix as x
)


def test_prefixes_are_told_by_stored_tokens():
    forest = prefixed(*FAMILY)
    prefixes = prefixes_of(forest)
    assert prefixes.length.tolist() == [0, 2, 5, 2, 2] and prefixes.parent.tolist() == [0, 0, 2, 0, 0]
    pairs = pairs_of(forest, prefixes)
    extends = {(int(i), int(j)) for i, j, e in zip(pairs.one, pairs.other, pairs.extends, strict=True) if e}
    everyone = {(0, j) for j in range(5)}
    assert extends == everyone | {(1, 1), (1, 2), (1, 4), (2, 2), (3, 3), (4, 1), (4, 2), (4, 4)}
    siblings = {(int(i), int(j)) for i, j, s in zip(pairs.one, pairs.other, pairs.siblings, strict=True) if s}
    assert siblings == {(1, 3), (3, 1), (4, 3), (3, 4)}
    low, high = order_of(pairs, forest.success >= 1, forest.compared, prefixes.length)
    # a success extends root, x and x2; z, a sibling of x that nobody has proven, is to have more than both
    assert set(zip(low.tolist(), high.tolist(), strict=True)) == {(0, 2), (1, 2), (4, 2), (1, 3), (4, 3)}


def test_credit_of_the_family():
    # r0 = [-.2, -.2, .8, -.2, -.2]; z is to stand .01 above x and x2: they give .01 / 3 each, z has the double
    credit = advantage(prefix_ordered)(prefixed(*FAMILY), {}, 0)
    forest = prefixed(*FAMILY)
    own_values = [float(credit[forest.path_of(r)[-1]]) for r in range(5)]
    d = 0.01 / 3
    assert own_values == pytest.approx([-0.2, -0.2 - d, 0.8, -0.2 + 2 * d, -0.2 - d], abs=1e-9)


@pytest.mark.parametrize(
    ("how", "value"),
    # root: all five; x and x2: x, xy, x2; xy: itself; z: itself
    [
        ("expectation", [0.2, 1 / 3, 1.0, 0.0, 1 / 3]),
        ("optimistic", [1.0, 1.0, 1.0, 0.0, 1.0]),
        ("pessimistic", [0.0, 0.0, 1.0, 0.0, 0.0]),
    ],
)
def test_heuristics_take_off_a_share_of_the_prefixes_value(how, value):
    forest = prefixed(*FAMILY)
    raw = [r - 0.5 * v for r, v in zip((0.0, 0.0, 1.0, 0.0, 0.0), value, strict=True)]
    mean = sum(raw) / 5
    credit = advantage(prefix_ordered, variant=how)(forest, {}, 0)
    assert [float(credit[forest.path_of(r)[-1]]) for r in range(5)] == pytest.approx([x - mean for x in raw], abs=1e-12)
    scaled = advantage(prefix_ordered, variant=how, scale=True)(forest, {}, 0)
    std = math.sqrt(sum((x - mean) ** 2 for x in raw) / 4)
    assert torch.allclose(scaled, credit / (std + 1e-6), atol=1e-12)


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.sampled_from(["projection", "expectation", "optimistic", "pessimistic"]))
def test_without_prefixes_it_is_the_centred_reward(seed, how):
    forest = strategies.random_forest(seed, groups=2, rollouts=5, unscored=False, forks=False)
    forest = forest.replace(trainable=torch.ones_like(forest.trainable), outcome=(forest.outcome > 0).double())
    actual = advantage(prefix_ordered, variant=how)(forest, {}, 0)
    for r in range(forest.n_trajectories):
        same = [o for o in range(forest.n_trajectories) if forest.group[o] == forest.group[r] and forest.compared[o]]
        equal = len({float(forest.outcome[o]) for o in same}) < 2
        mean = sum(float(forest.outcome[o]) for o in same) / len(same) if same else 0.0
        expected = 0.0 if equal else float(forest.outcome[r]) - mean
        assert actual[forest.path_of(r)].tolist() == pytest.approx([expected] * len(forest.path_of(r)), abs=1e-9)


@settings(max_examples=20)
@given(st.integers(0, 10**6))
def test_pairs_agree_with_a_loop(seed):
    forest = strategies.random_forest(seed, groups=2, rollouts=6, unscored=False)
    prefixes, known_compared = prefixes_of(forest), forest.compared
    pairs = pairs_of(forest, prefixes)
    of = [forest.path_token[forest.path_of(r)].tolist() for r in range(forest.n_trajectories)]
    trained = [forest.path_trainable[forest.path_of(r)].tolist() for r in range(forest.n_trajectories)]
    length = [t.index(True) if True in t else len(t) for t in trained]
    assert prefixes.length.tolist() == length
    actual = {(int(i), int(j)): bool(e) for i, j, e in zip(pairs.one, pairs.other, pairs.extends, strict=True)}
    for i in range(forest.n_trajectories):
        for j in range(forest.n_trajectories):
            if forest.group[i] == forest.group[j]:
                begins = length[i] <= length[j] and of[i][: length[i]] == of[j][: length[i]]
                assert actual.pop((i, j)) == begins
    assert not actual
    low, high = order_of(pairs, forest.success >= 1, known_compared, prefixes.length)
    assert not set(low.tolist()) & set(high.tolist())  # nothing can go round in a circle


def test_nothing_to_compare_is_exactly_zero():
    equal = prefixed(*((name, 1.0, lengths, base) for name, _, lengths, base in FAMILY))
    for how in ("projection", "expectation", "optimistic", "pessimistic"):
        assert advantage(prefix_ordered, variant=how)(equal, {}, 0).tolist() == [0.0] * equal.n_entries
        forest = prefixed(FAMILY[0])
        assert advantage(prefix_ordered, variant=how)(forest, {}, 0).tolist() == [0.0] * forest.n_entries


def test_refusals():
    with pytest.raises((ConfigError, GxpoError), match="variant"):
        advantage(prefix_ordered, variant="mean")  # type: ignore[arg-type]  # refused
    with pytest.raises(ConfigError, match="margin"):
        advantage(prefix_ordered, margin=-1.0)
