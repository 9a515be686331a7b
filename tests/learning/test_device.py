"""What depends on the device: on the one that GXPO_TEST_DEVICE names, such as cuda, else on the strict one."""

from dataclasses import replace

import pytest
import torch
from tests.learning.llamas import VOCABULARY, random_forest, small_llama
from tests.strict_device import DEVICE, device
from tests.training.parity_reward import parity

import gxpo
from gxpo.forest.forest import Forest
from gxpo.learning.lora import LoraSettings
from gxpo.learning.torch import TorchLearner
from gxpo.parts.protocols import Request, Sampling, StreamKey
from gxpo.sampling.engines.torch import TorchEngine
from gxpo.training.train import resume

pytestmark = pytest.mark.usefixtures(device.__name__)
NAMES = ("logprob", "entropy")


def learner_of(device=DEVICE, **settings):
    """A float32 model of two layers, the same on every device."""
    return TorchLearner(small_llama(), **{"lr": 1e-3, "device": device, **settings})


def spread(x):
    """A loss that reads every entry with another coefficient, and couples them all."""
    weight = torch.linspace(-1, 1, x["logprob"].numel(), dtype=torch.float64)
    return (weight * x["logprob"]).sum().tanh() + 0.05 * x["entropy"].mean()


def gradient(learner, forest):
    return {n: g.cpu() for n, g in learner.gradient(forest, spread, names=NAMES, couples="step").items()}


def assert_close(one, other, tolerance=1e-4):
    assert one.keys() == other.keys()
    for name in one:
        assert float((one[name] - other[name]).norm()) <= tolerance * float(other[name].norm().clamp_min(1e-6)), name


def sampled(engine, sampling, prompts=((2, 3, 4), (5, 6)), samples=4):
    requests = [
        Request(prompt, tuple(StreamKey(seed=0, step=1, task=str(i), attempt=j) for j in range(samples)))
        for i, prompt in enumerate(prompts)
    ]
    return requests, engine.sample(requests, sampling)


def forest_of(asked, answers):
    records = []
    for i, (request, group) in enumerate(zip(asked, answers, strict=True)):
        for j, answer in enumerate(group):
            turn = {"action": answer.tokens, "logprob": answer.logprobs}
            record = {"schema": "gxpo.rollouts/1", "group": f"g{i}", "id": f"{i}.{j}", "prompt": list(request.prompt)}
            records.append({**record, "turns": [turn], "reward": 0.0})
    return Forest.from_records(records)


@pytest.mark.parametrize("limit", [24, 8192])
def test_packed_equals_flat(limit):
    forest = random_forest(3)
    packed, flat = (learner_of(layout=layout, tokens_per_microbatch=limit) for layout in ("packed", "flat"))
    assert (packed.layout, flat.layout) == ("packed", "flat")
    x, y = packed.outputs(forest, NAMES), flat.outputs(forest, NAMES)
    for name in NAMES:
        assert torch.allclose(x[name], y[name], rtol=0, atol=1e-5)
    assert_close(gradient(packed, forest), gradient(flat, forest))


@pytest.mark.parametrize(
    "settings", [{}, {"recompute": True}, {"logits_at_once": 64}], ids=["plain", "recompute", "chunks"]
)
def test_the_device_computes_what_the_cpu_does(settings):
    forest = random_forest(5)
    device_learner, cpu_learner = learner_of(**settings), learner_of("cpu", kernels="transformers")
    x, y = device_learner.outputs(forest, NAMES), cpu_learner.outputs(forest, NAMES)
    for name in NAMES:
        assert torch.allclose(x[name], y[name], rtol=0, atol=1e-4)
    assert_close(gradient(device_learner, forest), gradient(cpu_learner, forest), 1e-3)


@pytest.mark.parametrize(
    "sampling", [Sampling(max_new_tokens=6), Sampling(max_new_tokens=6, temperature=0.5)], ids=["plain", "cold"]
)
def test_the_learner_reads_what_the_engine_sampled(sampling):
    model = small_llama()
    requests, answers = sampled(TorchEngine(model, device=DEVICE, stop_ids=()), sampling)
    forest = forest_of(requests, answers)
    forest = forest.replace(sampling=[{"temperature": sampling.temperature}] * forest.n_trajectories)
    actual = TorchLearner(model, lr=0.0, device=DEVICE).outputs(forest)["logprob"]
    assert torch.allclose(actual, forest.path_behaviour_logprob, rtol=0, atol=1e-4)


def test_support_of_truncated_sampling_comes_back():
    model = small_llama()
    _, answers = sampled(TorchEngine(model, device=DEVICE, stop_ids=()), Sampling(max_new_tokens=4, top_k=3))
    for answer in (a for group in answers for a in group):
        assert answer.support.shape == (4, 3)
        assert all(token in row for token, row in zip(answer.tokens, answer.support.tolist(), strict=True))


