"""Surrogates without a hard clip: the multiplier of the ratio's variance, from step to step."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.objectives.conftest import figures_of

import gxpo
from gxpo.algorithms.objectives import PolicyGradient
from gxpo.algorithms.objectives.surrogate_penalties import RatioVariance
from gxpo.base.errors import CheckpointError


def term(surrogate, **fields) -> PolicyGradient:
    return PolicyGradient(surrogate=surrogate, aggregate="token_mean", **fields)


def test_ratio_variance_dual_step_of_the_card(toy) -> None:
    surrogate = RatioVariance(penalty=0.5, variance_max=0.05, penalty_rate=0.1)
    term = PolicyGradient(surrogate=surrogate, aggregate="token_mean")
    metrics = figures_of(term, toy.forest, toy.policy(), toy.credit, toy.weight)
    assert metrics["ratio_variance"] == pytest.approx(0.142001, abs=6e-7)
    # .5 + .1 (.142001 - .05)
    assert surrogate.adjust(metrics) == pytest.approx({"ratio_penalty": 0.509200}, abs=1e-7)
    value, gradient = toy.loss(term)
    assert value == pytest.approx(0.257150 + 0.509200 * 0.142001, abs=2e-6)
    # -A rho / 5 + 2 c (rho - 1) rho / 5 of the first token
    assert gradient[0] == pytest.approx((-1.349859 + 2 * 0.509200 * 0.349859 * 1.349859) / 5, abs=2e-6)


@given(st.lists(st.floats(0, 2), max_size=8), st.floats(0, 1), st.floats(0, 1), st.floats(0, 3))
def test_ratio_variance_multiplier_is_projected_ascent(variances, limit, rate, start) -> None:
    surrogate, penalty = RatioVariance(start, limit, rate), start
    for variance in variances:
        penalty = max(0.0, penalty + rate * (variance - limit))
        assert surrogate.adjust({"ratio_variance": variance})["ratio_penalty"] == pytest.approx(penalty, abs=1e-12)
    assert surrogate.adjust({"kl": 3.0})["ratio_penalty"] == pytest.approx(penalty, abs=1e-12)  # nothing was measured
    assert surrogate.state_dict()["penalty"] == pytest.approx(penalty, abs=1e-12)


def test_ratio_variance_does_not_penalise_tokens_without_credit(toy) -> None:
    # also where a ratio of the whole answer makes them active
    credit = torch.tensor([1.0, 0.0, -1.0, -1.0, -1.0], dtype=torch.float64)
    for ratio in ("token", "sequence"):
        term = PolicyGradient(surrogate=RatioVariance(penalty=5.0), ratio=ratio)  # type: ignore[arg-type]  # allowed words
        _, gradient = toy._replace(credit=credit).loss(term)
        assert gradient[1] == 0 and all(gradient[i] != 0 for i in (0, 2, 3, 4))


def test_ratio_variance_resumes_where_it_was_saved() -> None:
    m = gxpo.method("r2vpo", {"objective.penalty": 0.3})
    assert m.adjust({"ratio_variance": 0.5}) == pytest.approx({"ratio_penalty": 0.3 + 0.1 * 0.46})
    state, other = m.state_dict(), gxpo.method("r2vpo", {"objective.penalty": 0.3})
    other.load_state_dict(state)
    for variance in (0.2, 0.0, 0.7):
        assert m.adjust({"ratio_variance": variance}) == other.adjust({"ratio_variance": variance})
    assert m.fill(horizon=2.0).adjust({}) == {"ratio_penalty": 0.3}
    with pytest.raises(CheckpointError, match="ratio_variance"):
        RatioVariance().load_state_dict({"factor": 1.0})
