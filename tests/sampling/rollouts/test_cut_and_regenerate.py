"""Cut and regenerate: forks in the middle of an action, and the refiner's turns beside them."""

from __future__ import annotations

import math
from collections import Counter
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.learning.llamas import clean_llama
from tests.sampling.rollouts.growing_session import END, GrowingSession, ids, tasks

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.learning.torch import TorchLearner
from gxpo.parts.protocols import Sampling, StreamKey
from gxpo.sampling.rollouts.cut_and_regenerate import CutAndRegenerate, flawed_step, least_probable, step_begins
from gxpo.sampling.rollouts.rounds import Independent

CutAndRegenerate = partial(CutAndRegenerate, delimiter=",")  # which ends the steps here

ASK = "{prompt}<{steps}>"


def judge(_: str, text: str) -> float:
    return float(text.endswith("ok"))


def policy(first: str, suffix: str = "ok", verdicts: str = "2"):
    """Writes `first`, then `suffix` after a cut; as refiner answers with the n-th of `verdicts`, a character each."""

    def say(context: str, stream: StreamKey) -> str:
        if stream.turn == 1:
            return verdicts[stream.path[0] - 1]
        return suffix if stream.path else first

    return say


# ---------------------------------------------------------------- steps
def decode(tokens):
    return "".join({1: "a", 2: ",", 3: "bc", 4: ",d", 5: ",,"}.get(t, "") for t in tokens)


def test_a_step_begins_after_each_delimiter_inside_the_text() -> None:
    assert step_begins([1, 2, 1, 2, 1, END], ",", decode) == [0, 2, 4]
    assert step_begins([1, 2, END], ",", decode) == [0]  # nothing follows the last delimiter
    assert step_begins([], ",", decode) == [0]
    assert step_begins([3, 1], ";", decode) == [0]
    assert step_begins([2, 1], ",", decode) == [0, 1]
    # a token that reaches beyond the delimiter belongs to the step that it begins: "a" | ",d" "bc"
    assert step_begins([1, 4, 3], ",", decode) == [0, 1]
    assert step_begins([1, 5, 1], ",", decode) == [0, 1, 2]


@given(st.lists(st.sampled_from([0, 1, 2, 3, 4, 5])))
def test_steps_by_looking_at_every_prefix(tokens: list[int]) -> None:
    text, expected = decode(tokens), [0]
    for end in (i + 1 for i, c in enumerate(text) if c == "," and i + 1 < len(text)):
        begin = max(i for i in range(len(tokens) + 1) if len(decode(tokens[:i])) <= end)
        if expected[-1] < begin < len(tokens):
            expected.append(begin)
    assert step_begins(tokens, ",", decode) == expected


def test_the_least_probable_step_is_by_the_mean_of_its_tokens() -> None:
    # means -0.2, -1.05, -0.9: the sum would name the first step of many tokens
    assert least_probable([-0.2] * 9 + [-2.0, -0.1, -0.9], [0, 9, 11]) == 1
    assert least_probable([-1.0, -1.0], [0, 1]) == 0  # the first on ties
    assert least_probable([], [0]) == 0


def test_a_reply_names_a_step_or_accepts() -> None:
    assert [flawed_step(r, 3) for r in ("1", "step 3", "2.5", "0", "4", "", "none", "-1")] == [
        0, 2, 1, None, None, None, None, None,
    ]  # fmt: skip


# ---------------------------------------------------------------- one revision
def test_suffix_is_regenerated_after_the_steps_before_the_flaw() -> None:
    session = GrowingSession(policy("good,bad,end"), judge)
    forest = CutAndRegenerate(group_size=2, template=ASK).grow(tasks("a"), session)
    contexts = [[session.decode(r.prompt) for r in requests] for requests, _ in session.calls]
    assert contexts == [["a?"], ["a?<1. good,\n2. bad,\n3. end>"] * 2, ["a?good,"] * 2]
    answer, refiner = forest.action(0), forest.action(1)
    assert session.decode(answer) == "good,ok" and session.decode(refiner) == "2"
    assert forest.group == ["s60/a"] * 2 and forest.id == ["s60/a/0", "s60/a/1"]
    assert forest.origin == ["correction"] * 2 and forest.info == [{"cuts": [5]}] * 2


def test_tokens_keep_the_log_prob_under_which_they_were_sampled() -> None:
    session = GrowingSession(policy("good,bad,end"), judge)
    forest = CutAndRegenerate(group_size=1, template=ASK).grow(tasks("a"), session)
    # the draft's first five tokens, the suffix's three (with its end), the refiner's two
    expected = [-i / 8 for i in (1, 2, 3, 4, 5)] + [-i / 8 for i in (1, 2, 3)] + [-i / 8 for i in (1, 2)]
    assert forest.path_behaviour_logprob.tolist() == expected
    assert bool(forest.path_trainable.all()) and set(forest.policy_version[forest.kind == 2].tolist()) == {60}


