"""CAPO (curvature): the card, the closed form against full matrices and an exact Hessian, how much is rejected."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.weighting.verdict_rows import forest_of, group_of, part_of

from gxpo.algorithms.weighting.curvature import predicted, within
from gxpo.base.errors import ConfigError, MissingSignal

F64 = torch.float64


def column(*x):
    return torch.tensor(x, dtype=F64)


def test_card() -> None:
    gain, shift = predicted(column(0.6), column(1.5), column(1.0), 0.01)
    assert float(gain) == pytest.approx(0.011964, abs=1e-9) and float(shift) == pytest.approx(0.000072, abs=1e-9)
    # at p = 1/2 the quadratic part is 0: .01 * 2 * .5 * 1.5
    assert float(predicted(column(0.5), column(1.5), column(1.0), 0.01)[0]) == pytest.approx(0.015, abs=1e-15)


@pytest.mark.parametrize("credit", [1.0, -0.7, 2.5])
@pytest.mark.parametrize(("logits", "h"), [([1.0, 0.3, -0.8], [1.0, 0.5]), ([0.0, 2.0, 0.1, -3.0], [-1.0, 0.2, 3.0])])
def test_equals_the_exact_hessian_in_the_heads_weights(credit, logits, h) -> None:
    """A pi / pi_old at W, and its Hessian by autograd; a is the first token."""
    h = column(*h)
    base = torch.outer(column(*logits), h) / h.square().sum()  # W h = logits
    p = torch.softmax(column(*logits), 0)

    def objective(w):
        return credit * torch.softmax(w @ h, 0)[0] / p[0]

    gradient = torch.autograd.functional.jacobian(objective, base)
    hessian = torch.autograd.functional.hessian(objective, base).reshape(base.numel(), -1)
    step = 0.01 * gradient.sign()
    linear, quadratic = (gradient * step).sum(), step.reshape(-1) @ hessian @ step.reshape(-1) / 2
    score = torch.outer(torch.eye(len(p), dtype=F64)[0] - p, h)
    gain, shift = predicted(p[:1], h.abs().sum()[None], column(credit), 0.01)
    assert float(gain) == pytest.approx(float(linear + quadratic), rel=1e-9)
    assert float(shift) == pytest.approx(float((score * step).sum() ** 2 / 2), rel=1e-9)


def test_no_credit_and_certainty_promise_nothing() -> None:
    gain, shift = predicted(column(0.3, 1.0), column(2.0, 2.0), column(0.0, 1.0), 0.1)
    assert gain.tolist() == [0.0, 0.0] and float(shift[0]) > 0 and float(shift[1]) == 0.0


MOMENT = st.tuples(st.sampled_from([-2.0, -0.1, 0.0, 0.3, 1.0, 9.0]), st.floats(0, 5), st.booleans())


@settings(max_examples=100, deadline=None)
@given(st.lists(MOMENT, min_size=1, max_size=60), st.sampled_from([0.0, 0.08, 0.3, 0.9]))
def test_at_most_the_share_is_rejected_by_bounds_of_a_loop(rows, reject):
    gain, shift = column(*(g for g, _, _ in rows)), column(*(f for _, f, _ in rows))
    where = torch.tensor([c for *_, c in rows])
    is_kept = within(gain, shift, where, reject).tolist()
    counted = [i for i, c in enumerate(where.tolist()) if c]
    if not counted:
        assert all(is_kept)
        return
    assert sum(not is_kept[i] for i in counted) <= reject * len(counted) + 1e-9
    k = max(1, math.ceil((1 - reject / 3) * len(counted) - 1e-9))
    high = sorted(float(gain[i]) for i in counted)[k - 1]
    low = min(0.0, sorted((float(gain[i]) for i in counted), reverse=True)[k - 1])
    most = sorted(float(shift[i]) for i in counted)[k - 1]
    assert is_kept == [low <= g <= high and f <= most for g, f, _ in rows]


def test_the_far_step_goes_and_the_rest_stays() -> None:
    """40 tokens: 8 % is three of them, one beyond each bound."""
    forest = forest_of(group_of(*[1, 0] * 10, n=2))
    logprob = torch.full((40,), 0.4, dtype=F64).log()
    norm, credit = torch.ones(40, dtype=F64), torch.ones(40, dtype=F64)
    norm[7] = 50.0
    weight = part_of("capo_curvature", "curvature", lr=0.01)(
        forest, credit, {"proximal_logprob": logprob, "state_norm": norm}, 0
    )
    assert weight.tolist() == [0.0 if i == 7 else 1.0 for i in range(40)]
    none = part_of("capo_curvature", "curvature", lr=0.01, reject=0.0)
    weights = none(forest, credit, {"proximal_logprob": logprob, "state_norm": norm}, 0)
    assert weights.tolist() == [1.0] * 40


def test_what_is_wrong_is_said() -> None:
    forest = forest_of(group_of(1, 0))
    signals = {"proximal_logprob": column(-1, -1), "state_norm": column(1, math.nan)}
    with pytest.raises(MissingSignal, match="nan for 1 of 2"):
        part_of("capo_curvature", "curvature")(forest, column(1, -1), signals, 0)
    unasked = part_of("capo_curvature", "curvature")(forest, column(1, 0), signals, 0)
    assert unasked.tolist() == [1, 1]  # nobody asks of credit 0
    for bad in ({"lr": 0.0}, {"reject": 1.0}, {"max_gain": 0.0}, {"max_shift": -1.0}):
        with pytest.raises(ConfigError, match="curvature"):
            part_of("capo_curvature", "curvature", **bad)
