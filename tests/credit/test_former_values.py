"""Former names of values and bonuses: old parts, options and classes give what they gave."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import gxpo
from gxpo import credit, signals
from gxpo.credit.bonus import Bonus
from gxpo.credit.gae import Gae
from gxpo.credit.value_delta import ValueDelta
from gxpo.signals.task_mean import TaskMean

OLD = [  # slot, what was stated, what it is now
    ("credit", {"": "value_difference", ".best_of": 4, ".factor": 5.0}, ValueDelta(best_of=4, factor=5.0)),
    ("credit", {"": "branch_points", ".keyed_by": "position"}, ValueDelta("branch_points", keyed_by="position")),
    ("credit", {"": "tree_progress", ".at": "first"}, ValueDelta("pieces", target="first")),
    ("credit.add.mine", {"": "tree_progress", ".progress": 0.0}, ValueDelta("pieces", 0.0, target="last")),
    ("credit.add.progress", {"": "progress", ".alpha": 0.5, ".form": "log"}, ValueDelta("belief", 0.5, form="log")),
    ("credit.add.x", {"": "clipped_gap"}, Bonus("gap", low=-0.2, high=0.28)),
    ("credit.add.x", {"": "clipped_gap", ".low": -0.5}, Bonus("gap", low=-0.5, high=0.28)),
    ("credit.add.x", {"": "confidence_gap", ".alpha": 0.7}, Bonus("confidence_gap", 0.7)),
    ("credit.add.x", {"": "entropy_cost", ".coef": 0.2}, Bonus("certainty", 0.2)),
    ("credit", {"": "progress_gae", ".level": "turn"}, Gae("turn", reward="progress", bonus=0.5)),
]


@pytest.mark.parametrize(("slot", "stated", "part"), OLD, ids=[stated[""] for _, stated, _ in OLD])
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_old_part_is_a_setting(slot: str, stated: dict[str, Any], part: object) -> None:
    needs = {"signal.rollout_baseline": "rollout_baseline", "signal.prompt_confidence": "prompt_confidence",
             "signal.answer_belief": "answer_belief", "signal.progress_estimator": "progress_estimator"}  # fmt: skip
    made = gxpo.method("grpo", needs | {slot + name: value for name, value in stated.items()}).credit
    assert part == made or part in made.parts


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_clipped_bonus_is_an_addition() -> None:
    old = {"credit": "clipped_bonus", "credit.kappa": 3.0, "credit.at": "last", "credit.scale": "none"}
    made = gxpo.method("verl_rank", old)
    new = gxpo.method(
        "verl_rank", {"credit.add.bonus.kappa": 3.0, "credit.add.bonus.at": "last", "credit.scale": "none"}
    )
    assert made.credit == new.credit and made.credit.parts[1] == Bonus(low=0.0, kappa=3.0, at="last")


RENAMED = [  # method, key of the release before, new key
    ("verl_rank", "credit.kappa", "credit.add.bonus.kappa", 4.0),
    ("verl_rank", "credit.at", "credit.add.bonus.at", "last"),
    ("progrpo", "credit.add.confidence_gap.alpha", "credit.add.confidence_gap.factor", 0.1),
    ("gtpo", "credit.add.entropy_cost.coef", "credit.add.entropy_cost.factor", 0.5),
    ("grpo_vps", "credit.add.progress.alpha", "credit.add.progress.factor", 2.0),
    ("alphamath", "credit.add.tree_progress.progress", "credit.add.tree_progress.factor", 1.0),
    ("masprm", "credit.at", "credit.target", "first"),
]


@pytest.mark.parametrize(("method", "old", "new", "value"), RENAMED)
def test_an_old_option_of_a_method(method: str, old: str, new: str, value: object) -> None:
    with pytest.warns(FutureWarning, match=rf"{old}.* is now {new}"):
        made = gxpo.method(method, {old: value})
    assert made.credit == gxpo.method(method, {new: value}).credit != gxpo.method(method).credit


def test_old_classes() -> None:
    with pytest.warns(FutureWarning):
        assert credit.ValueDifference(best_of=4) == ValueDelta(best_of=4)
        assert credit.ClippedGap(low=-0.1) == Bonus("gap", low=-0.1, high=0.28)
        assert signals.NewestMean(window=5) == TaskMean(prior=0.0, window=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert gxpo.method("avatar_tas").signals["newest_mean"] == TaskMean(prior=0.0, window=20)