def test_refiner_is_an_agent_with_its_own_context() -> None:
    session = GrowingSession(policy("good,bad,end"), judge)
    (record,) = CutAndRegenerate(group_size=1, template=ASK).grow(tasks("a"), session).to_records()
    answer, refiner = record["turns"]
    assert record["prompt"] == list(ids("a?")) and answer["action"] == [*ids("good,ok"), END]
    assert answer.get("agent", "agent") == "agent" and refiner["agent"] == "refiner"
    assert refiner["context"] == list(ids("a?<1. good,\n2. bad,\n3. end>"))
    assert refiner["info"] == {"flawed": 2}


def test_the_cut_attempt_is_not_there_and_is_charged() -> None:
    session = GrowingSession(policy("good,bad,end"), judge)
    forest = CutAndRegenerate(group_size=2, template=ASK).grow(tasks("a", "b"), session)
    assert forest.n_trajectories == 4 and session.budget.discarded == 4 and session.budget.rollouts == 8
    text = {
        session.decode(forest.token[a:b].tolist())
        for a, b in zip(forest.first_token, forest.first_token[1:], strict=False)
    }
    assert text == {"a?", "b?", "good,", "ok", "2", "a?<1. good,\n2. bad,\n3. end>", "b?<1. good,\n2. bad,\n3. end>"}
    # 4 x 13 (draft) + 4 x 3 (suffix) + 4 x 2 (refiner), with the tokens that end them
    assert session.budget.generated_tokens == 4 * (13 + 3 + 2)


def test_the_answer_is_scored_without_the_refiners_words() -> None:
    session = GrowingSession(policy("good,bad,end"), judge)
    forest = CutAndRegenerate(group_size=1, template=ASK).grow(tasks("a"), session)
    assert session.judged == [("s60/a/0", "good,ok")] and forest.success.tolist() == [1.0]


def test_credit_is_shared_by_actor_and_refiner() -> None:
    def say(context: str, stream: StreamKey) -> str:
        return policy("good,bad", "ok" if stream.attempt else "no")(context, stream)

    session = GrowingSession(say, judge)
    forest = gxpo.method(
        "search_r2", {"rollout.group_size": 2, "rollout.template": ASK, "rollout.delimiter": ","}
    ).rollout.grow(tasks("a"), session)
    advantage = gxpo.method("search_r2").advantages(forest)
    for r, sign in ((0, -1), (1, 1)):  # verdicts 0, 1: mean 1/2, std (ddof 1) sqrt(1/2)
        entries = forest.path_of(r)
        assert {forest.agent_names[int(a)] for a in forest.step_agent[forest.path_step[entries]]} == {
            "agent",
            "refiner",
        }
        want = sign * 0.5 / (math.sqrt(0.5) + 1e-6)
        assert torch.allclose(advantage[entries], torch.full((len(entries),), want, dtype=torch.float64), rtol=1e-12)


# ---------------------------------------------------------------- acceptance and several revisions
@pytest.mark.parametrize("reply", ["0", "9", "x"])
def test_an_attempt_that_is_accepted_stays_as_it_is(reply: str) -> None:
    session = GrowingSession(policy("good,ok", verdicts=reply), judge)
    forest = CutAndRegenerate(group_size=1, revisions=3, template=ASK).grow(tasks("a"), session)
    assert len(session.calls) == 2 and session.budget.discarded == 0
    assert forest.origin == ["policy"] and forest.info == [{}] and forest.step_info[1] == {"flawed": None}
    assert session.decode(forest.action(0)) == "good,ok"


def test_each_revision_starts_from_the_one_before() -> None:
    def say(context: str, stream: StreamKey) -> str:
        if stream.turn == 1:
            return "310"[stream.path[0] - 1]
        return ("a,b,c,d", "C,D", "A,B,ok")[stream.path[0] if stream.path else 0]

    session = GrowingSession(say, judge)
    forest = CutAndRegenerate(group_size=1, revisions=3, template=ASK).grow(tasks("q"), session)
    asked_calls = [session.decode(requests[0].prompt) for requests, _ in session.calls]
    assert asked_calls == [
        "q?",
        "q?<1. a,\n2. b,\n3. c,\n4. d>", "q?a,b,",
        "q?<1. a,\n2. b,\n3. C,\n4. D>", "q?",
        "q?<1. A,\n2. B,\n3. ok>",
    ]  # fmt: skip
    assert [session.decode(forest.action(s)) for s in range(4)] == ["A,B,ok", "3", "1", "0"]
    assert forest.info == [{"cuts": [4, 0]}] and session.budget.discarded == 2
    assert [i.get("flawed", "") for i in forest.step_info] == ["", 3, 1, None]
    streams = [s for requests, _ in session.calls for r in requests for s in r.streams]
    assert len(set(streams)) == len(streams) and all(s.task == "q" for s in streams)


