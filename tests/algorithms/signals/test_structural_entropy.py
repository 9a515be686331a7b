"""R^3: truncated answers ranked by a high peak over a low mean of their entropies."""

from __future__ import annotations

import itertools
from statistics import fmean

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gxpo
from gxpo.algorithms.credit import advantage
from gxpo.algorithms.credit.baselines import unfinished_by_rank
from gxpo.algorithms.signals.policy_outputs import dominance_rank, structural_entropy
from gxpo.forest.forest import Forest

CARD = [(2.0, 0.5), (1.5, 0.6), (2.2, 0.7), (1.0, 0.4)]


def ranks(pairs: list[tuple[float, float]], group: list[int] | None = None, where: list[bool] | None = None) -> list:
    peak, mean = (torch.tensor([p[i] for p in pairs], dtype=torch.float64) for i in (0, 1))
    ids = torch.tensor(group or [0] * len(pairs))
    counts = torch.ones_like(ids).bool() if where is None else torch.tensor(where)
    return dominance_rank(peak, mean, ids, counts).tolist()


def test_the_cards_numbers_with_mid_ranks() -> None:
    # the first dominates the second alone: 1, 0, 0, 0. By sort order 1, .666667, .333333, 0: the three of 0 share 1/3
    assert ranks(CARD) == pytest.approx([1.0, 1 / 3, 1 / 3, 1 / 3])


def test_who_does_not_count_and_who_is_alone_has_nothing() -> None:
    assert ranks(CARD, where=[True, True, False, False]) == [1.0, 0.0, 0.0, 0.0]
    assert ranks(CARD, group=[0, 1, 2, -1]) == [0.0] * 4
    assert ranks([(1.0, 0.5), (1.0 + 1e-7, 0.5 - 1e-7)]) == [0.5, 0.5]  # equal but for rounding


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from([1.0, 2.0, 3.0]), st.sampled_from([0.25, 0.5, 0.75])), min_size=2, max_size=7)
)
def test_it_is_what_a_loop_says(pairs: list[tuple[float, float]]) -> None:
    n = len(pairs)
    wins = [sum(p > q and m < k for q, k in pairs) for p, m in pairs]
    below = [sum(w > v for v in wins) + (sum(w == v for v in wins) - 1) / 2 for w in wins]
    actual = ranks(pairs)
    assert actual == pytest.approx([b / (n - 1) for b in below]) and sum(actual) == pytest.approx(n / 2)
    monotone = ranks([(p**3, m**3) for p, m in pairs])
    assert monotone == pytest.approx(actual)


def answers(truncated: list[bool], success: list[float], lengths: tuple[int, ...] = (4, 4, 4, 4)) -> Forest:
    forest = Forest.from_completions([[1]], [[[2] * n for n in lengths]], rewards=[success], truncated=truncated)
    return forest.replace(success=torch.tensor(success, dtype=torch.float64))


def test_the_peak_is_the_mean_of_the_largest_share() -> None:
    forest = answers([True, True, True, False], [0.0] * 4, (5, 5, 2, 5))
    entropy = torch.tensor([0.1, 3.0, 0.1, 0.1, 0.1, 0.9, 1.0, 0.9, 0.9, 0.9, 2.0, 2.0, 9.0, 0.0, 0.0, 0.0, 0.0])
    # peak of one token: 3.0, 1.0, 2.0; means .68, .92, 2.0: the first dominates both; two and three nobody
    assert structural_entropy(forest, entropy, share=0.2).tolist() == pytest.approx([1.0, 0.25, 0.25, 0.0])
    # half of five, two tokens: 1.55, 0.95, and of two tokens one: 2.0. The first dominates the second alone
    assert structural_entropy(forest, entropy, share=0.5).tolist() == pytest.approx([1.0, 0.25, 0.25, 0.0])
    full_structural_entropy = structural_entropy(
        forest, entropy, share=1.0
    )  # peak and mean are one: nobody dominates anybody
    assert full_structural_entropy.tolist() == pytest.approx([0.5, 0.5, 0.5, 0.0])


def test_truncated_wrong_answers_rank_below_right_ones() -> None:
    part = advantage(unfinished_by_rank, most=0.1, scale="none")
    rank = torch.tensor([1.0, 1 / 3, 1 / 3, 1 / 3], dtype=torch.float64)
    for truncated, success, expected in (
        ([True] * 4, [0.0] * 4, [0.1, 0.1 / 3, 0.1 / 3, 0.1 / 3]),
        ([True, True, False, True], [0.0, 1.0, 0.0, 1.0], [0.1, 1.0, 0.0, 1.0]),
        ([False] * 4, [0.0] * 4, [0.0] * 4),
    ):
        forest = answers(truncated, success)
        actual = part(forest, {"structural_rank": rank}, 0)[::4].tolist()
        assert actual == pytest.approx([e - fmean(expected) for e in expected], abs=1e-12)
        assert all(a > b for (a, s), (b, t) in itertools.product(zip(actual, success, strict=True), repeat=2) if s > t)


def test_below_zero_running_on_earns_less_than_a_wrong_end() -> None:
    rank = torch.tensor([1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    forest = answers([True, True, False, False], [0.0, 0.0, 0.0, 1.0])
    for options, expected in (({}, [0.1, 0.0, 0.0, 1.0]), ({"least": -0.1, "most": 0.0}, [0.0, -0.1, 0.0, 1.0])):
        actual = advantage(unfinished_by_rank, scale="none", **options)(forest, {"structural_rank": rank}, 0)[::4]
        assert actual.tolist() == pytest.approx([e - fmean(expected) for e in expected], abs=1e-12)


@pytest.mark.filterwarnings("ignore:reward")
def test_a_run_whose_answers_are_all_cut_off_learns(tmp_path) -> None:
    keys = {"tasks.per_step": 2, "rollout.group_size": 4, "sampling.max_new_tokens": 3, "eval.tasks": 1}
    run = gxpo.train("tiny:cold", "arithmetic", "r3", 1, lambda completion: 0.0, out=tmp_path / "run", set=keys)
    assert run.metrics[0]["grad_norm"] > 0 and run.metrics[0]["truncated_rate"] > 0.5
