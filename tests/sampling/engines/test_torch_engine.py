"""Sampling from transformers models."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tests.sampling.engines.conversations import forced
from tests.sampling.engines.letters import letters, llama
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    MambaConfig,
    MambaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
)
from transformers.cache_utils import DynamicLayer

from gxpo.base.errors import ModelError
from gxpo.parts.protocols import Request, Sampling, StreamKey
from gxpo.sampling.engines.cache import check_rows
from gxpo.sampling.engines.torch import TorchEngine

PROMPTS = [(5, 6, 7, 8, 9, 10), (11,), (12, 13, 14), (11, 12), (20, 21, 22, 23, 24, 25, 26, 27, 28)]


def requests(samples: int = 3, seed: int = 0, prompts=PROMPTS) -> list[Request]:
    return [
        Request(prompt, tuple(StreamKey(seed, 0, str(i), attempt) for attempt in range(samples)))
        for i, prompt in enumerate(prompts)
    ]


def flat(answered):
    return [completion for completions in answered for completion in completions]


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_new_tokens=12),
        Sampling(temperature=0.7, max_new_tokens=12),
        Sampling(temperature=1.5, top_k=4, max_new_tokens=12),
        Sampling(top_p=0.7, max_new_tokens=12),
        Sampling(temperature=1.2, top_k=9, top_p=0.8, max_new_tokens=12),
    ],
)
@pytest.mark.parametrize("batch_rows", [2, 4, 100])
def test_logprobs_are_those_of_a_teacher_forced_forward(sampling, batch_rows):
    # T29, T31: ragged prompts, shared prompts, rows that end early, temperature and truncated support
    model = llama()
    asked = [*requests(), Request(PROMPTS[0], (StreamKey(1, 0, "again", 0),))]
    answered = TorchEngine(model, batch_rows=batch_rows).sample(asked, sampling)
    assert [len(a) for a in answered] == [len(r.streams) for r in asked]
    for request, completions in zip(asked, answered, strict=True):
        for c in completions:
            assert len(c.tokens) == len(c.logprobs) and 1 <= len(c.tokens) <= 12
            expected = forced(model, request.prompt, c, sampling.temperature)
            assert np.allclose(c.logprobs, expected, rtol=0, atol=1e-5)
            assert (1 in c.tokens) == (c.finish == "stop") and 1 not in c.tokens[:-1]
            if sampling.truncated_support:
                assert all(t in row for t, row in zip(c.tokens, c.support.tolist(), strict=True))
            else:
                assert c.support is None
    lengths = {len(c.tokens) for completions in answered for c in completions}
    assert len(lengths) > 2  # the battery holds early and late finishers


def test_tokens_follow_the_key_and_not_the_batch():
    sampling = Sampling(max_new_tokens=10)
    engine = TorchEngine(llama())
    together = engine.sample(requests(4), sampling)
    alone = [TorchEngine(llama(), batch_rows=1).sample([r], sampling)[0] for r in reversed(requests(4))][::-1]
    assert [[c.tokens for c in a] for a in together] == [[c.tokens for c in a] for a in alone]
    assert together[0][0].tokens != engine.sample(requests(4, seed=1), sampling)[0][0].tokens


def test_samples_of_one_prompt_differ():
    (group,) = TorchEngine(llama()).sample(requests(16, prompts=PROMPTS[:1]), Sampling(max_new_tokens=10))
    assert len({tuple(c.tokens) for c in group}) > 12


def test_the_same_call_twice_is_identical():
    engine = TorchEngine(llama(), batch_rows=5)
    first, second = (engine.sample(requests(), Sampling(max_new_tokens=10)) for _ in range(2))
    assert first == second


def test_frequencies_are_the_probabilities():
    model = llama()
    with torch.no_grad():
        p = model(torch.tensor([PROMPTS[0]])).logits[0, -1].double().softmax(0)
    n = 4000
    streams = tuple(StreamKey(0, 0, "t", i) for i in range(n))
    ((*drawn,),) = TorchEngine(model, batch_rows=n).sample([Request(PROMPTS[0], streams)], Sampling(max_new_tokens=1))
    seen = torch.bincount(torch.tensor([c.tokens[0] for c in drawn]), minlength=31)
    chi_square = float(((seen - n * p).square() / (n * p)).sum())
    assert chi_square < 59.7  # 30 degrees of freedom, 0.1 per cent


def test_each_distinct_prompt_is_prefilled_once_a_call():
    engine = TorchEngine(llama(), batch_rows=4)
    engine.sample([*requests(9), *requests(2, seed=3)], Sampling(max_new_tokens=2))
    assert engine.prefilled_tokens == sum(len(p) for p in PROMPTS)


def test_greedy_is_the_argmax_at_every_token():
    model = llama()
    for (completion,), prompt in zip(
        TorchEngine(model).sample(requests(1), Sampling(0.0, max_new_tokens=8)), PROMPTS, strict=True
    ):
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *completion.tokens]])).logits[0]
        assert logits[len(prompt) - 1 : -1].argmax(-1).tolist() == completion.tokens
        assert set(completion.logprobs) == {0.0}


def test_stop_ids_and_strings_end_the_action_with_the_completing_token():
    model, tokenizer = llama(), letters()
    free = TorchEngine(model, stop_ids=[]).sample(requests(6), Sampling(max_new_tokens=20))
    ids = TorchEngine(model, stop_ids=[]).sample(requests(6), Sampling(max_new_tokens=20, stop_ids=(7, 9)))
    strings = TorchEngine(model, tokenizer, stop_ids=[]).sample(
        requests(6), Sampling(max_new_tokens=20, stop=("ab", "c", "qr"))
    )
    stopped = 0
    for a, b, c in zip(flat(free), flat(ids), flat(strings), strict=True):
        first = next((i + 1 for i, t in enumerate(a.tokens) if t in (7, 9)), None)
        assert (b.tokens, b.finish) == (a.tokens[:first], "length" if first is None else "stop")
        texts = [tokenizer.decode(a.tokens[: i + 1]) for i in range(20)]
        first = next((i + 1 for i, text in enumerate(texts) if any(s in text for s in ("ab", "c", "qr"))), None)
        assert (c.tokens, c.finish) == (a.tokens[:first], "length" if first is None else "stop")
        stopped += first is not None
    assert 5 < stopped < 30


def test_an_end_at_the_last_token_is_a_stop():
    engine = TorchEngine(llama(), stop_ids=range(31))
    assert {c.finish for c in flat(engine.sample(requests(), Sampling(max_new_tokens=1)))} == {"stop"}


def test_version_is_stamped_and_mode_restored():
    model = llama().train()
    engine = TorchEngine(model)
    engine.policy_version = 41
    assert {c.policy_version for c in flat(engine.sample(requests(), Sampling(max_new_tokens=2)))} == {41}
    assert model.training


SMALL = {"vocab_size": 31, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "eos_token_id": 1}
OTHERS = {
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=31,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=64,
            eos_token_id=1,
            bos_token_id=0,
            initializer_range=0.2,
        )
    ),
    "mistral with a sliding window": lambda: MistralForCausalLM(
        MistralConfig(**SMALL, intermediate_size=48, num_key_value_heads=2, sliding_window=4, initializer_range=0.2)
    ),
    "gemma2 with soft-capped logits": lambda: Gemma2ForCausalLM(
        Gemma2Config(
            **SMALL,
            intermediate_size=48,
            num_key_value_heads=2,
            head_dim=8,
            sliding_window=4,
            final_logit_softcapping=2.0,
            initializer_range=0.2,
        )
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_architectures(name):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = OTHERS[name]().eval()
    sampling = Sampling(temperature=0.9, max_new_tokens=8)
    for request, completions in zip(requests(), TorchEngine(model).sample(requests(), sampling), strict=True):
        for c in completions:
            assert np.allclose(c.logprobs, forced(model, request.prompt, c, 0.9), rtol=0, atol=1e-5)


def test_refusals():
    engine = TorchEngine(llama())
    with pytest.raises(ModelError, match="empty prompt"):
        engine.sample([Request((), (StreamKey(0, 0, "t", 0),))], Sampling())
    with pytest.raises(ModelError, match="128 positions"):
        engine.sample(requests(), Sampling(max_new_tokens=125))
    with pytest.raises(ModelError, match="top_p"):
        engine.sample(requests(), Sampling(top_p=0.0))
    with pytest.raises(ModelError, match="MambaForCausalLM keeps no cache whose rows"):
        TorchEngine(MambaForCausalLM(MambaConfig(vocab_size=31, hidden_size=16, num_hidden_layers=1, state_size=4)))
    layer = DynamicLayer()
    check_rows(SimpleNamespace(layers=[layer]), "Plain")
    layer.conv_states = None  # as a layer with attention and a recurrent state has, which selects rows of the former
    with pytest.raises(ModelError, match="Mixed keeps no cache whose rows"):
        check_rows(SimpleNamespace(layers=[layer]), "Mixed")
    assert engine.sample([], Sampling()) == []
    assert engine.sample([Request((5,), ())], Sampling(max_new_tokens=2)) == [[]]
