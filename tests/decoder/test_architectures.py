"""One contract over architectures: sampler, learner (packed, flat, by transformers) and a bare forward pass agree."""

import copy
import warnings

import pytest
import torch
from tests.thorough import some

from gxpo.bench.zoo import KINDS, TINY
from gxpo.engines.torch import TorchEngine
from gxpo.errors import ModelError
from gxpo.forest import Forest
from gxpo.learners.lora import LoraSettings, merged
from gxpo.learners.torch import TorchLearner
from gxpo.protocols import Request, Sampling, StreamKey

NAMES = ("logprob", "entropy")
RUN = [name for name, kind in KINDS.items() if kind.expected != "refused"]
FAST = [name for name in RUN if KINDS[name].expected == "fast"]
MAIN = ("llama-3", "qwen2-window", "qwen3", "mistral-window", "smollm3", "gemma2", "gemma3", "phi3", "gpt-neox")
BASE = {"schema": "gxpo.rollouts/1", "group": "g", "reward": 0.0}
FORKED = Forest.from_records(
    [
        {**BASE, "id": "a", "prompt": [3, 4, 5, 6, 7, 8], "turns": [
            {"action": [9, 10, 11, 12, 13]}, {"observation": [14, 15], "action": [16, 17, 18]}]},
        {**BASE, "id": "b", "fork": {"of": "a", "turn": 0, "token": 2}, "turns": [
            {"action": [19, 20]}, {"observation": [21], "action": [22, 23, 24, 25]}]},
        {**BASE, "id": "c", "fork": {"of": "a", "turn": 1, "token": 1}, "turns": [{"action": [26, 27, 28, 29, 30]}]},
        {**BASE, "id": "d", "prompt": [8, 7], "turns": [{"action": [6, 5, 4, 3]}]},
    ]
)  # fmt: skip


def made(name, **more):
    """A random model whose norms and biases are not all one and zero."""
    model = KINDS[name].model(TINY, **more)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=draw))
    return model


def learner(model, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return TorchLearner(model, lr=0.0, **settings)


def engine(model, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return TorchEngine(model, stop_ids=[], **settings)


def alone(model, forest):
    """Log-probs and entropies [P] from a bare forward pass of each trajectory by itself, with their graph."""
    logprob, entropy = [], []
    for r in range(forest.n_trajectories):
        path = forest.path_of(r)
        tokens = forest.path_token[path].tolist()
        first, nodes = forest.first_token.tolist(), forest.path(int(forest.token_node[tokens[-1]])).tolist()
        whole = [t for n in nodes for t in range(first[n], first[n + 1]) if t <= tokens[-1]]
        rows = model(input_ids=forest.token[whole][None], use_cache=False).logits[0].double().log_softmax(-1)
        for token in tokens:
            row = rows[whole.index(token) - 1]
            logprob.append(row[forest.token[token]])
            entropy.append(-(row.exp() * row).sum())
    return {"logprob": torch.stack(logprob), "entropy": torch.stack(entropy)}


def loss(x):
    weight = torch.linspace(-1, 1, x["logprob"].numel(), dtype=torch.float64)
    return (weight * x["logprob"]).sum() + 0.1 * x["entropy"].sum()


def farthest(one, other):
    """Largest difference of two named gradients, relative to each tensor's norm."""
    assert one.keys() == other.keys()
    largest = max(float(g.norm()) for g in other.values())
    return max(float((one[n] - other[n]).norm() / other[n].norm().clamp_min(1e-3 * largest)) for n in one)


@pytest.mark.parametrize("name", some(RUN, [*MAIN, "qwen3-moe", "lfm2"]))
def test_packed_flat_and_transformers_agree_with_a_bare_forward_pass(name):
    model, kind = made(name), KINDS[name]
    bare = alone(model, FORKED)
    loss(bare).backward()
    expected = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert len(expected) > 10
    model.zero_grad()
    for settings in ({}, {"layout": "flat"}, {"kernels": "transformers"}, {"tokens_per_microbatch": 12}):
        own = learner(model, **settings)
        fast = kind.expected == "fast" and "kernels" not in settings
        assert (own._readout.decoder is not None) == fast
        if not settings:
            assert own.layout == ("flat" if kind.expected == "flat" else "packed")
        found = own.outputs(FORKED, NAMES)
        for key in NAMES:
            assert torch.allclose(found[key], bare[key].detach(), rtol=0, atol=1e-5), (settings, key)
        gradient = own.gradient(FORKED, loss, names=NAMES)
        assert farthest({n: g for n, g in gradient.items() if n in expected}, expected) < 1e-4, settings


def sampled(sampler, long):
    """Two prompts, of 70 (more than samples copy) or 9 tokens and of 3: completions with the sampler's log-probs."""
    prompts = [tuple(3 + (5 * i) % 28 for i in range(70 if long else 9)), (5, 6, 7)]
    asked = [Request(p, tuple(StreamKey(0, 0, str(i), j) for j in range(3))) for i, p in enumerate(prompts)]
    answered = sampler.sample(asked, Sampling(max_new_tokens=9))
    return Forest.from_completions(
        [list(p) for p in prompts],
        [[c.tokens for c in row] for row in answered],
        [[0.0] * 3] * 2,
        logprobs=[[c.logprobs for c in row] for row in answered],
    )


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("name", some(RUN, [*MAIN, "qwen3-moe", "lfm2"]))
def test_the_sampler_s_log_probs_are_the_learner_s(name, long):
    model = made(name)
    forest = sampled(engine(model), long)
    expected = learner(model).outputs(forest)["logprob"]
    assert torch.allclose(forest.path_behaviour_logprob, expected, rtol=0, atol=1e-5)
    assert float(expected.std()) > 0.1
