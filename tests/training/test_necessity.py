"""Step necessity: the card's number, figures by hand, and a measurement of a trained model."""

from __future__ import annotations

from pathlib import Path

import pytest

import gxpo
from gxpo.training import necessity as module
from gxpo.training.necessity import Necessity, StepNecessity, text


def step(task: str, with_it: float, without: float, number: int = 1) -> StepNecessity:
    return StepNecessity(task, number, 3, "1+1=2,", with_it, without)


def test_the_number_of_the_card() -> None:
    assert step("a", 0.8, 0.35).necessity == pytest.approx(0.45)


def test_mean_over_tasks_and_text() -> None:
    # task a: (.5 + .1) / 2, task b: .1; their mean .2
    result = Necessity(4, 2, [step("a", 1.0, 0.5), step("a", 0.6, 0.5, 2), step("b", 0.5, 0.4)])
    interval = result.interval()
    assert interval is not None and interval[0] == pytest.approx(0.2) and interval[1] < 0.2 < interval[2]
    assert "2 of 4 attempts are right, with 3 steps before their last" in text(result)
    assert "step 1: right 0.75 with it, 0.45 without (2 attempts)" in text(result)
    assert Necessity(4, 1, [step("a", 1.0, 0.5)]).interval() is None
    assert "see --delimiter" in text(Necessity(4, 0, []))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_steps_of_a_model_that_adds(tmp_path: Path) -> None:
    keys = {"tasks.per_step": 2, "rollout.group_size": 2, "eval.tasks": 2, "sampling.max_new_tokens": 24}
    trainer = gxpo.train("tiny", "arithmetic", steps=1, out=tmp_path / "r", set=keys).trainer
    for how in ("drop", "replace"):
        result = module.necessity(trainer, 12, 2, ",", how)
        assert result.attempts == 12 and 0 < result.right <= 12 and result.steps
        assert all(s.text.endswith(",") and s.number < s.steps for s in result.steps)
        assert all(0 <= x <= 1 for s in result.steps for x in (s.share_with, s.share_without))
