"""Tournaments within a group of attempts: the matches of each round, and the reward of each place.

Pure functions of n, the number of attempts, and of the results so far: a list of rounds, each {(i, j): share}, where
`share` is what i has of the match, 1 won, 1/2 tied, 0 lost, nan unknown. Attempts are 0 to n - 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from itertools import combinations

Match = tuple[int, int]
Round = Mapping[Match, float]
Key = tuple[Fraction | float, ...]  # of an attempt's place, compared exactly: equal results are equal keys


def pairings(compare: str, n: int, rounds: Sequence[Round]) -> list[Match]:
    """Matches of the next round; [] where the tournament is over.

    compare  "all", "round_robin"  each against each
             "first", "anchor"     all against the first
             "single_elim"  first all against the first, which seeds a knockout bracket; byes are the best seeds'
             "double_elim"  who loses twice is out; the last unbeaten one and the last other one meet once
             "swiss"        ceil(log2 n) rounds of neighbours in the standings that have not met

    >>> pairings("single_elim", 4, [{(1, 0): 1.0, (2, 0): 0.0, (3, 0): 0.5}])
    [(1, 2), (0, 3)]
    """
    if n < 2:
        return []
    return KINDS[compare][0](n, rounds)


def rewards(compare: str, n: int, rounds: Sequence[Round]) -> list[float]:
    """Reward of each attempt, [n] in [0, 1]; nan for one without a known match.

    "all" and "first": the mean share of its matches, of the first what it has against all others. The others pay the
    place. By the share of matches won ("round_robin") or the mean share ("anchor"): 1 - rank / largest rank, a rank
    being the number of better attempts. By the share of matches won, then by the opponents' ("swiss"); by the round of
    the last defeat, then by mean share ("single_elim", "double_elim"), where one that goes out by a tie with an equal
    shares its place: 1 - rank / (n - 1), equal places sharing the mean of their ranks. Where all are equal, all have
    1/2.

    >>> rewards("round_robin", 3, [{(0, 1): 1.0, (0, 2): 1.0, (1, 2): 0.5}])
    [1.0, 0.0, 0.0]
    """
    shares = _shares(n, rounds)
    if compare in ("all", "first"):
        return [float(sum(s) / len(s)) if s else math.nan for s in shares]
    scored_rows = [i for i in range(n) if shares[i]]
    _, keys_of, payments = KINDS[compare]
    keys = keys_of(n, rounds)
    reward_by_attempt = [math.nan] * n
    for i, payment in zip(scored_rows, payments([keys[i] for i in scored_rows]), strict=True):
        reward_by_attempt[i] = payment
    return reward_by_attempt


def matches(compare: str, n: int) -> int:
    """Maximum number of matches of a tournament among n attempts.

    >>> {kind: matches(kind, 8) for kind in KINDS}["single_elim"], matches("all", 8), matches("swiss", 8)
    (14, 28, 12)
    """
    if n < 2:
        return 0
    max_matches = {"all": n * (n - 1) // 2, "first": n - 1, "single_elim": 2 * (n - 1), "double_elim": 2 * (n - 1)}
    max_matches |= {"round_robin": max_matches["all"], "anchor": n - 1, "swiss": n // 2 * _swiss_rounds(n)}
    return max_matches[compare]


def paid_by_mid_rank(keys: Sequence[Key]) -> list[float]:
    """Payments 1 - rank / (n - 1), equal keys sharing the mean of their ranks; 1/2 for a single one."""
    largest_rank = len(keys) - 1
    return [1.0 - rank / largest_rank if largest_rank else 0.5 for rank in mid_ranks(keys)]


def paid_by_least_rank(keys: Sequence[Key]) -> list[float]:
    """Payments 1 - rank / largest rank, equal keys sharing the least of their ranks; 1/2 where all are equal.

    >>> paid_by_least_rank([(3,), (1,), (3,), (2,)])
    [1.0, 0.0, 1.0, 0.33333333333333337]
    """
    ranks = [sum(k > key for k in keys) for key in keys]
    largest_rank = max(ranks, default=0)
    return [1.0 - rank / largest_rank if largest_rank else 0.5 for rank in ranks]


def mid_ranks(keys: Sequence[Key]) -> list[float]:
    """Rank of each key from 0, the largest first; equal keys share the mean of their ranks.

    >>> mid_ranks([(3.0,), (1.0,), (3.0,), (2.0,)])
    [0.5, 3.0, 0.5, 2.0]
    """
    return [sum(k > key for k in keys) + (sum(k == key for k in keys) - 1) / 2 for key in keys]


def bracket(n: int) -> list[int | None]:
    """Seeds of a knockout bracket in order, neighbours meeting first; None: nobody, so that the neighbour has a bye.

    >>> bracket(8), bracket(6)
    ([0, 7, 3, 4, 1, 6, 2, 5], [0, None, 3, 4, 1, None, 2, 5])
    """
    order = [0]
    while len(order) < n:
        order = [seed for s in order for seed in (s, 2 * len(order) - 1 - s)]
    return [seed if seed < n else None for seed in order]


def _shares(n: int, rounds: Iterable[Round]) -> list[list[Fraction]]:
    """Known shares of each attempt, in order."""
    shares: list[list[Fraction]] = [[] for _ in range(n)]
    for results in rounds:
        for (i, j), share in results.items():
            if not math.isnan(share):
                shares[i].append(Fraction(share))
                shares[j].append(1 - Fraction(share))
    return shares


def _means(n: int, rounds: Iterable[Round]) -> list[Fraction]:
    return [_mean(s) for s in _shares(n, rounds)]


def _mean(shares: Sequence[Fraction]) -> Fraction:
    """Exact mean, 1/2 of none: float sums of thirds depend on their order, so equal results would differ."""
    return sum(shares, Fraction(0)) / len(shares) if shares else Fraction(1, 2)


def _each(n: int, rounds: Sequence[Round]) -> list[Match]:
    return [] if rounds else list(combinations(range(n), 2))


def _against_first(n: int, rounds: Sequence[Round]) -> list[Match]:
    return [] if rounds else [(i, 0) for i in range(1, n)]


def _by_mean(n: int, rounds: Sequence[Round]) -> list[Key]:
    return [(m,) for m in _means(n, rounds)]


def _by_wins(n: int, rounds: Sequence[Round]) -> list[Key]:
    return [(w,) for w in _rates(n, rounds)]


# ---------------------------------------------------------------- knockout
class _Knockout:
    """State of a knockout while rounds are replayed. A tie goes to the better mean share, then to the first named."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.rounds: list[Round] = []
        self.round_of_exit: dict[int, int] = {}  # attempt -> round in which it went out
        self.undecided: list[tuple[int, int]] = []  # (out, in): nothing told the two apart

    def play(self, results: Round, lives: Mapping[int, int]) -> dict[int, int]:
        """Replay a round; return the lives left of each attempt that is still in."""
        self.rounds.append(results)
        means, lives_left = _means(self.n, self.rounds), dict(lives)
        for (i, j), share in results.items():
            # A drawn match goes to the one that has been better so far.
            lead = (0.0 if math.isnan(share) else share - 0.5) or means[i] - means[j]
            loser, winner = (i, j) if lead < 0 else (j, i)
            lives_left[loser] -= 1
            if not lives_left[loser]:
                del lives_left[loser]
                self.round_of_exit[loser] = len(self.rounds)
                self.undecided += [(loser, winner)] if lead == 0 else []
        return lives_left

    def keys(self) -> list[Key]:
        means = _means(self.n, self.rounds)
        keys: list[Key] = [(float(self.round_of_exit.get(i, math.inf)), means[i]) for i in range(self.n)]
        # Backwards, as a winner may itself have gone out undecided later: it passes its place on.
        for loser, winner in reversed(self.undecided):
            keys[loser] = keys[winner]
        return keys


