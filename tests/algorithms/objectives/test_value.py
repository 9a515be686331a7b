"""Value regression: worked numbers, the stated gradient, what is and is not trained, a loop."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.objectives.conftest import figures_of

from gxpo.algorithms.objectives.value import ValueRegression, value_loss
from gxpo.base.errors import ConfigError, GxpoError, MissingSignal
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import PolicyTokens

Grow = Callable[..., Forest]
F64 = torch.float64
NAN = math.nan


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


def policy_of(value: torch.Tensor) -> PolicyTokens:
    return PolicyTokens(torch.zeros_like(value), torch.zeros_like(value), value=value)


def run(term: ValueRegression, forest: Forest, value, target, old=None) -> tuple[float, list[float]]:
    x = column(*value).requires_grad_()
    signals = {"value_target": column(*target)} | ({} if old is None else {"value": column(*old)})
    zero = torch.zeros(len(value), dtype=F64)  # no credit anywhere: the value is trained all the same
    loss = term(forest, policy_of(x), zero, zero + 1, signals, 0)[0]
    loss.backward()
    return float(loss.detach()), x.grad.tolist() if x.grad is not None else []


# ---------------------------------------------------------------- worked numbers
def test_worked_mean_over_tokens(grow: Grow) -> None:
    """V - target = [.5, -1, 2]: .5 * mean([.125, .5, 2]) = .4375; gradient .5 * (V - target) / 3."""
    value, slope = run(ValueRegression(), grow([("a", 2), ("a", 1)]), (1.0, 0.0, 2.0), (0.5, 1.0, 0.0))
    assert value == pytest.approx(0.4375)
    assert slope == pytest.approx([0.5 * 0.5 / 3, -0.5 / 3, 0.5 * 2 / 3])


def test_worked_mean_over_sequences(grow: Grow) -> None:
    """The same per trajectory: .5 * mean([(.125 + .5) / 2, 2]) = .5 * 1.15625."""
    term = ValueRegression(aggregate="sequence_mean")
    value, _ = run(term, grow([("a", 2), ("a", 1)]), (1.0, 0.0, 2.0), (0.5, 1.0, 0.0))
    assert value == pytest.approx(0.578125)


def test_worked_clip() -> None:
    """Old 0, clip .5, target 2. V = 1 has moved too far towards it: max(.5, (2 - .5)^2/2 = 1.125), gradient 0.
    V = -1 away from it: max(4.5, (2 + .5)^2/2 = 3.125), gradient V - target = -3. V = .25 inside: 1.53125, -1.75."""
    value = column(1.0, -1.0, 0.25).requires_grad_()
    loss = value_loss(value, column(2, 2, 2), column(0, 0, 0), 0.5)
    assert loss.tolist() == pytest.approx([1.125, 4.5, 1.53125])
    (slope,) = torch.autograd.grad(loss.sum(), value)
    assert slope.tolist() == pytest.approx([0.0, -3.0, -1.75])


# ---------------------------------------------------------------- who is trained
def test_tokens_without_a_target_are_not_counted(grow: Grow) -> None:
    """A trajectory whose critic waits (nan), and tokens of others: the mean is over the two that are left."""
    forest = grow([("a", 2), ("a", 2, {"trainable": [True, False]}), ("a", 1)])
    term = ValueRegression(coef=1.0)
    value, slope = run(term, forest, (9.0, 9.0, 1.0, 9.0, 3.0), (NAN, NAN, 0.0, 5.0, 1.0))
    assert value == pytest.approx((0.5 + 2.0) / 2)
    assert slope == pytest.approx([0, 0, 0.5, 0, 1.0])
    averaged, slope = run(
        ValueRegression(coef=1.0, aggregate="sequence_mean"), forest, (9, 9, 1, 9, 3), (NAN,) * 4 + (1,)
    )
    assert averaged == pytest.approx(2.0) and slope == [0, 0, 0, 0, 2.0]


def test_nothing_to_train_is_zero(grow: Grow) -> None:
    value, slope = run(ValueRegression(), grow([("a", 2)]), (1.0, 2.0), (NAN, NAN))
    assert value == 0.0 and slope == [0.0, 0.0]


def test_active_without_credit_but_not_without_weight(grow: Grow) -> None:
    forest = grow([("a", 2, {"trainable": [True, False]}), ("a", 1, {"weight": 0.0}), ("a", 1)])
    zero = torch.zeros(4, dtype=F64)
    assert ValueRegression().active(forest, zero, zero).tolist() == [True, False, False, True]
    assert not bool(ValueRegression(coef=0.0).active(forest, zero, zero).any())
    some = {"value_target": column(NAN, 0, 0, 1)}
    assert ValueRegression().active(forest, zero, zero, some).tolist() == [False, False, False, True]
    _, slope = run(ValueRegression(coef=1.0), forest, (1.0, 1.0, 1.0, 1.0), (0.0, 0.0, 0.0, 0.0))
    assert slope == pytest.approx([1 / 3, 0, 0, 1 / 3])  # the weightless trajectory only counts


ROWS = st.lists(st.tuples(st.integers(1, 3), st.booleans(), st.booleans()), min_size=1, max_size=5)


@settings(max_examples=30, deadline=None)
@given(rows=ROWS, mode=st.sampled_from(["token_mean", "sequence_mean", "sequence_sum"]), seed=st.integers(0, 99))
def test_equals_a_loop(grow: Grow, rows, mode, seed) -> None:
    rng = random.Random(seed)
    forest = grow([("a", n, {"trainable": t}) for n, t, _ in rows])
    value = [rng.uniform(-1, 1) for n, *_ in rows for _ in range(n)]
    target = [rng.uniform(-1, 1) if has_target else NAN for n, _, has_target in rows for _ in range(n)]
    old = [rng.uniform(-1, 1) for _ in value]
    sums, lengths, at = [], [], 0
    for n, trainable, has_target in rows:
        if trainable and has_target:
            terms = []
            for p in range(at, at + n):
                clipped_value = old[p] + min(0.3, max(-0.3, value[p] - old[p]))
                terms.append(max((value[p] - target[p]) ** 2, (clipped_value - target[p]) ** 2) / 2)
            sums.append(math.fsum(terms))
            lengths.append(n)
        at += n
    expected = 0.0
    if sums:
        expected = {
            "token_mean": math.fsum(sums) / sum(lengths),
            "sequence_mean": sum(s / n for s, n in zip(sums, lengths, strict=True)) / len(sums),
            "sequence_sum": math.fsum(sums) / len(sums) / 7,
        }[mode]
    term = ValueRegression(coef=0.8, clip=0.3, aggregate=mode, horizon=7.0)
    assert run(term, forest, value, target, old)[0] == pytest.approx(0.8 * expected, abs=1e-12)


# ---------------------------------------------------------------- figures, errors
def test_figures(grow: Grow) -> None:
    """Errors [.5, 1, 0]: mean square 1.25/3; targets [0, 0, 3] have variance 2: explained 1 - 1.25/6."""
    forest, term = grow([("a", 2), ("a", 1)]), ValueRegression()
    zero = torch.zeros(3, dtype=F64)
    metrics = figures_of(term, forest, policy_of(column(0.5, 1, 3)), zero, zero, {"value_target": column(0, 0, 3)})
    assert metrics == pytest.approx({"value_loss": 1.25 / 6, "value_explained": 1 - 1.25 / 6})
    equal = figures_of(term, forest, policy_of(column(0.5, 1, 3)), zero, zero, {"value_target": column(1, 1, 1)})
    assert equal["value_explained"] == 0.0
    nothing = {"value_target": column(NAN, NAN, NAN)}
    assert figures_of(term, forest, policy_of(column(0.5, 1, 3)), zero, zero, nothing) == {}


def test_what_it_asks_for_and_refuses(grow: Grow) -> None:
    assert ValueRegression().needs == ("value_target",) and "value" in ValueRegression().outputs
    assert ValueRegression(clip=0.2).needs == ("value_target", "value")
    forest, zero = grow([("a", 1)]), torch.zeros(1, dtype=F64)
    with pytest.raises(MissingSignal, match=r"PolicyTokens\.value"):
        ValueRegression()(forest, PolicyTokens(zero, zero), zero, zero, {"value_target": zero}, 0)[0]
    with pytest.raises(GxpoError, match="infinite"):
        ValueRegression()(forest, policy_of(zero), zero, zero, {"value_target": zero + math.inf}, 0)[0]
    with pytest.raises(ConfigError, match="coef"):
        ValueRegression(coef=-1.0)


# ---------------------------------------------------------------- heads by name
def test_a_named_head_reads_its_own_output_and_target(grow: Grow) -> None:
    """V@low - target = [1, -2] on the two that have a target: .5 * mean([.5, 2]); no gradient for the plain value."""
    forest, term = grow([("a", 3)]), ValueRegression(head="low")
    plain, low = column(9, 9, 9).requires_grad_(), column(1, 5, 0).requires_grad_()
    policy = PolicyTokens(torch.zeros(3), torch.zeros(3), value=plain, outputs={"value@low": low})
    zero, signals = torch.zeros(3, dtype=F64), {"value_target@low": column(0, NAN, 2)}
    loss = term(forest, policy, zero, zero + 1, signals, 0)[0]
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0.625) and plain.grad is None
    assert low.grad is not None and low.grad.tolist() == pytest.approx([0.25, 0.0, -0.5])
    metrics = figures_of(term, forest, policy, zero, zero, signals)
    assert metrics == pytest.approx({"value_loss@low": 1.25, "value_explained@low": 1 - 2.5})
    assert term.outputs == ("logprob", "value@low") and term.needs == ("value_target@low",)
    clipped = ValueRegression(head="low", clip=0.5, target="returns")
    assert clipped.needs == ("returns", "value@low")
    head_signals = {"returns": column(0, NAN, 2), "value@low": column(0, 0, 0)}
    # 1 from 0 towards 0 is not held; 0 to 2: old 0, held 0: both as before
    assert float(clipped(forest, policy, zero, zero + 1, head_signals, 0)[0].detach()) == pytest.approx(0.625)


def test_a_named_head_that_is_missing_is_asked_for(grow: Grow) -> None:
    forest, zero = grow([("a", 1)]), torch.zeros(1, dtype=F64)
    with pytest.raises(MissingSignal, match=r"outputs\['value@q1'\]"):
        ValueRegression(head="q1")(forest, policy_of(zero), zero, zero, {"value_target@q1": zero}, 0)[0]
    with pytest.raises(ConfigError, match="head and target are names"):
        ValueRegression(head="")


# ---------------------------------------------------------------- forms
@pytest.mark.parametrize(
    ("u", "form", "options", "expected"),
    [
        (0.5, "expectile", {"tau": 0.9}, 0.225),  # .9 * .25
        (-0.5, "expectile", {"tau": 0.9}, 0.025),
        (0.5, "quantile", {"tau": 0.9}, 0.45),
        (-0.5, "quantile", {"tau": 0.9}, 0.05),
        (0.5, "gumbel", {}, 0.148721),  # e^.5 - 1.5
        (-0.5, "gumbel", {}, 0.106531),
        (1.0, "gumbel", {"temperature": 2.0}, 0.148721),
        (7.0, "gumbel", {}, 142.413159),  # z is cut at 5: e^5 - 6
        (0.5, "advantage_weighted", {"temperature": 0.5}, 0.339785),  # e (1 / 2) of target - old = .5; .125 e
        (9.0, "advantage_weighted", {"max_weight": 10.0}, 405.0),  # 10 * 81 / 2
    ],
)
def test_worked_forms(u: float, form, options, expected: float) -> None:
    old = column(0.0)
    assert float(value_loss(column(0.0), column(u), old, form=form, **options)) == pytest.approx(expected, abs=1e-6)


def test_worked_cross_entropy() -> None:
    """log-odds 0, target .25: log 2; slope p - target = .25."""
    x = column(0.0).requires_grad_()
    loss = value_loss(x, column(0.25), form="bce").sum()
    loss.backward()
    assert float(loss.detach()) == pytest.approx(0.693147, abs=1e-6) and float(x.grad) == pytest.approx(0.25)


@pytest.mark.parametrize(("tau", "expected"), [(0.5, 0.25), (0.7, 0.4375), (0.9, 0.75), (0.99, 0.970588)])
def test_expectiles_of_three_failures_and_a_success(tau: float, expected: float) -> None:
    """tau (1 - v) = 3 (1 - tau) v: v = tau / (tau + 3 (1 - tau))."""
    targets, v = column(0.0, 0.0, 0.0, 1.0), column(expected).requires_grad_()
    value_loss(v.expand(4), targets, form="expectile", tau=tau).sum().backward()
    assert float(v.grad) == pytest.approx(0.0, abs=1e-5)


def test_a_form_is_trained_and_the_figure_stays_the_squared_error(grow: Grow) -> None:
    """coef .5, mean of (.225, .025); figure mean of (.125, .125)."""
    term, forest = ValueRegression(form="expectile"), grow([("a", 2)])
    value, _ = run(term, forest, (0.0, 1.0), (0.5, 0.5))
    assert value == pytest.approx(0.5 * 0.125)
    assert term._figures(column(0.0, 1.0), column(0.5, 0.5))["value_loss"] == pytest.approx(0.125)


def test_cross_entropy_reads_its_own_target_within_bounds(grow: Grow) -> None:
    term, forest = ValueRegression(form="bce", head="chunk"), grow([("a", 1)])
    assert term.needs == ("value_logit_target@chunk",)
    x = PolicyTokens(column(0.0), column(0.0), outputs={"value@chunk": column(0.0)})
    one = column(1.0)
    with pytest.raises(GxpoError, match="leaves"):
        term(forest, x, one, one, {"value_logit_target@chunk": column(1.5)}, 0)


def test_a_clip_is_of_the_squared_error() -> None:
    with pytest.raises(ConfigError, match="form mse"):
        ValueRegression(clip=0.5, form="gumbel")
