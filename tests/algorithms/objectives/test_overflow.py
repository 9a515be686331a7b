"""One log-ratio of +-200 among ordinary ones, in float32, where e^200 is infinite and e^-200 is 0: every slope is what
its formula says, and no other token's is touched."""

import math

import pytest
import torch
from tests.algorithms.objectives.by_position import (
    CovariancePenalty,
    DivergenceMask,
    Drift,
    ElasticClip,
    Gamma,
    HybridClip,
    LogLikelihood,
    NestedClip,
    PreservingClip,
    QuadraticPenalty,
    RatioMask,
    RatioTarget,
    Sigmoid,
    Tapered,
    Truncate,
    Unclipped,
)

import gxpo
from gxpo.algorithms.objectives import KL, PolicyGradient
from gxpo.algorithms.objectives import surrogate as surrogates
from gxpo.algorithms.objectives.masked_kl import masked_kl
from gxpo.algorithms.objectives.penalty import mirror_kl
from gxpo.algorithms.objectives.surrogate_clips import FutureDrift
from gxpo.algorithms.objectives.surrogate_penalties import RatioVariance

INF = float("inf")
FOREST = gxpo.Forest.from_completions([[1]], [[[2, 3]]], [1.0])
BELOW = torch.tensor([-1.0, -1.0])


def slopes(surrogate, credit, log_ratio, *, weight=(1.0, 1.0), ratio="token"):
    """dL/dlogprob of two tokens of one trajectory: an ordinary one on policy, then one of this log-ratio."""
    x = (BELOW + torch.tensor([0.0, log_ratio])).requires_grad_()
    term = PolicyGradient(surrogate=surrogate, ratio=ratio, aggregate="sequence_sum", horizon=1.0)
    credit_P = torch.tensor([credit, credit] if isinstance(credit, float) else credit)
    loss = term(FOREST, gxpo.PolicyTokens(x, BELOW), credit_P, torch.tensor(weight), {}, 0)[0]
    (gradient,) = torch.autograd.grad(loss, x)
    return float(loss.detach()), gradient.tolist()


# slope of the far token at A = 1 and A = -1, each at log-ratios 200 and -200; then of the ordinary one, over -A
BY_HAND = [
    (Unclipped(), (-INF, 0.0, INF, 0.0), 1.0),
    (surrogates.Clip(), (0.0, 0.0, INF, 0.0), 1.0),
    (surrogates.DualClip(), (0.0, 0.0, 0.0, 0.0), 1.0),
    (surrogates.LogClip(), (0.0, 0.0, INF, 0.0), 1.0),
    (Truncate(), (-1.28, 0.0, 1.28, 0.0), 1.0),
    (CovariancePenalty(), (-INF, 0.0, INF, 0.0), 1.0),  # of equal covariances the first is held, on policy
    (DivergenceMask(), (0.0, 0.0, 20.0, 0.0), 1.0),
    (Drift(), (0.0, 0.0, INF, -1.0), 1.0),  # |A| (rho - tanh^2)
    (ElasticClip(), (0.0, 0.0, INF, 0.0), 1.0),
    (FutureDrift(), (0.0, 0.0, 0.0, 0.0), 1.0),
    (Gamma(), (0.0, 0.0, 0.0, 0.0), 1.0),
    (HybridClip(), (0.0, 0.0, 0.0, 0.0), 0.5),  # the sequence's half is cut for both
    (HybridClip(sides="improving"), (0.0, 0.0, INF, 0.0), None),
    (LogLikelihood(), (-1.0, -1.0, 1.0, 1.0), 1.0),
    (NestedClip(), (0.0, 0.0, 0.0, 0.0), 0.0),
    (PreservingClip(), (-1.2, 0.0, 0.0, 0.8), 1.0),
    (PreservingClip(ratio_max=INF), (-1.2, 0.0, INF, 0.8), 1.0),
    (QuadraticPenalty(), (INF, 0.0, INF, 0.0), 1.0),  # -rho (A - 2 c (rho - 1))
    (RatioMask(), (0.0, -1.0, 1.0, 0.0), 1.0),
    (RatioTarget(), (INF, 0.0, INF, 0.0), 1.0),
    (RatioVariance(), (INF, 0.0, INF, 0.0), 1.0),
    (RatioVariance(penalty=0.0), (-INF, 0.0, INF, 0.0), 1.0),
    (Sigmoid(), (0.0, 0.0, 0.0, 0.0), 1.0),  # -A rho 4 p (1 - p)
    (Tapered(), (-1.0, -1.0, 1.0, 0.0), 1.0),
]


