"""Soft tokens: the published numbers, a loop, slopes, and what an embedding is fed."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gxpo.models.decoder.soft import gumbel, log_density, mixed_embeddings, mixture

NAN = math.nan


def row(*x):
    return torch.tensor([x], dtype=torch.float64)


# ---------------------------------------------------------------- the card
P, G = row(0.6, 0.3, 0.1), row(0.5, -0.2, 1.1)


def test_the_card():
    y = P.log() + G
    assert mixture(y, 0.1)[0].tolist() == pytest.approx([0.999992, 0.000001, 0.000007], abs=1e-6)
    # -.5 - e^-.5 = -1.106531; .2 - e^.2 = -1.021403; -1.1 - e^-1.1 = -1.432871; sum -3.560805
    assert float(log_density(y, P.log())) == pytest.approx(-1.186935, abs=1e-6)
    assert 3 * float(log_density(y, P.log())) == pytest.approx(-3.560805, abs=1e-6)


def test_the_slope_of_the_card():
    # (1 - e^-g) / 3 = .131156, -.073801, .222376
    logprob = P.log().requires_grad_()
    (slope,) = torch.autograd.grad(log_density(P.log() + G, logprob).sum(), logprob)
    assert slope[0].tolist() == pytest.approx([0.131156, -0.073801, 0.222376], abs=1e-6)


# ---------------------------------------------------------------- a loop
@given(st.integers(0, 10_000))
def test_density_and_slope_against_a_loop(seed):
    rng = random.Random(seed)
    n = rng.randrange(1, 6)
    logp = [-rng.random() * 5 for _ in range(n)]
    y = [x + rng.uniform(-3, 5) for x in logp]
    counted = [i == 0 or rng.random() < 0.7 for i in range(n)]

    def by_loop(logp):
        total = 0.0
        for i in range(n):
            if counted[i]:
                g = min(max(y[i] - logp[i], -1.5 - 1e-4), 3 + 1e-4)
                total += -g - math.exp(-g)
        return total / sum(counted)

    target = row(*[a if c else NAN for a, c in zip(y, counted, strict=True)])
    x = row(*logp).requires_grad_()
    actual = log_density(target, x)
    (slope,) = torch.autograd.grad(actual.sum(), x)
    assert actual.item() == pytest.approx(by_loop(logp), abs=1e-12)
    for i in range(n):
        if min(abs(y[i] - logp[i] - edge) for edge in (-1.5001, 3.0001)) < 1e-4:
            continue
        sides = [by_loop([a + h * (i == j) for j, a in enumerate(logp)]) for h in (1e-6, -1e-6)]
        assert float(slope[0, i]) == pytest.approx((sides[0] - sides[1]) / 2e-6, abs=1e-6)


def test_noise_at_a_bound_has_a_gradient_and_beyond_it_has_none():
    logprob = row(-1.0, -1.0, -1.0, -1.0).requires_grad_()
    y = row(-1.0 + 3.0, -1.0 - 1.5, -1.0 + 3.1, -1.0 - 1.6)
    (slope,) = torch.autograd.grad(log_density(y, logprob).sum(), logprob)
    assert slope[0].tolist() == pytest.approx([(1 - math.exp(-3)) / 4, (1 - math.exp(1.5)) / 4, 0.0, 0.0])


def test_ids_that_are_not_there_neither_count_nor_leave_nan():
    logits = row(0.3, -0.2, 0.1).requires_grad_()
    inside = logits.masked_fill(torch.tensor([[False, False, True]]), -math.inf).log_softmax(1)
    y = inside.detach() + row(0.5, 0.1, 0.0)
    actual = log_density(torch.where(y.isfinite(), y, torch.nan), inside)
    (slope,) = torch.autograd.grad(actual.sum(), logits)
    assert bool(slope.isfinite().all()) and float(slope[0, 2]) == 0.0
    assert mixture(y, 0.1)[0, 2] == 0.0


def test_gumbel_noise():
    u = torch.tensor([0.0, math.exp(-1), math.exp(-math.exp(-1)), 1 - 1e-16], dtype=torch.float64)
    assert gumbel(u).tolist() == pytest.approx([-1.5, 0.0, 1.0, 3.0])


# ---------------------------------------------------------------- inputs
def test_what_an_embedding_is_fed():
    embedding = nn.Embedding(7, 4).double()
    tokens = torch.tensor([[1, 2, 3], [4, 5, 6]])
    plain = embedding(tokens)
    rows, ids, weight = torch.tensor([1, 5]), torch.tensor([[2, 3], [6, -1]]), row(0.25, 0.75).repeat(2, 1)
    with mixed_embeddings(embedding, rows, ids, torch.tensor([[0.25, 0.75], [1.0, 9.0]], dtype=torch.float64)):
        actual = embedding(tokens)
    w = embedding.weight
    assert torch.allclose(actual[0, 1], 0.25 * w[2] + 0.75 * w[3]) and torch.allclose(actual[1, 2], w[6])
    assert torch.equal(actual[0, 0], plain[0, 0]) and torch.equal(actual[1, :2], plain[1, :2])
    (slope,) = torch.autograd.grad(actual.sum(), w)
    assert slope[:, 0].tolist() == pytest.approx([0, 1, 0.25, 1.75, 1, 1, 1])
    with pytest.raises(RuntimeError), mixed_embeddings(embedding, rows, ids, weight):
        raise RuntimeError
    assert torch.equal(embedding(tokens), plain)
