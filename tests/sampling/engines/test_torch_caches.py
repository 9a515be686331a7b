"""Sampling the turns of a conversation without running its context through the model again."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.learning.llamas import clean_llama
from tests.sampling.engines.conversations import converse, forced, play, ragged
from tests.sampling.engines.letters import llama
from transformers import GPT2Config, GPT2LMHeadModel, MistralConfig, MistralForCausalLM

from gxpo.base.errors import ModelError
from gxpo.parts.protocols import Request, Sampling, StreamKey
from gxpo.sampling.engines.torch import TorchEngine

SAMPLINGS = [
    Sampling(max_new_tokens=7),
    Sampling(temperature=0.7, max_new_tokens=7),
    Sampling(temperature=1.4, top_k=5, max_new_tokens=7),
    Sampling(temperature=1.2, top_k=9, top_p=0.8, max_new_tokens=7),
    Sampling(temperature=0.0, max_new_tokens=7),
]
SHORT = Sampling(max_new_tokens=3)


def ask(prompt, *names, seed=0):
    return Request(tuple(prompt), tuple(StreamKey(seed, 0, name, 0) for name in names), names)


def agree(model, kept, fresh, temperature, tolerance):
    """Equal tokens, and log-probs that are also those of a forward pass of each sample alone."""
    for a, b in zip(kept, fresh, strict=True):
        assert [c.tokens for c in a.said] == [c.tokens for c in b.said] and len(a.said) == 1 + len(a.observations)
        for prompt, c in zip(a.prompts, a.said, strict=True):
            expected = forced(model, prompt, c, temperature) if temperature else [0.0] * len(c.tokens)
            assert np.allclose(c.logprobs, expected, rtol=0, atol=tolerance)


ROOMY, NARROW = (100, 1 << 14), (3, 8)  # rows that are decoded together, prompt tokens that go through together


@pytest.mark.parametrize(
    "sampling, batch_rows, prefill_tokens",
    [*((s, *ROOMY) for s in SAMPLINGS), *((s, *NARROW) for s in SAMPLINGS[2:4])],
)
def test_growing_contexts_are_sampled_as_if_prefilled_anew(sampling, batch_rows, prefill_tokens):
    model = clean_llama()
    engine = TorchEngine(model, batch_rows=batch_rows, prefill_tokens=prefill_tokens)
    without = TorchEngine(model)
    kept_play = play(engine, ragged(0, 12), sampling, keep=True)
    fresh = play(without, ragged(0, 12), sampling, keep=False)
    agree(model, kept_play, fresh, sampling.temperature, 1e-10)
    assert len({len(c.tokens) for e in kept_play for c in e.said}) > 3 and len({len(e.said) for e in kept_play}) > 2
    assert 0 < engine.prefilled_tokens < without.prefilled_tokens and engine.reused_tokens > 0
    assert engine.n_dropped == engine.n_mismatched == engine.unkept == without.reused_tokens == without.kept_tokens == 0


@pytest.mark.parametrize("heads", [1, 4])
def test_grouped_queries(heads):
    model = clean_llama(num_key_value_heads=heads)
    kept_play = play(TorchEngine(model), ragged(1, 6), SAMPLINGS[0], keep=True)
    agree(model, kept_play, play(TorchEngine(model), ragged(1, 6), SAMPLINGS[0], keep=False), 1.0, 1e-10)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(1, 5), st.integers(0, 60), st.integers(1, 40))
def test_samples_depend_neither_on_batches_nor_on_the_cache(seed, size, batch_rows, keep_tokens, prefill_tokens):
    model = clean_llama()
    engine = TorchEngine(model, batch_rows=batch_rows, keep_tokens=keep_tokens, prefill_tokens=prefill_tokens)
    sampling = Sampling(max_new_tokens=4)
    kept_play = play(engine, ragged(seed, size, turns=3), sampling, keep=True)
    agree(model, kept_play, play(TorchEngine(model), ragged(seed, size, turns=3), sampling, keep=False), 1.0, 1e-10)
    assert engine.kept_tokens <= keep_tokens


def gpt2():
    sizes = {"vocab_size": 31, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128}
    return GPT2LMHeadModel(GPT2Config(**sizes, eos_token_id=1, bos_token_id=0, initializer_range=0.2))


def mistral():
    return MistralForCausalLM(
        MistralConfig(
            vocab_size=31,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            sliding_window=4,
            initializer_range=0.2,
        )
    )


def growing_rope():
    return llama(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0})


@pytest.mark.parametrize(
    "build, keeps",
    [
        (llama, True),
        (gpt2, True),
        (mistral, False),
        (growing_rope, False),
    ],
    ids=["llama", "learned positions", "sliding window", "growing rope"],
)
def test_stock_models_cache_what_their_layers_allow(build, keeps):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build().eval()
    engine, without = TorchEngine(model), TorchEngine(model)
    kept_play = play(engine, ragged(2, 8), SAMPLINGS[1], keep=True)
    agree(model, kept_play, play(without, ragged(2, 8), SAMPLINGS[1], keep=False), 0.7, 1e-5)
    listed_total = sum(len(e.said) for e in kept_play if e.named)
    assert (engine.reused_tokens > 0, engine.kept_tokens > 0) == (keeps, keeps)
    assert engine.unkept == (0 if keeps else listed_total) and without.unkept == without.kept_tokens == 0
    assert keeps or engine.prefilled_tokens == without.prefilled_tokens


def test_only_new_tokens_are_prefilled():
    engine = TorchEngine(llama(), stop_ids=[])
    three = ask((5, 6, 7, 8), "a", "b", "c")
    (answers,) = engine.sample([three], SHORT)
    assert engine.prefilled_tokens == 4  # one prefill for three names
    assert engine.kept_tokens == 3 * (4 + 2)  # the last of 3 action tokens never went through
    contexts = {name: (5, 6, 7, 8, *c.tokens) for name, c in zip("abc", answers, strict=True)}
    engine.sample([ask((*contexts["b"], 9, 9), "b"), ask((*contexts["a"], 9), "a"), ask((20, 21), "d")], SHORT)
    assert engine.prefilled_tokens == 4 + (1 + 2) + (1 + 1) + 2
    assert engine.reused_tokens == 6 + 6
    assert engine.kept_tokens == 6 + (9 + 2) + (8 + 2) + (2 + 2)  # c waits, a and b grew, d is new
    engine.release(["c", "unknown"])
    assert engine.kept_tokens == 25
    engine.release()
    assert engine.kept_tokens == 0


def test_names_that_share_a_prompt_share_its_prefill():
    engine = TorchEngine(llama())
    engine.sample([ask((5, 6, 7), "a"), ask((5, 6, 7), "b"), Request((5, 6, 7), (StreamKey(0, 0, "c", 0),))], SHORT)
    assert engine.prefilled_tokens == 3


@pytest.mark.parametrize("prompt", [(5, 6, 9, 8, 7), (5, 6, 7), (5,)], ids=["rebuilt", "the same", "shortened"])
def test_a_prompt_that_differs_from_its_cache_is_prefilled(prompt):
    model = llama()
    engine = TorchEngine(model, stop_ids=[])
    engine.sample([ask((5, 6, 7), "a", "b")], SHORT)
    answers = engine.sample([ask(prompt, "a"), ask(prompt, "b")], SHORT)
    assert engine.prefilled_tokens == 3 + len(prompt) and engine.reused_tokens == 0 and engine.n_mismatched == 2
    assert engine.kept_tokens == 2 * (len(prompt) + 2)
    for (c,) in answers:
        assert np.allclose(c.logprobs, forced(model, prompt, c, 1.0), rtol=0, atol=1e-5)


@pytest.mark.parametrize("more", [(), (9,), (9, 10)])
def test_a_last_action_token_that_was_replaced_costs_nothing(more):
    # a chat template may cut the end of sequence and write its own: what was kept ends before the last token
    model = llama()
    engine = TorchEngine(model, stop_ids=[])
    ((c,),) = engine.sample([ask((5, 6, 7), "a")], SHORT)
    prompt = (5, 6, 7, *c.tokens[:-1], *more)
    ((d,),) = engine.sample([ask(prompt, "a")], SHORT)
    assert np.allclose(d.logprobs, forced(model, prompt, d, 1.0), rtol=0, atol=1e-5)
    assert engine.prefilled_tokens == 3 + max(len(more), 1)  # the logits of the last token are always needed


def test_one_continuation_serves_all_samples_of_its_prompt():
    model = llama()
    engine = TorchEngine(model, stop_ids=[])
    ((c,),) = engine.sample([ask((5, 6, 7), "a")], SHORT)
    prompt = (5, 6, 7, *c.tokens, 8)
    (answers,) = engine.sample([ask(prompt, "a", "b", "c")], SHORT)
    assert engine.prefilled_tokens == 3 + 2 and engine.kept_tokens == 3 * (7 + 2)
    for d in answers:
        assert np.allclose(d.logprobs, forced(model, prompt, d, 1.0), rtol=0, atol=1e-5)


def test_caching_can_be_switched_off():
    engine = TorchEngine(llama(), keep_tokens=0)
    play(engine, ragged(5, 3), SHORT, keep=True)
    assert engine.kept_tokens == engine.reused_tokens == engine.n_dropped == engine.unkept == 0


def test_caches_hold_no_padding():
    engine = TorchEngine(llama())
    episodes = ragged(3, 9, turns=5)
    for _ in converse(engine, episodes, SAMPLINGS[0], keep=True):
        held_by_name = engine._prefixes._by_name.values()
        floats = sum(
            x.untyped_storage().nbytes() // 4
            for kept_value in held_by_name
            for layer in kept_value.layers
            for x in layer
        )
        assert floats == engine.kept_tokens * 2 * 2 * 2 * 8  # layers, keys and values, heads, size
        assert engine.kept_tokens == sum(
            len(e.prompts[-1]) + len(e.said[-1].tokens) - 1 for e in episodes if e.named and e.said
        )


def changed(model):
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1.1)


def test_a_new_version_drops_everything_at_once():
    engine = TorchEngine(llama())
    engine.sample([ask((5, 6, 7), "a", "b")], SHORT)
    engine.policy_version = 0
    assert engine.kept_tokens > 0
    engine.policy_version = 1
    assert engine.kept_tokens == 0 and engine.policy_version == 1


@pytest.mark.parametrize("told", [True, False])
def test_stale_caches_are_never_used(told):
    model = llama()
    engine = TorchEngine(model, stop_ids=[])
    ((c,),) = engine.sample([ask((5, 6, 7), "a")], SHORT)
    changed(model)
    engine.policy_version += told
    prompt = (5, 6, 7, *c.tokens, 8)
    ((d,),) = engine.sample([ask(prompt, "a")], SHORT)
    assert np.allclose(d.logprobs, forced(model, prompt, d, 1.0), rtol=0, atol=1e-5)
    assert not np.allclose(d.logprobs, forced(llama(), prompt, d, 1.0), rtol=0, atol=1e-2)
    assert engine.reused_tokens == 0 and d.policy_version == told


def test_the_same_calls_are_identical_bit_for_bit():
    first, second = (play(TorchEngine(llama(), batch_rows=4), ragged(4, 9), SAMPLINGS[3], keep=True) for _ in range(2))
    for a, b in zip(first, second, strict=True):
        for c, d in zip(a.said, b.said, strict=True):
            assert (c.tokens, c.logprobs, c.finish) == (d.tokens, d.logprobs, d.finish)
            assert (c.support == d.support).all()


def forwards(model, prompts, prefill_tokens):
    """Shapes of the inputs of all forward passes of a call."""
    seen_shapes = []

    def see(_, args, kwargs, out):
        assert out.logits.shape[1] == 1  # never the logits of a whole prompt
        seen_shapes.append(tuple(kwargs["input_ids"].shape))

    engine = TorchEngine(model, prefill_tokens=prefill_tokens, kernels="transformers")
    hook = model.register_forward_hook(see, with_kwargs=True)
    engine.sample([ask(p, str(i)) for i, p in enumerate(prompts)], Sampling(max_new_tokens=1))
    hook.remove()
    return seen_shapes


def test_forward_passes_are_bounded():
    # 4 x 4 fits in 20, 5 x 5 does not; 2 x 6 fits, 3 x 7 does not; 30 goes alone
    prompts = [(3,) * n for n in (30, 7, 6, 5, 4, 3, 2, 1)]
    assert forwards(llama(), prompts, 20) == [(4, 4), (2, 6), (1, 7), (1, 30)]
    # 34 = 2 x 1 + 32 still goes with 1
    assert forwards(llama(), [(3,) * n for n in (1, 34, 35)], 10**6) == [(2, 34), (1, 35)]
    assert forwards(mistral(), [(3, 4), (5, 6, 7), (8, 9, 10), (11, 12, 13)], 6) == [(2, 3), (2, 3)]


def test_refusals():
    engine = TorchEngine(llama())
    with pytest.raises(ModelError, match="names 1 samples to keep and has 2 streams"):
        engine.sample([Request((5,), (StreamKey(0, 0, "t", 0), StreamKey(0, 0, "t", 1)), ("a",))], SHORT)
    with pytest.raises(ModelError, match="kept as 'a'"):
        engine.sample([ask((5,), "a"), ask((6,), "a")], SHORT)
    with pytest.raises(ModelError, match="keep_tokens is -1"):
        TorchEngine(llama(), keep_tokens=-1)
    with pytest.raises(ModelError, match="prefill_tokens is 0"):
        TorchEngine(llama(), prefill_tokens=0)
