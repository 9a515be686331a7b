"""Figures, arms and captions in words."""

from __future__ import annotations

import math

import pytest
from tests.compare.made import estimate, make_comparison

from gxpo.compare.wording import caption, duration, interval, label_with_kind, number, settings, sort_arms


@pytest.mark.parametrize(
    ("value", "places", "text"),
    [(0.25, 2, ".25"), (-0.25, 2, "-.25"), (-0.0001, 3, ".000"), (12.5, 1, "12.5"), (2e6, 0, "2,000,000")],
)
def test_numbers_have_no_zero_before_the_point(value: float, places: int, text: str) -> None:
    assert number(value, places) == text


def test_an_interval_without_bounds_is_its_mean() -> None:
    assert interval(estimate(0.5, 0.25), 2) == ".50 (.25 to .75)"
    assert interval(estimate(0.5, math.nan), 2) == ".50"


def test_arms_come_base_first_and_controls_last() -> None:
    assert [label_with_kind(a) for a in sort_arms(make_comparison())] == [
        "grpo (base)",
        "dr_grpo",
        "rloo",
        "shuffled (control)",
    ]


def test_a_caption_names_measure_budget_and_tuned_keys() -> None:
    tuned = make_comparison(tuned={"rloo": {"optim.lr": 1e-3}, "grpo": {"optim.lr": 1e-4}})
    assert caption(tuned, setting=False) == (
        "eval_accuracy (more is better), 100,000 generated tokens a run, optim.lr tuned for each arm on other seeds"
    )


def test_durations_and_keys() -> None:
    assert [duration(s) for s in (59.6, 60, 3599, 3600)] == ["1 min 0 s", "1 min 0 s", "59 min 59 s", "1 h 0 min"]
    assert settings({"optim.lr": 0.1, "credit.scale": None}) == "optim.lr=0.1 credit.scale=None"
