"""Votes over attempts: the card's confidences, who is chosen, which tasks stay unsure, and the setting eval.vote."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.training.voting import Choice, choice_of, confidence, figures, is_unsure


def test_confidence_of_the_card() -> None:
    # entropies 0, ln 2, ln 3, ln 4
    assert [confidence([1.0] * n) for n in (1, 2, 3, 4)] == pytest.approx([1, 0.666667, 0.5, 0.4], abs=1e-6)
    assert confidence([2.0, 0.0]) == 1.0 and math.isnan(confidence([])) and math.isnan(confidence([0.0]))


def test_votes_by_count_and_by_weight() -> None:
    assert choice_of(["7", "8", None, "8"]) == Choice(1, confidence([1, 2]))
    assert choice_of(["7", "8"]).attempt == 0 and choice_of([None, None]).attempt is None
    by_weight = choice_of(["7", "8", "8", "7"], [0.9, 0.2, 0.3, math.nan])
    assert by_weight.attempt == 0 and by_weight.score == 0.9
    assert by_weight.confidence == pytest.approx(confidence([0.9, 0.5]))


def test_only_low_confidence_with_a_low_score_is_unsure() -> None:
    assert is_unsure([Choice(0, 0.4), Choice(0, 0.5), Choice(None, math.nan)]) == [True, False, True]
    # mean score .5: of two unsure choices only the one below it
    assert is_unsure([Choice(0, 0.4, 0.2), Choice(0, 0.4, 0.8), Choice(0, 0.9, 0.5)]) == [True, False, False]


def test_figures_by_hand() -> None:
    choices = [Choice(1, 1.0), Choice(0, 0.4), Choice(None, math.nan)]
    assert figures(choices, [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]) == pytest.approx(
        {
            "eval_vote_accuracy": 2 / 3,
            "eval_vote_confidence": 1.4 / 3,
            "eval_vote_unsure": 2 / 3,
            "eval_vote_sure_accuracy": 1.0,
            "eval_vote_unsure_accuracy": 0.5,
        }
    )


@pytest.mark.filterwarnings("ignore")
def test_an_evaluation_with_votes(tmp_path: Path) -> None:
    keys = {"tasks.per_step": 2, "rollout.group_size": 2, "eval.tasks": 2, "sampling.max_new_tokens": 6}
    run = gxpo.train(
        "tiny:cold", "arithmetic", steps=1, out=tmp_path / "r", set={**keys, "eval.samples": 3, "eval.vote": "correct"}
    )
    assert {"eval_vote_accuracy", "eval_vote_confidence", "eval_vote_unsure"} <= set(run.evaluations[0])
    for more, message in (({"eval.vote": "count"}, "needs several samples"), ({"eval.vote": "x"}, "no component")):
        samples = 1 if "several" in message else 3
        with pytest.raises(ConfigError, match=message):
            gxpo.train(
                "tiny:cold",
                "arithmetic",
                steps=1,
                out=tmp_path / message,
                set={**keys, "eval.samples": samples, **more},
            )
