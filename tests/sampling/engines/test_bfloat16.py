"""Sampling from a bfloat16 model: what a log-probability is, and how close two ways to the same logits come."""

import numpy as np
import pytest
import torch
from tests.sampling.engines.conversations import forced, play, ragged
from tests.sampling.engines.letters import llama

from gxpo.parts.protocols import Request, Sampling, StreamKey
from gxpo.sampling.engines.torch import TorchEngine

# bfloat16 rounds to 8 bits: a logit between 4 and 8, the largest here, to 1/64 either way. A forward pass of a whole
# sequence and one token by token round differently in both layers, and temperature 0.7 stretches what comes of it.
TOLERANCE = 0.1


def bfloat16(seed):
    return llama(seed).to(torch.bfloat16)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_a_logprob_is_that_of_the_logits_in_float32(temperature):
    model, prompt = bfloat16(0), (5, 6, 7, 8, 9)
    with torch.no_grad():
        logits = model(torch.tensor([prompt]), logits_to_keep=1).logits[0, -1]
    assert logits.dtype == torch.bfloat16
    expected = (logits.float() / temperature).log_softmax(0)
    streams = tuple(StreamKey(0, 0, "t", i) for i in range(64))
    engine = TorchEngine(model, kernels="transformers")
    (answers,) = engine.sample([Request(prompt, streams)], Sampling(temperature, max_new_tokens=1))
    assert len({c.tokens[0] for c in answers}) > 3
    for c in answers:
        assert c.logprobs[0] == pytest.approx(float(expected[c.tokens[0]]), abs=2e-6)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("sampling", [Sampling(max_new_tokens=12), Sampling(0.7, top_k=9, max_new_tokens=12)])
def test_sampling_agrees_with_a_forward_pass_of_the_whole(seed, sampling):
    model = bfloat16(seed)
    engine = TorchEngine(model)
    for episode in play(engine, ragged(seed, 10), sampling, keep=True):
        for prompt, c in zip(episode.prompts, episode.said, strict=True):
            expected = forced(model, prompt, c, sampling.temperature)
            assert np.allclose(c.logprobs, expected, rtol=0, atol=TOLERANCE)
    assert engine.reused_tokens > 0
