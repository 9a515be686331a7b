"""The toy flow: its network, its conditions and its warm start."""

import pytest
import torch

from gxpo.base.errors import ModelError
from gxpo.environments.tasks import points
from gxpo.training.models import flow


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
    assert model.steps == 6 and len(model.times) == 7
    s = model.noise_scales(0.7)[0]
    assert s[-1] == 0 and bool((s[:-1] > 0).all()) and not bool(model.noise_scales(0.0)[0].any())


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
        with pytest.raises(ModelError, match="whole number below 360"):
            words.encode(text)
    chat = flow.ConditionChat(words)
    assert chat.start([{"role": "user", "content": "12"}]).context == (12,)
    with pytest.raises(ModelError, match="one message"):
        chat.start([{"role": "system", "content": "draw"}, {"role": "user", "content": "12"}])
