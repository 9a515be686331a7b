"""How a step's attempts are allotted, and what the prediction remembers."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from math import comb
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sampling.rollouts.replay_session import UNSCORED, StepSession, right_first, tasks, train
from tests.sampling.rollouts.resumed import check_resumed

import gxpo
from gxpo.base.errors import CheckpointError, ConfigError
from gxpo.sampling.rollouts.adaptive_group_size import AdaptiveGroupSize, allot, knapsack
from gxpo.sampling.rollouts.group_values import failures, mean_error, mean_error_by_variance, mixed, mixed_gain
from gxpo.sampling.rollouts.rounds import Independent


# ---------------------------------------------------------------- what is worth how much
def test_the_cards_numbers() -> None:
    # p = .5: 2 * .5 * .5, 4 * .5 * .875, 8 * .5 * (1 - 1 / 128); p = .1: 2 * .9 * .1, 3 * .9 * .19, ...
    assert [failures(n, 0.5) for n in (2, 4, 8)] == pytest.approx([0.5, 1.75, 3.96875])
    actual = [failures(n, 0.1) for n in (2, 3, 4, 8)]
    assert actual == pytest.approx([0.18, 0.513, 0.9756, 3.756262], abs=1e-6)


@given(st.integers(1, 9), st.floats(0, 1))
def test_it_is_the_expected_number_of_failures_of_a_mixed_group(n: int, p: float) -> None:
    expected = sum(comb(n, k) * p**k * (1 - p) ** (n - k) * (n - k) for k in range(1, n + 1))
    assert failures(n, p) == pytest.approx(expected, abs=1e-12)


rates = st.lists(st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.9, 1.0]), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(rates, st.integers(0, 12), st.integers(1, 3), st.integers(3, 8))
def test_it_equals_a_loop_over_all_tasks(p: list[float], more: int, least: int, most: int) -> None:
    budget = least * len(p) + more
    sizes = [least] * len(p)
    for _ in range(more):
        gains = [
            (failures(n + 1, x) - failures(n, x), -n, -i)
            for i, (n, x) in enumerate(zip(sizes, p, strict=True))
            if n < most
        ]
        if gains:
            sizes[-max(gains)[2]] += 1
    actual = allot(p, budget, least, most)
    assert actual == sizes and sum(actual) == min(budget, most * len(p))
    assert min(actual) >= least and max(actual) <= most


def test_where_the_gains_fall_greedy_is_the_best_there_is() -> None:
    p = [0.5, 0.6, 0.8]
    best = max(
        (n for n in itertools.product(range(2, 9), repeat=3) if sum(n) == 12),
        key=lambda n: sum(failures(k, x) for k, x in zip(n, p, strict=True)),
    )
    assert tuple(allot(p, 12, 2, 8)) == best
    with pytest.raises(ValueError, match="need more than 3"):
        allot(p, 3, 2)


# ---------------------------------------------------------------- other values, and the exact sum
def test_the_knapsack_card() -> None:
    """p .1 .5 .9, 12 rollouts of at least 2: (5, 5, 2), worth .151977 against .140317 of four each."""
    p = [0.1, 0.5, 0.9]
    assert allot(p, 12, value=mixed_gain) == knapsack(p, 12, value=mixed_gain) == [5, 5, 2]
    worth = [sum(mixed_gain(n, x) for n, x in zip(sizes, p, strict=True)) for sizes in ([5, 5, 2], [4, 4, 4])]
    assert worth == pytest.approx([0.151977, 0.140317], abs=1e-6)
    # p (1 - p)^2, where a mixed group is all but sure
    assert [mixed_gain(10**6, x) for x in (0.1, 0.3, 0.5, 0.9)] == pytest.approx([0.081, 0.147, 0.125, 0.009])
    assert [mixed(n, 0.1) for n in (2, 4, 8, 16)] == pytest.approx([0.18, 0.3438, 0.569533, 0.814698], abs=1e-6)
    assert mixed(230, 0.01) >= 0.9 > mixed(229, 0.01)


def test_errors_of_means_are_least_in_proportion_to_the_std() -> None:
    """CurES: stds .5 and .433013 of rates .5 and .25 share 28 attempts as 15 and 13; variances as 16 and 12, 4 to 3."""
    assert allot([0.5, 0.25], 28, value=mean_error) == [15, 13]
    assert allot([0.5, 0.25], 28, value=mean_error_by_variance) == [16, 12]
    assert allot([0.0, 0.5, 1.0], 12, value=mean_error) == [2, 8, 2]


def test_cures_allots_by_the_rates_that_it_states() -> None:
    """0, 4 and 8 right of 8: (1 + right) / 10 = .1, .5, .9, stds .3, .5, .3, of 24 attempts 6.55, 10.91 and 6.55."""
    part = gxpo.method("cures").rollout
    part.memory.add({"none": [0.0] * 8, "half": [1.0] * 4 + [0.0] * 4, "all": [1.0] * 8})
    assert part.predict(["none", "half", "all", "new"]) == pytest.approx([0.1, 0.5, 0.9, 0.5])
    session = StepSession(right_first(1), step=1)
    sizes = Counter(part.grow(tasks("none", "half", "all"), session).group)
    assert sizes == {"s1/none": 7, "s1/half": 11, "s1/all": 6}


@settings(max_examples=40, deadline=None)
@given(rates, st.integers(0, 8), st.integers(1, 2), st.integers(2, 6), st.sampled_from([failures, mixed_gain]))
def test_knapsack_is_the_best_of_all_sizes(p: list[float], more: int, least: int, most: int, value: Any) -> None:
    p = p[:3]
    budget = min(least * len(p) + more, most * len(p))
    sums = [
        sum(value(k, x) for k, x in zip(n, p, strict=True))
        for n in itertools.product(range(least, most + 1), repeat=len(p))
        if sum(n) == budget
    ]
    actual = knapsack(p, least * len(p) + more, least, most, value)
    assert sum(actual) == budget and least <= min(actual) and max(actual) <= most
    assert sum(value(k, x) for k, x in zip(actual, p, strict=True)) == pytest.approx(max(sums), abs=1e-12)


def test_exact_knapsack_funds_a_hard_task_that_greedy_skips() -> None:
    assert allot([0.01, 0.9], 24, 2, 22) == [2, 22] and knapsack([0.01, 0.9], 24, 2, 22) == [22, 2]
    part = AdaptiveGroupSize(12, max_attempts=22, solver="knapsack")
    part.memory.rows.update({"hard": [0.5, 99.0], "easy": [89.0, 99.0]})
    session = StepSession(right_first(1), step=1)
    assert Counter(part.grow(tasks("hard", "easy"), session).group) == {"s1/hard": 22, "s1/easy": 2}
    with pytest.raises(ValueError, match="need more than 3"):
        knapsack([0.5, 0.5], 3)


# ---------------------------------------------------------------- the part
def test_a_step_that_knows_nothing_is_independent_attempts() -> None:
    session, plain = StepSession(right_first(1)), StepSession(right_first(1))
    forest = session.score(AdaptiveGroupSize(4).grow(tasks("a", "b"), session))
    assert forest.info == [{"predicted": 0.5}] * 8
    same = plain.score(Independent(4).grow(tasks("a", "b"), plain))
    assert forest.replace(info=[{} for _ in forest.info]).to_records() == same.to_records()


def test_attempts_go_from_what_is_always_solved_to_what_is_not() -> None:
    part = AdaptiveGroupSize(4, prior=0.5)
    session = StepSession(lambda s: int(s.task == "right" or s.attempt % 2), step=1)
    train(part, ["right", "mixed"], session)
    # 4 of 4 and 2 of 4, m = 6 / 8: (4 + .375) / 4.5, (2 + .375) / 4.5
    assert part.predict(["right", "mixed", "new"]) == pytest.approx([0.972222, 0.527778, 0.75], abs=1e-6)
    session.step = 2
    forest = train(part, ["right", "mixed"], session)
    assert forest.group == ["s2/right"] * 2 + ["s2/mixed"] * 6 and session.budget.rollouts == 16
    # discounted by .8: (3.2 + 2) / (3.2 + 2) of right; (1.6 + 3) / (3.2 + 6) of mixed
    assert part.memory.rows == {"right": pytest.approx([5.2, 5.2]), "mixed": pytest.approx([4.6, 9.2])}


def test_unscored_verdicts_are_ignored_and_repeated_tasks_count() -> None:
    part = AdaptiveGroupSize(3, discount=0.0)
    session = StepSession(lambda s: (1, 0, UNSCORED)[s.attempt], step=1)
    forest = train(part, ["a", "a"], session)
    assert forest.group == ["s1/a"] * 3 + ["s1/a#1"] * 3 and part.memory.rows == {"a": [2.0, 4.0]}
    train(part, ["b"], StepSession(lambda s: UNSCORED, step=2))
    assert set(part.memory.rows) == {"a"}


def test_the_mean_is_the_group_size_whatever_is_predicted() -> None:
    rng, part = random.Random(1), AdaptiveGroupSize(5, min_attempts=1, max_attempts=9)
    for step in range(1, 6):
        names = [rng.choice("abcd") + str(i) for i in range(4)]
        forest = train(part, names, StepSession(lambda s: int(ord(s.task[0]) % 3 > s.attempt), step=step))
        assert forest.n_trajectories == 20
        assert all(1 <= forest.group.count(g) <= 9 for g in forest.group)


def test_read_back_it_allots_the_same() -> None:
    part, other = AdaptiveGroupSize(4), AdaptiveGroupSize(4)
    train(part, ["a", "b", "c"], StepSession(lambda s: int(s.attempt < "abc".index(s.task)), step=1))
    assert part == other and other.memory.rows == {} and "memory" not in repr(part)
    other.load_state_dict(json.loads(json.dumps(part.state_dict())))
    for step in (2, 3):
        script = right_first(step)
        one, two = (train(p, ["c", "a", "b"], StepSession(script, step=step)) for p in (part, other))
        assert one.to_records() == two.to_records() and part.state_dict() == other.state_dict()
    with pytest.raises(CheckpointError, match="'tasks'"):
        other.load_state_dict({"rows": {}})


@pytest.mark.parametrize(
    ("wrong", "key"),
    [
        ({"group_size": 1}, "rollout.min_attempts"),
        ({"group_size": 200}, "rollout.max_attempts"),
        ({"min_attempts": 0}, "rollout.min_attempts"),
        ({"discount": 2.0}, "rollout.discount"),
        ({"prior": 0.0}, "rollout.prior"),
        ({"value": "failure"}, "did you mean 'failures'"),
        ({"value": lambda rate: rate}, r"must be a function of \(n, rate\)"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        AdaptiveGroupSize(**wrong)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:reward")
def test_a_run_resumed_from_the_middle_is_the_run_never_stopped(tmp_path: Path) -> None:
    rows = check_resumed("v0", tmp_path, '"tasks"')
    assert [row["trajectories"] for row in rows] == [12] * 5
