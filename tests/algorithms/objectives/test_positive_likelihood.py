"""The negative log-likelihood of tokens of positive credit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import random_forest

import gxpo
from gxpo.algorithms.objectives.positive_likelihood import PositiveLikelihood
from gxpo.base.errors import ConfigError
from gxpo.parts.protocols import PolicyTokens


def loss_of(part, forest, logprob, credit):
    policy = PolicyTokens(logprob, forest.path_behaviour_logprob)
    return part(forest, policy, credit, torch.ones_like(credit), {}, 0)[0]


def test_the_card():
    # -log pi = 1, 2 where A > 0 (.5 where A < 0): .01 * (1 + 2) / 2 = .015
    forest = gxpo.Forest.from_completions([[1]], [[[5, 6, 7]]], [1.0], logprobs=[[[-1.0, -2.0, -0.5]]])
    x = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64, requires_grad=True)
    loss = loss_of(PositiveLikelihood(), forest, x, torch.tensor([0.5, 0.5, -1.0], dtype=torch.float64))
    assert float(loss.detach()) == pytest.approx(0.015, abs=1e-15)
    assert torch.autograd.grad(loss, x)[0].tolist() == pytest.approx([-0.005, -0.005, 0.0])


@given(st.integers(0, 200))
def test_a_loop_gives_the_same(seed):
    forest = random_forest(seed)
    draws = torch.Generator().manual_seed(seed)
    credit = torch.randn(forest.n_entries, generator=draws, dtype=torch.float64).round()
    logprob = -torch.rand(forest.n_entries, generator=draws, dtype=torch.float64)
    total, count = 0.0, 0
    for p in range(forest.n_entries):
        if bool(forest.path_trainable[p]) and float(credit[p]) > 1e-7:
            weight = float(forest.weight[int(forest.path_trajectory[p])])
            total, count = total - weight * float(logprob[p]), count + 1
    part = PositiveLikelihood(coef=0.3)
    assert float(loss_of(part, forest, logprob, credit)) == pytest.approx(0.3 * total / max(1, count), abs=1e-12)
    outside = ~part.active(forest, credit, credit)
    spoilt = torch.where(outside, torch.nan, logprob)
    assert float(loss_of(part, forest, spoilt, credit)) == pytest.approx(0.3 * total / max(1, count), abs=1e-12)


def test_without_positive_credit_it_is_nothing():
    forest = random_forest(3)
    credit = -torch.ones(forest.n_entries, dtype=torch.float64)
    assert float(loss_of(PositiveLikelihood(), forest, credit, credit)) == 0.0
    assert not bool(PositiveLikelihood().active(forest, credit, credit).any())
    assert not bool(PositiveLikelihood(coef=0.0).active(forest, -credit, credit).any())


def test_a_negative_coefficient_is_refused():
    with pytest.raises(ConfigError, match="0 or more"):
        PositiveLikelihood(coef=-1.0)
