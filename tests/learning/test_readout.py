"""Log-probabilities and entropies: alignment, temperature, support, chunks, heads."""

import math
import warnings

import pytest
import torch
from tests.learning.llamas import clean_llama, small_llama
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

from gxpo.algorithms.signals.sampler_distribution import sampler_distribution
from gxpo.base.errors import ModelError
from gxpo.forest.forest import Forest
from gxpo.learning.readout import Readout, read
from gxpo.learning.torch import TorchLearner
from gxpo.parts.protocols import Request, Sampling, StreamKey, Task
from gxpo.sampling.engines.torch import TorchEngine
from gxpo.sampling.rollouts.build import forest_of

SIZE = 7


def table_model(table: torch.Tensor) -> LlamaForCausalLM:
    """A language model without layers: log p(next | current) is a row of `table` [SIZE, SIZE], whatever came before."""
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=SIZE, hidden_size=SIZE, intermediate_size=8, num_hidden_layers=0, num_attention_heads=1,
                    head_dim=2, tie_word_embeddings=False, rms_norm_eps=0.0)
    )  # fmt: skip
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(SIZE))
        model.model.norm.weight.fill_(SIZE**-0.5)  # the norm multiplies a unit vector by sqrt(SIZE)
        model.lm_head.weight.copy_(table.T)
    return model.eval()


@pytest.mark.parametrize("layout", ["packed", "flat"])
def test_table_model_with_known_logprobs(layout):
    # T30: single-token completions, shared prompts, ragged lengths; each number is looked up in the table
    table = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    prompts = [[1, 2, 3], [4], [1, 2, 3]]
    completions = [[[5], [6, 0, 1]], [[2], [3], [2, 2]], [[0]]]
    forest = Forest.from_completions(prompts, completions, [0] * 6)
    expected = []
    for prompt, group in zip(prompts, completions, strict=True):
        for action in group:
            before = [prompt[-1], *action[:-1]]
            expected += [float(table[a, b]) for a, b in zip(before, action, strict=True)]
    learner = TorchLearner(table_model(table), lr=0.0, layout=layout)
    actual = learner.outputs(forest, ("logprob", "entropy"))
    assert torch.allclose(actual["logprob"], torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-6)
    entropy = -(table.exp() * table).sum(-1)
    before = [3, 3, 6, 0, 4, 4, 4, 2, 3]
    assert torch.allclose(actual["entropy"], entropy[before].double(), rtol=0, atol=1e-6)


SETTINGS = [
    Sampling(max_new_tokens=10),
    Sampling(temperature=0.6, max_new_tokens=10),
    Sampling(temperature=1.4, top_k=5, max_new_tokens=10),
    Sampling(temperature=0.8, top_p=0.8, max_new_tokens=10),
    Sampling(temperature=1.2, top_k=9, top_p=0.9, max_new_tokens=10),
]


@pytest.mark.parametrize("sampling", SETTINGS)
@pytest.mark.parametrize("layout", ["packed", "flat"])
def test_what_the_engine_sampled_has_the_same_logprobs_here(sampling, layout):
    # T29: on policy the ratio is 1, at any temperature and on a truncated support
    model = small_llama()
    prompts = [(2, 3, 4, 5, 6, 7, 8), (9,), (2, 3, 4), (2, 3)]
    requests = [Request(p, tuple(StreamKey(0, 0, str(i), j) for j in range(4))) for i, p in enumerate(prompts)]
    answered = TorchEngine(model, batch_rows=7).sample(requests, sampling)
    settings = {"temperature": sampling.temperature, "top_k": sampling.top_k, "top_p": sampling.top_p}
    supports = [None if c.support is None else torch.from_numpy(c.support) for group in answered for c in group]
    forest = Forest.from_completions(
        prompts,
        [[c.tokens for c in group] for group in answered],
        [0.0] * 16,
        logprobs=[[c.logprobs for c in group] for group in answered],
        sampling=settings,
        support=supports if sampling.truncated_support else None,
    )
    learner = TorchLearner(model, lr=0.0, layout=layout, tokens_per_microbatch=40)
    difference = learner.outputs(forest)["logprob"] - forest.path_behaviour_logprob
    assert float(difference.abs().max()) < 1e-5  # float32 sums of token by token and of all at once, logits up to 10
    if sampling.truncated_support:
        with pytest.raises(ModelError, match="allowed ids are not stored"):
            learner.outputs(forest.replace(extras={}))
        with pytest.raises(ModelError, match="outside its own stored support"):
            learner.outputs(forest.replace(extras={"support": torch.where(forest.extras["support"] >= 0, 0, -1)}))


