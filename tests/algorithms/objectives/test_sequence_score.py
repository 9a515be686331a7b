"""Scores of trajectories, sums of exponentials, labels."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.objectives.labelled_groups import forest_of

from gxpo.algorithms.objectives.sequence_score import (
    approx_kl,
    counted_trajectories,
    is_contrasted,
    labels,
    log_sum_exp,
    n_groups,
    over_groups,
    per_trajectory,
    token_coefficients,
    weight_gradients,
)
from gxpo.base.errors import GxpoError


def column(*x: float) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


def mask(*x: int) -> torch.Tensor:
    return torch.tensor(x) > 0


@given(
    st.lists(st.tuples(st.floats(-800, 800), st.integers(0, 2), st.booleans()), min_size=1, max_size=9), st.booleans()
)
def test_log_sum_exp_is_stable_and_differentiable(rows, one):
    x = column(*(v for v, _, _ in rows)).requires_grad_()
    ids, where = torch.tensor([g for _, g, _ in rows]), torch.tensor([w for *_, w in rows])
    log_sums = log_sum_exp(x, ids, where, plus_one=one)
    (slope,) = torch.autograd.grad(log_sums.sum(), x)
    assert bool(log_sums.isfinite().all()) and bool(slope.isfinite().all())
    for g in set(ids.tolist()):
        terms = [v for v, h, w in rows if h == g and w] + ([0.0] if one else [])
        top = max(terms, default=0.0)
        expected = top + math.log(sum(math.exp(v - top) for v in terms)) if terms else 0.0
        assert log_sums[ids == g].tolist() == pytest.approx([expected] * int((ids == g).sum()))


def test_weighted_changes_derivatives_only():
    x = column(-1.0, -2.0, -3.0).requires_grad_()
    y = weight_gradients(x, column(0.0, 1.0, 2.5))
    assert torch.equal(y, x)
    (slope,) = torch.autograd.grad((y * column(1, 2, 3)).sum(), x)
    assert slope.tolist() == [0.0, 2.0, 7.5]


def test_per_trajectory_and_over_groups():
    x, owner = column(1, 2, 3, 4), torch.tensor([0, 0, 2, 2])
    assert per_trajectory(x, owner, 3, "sum").tolist() == [3.0, 0.0, 7.0]
    assert per_trajectory(x, owner, 3).tolist() == [1.5, 0.0, 3.5]
    group, where = torch.tensor([0, 0, 1, 1, 1]), mask(1, 1, 0, 1, 1)
    assert float(over_groups(column(5, 5, 9, 7, 7), group, where)) == pytest.approx(12.0)
    assert n_groups(group, where) == 2 and n_groups(group, ~where) == 1 and n_groups(group, mask(0, 0, 0, 0, 0)) == 1


def test_who_counts_and_what_a_label_is():
    forest = forest_of(
        [("a", 2, 1), ("a", 2, 0, {"trainable": False}), ("a", 2, 0), ("a", 2, 1, {"reward": None}), ("b", 1, 0)]
    )
    assert counted_trajectories(forest).tolist() == [True, False, True, False, True]
    good, bad = labels(forest, None, "x")
    assert good.tolist() == [True] + [False] * 4 and bad.tolist() == [False, False, True, False, True]
    nobody = forest.replace(success=forest.success * torch.nan)
    with pytest.raises(GxpoError, match="x learns from verdicts, and 3 of 3 trajectories have none"):
        labels(nobody, None, "x")
    assert labels(nobody, 0.0, "x")[0].tolist() == [True, False, True, False, True]


def test_a_success_may_miss_its_bound_by_rounding():
    forest = forest_of([("a", 1, 1, {"reward": 0.7 + 0.2 + 0.1}), ("a", 1, 1, {"reward": 0.99})])
    assert float(forest.outcome[0]) < 1.0
    assert labels(forest, 1.0, "x")[0].tolist() == [True, False]


def test_contrasted_groups_have_a_compared_one_of_each():
    group = torch.tensor([0, 0, 0, 1, 1, 2, 2])
    good, compared = mask(1, 0, 0, 1, 1, 1, 0), mask(1, 1, 0, 1, 1, 1, 0)
    bad = mask(0, 1, 1, 0, 0, 0, 1)
    assert is_contrasted(group, good, bad, compared).tolist() == [True, True, True, False, False, False, False]


def test_tokens_are_aggregated_over_who_counts():
    """Four trained tokens in two trajectories count; the unscored and the untrained are in no denominator."""
    forest = forest_of([("a", 1, 1), ("a", 3, 0), ("a", 2, 1, {"reward": None}), ("b", 2, 0, {"trainable": False})])
    assert token_coefficients(forest, "token_mean", None).tolist() == [0.25] * 4 + [0.0] * 4
    assert token_coefficients(forest, "sequence_mean", None).tolist() == pytest.approx(
        [1 / 2] + [1 / 6] * 3 + [0.0] * 4
    )
    assert token_coefficients(forest, "sequence_sum", 5.0).tolist() == pytest.approx([0.1] * 4 + [0.0] * 4)


def test_approx_kl_is_never_negative():
    assert approx_kl(column(0, 0)) == 0.0
    assert approx_kl(column(math.log(2), -math.log(2))) == pytest.approx(((2 - 1) + (0.5 - 1)) / 2)
