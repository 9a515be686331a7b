"""The vLLM engine: the real program of its process over a small stand-in for vLLM, and processes that do wrong."""

import contextlib
import copy
import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests import started
from tests.sampling.engines.conversations import forced
from tests.sampling.engines.letters import letters, llama
from tests.thorough import some

from gxpo.base.errors import ModelError
from gxpo.parts.protocols import Request, Sampling, StreamKey
from gxpo.sampling.engines import vllm_process
from gxpo.sampling.engines.vllm import PROBE, VllmEngine
from gxpo.sampling.engines.vllm_process import PROGRAM

HERE = Path(__file__).parent
REAL = (str(HERE / "fake_vllm.py"), PROGRAM)
PROMPTS = [(5, 6, 7, 8, 9), (11,), (12, 13, 14)]
SHORT = Sampling(max_new_tokens=6)


def requests(samples=2, seed=0):
    return [
        Request(p, tuple(StreamKey(seed, 0, str(i), attempt) for attempt in range(samples)))
        for i, p in enumerate(PROMPTS)
    ]


@pytest.fixture(scope="module")
def engine():
    engine = VllmEngine(llama(tie_word_embeddings=True), letters(), program=REAL)
    yield engine
    engine.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampling",
    [SHORT, replace(SHORT, temperature=0.7), replace(SHORT, temperature=1.5, top_k=4),
     replace(SHORT, temperature=1.2, top_k=9, top_p=0.8), replace(SHORT, top_p=0.7)],
)  # fmt: skip
def test_logprobs_are_those_of_the_learner(engine, sampling):
    for request, completions in zip(requests(), engine.sample(requests(), sampling), strict=True):
        for c in completions:
            expected = forced(engine.model, request.prompt, c, sampling.temperature)
            assert np.allclose(c.logprobs, expected, rtol=0, atol=1e-5)
            assert (1 in c.tokens) == (c.finish == "stop") and 1 not in c.tokens[:-1]
            assert (c.support is not None) == sampling.truncated_support
            for place, row in enumerate([] if c.support is None else c.support):
                ids = row[row >= 0].tolist()
                assert c.tokens[place] in ids and ids == sorted(ids) and len(ids) <= (sampling.top_k or 31)


def test_greedy_samples_are_certain(engine):
    for completions in engine.sample(requests(1), replace(SHORT, temperature=0.0)):
        assert set(completions[0].logprobs) == {0.0} and completions[0].support is None


def test_a_stream_names_its_sample(engine):
    once, again, other = (engine.sample(requests(seed=seed), SHORT) for seed in (0, 0, 1))
    tokens = [[c.tokens for group in actual for c in group] for actual in (once, again, other)]
    assert tokens[0] == tokens[1] != tokens[2]
    assert tokens[0][0] != tokens[0][1]


def test_an_action_ends_with_a_completed_stop_string(engine):
    for group in engine.sample(requests(4), Sampling(max_new_tokens=20, stop=("c", "f"))):
        for c in group:
            text = [engine.tokenizer.decode(c.tokens[: i + 1]) for i in range(len(c.tokens))]
            ended = [any(s in t for s in ("c", "f")) or 1 in c.tokens[: i + 1] for i, t in enumerate(text)]
            assert not any(ended[:-1]) and ended[-1] == (c.finish == "stop")


def test_stop_ids_can_be_taken_away(engine, monkeypatch):
    monkeypatch.setattr(engine, "stop_ids", ())
    actual = [c for group in engine.sample(requests(6), SHORT) for c in group]
    assert all(len(c.tokens) == 6 and c.finish == "length" for c in actual)


