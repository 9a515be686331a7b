"""Weights by injected noise: the published numbers, and that they do not change how much is learnt in all."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.weighting.verdict_rows import part_of
from tests.sampling.rollouts.flow_session import FlowSession, grown, small_flow

import gxpo
from gxpo.algorithms.weighting.token_curves import over_mean
from gxpo.base.errors import GxpoError
from gxpo.forest.forest import Forest
from gxpo.sampling.rollouts.denoise import Denoise, DenoiseTree


def noise_level_weight(**options):
    return part_of("tempflow_grpo", "noise_level", **options)


SCALES = [0.7, 0.742964, 0.536152, 0.445897, 0.391794, 0.352797, 0.31907, 0.282007, 0.22536]  # SD 3.5, ten steps, a .7


def test_the_constant_of_the_published_code():
    # 1 / mean = 9 / 3.996041 = 2.252229, so the weights are 2.252229 s; the code's 2.25 s are 1.575 ... .50706
    s = torch.tensor(SCALES, dtype=torch.float64)
    weights = over_mean(s, torch.arange(9))
    assert float(1 / s.mean()) == pytest.approx(2.252229, abs=1e-6)
    assert weights.tolist() == pytest.approx([9 / sum(SCALES) * x for x in SCALES], abs=1e-12)
    assert (2.25 / (9 / sum(SCALES)) * weights)[[0, -1]].tolist() == pytest.approx([1.575, 0.50706], abs=1e-6)


@given(st.integers(1, 7), st.integers(1, 4), st.integers(0, 999), st.floats(0.01, 100))
def test_the_weights_of_the_trained_steps_sum_to_their_number(steps, copies, seed, factor):
    random = torch.Generator().manual_seed(seed)
    s = torch.rand(steps, generator=random, dtype=torch.float64) + 0.01
    times = torch.randint(1, copies + 1, (steps,), generator=random)  # some steps have more samples
    step = torch.repeat_interleave(torch.arange(steps), times)
    order = torch.randperm(len(step), generator=random)
    step = step[order]
    weights = over_mean(s[step], step)
    first = torch.tensor([step.tolist().index(k) for k in range(steps)])
    assert float(weights[first].sum()) == pytest.approx(steps)
    assert torch.allclose(weights, s[step] * steps / s.sum())  # copies do not move the mean
    assert torch.allclose(over_mean(factor * s[step], step), weights)
    more = over_mean(torch.cat([s[step], torch.tensor([9.0]).double()]), torch.cat([step, torch.tensor([-1])]))
    assert torch.allclose(more[:-1], weights) and more[-1:].tolist() == [1]


def test_equal_noise_is_no_weight_at_all():
    forest = grown(DenoiseTree(1, 2))
    flat = forest.extras["noise_scale"].clone()
    flat[forest.trainable] = 0.3
    weights = noise_level_weight()(
        forest.replace(extras=forest.extras | {"noise_scale": flat}), forest.path_behaviour_logprob, {}, 1
    )
    assert torch.allclose(weights, torch.ones_like(weights), atol=1e-12)


@pytest.mark.parametrize("rollout", [Denoise(2), DenoiseTree(2, 2)], ids=["independent", "tree"])
@pytest.mark.parametrize("level", [0.3, 0.9])
def test_weights_of_a_forest(rollout, level):
    model = small_flow(5)
    forest = grown(rollout, session=FlowSession(model, temperature=level))
    weights = noise_level_weight()(forest, forest.path_behaviour_logprob, {}, 1)
    s = model.noise_scales(1.0)[0][:-1]
    for p in range(forest.n_entries):
        t = int(forest.path_token[p])
        expected = s[int(forest.segment[t]) - 1] / s.mean() if bool(forest.trainable[t]) else 1.0
        assert float(weights[p]) == pytest.approx(float(expected), abs=1e-9)


def test_rollouts_without_noise_are_refused():
    text = Forest.from_completions([[1]], [[[2], [3]]], [0.0, 1.0])
    with pytest.raises(GxpoError, match="noise_scale"):
        noise_level_weight()(text, torch.zeros(2), {}, 1)
    assert gxpo.method("tempflow_grpo").requires == ("latents",)
