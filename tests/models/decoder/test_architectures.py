"""One contract over architectures: sampler, learner (packed, flat, by transformers) and a bare forward pass agree."""

import copy
import warnings

import pytest
import torch
from tests.thorough import some

from gxpo.base.errors import ModelError
from gxpo.bench.random_models import KINDS, TINY
from gxpo.forest.forest import Forest
from gxpo.learning.lora import LoraSettings, merge_adapters
from gxpo.learning.torch import TorchLearner
from gxpo.parts.protocols import Request, Sampling, StreamKey
from gxpo.sampling.engines.torch import TorchEngine

NAMES = ("logprob", "entropy")
RUN = [name for name, kind in KINDS.items() if kind.expected != "refused"]
FAST = [name for name in RUN if KINDS[name].expected == "fast"]
MAIN = ("llama-3", "qwen2-window", "qwen3", "mistral-window", "smollm3", "gemma2", "gemma3", "phi3", "gpt-neox")
BASE = {"schema": "gxpo.rollouts/1", "group": "g", "reward": 0.0}
FORKED = Forest.from_records(
    [
        {**BASE, "id": "a", "prompt": [3, 4, 5, 6, 7, 8], "turns": [
            {"action": [9, 10, 11, 12, 13]}, {"observation": [14, 15], "action": [16, 17, 18]}]},
        {**BASE, "id": "b", "fork": {"of": "a", "turn": 0, "token": 2}, "turns": [
            {"action": [19, 20]}, {"observation": [21], "action": [22, 23, 24, 25]}]},
        {**BASE, "id": "c", "fork": {"of": "a", "turn": 1, "token": 1}, "turns": [{"action": [26, 27, 28, 29, 30]}]},
        {**BASE, "id": "d", "prompt": [8, 7], "turns": [{"action": [6, 5, 4, 3]}]},
    ]
)  # fmt: skip


def made(name, sizes=TINY, **more):
    """A random model whose norms and biases are not all one and zero."""
    model = KINDS[name].model(sizes, **more)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn(p.shape, generator=draw))
    return model


