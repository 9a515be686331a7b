"""The arithmetic of the flow's sampler against the published numbers, and the model around it."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Normal

from gxpo.base.errors import ModelError
from gxpo.environments.tasks import points
from gxpo.training.models import flow


def sd35(steps=10, shift=3.0):
    """The levels that SD 3.5 is sampled at: evenly from 1 to the shifted 1/1000, shifted once more, then 0."""

    def shifted(x):
        return shift * x / (1 + (shift - 1) * x)

    levels = [1 + (shifted(1e-3) - 1) * i / (steps - 1) for i in range(steps)]
    return torch.tensor([shifted(x) for x in levels] + [0.0], dtype=torch.float64)


def column(*x):
    return torch.tensor(x, dtype=torch.float64)


def row(*x):
    return column(*x)[None, :]


# ---------------------------------------------------------------- worked numbers
def test_a_step_of_flow_grpo():
    # sigma .8 -> .6, a .7: std = .7 sqrt(.8 / .2) = 1.4; s = 1.4 sqrt(.2) = .626099
    # mean = x (1 + 1.96 / 1.6 * -.2) + v (1 + 1.96 * .2 / 1.6) * -.2 = .755 - .1245 = .6305
    # logp(.9) = -(.2695)^2 / (2 * .392) - log .626099 - log sqrt(2 pi) = -.543332
    s = flow.noise_scales(column(0.8, 0.6), 0.7)
    assert s.tolist() == pytest.approx([0.626099], abs=1e-6)
    mean = flow.transition_mean(row(1), row(0.5), column(0.8), column(0.6), s)
    assert mean.item() == pytest.approx(0.6305, abs=1e-12)
    assert flow.log_density(row(0.9), mean, s).item() == pytest.approx(-0.543332, abs=1e-6)


def test_a_dance_grpo_step_has_a_constant_std():
    # eta .3: s = .3 sqrt(.2) = .134164; mean .887625; logp(.9) = 1.085499
    s = column(0.3 * math.sqrt(0.2))
    mean = flow.transition_mean(row(1), row(0.5), column(0.8), column(0.6), s)
    assert mean.item() == pytest.approx(0.887625, abs=1e-9)
    assert flow.log_density(row(0.9), mean, s).item() == pytest.approx(1.085499, abs=1e-6)


def test_the_noise_of_ten_steps_of_sd35():
    # at sigma 1 the formula takes 1 - sigma from the next level: .7 sqrt(1 / .0399) sqrt(.0399) = .7
    sigmas = [1, 0.9601, 0.9133, 0.8577, 0.7904, 0.7073, 0.6022, 0.4649, 0.278, 0.0089, 0]
    assert sd35().tolist() == pytest.approx(sigmas, abs=5e-5)
    actual = flow.noise_scales(sd35(), 0.7)[:-1].tolist()
    expected = [0.7, 0.742964, 0.536152, 0.445897, 0.391794, 0.352797, 0.31907, 0.282007, 0.22536]
    assert actual == pytest.approx(expected, abs=1e-6)


# ---------------------------------------------------------------- properties
def moments(sigmas, level, mean, spread):
    """Mean and variance at the end for data N(mean, spread^2), by the exact velocity, step by step."""
    m, var = 0.0, 1.0
    s = flow.noise_scales(sigmas, level)
    s[-1] = 0
    for k in range(len(sigmas) - 1):
        here, there = sigmas[k], sigmas[k + 1]
        total = (1 - here) ** 2 * spread**2 + here**2  # variance of x at this level
        slope = (here - (1 - here) * spread**2) / total  # of E[noise - data | x]
        offset = -mean - slope * (1 - here) * mean

        def step(x, here=here, there=there, slope=slope, offset=offset, k=k):
            return flow.transition_mean(
                row(x), row(slope * x + offset), column(here), column(there), column(s[k])
            ).item()

        a = step(1.0) - step(0.0)
        m, var = step(m), a * a * var + float(s[k]) ** 2
    return m, var


@pytest.mark.parametrize("level", [0.0, 0.3, 0.7])
def test_the_sde_ends_where_the_ode_does_whatever_its_noise(level):
    m, var = moments(flow.schedule(400), level, mean=0.6, spread=0.5)
    assert m == pytest.approx(0.6, abs=0.02)
    assert math.sqrt(var) == pytest.approx(0.5, abs=0.02)


def test_the_last_step_of_the_ode_is_the_estimate_of_the_data():
    # x - sigma v, since x = (1 - sigma) data + sigma noise and v = noise - data
    actual = flow.transition_mean(row(0.4, -1.0), row(2.0, 0.5), column(0.25), column(0.0), column(0.0))
    assert actual.tolist() == [[0.4 - 0.5, -1.0 - 0.125]]


@given(st.integers(2, 9), st.floats(0.5, 6), st.floats(0.1, 2))
def test_schedules_fall_and_noise_is_positive(steps, shift, level):
    sigmas = flow.schedule(steps, shift)
    assert sigmas[0] == 1 and sigmas[-1] == 0 and bool((sigmas.diff() < 0).all())
    assert torch.allclose(flow.noise_scales(sigmas, level), level * flow.noise_scales(sigmas, 1.0))
    assert bool((flow.noise_scales(sigmas, level) > 0).all())


@given(st.integers(1, 5), st.integers(0, 99))
def test_log_density_and_entropy_are_means_over_dimensions(dims, seed):
    random = torch.Generator().manual_seed(seed)
    x, mean = torch.randn(2, 6, dims, generator=random, dtype=torch.float64)
    scale = torch.rand(6, generator=random, dtype=torch.float64) + 0.1
    law = Normal(mean, scale[:, None])
    assert torch.allclose(flow.log_density(x, mean, scale), law.log_prob(x).mean(1), atol=1e-12)
    assert torch.allclose(flow.entropy(scale), law.entropy().expand(6, dims).mean(1), atol=1e-12)


def test_steps_without_noise_are_certain():
    zero = column(0.0, 0.5)
    assert flow.log_density(torch.ones(2, 3), torch.zeros(2, 3), zero)[0] == 0
    assert flow.entropy(zero)[0] == 0


def test_the_gradient_of_the_log_density():
    # d logp / d mean = (x - mean) / (D s^2); zero in a step of the ODE
    x, s = row(0.9, -0.2).repeat(2, 1), column(0.5, 0.0)
    mean = torch.tensor([[0.6, 0.1], [0.6, 0.1]], dtype=torch.float64, requires_grad=True)
    flow.log_density(x, mean, s).sum().backward()
    assert mean.grad is not None
    assert torch.allclose(mean.grad, torch.stack([column(0.3, -0.3) / (2 * 0.25), column(0.0, 0.0)]))


# ---------------------------------------------------------------- the model
def test_a_model_is_its_seed_and_leaves_the_global_state_alone():
    torch.manual_seed(3)
    before = torch.get_rng_state()
    one, same, other = (flow.FlowModel(4, seed=s).state_dict() for s in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(one[k], same[k]) for k in one)
    assert any(not torch.equal(one[k], other[k]) for k in one)


def test_the_last_step_of_a_model_has_no_noise():
    model = flow.FlowModel(6)
    assert model.steps == 6 and len(model.sigmas) == 7
    s = model.noise_scales(0.7)
    assert s[-1] == 0 and bool((s[:-1] > 0).all()) and not bool(model.noise_scales(0.0).any())


def test_warm_up_learns_the_mixture_and_repeats_itself():
    recipe = {**flow.RECIPE, "width": 32, "batch": 256, "steps": 120}
    one = flow.warm_up(1, recipe)
    first, same = (flow.warm_up(1, {**recipe, "steps": 5}) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), same.parameters(), strict=True))
    random = torch.Generator().manual_seed(0)
    requests = torch.randint(360, (2000,), generator=random)
    uniform = torch.rand(2000, 2, generator=random, dtype=torch.float64)
    data = points.mixture(requests, uniform, torch.randn(2000, 2, generator=random, dtype=torch.float64)).float()
    noise, sigma = torch.randn(2000, 2, generator=random), torch.rand(2000, generator=random)
    latent = torch.lerp(data, noise, sigma[:, None])

    def loss(network):
        with torch.no_grad():
            return float((network(latent, sigma, requests) - (noise - data)).square().mean())

    assert loss(one) < 0.8 * loss(flow.FlowModel(width=32, seed=1).network)


def test_a_warm_start_is_made_once(tmp_path, monkeypatch):
    monkeypatch.setattr(flow, "RECIPE", {**flow.RECIPE, "batch": 32, "steps": 3})
    messages = []
    one = flow.load("flow:5", cache=tmp_path, notify=messages.append)
    two = flow.load("flow", cache=tmp_path, dtype="float64", notify=messages.append)
    assert len(messages) == 1 and (one.steps, two.steps) == (5, 8) and two.dtype == torch.float64
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b.float())
    for name in ("flow:x", "flow:-1", "flower"):
        with pytest.raises(ModelError, match="unknown flow"):
            flow.load(name, cache=tmp_path)
    with pytest.raises(ModelError, match="at least 2 denoising steps"):
        flow.load("flow:1", cache=tmp_path)


def test_conditions_are_numbers_and_latents_have_no_text():
    words = flow.Conditions()
    assert words.encode("137") == [137] and words.decode([137, -1, -1]) == "137"
    for text in ("360", "x", "-1", ""):
        with pytest.raises(ModelError, match="whole number of degrees below 360"):
            words.encode(text)
    chat = flow.ConditionChat(words)
    assert chat.start([{"role": "user", "content": "12"}]).context == (12,)
    with pytest.raises(ModelError, match="one message"):
        chat.start([{"role": "system", "content": "draw"}, {"role": "user", "content": "12"}])
