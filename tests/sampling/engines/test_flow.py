"""Denoising, held against a loop over numbers, and its independence of the batch."""

import dataclasses
import math

import numpy as np
import pytest
import torch
from tests.sampling.rollouts.flow_session import small_flow

from gxpo.base.errors import ModelError
from gxpo.parts.protocols import Request, Sampling, StreamKey
from gxpo.sampling.engines.draws import uniforms
from gxpo.sampling.engines.flow import FlowEngine, gaussians

NOISY = Sampling(temperature=0.7)
ODE = Sampling(temperature=0.0)


def key(attempt, task="points/10", path=()):
    return StreamKey(5, 3, task, attempt, path)


def one(engine, request, sampling=NOISY):
    [[actual]] = engine.sample([request], sampling)
    return actual


def continued(sample, kept, condition=10, attempt=0):
    """A request that goes on from the first `kept` latents of a sample."""
    blank = np.full((1, 2), np.nan)
    return Request(
        (condition,) + (-1,) * kept,
        (key(attempt, path=(kept,)),),
        extras={"latent": np.concatenate([blank, sample.extras["latent"][:kept]])},
    )


def test_a_flows_sample_equals_one_by_hand():
    # sigma 1, 3/4, 1/2, 1/4, 0 at level .7: std_k = .7 sqrt(sigma / (1 - sigma)), at sigma 1 with 1 - 3/4; s = std / 2
    model = small_flow()
    actual = one(FlowEngine(model), Request((10,), (key(0),)))
    normal = gaussians(uniforms([key(0)], 10)).reshape(5, 2).tolist()
    sigmas = [1, 0.75, 0.5, 0.25, 0]
    stds = [0.7 * math.sqrt(1 / 0.25), 0.7 * math.sqrt(3), 0.7, 0.0 + 0.7 * math.sqrt(1 / 3)]
    x = normal[0]
    expected, logprobs, scales = [x], [sum(-(z**2) / 2 - math.log(2 * math.pi) / 2 for z in x) / 2], [1.0]
    for k in range(4):
        with torch.no_grad():
            v = model.network(torch.tensor([x], dtype=torch.float64), torch.tensor([sigmas[k]]), torch.tensor([10]))
        std, s, new, logprob = stds[k], stds[k] * 0.5, [], 0.0
        if k == 3:
            std = s = 0.0  # the last step is the ODE's
        for i in range(2):
            drift = v[0, i].item() + std**2 / (2 * sigmas[k]) * (x[i] + (1 - sigmas[k]) * v[0, i].item())
            new.append(x[i] - 0.25 * drift + s * normal[k + 1][i])
            if s:
                logprob += (-(normal[k + 1][i] ** 2) / 2 - math.log(s) - math.log(2 * math.pi) / 2) / 2
        x = new
        expected.append(x)
        logprobs.append(logprob)
        scales.append(s)
    assert actual.extras["latent"] == pytest.approx(np.array(expected), abs=1e-12)
    assert actual.logprobs == pytest.approx(logprobs, abs=1e-12)
    assert actual.extras["noise_scale"].tolist() == pytest.approx(scales)
    assert actual.extras["time"].tolist() == sigmas
    assert (actual.tokens, actual.finish) == ([-1] * 5, "stop")


def test_a_flows_samples_do_not_depend_on_the_batch():
    engine = FlowEngine(small_flow())
    requests = [Request((c,), tuple(key(i, f"points/{c}") for i in range(3))) for c in (10, 200)]
    together = engine.sample(requests, NOISY)
    small = FlowEngine(engine.model, batch_rows=2).sample(requests[::-1], NOISY)[::-1]
    for request, group, others in zip(requests, together, small, strict=True):
        for stream, a, b in zip(request.streams, group, others, strict=True):
            completion_alone = one(engine, Request(request.prompt, (stream,)))
            for x in (b, completion_alone):
                assert x.extras["latent"] == pytest.approx(a.extras["latent"], abs=1e-12)
                assert x.logprobs == pytest.approx(a.logprobs, abs=1e-12)


