"""The multiplier of R2VPO: the card's dual step, its metric, resume."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.objectives.conftest import figures_of

import gxpo
from gxpo.errors import CheckpointError
from gxpo.objectives import PolicyGradient
from gxpo.objectives.surrogate_penalties import RatioVariance


def test_the_cards_dual_step(toy) -> None:
    gate = RatioVariance(penalty=0.5, variance_max=0.05, penalty_rate=0.1)
    term = PolicyGradient(surrogate=gate, aggregate="token_mean")
    found = figures_of(term, toy.forest, toy.policy(), toy.credit, toy.weight)
    assert found["ratio_variance"] == pytest.approx(0.142001, abs=6e-7)
    # .5 + .1 (.142001 - .05)
    assert gate.adjust(found) == pytest.approx({"ratio_penalty": 0.509200}, abs=1e-7)
    value, gradient = toy.loss(term)
    assert value == pytest.approx(0.257150 + 0.509200 * 0.142001, abs=2e-6)
    # -A rho / 5 + 2 c (rho - 1) rho / 5 of the first token
    assert gradient[0] == pytest.approx((-1.349859 + 2 * 0.509200 * 0.349859 * 1.349859) / 5, abs=2e-6)


@given(st.lists(st.floats(0, 2), max_size=8), st.floats(0, 1), st.floats(0, 1), st.floats(0, 3))
def test_it_is_projected_ascent(variances, limit, rate, start) -> None:
    gate, penalty = RatioVariance(start, limit, rate), start
    for variance in variances:
        penalty = max(0.0, penalty + rate * (variance - limit))
        assert gate.adjust({"ratio_variance": variance})["ratio_penalty"] == pytest.approx(penalty, abs=1e-12)
    assert gate.adjust({"kl": 3.0})["ratio_penalty"] == pytest.approx(penalty, abs=1e-12)  # nothing was measured
    assert float(gate.coefficient(torch.ones(1, dtype=torch.float64))) == pytest.approx(penalty, abs=1e-12)


def test_entries_without_credit_are_not_penalised(toy) -> None:
    # also where a ratio of the whole answer makes them active
    credit = torch.tensor([1.0, 0.0, -1.0, -1.0, -1.0], dtype=torch.float64)
    for ratio in ("token", "sequence"):
        term = PolicyGradient(surrogate=RatioVariance(penalty=5.0), ratio=ratio)  # type: ignore[arg-type]  # allowed words
        _, gradient = toy._replace(credit=credit).loss(term)
        assert gradient[1] == 0 and all(gradient[i] != 0 for i in (0, 2, 3, 4))


def test_it_goes_on_where_it_was_saved_and_a_new_run_starts_anew() -> None:
    m = gxpo.method("r2vpo", {"objective.penalty": 0.3})
    assert m.adjust({"ratio_variance": 0.5}) == pytest.approx({"ratio_penalty": 0.3 + 0.1 * 0.46})
    state, other = m.state_dict(), gxpo.method("r2vpo", {"objective.penalty": 0.3})
    other.load_state_dict(state)
    for variance in (0.2, 0.0, 0.7):
        assert m.adjust({"ratio_variance": variance}) == other.adjust({"ratio_variance": variance})
    assert m.fill(horizon=2.0).adjust({}) == {"ratio_penalty": 0.3}
    with pytest.raises(CheckpointError, match="ratio_variance"):
        RatioVariance().load_state_dict({"factor": 1.0})
