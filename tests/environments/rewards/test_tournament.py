"""Tournaments: brackets and places worked out by hand, ties that pay all alike, byes, and the number of matches."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gxpo.environments.rewards.tournament import KINDS, bracket, matches, mid_ranks, pairings, rewards


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
    # round robin: 0 beats all, 1 and 2 tie: ranks 0, 1, 1 of at most 1
    assert rewards("round_robin", 3, [{(0, 1): 1.0, (0, 2): 1.0, (1, 2): 0.5}]) == [1.0, 0.0, 0.0]
    # 0 beats all, 1 and 2 tie and beat 3: ranks 0, 1, 1, 3; a match half won in one order is won
    results = {(0, 1): 0.75, (0, 2): 1.0, (0, 3): 1.0, (1, 2): 0.5, (1, 3): 0.75, (2, 3): 1.0}
    assert rewards("round_robin", 4, [results]) == pytest.approx([1, 2 / 3, 2 / 3, 0])
    # anchor: 1 has 1, 2 has 0, and 0 the mean of 0 and 1: places 1, 0, 2
    assert rewards("anchor", 3, [{(1, 0): 1.0, (2, 0): 0.0}]) == [0.5, 1.0, 0.0]
    # Swiss, four: 0-1, 2-3, then winners and losers. 0: 2 wins, 2: 1, 1: 1, 3: none. Opponents of 2: 3 (0) and 0 (1),
    # of 1: 0 (1) and 3 (0): the same, so 1 and 2 share the ranks 1 and 2
    rounds = played("swiss", 4, lambda i, j: float(i < j))
    assert [list(r) for r in rounds] == [[(0, 1), (2, 3)], [(0, 2), (1, 3)]]
    assert rewards("swiss", 4, rounds) == [1.0, 0.5, 0.5, 0.0]
    assert mid_ranks([(1.0,), (1.0,), (1.0,)]) == [1.0, 1.0, 1.0]
    # anchor: 1 and 2 have 1, 3 has 1/2, 0 the mean of 0, 0 and 1/2: ranks 3, 0, 0, 2
    assert rewards("anchor", 4, [{(1, 0): 1.0, (2, 0): 1.0, (3, 0): 0.5}]) == pytest.approx([0, 1, 1, 1 / 3])


def test_equal_results_of_a_swiss_tournament_are_one_place():
    """The code's points and sums over opponents, restated; 600 orders of eight, of which one in three has ties."""
    draw, wrong = random.Random(0), []
    for trial in range(600):
        strength = [draw.randrange(3) for _ in range(8)] if trial % 3 == 0 else draw.sample(range(8), 8)
        rounds = played("swiss", 8, lambda i, j, s=strength: 0.5 + 0.5 * ((s[i] > s[j]) - (s[i] < s[j])))
        points, met = [0.0] * 8, [set() for _ in range(8)]
        for (i, j), share in (m for r in rounds for m in r.items()):
            points[i], points[j] = points[i] + share, points[j] + 1 - share
            met[i].add(j), met[j].add(i)
        if any(len(m) < 3 for m in met):
            continue  # two that met again
        order = sorted(range(8), key=lambda i: (points[i], sum(points[k] for k in met[i])), reverse=True)
        place = {i: (points[i], sum(points[k] for k in met[i])) for i in range(8)}
        paid = [
            sum(7 - k for k in range(8) if place[order[k]] == place[i])
            / sum(place[k] == place[i] for k in range(8))
            / 7
            for i in range(8)
        ]
        if rewards("swiss", 8, rounds) != pytest.approx(paid, abs=1e-12):
            wrong.append((strength, paid, rewards("swiss", 8, rounds)))
    assert not wrong, f"{len(wrong)}, the first {wrong[0]}"


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
    if kind not in ("all", "first", "round_robin", "anchor"):
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
