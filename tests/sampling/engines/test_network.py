"""transformers' own forward pass: ragged prefill, cached prefixes, steps, and chunks of contexts."""

from types import SimpleNamespace

import pytest
import torch
from tests.sampling.engines.letters import letters, llama
from transformers import MistralConfig, MistralForCausalLM

from gxpo.sampling.engines.decode import CachedPrefix, Context
from gxpo.sampling.engines.network import Network, _chunks, prefill

RAGGED = [(5, 6), (7, 8, 9, 10), (11, 12, 13, 14, 15)]


def network(model=None):
    return Network(model or llama(), torch.device("cpu"), kernels="transformers")


@torch.no_grad()
def last_logits(model, tokens):
    return model(torch.tensor([tokens]), use_cache=False).logits[0, -1]


@pytest.mark.parametrize("tokens", [1, 8, 100])  # one context a pass, two, all
@torch.no_grad()
def test_ragged_prefill_gives_the_logits_of_each_prompt(tokens):
    net = network()
    state = prefill(net, [Context(p) for p in RAGGED], 2, tokens)
    for logits, prompt in zip(state.logits, RAGGED, strict=True):
        assert torch.allclose(logits, last_logits(net.model, prompt), atol=1e-5)
    state = state.advance(torch.tensor([20, 21, 22])).select(torch.tensor([2, 0]))
    for logits, tokens_ in zip(state.logits, ((*RAGGED[2], 22), (*RAGGED[0], 20)), strict=True):
        assert torch.allclose(logits, last_logits(net.model, tokens_), atol=1e-5)


@torch.no_grad()
def test_a_cached_prefix_replaces_its_part_of_the_prefill():
    net = network()
    before = prefill(net, [Context((5, 6, 7))], 0, 100)
    prefix = CachedPrefix((5, 6, 7), before.columns(0, 3, 3))
    contexts = [Context((5, 6, 7, 8), prefix), Context((9, 10, 11))]  # one new token beside three: padding is masked
    assert [len(c.new_tokens) for c in contexts] == [1, 3]
    state = prefill(net, contexts, 0, 100)
    for logits, prompt in zip(state.logits, ((5, 6, 7, 8), (9, 10, 11)), strict=True):
        assert torch.allclose(logits, last_logits(net.model, prompt), atol=1e-5)


@torch.no_grad()
def test_samples_of_a_prompt_go_on_from_a_shared_prefill():
    net = network()
    state = prefill(net, [Context(p) for p in RAGGED[:2]], 0, 100).spread(torch.tensor([1, 0, 1]), 1)
    state = state.advance(torch.tensor([20, 21, 22]))
    expected = [(*RAGGED[1], 20), (*RAGGED[0], 21), (*RAGGED[1], 22)]
    for logits, tokens in zip(state.logits, expected, strict=True):
        assert torch.allclose(logits, last_logits(net.model, tokens), atol=1e-5)


def test_end_ids_are_those_of_tokenizer_and_generation_settings():
    model = llama()
    model.generation_config = SimpleNamespace(eos_token_id=[3, 4])
    assert network(model).end_ids(letters()) == (1, 3, 4)
    assert network(model).end_ids(None) == (3, 4)


def test_full_attention_has_a_layout_and_windows_have_none():
    settings = {"vocab_size": 31, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    window = MistralForCausalLM(MistralConfig(**settings, **heads, sliding_window=4)).eval()
    assert network().layout is not None and network(window).layout is None


def test_contexts_share_a_pass_within_a_budget_and_a_ratio():
    # 2, 2, 30 have 3 x 30 padded tokens; 40 new tokens are more than 2 x 2 + 32
    assert list(_chunks([2, 2, 30], 90)) == [(0, 3)]
    assert list(_chunks([2, 2, 30], 89)) == [(0, 2), (2, 3)]
    assert list(_chunks([2, 2, 40], 1000)) == [(0, 2), (2, 3)]
    assert list(_chunks([50], 10)) == [(0, 1)]  # one context always goes through