def test_only_what_was_cut_is_looked_at_again() -> None:
    def say(context: str, stream: StreamKey) -> str:
        if stream.turn == 1:
            return "2" if stream.attempt == 1 and stream.path == (1,) else "0"
        return "ok" if stream.path else "x,y"

    session = GrowingSession(say, judge)
    forest = CutAndRegenerate(group_size=3, revisions=2, template=ASK).grow(tasks("a"), session)
    assert [len(requests) for requests, _ in session.calls] == [1, 3, 1, 1]
    assert forest.origin == ["policy", "correction", "policy"]
    assert forest.success.tolist() == [0.0, 1.0, 0.0]


# ---------------------------------------------------------------- room
def test_an_answer_never_becomes_longer_than_sampling_allows() -> None:
    session = GrowingSession(policy("good,bad", "123456789012345"), judge, sampling=Sampling(max_new_tokens=10))
    forest = CutAndRegenerate(group_size=1, template=ASK).grow(tasks("a"), session)
    assert session.decode(forest.action(0)) == "good,12345" and forest.truncated.tolist() == [True]
    assert forest.step_finish[0] == "length"
    assert [sampling.max_new_tokens for _, sampling in session.calls] == [10, 8, 5]


def test_suffixes_share_a_batch_and_keep_their_token_limits() -> None:
    def say(context: str, stream: StreamKey) -> str:
        if stream.turn == 1:
            return "12"[stream.attempt]
        return "1234567890" if stream.path else "ab,cd"

    session = GrowingSession(say, judge, sampling=Sampling(max_new_tokens=8))
    forest = CutAndRegenerate(group_size=2, template=ASK).grow(tasks("a"), session)
    assert [session.decode(forest.action(s)) for s in (0, 2)] == ["12345678", "ab,12345"]
    assert session.calls[2][1].max_new_tokens == 8


def test_a_stored_support_is_kept_on_both_sides_of_the_cut() -> None:
    session = GrowingSession(policy("good,bad"), judge, sampling=Sampling(top_k=2, max_new_tokens=20))
    forest = CutAndRegenerate(group_size=1, template=ASK).grow(tasks("a"), session)
    tokens = forest.token[forest.path_token]
    assert forest.extras["support"][forest.path_token].tolist() == [[t, t + 1] for t in tokens.tolist()]


# ---------------------------------------------------------------- where
def test_without_a_refiner_nobody_is_asked() -> None:
    for where in ("uniform", "low_probability"):
        session = GrowingSession(policy("a,b,c"), judge)
        forest = CutAndRegenerate(group_size=2, cut_at=where).grow(tasks("a"), session)
        assert forest.agent_names == ("agent",) and forest.n_steps == 2 and len(session.calls) == 2


def test_the_least_probable_step_is_cut() -> None:
    def logprob(context, tokens):
        return [-5.0 if chr(t) == "B" else -0.1 for t in tokens]

    session = GrowingSession(policy("a,B,c"), judge, logprob=logprob)
    forest = CutAndRegenerate(group_size=1, cut_at="low_probability").grow(tasks("a"), session)
    assert session.decode(forest.action(0)) == "a,ok"


def test_uniform_cuts_are_equally_likely_and_reproducible() -> None:
    def cuts() -> list[int]:
        session = GrowingSession(policy("a,b,c,d"), judge)
        return [i["cuts"][0] for i in CutAndRegenerate(group_size=300, cut_at="uniform").grow(tasks("a"), session).info]

    actual = cuts()
    assert actual == cuts()
    # 300 draws of four: mean 75, standard deviation sqrt(300 * 3/16) = 7.5; five of them are 37.5
    assert set(Counter(actual)) == {0, 2, 4, 6} and all(abs(n - 75) < 37.5 for n in Counter(actual).values())


def test_without_revisions_it_is_independent_sampling() -> None:
    session = GrowingSession(policy("a,b"), judge)
    forest = CutAndRegenerate(group_size=2, revisions=0).grow(tasks("a", "a"), session)
    other = GrowingSession(policy("a,b"), judge)
    plain = other.score(Independent(2).grow(tasks("a", "a"), other))
    assert forest.to_records() == plain.to_records() and session.calls == other.calls


