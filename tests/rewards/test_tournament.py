"""Tournaments: brackets and places worked out by hand, ties that pay all alike, byes, and the number of matches."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gxpo.rewards.tournament import KINDS, bracket, matches, mid_ranks, pairings, rewards


def played(kind, n, share):
    """Rounds of a tournament in which i has share(i, j) of a match with j."""
    rounds = []
    while due := pairings(kind, n, rounds):
        rounds.append({(i, j): share(i, j) for i, j in due})
    return rounds


def test_the_best_seeds_meet_late_and_have_the_byes():
    assert bracket(8) == [0, 7, 3, 4, 1, 6, 2, 5]
    assert bracket(6) == [0, None, 3, 4, 1, None, 2, 5]


def test_a_knockout_by_hand():
    # strengths 3 > 1 > 0 > 2. Seeding against 0: 3 and 1 win, 2 loses, and 0 has (0 + 0 + 1) / 3; seeds 1, 3, 0, 2
    strength = [2, 3, 1, 4]
    rounds = played("single_elim", 4, lambda i, j: float(strength[i] > strength[j]))
    assert [list(r) for r in rounds] == [[(1, 0), (2, 0), (3, 0)], [(1, 2), (3, 0)], [(1, 3)]]
    # 3 is champion; 1 loses the final; 0 and 2 the semifinals: 0 has one win in four matches, 2 none
    assert rewards("single_elim", 4, rounds) == pytest.approx([1 / 3, 2 / 3, 0, 1])


def test_twice_beaten_is_out():
    strength = [4, 3, 2, 1]
    rounds = played("double_elim", 4, lambda i, j: float(strength[i] > strength[j]))
    met = [[[0, 1], [2, 3]], [[0, 2], [1, 3]], [[1, 2]], [[0, 1]]]  # 1 comes back, and loses the final
    assert [sorted(map(sorted, r)) for r in rounds] == met
    assert rewards("double_elim", 4, rounds) == pytest.approx([1, 2 / 3, 1 / 3, 0])


def test_places_of_the_other_kinds_by_hand():
    # round robin: 0 beats all, 1 and 2 tie: ranks 0, 1.5, 1.5
    assert rewards("round_robin", 3, [{(0, 1): 1.0, (0, 2): 1.0, (1, 2): 0.5}]) == [1.0, 0.25, 0.25]
    # anchor: 1 has 1, 2 has 0, and 0 the mean of 0 and 1: places 1, 0, 2
    assert rewards("anchor", 3, [{(1, 0): 1.0, (2, 0): 0.0}]) == [0.5, 1.0, 0.0]
    # Swiss, four: 0-1, 2-3, then winners and losers. 0: 2 wins, 2: 1, 1: 1, 3: none. Opponents of 2: 3 (0) and 0 (1),
    # of 1: 0 (1) and 3 (0): the same, so 1 and 2 share the ranks 1 and 2
    rounds = played("swiss", 4, lambda i, j: float(i < j))
    assert [list(r) for r in rounds] == [[(0, 1), (2, 3)], [(0, 2), (1, 3)]]
    assert rewards("swiss", 4, rounds) == [1.0, 0.5, 0.5, 0.0]
    assert mid_ranks([(1.0,), (1.0,), (1.0,)]) == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [2, 3, 5, 6, 8])
def test_where_all_matches_are_ties_all_are_paid_a_half(kind, n):
    rounds = played(kind, n, lambda i, j: 0.5)
    assert rewards(kind, n, rounds) == [0.5] * n


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(sorted(KINDS)), st.permutations(range(7)), st.integers(2, 7))
def test_the_best_has_the_most_and_matches_are_as_planned(kind, order, n):
    strength = order[:n]
    rounds = played(kind, n, lambda i, j: float(strength[i] > strength[j]))
    paid = rewards(kind, n, rounds)
    assert paid[strength.index(max(strength))] == max(paid) and min(paid) >= 0
    assert sum(len(r) for r in rounds) <= matches(kind, n)
    if kind not in ("all", "first"):
        assert sum(paid) == pytest.approx(n / 2)  # mid-ranks


@pytest.mark.parametrize("kind", KINDS)
def test_an_attempt_without_a_known_match_has_no_reward(kind):
    rounds = played(kind, 3, lambda i, j: math.nan if 2 in (i, j) else float(i < j))
    paid = rewards(kind, 3, rounds)
    assert math.isnan(paid[2]) and not math.isnan(paid[0])


def test_how_many_matches_eight_attempts_need():
    assert {kind: matches(kind, 8) for kind in KINDS} == {
        "all": 28, "first": 7, "round_robin": 28, "anchor": 7, "single_elim": 14, "double_elim": 14, "swiss": 12,
    }  # fmt: skip
    assert pairings("swiss", 1, []) == [] and matches("all", 1) == 0