def test_an_update_reaches_every_weight_and_no_cache_outlives_it(engine):
    """Half of the weights change, one of them the embedding that is the head, too; the salt of the cache with them."""
    engine.sample(requests(), SHORT)
    before = engine.reused_tokens
    engine.sample(requests(), SHORT)
    assert engine.reused_tokens == before + 6  # the stand-in counts a token where it has seen the salt
    with torch.no_grad():
        for i, p in enumerate(engine.model.parameters()):
            p.mul_(1.5 if i % 2 == 0 else 1.0)
    engine.policy_version = 3
    before = engine.reused_tokens
    answered = engine.sample(requests(), SHORT)
    assert engine.reused_tokens == before + 5
    for request, completions in zip(requests(), answered, strict=True):
        for c in completions:
            assert np.allclose(c.logprobs, forced(engine.model, request.prompt, c, 1.0), rtol=0, atol=1e-5)
            assert c.policy_version == 3


@pytest.mark.parametrize(
    "request_, sampling, words",
    [
        (Request((), (StreamKey(0, 0, "t", 0),)), SHORT, "an empty prompt"),
        (Request((5, -1), (StreamKey(0, 0, "t", 0),)), SHORT, "no vocabulary ids"),
        (Request((5, 1 << 62), (StreamKey(0, 0, "t", 0),)), SHORT, "a picture, and this model reads texts alone"),
        (Request((5,), (StreamKey(0, 0, "t", 0),), policy="judge"), SHORT, "policy 'judge'"),
        (Request((5,) * 127, (StreamKey(0, 0, "t", 0),)), SHORT, "exceed 128 .max_model_len"),
        (Request((5,), (StreamKey(0, 0, "t", 0),)), replace(SHORT, temperature=0.001), "greedy"),
        (Request((5,), (StreamKey(0, 0, "t", 0),)), replace(SHORT, top_k=300), "top_k=300"),
        (Request((5,), (StreamKey(0, 0, "t", 0),)), replace(SHORT, stop=("",)), "empty string"),
        (Request((5,), (StreamKey(0, 0, "t", 0),)), replace(SHORT, max_new_tokens=0), "impossible"),
    ],
)
def test_requests_that_vllm_cannot_sample_are_refused(engine, request_, sampling, words):
    with pytest.raises(ModelError, match=words) as caught:
        engine.sample([request_], sampling)
    assert "\n" not in str(caught.value)


def test_a_call_without_requests_or_streams_is_empty(engine):
    assert engine.sample([], SHORT) == [] and engine.sample([Request((5,), ())], SHORT) == [[]]


# ---------------------------------------------------------------- processes that do wrong
def faulty_engine(fault, model=None, **named):
    """An engine of `model` over a process with one fault, which otherwise computes what a plain Llama does."""
    model = model or llama()
    ids = torch.tensor([[(i * 7919 + 13) % 31 for i in range(PROBE)]])
    with torch.no_grad():
        read = llama()(input_ids=ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None]).squeeze(1)
    program = (str(HERE / "fake_vllm_worker.py"), PROGRAM, fault, json.dumps(read.tolist()))
    return VllmEngine(model, program=program, **named)


def test_a_correct_process_is_accepted():
    engine = faulty_engine("none")
    try:
        assert [c.tokens for group in engine.sample(requests(), SHORT) for c in group] == [[1]] * 6
        assert engine.prefilled_tokens == 6 and engine.reused_tokens == 0
    finally:
        engine.close()


def test_a_different_network_is_found_before_the_first_sample():
    """Rotary frequencies that no configuration tells, and a head that an update did not reach."""
    turned, ahead = llama(), llama()
    turned.model.rotary_emb.inv_freq.mul_(3.0)
    with torch.no_grad():
        ahead.lm_head.weight.mul_(1.3)
    for model in (turned, ahead):
        with pytest.raises(ModelError, match=r"computes something else .* does not load all of LlamaForCausalLM"):
            faulty_engine("none", model)


@pytest.mark.parametrize(
    "fault, words",
    [
        ("stale", "weights of stamp 1, the policy's are of stamp 2"),
        ("misread", "the checksum of .* differs"),
        ("unloaded", "the checksum of .* differs"),
    ],
)
def test_an_update_that_did_not_arrive_is_an_error(fault, words):
    engine = faulty_engine(fault)
    try:
        engine.sample(requests(), SHORT)
        engine.policy_version = 1
        with pytest.raises(ModelError, match=words):
            engine.sample(requests(), SHORT)
    finally:
        engine.close()