def test_the_ode_draws_the_initial_noise_alone():
    engine = FlowEngine(small_flow())
    sde, ode = (one(engine, Request((10,), (key(0),)), s) for s in (NOISY, ODE))
    assert (sde.extras["latent"][0] == ode.extras["latent"][0]).all()
    assert ode.extras["noise_scale"].tolist() == [1, 0, 0, 0, 0] and ode.logprobs[1:] == [0.0] * 4
    assert ode.logprobs[0] == sde.logprobs[0]
    assert np.abs(sde.extras["latent"][1:] - ode.extras["latent"][1:]).min() > 1e-3


@pytest.mark.parametrize("kept", [1, 2, 4])
def test_a_sample_goes_on_from_any_latent(kept):
    engine = FlowEngine(small_flow())
    completion = one(engine, Request((10,), (key(0),)), ODE)
    rest = one(engine, continued(completion, kept), ODE)
    assert rest.extras["latent"] == pytest.approx(completion.extras["latent"][kept:], abs=1e-12)
    assert rest.extras["time"].tolist() == completion.extras["time"][kept:].tolist() and rest.finish == "stop"
    step = one(engine, continued(completion, kept), dataclasses.replace(NOISY, max_new_tokens=1))
    assert len(step.tokens) == 1 and step.finish == ("stop" if kept == 4 else "length")


def test_starts_of_different_length_go_together():
    engine = FlowEngine(small_flow())
    full_value = one(engine, Request((10,), (key(0),)), ODE)
    requests = [continued(full_value, 3), Request((10,), (key(1),)), continued(full_value, 1)]
    for request, [actual] in zip(requests, engine.sample(requests, NOISY), strict=True):
        completion = one(engine, request)
        assert len(actual.tokens) == 5 - (len(request.prompt) - 1)
        assert actual.extras["latent"] == pytest.approx(completion.extras["latent"], abs=1e-12)


def test_max_new_tokens_cuts():
    engine = FlowEngine(small_flow())
    cut = one(engine, Request((10,), (key(0),)), dataclasses.replace(NOISY, max_new_tokens=3))
    completion = one(engine, Request((10,), (key(0),)))
    assert (len(cut.tokens), cut.finish) == (3, "length")
    assert (cut.extras["latent"] == completion.extras["latent"][:3]).all()


def test_gaussians_are_standard_normal_and_finite_at_the_ends():
    z = gaussians(uniforms([key(0), key(1)], 20000))
    assert abs(float(z.mean())) < 0.01 and abs(float(z.std()) - 1) < 0.01
    assert torch.equal(z.sort(1).values, gaussians(np.sort(uniforms([key(0), key(1)], 20000), 1)))
    assert bool(gaussians(np.array([0.0, 1 - 2.0**-53])).isfinite().all())


def test_parameters_move_the_samples_and_the_version_is_noted():
    model = small_flow()
    engine = FlowEngine(model)
    before = one(engine, Request((10,), (key(0),)))
    engine.policy_version = 4
    with torch.no_grad():
        model.network.out.bias.add_(0.5)
    after = one(engine, Request((10,), (key(0),)))
    assert (before.policy_version, after.policy_version) == (0, 4)
    assert (before.extras["latent"][1:] != after.extras["latent"][1:]).all()


@pytest.mark.parametrize(
    ("request_", "sampling", "message"),
    [
        (Request((10,), (key(0),)), Sampling(top_k=3), "top_k 0"),
        (Request((10,), (key(0),)), Sampling(temperature=-1.0), "temperature >= 0"),
        (Request((), (key(0),)), NOISY, "begins with a condition below 360"),
        (Request((360,), (key(0),)), NOISY, "begins with a condition below 360"),
        (Request((10, 11), (key(0),)), NOISY, "at most 4 latents"),
        (Request((10, -1, -1, -1, -1, -1), (key(0),)), NOISY, "at most 4 latents"),
        (Request((10, -1), (key(0),)), NOISY, "needs extras"),
        (Request((10, -1), (key(0),), extras={"latent": np.zeros((1, 2))}), NOISY, r"shape \(2, 2\)"),
    ],
)
def test_requests_that_a_flow_cannot_sample_are_refused(request_, sampling, message):
    with pytest.raises(ModelError, match=message):
        FlowEngine(small_flow()).sample([request_], sampling)
