"""REINFORCE++: whitening over the batch's tokens or trajectories, against loops."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gxpo.algorithms.credit import advantage, batch_whiten
from gxpo.algorithms.credit.batch_whiten import batch_relative
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest

Grow = Callable[..., Forest]
ROWS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from([0.0, 1.0, 0.1, 0.7]), st.integers(1, 4), st.booleans()),
    min_size=1,
    max_size=10,
)


def grown(grow: Grow, rows: list) -> Forest:
    return grow([(g, r, [n], {"compared": c}) for g, r, n, c in rows])


# ---------------------------------------------------------------- batch whitening
def test_reinforce_pp_card(grow: Grow) -> None:
    forest = grow([(g, r, [n]) for g, r, n in zip("abcd", [1.0, 0, 0, 1], [1, 3, 2, 2], strict=True)])
    up, down = 1.207615, -0.724569
    expected = [up] + [down] * 3 + [down] * 2 + [up] * 2
    assert advantage(batch_relative)(forest, {}, 0).tolist() == pytest.approx(expected, abs=1e-6)


def test_reinforce_pp_baseline_card(grow: Grow) -> None:
    forest = grow([("a", r, [1]) for r in (1.0, 0, 0, 0)] + [("b", r, [1]) for r in (1.0, 1, 1, 0)])
    expected = [1.620185] + [-0.540062] * 3 + [0.540062] * 3 + [-1.620185]
    assert advantage(batch_relative, center="mean")(forest, {}, 0).tolist() == pytest.approx(expected, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(rows=ROWS, center=st.sampled_from(["none", "mean"]))
def test_whitening_equals_a_loop(grow: Grow, rows: list, center: str) -> None:
    forest = grown(grow, rows)
    value = []
    for g, r, _, c in rows:
        peers = [q for h, q, _, d in rows if h == g and d]
        if center == "none":
            value.append(r)
        elif not peers or (c and (len(peers) < 2 or len(set(peers)) == 1)):
            value.append(0.0)
        else:
            value.append(r - sum(peers) / len(peers))
    tokens = [v for v, (_, _, n, c) in zip(value, rows, strict=True) for _ in range(n) if c]
    if len(tokens) < 2 or max(tokens) - min(tokens) <= 1e-12:
        expected = [0.0] * forest.n_entries
    else:
        mean = math.fsum(tokens) / len(tokens)
        root = math.sqrt(math.fsum((t - mean) ** 2 for t in tokens) / (len(tokens) - 1) + 1e-8)
        expected = [(v - mean) / root for v, (_, _, n, _) in zip(value, rows, strict=True) for _ in range(n)]
    actual = advantage(batch_relative, center=center)(forest, {}, 0)  # type: ignore[arg-type]  # drawn from the allowed words
    assert actual.tolist() == pytest.approx(expected, abs=1e-9)


def test_an_equal_batch_is_zero_and_unequal_groups_are_not(grow: Grow) -> None:
    for value in (0.1, 0.7, 1 / 3):
        same = grow([(g, value, [n]) for g, n in zip("aabbcc", [1, 2, 3, 4, 5, 6], strict=True)])
        assert not advantage(batch_relative)(same, {}, 0).any()
    between = grow([("a", 1.0, [2]), ("a", 1.0, [1]), ("b", 0.0, [3]), ("b", 0.0, [1])])
    assert (advantage(batch_relative)(between, {}, 0) != 0).all()
    assert not advantage(batch_relative, center="mean")(between, {}, 0).any()
    assert (
        advantage(batch_relative).learns_from_equal_groups
        and not advantage(batch_relative, center="mean").learns_from_equal_groups
    )


@settings(max_examples=60, deadline=None)
@given(rows=ROWS, center=st.sampled_from(["none", "mean", "leave_one_out"]), ddof=st.sampled_from([0, 1]),
       single=st.sampled_from(["zero", "raw"]))  # fmt: skip
def test_whitening_over_trajectories_equals_a_loop(grow: Grow, rows: list, center: str, ddof: int, single: str) -> None:
    forest, value = grown(grow, rows), []
    for i, (g, r, _, c) in enumerate(rows):
        peers = [q for h, q, _, d in rows if h == g and d]
        others = [q for j, (h, q, _, d) in enumerate(rows) if h == g and d and j != i]
        if center == "none" or (c and not others and single == "raw"):
            value.append(r)
        elif not peers or (c and len(set(peers)) == 1):
            value.append(0.0)
        else:
            against = others if c and center == "leave_one_out" else peers
            value.append(r - math.fsum(against) / len(against))
    batch = [v for v, (_, _, _, c) in zip(value, rows, strict=True) if c]
    if len(batch) <= ddof or max(batch) - min(batch) <= 1e-12:
        expected = [0.0] * len(rows)
    else:
        mean = math.fsum(batch) / len(batch)
        std = math.sqrt(math.fsum((v - mean) ** 2 for v in batch) / (len(batch) - ddof))
        expected = [(v - mean) / (std + 1e-4) for v in value]
    part = advantage(batch_relative, center=center, batch_unit="trajectories", ddof=ddof, singleton=single, eps=1e-4)  # type: ignore[arg-type]  # drawn from the allowed words
    actual = part(forest, {}, 0)
    assert actual.tolist() == pytest.approx([expected[r] for r in forest.path_trajectory.tolist()], abs=1e-9)


def test_the_population_variance_over_tokens(grow: Grow) -> None:
    # mean .375, variance .234375: .625 / .484123
    forest = grow([(g, r, [n]) for g, r, n in zip("abcd", [1.0, 0, 0, 1], [1, 3, 2, 2], strict=True)])
    assert advantage(batch_relative, ddof=0)(forest, {}, 0)[0] == pytest.approx(1.290994, abs=1e-6)
    for wrong in ({"batch_unit": "rows"}, {"center": "median"}, {"singleton": "one"}):
        with pytest.raises(ConfigError, match=f"credit.{next(iter(wrong))} is"):
            advantage(batch_relative, **wrong)


def test_untrainable_tokens_enter_no_statistic(grow: Grow) -> None:
    # T11: tool tokens in the middle change no action token's credit
    rows = [("a", 1.0, [2]), ("a", 0.0, [3]), ("b", 1.0, [4]), ("b", 0.5, [1])]
    longer = [("a", 1.0, [2]), ("a", 0.0, [5], {"trainable": [True, False, True, False, True]}), *rows[2:]]
    for part in (advantage(batch_relative), advantage(batch_relative, center="mean")):
        forest, gapped = grow(rows), grow(longer)
        actual = part(gapped, {}, 0)
        assert actual[gapped.path_trainable].tolist() == pytest.approx(part(forest, {}, 0).tolist(), abs=1e-12)
        assert not actual[~gapped.path_trainable].any()
    assert not batch_whiten(torch.tensor([1.0, 5.0]), torch.tensor([True, False])).any()
    apart = batch_whiten(torch.tensor([1.0, 5.0, 2.0, 3.0]), torch.tensor([True, False, True, False]))
    assert apart.tolist() == pytest.approx([-0.707107, 0.0, 0.707107, 0.0], abs=1e-6)


def test_whitening_of_values_whose_squares_overflow():
    """(x - mean) / std of [1e300, 0, 0, 0] with one degree of freedom: std = 1e300 / 2, so 1.5 and three times -0.5."""
    every = torch.ones(4, dtype=torch.bool)
    white = batch_whiten(torch.tensor([1e300, 0.0, 0.0, 0.0], dtype=torch.float64), every)
    assert torch.allclose(white, torch.tensor([1.5, -0.5, -0.5, -0.5], dtype=torch.float64), rtol=1e-12)
