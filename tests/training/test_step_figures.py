"""The figures of a step's rollouts, against values worked out by hand."""

from __future__ import annotations

import pytest
import torch

import gxpo
from gxpo.forest.forest import Forest
from gxpo.training.step_figures import Tally, rollout_figures, source_figures, update_figures

NAN = float("nan")


def forest(outcome, success=None, **more) -> Forest:
    """Groups of rollouts of one prompt each, one token long."""
    prompts = [[5, i] for i in range(len(outcome))]
    completions = [[[7]] * len(group) for group in outcome]
    return Forest.from_completions(prompts, completions, outcome, success=success, **more)


def test_rewards_within_groups_and_their_ends():
    # deviations with n - 1: of 0 and 1 sqrt(1/2), of three equal ones 0; the single scored one of the third has none
    actual = rollout_figures(forest([[0.0, 1.0, NAN], [0.7, 0.7, 0.7], [3.0, NAN]]), torch.zeros(8))
    assert actual["reward_std"] == pytest.approx(0.5**0.5 / 2)
    assert (actual["reward_min"], actual["reward_max"]) == (0.0, 3.0)
    assert "zero_signal_all_right" not in actual and "zero_signal_all_wrong" not in actual
    none = rollout_figures(forest([[NAN, NAN]]), torch.zeros(2))
    assert (none["reward_std"], none["reward_min"], none["reward_max"]) == (None, None, None)


def test_zero_signal_groups_are_told_apart_by_their_verdicts():
    """All right, all wrong, mixed, unknown, all right with one unknown; the last two of ten have credit."""
    success = [[1, 1], [0, 0], [0, 1], [NAN, NAN], [1, NAN], [0, 0]]
    credit = torch.tensor([0.0] * 10 + [-0.5, 0.5], dtype=torch.float64)
    actual = rollout_figures(forest([[0.5, 0.5]] * 6, success), credit)
    assert actual["zero_signal_groups"] == pytest.approx(5 / 6)
    assert actual["zero_signal_all_right"] == pytest.approx(2 / 6)
    assert actual["zero_signal_all_wrong"] == pytest.approx(1 / 6)  # the other one has a signal: its credit is not 0


def test_borrowed_rollouts_are_compared_but_earn_nothing():
    forest_of_step = forest([[0.0, 1.0, 9.0]], [[0, 1, 1]]).replace(origin=["policy", "policy", "replay"])
    actual = rollout_figures(forest_of_step, torch.zeros(3))
    assert (actual["reward_max"], actual["reward_mean"]) == (1.0, 0.5)
    assert actual["reward_std"] == pytest.approx(0.5**0.5)


def test_entropy_of_what_was_sampled_in_this_step():
    # -log p of 0.2, 0.4 and 0.9 nats; the last has no sampler
    drawn_forest = forest([[1.0, 0.0], [1.0, 0.0]], logprobs=[[[-0.2], [-0.4]], [[-0.9], [None]]], policy_version=3)
    assert source_figures(drawn_forest, 3)["entropy_sampled"] == pytest.approx(0.5)
    assert source_figures(drawn_forest, 4)["entropy_sampled"] is None  # of an earlier step, every one


def test_a_step_without_update_compares_nothing():
    actual = update_figures([], [], (None, None))
    assert actual["sampler_gap"] is None and actual["sampler_gap_mean"] is None and "weights_moved" not in actual


# ---------------------------------------------------------------- runs that can't have learned anything
def row(trajectories=8, unscored=0, groups=2, silent=0.5, updates=1, **more):
    return {"trajectories": trajectories, "unscored": unscored, "groups": groups, "zero_signal_groups": silent,
            "optimiser_steps": updates, **more}  # fmt: skip


DEAD, SILENT = row(unscored=8, silent=1.0, updates=0), row(silent=1.0, updates=0)


@pytest.mark.parametrize(
    ("rows", "method", "problem"),
    [
        ([], "grpo", None),
        ([row()], "grpo", None),
        ([DEAD], "grpo", "all 8 rollouts of step 1 were unscored (raised: no good)"),
        ([DEAD, DEAD], "grpo", "all 16 rollouts of the first 2 steps were unscored (raised: no good)"),
        ([DEAD, row(unscored=7)], "grpo", None),
        ([SILENT, SILENT, SILENT], "grpo", "all 6 groups of the first 3 steps had zero signal"),
        ([SILENT, row()], "grpo", None),
        ([DEAD, SILENT], "grpo", "all 4 groups of the first 2 steps had zero signal"),
        ([row(silent=1.0)], "grpo", "all 2 groups of step 1 had zero signal"),  # only a KL has moved the parameters
        ([row(updates=0)], "grpo", "no parameter has moved in step 1"),  # weights of 0
        ([row(0, 0, 0, None, 0)], "grpo", "no parameter has moved in step 1"),
        ([SILENT], "sdpo_self", None),  # a teacher teaches without credit
        ([DEAD], "sdpo_self", "all 8 rollouts of step 1 were unscored (raised: no good)"),
    ],
)
def test_what_is_said(rows, method, problem):
    actual = Tally.of(rows).problem(gxpo.method(method), {"raised": "raised: no good"})
    assert actual is None if problem is None else actual.startswith(f"nothing is learned: {problem}")


def test_a_format_that_no_turn_has_is_said():
    """The metric is there where a segmenter labels; one tagged turn is enough."""
    none, one = row(untagged_turns=1.0), row(untagged_turns=0.875)
    assert Tally.of([none, one, none]).problem(gxpo.method("hiper")) is None
    actual = Tally.of([none, none]).problem(gxpo.method("hiper"))
    assert actual is not None and actual.startswith(
        "no turn of the first 2 steps has anything that segment.patterns look for"
    )
    assert Tally.of([row(untagged_turns=None)]).problem(gxpo.method("hiper")) is None
