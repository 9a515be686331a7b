"""Steps of diffusion and flow samplers against the published numbers and by their moments."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.distributions import Normal

from gxpo.base.errors import ModelError
from gxpo.models import denoising
from gxpo.models.denoising import Denoiser, log_density, noise_scales, parts_of
from gxpo.training.models.flow import FlowModel, schedule


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


def flow_scales(noise, level, *sigma):
    """Noise scales and kept noise of a flow at these levels; the last step is the ODE's."""
    return noise_scales(noise, level, 1 - column(*sigma), column(*sigma))


def flow_mean(x, v, here, there, kept):
    """Mean of a step of a flow, from its parts."""
    data, noise = parts_of("flow", v, x, column(1 - here), column(here))
    return (1 - there) * data + kept * noise


# ---------------------------------------------------------------- worked numbers
def test_a_step_of_flow_grpo():
    # sigma .8 -> .6, a .7: std = .7 sqrt(.8 / .2) = 1.4; s = 1.4 sqrt(.2) = .626099
    # mean = x (1 + 1.96 / 1.6 * -.2) + v (1 + 1.96 * .2 / 1.6) * -.2 = .755 - .1245 = .6305
    # logp(.9) = -(.2695)^2 / (2 * .392) - log .626099 - log sqrt(2 pi) = -.543332
    s, kept = flow_scales("flow_sde", 0.7, 0.8, 0.6, 0.0)
    assert s.tolist() == pytest.approx([0.626099, 0.0], abs=1e-6)
    mean = flow_mean(row(1), row(0.5), 0.8, 0.6, kept[0])
    assert mean.item() == pytest.approx(0.6305, abs=1e-12)
    assert log_density(row(0.9), mean, s[:1]).item() == pytest.approx(-0.543332, abs=1e-6)


def test_a_step_of_dance_grpo_has_a_constant_std():
    # eta .3: s = .3 sqrt(.2) = .134164; mean .887625; logp(.9) = 1.085499
    s, kept = flow_scales("dance", 0.3, 0.8, 0.6, 0.0)
    mean = flow_mean(row(1), row(0.5), 0.8, 0.6, kept[0])
    assert s[0].item() == pytest.approx(0.134164, abs=1e-6) and mean.item() == pytest.approx(0.887625, abs=1e-9)
    assert log_density(row(0.9), mean, s[:1]).item() == pytest.approx(1.085499, abs=1e-6)


def test_a_step_of_ddpo():
    # abar .5 -> .7, eta 1: var = (.3 / .5) (1 - .5 / .7) = .171429; x0 = (1 - .3 sqrt .5) / sqrt .5 = 1.114214;
    # mean = sqrt(.7) x0 + sqrt(.3 - .171429) .3 = .932216 + .107571 = 1.039789; logp(1.1) = -.047718
    abar = column(0.5, 0.7, 1.0)
    s, kept = noise_scales("ddim_eta", 1.0, abar.sqrt(), (1 - abar).sqrt())
    assert s[0].square().item() == pytest.approx(0.171429, abs=1e-6) and s[1] == 0
    data, noise = parts_of("epsilon", row(0.3), row(1.0), abar[:1].sqrt(), (1 - abar[:1]).sqrt())
    mean = math.sqrt(0.7) * data + kept[0] * noise
    assert mean.item() == pytest.approx(1.039789, abs=1e-6)
    assert log_density(row(1.1), mean, s[:1]).item() == pytest.approx(-0.047718, abs=1e-6)
    ddpm = noise_scales("ddpm", 0.3, abar.sqrt(), (1 - abar).sqrt())
    assert torch.equal(ddpm[0], s) and torch.equal(ddpm[1], kept)


def test_the_noise_of_ten_steps_of_sd35():
    # at sigma 1 the formula takes 1 - sigma from the next level: .7 sqrt(1 / .0399) sqrt(.0399) = .7
    sigmas = [1, 0.9601, 0.9133, 0.8577, 0.7904, 0.7073, 0.6022, 0.4649, 0.278, 0.0089, 0]
    assert sd35().tolist() == pytest.approx(sigmas, abs=5e-5)
    actual = flow_scales("flow_sde", 0.7, *sd35())[0][:-1].tolist()
    expected = [0.7, 0.742964, 0.536152, 0.445897, 0.391794, 0.352797, 0.31907, 0.282007, 0.22536]
    assert actual == pytest.approx(expected, abs=1e-6)