@pytest.mark.parametrize(
    ("surrogate", "far", "ordinary"), BY_HAND, ids=lambda x: repr(x) if isinstance(x, surrogates.Surrogate) else ""
)
def test_slopes_of_a_far_token_and_of_its_neighbour(surrogate, far, ordinary):
    cases = [(1.0, 200.0), (1.0, -200.0), (-1.0, 200.0), (-1.0, -200.0)]
    for (credit, log_ratio), expected in zip(cases, far, strict=True):
        loss, (near, gradient) = slopes(surrogate, credit, log_ratio)
        assert gradient == pytest.approx(expected, abs=1e-6), (credit, log_ratio)
        assert loss == loss, (credit, log_ratio)  # not nan
        assert near == near and (ordinary is None or near == pytest.approx(-credit * ordinary, abs=1e-6))


@pytest.mark.parametrize(
    "surrogate", [Unclipped(), surrogates.Clip(), QuadraticPenalty(), RatioTarget(), HybridClip()], ids=repr
)
@pytest.mark.parametrize(
    "silence", [{"credit": (-1.0, 0.0)}, {"credit": -1.0, "weight": (1.0, 0.0)}], ids=["credit", "weight"]
)
def test_an_overflowed_ratio_without_credit_has_no_slope(surrogate, silence):
    """Under a sequence's ratio it is in the mean of its trajectory all the same."""
    for log_ratio in (200.0, -200.0):
        _, gradient = slopes(
            surrogate, silence["credit"], log_ratio, weight=silence.get("weight", (1.0, 1.0)), ratio="sequence"
        )
        assert gradient[1] == 0.0 and gradient[0] == gradient[0]


def test_penalties_do_not_subtract_infinities():
    x = torch.tensor([200.0, 0.0, -200.0], requires_grad=True)
    value = mirror_kl(x)
    (gradient,) = torch.autograd.grad(value.sum(), x)
    assert value.tolist() == [INF, 0.0, 1.0] and gradient.tolist() == [INF, 0.0, 0.0]  # rho log rho
    low = torch.tensor([-200.0, -1.0], requires_grad=True)
    value = masked_kl(low, torch.tensor([-1.0, -1.0]), coef=1.0, entropy_coef=0.5, kl_max=3.0)
    (gradient,) = torch.autograd.grad(value.sum(), low)
    assert value.tolist() == [-3.0 + 100.0, 0.5] and gradient.tolist() == [-0.5, -0.5]


def test_a_weighted_kl_of_a_token_of_vanishing_probability():
    """rho k3 = e^(reference - below) - rho (1 + d), slope -rho d: both factors leave the range, not their product."""
    x = torch.tensor([-1.0, -201.0], requires_grad=True)
    policy = gxpo.PolicyTokens(x, BELOW, reference_logprob=torch.tensor([-1.0, -1.5]))
    loss = KL(coef=1.0, ratio_weighted=True)(FOREST, policy, torch.zeros(2), torch.ones(2), {}, 0)[0]
    (gradient,) = torch.autograd.grad(loss, x)
    assert loss.item() == pytest.approx(math.exp(-0.5) / 2) and gradient.tolist() == [0.0, 0.0]


def test_a_clipped_token_has_a_finite_loss_in_float32():
    x = torch.tensor([199.0, -1.0], requires_grad=True)
    forest = gxpo.Forest.from_completions([[1]], [[[2], [3]]], [1.0, 0.0])
    loss = gxpo.method("dr_grpo", {"objective.horizon": 1.0}).loss(forest, gxpo.PolicyTokens(x, BELOW)).value
    loss.backward()
    assert loss.item() == pytest.approx(-0.5 * 0.5 * (1.2 - 1.0)) and x.grad.tolist() == [0.0, 0.25]