@pytest.mark.parametrize(
    "fault, words",
    [
        ("error", "failed to sample: ValueError: no room for so many tokens"),
        ("killed", "ended while asked to sample: signal SIGKILL"),
        ("nonsense", "no answer"),
        ("another", "no answer .it is of another number"),
        ("nan", "log-probs that are nan"),
        ("fewer", "other samples than it was asked for"),
        ("aborts", "gave up a sample .abort."),
    ],
)
def test_failures_are_one_line_errors(fault, words):
    engine = faulty_engine(fault)
    try:
        with pytest.raises(ModelError, match=words) as caught:
            engine.sample(requests(), SHORT)
        assert "\n" not in str(caught.value)
    finally:
        engine.close()


@pytest.mark.parametrize("updated", some([False, True], [True]))
def test_a_killed_process_is_replaced_and_nothing_is_lost(updated):
    """Idle, and while it samples; with an update of the weights that the new process has to be given."""
    messages, model = [], llama(seed=3)
    with (
        started.forking(vllm_process),
        contextlib.closing(VllmEngine(model, letters(), program=REAL, notify=messages.append)) as engine,
    ):
        calm = engine.sample(requests(), SHORT)
        if updated:
            engine.policy_version = 1
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(1.1)
            calm = engine.sample(requests(), SHORT)
        first = engine.process.pid
        os.kill(first, signal.SIGKILL)
        assert engine.sample(requests(), SHORT) == calm and engine.process.pid != first
        ask = engine.process.ask

        def killed(header, *rest, **named):
            if header["do"] == "sample":
                os.kill(engine.process.pid, signal.SIGKILL)
            return ask(header, *rest, **named)

        engine.process.ask = killed
        assert engine.sample(requests(), SHORT) == calm
        assert [line for line in messages if "signal SIGKILL: starting another" in line] == messages[2:] and len(
            messages
        ) == 4


def test_a_failed_or_slow_start_leaves_nothing_running():
    with pytest.raises(ModelError, match="exit code 3; a library is missing"):
        faulty_engine("dies")
    with pytest.raises(ModelError, match=r"did not answer 'start' within 0.5 s"):
        faulty_engine("slow", starting=0.5)
    with pytest.raises(ModelError, match="/no/such/python can't be run"):
        faulty_engine("none", python="/no/such/python")


def test_closing_ends_the_process_and_leaves_no_file():
    before = set(Path("/dev/shm").glob("gxpo-weights-*")) if Path("/dev/shm").exists() else set()
    engine = faulty_engine("none")
    process = engine.process.pid
    engine.close()
    for _ in range(100):
        if not Path(f"/proc/{process}").exists():
            break
        time.sleep(0.05)
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    assert not Path("/dev/shm").exists() or set(Path("/dev/shm").glob("gxpo-weights-*")) <= before
    with pytest.raises(ModelError, match="was closed"):
        engine.sample(requests(), SHORT)


def test_options_that_gxpo_must_set_are_refused():
    for name in ("logprobs_mode", "tensor_parallel_size"):
        with pytest.raises(ModelError, match=f"{name} is not yours to set"):
            VllmEngine(llama(), arguments={name: 2}, program=REAL)
    with pytest.raises(ModelError, match="does not run float64"):
        VllmEngine(llama().double(), program=REAL)


@pytest.mark.slow
def test_a_copy_that_is_not_trained_is_sampled_from(engine):
    model, moved = engine.model, copy.deepcopy(engine.model)
    try:
        engine.move_to(moved)
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(0.0)  # what the learner does meanwhile reaches nobody
        (first, *_), *_ = engine.sample(requests(), SHORT)
        expected = forced(moved, requests()[0].prompt, first, 1.0)
        assert np.allclose(first.logprobs, expected, rtol=0, atol=1e-5) and len(set(expected)) > 1
    finally:
        model.load_state_dict(moved.state_dict())
        engine.move_to(model)