def _single(n: int, rounds: Sequence[Round]) -> tuple[_Knockout, list[Match]]:
    """State of a single knockout after these rounds, and its next matches."""
    state = _Knockout(n)
    if not rounds:
        return state, _against_first(n, rounds)
    state.rounds.append(rounds[0])
    # The first round, all against the first, seeds the bracket; the other rounds are replayed through it.
    seeds = sorted(range(n), key=lambda i: -_means(n, rounds[:1])[i])
    entrants: list[int | None] = [None if seed is None else seeds[seed] for seed in bracket(n)]
    lives_left, next_round = dict.fromkeys(range(n), 1), 1
    while len(entrants) > 1:
        couples = list(zip(entrants[::2], entrants[1::2], strict=True))
        matches = [(i, j) for i, j in couples if i is not None and j is not None]
        if matches:
            if next_round == len(rounds):
                return state, matches
            lives_left, next_round = state.play(rounds[next_round], lives_left), next_round + 1
        # A seed without an opponent goes on by itself.
        entrants = [next((x for x in couple if x is not None and x in lives_left), None) for couple in couples]
    return state, []


def _double(n: int, rounds: Sequence[Round]) -> tuple[_Knockout, list[Match]]:
    """State of a double knockout after these rounds, and its next matches."""
    state, lives_left = _Knockout(n), dict.fromkeys(range(n), 2)
    for k in range(len(rounds) + 1):
        matches_played = [sum(i in match for r in rounds[:k] for match in r) for i in range(n)]
        # Unbeaten attempts meet each other, and so do those with one defeat, those with fewest matches first.
        pools = [
            sorted((i for i in lives_left if lives_left[i] == lives), key=lambda i: (matches_played[i], i))
            for lives in (2, 1)
        ]
        matches = [(a, b) for pool in pools for a, b in zip(pool[::2], pool[1::2], strict=False)]
        final = not matches and len(lives_left) == 2
        # The unbeaten meets the once beaten, in one match that decides.
        if final:
            matches, lives_left = [(pools[0][0], pools[1][0])], dict.fromkeys(lives_left, 1)
        if k == len(rounds) or not matches:
            return state, matches
        lives_left = state.play(rounds[k], lives_left)
    raise AssertionError("the last round returns")


