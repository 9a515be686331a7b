"""Success rates of tasks: verdicts that age, visits of the policy alone, variances."""

from __future__ import annotations

import json
import math

import pytest
import torch
from tests.environments.tasks.sampled_sources import RIGHT, answers, sampled_source

import gxpo
from gxpo.base.errors import CheckpointError
from gxpo.environments.tasks.success_rates import SuccessRates, Visit, spread


def test_verdicts_age_and_a_rate_begins_at_one_half() -> None:
    source = sampled_source("variance", discount=0.5)
    source.observe(answers({"a": 8}))
    source.observe(answers({"a": 0}))
    # (.5 * 8 + 0 + 1) / (.5 * 8 + 8 + 2)
    assert source.rates.column("rate", ["a", "b"]).tolist() == pytest.approx([5 / 14, 0.5])
    assert source.rates.column("counted", ["a", "b"]).tolist() == [12.0, 0.0]


def test_only_what_the_policy_sampled_for_a_training_task_counts() -> None:
    source = sampled_source("variance")
    for origin in ("replay", "hint", "demonstration"):
        source.observe(answers(RIGHT, origin=origin))
    source.observe(answers({"held": 3, "else": 3}))
    assert source.figures()["tasks_known"] == 0 and source.rates.state_dict()["verdicts"] == {}
    assert source.figures()["tasks_mixed"] is None


def test_rollouts_without_any_verdict_are_refused() -> None:
    forest = answers({"a": 1}).replace(success=torch.full((8,), torch.nan, dtype=torch.float64))
    with pytest.raises(gxpo.base.errors.GxpoError, match=r"tasks\.sampler"):
        sampled_source("variance").observe(forest)


def task_visit(*verdicts: float, outcomes: list[float] | None = None) -> Visit:
    return Visit(list(verdicts), outcomes or list(verdicts), [])


def test_variance_of_equal_values_is_exactly_zero() -> None:
    # 0.1 three times: the sum in floats is not 0.3, so a plain variance would be 1.9e-34
    assert spread([0.1, 0.1, 0.1]) == 0.0 and spread([-2.0]) == 0.0
    # mean 2: ((1 - 2)^2 + (2 - 2)^2 + (3 - 2)^2) / 3
    assert spread([1.0, 2.0, 3.0]) == pytest.approx(2 / 3, abs=1e-15)


def test_a_visit_is_mixed_if_verdicts_differ() -> None:
    assert task_visit(0, 1, 1).mixed and not task_visit(1, 1).mixed and not task_visit(0).mixed


def test_recent_is_nan_until_the_window_is_full() -> None:
    rates = SuccessRates(discount=1.0, prior=0.0, window=2)
    rates.add("a", [task_visit(1, 1)])
    assert math.isnan(rates.column("recent", ["a"]).item())
    rates.add("a", [task_visit(0, 1)])
    assert rates.column("recent", ["a"]).tolist() == [0.75]  # (1 + 1/2) / 2
    rates.add("a", [task_visit(0, 0)])
    assert rates.column("recent", ["a"]).tolist() == [0.25]  # the newest two: (1/2 + 0) / 2


def test_smoothed_is_a_moving_average_from_one_half() -> None:
    rates = SuccessRates(discount=0.8, prior=2.0, window=1)
    rates.add("a", [task_visit(1, 1)])
    rates.add("a", [task_visit(0, 0)])
    # 0.8 * 0.5 + 0.2 * 1 = 0.6, then 0.8 * 0.6 + 0.2 * 0
    assert rates.column("smoothed", ["a", "b"]).tolist() == pytest.approx([0.48, 0.5])


def test_a_streak_ends_with_a_wrong_answer_to_any_of_its_tasks() -> None:
    rates = SuccessRates(discount=1.0, prior=2.0, window=1)
    for _ in range(2):
        rates.add("level", [task_visit(1, 1), task_visit(1)])
    assert rates.column("streak", ["level", "other"]).tolist() == [2.0, 0.0]
    rates.add("level", [task_visit(1, 1), task_visit(0)])
    assert rates.column("streak", ["level"]).tolist() == [0.0]


def test_outcome_variance_is_that_of_each_task_of_a_level() -> None:
    rates = SuccessRates(discount=1.0, prior=2.0, window=1)
    # tasks of outcomes (0, 1) and (5, 5): variances 1/4 and 0, whose mean is 1/8; pooled it would be 5.2
    rates.add("level", [task_visit(0, 1, outcomes=[0.0, 1.0]), task_visit(1, 1, outcomes=[5.0, 5.0])])
    assert rates.column("outcome_variance", ["level"]).tolist() == [0.125]
    assert rates.column("logprob_variance", ["level"]).isnan().all()


def test_state_of_other_memories_is_refused_and_its_own_restored() -> None:
    rates, fresh = (SuccessRates(discount=0.5, prior=2.0, window=2) for _ in range(2))
    rates.add("a", [task_visit(1, 0)])
    fresh.load_state_dict(json.loads(json.dumps(rates.state_dict())))
    assert fresh.state_dict() == rates.state_dict() and fresh.names() == {"a"}
    with pytest.raises(CheckpointError, match="else"):
        fresh.load_state_dict({**rates.state_dict(), "else": {}})
