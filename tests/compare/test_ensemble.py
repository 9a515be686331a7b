"""Focal diversity against the numbers of MARL-Focal's card, and its ends."""

import pytest

from gxpo.compare.ensemble import best_subset, focal_diversity, generalized_diversity

CARD = [[1, 1, 0, 0, 1, 0], [1, 0, 0, 1, 1, 0], [1, 0, 1, 1, 0, 0]]


def test_the_cards_numbers():
    # model 0 errs on tasks 2, 3, 5, where 2, 1 and 3 err: p1 = (2 + 1 + 3) / 9, p2 = (2 + 0 + 6) / 18: 1 - 4/9 / (2/3)
    per_model = [
        generalized_diversity([[row[t] for t in tasks] for row in CARD]) for tasks in ((2, 3, 5), (1, 2, 5), (1, 4, 5))
    ]
    assert per_model == pytest.approx([0.333333, 0.285714, 0.333333], abs=1e-6)
    assert focal_diversity(CARD) == pytest.approx(0.31746, abs=1e-5)


def test_errors_that_never_and_always_coincide():
    assert focal_diversity([[0, 1, 1], [1, 0, 1], [1, 1, 0]]) == 1.0
    assert focal_diversity([[0, 1, 0]] * 3) == 0.0 and focal_diversity([[1, 1]] * 2) == 1.0


def test_the_subset_has_no_two_of_the_same():
    assert best_subset([CARD[0], CARD[0], [0, 0, 1, 1, 1, 1]], 2, weight=1.0) == (0, 2)
    assert best_subset([[1, 1, 1], [1, 1, 0], [0, 0, 0]], 2, weight=0.0) == (0, 1)
    with pytest.raises(ValueError, match="from 2 to 3"):
        best_subset(CARD, 4)
    with pytest.raises(ValueError, match="same tasks"):
        focal_diversity([[1], [1, 0]])
