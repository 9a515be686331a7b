"""Figures under TRL's names, by hand: extremes over sequences, means over tokens, or over sequences of one ratio."""

import math

import pytest
import torch

import gxpo
from gxpo.adapters.trl_records import loss_figures
from gxpo.adapters.trl_rollouts import ScoredBatch
from gxpo.algorithms.signals import Signals
from gxpo.forest.forest import Forest


def figures_of(spec, ratios, advantages, overrides=None, gather=lambda x: x):
    """The figures of rows with these ratios of their tokens and an advantage for each row."""
    method = gxpo.method(spec, overrides or {})
    completions = [[[5] * len(row)] for row in ratios]
    forest = Forest.from_completions([[1]] * len(ratios), completions, groups=["g"] * len(ratios))
    forest = forest.with_rewards(torch.tensor(advantages, dtype=torch.float64))
    credit = forest.to_path(torch.tensor(advantages, dtype=torch.float64), "R")
    logprob = torch.tensor([math.log(r) for row in ratios for r in row], dtype=torch.float64) - 1
    proximal = torch.full_like(logprob, -1.0)
    weight = torch.where(torch.arange(len(credit)) == 0, 0.0, 1.0).double()  # a mask of the mismatch changes no figure
    scored = ScoredBatch(forest, credit, weight, Signals({"reference_logprob": proximal}), proximal, 1)
    return loss_figures(method, scored, scored.policy({"logprob": logprob}), gather)


def test_extremes_of_clip_ratios_are_over_sequences():
    # A < 0: 2 of 4 and 0 of 3 tokens below 0.8;  A > 0: 3 of 10 above 1.2;  A = 0 is never clipped, nor is 0.7 at A > 0
    rows = [[0.5, 0.7, 1.5, 1.0], [0.9, 1.3, 1.0], [1.3, 1.4, 1.5, 0.7, 1, 1, 1, 1, 1, 1], [2.0, 0.1]]
    actual = figures_of("grpo", rows, [-1.0, -2.0, 1.0, 0.0])
    assert actual == pytest.approx({
        "clip_ratio/low_mean": 2 / 19, "clip_ratio/high_mean": 3 / 19, "clip_ratio/region_mean": 5 / 19,
        "clip_ratio/low_min": 0.0, "clip_ratio/high_max": 0.3,
    }, abs=1e-12)  # fmt: skip
    figures_of_one_row = figures_of("grpo", rows[:1], [-1.0])
    assert figures_of_one_row["clip_ratio/low_min"] == 0.5 and figures_of_one_row["clip_ratio/high_max"] == 0.0


def test_a_bound_for_wrong_answers_is_not_in_trls_figures():
    actual = figures_of("grpo", [[5.0, 0.5]], [-1.0], {"objective.surrogate": "dual_clip"})
    assert actual["clip_ratio/low_mean"] == 0.5 and actual["clip_ratio/high_mean"] == 0.0


def test_rows_of_one_ratio_count_once_and_empty_rows_never():
    # mean log-ratios: log 1.5 of a row of 1, log 1 of a row of 3
    actual = figures_of("gspo", [[1.5], [2.0, 0.5, 1.0], []], [1.0, 1.0, 1.0], {"objective.clip_high": 0.2})
    assert actual["clip_ratio/high_mean"] == pytest.approx(1 / 3) and actual["clip_ratio/high_max"] == 1.0
    tokens = figures_of("grpo", [[1.5], [1.0, 1.0, 1.0], []], [1.0, 1.0, 1.0])
    assert tokens["clip_ratio/high_mean"] == pytest.approx(1 / 4) and tokens["clip_ratio/low_min"] == 0.0


def test_soft_losses_have_the_figures_that_trl_has_of_them():
    cispo = figures_of("cispo@trl", [[0.5, 0.1], [3.0]], [1.0, -1.0])  # the bound is 0.2: one of three tokens
    assert cispo == pytest.approx({"cispo_clip_ratio": 1 / 3})
    assert figures_of("sapo_gate", [[0.5, 0.1]], [1.0]) == {}
    # phi = w^k e^(lambda (1 - w)), w the product of a row's ratios; A = 0 has the constants of A > 0; no token: 1
    rows, advantages = [[2.0, 0.25], [2.0], [0.5], []], [1.0, -1.0, 0.0, 1.0]
    half, two = 0.5**2 * math.exp(3 * 0.5), 2.0**3 * math.exp(2 * -1.0)
    vespo = figures_of("vespo", rows, advantages, {"objective.ratio_over": "proximal"})
    assert vespo == pytest.approx({"vespo/phi_seq_mean": (half + two + half + 1) / 4})


def test_other_processes_rows_are_in_every_figure():
    """A second process whose rows have the shares 0 and 1 of this one's."""
    rows = [[1.3, 1.0], [0.5, 0.5]]

    def gather(x):
        return torch.cat([x, x.flip(0) if x.numel() == 2 and x[1] <= 1 else x])

    actual = figures_of("grpo", rows, [1.0, -1.0], gather=gather)
    assert actual["clip_ratio/low_min"] == 0.0 and actual["clip_ratio/high_max"] == 0.5
    assert actual["clip_ratio/low_mean"] == 0.5 and actual["clip_ratio/high_mean"] == 0.25


def test_the_kl_is_of_all_tokens_whatever_their_weight():
    # k3 of d = -log 2 at one of two tokens: 1/2 - 1 + log 2
    actual = figures_of("grpo", [[2.0, 1.0]], [0.0], {"objective.kl.coef": 0.1})
    assert actual["kl"] == pytest.approx((0.5 - 1 + math.log(2)) / 2)