def learner(model, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return TorchLearner(model, lr=0.0, **settings)


def engine(model, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return TorchEngine(model, stop_ids=[], **settings)


def alone(model, forest):
    """Log-probs and entropies [P] from a bare forward pass of each trajectory by itself, with their graph."""
    logprob, entropy = [], []
    for r in range(forest.n_trajectories):
        path = forest.path_of(r)
        tokens = forest.path_token[path].tolist()
        first, nodes = forest.first_token.tolist(), forest.path(int(forest.token_node[tokens[-1]])).tolist()
        full_nodes = [t for n in nodes for t in range(first[n], first[n + 1]) if t <= tokens[-1]]
        rows = model(input_ids=forest.token[full_nodes][None], use_cache=False).logits[0].double().log_softmax(-1)
        for token in tokens:
            row = rows[full_nodes.index(token) - 1]
            logprob.append(row[forest.token[token]])
            entropy.append(-(row.exp() * row).sum())
    return {"logprob": torch.stack(logprob), "entropy": torch.stack(entropy)}


def loss(x):
    weight = torch.linspace(-1, 1, x["logprob"].numel(), dtype=torch.float64)
    return (weight * x["logprob"]).sum() + 0.1 * x["entropy"].sum()


def farthest(one, other):
    """Largest difference of two named gradients, relative to each tensor's norm."""
    assert one.keys() == other.keys()
    largest = max(float(g.norm()) for g in other.values())
    return max(float((one[n] - other[n]).norm() / other[n].norm().clamp_min(1e-3 * largest)) for n in one)


@pytest.mark.parametrize("name", some(RUN, [*MAIN, "qwen3-moe", "lfm2"]))
def test_packed_flat_and_transformers_agree_with_a_bare_pass(name):
    model, kind = made(name), KINDS[name]
    bare = alone(model, FORKED)
    loss(bare).backward()
    expected = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    assert len(expected) > 10
    model.zero_grad()
    for settings in ({}, {"layout": "flat"}, {"kernels": "transformers"}, {"tokens_per_microbatch": 12}):
        own_learner = learner(model, **settings)
        fast = kind.expected == "fast" and "kernels" not in settings
        assert (own_learner._readout.decoder is not None) == fast
        if not settings:
            assert own_learner.layout == ("flat" if kind.expected == "flat" else "packed")
        actual = own_learner.outputs(FORKED, NAMES)
        for key in NAMES:
            assert torch.allclose(actual[key], bare[key].detach(), rtol=0, atol=1e-5), (settings, key)
        gradient = own_learner.gradient(FORKED, loss, names=NAMES)
        assert farthest({n: g for n, g in gradient.items() if n in expected}, expected) < 1e-4, settings


def sampled(sampler, long):
    """Two prompts, of 70 (more than samples copy) or 9 tokens and of 3: completions with the sampler's log-probs."""
    prompts = [tuple(3 + (5 * i) % 28 for i in range(70 if long else 9)), (5, 6, 7)]
    requests = [Request(p, tuple(StreamKey(0, 0, str(i), j) for j in range(3))) for i, p in enumerate(prompts)]
    answered = sampler.sample(requests, Sampling(max_new_tokens=9))
    return Forest.from_completions(
        [list(p) for p in prompts],
        [[c.tokens for c in row] for row in answered],
        [[0.0] * 3] * 2,
        logprobs=[[c.logprobs for c in row] for row in answered],
    )


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize("name", some(RUN, [*MAIN, "qwen3-moe", "lfm2"]))
def test_the_sampler_s_log_probs_are_the_learner_s(name, long):
    model = made(name)
    forest = sampled(engine(model), long)
    expected = learner(model).outputs(forest)["logprob"]
    assert torch.allclose(forest.path_behaviour_logprob, expected, rtol=0, atol=1e-5)
    assert float(expected.std()) > 0.1


@pytest.mark.parametrize("name", some(RUN, ["smollm3", "gemma3", "phi3"]))
def test_adapters(name):
    """They train, act in the sampler, are off in the reference, and merge into the same model."""
    model, targets = made(name), ("q_proj", "v_proj") if name == "falcon-h1" else "all-linear"
    before = alone(model, FORKED)["logprob"].detach()
    own_learner = learner(model, lora=LoraSettings(rank=4, targets=targets), reference=True)
    draw = torch.Generator().manual_seed(1)
    own_learner.restore({n: x + 0.1 * torch.randn(x.shape, generator=draw) for n, x in own_learner.snapshot().items()})
    bare = alone(own_learner.model, FORKED)
    assert float((bare["logprob"] - before).abs().max()) > 0.05
    loss(bare).backward()
    expected = {n: p.grad.clone() for n, p in own_learner.model.named_parameters() if p.grad is not None}
    own_learner.model.zero_grad()
    assert all("lora" in n for n in expected)
    assert torch.allclose(own_learner.outputs(FORKED)["logprob"], bare["logprob"].detach(), rtol=0, atol=1e-5)
    assert torch.allclose(own_learner.outputs(FORKED, policy="reference")["logprob"], before, rtol=0, atol=1e-5)
    assert farthest(own_learner.gradient(FORKED, loss, names=NAMES), expected) < 1e-4
    forest = sampled(engine(own_learner.model), False)
    # recurrences are computed by chunks, or token by token; adapters add a second sum to each product, which torch's
    # kernels for the oldest processors round to 1.05e-5 apart (phi3)
    close = 3e-5 if KINDS[name].expected == "flat" else 2e-5
    assert torch.allclose(
        forest.path_behaviour_logprob, alone(own_learner.model, forest)["logprob"].detach(), rtol=0, atol=close
    )
    one = merge_adapters(
        copy.deepcopy(own_learner.model)
    )  # sums in another order, which recurrences carry on: 5e-5, in float64 0
    apart = 1e-4 if KINDS[name].expected == "flat" else 2e-5
    assert torch.allclose(alone(one, FORKED)["logprob"], bare["logprob"], rtol=0, atol=apart)


SINGLE = (  # parts of transformers that compute in float32 whatever they are given, beside norms
    "gemma2",  # the softmax of eager attention
    "qwen3-moe", "qwen2-moe", "mixtral", "olmoe", "qwen3-next",  # that of routers
    "falcon-h1",  # the scan
)  # fmt: skip


def widened(model):
    """Norms in float64 throughout: those of transformers compute in float32."""
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            more, eps = "Gemma" in type(module).__name__, getattr(module, "variance_epsilon", None)
            eps = module.eps if eps is None else eps
            module.forward = lambda x, m=module, more=more, eps=eps: (
                x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * (m.weight + more)
            )
    return model


@pytest.mark.parametrize("name", some(FAST, ["llama-3", "mistral-window", "gemma3", "phi3", "gpt-neox"]))
def test_in_float64_they_agree_to_more_digits(name):
    model = widened(made(name).double())
    if hasattr(model.model if hasattr(model, "model") else model, "set_experts_implementation"):
        model.set_experts_implementation("eager")  # the grouped products of torch have no float64
    bare, forest = alone(model, FORKED), sampled(engine(model), True)
    loss(bare).backward()
    expected = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    own_learner, close = learner(model), 1e-6 if name in SINGLE else 1e-10
    assert own_learner._readout.decoder is not None
    assert torch.allclose(own_learner.outputs(FORKED)["logprob"], bare["logprob"].detach(), rtol=0, atol=close)
    assert torch.allclose(own_learner.outputs(forest)["logprob"], forest.path_behaviour_logprob, rtol=0, atol=close)
    gradient = own_learner.gradient(FORKED, loss, names=NAMES)
    assert farthest({n: gradient[n] for n in expected}, expected) < 10 * close


@pytest.mark.parametrize("name", some(RUN, ["llama-3", "gemma3"]))
def test_in_bfloat16_sampler_and_learner_differ_by_rounding(name):
    model = made(name).bfloat16()
    forest = sampled(engine(model), True)
    gap = (forest.path_behaviour_logprob - learner(model).outputs(forest)["logprob"]).abs()
    assert float(gap.median()) < 0.05


@pytest.mark.parametrize("name", some(RUN, ["smollm3", "mistral-window", "lfm2"]))
def test_turns_go_on_from_a_kept_cache_or_are_read_anew(name):
    model = made(name)
    sampler, prompt = engine(model), (5, 6, 7, 8, 9)
    for turn in range(3):
        asked_request = Request(prompt, (StreamKey(0, turn, "a", 0),), ("a",))
        ((message,),) = sampler.sample([asked_request], Sampling(max_new_tokens=5))
        rows = model(input_ids=torch.tensor([[*prompt, *message.tokens]]), use_cache=False).logits[0].double()
        expected = rows.log_softmax(-1)[len(prompt) - 1 : -1].gather(1, torch.tensor(message.tokens)[:, None])
        assert torch.allclose(torch.tensor(message.logprobs), expected[:, 0].float(), rtol=0, atol=1e-5)
        prompt = (*prompt, *message.tokens, 10 + turn, 4)
    assert (sampler.reused_tokens > 0) != (sampler.unkept > 0)


def test_what_peft_can_not_adapt_is_refused_with_the_reason():
    with pytest.raises(ModelError, match=r"FalconH1ForCausalLM can't be given these adapters: .*learner.lora_targets"):
        learner(made("falcon-h1"), lora=LoraSettings(rank=4))


def test_a_model_without_cache_rows_is_refused_with_the_reason():
    # without a cache before transformers 5.24, with one whose states padding changes from there on
    reasons = "keeps no cache whose rows can be reordered|: samples that go on from its cache differ"
    with pytest.raises(ModelError, match=f"MambaForCausalLM( |)({reasons})"):
        engine(made("mamba"))
