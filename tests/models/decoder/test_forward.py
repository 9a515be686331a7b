"""The decoder against transformers: families, biases, adapters, recomputing, one token at a time."""

import pytest
import torch
from tests.learning.llamas import random_forest, small_llama
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    MistralConfig,
    MistralForCausalLM,
    OlmoeConfig,
    OlmoeForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from gxpo.learning.torch import TorchLearner
from gxpo.models.decoder.attention import Chain
from gxpo.models.decoder.forward import Decoder, near
from gxpo.models.decoder.sampling import Branches, Prompts, Stepper

SMALL = {
    "vocab_size": 23, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256, "initializer_range": 0.2, "head_dim": 8,
}  # fmt: skip
FAMILY = {
    "llama": small_llama,
    "llama with another activation": lambda: small_llama(hidden_act="gelu"),
    "llama with biases": lambda: small_llama(attention_bias=True, mlp_bias=True),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SMALL)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SMALL)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SMALL, sliding_window=None)),
}


def made(name):
    torch.manual_seed(0)
    model = FAMILY[name]().eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))  # biases and norms, too
    return model


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("recompute", [False, True])
def test_log_probs_and_gradients_are_those_of_transformers(name, recompute):
    model, forest = made(name), random_forest(7)

    def both(**settings):
        learner = TorchLearner(model, lr=0.0, tokens_per_microbatch=60, **settings)
        loss = lambda x: (x["logprob"].square() + x["entropy"]).mean()  # noqa: E731
        names = ("logprob", "entropy")
        return learner.outputs(forest, names), learner.gradient(forest, loss, names=names), learner

    outputs, gradients, learner = both(recompute=recompute)
    theirs, expected, other = both(kernels="transformers", recompute=recompute)
    assert learner._readout.decoder is not None and other._readout.decoder is None
    for key, x in outputs.items():
        assert torch.allclose(x, theirs[key], rtol=0, atol=1e-5)
    for key, g in gradients.items():
        assert float((g - expected[key]).norm()) <= 1e-4 * max(1e-3, float(expected[key].norm())), key


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (lambda: GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=9)), "GPT2LMHeadModel is not"),
        (lambda: OlmoeForCausalLM(OlmoeConfig(**SMALL, num_experts=4, clip_qkv=3.0)), "its clip_qkv is set"),
        (lambda: small_llama(layer_types=["full_attention", "chunked_attention"]), "it has chunked_attention layers"),
    ],
)
def test_other_models_are_left_to_transformers(model, why):
    assert why in (Decoder.why_not(model()) or "")


def test_a_model_unlike_its_configuration_is_noticed():
    model = small_llama()
    model.model.layers[1].mlp.forward = lambda x: 2 * x
    with pytest.warns(UserWarning, match="is run by transformers: it does not do what its configuration says"):
        assert Decoder.of(model) is None


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize(
    ("attention", "weights"),
    [("shared", "laid out"), ("copied", "plain"), ("shared matmul", "plain"), ("copied matmul", "plain")],
)
def test_token_by_token_is_what_the_whole_gives(name, attention, weights):
    """Two prompts of different length, three and one samples; one leaves after the first token."""
    model = made(name)
    decoder = Decoder(model, choices={"sampling weights": weights})
    prompts, owner = [[3, 4, 5, 6], [7, 8]], torch.tensor([0, 0, 0, 1])
    drawn_values = torch.tensor([[9, 10, 11, 12], [13, 14, 15, 16], [17, 18, 19, 20]])  # [step, sample]
    with torch.no_grad():
        states, layers = decoder.prefill(
            torch.tensor(prompts[0] + prompts[1]), torch.tensor([0, 1, 2, 3, 0, 1]), [Chain(0, 4, 4), Chain(4, 6, 6)]
        )
        mask = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1]])
        padded = []
        for x in layers:
            wide = x.new_zeros(2, 4, *x.shape[1:])
            wide[mask.bool()] = x
            padded.append(tuple(wide.transpose(1, 2).chunk(2, 1)))
        stepper = Stepper(decoder)
        first = stepper.logits(states[[3, 5]])
        branches = Branches.of(stepper, Prompts(padded, mask), owner, first, 3, attention)

        def whole(sample, steps):
            rows = [[*prompts[int(owner[sample])], *drawn_values[:steps, sample].tolist()]]
            return model(torch.tensor(rows)).logits[0, -1]

        for sample in range(4):
            assert torch.allclose(branches.logits[sample], whole(sample, 0), atol=1e-4)
        branches = branches.advance(drawn_values[0]).select(torch.tensor([0, 2, 3]))
        for step in (1, 2):
            for row, sample in enumerate((0, 2, 3)):
                assert torch.allclose(branches.logits[row], whole(sample, step), atol=1e-4)
            branches = branches.advance(drawn_values[step][[0, 2, 3]])
        kept_columns = branches.columns(2, 2, 4)  # the second prompt's sample: two tokens of its prompt, two of its own
        cache = model(torch.tensor([[7, 8, 12, 16]]), use_cache=True).past_key_values
        for (keys, values), layer in zip(kept_columns, cache.layers, strict=True):
            assert torch.allclose(keys, layer.keys[0], atol=1e-4) and torch.allclose(values, layer.values[0], atol=1e-4)


def test_rows_of_zeros_are_near_zeros_alone():
    x = torch.tensor([[0.0, 0.0], [3.0, 4.0], [1.0, 0.0]])
    assert near(x, x) and near(x + torch.tensor([[0.0], [1e-6], [1e-6]]), x)
    moved = x + torch.tensor([[0.0], [1.0], [1.0]])
    assert not near(moved, x) and not near(x, torch.zeros(3, 2)) and not near(x * torch.nan, x)


def test_a_padding_row_of_zeros_is_no_other_model(recwarn):
    """The first token of the probe is 7919 modulo the vocabulary: with zeros as its embedding all its states are 0."""
    model = made("llama")
    with torch.no_grad():
        model.get_input_embeddings().weight[7919 % model.config.vocab_size] = 0.0
    assert Decoder.of(model) is not None
    assert not [w for w in recwarn if "is run by transformers" in str(w.message)]