@pytest.mark.parametrize("sampling", SETTINGS[1:4])
def test_the_engine_records_the_learners_distribution(sampling):
    model, prompts = small_llama(), [(2, 3, 4, 5), (9,)]
    engine = TorchEngine(model)
    engine.likeliest = 6
    requests = [Request(p, tuple(StreamKey(0, 0, str(i), j) for j in range(3))) for i, p in enumerate(prompts)]
    answered = engine.sample(requests, sampling)
    forest = forest_of([Task("a", ""), Task("b", "")], ["a", "b"], prompts, answered, sampling)
    names = ("likeliest@6", "likeliest_logprob@6", "logprob")
    ids, logprob, chosen = TorchLearner(model, lr=0.0).outputs(forest, names).values()
    recorded = sampler_distribution(forest)
    assert recorded["sampler_ids"].shape == ids.shape and torch.equal(recorded["sampler_ids"], ids.long())
    assert torch.allclose(recorded["sampler_logprob"].exp(), logprob.exp(), rtol=0, atol=1e-5)
    # an id below the sixth is not listed; of the listed ones, the chosen token's log-prob is the sampler's
    listed = recorded["sampler_ids"] == forest.token[forest.path_token][:, None]
    assert int(listed.any(1).sum()) > len(chosen) / 2
    of_chosen = (recorded["sampler_logprob"][:, :-1].masked_fill(~listed, 0)).sum(1)[listed.any(1)]
    assert torch.allclose(of_chosen, forest.path_behaviour_logprob[listed.any(1)], rtol=0, atol=1e-6)
    # records keep them, and completions that are cut, too
    again = Forest.from_records(forest.to_records())
    assert torch.equal(sampler_distribution(again)["sampler_ids"], recorded["sampler_ids"])
    assert answered[0][0].truncate(2).extras["sampler_ids"].shape == (2, 6)


def test_support_and_temperature_by_hand():
    # logits 0, 1, 2 at temperature 2 on the ids {0, 2}: z = 0, 1; log p(2) = 1 - log(1 + e)
    table = torch.arange(SIZE, dtype=torch.float32).expand(SIZE, SIZE)
    forest = Forest.from_completions([[1]], [[[2]]], [0], sampling={"temperature": 2.0, "top_k": 2},
                                     support=[torch.tensor([[0, 2]])])  # fmt: skip
    actual = TorchLearner(table_model(table), lr=0.0).outputs(forest, ("logprob", "entropy"))
    p = math.e / (1 + math.e)
    assert math.isclose(float(actual["logprob"]), math.log(p), abs_tol=1e-6)
    assert math.isclose(float(actual["entropy"]), -(p * math.log(p) + (1 - p) * math.log(1 - p)), abs_tol=1e-6)


def test_a_row_without_support_is_of_the_whole_vocabulary():
    forest = Forest.from_completions([[1]], [[[2], [3]]], [0, 0], support=[torch.tensor([[0, 2]]), None])
    learner = TorchLearner(clean_llama(), lr=0.0)
    mixed, free = (
        learner.outputs(forest, ("logprob", "entropy")),
        learner.outputs(forest.replace(extras={}), ("logprob", "entropy")),
    )
    for name in ("logprob", "entropy"):
        assert float(mixed[name][1]) == pytest.approx(float(free[name][1]), rel=1e-12, abs=0)
    assert mixed["logprob"][0] > free["logprob"][0] and mixed["entropy"][0] < math.log(2)
    gradient = learner.gradient(forest, lambda x: x["logprob"].sum() + x["entropy"].sum(), names=("logprob", "entropy"))
    assert all(bool(g.isfinite().all()) for g in gradient.values())


@pytest.mark.parametrize("at_once", [1, 100, 2**24])
def test_chunks_change_neither_values_nor_gradients(at_once):
    generator = torch.Generator().manual_seed(0)
    model = clean_llama()
    readout = Readout(model)
    states = torch.randn(30, 32, dtype=torch.float64, generator=generator)
    target = torch.randint(0, 23, (30,), generator=generator)
    temperature = torch.linspace(0.5, 2, 30, dtype=torch.float64)
    support = torch.where(
        torch.arange(30)[:, None] % 3 == 0, torch.full((30, 2), -1), torch.stack([target, (target + 1) % 23], 1)
    )
    support[1, 1] = -1
    log_p = []
    for i in range(30):
        z = model.lm_head(states[i]) / temperature[i]
        ids = range(23) if i % 3 == 0 else [k for k in support[i].tolist() if k >= 0]
        log_p.append({k: z[k] - torch.logsumexp(z[list(ids)], 0) for k in ids})
    expected = torch.stack([d[int(t)] for d, t in zip(log_p, target, strict=True)])
    entropies = torch.stack([-sum(v.exp() * v for v in d.values()) for d in log_p])
    slope = torch.autograd.grad((expected * target).sum() + entropies.square().sum(), model.lm_head.weight)[0]
    actual = read(readout, states, target, temperature, support, ("logprob", "entropy"), logits_at_once=at_once)
    value = (actual["logprob"] * target).sum() + actual["entropy"].square().sum()
    assert torch.allclose(actual["logprob"], expected, rtol=0, atol=1e-12)
    assert torch.allclose(actual["entropy"], entropies, rtol=0, atol=1e-12)
    assert torch.allclose(torch.autograd.grad(value, model.lm_head.weight)[0], slope, rtol=0, atol=1e-10)


