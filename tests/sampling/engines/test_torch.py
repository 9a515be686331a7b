"""In-process engine: log-probs, streams, stop conditions, other architectures, bfloat16, exhausted memory."""

import numpy as np
import pytest
import torch
from tests.sampling.engines.conversations import forced, play, ragged
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

from gxpo.base.errors import ModelError
from gxpo.parts.protocols import Request, Sampling, StreamKey
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
    batch = [*requests(), Request(PROMPTS[0], (StreamKey(1, 0, "again", 0),))]
    answered = TorchEngine(model, batch_rows=batch_rows).sample(batch, sampling)
    assert [len(a) for a in answered] == [len(r.streams) for r in batch]
    for request, completions in zip(batch, answered, strict=True):
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
    apart = [TorchEngine(llama(), batch_rows=1).sample([r], sampling)[0] for r in reversed(requests(4))][::-1]
    assert [[c.tokens for c in a] for a in together] == [[c.tokens for c in a] for a in apart]
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
    ((*samples,),) = TorchEngine(model, batch_rows=n).sample([Request(PROMPTS[0], streams)], Sampling(max_new_tokens=1))
    counts = torch.bincount(torch.tensor([c.tokens[0] for c in samples]), minlength=31)
    chi_square = float(((counts - n * p).square() / (n * p)).sum())
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


def test_stop_ids_and_strings_end_with_the_completing_token():
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
def test_other_architectures_give_the_logprobs_of_a_forward(name):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = OTHERS[name]().eval()
    sampling = Sampling(temperature=0.9, max_new_tokens=8)
    for request, completions in zip(requests(), TorchEngine(model).sample(requests(), sampling), strict=True):
        for c in completions:
            assert np.allclose(c.logprobs, forced(model, request.prompt, c, 0.9), rtol=0, atol=1e-5)


def test_impossible_requests_are_refused():
    engine = TorchEngine(llama())
    with pytest.raises(ModelError, match="empty prompt"):
        engine.sample([Request((), (StreamKey(0, 0, "t", 0),))], Sampling())
    with pytest.raises(ModelError, match="128 positions"):
        engine.sample(requests(), Sampling(max_new_tokens=125))
    with pytest.raises(ModelError, match="top_p"):
        engine.sample(requests(), Sampling(top_p=0.0))
    with pytest.raises(
        ModelError, match=r"MambaForCausalLM(: samples that go on from its cache differ| keeps no cache whose rows)"
    ):
        TorchEngine(MambaForCausalLM(MambaConfig(vocab_size=31, hidden_size=16, num_hidden_layers=1, state_size=4)))
    assert engine.sample([], Sampling()) == []
    assert engine.sample([Request((5,), ())], Sampling(max_new_tokens=2)) == [[]]


# ---------------------------------------------------------------- bfloat16
# bfloat16 rounds to 8 bits: a logit between 4 and 8, the largest here, to 1/64 either way. A forward pass of a whole
# sequence and one token by token round differently in both layers, and temperature 0.7 stretches what comes of it.
BFLOAT16_TOLERANCE = 0.1


def bfloat16(seed):
    return llama(seed).to(torch.bfloat16)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_bfloat16_logprobs_are_computed_in_float32(temperature):
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
def test_bfloat16_sampling_agrees_with_a_full_forward_pass(seed, sampling):
    model = bfloat16(seed)
    engine = TorchEngine(model, products="native")  # as the forward pass multiplies
    for episode in play(engine, ragged(seed, 10), sampling, keep=True):
        for prompt, c in zip(episode.prompts, episode.said, strict=True):
            expected = forced(model, prompt, c, sampling.temperature)
            assert np.allclose(c.logprobs, expected, rtol=0, atol=BFLOAT16_TOLERANCE)
    assert engine.reused_tokens > 0


# ---------------------------------------------------------------- memory
ONE_REQUEST = [Request((5, 6, 7), (StreamKey(0, 0, "t", 0),))]


def failing(failure):
    """An engine whose model fails in this way on every prompt of more than one token."""
    model = llama()

    def fail(_, args, kwargs):
        if kwargs["input_ids"].numel() > 1:
            failure()

    return TorchEngine(model, batch_rows=17, kernels="transformers"), model.register_forward_pre_hook(
        fail, with_kwargs=True
    )


def device_is_full():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nMore of it")


@pytest.mark.parametrize("failure", [lambda: torch.empty(1 << 60), device_is_full], ids=["cpu", "device"])
def test_exhausted_memory_names_the_settings_to_lower(failure):
    engine, hook = failing(failure)
    with pytest.raises(ModelError) as caught:
        engine.sample(ONE_REQUEST, Sampling(max_new_tokens=2))
    message = str(caught.value)
    for knob in ("sampling.batch_rows (17", "tasks.per_step", "rollout.group_size", "sampling.max_new_tokens"):
        assert knob in message
    assert "\n" not in message and "allocate" in message
    assert isinstance(caught.value.__cause__, RuntimeError)
    hook.remove()
    assert len(engine.sample(ONE_REQUEST, Sampling(max_new_tokens=2))[0]) == 1


def test_other_errors_pass_unchanged():
    def broken():
        raise RuntimeError("shapes do not match")

    engine, _ = failing(broken)
    with pytest.raises(RuntimeError, match="shapes do not match"):
        engine.sample(ONE_REQUEST, Sampling(max_new_tokens=2))
