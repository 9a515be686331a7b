"""Pairs that are weighted by how far apart their outcomes are."""

from __future__ import annotations

import math

import pytest
import torch
from tests.algorithms.credit.test_search_value import tree

import gxpo
from gxpo.algorithms.objectives.preference_pairs import PreferencePairs
from gxpo.base.errors import ConfigError

F64 = torch.float64


def test_a_pair_counts_as_much_as_its_outcomes_differ():
    # outcomes 1, .75, 0 with scores .4, .1, -.2 (one token each): pairs (a, b) .25, (a, c) 1, (b, c) .75; all right
    forest = tree(("a", 1, [1], None), ("b", 0, [1], None), ("c", 0, [1], None))
    forest = forest.replace(outcome=torch.tensor([1.0, 0.75, 0.0], dtype=F64), success=torch.ones(3, dtype=F64))
    x = torch.tensor([0.4, 0.1, -0.2], dtype=F64, requires_grad=True)
    zero = torch.zeros(3, dtype=F64)
    out = gxpo.method("steporlm").loss(forest, gxpo.PolicyTokens(x, zero, reference_logprob=zero)).value
    logistic = lambda h: math.log1p(math.exp(-0.1 * h))  # noqa: E731
    expected = (0.25 * logistic(0.3) + logistic(0.6) + 0.75 * logistic(0.3)) / 3
    assert float(out.detach()) == pytest.approx(expected, abs=1e-12)
    (gradient,) = torch.autograd.grad(out, x)
    s = lambda h: 0.1 / (1 + math.exp(0.1 * h)) / 3  # noqa: E731
    wanted = [-0.25 * s(0.3) - s(0.6), 0.25 * s(0.3) - 0.75 * s(0.3), s(0.6) + 0.75 * s(0.3)]
    assert gradient.tolist() == pytest.approx(wanted, abs=1e-12)


def test_of_verdicts_against_a_frozen_policy_it_is_dpo():
    forest = tree(("a", 1, [2], None), ("b", 0, [1], None), ("c", 0, [2], None), ("d", 1, [1], None))
    x = torch.linspace(-1, 1, forest.n_entries, dtype=F64)
    pol = gxpo.PolicyTokens(x, x, reference_logprob=torch.zeros_like(x))
    anchored = gxpo.method("steporlm", {"objective.reference": "start"})
    one, other = (float(m.loss(forest, pol).value) for m in (anchored, gxpo.method("dpo")))
    assert one == pytest.approx(other, abs=1e-12)


def test_pairs_of_verdicts_have_no_gap():
    with pytest.raises(ConfigError, match="by_gap"):
        PreferencePairs(by_gap=True)
    with pytest.raises(ConfigError, match="verdict_first"):
        PreferencePairs(verdict_first=True)


def test_gaps_and_the_weight_of_successes_multiply():
    forest = tree(("a", 1, [1], None), ("b", 0, [1], None))
    alike = torch.ones(2, dtype=F64)  # both right, told apart by their process
    forest = forest.replace(outcome=torch.tensor([1.0, 0.25], dtype=F64), success=alike)
    zero = torch.zeros(2, dtype=F64)
    pol = gxpo.PolicyTokens(zero, zero, reference_logprob=zero)
    m = gxpo.method("steporlm", {"objective.success_weight": 2.0})
    assert float(m.loss(forest, pol).value) == pytest.approx(2 * 0.75 * math.log(2), abs=1e-12)
