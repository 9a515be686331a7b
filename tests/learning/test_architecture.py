"""Which models are trained on packed trees."""

import warnings

import pytest
import torch
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from gxpo.forest.forest import Forest
from gxpo.learning.torch import TorchLearner

SMALL = {
    "vocab_size": 23,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "initializer_range": 0.2,
}
LLAMAS = {**SMALL, "intermediate_size": 48, "num_key_value_heads": 2}
PACKED = {
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=23, n_embd=32, n_layer=2, n_head=4, n_positions=64, initializer_range=0.2)
    ),
    "mistral without a window": lambda: MistralForCausalLM(MistralConfig(**LLAMAS, sliding_window=None)),
    "qwen2, whose window is off": lambda: Qwen2ForCausalLM(
        Qwen2Config(**LLAMAS, sliding_window=4, use_sliding_window=False)
    ),
    "mistral with a window": lambda: MistralForCausalLM(MistralConfig(**LLAMAS, sliding_window=4)),
}
FLAT = {
    "a window of 4|sliding_attention": lambda: MistralForCausalLM(MistralConfig(**LLAMAS, sliding_window=4)),
    "sliding_attention": lambda: Qwen2ForCausalLM(
        Qwen2Config(**LLAMAS, sliding_window=4, use_sliding_window=True, max_window_layers=1)
    ),
    "recurrent": lambda: MambaForCausalLM(
        MambaConfig(vocab_size=23, hidden_size=16, num_hidden_layers=2, state_size=4)
    ),
    "do not follow a mask|kernel": lambda: BloomForCausalLM(
        BloomConfig(vocab_size=23, hidden_size=32, n_layer=2, n_head=4)
    ),
}
FOREST = Forest.from_completions(
    [[2, 3, 4, 5, 6], [7]], [[[8, 9, 10], [11, 12]], [[13, 14, 15, 16, 17], [18]]], [0, 0, 0, 0]
)


def made(make):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make().eval()


def alone(model) -> torch.Tensor:
    """Log-probs of every trajectory from a forward pass of it alone."""
    out = []
    for r in range(FOREST.n_trajectories):
        prompt = FOREST.context(int(FOREST.prompt_node[r]))
        action = FOREST.token[FOREST.path_token[FOREST.path_of(r)]].tolist()
        with torch.no_grad():
            rows = model(torch.tensor([prompt + action])).logits[0].double().log_softmax(-1)
        out += [rows[len(prompt) - 1 + i, token] for i, token in enumerate(action)]
    return torch.stack(out)


@pytest.mark.parametrize("name", PACKED)
def test_packed(name):
    model = made(PACKED[name])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner = TorchLearner(model, lr=0.0)
    assert learner.layout == "packed"
    assert torch.allclose(learner.outputs(FOREST)["logprob"], alone(model), rtol=0, atol=1e-5)


@pytest.mark.parametrize("reason", FLAT)
def test_flat_and_said_once(reason):
    model = made(FLAT[reason])
    with pytest.warns(UserWarning, match=f"trained flat, without sharing prefixes: .*({reason})") as warning_records:
        learner = TorchLearner(model, lr=0.0, kernels="transformers")
    assert len(warning_records) == 1 and learner.layout == "flat"
    assert torch.allclose(learner.outputs(FOREST)["logprob"], alone(model), rtol=0, atol=2e-5)