def test_all_logits_are_never_held():
    held_sizes = []
    model = clean_llama()
    model.lm_head.register_forward_hook(lambda module, inputs, output: held_sizes.append(output.numel()))
    forest = Forest.from_completions([[2, 3]], [[[4, 5, 6, 7]] * 20], [0] * 20)
    TorchLearner(model, lr=0.0, logits_at_once=230).gradient(forest, lambda x: x["logprob"].sum())
    assert (
        max(held_sizes[4:]) <= 230 and len(held_sizes) > 4 + 8
    )  # after the probes' four; computed again in the backward pass


def test_lengths_must_agree():
    # T32: gather truncates silently
    readout = Readout(clean_llama())
    for shape in ((3, 4, 4), (4, 3, 4), (4, 4, 3)):
        states, target, temperature = torch.zeros(shape[0], 32), torch.zeros(shape[1]).long(), torch.ones(shape[2])
        with pytest.raises(ValueError, match="first dimension"):
            read(readout, states.double(), target, temperature, None, ("logprob",))


SMALL = {"vocab_size": 23, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "initializer_range": 0.2, "pad_token_id": 0}  # fmt: skip
HEADS = {
    "soft-capped": lambda: Gemma2ForCausalLM(
        Gemma2Config(**SMALL, head_dim=8, final_logit_softcapping=1.5, layer_types=["full_attention"] * 2)
    ),
    "multiplied": lambda: CohereForCausalLM(CohereConfig(**SMALL, logit_scale=0.25)),
    "divided": lambda: GraniteForCausalLM(GraniteConfig(**SMALL, logits_scaling=3.0)),
}


@pytest.mark.parametrize("head", HEADS)
def test_heads_that_bend_the_logits(head):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = HEADS[head]().eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learner = TorchLearner(model, lr=0.0)
    forest = Forest.from_completions([[2, 3, 4]], [[[5, 6], [7, 8]]], [0, 0])
    with torch.no_grad():
        rows = [model(torch.tensor([[2, 3, 4, *a]])).logits[0].log_softmax(-1) for a in ([5, 6], [7, 8])]
    expected = [rows[0][2, 5], rows[0][3, 6], rows[1][2, 7], rows[1][3, 8]]
    assert torch.allclose(learner.outputs(forest)["logprob"], torch.stack(expected).double(), rtol=0, atol=1e-5)


def test_an_unknown_head_falls_back_and_says_so():
    class Odd(LlamaForCausalLM):
        def forward(self, *args, **kwargs):
            out = super().forward(*args, **kwargs)
            out.logits = out.logits.sin()
            return out

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Odd(small_llama().config).eval()
    with pytest.warns(UserWarning, match="its head is not one gxpo knows"):
        learner = TorchLearner(model, lr=0.0)
    forest = Forest.from_completions([[2, 3, 4]], [[[5, 6], [7, 8]]], [0, 0])
    with torch.no_grad():
        row = model(torch.tensor([[2, 3, 4, 7, 8]])).logits[0].log_softmax(-1)
    assert torch.allclose(
        learner.outputs(forest)["logprob"][2:], torch.stack([row[2, 7], row[3, 8]]).double(), rtol=0, atol=1e-5
    )


def test_sampling_that_can_not_be_trained_on():
    learner = TorchLearner(small_llama(), lr=0.0)

    def forest(**sampling):
        return Forest.from_completions([[2, 3]], [[[4, 5]]], [0], sampling=sampling)

    learner.outputs(forest(temperature=None, top_p=1.0, top_k=0))
    for truncated in ({"top_k": 4}, {"top_p": 0.9}, {"min_p": 0.1}):
        with pytest.raises(ModelError, match="allowed ids are not stored"):
            learner.outputs(forest(**truncated))
    with pytest.raises(ModelError, match="temperature 0"):
        learner.outputs(forest(temperature=0))
    with pytest.raises(ModelError, match="no output 'margin'"):
        learner.outputs(forest(), ("margin",))


def test_a_shared_token_is_read_at_each_trajectorys_temperature():
    # a fork equals the same trajectories written out, so an inherited token has two log-probs
    table = torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(1))
    base = {"schema": "gxpo.rollouts/1", "group": "g", "id": "a", "prompt": [2, 3], "turns": [{"action": [4, 5]}]}
    fork = {"schema": "gxpo.rollouts/1", "group": "g", "id": "b", "fork": {"of": "a", "turn": 0, "token": 1},
            "turns": [{"action": [6]}], "sampling": {"temperature": 0.5}}  # fmt: skip
    actual = TorchLearner(table_model(table), lr=0.0).outputs(Forest.from_records([base, fork]))["logprob"]
    warm, cold = table.log_softmax(-1), (table / 0.5).log_softmax(-1)
    expected = torch.stack([warm[3, 4], warm[4, 5], cold[3, 4], cold[4, 6]]).double()
    assert torch.allclose(actual, expected, rtol=0, atol=1e-6)