# ---------------------------------------------------------------- the fork
class Written:
    """A tiny model in float64 that scores what a scripted policy wrote: log-probs by whole forward passes."""

    def __init__(self) -> None:
        self.model = clean_llama(vocab_size=128)

    def __call__(self, context: tuple[int, ...], tokens: list[int]) -> list[float]:
        with torch.no_grad():
            return self.logprob([*context], [*tokens]).tolist()

    def logprob(self, context: list[int], tokens: list[int]) -> torch.Tensor:
        logits = self.model(input_ids=torch.tensor([[*context, *tokens]])).logits[0]
        return logits[len(context) - 1 : -1].log_softmax(-1)[torch.arange(len(tokens)), torch.tensor(tokens)]


@pytest.mark.parametrize("layout", ["packed", "flat"])
def test_model_reads_each_authors_tokens_in_the_authors_context(layout: str) -> None:
    """Actor, before and after the cut, and refiner: on policy each log-prob is the sampler's; the gradient by loops."""
    reader = Written()

    def say(context: str, stream: StreamKey) -> str:
        return policy("good,bad,end", "ok" if stream.attempt else "no", verdicts="23")(context, stream)

    session = GrowingSession(say, judge, logprob=reader)
    forest = CutAndRegenerate(group_size=2, revisions=2, template=ASK).grow(tasks("a"), session)
    learner = TorchLearner(reader.model, lr=1e-3, weight_decay=0.0, layout=layout)
    assert float((learner.outputs(forest)["logprob"] - forest.path_behaviour_logprob).abs().max()) < 1e-10
    method = gxpo.method("search_r2")
    credit = method.advantages(forest)
    weight = method.token_weights(forest, credit, {"proximal_logprob": forest.path_behaviour_logprob})

    def loss(x):
        return method.objective(forest, gxpo.PolicyTokens(x["logprob"], forest.path_behaviour_logprob), credit, weight)

    actual = learner.gradient(forest, loss, couples=method.couples)
    rows = []
    for record, sign in zip(forest.to_records(share=False), (-1, 1), strict=True):
        contexts = [record["prompt"], *(t["context"] for t in record["turns"][1:])]
        pieces = [(c, t["action"], t["logprob"]) for c, t in zip(contexts, record["turns"], strict=True)]
        log_rho = torch.cat([reader.logprob(c, a) - torch.tensor(p, dtype=torch.float64) for c, a, p in pieces])
        rows.append(-(log_rho.exp() * sign * 0.5 / (math.sqrt(0.5) + 1e-6)).mean())
    parameters = dict(reader.model.named_parameters())
    want = torch.autograd.grad(torch.stack(rows).mean(), list(parameters.values()))
    for name, g in zip(parameters, want, strict=True):
        assert float((actual[name] - g).abs().max()) < 1e-10, name


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.sampled_from(["a", "bb", "c,d", "e,f,g", ","]), min_size=1, max_size=3),
    st.lists(st.sampled_from("01239x"), min_size=3, max_size=3),
    st.integers(1, 3),
    st.integers(1, 3),
)
def test_what_comes_out_is_what_was_written(drafts, verdicts, revisions, size) -> None:
    def say(context: str, stream: StreamKey) -> str:
        if stream.turn == 1:
            return verdicts[(stream.path[0] + stream.attempt) % 3]
        return drafts[(len(stream.path) + sum(stream.path) + stream.attempt) % len(drafts)]

    session = GrowingSession(say, judge)
    forest = CutAndRegenerate(group_size=size, revisions=revisions, template=ASK).grow(tasks("a", "b"), session)
    assert session.budget.rollouts == forest.n_trajectories + session.budget.discarded
    assert session.budget.discarded == sum(len(i.get("cuts", ())) for i in forest.info)
    assert forest.group == ["s60/a"] * size + ["s60/b"] * size
    again = Forest.from_records(forest.to_records())
    assert again.to_records() == forest.to_records()
    assert forest.to_records(share=False) == forest.flatten().to_records(share=False)
    text = dict(session.judged)
    for r, name in enumerate(forest.id):
        (step,) = ((forest.step_trajectory == r) & (forest.step_turn == 0)).nonzero().tolist()
        assert session.decode(forest.action(step[0])) == text[name]


# ---------------------------------------------------------------- refusals
def test_settings_that_make_no_sense_are_refused() -> None:
    for fields, message in (
        ({"group_size": 0}, "group_size is 0; it is 1 or more"),
        ({"revisions": -1}, "revisions is -1; it is 0 or more"),
        ({"refiner_tokens": 0}, "refiner_tokens is 0; it is 1 or more"),
        ({"cut_at": "last"}, "cut_at is .last.*refiner, uniform"),
        ({"delimiter": ""}, "delimiter is"),
        ({"template": "{steps}"}, r"lacks \{prompt\}"),
    ):
        with pytest.raises(ConfigError, match=message):
            CutAndRegenerate(**fields)
