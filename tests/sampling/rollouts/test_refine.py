"""Refinements of the best draft."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.sampling.rollouts.growing_session import GrowingSession, ids, tasks
from tests.sampling.rollouts.retry_parts import BestDraft

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.parts.protocols import Sampling, StreamKey, Task
from gxpo.sampling.rollouts.build import first_best
from gxpo.sampling.rollouts.rounds import Independent

nan = float("nan")
SHOW = "{prompt}[{draft}]"


def digit(_: str, text: str) -> float | None:
    """The answer's digit in tenths; "?" can't be scored."""
    return None if "?" in text else int(text[0]) / 10


def drafting(drafts: dict[str, str]):
    """Draft i of a task is the i-th digit of its text; a refinement is one better than what is shown."""

    def say(context: str, stream: StreamKey) -> str:
        if stream.path == (0,):
            return drafts[stream.task][stream.attempt]
        output = context.partition("[")[2]
        return f"{min(int(output[0]) + 1, 9) if output else 0}{'abcdefgh'[stream.attempt]}"

    return say


# ---------------------------------------------------------------- the choice
def test_the_best_draft_is_the_first_of_the_highest() -> None:
    assert first_best([0.0, 1.0, 1.0]) == 1
    assert first_best([0.0, 0.0]) == 0
    assert first_best([nan, -1.0, nan]) == 1  # what can't be scored is below everything
    assert first_best([nan, nan]) == 0


@given(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 1.0, nan]), min_size=1))
def test_it_is_the_choice_by_loops(outcome: list[float]) -> None:
    best = 0
    for i, x in enumerate(outcome):
        if not math.isnan(x) and (math.isnan(outcome[best]) or x > outcome[best]):
            best = i
    assert first_best(outcome) == best


# ---------------------------------------------------------------- the two stages
def test_the_best_draft_stands_in_the_prompt_of_every_refinement() -> None:
    session = GrowingSession(drafting({"a": "031", "b": "707"}), digit)
    forest = BestDraft(group_size=2, n_drafts=3, template=SHOW).grow(tasks("a", "b"), session)
    drafts, refinements = ([session.decode(r.prompt) for r in requests] for requests, _ in session.calls)
    assert drafts == ["a?", "b?"] and refinements == ["a?[3]", "b?[7]"]
    assert [len(r.streams) for requests, _ in session.calls for r in requests] == [3, 3, 2, 2]
    assert forest.group == ["s60/a"] * 2 + ["s60/b"] * 2 and forest.task == ["a", "a", "b", "b"]
    assert forest.info == [{"draft": "3", "draft_outcome": 0.3}] * 2 + [{"draft": "7", "draft_outcome": 0.7}] * 2
    assert session.score(forest).outcome.tolist() == [0.4, 0.4, 0.8, 0.8]


def test_refinements_train_under_drafts_that_are_only_context() -> None:
    session = GrowingSession(drafting({"a": "031"}), digit)
    forest = BestDraft(group_size=2, n_drafts=3, template=SHOW).grow(tasks("a"), session)
    assert forest.n_trajectories == 2 and forest.prompt_text == ["a?[3]"] * 2
    for record in forest.to_records():
        assert record["prompt"] == list(ids("a?[3]")) and "sampled_under" not in record["turns"][0]
    # the draft is context: nothing of it is an action, so no gradient reaches it
    assert [forest.action(s) for s in range(2)] == [[*ids("4a"), 0], [*ids("4b"), 0]]
    assert forest.kind.tolist().count(0) == 1  # one prompt, shared by the group


def test_a_draft_has_no_gradient() -> None:
    session = GrowingSession(drafting({"a": "031"}), digit)
    rollout = BestDraft(group_size=2, n_drafts=3, template=SHOW)
    session.say = lambda c, s, say=session.say: say(c, s) if s.path else "95"[s.attempt]
    forest = session.score(rollout.grow(tasks("a"), session))
    logprob = forest.behaviour_logprob.nan_to_num().requires_grad_()  # on policy: no gate binds
    on_path = logprob[forest.path_token]
    method = gxpo.method("igrpo")
    method.loss(forest, gxpo.PolicyTokens(on_path, forest.path_behaviour_logprob)).value.backward()
    prompt = len(ids("a?[3]"))
    assert logprob.grad is not None
    assert not logprob.grad[:prompt].any() and bool(logprob.grad[prompt:].all())


def test_drafts_are_charged_as_discarded() -> None:
    session = GrowingSession(drafting({"a": "031", "b": "707"}), digit)
    BestDraft(group_size=2, n_drafts=3, template=SHOW).grow(tasks("a", "b"), session)
    assert session.budget.rollouts == 2 * (3 + 2) and session.budget.discarded == 2 * 3
    assert session.budget.generated_tokens == 6 * 2 + 4 * 3  # with the token that ends an answer


def test_draft_and_refinement_streams_differ_for_repeated_tasks() -> None:
    session = GrowingSession(lambda c, s: "1", digit)
    forest = BestDraft(group_size=2, n_drafts=2, template=SHOW).grow(tasks("a", "a"), session)
    streams = [s for requests, _ in session.calls for r in requests for s in r.streams]
    assert len(set(streams)) == len(streams) == 8
    assert forest.group == ["s60/a"] * 2 + ["s60/a#1"] * 2


def test_drafts_that_can_not_be_scored_are_passed_over() -> None:
    def say(context: str, stream: StreamKey) -> str:
        return "?0?"[stream.attempt] if stream.path == (0,) else context[-2]

    session = GrowingSession(say, digit)
    forest = BestDraft(group_size=1, n_drafts=3, template=SHOW).grow(tasks("a"), session)
    assert forest.info == [{"draft": "0", "draft_outcome": 0.0}]
    nobody = GrowingSession(lambda c, s: "?", digit)
    assert BestDraft(1, 2, SHOW).grow(tasks("a"), nobody).info == [{"draft": "?", "draft_outcome": None}]


def test_of_a_chat_the_users_last_message_shows_the_draft() -> None:
    chat = Task("c", ({"role": "user", "content": "one"}, {"role": "assistant", "content": "two"},
                      {"role": "user", "content": "three"}))  # fmt: skip
    session = GrowingSession(lambda c, s: "5", digit)
    BestDraft(group_size=1, n_drafts=1, template=SHOW).grow([chat], session)
    assert session.decode(session.calls[1][0][0].prompt) == "one\ntwo\nthree[5]"


# ---------------------------------------------------------------- reductions and refusals
@pytest.mark.parametrize("sampling", [Sampling(max_new_tokens=9), Sampling(top_k=2, max_new_tokens=9)])
def test_without_drafts_it_is_independent_sampling(sampling: Sampling) -> None:
    outcomes = []
    for rollout in (BestDraft(group_size=3, n_drafts=0), Independent(3)):
        session = GrowingSession(lambda c, s: f"{s.attempt}" * 3, digit, sampling=sampling)
        outcomes.append((rollout.grow(tasks("a", "b", "a"), session), session.budget, session.calls))
    (refined, *rest), (plain, *others) = outcomes
    assert rest == others
    for mine, theirs in zip(refined.to_records(), plain.to_records(), strict=True):
        for turn in (*mine["turns"], *theirs["turns"]):
            turn.pop("extras", None)  # tensors: compared below
        assert mine == theirs
    assert refined.extras.keys() == plain.extras.keys()
    assert all(torch.equal(refined.extras[k], plain.extras[k]) for k in plain.extras)


def test_what_can_not_be_refined_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"n_drafts is -1; it is 0 or more"):
        BestDraft(group_size=2, n_drafts=-1)
    with pytest.raises(ConfigError, match=r"rollout.template='{prompt}' lacks {draft}"):
        BestDraft(template="{prompt}")