# ---------------------------------------------------------------- properties
def moments(sigmas, noise, level, mean, spread):
    """Mean and variance at the end for data N(mean, spread^2), by the exact velocity, step by step."""
    m, var = 0.0, 1.0
    s, kept = noise_scales(noise, level, 1 - sigmas, sigmas)
    for k in range(len(sigmas) - 1):
        here, there = float(sigmas[k]), float(sigmas[k + 1])
        total = (1 - here) ** 2 * spread**2 + here**2  # variance of x at this level
        slope = (here - (1 - here) * spread**2) / total  # of E[noise - data | x]
        offset = -mean - slope * (1 - here) * mean
        end, start = (
            flow_mean(row(x), row(slope * x + offset), here, there, float(kept[k])).item() for x in (1.0, 0.0)
        )
        m, var = start + (end - start) * m, (end - start) ** 2 * var + float(s[k]) ** 2
    return m, var


@pytest.mark.parametrize(
    ("noise", "level"), [("flow_sde", 0.0), ("flow_sde", 0.3), ("flow_sde", 0.7), ("dance", 0.3), ("ddim_eta", 1.0)]
)
def test_samplers_end_where_the_ode_does_whatever_their_noise(noise, level):
    m, var = moments(schedule(400), noise, level, mean=0.6, spread=0.5)
    assert m == pytest.approx(0.6, abs=0.02)
    assert math.sqrt(var) == pytest.approx(0.5, abs=0.02)


def test_the_last_step_of_the_ode_is_the_estimate_of_the_data():
    # x - sigma v, since x = (1 - sigma) data + sigma noise and v = noise - data
    actual = flow_mean(row(0.4, -1.0), row(2.0, 0.5), 0.25, 0.0, 0.0)
    assert actual.tolist() == [[0.4 - 0.5, -1.0 - 0.125]]


@pytest.mark.parametrize("kind", ["flow", "epsilon", "v_prediction", "sample"])
def test_the_right_output_gives_back_data_and_noise(kind):
    alpha, sigma = (column(0.75), column(0.25)) if kind == "flow" else (column(0.8), column(0.6))
    data, noise = row(0.3, -1.0), row(1.2, 0.4)
    output = denoising.target_of(kind, data, noise, alpha, sigma)
    actual = parts_of(kind, output, alpha * data + sigma * noise, alpha, sigma)
    assert torch.allclose(actual[0], data) and torch.allclose(actual[1], noise)


def test_noise_of_flows_is_refused_for_diffusions():
    model = FlowModel(3)
    model.kind = "epsilon"
    with pytest.raises(ModelError, match=r"rollout.noise=dance is of flows, and this model predicts epsilon"):
        Denoiser.noise_scales(model, 0.5, "dance")


@given(st.integers(2, 9), st.floats(0.5, 6), st.floats(0.1, 2))
def test_schedules_fall_and_noise_is_positive(steps, shift, level):
    sigmas = schedule(steps, shift)
    assert sigmas[0] == 1 and sigmas[-1] == 0 and bool((sigmas.diff() < 0).all())
    s, one = (flow_scales("flow_sde", x, *sigmas)[0] for x in (level, 1.0))
    assert torch.allclose(s, level * one) and bool((s[:-1] > 0).all()) and s[-1] == 0


@given(st.integers(1, 5), st.integers(0, 99))
def test_log_density_and_entropy_are_means_over_dimensions(dims, seed):
    random = torch.Generator().manual_seed(seed)
    x, mean = torch.randn(2, 6, dims, generator=random, dtype=torch.float64)
    scale = torch.rand(6, generator=random, dtype=torch.float64) + 0.1
    law = Normal(mean, scale[:, None])
    assert torch.allclose(log_density(x, mean, scale), law.log_prob(x).mean(1), atol=1e-12)
    assert torch.allclose(denoising.entropy(scale), law.entropy().expand(6, dims).mean(1), atol=1e-12)


def test_steps_without_noise_are_certain():
    zero = column(0.0, 0.5)
    assert log_density(torch.ones(2, 3), torch.zeros(2, 3), zero)[0] == 0
    assert denoising.entropy(zero)[0] == 0


def test_the_gradient_of_the_log_density():
    # d logp / d mean = (x - mean) / (D s^2); zero in a step of the ODE
    x, s = row(0.9, -0.2).repeat(2, 1), column(0.5, 0.0)
    mean = torch.tensor([[0.6, 0.1], [0.6, 0.1]], dtype=torch.float64, requires_grad=True)
    log_density(x, mean, s).sum().backward()
    assert mean.grad is not None
    assert torch.allclose(mean.grad, torch.stack([column(0.3, -0.3) / (2 * 0.25), column(0.0, 0.0)]))