def test_a_kept_cache_goes_on_as_a_fresh_one():
    first, sampling = Request((2, 3, 4), (StreamKey(0, 1, "a", 0),), keep=("a",)), Sampling(max_new_tokens=3)
    kept_value, fresh = (TorchEngine(small_llama(), device=DEVICE, stop_ids=()) for _ in range(2))
    action = kept_value.sample([first], sampling)[0][0].tokens
    again = Request((2, 3, 4, *action, 7), (StreamKey(0, 1, "a", 0, turn=1),), keep=("a",))
    one, other = kept_value.sample([again], sampling)[0][0], fresh.sample([replace(again, keep=())], sampling)[0][0]
    assert kept_value.reused_tokens > 0 == fresh.reused_tokens
    assert one.tokens == other.tokens and one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"lora": LoraSettings(rank=4), "reference": True},
        {"dtype": "bfloat16"},
        {"dtype": "bfloat16", "states": "bfloat16"},
        {"reference": True, "value_heads": ("value",)},
    ],
    ids=["float32", "lora", "bfloat16", "bfloat16 states", "value head"],
)
def test_a_step_moves_parameters_and_a_saved_learner_continues(settings):
    forest = random_forest(7)
    names = (*NAMES, "value") if "value_heads" in settings else NAMES

    def loss(x):
        return spread(x) + (0.1 * (x["value"] - 1).square().mean() if "value" in x else 0.0)

    one, other = learner_of(**settings), learner_of(**settings)
    start = {n: x.clone() for n, x in one.snapshot().items()}
    info = one.step(forest, loss, names=names, couples="step")
    assert info.grad_norm > 0 and all(bool(x.isfinite().all()) for x in one.snapshot().values())
    assert any(not torch.equal(x, start[n]) for n, x in one.snapshot().items())
    if "reference" in settings:
        before = learner_of("cpu", kernels="transformers").outputs(forest)["logprob"]
        assert torch.allclose(one.outputs(forest, policy="reference")["logprob"], before, rtol=0, atol=1e-4)
    other.load_tensors(one.tensors(), one.meta())
    for learner in (one, other):
        learner.step(forest, loss, names=names, couples="step")
    assert_close(other.snapshot(), one.snapshot())


def test_hidden_states_and_the_logits_of_them():
    forest = random_forest(9)
    device_learner, cpu_learner = learner_of(), learner_of("cpu", kernels="transformers")
    x, y = device_learner.hidden(forest), cpu_learner.hidden(forest)
    assert x.device.type == "cpu" and torch.allclose(x, y, rtol=0, atol=1e-3)
    logits = device_learner.logits(x)
    assert logits.shape == (forest.n_tokens, VOCABULARY)
    assert torch.allclose(logits.cpu(), cpu_learner.logits(y), rtol=0, atol=1e-3)


@pytest.mark.slow
def test_a_resumed_run_goes_on_from_the_same_parameters(tmp_path):
    keys = {"learner.device": DEVICE, "tasks.per_step": 2, "rollout.group_size": 4, "eval.tasks": 2,
            "sampling.max_new_tokens": 4, "trainer.checkpoint_every": 1, "sampling.engine": "torch"}  # fmt: skip
    stopped = gxpo.train("tiny:cold", "arithmetic", "grpo", 2, parity, out=tmp_path / "run", set=keys,
                         watch=lambda row: row["step"] == 1)  # fmt: skip
    saved = stopped.trainer.learner.fingerprint()
    crc = []
    run = resume(stopped.path, reward=parity, watch=lambda row: crc.append(row["weights_fingerprint"]))
    assert [row["step"] for row in run.metrics] == [1, 2] and run.metrics[0]["weights_fingerprint"] == saved
    assert crc[0] != saved and run.metrics[1]["grad_norm"] > 0


@pytest.mark.skipif(DEVICE == "cpu", reason="FlexAttention has no backward pass on CPUs")
@pytest.mark.parametrize("settings", [{}, {"recompute": True}, {"lora": LoraSettings(rank=4)}], ids=str)
def test_block_masks_have_the_gradient_of_dense_ones(settings):
    for seed in (3, 5):
        forest = random_forest(seed)
        flex, dense = (
            learner_of(attention=attention, kernels="transformers", **settings) for attention in ("flex", "dense")
        )
        x, y = flex.outputs(forest, NAMES), dense.outputs(forest, NAMES)
        for name in NAMES:
            assert torch.allclose(x[name], y[name], rtol=0, atol=1e-4)
        assert_close(gradient(flex, forest), gradient(dense, forest), tolerance=1e-3)
