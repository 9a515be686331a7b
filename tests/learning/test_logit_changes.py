"""The learner reads tokens under the distribution that they were sampled from, whatever a call changed of it."""

import math

import pytest
import torch
from tests.learning.llamas import small_llama

from gxpo.base.errors import ModelError
from gxpo.forest.forest import Forest
from gxpo.forest.token_bias import TokenBias
from gxpo.learning.remote.rows import Rows
from gxpo.learning.torch import TorchLearner
from gxpo.parts.protocols import Request, Sampling, StreamKey, Task, TokenOptions
from gxpo.sampling.engines.torch import TorchEngine
from gxpo.sampling.rollouts.build import action, forest_of

PROMPTS = [(3, 4, 5), (6, 7)]
OPTIONS = [
    None,
    TokenOptions(logit_bias=((4, 2.0), (9, -100.0))),
    TokenOptions(presence_penalty=0.8, frequency_penalty=0.5, repetition_penalty=1.4),
    TokenOptions(min_p=0.1, min_tokens=3),
    TokenOptions(((8, 1.0),), 0.5, 0.2, 1.2, 0.02, 2, False, None, 3),
    TokenOptions(ignore_eos=True, frequency_penalty=-0.5),
]


def sampled(sampling, options=OPTIONS, model=None):
    """A forest with one group for each prompt and options, three samples each, and their behaviour log-probs."""
    engine = TorchEngine(model or small_llama(), stop_ids=[1])
    pairs = [(prompt, o) for prompt in PROMPTS for o in options]
    requests = [
        Request(p, tuple(StreamKey(0, 1, f"{i}", j) for j in range(3)), options=o) for i, (p, o) in enumerate(pairs)
    ]
    completions = engine.sample(requests, sampling)
    tasks = [Task(f"{i}", "?") for i in range(len(pairs))]
    return forest_of(tasks, [t.id for t in tasks], [p for p, _ in pairs], completions, sampling), completions


@pytest.mark.parametrize("sampling", [Sampling(max_new_tokens=7), Sampling(0.8, 9, 0.95, 7)])
def test_the_ratio_is_one_before_the_first_update(sampling):
    forest, _ = sampled(sampling)
    for tokens in (8192, 30):  # one micro-batch, and many
        learner = TorchLearner(small_llama(), lr=1e-2, tokens_per_microbatch=tokens, logits_at_once=60)
        outputs = learner.outputs(forest, ("logprob", "entropy", "mean_logprob"))
        assert torch.allclose(outputs["logprob"], forest.path_behaviour_logprob, atol=1e-5, rtol=0)
        assert all(bool(x.isfinite().all()) for x in outputs.values())
    # without what the calls changed it would be another distribution
    bare = forest.replace(extras={k: v for k, v in forest.extras.items() if k == "support"}, biases={})
    other = learner.outputs(bare, ("logprob",))["logprob"]
    assert float((other - forest.path_behaviour_logprob).abs().max()) > 0.3


def test_shapes_of_the_forest_change_no_log_prob():
    forest, _ = sampled(Sampling(0.9, max_new_tokens=6))
    learner = TorchLearner(small_llama(), lr=1e-2)
    expected = learner.outputs(forest)["logprob"]
    flat = forest.flatten()
    assert torch.allclose(learner.outputs(flat)["logprob"], expected, atol=1e-5, rtol=0)
    again = Forest.from_records(forest.to_records())
    assert torch.allclose(learner.outputs(again)["logprob"], expected, atol=1e-5, rtol=0)
    order = torch.randperm(forest.n_trajectories, generator=torch.Generator().manual_seed(0))
    entries = forest.entries_of(order)
    assert torch.allclose(learner.outputs(forest.select(order))["logprob"], expected[entries], atol=1e-5, rtol=0)


def test_turns_of_one_context_count_their_own_reply_alone():
    """A penalty's counts begin anew with each call; its prompt is all that came before."""
    options, sampling = TokenOptions(presence_penalty=1.0, repetition_penalty=1.5), Sampling(max_new_tokens=4)
    engine = TorchEngine(small_llama(), stop_ids=[1])
    ((first,),) = engine.sample([Request((3, 4), (StreamKey(0, 1, "a", 0),), options=options)], sampling)
    ((second,),) = engine.sample(
        [Request((3, 4, *first.tokens, 9), (StreamKey(0, 1, "a", 1),), options=options)], sampling
    )
    turns = [action(first), {**action(second), "observation": [9]}]
    record = {"schema": "gxpo.rollouts/1", "group": "g", "id": "a", "prompt": [3, 4], "turns": turns, "reward": 1.0}
    forest = Forest.from_records([record])
    logprob = TorchLearner(small_llama(), lr=1e-2).outputs(forest)["logprob"]
    assert torch.allclose(
        logprob, torch.tensor(first.logprobs + second.logprobs, dtype=torch.float64), atol=1e-5, rtol=0
    )


