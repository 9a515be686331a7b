"""Repair at the first error: steps by a judge's scores or by continuations, and a teacher's rest of an answer."""

from __future__ import annotations

import math
import random
from functools import partial

import pytest
import torch
from tests.sampling.rollouts import growing_session
from tests.sampling.rollouts.growing_session import tasks

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.parts.protocols import Sampling
from gxpo.sampling.rollouts.cut_and_regenerate import CutAndRegenerate
from gxpo.sampling.rollouts.first_error import call_each, first_below, first_hopeless, step_scores

CutAndRegenerate = partial(CutAndRegenerate, delimiter=",", group_size=1)


class GrowingSession(growing_session.GrowingSession):
    """Judges an attempt again where its actions have changed, as the session of a run does."""

    def score(self, forest, texts=None):
        self._verdict.clear()
        return super().score(forest, texts)


def judge(_: str, text: str) -> float | None:
    return None if "?" in text else float(text.endswith("ok"))


def writes(first: str, suffix: str = "ok"):
    return lambda context, stream: suffix if stream.path else first


def by_word(task, steps, observations):
    """A step that says bad is one, and one that says hm is unknown."""
    assert task == "a?" and observations == [""] * len(steps)
    return [None if "hm" in step else 0.3 if "bad" in step else 0.9 for step in steps]


# ---------------------------------------------------------------- where
def test_the_first_step_below_the_threshold_is_the_first_error() -> None:
    assert first_below([0.9, 0.8, 0.3, 0.7], 0.5) == 2  # the third: two steps are kept
    assert (
        first_below([0.9, None, 0.8], 0.5) is None and first_below([0.2, 0.9], 0.5) == 0 and first_below([], 1) is None
    )


def test_a_step_from_which_the_answer_is_reached_clears_those_before() -> None:
    assert first_hopeless([True, True, False]) == 2 and first_hopeless([False, False, True]) == 3
    assert first_hopeless([False]) == 0 and first_hopeless([]) == 0


@pytest.mark.parametrize(("rate", "chance"), [(0.1, 0.569533), (0.3, 0.942352)])
def test_a_weak_prefix_is_often_called_right(rate, chance) -> None:
    """1 - (1 - p)^8 of 8 continuations that succeed with probability p each: 4000 labels, five standard deviations."""
    assert round(1 - (1 - rate) ** 8, 6) == chance
    rng = random.Random(0)
    labels = [first_hopeless([any(rng.random() < rate for _ in range(8))]) for _ in range(4000)]
    assert abs(sum(labels) / 4000 - chance) < 5 * math.sqrt(chance * (1 - chance) / 4000)


def test_scores_of_another_form_are_none() -> None:
    assert step_scores([0.1, 1], 2) == [0.1, 1.0] and step_scores((None,), 1) == [None]
    for returned in (None, [0.1], [0.1, "x"], [0.1, float("nan")], [True, 0.1], 0.4):
        assert step_scores(returned, 2) == []


def test_a_judge_cuts_before_the_first_error() -> None:
    session = GrowingSession(writes("good,bad,bad"), judge)
    forest = CutAndRegenerate(cut_at="judge", score=by_word, cut="failed").grow(tasks("a"), session)
    assert session.decode(forest.action(0)) == "good,ok" and forest.origin == ["correction"]


def test_an_attempt_without_an_error_or_that_is_right_stays() -> None:
    for first in ("hm,good", "bad,ok"):
        session = GrowingSession(writes(first), judge)
        forest = CutAndRegenerate(cut_at="judge", score=by_word, cut="failed").grow(tasks("a"), session)
        assert session.decode(forest.action(0)) == first and forest.origin == ["policy"] and len(session.calls) == 1


def test_a_judge_that_raises_leaves_the_attempt_and_is_counted() -> None:
    def score(task, steps, observations):
        raise ValueError("down")

    session = GrowingSession(writes("good,bad"), judge)
    with pytest.warns(UserWarning, match="rollout.score failed for 2 of 2 attempts"):
        forest = CutAndRegenerate(group_size=2, cut_at="judge", score=score).grow(tasks("a"), session)
    assert forest.origin == ["policy"] * 2


