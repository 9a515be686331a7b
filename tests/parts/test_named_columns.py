"""Columns that functions read by the names of their parameters, on trajectories and on trained tokens."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import gxpo
from gxpo.algorithms.credit import columns as of_advantages
from gxpo.base.errors import GxpoError, MissingSignal
from gxpo.environments.rewards.shape import COLUMNS
from gxpo.parts import named_columns
from gxpo.parts.learning import Signals
from gxpo.parts.named_columns import Columns

NAN = float("nan")
# prompt 1 2; answers 3 4, 5 and 6, the last of which is not trained: path tokens 3 4 5 6, of which 0, 1 and 2 are read
FOREST = gxpo.Forest.from_completions(
    [[1, 2]], [[[3, 4], [5], [6]]], [[1.0, 0.0, 0.5]], success=[1, NAN, NAN], logprobs=[[[-1.0, -2.0], [-3.0], [-4.0]]]
)
FOREST.trainable[FOREST.path_token[3]] = False


def columns(forest: gxpo.Forest = FOREST, **signals: torch.Tensor) -> Columns:
    return Columns(forest, Signals.of(forest, signals))


def test_trajectory_columns_are_repeated_at_each_trained_token():
    assert columns().of("outcome", "R").tolist() == [1.0, 0.0, 0.5]
    assert columns().of("outcome", "P").tolist() == [1.0, 1.0, 0.0]
    assert columns().of("trajectory", "R").tolist() == [0, 1, 2]
    assert columns().of("trajectory", "P").tolist() == [0, 0, 1]


def test_token_columns_are_averaged_over_trained_tokens():
    assert columns().of("token", "P").tolist() == [3, 4, 5]
    assert columns().of("token", "R").tolist() == [3.5, 5.0, 0.0]  # the third has no trained token


def test_signals_on_path_tokens_skip_untrained_tokens():
    score = torch.tensor([1.0, 3.0, 5.0, NAN], dtype=torch.float64)
    read = columns(score=score)
    assert read.of("score", "P").tolist() == [1.0, 3.0, 5.0]
    assert read.of("score", "R").tolist() == read.of("mean_score", "R").tolist() == [2.0, 5.0, 0.0]
    assert read.of("mean_score", "P").tolist() == [2.0, 2.0, 5.0]


def test_signals_of_trajectories_are_repeated_at_each_token():
    signals = Signals({"size": torch.tensor([7.0, 8.0, 9.0])}, {"size": "R"})
    assert Columns(FOREST, signals).of("size", "R").tolist() == [7.0, 8.0, 9.0]
    assert Columns(FOREST, signals).of("size", "P").tolist() == [7.0, 7.0, 8.0]


def test_nan_at_a_trained_token_is_an_error_unless_it_may_lack():
    missing = torch.tensor([-1.0, NAN, NAN, 0.0])
    with pytest.raises(MissingSignal, match=r"score is nan for 2 of 3 trainable tokens$"):
        columns(score=missing).of("score", "P")
    with pytest.raises(MissingSignal, match="behaviour_logprob is nan for 2 of 3 trainable tokens: record `logprob`"):
        columns(behaviour_logprob=missing).of("behaviour_logprob", "R")
    assert columns(teacher_entropy=missing).of("teacher_entropy", "P").isnan().tolist() == [False, True, True]


def test_correct_is_the_verdict_or_else_an_outcome_above_zero():
    assert columns().of("correct", "R").tolist() == [True, False, True]
    assert columns(FOREST.replace(success=torch.tensor([0.0, 1.0, NAN]))).of("correct", "R").tolist() == [
        False,
        True,
        True,
    ]


def test_arguments_follow_the_parameter_names_after_the_first():
    def score(x, outcome, length):
        raise AssertionError

    first = torch.tensor([5.0])
    arguments = columns().arguments_of(score, "R", first)
    assert arguments[0] is first and [x.tolist() for x in arguments[1:]] == [[1.0, 0.0, 0.5], [2, 1, 0]]


def test_needs_are_the_names_that_are_no_columns():
    names = ("outcome", "token", "proximal_logprob", "mean_entropy", "entropy", "value")
    assert Columns.needs(names) == ("entropy", "value")
    assert Columns.requires(("outcome", "label", "noise_scale")) == ("segments", "latents")


def test_missing_labels_say_which_segmenter_makes_them():
    with pytest.raises(GxpoError, match=r"extras\['label'\], and these rollouts have none: set segment=spans"):
        columns().of("label", "P")


def test_the_page_of_columns_has_every_name_and_no_other():
    page = (Path(__file__).parents[2] / "docs" / "columns.md").read_text()
    tables = {title: text for title, _, text in (part.partition("\n") for part in page.split("\n## ")[1:])}

    def told(title):
        rows = [line.split("|")[1] for line in tables[title].splitlines() if line.startswith("| `")]
        return {name for row in rows for name in re.findall(r"`(\w+)`", row)}

    shared = {*named_columns.TRAJECTORY, *named_columns.TOKEN, *named_columns.HELD}
    assert told("Advantages, weights and scores") == shared
    assert told("Of advantages alone") == of_advantages.COMPUTED - {"trajectory"}
    message = tables["Of weights and of shapes of the outcome"]
    assert all(f"`{name}`" in message or f"`{name}(" in message for name in COLUMNS)
