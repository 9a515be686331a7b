"""Soft tokens through engine and learner: one density on both sides, by hand, and its gradient."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from tests.learning.llamas import clean_llama, small_llama

import gxpo
from gxpo.base.errors import ConfigError, ModelError
from gxpo.forest.forest import Forest
from gxpo.learning.torch import TorchLearner
from gxpo.models.tiny import character_tokenizer
from gxpo.parts.protocols import Budget, EpisodeRules, Request, Sampling, SoftSampling, StreamKey, Task
from gxpo.sampling.engines.torch import TorchEngine
from gxpo.sampling.rollouts.soft_thinking import SoftThinking

TOKENIZER = character_tokenizer()
PROMPTS = {"a": (5, 6, 7), "b": (9, 10)}


class Session:
    """Samples from a model; the outcome of a row is its number in the group."""

    def __init__(self, model, sampling=None, **engine):
        self.engine = TorchEngine(model, TOKENIZER, **engine)
        self.sampling = sampling or Sampling(max_new_tokens=9)
        self.step, self.seed, self.envs, self.episode, self.budget = 3, 1, None, EpisodeRules(), Budget()

    def encode(self, task):
        return PROMPTS[task.id]

    def sample(self, requests, sampling=None):
        return self.engine.sample(requests, sampling or self.sampling)


def grown(model, part=None, **options):
    tasks = [Task(name, "?") for name in PROMPTS]
    forest = (part or SoftThinking(3, end_text=CLOSING)).grow(tasks, Session(model, **options))
    number = torch.arange(forest.n_trajectories, dtype=torch.float64)
    return forest.with_rewards(number % 3)


MODEL = clean_llama(vocab_size=100)
CLOSING = "~"


def closing_of(model):
    """A character that some rows think of, neither first nor last."""
    forest = grown(model, SoftThinking(3, end_text="no such text"))
    for r in range(forest.n_trajectories):
        tokens = forest.token[forest.path_token[forest.path_of(r)]].tolist()
        for token in tokens[2:-3]:
            if token > 4 and len(TOKENIZER.decode([token])) == 1:
                return TOKENIZER.decode([token])
    raise AssertionError


CLOSING = closing_of(MODEL)
FOREST = grown(MODEL)


def soft_of(forest):
    return forest.extras["soft_weight"].isfinite().any(1)


# ---------------------------------------------------------------- sampling
def test_thinking_is_soft_until_it_is_closed():
    soft = soft_of(FOREST)
    both = 0
    for r in range(FOREST.n_trajectories):
        at = FOREST.path_token[FOREST.path_of(r)]
        text = [TOKENIZER.decode([t]) for t in FOREST.token[at].tolist()]
        size = text.index(CLOSING) + 1 if CLOSING in text else len(text)
        assert soft[at].tolist() == [i < size for i in range(len(text))]
        assert bool((FOREST.extras["support"][at[size:]] == -1).all())
        both += size < len(text)
    assert both >= 1
    assert not bool(soft[[t for t in range(FOREST.n_tokens) if t not in FOREST.path_token.tolist()]].any())


def test_what_is_stored_of_a_soft_step():
    rows = soft_of(FOREST).nonzero().squeeze(1)
    support, y, weight = (FOREST.extras[k][rows] for k in ("support", "soft_y", "soft_weight"))
    assert torch.allclose(weight.sum(1), torch.ones(len(rows), dtype=torch.float64))
    assert bool(((weight > 0) <= (support >= 0)).all()) and int((support >= 0).sum(1).max()) <= 5
    best = support.gather(1, weight.argmax(1, keepdim=True)).squeeze(1)
    assert torch.equal(FOREST.token[rows], best)
    # weights are softmax(y / .1) among the counted ids
    for i in range(len(rows)):
        is_known = y[i].isfinite()
        ratio = (y[i][is_known] / 0.1).softmax(0) * weight[i][is_known].sum()
        assert torch.allclose(ratio, weight[i][is_known], atol=1e-9)


def test_rows_do_not_depend_on_the_batch():
    session_by_row = Session(MODEL, batch_rows=1)
    sampling = SoftSampling(max_new_tokens=9, end_text=CLOSING)
    requests = [Request(PROMPTS["a"], tuple(StreamKey(1, 3, "a", i) for i in range(3)))]
    (one,), (all_,) = session_by_row.engine.sample(requests, sampling), Session(MODEL).engine.sample(requests, sampling)
    assert [c.tokens for c in one] == [c.tokens for c in all_]
    for a, b in zip(one, all_, strict=True):
        assert torch.allclose(torch.tensor(a.logprobs), torch.tensor(b.logprobs), atol=1e-9)
    assert [c.tokens for c in all_] == [FOREST.token[FOREST.path_token[FOREST.path_of(r)]].tolist() for r in range(3)]


def test_at_temperature_0_there_is_no_noise():
    forest = grown(MODEL, sampling=Sampling(temperature=0.0, max_new_tokens=5))
    rows = soft_of(forest).nonzero().squeeze(1)
    y = forest.extras["soft_y"][rows]
    likeliest = forest.extras["support"][rows].gather(1, y.nan_to_num(nan=-99).argmax(1, keepdim=True)).squeeze(1)
    assert torch.equal(likeliest, forest.token[rows]) and float(y.nan_to_num(nan=-1).max()) < 0
    message = [forest.token[forest.path_token[forest.path_of(r)]].tolist() for r in range(6)]
    assert message[0] == message[1] == message[2] and message[3] == message[4] == message[5]


# ---------------------------------------------------------------- the learner
@pytest.mark.parametrize(
    "settings", [{}, {"kernels": "transformers"}, {"layout": "flat"}, {"tokens_per_microbatch": 5},
                 {"logits_at_once": 300}, {"layout": "flat", "kernels": "transformers"}]
)  # fmt: skip
def test_sampler_and_learner_agree(settings):
    actual = TorchLearner(MODEL, lr=1.0, **settings).outputs(FOREST)["logprob"]
    assert torch.allclose(actual, FOREST.path_behaviour_logprob, rtol=0, atol=1e-9)


def by_hand(model, forest, r):
    """Log-density of every action token of a trajectory by transformers alone, one pass, in plain Python."""
    at = forest.path_token[forest.path_of(r)].tolist()
    prompt, embedding = list(PROMPTS[forest.task[r]]), model.get_input_embeddings().weight
    inputs = [embedding[t] for t in prompt]
    for t in at:
        weight, ids = forest.extras["soft_weight"][t].tolist(), forest.extras["support"][t].tolist()
        if math.isnan(weight[0]):
            inputs.append(embedding[int(forest.token[t])])
        else:
            inputs.append(sum(w * embedding[i] for w, i in zip(weight, ids, strict=True) if i >= 0))
    logits = model(inputs_embeds=torch.stack(inputs)[None]).logits[0]
    out = []
    for k, t in enumerate(at):
        row = logits[len(prompt) + k - 1].log_softmax(0)
        y, ids = forest.extras["soft_y"][t].tolist(), forest.extras["support"][t].tolist()
        if not any(math.isfinite(x) for x in y):
            out.append(row[int(forest.token[t])])
            continue
        total = torch.stack([row[i] for i in ids if i >= 0]).logsumexp(0)
        terms = []
        for value, i in zip(y, ids, strict=True):
            if math.isfinite(value):
                g = (value - (row[i] - total)).clamp(-1.5001, 3.0001)
                terms.append(-g - (-g).exp())
        out.append(sum(terms) / len(terms))
    return torch.stack(out)


def test_retryst_transformers_by_hand():
    other = clean_llama(1, vocab_size=100)  # off policy: another model reads what the first has sampled
    actual = TorchLearner(other, lr=1.0).outputs(FOREST)["logprob"]
    for r in range(FOREST.n_trajectories):
        with torch.no_grad():
            assert torch.allclose(actual[FOREST.path_of(r)], by_hand(other, FOREST, r), atol=1e-9)


def test_the_gradient_against_transformers_by_hand():
    other = clean_llama(1, vocab_size=100)
    learner = TorchLearner(other, lr=1.0)
    slope = torch.randn(FOREST.n_entries, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    everything = torch.arange(FOREST.n_entries)
    cuts = {"whole": None, "by two": list(everything.split(2))}
    actual = {k: learner.gradient(FOREST, lambda x: (slope * x["logprob"]).sum(), cuts=c) for k, c in cuts.items()}
    listed_parameters = dict(other.named_parameters())
    total = sum(slope[FOREST.path_of(r)] @ by_hand(other, FOREST, r) for r in range(FOREST.n_trajectories))
    expected = torch.autograd.grad(total, list(listed_parameters.values()))
    for name, x in zip(listed_parameters, expected, strict=True):
        for way in cuts:
            assert torch.allclose(actual[way][name], x, atol=1e-8), (name, way)


def test_sharp_mixtures_are_tokens():
    """tau -> 0: the input is the embedding of the likeliest id, and the tokens after the thinking read the same."""
    forest = grown(MODEL, SoftThinking(3, mixing_temperature=1e-6, end_text=CLOSING))
    plain = forest.replace(extras={})
    learner = TorchLearner(MODEL, lr=1.0)
    ours, theirs = learner.outputs(forest)["logprob"], learner.outputs(plain)["logprob"]
    after = ~soft_of(forest)[forest.path_token]
    assert bool(after.any()) and torch.allclose(ours[after], theirs[after], atol=1e-9)
    assert torch.equal(learner.hidden(forest), learner.hidden(plain)) and not torch.allclose(ours, theirs)


def test_other_temperatures_and_supports():
    sampling = Sampling(temperature=0.7, top_k=8, max_new_tokens=9)
    forest = grown(MODEL, SoftThinking(3, top_k=4, top_p=0.9, end_text=CLOSING), sampling=sampling)
    actual = TorchLearner(MODEL, lr=1.0).outputs(forest)["logprob"]
    assert torch.allclose(actual, forest.path_behaviour_logprob, rtol=0, atol=1e-9)
    assert forest.extras["soft_y"].shape == forest.extras["support"].shape


def test_records_keep_soft_tokens(tmp_path):
    back = Forest.from_records(FOREST.to_records())
    learner = TorchLearner(MODEL, lr=1.0)
    assert torch.equal(learner.outputs(back)["logprob"], learner.outputs(FOREST)["logprob"])
    picked = FOREST.select([4, 1])
    actual = learner.outputs(picked)["logprob"]
    assert torch.allclose(actual, picked.path_behaviour_logprob, atol=1e-9)


def test_a_step_makes_better_soft_thoughts_likelier():
    model = clean_llama(vocab_size=100)
    learner, m = TorchLearner(model, lr=1e-3), gxpo.method("soft_grpo")
    credit = m.advantages(FOREST)
    before = learner.outputs(FOREST)["logprob"]

    def loss(x):
        policy = gxpo.PolicyTokens(x["logprob"], FOREST.path_behaviour_logprob)
        return m.loss(FOREST, policy, advantages=credit).value

    info = learner.step(FOREST, loss)
    gap = learner.outputs(FOREST)["logprob"] - before
    soft = soft_of(FOREST)[FOREST.path_token]
    assert not info.empty and float((gap * credit)[soft].sum()) > 0


def test_refusals():
    for fields, match in (({"group_size": 0}, r"rollout\.group_size"), ({"top_k": 0}, r"rollout\.top_k"),
                          ({"top_p": 0.0}, r"rollout\.top_p"), ({"mixing_temperature": 0.0}, "mixing_temperature"),
                          ({"end_text": ""}, r"rollout\.end_text")):  # fmt: skip
        with pytest.raises(ConfigError, match=match):
            SoftThinking(**fields)
    from gxpo.sampling.engines.remote_requests import check

    request = Request((1,), (StreamKey(0, 0, "a", 0),))
    with pytest.raises(ModelError, match=r"sampling\.engine=torch"):
        check([request], SoftSampling(), policy="main", positions=None, limit="")


def test_float32_of_a_stock_model():
    model = small_llama(vocab_size=100)
    forest = grown(model, SoftThinking(2, end_text=CLOSING))
    actual = TorchLearner(model, lr=1.0, kernels="transformers").outputs(forest)["logprob"]
    assert torch.allclose(actual, forest.path_behaviour_logprob, atol=1e-4)
    assert dataclasses.asdict(Sampling(max_new_tokens=9)).keys() == forest.sampling[0].keys()
