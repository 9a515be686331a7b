"""Tokens that nobody is known to have sampled: what stands in the place of their ratio."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.objectives.by_position import Truncate, Unclipped
from tests.algorithms.objectives.conftest import figures_of

from gxpo.algorithms.objectives.base import PolicyGradient
from gxpo.algorithms.objectives.surrogate import Clip, DualClip, LogClip, Surrogate, shaped
from gxpo.base.errors import ConfigError, GxpoError
from gxpo.parts.protocols import PolicyTokens

NAN = float("nan")
SURROGATES = [Unclipped(), Clip(0.2, 0.28), DualClip(0.2, 0.2, 1.5), LogClip(0.3, 0.2), Truncate(1.28)]


def term(**more: Any) -> PolicyGradient:
    return PolicyGradient(**{"on_unknown_behaviour": "shaped", "aggregate": "token_mean", **more})


# ---------------------------------------------------------------- the shape
def test_the_shape_and_its_gradient_in_numbers() -> None:
    # f(x) = x / (x + 0.1): 0.01/0.11, 0.1/0.2, 0.5/0.6, 0.9/1.0
    # x f'(x) = 0.1 x / (x + 0.1)^2: 0.001/0.0121, 0.01/0.04, 0.05/0.36, 0.09/1
    x = torch.tensor([0.01, 0.1, 0.5, 0.9], dtype=torch.float64)
    logprob = x.log().requires_grad_()
    loss = shaped(logprob, torch.tensor([1.0, 1.0, 1.0, -2.0], dtype=torch.float64), 0.1)
    expected = [-0.090909, -0.5, -0.833333, 1.8]
    assert loss.tolist() == pytest.approx(expected, abs=1e-6)
    (gradient,) = torch.autograd.grad(loss.sum(), logprob)
    assert gradient.tolist() == pytest.approx([-0.082645, -0.25, -0.138889, 0.18], abs=1e-6)


@given(st.floats(-30, -1e-6), st.floats(-3, 3), st.floats(0.01, 2))
def test_the_gradient_is_the_stated_one_and_is_greatest_at_gamma(lp: float, credit: float, gamma: float) -> None:
    logprob = torch.tensor([lp, math.log(gamma)], dtype=torch.float64, requires_grad=True)
    loss = shaped(logprob, torch.full((2,), credit, dtype=torch.float64), gamma)
    gradient_at_gamma, peak = torch.autograd.grad(loss.sum(), logprob)[0].tolist()
    x = math.exp(lp)
    assert gradient_at_gamma == pytest.approx(-credit * gamma * x / (x + gamma) ** 2, rel=1e-9, abs=1e-15)
    assert peak == pytest.approx(-credit / 4) and abs(gradient_at_gamma) <= abs(peak) + 1e-12
    assert abs(float(loss[0].detach())) <= abs(credit)


# ---------------------------------------------------------------- in the policy term
@pytest.mark.parametrize("surrogate", SURROGATES, ids=lambda g: type(g).__name__)
@pytest.mark.parametrize("over", ["proximal", "behaviour"])
@pytest.mark.parametrize("with_proximal", [True, False])
def test_unknown_entries_are_shaped_whatever_the_ratio_is_over(
    toy, surrogate: Surrogate, over: Any, with_proximal: bool
) -> None:
    behaviour = toy.old.clone()
    behaviour[[1, 4]] = NAN
    changes = {"behaviour_logprob": behaviour} | ({"proximal_logprob": toy.old - 0.1} if with_proximal else {})
    value, gradient = toy.loss(term(surrogate=surrogate, ratio_over=over), **changes)
    filled_behaviour = behaviour.nan_to_num(-1.0)
    has_behaviour = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0], dtype=torch.float64)
    plain = PolicyGradient(surrogate=surrogate, ratio_over=over, aggregate="token_mean")
    rest, slopes = toy.loss(
        plain, weight=has_behaviour, **changes | {"behaviour_logprob": filled_behaviour}
    )  # the same without the two
    extra = 0.0
    for i, a in ((1, 1.0), (4, -1.0)):  # their credits
        x = math.exp(float(toy.logprob.detach()[i]))
        extra += -a * x / (x + 0.1) / 5
        slopes[i] = -a * 0.1 * x / (x + 0.1) ** 2 / 5
    assert value == pytest.approx(rest + extra, abs=1e-14)
    assert gradient == pytest.approx(slopes, abs=1e-14)


def test_where_everybody_is_known_nothing_changes(toy) -> None:
    for surrogate in SURROGATES:
        assert toy.loss(term(surrogate=surrogate)) == toy.loss(
            PolicyGradient(surrogate=surrogate, aggregate="token_mean")
        )


def test_weights_and_denominators_are_those_of_every_entry(toy) -> None:
    unknown = toy.old.clone()
    unknown[1] = NAN
    weight = torch.tensor([1.0, 0.5, 1.0, 1.0, 1.0], dtype=torch.float64)
    for mode, size in (("token_mean", 1 / 5), ("sequence_mean", 1 / 4), ("sequence_sum", 1 / 2 / 7)):
        _, gradient = toy.loss(term(aggregate=mode, horizon=7), behaviour_logprob=unknown, weight=weight)
        x = math.exp(float(toy.logprob.detach()[1]))
        assert gradient[1] == pytest.approx(-0.5 * size * 0.1 * x / (x + 0.1) ** 2)


def test_gamma_is_the_terms(toy) -> None:
    unknown = torch.full_like(toy.old, NAN)
    for gamma in (0.1, 0.5):
        value, _ = toy.loss(term(shaping_gamma=gamma), behaviour_logprob=unknown)
        x = toy.logprob.detach().exp()
        assert value == pytest.approx(float((-toy.credit * x / (x + gamma)).mean()))


def test_figures_are_of_entries_that_have_a_ratio(toy) -> None:
    unknown = toy.old.clone()
    unknown[[0, 4]] = NAN
    x = term(surrogate=Clip(0.05, 0.05))
    figures = figures_of(x, toy.forest, toy.policy(behaviour_logprob=unknown), toy.credit, toy.weight)
    # log-ratios left: -0.1 (A +1), -0.4 and 0.2 (A -1): of these only -0.4 is cut
    assert figures["shaped_share"] == pytest.approx(2 / 5) and figures["clip_fraction"] == pytest.approx(1 / 5)
    assert figures["ratio_max"] == pytest.approx(math.exp(0.2)) and figures["on_policy"] == 0
    changes = (-0.1, -0.4, 0.2)
    assert figures["approx_kl"] == pytest.approx(sum(math.exp(c) - 1 - c for c in changes) / 3)
    nobody = figures_of(
        x, toy.forest, toy.policy(behaviour_logprob=torch.full_like(unknown, NAN)), toy.credit, toy.weight
    )
    assert nobody["shaped_share"] == 1 and nobody["on_policy"] == 1 and nobody["clip_fraction"] == 0
    assert "shaped_share" not in figures_of(PolicyGradient(), toy.forest, toy.policy(), toy.credit, toy.weight)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.booleans(), min_size=5, max_size=5), st.lists(st.integers(0, 2), min_size=5, max_size=5))
def test_any_partition_gives_the_gradient_of_the_whole(known: list[bool], part: list[int]) -> None:
    from tests.algorithms.objectives.conftest import grow_forest

    forest = grow_forest([("a", 2), ("a", 3)])
    generator = torch.Generator().manual_seed(2)
    lp = -torch.rand(5, generator=generator, dtype=torch.float64)
    behaviour = torch.where(torch.tensor(known), lp - 0.2, torch.nan)
    credit, weight = torch.tensor([1.0, -0.5, 2.0, -1.0, 0.0], dtype=torch.float64), torch.ones(5)

    def gradient(inside: torch.Tensor) -> torch.Tensor:
        x = lp.clone().requires_grad_()
        live_inside = torch.where(inside, x, x.detach())
        value = term()(forest, PolicyTokens(live_inside, behaviour), credit, weight, {}, 0)[0]
        return torch.autograd.grad(value, x)[0]

    whole_gradient = gradient(torch.ones(5, dtype=torch.bool))
    pieces = sum(gradient(torch.tensor(part) == k) for k in range(3))
    assert isinstance(pieces, torch.Tensor) and pieces.tolist() == pytest.approx(whole_gradient.tolist(), abs=1e-15)


# ---------------------------------------------------------------- what is refused
def test_a_known_sampler_needs_a_proximal_log_prob(toy) -> None:
    proximal = toy.old.clone()
    proximal[2] = NAN
    with pytest.raises(GxpoError, match="1 of 5 trainable tokens have no proximal log-prob"):
        toy.loss(term(), proximal_logprob=proximal)
    behaviour = toy.old.clone()
    behaviour[2] = NAN
    toy.loss(term(), proximal_logprob=proximal, behaviour_logprob=behaviour)


def test_sequence_ratios_and_a_gamma_of_zero_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"'shaped' works with objective\.ratio 'token' only"):
        term(ratio="sequence")
    with pytest.raises(ConfigError, match=r"objective\.shaping_gamma is 0\.0"):
        term(shaping_gamma=0.0)
