"""PAPO's auxiliary loss: the card's numbers, its gradient, what it raises in expectation."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gxpo.algorithms.objectives.masked_kl import MaskedKl, masked_kl
from gxpo.base.errors import ConfigError, MissingSignal
from gxpo.parts.protocols import PolicyTokens

CHANGE = [0.3, 0.0, 0.1, 0.5, -0.1]  # logprob - masked
K3 = [0.040818, 0.0, 0.004837, 0.106531, 0.005171]


def run(toy, term, masked, **signals):
    policy = PolicyTokens(toy.logprob, toy.old)
    value = term(toy.forest, policy, toy.credit, toy.weight, {"masked_logprob": masked, **signals}, 0)[0]
    (gradient,) = torch.autograd.grad(value, toy.logprob)
    return float(value.detach()), gradient


def test_card(toy) -> None:
    masked = toy.logprob.detach() - torch.tensor(CHANGE, dtype=torch.float64)
    assert masked_kl(toy.logprob, masked, -1.0, 0.0).tolist() == pytest.approx(K3, abs=6e-7)
    assert run(toy, MaskedKl(coef=1.0, entropy_coef=0.0), masked)[0] == pytest.approx(-0.031471, abs=6e-7)
    value, gradient = run(toy, MaskedKl(coef=0.02, entropy_coef=0.03), masked)
    # mean of -log policy: (0.2 + 1.1 + 2.4 + 0.1 + 0.2) / 5 = 0.8
    assert value == pytest.approx(-0.02 * 0.031471 + 0.03 * 0.8, abs=6e-7)
    expected = [(-0.02 * (1 - math.exp(-c)) - 0.03) / 5 for c in CHANGE]
    assert gradient.tolist() == pytest.approx(expected)


def test_aggregates_and_weights(toy) -> None:
    masked = toy.logprob.detach() - torch.tensor(CHANGE, dtype=torch.float64)
    each = [-0.02 * k + 0.03 * -lp for k, lp in zip(K3, toy.logprob.tolist(), strict=True)]
    term = MaskedKl(coef=0.02, aggregate="sequence_mean")
    by_sequence = (sum(each[:2]) / 2 + sum(each[2:]) / 3) / 2
    assert run(toy, term, masked)[0] == pytest.approx(by_sequence, abs=6e-7)
    half = toy.forest.replace(weight=torch.tensor([1.0, 0.0], dtype=torch.float64))
    policy = PolicyTokens(toy.logprob, toy.old)
    blind = torch.where(half.path_trajectory == 0, masked, torch.nan)  # not read where it has no weight
    signals = {"masked_logprob": blind}
    loss = MaskedKl(coef=0.02)(half, policy, toy.credit, 7 * toy.weight, signals, 0)[0]
    assert float(loss.detach()) == pytest.approx(sum(each[:2]) / 5, abs=6e-7)
    assert MaskedKl().active(half, toy.credit, toy.weight).tolist() == [True, True, False, False, False]


@pytest.mark.parametrize("estimator", ["k3", "k2", "k3+"])
@given(st.lists(st.floats(-3, 3), min_size=3, max_size=3), st.lists(st.floats(-3, 3), min_size=3, max_size=3))
def test_each_estimator_raises_one_of_two_divergences(estimator, logits, hidden):
    """Exact over a vocabulary of three: of k3, E grad = -grad KL(masked || policy), of the others -grad KL(policy ||
    masked); the entropy summand has none."""
    theta = torch.tensor(logits, dtype=torch.float64, requires_grad=True)
    logprob, masked = theta.log_softmax(0), torch.tensor(hidden, dtype=torch.float64).log_softmax(0)
    each = masked_kl(logprob, masked, 1.0, 5.0, estimator=estimator)
    (gradient,) = torch.autograd.grad((logprob.detach().exp() * each).sum(), theta)
    fresh = theta.detach().requires_grad_()
    p, q = (masked, fresh.log_softmax(0)) if estimator == "k3" else (fresh.log_softmax(0), masked)
    (kl,) = torch.autograd.grad((p.exp() * (p - q)).sum(), fresh)
    torch.testing.assert_close(gradient, -kl, rtol=1e-9, atol=1e-12)


def test_bound(toy) -> None:
    masked = toy.logprob.detach() - torch.tensor(CHANGE, dtype=torch.float64)
    value, gradient = run(toy, MaskedKl(coef=1.0, entropy_coef=0.0, kl_max=0.02), masked)
    assert value == pytest.approx(-(0.02 + 0 + 0.004837 + 0.02 + 0.005171) / 5, abs=6e-7)
    assert gradient[0] == 0 and gradient[3] == 0 and gradient[2] != 0


def test_without_coefficients_it_reads_nothing(toy) -> None:
    off = MaskedKl(coef=0.0, entropy_coef=0.0)
    assert not off.active(toy.forest, toy.credit, toy.weight).any()
    assert MaskedKl().needs == ("masked_logprob",) and MaskedKl().learns_from_equal_groups
    with pytest.raises(MissingSignal, match="nan for 2 of 5"):
        run(toy, MaskedKl(), torch.tensor([0, math.nan, 0, math.nan, 0], dtype=torch.float64))
    for wrong in ({"coef": -1.0}, {"kl_max": 0.0}, {"aggregate": "mean"}):
        with pytest.raises(ConfigError, match="masked_kl"):
            MaskedKl(**wrong)  # type: ignore[arg-type]