# ---------------------------------------------------------------- Swiss system
def _swiss_rounds(n: int) -> int:
    return min(math.ceil(math.log2(n)), n - 1)


def _rates(n: int, rounds: Sequence[Round]) -> list[Fraction]:
    """Win rates: share of its matches that each attempt won, ties and unknown ones by half; a bye is no match."""
    scores: list[list[Fraction]] = [[] for _ in range(n)]
    for results in rounds:
        for (i, j), share in results.items():
            won = Fraction(1, 2) if math.isnan(share) or share == 0.5 else Fraction(share > 0.5)
            scores[i].append(won)
            scores[j].append(1 - won)
    return [_mean(s) for s in scores]


def _swiss(n: int, rounds: Sequence[Round]) -> list[Match]:
    if len(rounds) == _swiss_rounds(n):
        return []
    rates = _rates(n, rounds)
    # Nobody meets the same attempt twice, as long as there is another.
    played_pairs = {frozenset(match) for results in rounds for match in results}
    had_bye = [i for i in range(n) for results in rounds if not any(i in match for match in results)]
    standings = sorted(range(n), key=lambda i: (-rates[i], i))
    # With an odd number the last in the standings without a bye so far has one.
    if n % 2:
        standings.remove(next(i for i in reversed(standings) if i not in had_bye))
    pairs = []
    while standings:
        i = standings.pop(0)
        # Everybody else has been met: the next in the standings again.
        j = next((k for k in standings if frozenset((i, k)) not in played_pairs), standings[0])
        standings.remove(j)
        pairs.append((i, j))
    return pairs


def _by_rate(n: int, rounds: Sequence[Round]) -> list[Key]:
    """Swiss standings: win rate, then the mean win rate of the opponents, each counted once."""
    rates = _rates(n, rounds)
    opponents = [{sum(match) - i for results in rounds for match in results if i in match} for i in range(n)]
    return [(rates[i], _mean([rates[k] for k in opponents[i]])) for i in range(n)]


Kind = tuple[
    Callable[[int, Sequence[Round]], list[Match]],  # the matches of the next round
    Callable[[int, Sequence[Round]], list[Key]],  # the places
    Callable[[Sequence[Key]], list[float]],  # what the places are paid
]
KINDS: dict[str, Kind] = {
    "all": (_each, _by_mean, paid_by_mid_rank),
    "first": (_against_first, _by_mean, paid_by_mid_rank),
    "round_robin": (_each, _by_wins, paid_by_least_rank),
    "anchor": (_against_first, _by_mean, paid_by_least_rank),
    "single_elim": (
        lambda n, rounds: _single(n, rounds)[1],
        lambda n, rounds: _single(n, rounds)[0].keys(),
        paid_by_mid_rank,
    ),
    "double_elim": (
        lambda n, rounds: _double(n, rounds)[1],
        lambda n, rounds: _double(n, rounds)[0].keys(),
        paid_by_mid_rank,
    ),
    "swiss": (_swiss, _by_rate, paid_by_mid_rank),
}
