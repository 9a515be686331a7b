"""Columns that weight functions read: places, scopes, who counts, scores on either axis, and what a weight needs."""

from __future__ import annotations

import pytest
import torch

from gxpo.algorithms.weighting import TokenWeight
from gxpo.algorithms.weighting.columns import Columns
from gxpo.forest.forest import Forest

# trajectory 0 has two tokens, the others one; trajectory 2 is a group of its own
FOREST = Forest.from_completions([[1], [9]], [[[2, 3], [4]], [[5]]], [1.0, 0.0, 1.0])
CREDIT = torch.tensor([3.0, 0.0, 0.0, -1.0], dtype=torch.float64)


def columns(forest: Forest = FOREST, **settings) -> Columns:
    return Columns(forest, CREDIT, {}, **settings)


def test_places_are_counted_within_a_trajectory():
    assert columns().of("place", "P").tolist() == [0, 1, 0, 0]


def test_the_advantage_of_a_trajectory_is_the_mean_of_its_tokens():
    assert columns().of("credit", "P").tolist() == [3, 0, 0, -1]
    assert columns().of("credit", "R").tolist() == [1.5, 0, -1]


def test_moved_trajectories_have_a_token_with_an_advantage():
    assert columns().of("moved", "R").tolist() == [True, False, True]
    assert columns().of("moved", "P").tolist() == [True, True, False, True]


def test_credited_columns_hold_tokens_with_an_advantage_alone():
    assert columns(credited=True).entries.tolist() == [0, 3]
    assert columns(credited=True).of("place", "P").tolist() == [0, 0]


@pytest.mark.parametrize(
    ("scope", "expected"), [("batch", [0, 0, 0, 0]), ("group", [0, 0, 0, 1]), ("trajectory", [0, 0, 1, 2])]
)
def test_scopes_are_ids_of_what_is_compared(scope, expected):
    assert columns(scope=scope).of("scope", "P").tolist() == expected


def test_uncompared_trajectories_count_in_trajectory_scope_alone():
    forest = FOREST.replace(compared=torch.tensor([True, False, True]))
    assert columns(forest, scope="group").of("counts", "P").tolist() == [True, True, False, True]
    assert columns(forest, scope="trajectory").of("counts", "P").tolist() == [True] * 4


def test_scores_broadcast_to_tokens_and_average_over_rows():
    assert columns().score_values("size", "P").tolist() == [2, 2, 2, 1]  # a score of groups
    assert columns().score_values("position", "R").tolist() == [0.5, 0, 0]  # a score of tokens: 0 and 1 of the first


def test_a_weight_needs_the_signals_behind_its_scores():
    assert TokenWeight("perplexity", "between").needs == ("reference_logprob",)
    assert TokenWeight("entropy").needs == ("entropy",)
    assert TokenWeight("credit").needs == ()