def test_the_gradient_is_that_of_the_changed_distribution():
    """d log p / d head = the one that autograd gives for a softmax written out with the bias and the penalties."""
    forest, completions = sampled(Sampling(0.7, max_new_tokens=4), [OPTIONS[4]])
    model = small_llama()
    learner = TorchLearner(model, lr=1e-2, max_grad_norm=None)
    gradient = learner.gradient(forest, lambda x: x["logprob"].sum())["lm_head.weight"]
    head = model.get_output_embeddings().weight
    total, o = torch.zeros((), dtype=torch.float64), OPTIONS[4]
    for prompt, group in zip(PROMPTS, completions, strict=True):
        for completion in group:
            for i, token in enumerate(completion.tokens):
                before = [*prompt, *completion.tokens[:i]]
                z = model(torch.tensor([before])).logits[0, -1].double()
                bias = torch.zeros(len(z), dtype=torch.float64)
                bias[8] += 1.0
                bias[1] = -math.inf if i < o.min_tokens else 0.0
                z = z + bias
                seen = torch.zeros(len(z), dtype=torch.bool)
                seen[before] = True
                z = torch.where(seen, torch.where(z > 0, z / o.repetition_penalty, z * o.repetition_penalty), z)
                for t in completion.tokens[:i]:
                    z = z - o.frequency_penalty * torch.nn.functional.one_hot(torch.tensor(t), len(z))
                for t in set(completion.tokens[:i]):
                    z = z - o.presence_penalty * torch.nn.functional.one_hot(torch.tensor(t), len(z))
                allowed = [t for t in completion.support[i].tolist() if t >= 0]
                total = total + (z / 0.7)[token] - (z / 0.7)[allowed].logsumexp(0)
    (expected,) = torch.autograd.grad(total, head)
    assert torch.allclose(gradient, expected, atol=2e-5)


def test_a_step_trains_on_it_and_moves_the_ratio():
    forest, _ = sampled(Sampling(max_new_tokens=5))
    learner = TorchLearner(small_llama(), lr=1e-2)
    before = learner.outputs(forest)["logprob"]
    info = learner.step(forest, lambda x: -x["logprob"].sum())
    after = learner.outputs(forest)["logprob"]
    assert not info.empty and float(after.sum()) > float(before.sum()) and bool(after.isfinite().all())


def test_a_token_that_its_bias_forbids_is_refused():
    bias = TokenBias.of({5: -math.inf})
    forest = Forest.from_completions([[2, 3]], [[[4, 5]]], [0])
    held = forest.replace(extras={"bias": torch.tensor([-1, -1, -1, bias.key])}, biases={bias.key: bias})
    learner = TorchLearner(small_llama(), lr=1e-2)
    with pytest.raises(
        ModelError, match="an action has the token 5, which the logit bias it was sampled under forbids"
    ):
        learner.outputs(held)
    with pytest.raises(ModelError, match=rf"under the logit bias {bias.key}, which the forest does not hold"):
        learner.outputs(held.replace(biases={}))


def test_a_penalty_over_more_tokens_than_there_are_is_refused():
    forest = Forest.from_completions([[2, 3]], [[[4]]], [0])
    penalty = torch.full((3, 4), math.nan, dtype=torch.float64)
    penalty[2] = torch.tensor([0.5, 0.0, 1.0, 7.0])
    with pytest.raises(ModelError, match="a penalty over more tokens than there are before it"):
        TorchLearner(small_llama(), lr=1e-2).outputs(forest.replace(extras={"penalty": penalty}))


def test_training_engines_elsewhere_refuse_them():
    forest, _ = sampled(Sampling(max_new_tokens=3), [OPTIONS[1]])
    with pytest.raises(ModelError, match=r"sampled under options of calls .*cluster.backend=local"):
        Rows.of(forest, torch.arange(forest.n_entries))