def test_continuations_find_the_first_hopeless_step() -> None:
    def say(context: str, stream) -> str:
        if len(stream.path) == 3:  # (revision, step, sample): after "a," one of three is right, after "a,b," none
            return "ok" if context.endswith("?a,") and stream.path[2] == 1 else "no"
        return "ok" if stream.path else "a,b,c"

    session = GrowingSession(say, judge)
    forest = CutAndRegenerate(cut_at="continuations", samples=3).grow(tasks("q"), session)
    assert session.decode(forest.action(0)) == "a,ok" and forest.info == [{"cuts": [2]}]
    assert session.budget.discarded == 2 * 3 + 1 and forest.n_trajectories == 1


def test_a_continuation_without_a_verdict_reaches_nothing() -> None:
    session = GrowingSession(
        lambda context, stream: "?" if len(stream.path) == 3 else "ok" if stream.path else "a,b", judge
    )
    forest = CutAndRegenerate(cut_at="continuations", samples=2).grow(tasks("q"), session)
    assert forest.info == [{"cuts": [0]}]


def test_a_right_attempt_is_not_continued() -> None:
    session = GrowingSession(writes("a,b,ok"), judge)
    forest = CutAndRegenerate(cut_at="continuations", revisions=2).grow(tasks("q"), session)
    assert len(session.calls) == 1 and forest.origin == ["policy"]


# ---------------------------------------------------------------- by whom, and what is kept
def test_a_teacher_writes_the_rest_without_log_probs() -> None:
    session = GrowingSession(writes("good,bad,x"), judge)
    session.chat = type("Chat", (), {"stop_ids": (0,)})()
    options = {
        "cut_at": "judge",
        "score": by_word,
        "keep": "right",
        "writer": lambda task, before: f"{task.id}:{before}ok",
    }
    forest = CutAndRegenerate(**options).grow(tasks("a"), session)
    assert session.decode(forest.action(0)) == "good,a:good,ok" and forest.success.tolist() == [1.0]
    known_behaviour_logprob = forest.path_behaviour_logprob.isfinite().tolist()
    assert known_behaviour_logprob == [True] * 5 + [False] * 10 and len(session.calls) == 1


@pytest.mark.parametrize("rest", ["wrong", None, "", "much too long ok", 3])
def test_a_repair_that_does_not_serve_leaves_the_attempt(rest) -> None:
    session = GrowingSession(writes("good,bad"), judge, sampling=Sampling(max_new_tokens=14))
    session.chat = type("Chat", (), {"stop_ids": (0,)})()
    options = {"cut_at": "judge", "score": by_word, "keep": "right", "writer": lambda task, before: rest}
    forest = CutAndRegenerate(**options).grow(tasks("a"), session)
    assert session.decode(forest.action(0)) == "good,bad" and forest.origin == ["policy"] and forest.info == [{}]
    assert forest.success.tolist() == [0.0]


def test_an_attempt_without_a_verdict_is_not_repaired() -> None:
    session = GrowingSession(writes("bad,?"), judge)
    forest = CutAndRegenerate(cut_at="judge", score=by_word, cut="failed").grow(tasks("a"), session)
    assert forest.origin == ["policy"]


def test_a_judge_and_a_teacher_are_named_before_the_run() -> None:
    for options, message in (
        ({"cut_at": "judge"}, "rollout.score is ''; it must be FILE.py:NAME"),
        ({"writer": "teacher"}, "rollout.writer is 'teacher'; it must be FILE.py:NAME"),
    ):
        with pytest.raises(ConfigError, match=message):
            CutAndRegenerate(**options).check_sampling(Sampling())
    with pytest.raises(ConfigError, match="leave these out"):
        CutAndRegenerate(writer=lambda task, before: "").check_sampling(Sampling(top_k=5))


