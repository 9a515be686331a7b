"""The learner of a masked model: it reads what the engine drew, and its gradients are exact however a step is cut."""

import copy
from dataclasses import replace

import pytest
import torch
from tests.models.masked_toys import END, MASK, PAD, bert

import gxpo
from gxpo.algorithms.likelihoods.estimators import Coupled, Elbo, OneStep, TrajectoryLikelihood
from gxpo.base.errors import ModelError
from gxpo.forest.forest import Forest
from gxpo.learning.masked import MaskedLearner
from gxpo.models.masked import MaskedPolicy
from gxpo.parts.protocols import Request, Sampling, StreamKey, Task
from gxpo.sampling.engines.masked import MaskedEngine, Unmasking
from gxpo.sampling.rollouts.build import forest_of

LIKELIHOODS = [TrajectoryLikelihood(), OneStep(), Elbo("uniform", 2), Elbo("gauss"), Coupled()]
ANY = pytest.mark.parametrize("likelihood", LIKELIHOODS, ids=str)
PROMPTS = ((2, 3), (4, 5, 2))
SAMPLING = Sampling(max_new_tokens=4, temperature=0.8)


def policy(seed=0):
    return MaskedPolicy(bert(seed), MASK, END, PAD)


def learner(likelihood, seed=0, **settings):
    return MaskedLearner(policy(seed), likelihood, **{"lr": 1e-2, **settings})


def grown(likelihood):
    engine = MaskedEngine(policy(), likelihood, Unmasking(per_step=2))
    requests = [Request(p, tuple(StreamKey(0, 1, str(g), i) for i in range(3))) for g, p in enumerate(PROMPTS)]
    tasks = [Task(str(g), "?") for g in range(2)]
    forest = forest_of(tasks, ["a", "b"], PROMPTS, engine.sample(requests, SAMPLING), SAMPLING)
    return forest.with_rewards(torch.tensor([1.0, 0.0, 0.5, 0.0, 0.0, 1.0], dtype=torch.float64))


@ANY
@pytest.mark.parametrize("size", [1, 10_000])
def test_the_learner_reads_what_the_sampler_drew(likelihood, size):
    forest = grown(likelihood)
    actual = learner(likelihood, tokens_per_microbatch=size).outputs(forest, ("logprob", "entropy"))
    assert torch.allclose(actual["logprob"], forest.path_behaviour_logprob, atol=1e-9)
    assert bool((actual["entropy"] >= 0).all())


@ANY
def test_records_hold_all_that_the_learner_needs(likelihood):
    forest = grown(likelihood)
    again = Forest.from_records(forest.to_records())
    one = learner(likelihood, seed=3)
    assert torch.equal(one.outputs(again)["logprob"], one.outputs(forest)["logprob"])


@ANY
def test_gradients_are_the_same_however_the_step_is_cut(likelihood):
    forest, one = grown(likelihood), learner(likelihood, seed=3)

    def loss(x):
        weight = torch.linspace(-1, 1, len(x["logprob"]), dtype=torch.float64)
        return ((x["logprob"] * weight).sum() / len(weight)).exp()

    whole = one.gradient(forest, loss, couples="step")
    rows = [forest.path_of(r) for r in range(forest.n_trajectories)]
    for cuts in (rows, list(torch.arange(forest.n_entries).split(2))):
        parts = one.gradient(forest, loss, couples="step", cuts=cuts, two_pass=True)
        assert all(torch.allclose(parts[name], g, atol=1e-10) for name, g in whole.items())


def test_a_trajectory_s_gradient_is_autograd_s_on_one_answer():
    forest = grown(TrajectoryLikelihood()).select(torch.tensor([0]))
    one = learner(TrajectoryLikelihood())
    actual = one.gradient(forest, lambda x: x["logprob"].sum())
    model, total = copy.deepcopy(policy().model), 0.0
    tokens, steps = forest.token[forest.path_token], forest.extras["unmasked_at"][forest.path_token]
    ended = int(tokens[-1]) == END
    for i in range(len(tokens)):
        shown = torch.where(steps < steps[i], tokens, MASK).tolist()
        rest = [END if ended and steps[-1] < steps[i] else MASK] * (4 - len(tokens))
        ids = torch.tensor([[*PROMPTS[0], *shown, *rest]])
        logits = model(input_ids=ids).logits[0, len(PROMPTS[0]) + i] / 0.8
        banned = [MASK, *([END] if any(t != MASK for t in ids[0, len(PROMPTS[0]) + i + 1 :].tolist()) else [])]
        total = total + logits.index_fill(0, torch.tensor(banned), -torch.inf).log_softmax(0)[tokens[i]]
    total.backward()
    for name, p in model.named_parameters():
        by_hand = torch.zeros_like(p) if p.grad is None else p.grad
        assert torch.allclose(actual[name], by_hand, atol=1e-9), name


def test_the_reference_stays_and_is_read_through_the_same_masks():
    forest, one = grown(OneStep()), learner(OneStep(), reference=True)
    before = one.outputs(forest)["logprob"]
    one.step(forest, lambda x: -x["logprob"].sum())
    assert torch.equal(one.outputs(forest, policy="reference")["logprob"], before)
    assert float((one.outputs(forest)["logprob"] - before).abs().max()) > 1e-4


def test_the_first_update_of_each_method_has_a_ratio_of_one():
    for name in ("diffu_grpo", "coupled_grpo", "gdpo_dlm", "cj_grpo"):
        m = gxpo.method(name)
        forest, one = grown(m.likelihood), learner(m.likelihood)
        logprob = one.outputs(forest)["logprob"]
        figures = m.loss(forest, gxpo.PolicyTokens(logprob, forest.path_behaviour_logprob)).metrics
        assert figures["ratio_max"] == pytest.approx(1.0, abs=1e-9), name


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda one, forest: one.outputs(forest, ("value",)), "no output 'value', only logprob, entropy"),
        (lambda one, forest: one.outputs(forest, policy="reference"), "no reference policy is kept"),
        (lambda one, forest: one.hidden(forest), "a hidden state for each view"),
        (lambda one, forest: one.outputs(forest.replace(extras={})), "these have no 'unmasked_at'"),
    ],
)
def test_what_a_masked_model_does_not_have_is_told_in_one_line(call, message):
    with pytest.raises(ModelError, match=message) as error:
        call(learner(OneStep()), grown(OneStep()))
    assert "\n" not in str(error.value)


def test_guided_logits_are_what_is_sampled_and_what_is_read():
    guided = replace(policy(), guidance=2.0)
    engine = MaskedEngine(guided, TrajectoryLikelihood(), Unmasking(order="left_to_right"))
    ((c,),) = engine.sample([Request(PROMPTS[0], (StreamKey(0, 1, "a", 0),))], SAMPLING)
    with torch.no_grad():
        rows = [
            policy().model(input_ids=torch.tensor([[*p, *[MASK] * 4]])).logits[0, 2] for p in (PROMPTS[0], (MASK,) * 2)
        ]
    by_hand = rows[1] + 2.0 * (rows[0] - rows[1])
    by_hand[MASK] = -torch.inf
    assert c.logprobs[0] == pytest.approx(float((by_hand / 0.8).log_softmax(0)[c.tokens[0]]), abs=1e-9)
    forest = forest_of([Task("a", "?")], ["a"], [PROMPTS[0]], [[c]], SAMPLING)
    actual = MaskedLearner(guided, TrajectoryLikelihood(), lr=1e-2).outputs(forest)["logprob"]
    assert actual.tolist() == pytest.approx(c.logprobs, abs=1e-9)
