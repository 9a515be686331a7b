"""A budget of waits: how often the host waits for a device, and what crosses, grows with neither tokens nor rollouts.

Counted on the strict device (`tests.strict_device`): waits for a number or a shape, and copies to the host.
"""

import pytest
import torch
from tests.learning.llamas import VOCABULARY, small_llama
from tests.strict_device import NAME, counting, strict

from gxpo.forest.forest import Forest
from gxpo.learning.torch import TorchLearner
from gxpo.parts.protocols import Request, Sampling, StreamKey
from gxpo.sampling.engines.decode import TOKENS_AT_ONCE
from gxpo.sampling.engines.torch import TorchEngine


@pytest.fixture(autouse=True)
def strict_device():
    with strict():
        yield


def learner_of(**settings):
    return TorchLearner(small_llama(), **{"lr": 1e-3, "device": NAME, "kernels": "transformers", **settings})


def loss(x):
    return (x["logprob"] * torch.linspace(-1, 1, x["logprob"].numel(), dtype=torch.float64)).sum()


def counts_of_step(learner, groups=2):
    completions = [[[(5 + i * j) % VOCABULARY for j in range(1, 8)] for i in range(1, 5)] for _ in range(groups)]
    prompts = [[2, 3, 4 + g] for g in range(groups)]
    forest = Forest.from_completions(prompts=prompts, completions=completions, rewards=[[0.0] * 4] * groups)
    learner.step(forest, loss)  # what is set up once
    with counting() as counts:
        info = learner.step(forest, loss)
        learner.fingerprint()
    return counts, info, forest


def sampled(engine, samples, new, **settings):
    keys = tuple(StreamKey(seed=0, step=1, task="a", attempt=j) for j in range(samples))
    with counting() as counts:
        answers = engine.sample([Request((2, 3, 4), keys)], Sampling(max_new_tokens=new, **settings))
    return counts, answers[0]


def test_a_fingerprint_brings_one_number_to_the_host():
    learner = learner_of()
    with counting() as counts:
        number = learner.fingerprint()
    assert (counts.of("item"), counts.of("to host"), counts.of("to device")) == (1, 0, 0)
    assert number == TorchLearner(small_llama(), lr=1e-3).fingerprint()


def test_an_update_waits_alike_for_few_and_many_tokens():
    learner = learner_of()
    few, info, _ = counts_of_step(learner)
    many, other, _ = counts_of_step(learner, groups=9)
    assert info.microbatches == other.microbatches == 1 and other.tokens_forward > 2 * info.tokens_forward
    # of the outputs, the gradient's norm, the share of weights that moved, the fingerprint
    assert few.waits == many.waits == 4 and few.of("to device") == many.of("to device") <= 4, f"{few}\n{many}"


def test_an_update_waits_once_more_for_each_microbatch():
    one, info, _ = counts_of_step(learner_of())
    learner = learner_of(tokens_per_microbatch=24)
    more, other, _ = counts_of_step(learner)
    extra = other.microbatches - info.microbatches
    assert extra > 1 and more.waits - one.waits == extra
    assert more.of("to device") - one.of("to device") <= 4 * extra


def test_nothing_of_tokens_by_vocabulary_crosses():
    counts, _, forest = counts_of_step(learner_of(value_heads=()))
    most = max(torch.Size(shape).numel() for shape in counts.largest.values())
    assert most < forest.n_tokens * VOCABULARY / 2
    counts, _ = sampled(TorchEngine(small_llama(), device=NAME, stop_ids=(), kernels="transformers"), 6, 8)
    assert max(torch.Size(shape).numel() for shape in counts.largest.values()) < 6 * VOCABULARY


@pytest.mark.parametrize("settings", [{}, {"top_k": 3}, {"top_k": 3, "top_p": 0.9}], ids=str)
def test_sampling_waits_once_for_several_tokens(settings):
    engine = TorchEngine(small_llama(), device=NAME, stop_ids=(), kernels="transformers")
    sampled(engine, 4, 2)
    by_tokens = {new: sampled(engine, 4, new, **settings)[0] for new in (TOKENS_AT_ONCE, 3 * TOKENS_AT_ONCE)}
    few, many = by_tokens.values()
    each = 2 if settings else 1  # supports are a copy of their own
    assert many.waits - few.waits == 2 * each, f"{few}\n{many}"
    assert many.of("to device") == few.of("to device")
    more_samples = sampled(engine, 32, TOKENS_AT_ONCE, **settings)[0]
    assert (more_samples.waits, more_samples.of("to device")) == (few.waits, few.of("to device"))


def test_samples_are_those_of_the_cpu_whatever_is_read_together():
    stops, new = (1, 5), 21
    answers = []
    for device in ("cpu", NAME):
        engine = TorchEngine(small_llama().double(), device=device, stop_ids=stops, kernels="transformers")
        answers.append(sampled(engine, 12, new, top_k=5)[1])
    for one, other in zip(*answers, strict=True):
        assert (one.tokens, one.finish) == (other.tokens, other.finish)
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-12)
        assert one.support.tolist() == other.support.tolist()
    assert {x.finish for x in answers[0]} == {"stop", "length"}