def test_calls_that_all_return_warn_of_nothing(recwarn) -> None:
    assert call_each(lambda x: x + 1, "rollout.writer", [(1,), (2,)]) == [2, 3] and not recwarn.list


# ---------------------------------------------------------------- phrases and pairs
PHRASE = {"cut_at": "phrase", "phrases": ["sure", "I can"], "insert": "no,", "keep": "pairs"}


def test_an_attempt_is_cut_at_its_first_phrase_and_a_text_put_there() -> None:
    def say(context, stream):
        return context[-3:] + "ok" if stream.path else ("hm,I can,sure" if stream.attempt == 0 else "no")

    session = GrowingSession(say, judge)
    forest = CutAndRegenerate(group_size=2, **PHRASE).grow(tasks("a"), session)
    assert [session.decode(forest.action(s)) for s in range(2)] == ["hm,I can,sure", "hm,no,no,ok"]
    assert forest.group == ["s60/a/0"] * 2 and forest.origin == ["policy", "correction"]
    assert forest.info[1] == {"cuts": [3]} and forest.success.tolist() == [0.0, 1.0]
    known_behaviour_logprob = forest.path_behaviour_logprob[forest.path_of(1)].isfinite().tolist()
    assert known_behaviour_logprob == [True] * 3 + [False] * 3 + [True] * 6
    # what both share is stored once: the margin of a pair is that of what differs
    assert forest.n_tokens == len("a?") + len("hm,I can,sure~") + len("no,no,ok~") and session.budget.discarded == 1


def test_a_phrase_at_the_beginning_cuts_all_of_the_answer() -> None:
    session = GrowingSession(lambda context, stream: "ok" if stream.path else "sure", judge)
    forest = CutAndRegenerate(**PHRASE).grow(tasks("a"), session)
    assert [session.decode(forest.action(s)) for s in range(2)] == ["sure", "no,ok"]


def test_without_a_phrase_or_room_all_attempts_stay() -> None:
    for first, options in (("no", {}), ("sure", {"sampling": Sampling(max_new_tokens=3)})):
        session = GrowingSession(lambda context, stream, first=first: first, judge, **options)
        forest = CutAndRegenerate(group_size=2, **PHRASE).grow(tasks("a"), session)
        assert forest.group == ["s60/a"] * 2 and forest.origin == ["policy"] * 2 and session.budget.discarded == 0


def test_a_shared_beginning_cancels_in_a_pair() -> None:
    """h = 0.8 over all or over what differs: -log sigmoid(0.1 * 0.8) = 0.653947."""
    margin = torch.tensor(0.1 * 0.8, dtype=torch.float64)
    assert round(float(-torch.nn.functional.logsigmoid(margin)), 6) == 0.653947
    method = gxpo.method("ipo_safety", {"objective.nll": 0.0})
    losses = []
    for actions in ([[7, 8, 2], [7, 8, 3]], [[2], [3]]):
        forest = gxpo.Forest.from_completions([[1]], [actions], [[1.0, 0.0]])
        n = len(actions[0])
        policy = torch.tensor([0.3, -0.2, -0.1][3 - n :] + [0.3, -0.2, -0.9][3 - n :], dtype=torch.float64)
        tokens = gxpo.PolicyTokens(policy, policy, reference_logprob=torch.zeros_like(policy))
        losses.append(round(float(method.loss(forest, tokens).value), 6))
    assert losses == [0.653947, 0.653947]


@pytest.mark.parametrize(
    ("options", "message"),
    [({"cut_at": "phrase"}, "set both, or neither"), ({"phrases": ["a"]}, "set both, or neither"),
     ({"cut_at": "phrase", "phrases": ["("]}, "no regular expression"),
     ({"insert": "no", "writer": lambda task, before: ""}, "rollout.writer writes all of it")],
)  # fmt: skip
def test_phrases_that_cannot_be_are_refused(options, message) -> None:
    with pytest.raises(ConfigError, match=message):
        CutAndRegenerate(**options)
