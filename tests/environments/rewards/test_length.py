"""Length rewards: linear, triangle and inverse penalties, and DAPO's soft overlong punishment."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.environments.rewards.shapes import shape

import gxpo
from gxpo.algorithms.credit import group_relative
from gxpo.base.errors import ConfigError
from gxpo.environments.rewards.length import Length, Overlong, linear_penalty, overlong_penalty, triangle
from gxpo.environments.rewards.outcomes import length_relative
from gxpo.forest.forest import Forest

LengthRelative = shape("length_relative")

ROWS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(1, 9), st.booleans(), st.booleans()), min_size=1, max_size=10
)


def grown(rows):
    """(group, tokens, right, compared); right None: unscored."""
    return Forest.from_records(
        [
            {"schema": "gxpo.rollouts/1", "group": g, "id": str(i), "prompt": [1], "turns": [{"action": [2] * n}],
             "reward": None if right is None else float(right), "success": right, "compared": compared}
            for i, (g, n, right, compared) in enumerate(rows)
        ]
    )  # fmt: skip


def test_the_numbers_of_lc_r1():
    # lengths 100 200 400 300, the last wrong; longest correct 400; the code gives all rows 1 - L / 400:
    # .75 .5 0 .25, so here, less 1: -.25 -.5 -1 -.75. Rewards 2 2 2 1 and the mean alone: the same advantages
    forest = grown([("g", n, right, True) for n, right in ((100, True), (200, True), (400, True), (300, False))])
    value = Length(coef=1.0, scale="longest", answers="all")(forest)["length"]
    assert value.tolist() == pytest.approx([-0.25, -0.5, -1, -0.75])
    total = torch.tensor([2.0, 2, 2, 1]) + value
    credit = group_relative(total, torch.zeros(4).long(), scale="none")
    assert credit.tolist() == pytest.approx([0.625, 0.375, -0.125, -0.875])
    paper = Length(coef=1.0, scale="longest")(forest)["length"]
    assert paper.tolist() == pytest.approx([-0.25, -0.5, -1, 0])


def test_linear_in_length_up_to_the_limit():
    # 3 of 12 tokens at coef .5: -.125; the wrong answer loses nothing unless all do
    forest = grown([("g", 3, True, True), ("g", 12, True, True), ("g", 6, False, True)])
    assert Length(max_length=12)(forest)["length"].tolist() == pytest.approx([-0.125, -0.5, 0])
    assert Length(answers="all", max_length=12)(forest)["length"].tolist() == pytest.approx([-0.125, -0.5, -0.25])
    assert linear_penalty(torch.tensor([5]), 10.0).dtype == torch.float64


def test_the_triangle_of_the_length_curriculum():
    # at budget 125.44: 100 / 125.44, 1 - 74.56 / 125.44, 0; B 256 with width 256: .5 1 .5 0
    assert triangle(torch.tensor([100, 200, 300]), 125.44).tolist() == pytest.approx([0.797194, 0.405612, 0], abs=1e-6)
    assert triangle(torch.tensor([128, 256, 384, 600]), 256.0, 256.0).tolist() == [0.5, 1, 0.5, 0]
    m = gxpo.method("length_curriculum").fill(max_length=600, total_steps=600)
    forest = grown([("g", 100, True, True), ("g", 200, False, True)])
    for step, first in ((1, 100 / 256), (301, 0.797194)):
        m.at(step)
        assert float(m.shaped(forest).outcome[0]) == pytest.approx(1 + 0.5 * first, abs=1e-6)
    assert float(m.shaped(forest).outcome[1]) == pytest.approx(0.5 * 0.405612, abs=1e-6)  # wrong ones are paid, too


def test_below_the_budget_longer_is_better():
    # right short .72, right at L .9, wrong at L .3, wrong short .12: mean .51, std .360555
    credit = group_relative(torch.tensor([0.72, 0.9, 0.3, 0.12]), torch.zeros(4).long())
    assert credit.tolist() == pytest.approx([0.580651, 1.078352, -0.580651, -1.078352], abs=1e-4)


def test_the_numbers_of_conciser():
    # L_max 3072, lengths 500 1000 3000: 1.837240 1.674479 1.023438 less the 1 that is the same for all
    part = gxpo.method("conciser").fill(max_length=3072)
    rows = [("g", 500, True, True), ("g", 1000, True, True), ("g", 3000, True, True)]
    assert part.shaped(grown(rows)).outcome.tolist() == pytest.approx([0.837240, 0.674479, 0.023438], abs=1e-6)
    rows[2] = ("g", 3000, False, True)
    assert part.shaped(grown(rows)).outcome.tolist() == [1, 1, 0]
    rows[2] = ("g", 3000, False, False)  # not compared: the others are all right
    assert part.shaped(grown(rows)).outcome.tolist() == pytest.approx([0.837240, 0.674479, 0], abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(ROWS, st.sampled_from(["limit", "longest"]), st.sampled_from(["correct", "all"]))
def test_it_equals_a_loop(rows, scale, of):
    forest, expected = grown(rows), []
    for g, n, right, _ in rows:
        longest = max((m for h, m, r, c in rows if h == g and r and c), default=0)
        over = 10 if scale == "limit" else longest
        loses = (right or of == "all") and over > 0
        expected.append(-0.7 * n / over if loses else 0.0)
    actual = Length(coef=0.7, scale=scale, answers=of, max_length=10)(forest)["length"]
    assert actual.tolist() == pytest.approx(expected)
    assert bool((actual <= 0).all())


def test_all_wrong_groups_earn_zero_and_bad_settings_are_refused():
    wrong = grown([("g", 3, False, True), ("g", 9, False, True)])
    assert not Length(max_length=9)(wrong)["length"].any()
    assert not Length(scale="longest", answers="all")(wrong)["length"].any()
    with pytest.raises(ConfigError, match="max_length is not set"):
        Length()(wrong)
    unknown = Forest.from_completions([[1]], [[[2]]], rewards=[[1.0]])
    for part in (Length(max_length=3), LengthRelative()):
        with pytest.raises(ConfigError, match="needs verdicts"):
            part(unknown)
    assert Length(answers="all", max_length=1)(unknown)["length"].tolist() == [-0.5]
    for settings_ in ({"coef": -1.0}, {"max_length": 0}):
        with pytest.raises(ConfigError, match="length"):
            Length(**settings_)


def test_grpo_leads_card():
    # correct lengths 100 200 300: mean 200, population std sqrt(20000 / 3) = 81.649658; z = -+1.224745
    # exp(.05 * 1.224745) = 1.063151, exp(-.05 * 1.224745) = .940600, wrong -1; with one degree of freedom z = -+1
    forest = grown([("g", 100, True, True), ("g", 200, True, True), ("g", 300, True, True), ("g", 150, False, True)])
    assert LengthRelative(ddof=0)(forest).tolist() == pytest.approx([1.063151, 1, 0.940600, -1], abs=1e-6)
    assert LengthRelative()(forest).tolist() == pytest.approx([1.051271, 1, 0.951229, -1], abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(ROWS)
def test_the_shaped_outcome_equals_a_loop(rows):
    expected = []
    for g, n, right, _ in rows:
        peers = [m for h, m, r, c in rows if h == g and r and c]
        mean = sum(peers) / len(peers) if peers else 0.0
        std = math.sqrt(sum((m - mean) ** 2 for m in peers) / (len(peers) - 1)) if len(peers) > 1 else 0.0
        z = (n - mean) / (std + 1e-6) if std > 0 else 0.0
        expected.append(math.exp(-0.05 * z) if right else -1.0)
    assert LengthRelative()(grown(rows)).tolist() == pytest.approx(expected, rel=1e-9)


def test_single_or_equal_lengths_earn_one_and_unscored_stay_so():
    forest = grown([("a", 7, True, True), ("a", 3, False, True), ("b", 4, True, True), ("b", 4, True, True),
                    ("b", 2, None, True)])  # fmt: skip
    value = LengthRelative()(forest)
    assert value[:4].tolist() == [1, -1, 1, 1] and value[4].isnan()


def test_shorter_is_better_among_correct_answers():
    length, correct = torch.arange(1, 20), torch.ones(19, dtype=torch.bool)
    value = length_relative(correct, length, torch.zeros(19).long(), correct, dict)
    assert bool((value.diff() < 0).all())


def test_the_parts_by_their_names():
    m = gxpo.method("grpo", {"reward.add.length.coef": 0.2}).fill(max_length=10, horizon=10.0)
    assert m.rewards["length"] == Length(0.2, max_length=10)


def test_the_papers_numbers() -> None:
    # limit 20480, buffer 4096, so it starts at 16384:
    # (17408 - 16384) / 4096 = .25; (18432 - 16384) / 4096 = .5; 4096 / 4096 = 1; beyond stays at 1
    length = torch.tensor([10000, 16000, 16384, 17408, 18432, 20480, 20481])
    assert overlong_penalty(length, 20480, 4096).tolist() == [0, 0, 0, -0.25, -0.5, -1, -1]
    assert overlong_penalty(length, 20480, 4096, factor=0.5).tolist() == [0, 0, 0, -0.125, -0.25, -0.5, -0.5]
    assert overlong_penalty(length, 20480, 4096).dtype == torch.float64


@given(st.integers(1, 1000), st.floats(0.01, 1.0), st.floats(0.0, 3.0), st.lists(st.integers(0, 1500), min_size=2))
def test_overlong_penalty_is_bounded_and_falls_with_length(
    limit: int, share: float, factor: float, lengths: list[int]
) -> None:
    values = overlong_penalty(torch.tensor(sorted(lengths)), limit, share * limit, factor)
    assert bool((values <= 0).all() and (values >= -factor).all() and (values.diff() <= 0).all())


def test_only_the_policys_own_tokens_count() -> None:
    def turn(observation: int, action: int) -> dict[str, list[int]]:
        return {"observation": [7] * observation, "action": [8] * action}

    head = {"schema": "gxpo.rollouts/1", "group": "g", "reward": 1.0}
    forest = Forest.from_records(
        [
            {**head, "id": "a", "prompt": [1] * 50, "turns": [turn(0, 4), turn(90, 5)]},
            {**head, "id": "b", "prompt": [1] * 50, "turns": [turn(0, 8)]},
        ]
    )
    # 4 + 5 = 9 and 8 own tokens of 10 at most, buffer .2 * 10 = 2: starts at 8
    assert Overlong(max_length=10)(forest)["overlong"].tolist() == [-0.5, 0.0]


def test_bad_settings_are_refused() -> None:
    forest = Forest.from_completions([[1]], [[[2]]])
    with pytest.raises(ConfigError, match="max_length is not set"):
        Overlong()(forest)
    for options in ({"buffer": 0.0}, {"buffer": 1.5}, {"max_length": 0}):
        with pytest.raises(ConfigError, match="overlong"):
            Overlong(**options)  # type: ignore[arg-type]  # deliberately wrong
    with pytest.raises(ValueError, match="buffer"):
        overlong_penalty(torch.tensor([1]), 10, 11)
