"""Hints by difficulty, other prompts for failures, and directions that prompts state."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from tests.sampling.rollouts.growing_session import GrowingSession, tasks

import gxpo
from gxpo.base.errors import ConfigError, TaskError
from gxpo.parts.protocols import Sampling
from gxpo.sampling.rollouts.retry import Retry
from gxpo.sampling.rollouts.ways import hint_ratio


def again(how: str, keep: str, group_size: int = 4, when: str = "always", **options) -> Retry:
    return Retry(group_size, retry_if=when, retry_with=how, keep=keep, options=options)


ByRate = partial(again, "hint_by_rate", "but_references")
Prompts = partial(again, "next_prompt", "everything")


def ends_with_yes(_: str, text: str) -> float:
    return float(text.endswith("yes"))


class Session(GrowingSession):
    """Knows the reference answer "12345yes", ten tokens with its end, to all tasks."""

    def __init__(self, say, **options) -> None:
        super().__init__(say, ends_with_yes, **options)
        self.chat = type("Chat", (), {"stop_ids": (0,)})()

    def solution(self, task):
        return "1234567yes"


# ---------------------------------------------------------------- hints by difficulty
def test_the_hint_is_longer_for_harder_tasks() -> None:
    assert round(hint_ratio(0.25, 0.1, 0.9), 12) == 0.7  # rewards 1, 0, 0, 0
    assert hint_ratio(1.0, 0.1, 0.9) == 0.1 and round(hint_ratio(0.0, 0.1, 0.9), 12) == 0.9


def test_the_second_half_begins_with_part_of_the_answer() -> None:
    def say(context, stream):
        if not stream.path:  # the plain half: one of two is right
            return "yes" if stream.attempt == 0 else "no"
        return "yes" if stream.attempt == 2 else "no"

    session = Session(say)
    forest = ByRate().grow(tasks("a"), session)
    # rate 1/2: w = 0.5, so 5 of the 11 tokens
    assert [session.decode(forest.action(s)) for s in range(4)] == ["yes", "no", "12345yes", "12345no"]
    assert forest.group == ["s60/a", "s60/a", "s60/a/hint", "s60/a/hint"]
    assert forest.origin == ["policy", "policy", "hint", "hint"]
    assert forest.info[2] == {"hint": 0.5, "hint_tokens": 5} and session.budget.discarded == 0
    is_known = forest.path_behaviour_logprob.isfinite()
    assert is_known[forest.path_of(2)].tolist() == [False] * 5 + [True] * 4
    assert bool(forest.path_trainable.all()) and bool(forest.compared.all())
    assert forest.success.tolist() == [1.0, 0.0, 1.0, 0.0]


def test_a_success_without_the_hint_counts_more() -> None:
    """A of a success is sqrt((1 - p) / p) of its half, but for Bessel: p 1/4 plain, 3/4 hinted."""
    rewards = [[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 0.0]]
    forest = gxpo.Forest.from_completions([[1], [1]], [[[2], [3], [4], [5]]] * 2, rewards)
    credit = gxpo.method("grpo").advantages(forest).tolist()
    assert round(credit[0], 5) == 1.5 and round(credit[4], 5) == 0.5
    assert round(credit[1], 5) == -0.5 and round(credit[7], 5) == -1.5


def test_a_failure_does_not_push_its_hint_down() -> None:
    method = gxpo.method("adhint")
    forest = gxpo.Forest.from_completions([[1]], [[[2, 3, 4], [2, 3, 5], [6, 7]]], [[1.0, 0.0, 0.0]])
    logprob = [[math.nan, -1.0, -1.0], [math.nan, -1.0, -1.0], [-1.0, -1.0]]
    forest = gxpo.Forest.from_completions(
        [[1]], [[[2, 3, 4], [2, 3, 5], [6, 7]]], [[1.0, 0.0, 0.0]], logprobs=[logprob]
    )
    credit = torch.tensor([1.0] * 3 + [-1.0] * 3 + [-1.0] * 2, dtype=torch.float64)
    # own tokens have a mean entropy of 1.5 and the hint's token one of 2
    entropy = torch.tensor([2.0, 1.0, 2.0] * 2 + [1.0, 1.0], dtype=torch.float64)
    weight = method.weights["hint"](forest, credit, {"entropy": entropy}, 1)
    assert [round(x, 6) for x in weight.tolist()] == [0.606531, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0]


def test_a_reference_that_does_not_serve_gives_no_hint() -> None:
    for options, reason in (
        ({"sampling": Sampling(max_new_tokens=8)}, "11 tokens, of at most 8"),
        ({}, "not accepted by the reward"),
    ):
        session = Session(lambda context, stream: "no", **options)
        if not options:
            session.judge = lambda task, text: 0.0
        with pytest.warns(
            UserWarning, match=f"1 of 1 reference answers give no hints; first that of task 'a': {reason}"
        ):
            forest = ByRate().grow(tasks("a"), session)
        assert forest.group == ["s60/a"] * 2


def test_hints_by_rate_need_reference_answers() -> None:
    with pytest.raises(TaskError, match="has no reference answer"):
        ByRate().check_task(tasks("a")[0], lambda task: None)
    with pytest.raises(ConfigError, match="the least must be at most the largest"):
        ByRate(min_hint=0.9, max_hint=0.1)


# ---------------------------------------------------------------- other prompts
def test_failures_are_tried_under_one_prompt_after_the_other() -> None:
    def say(context, stream):
        assert context in ("a?", "split a?", "a? was not no1")
        return f"no{len(stream.path)}" if stream.path != (2,) else "yes"

    session = Session(say)
    rollout = Prompts(2, when="all_wrong", templates=("split {prompt}", "{prompt} was not {attempt}"))
    forest = rollout.grow(tasks("a"), session)
    assert [session.decode(forest.action(s)) for s in range(6)] == ["no0", "no0", "no1", "no1", "yes", "yes"]
    assert forest.origin == ["policy"] * 2 + ["hint"] * 4 and forest.group == ["s60/a"] * 6
    assert forest.info[2] == {"hint": 1} and forest.info[4] == {"hint": 2, "reflects_on": "s60/a/prompt1/1"}
    # they are trained under the task's own prompt
    assert [session.decode(forest.context(int(n))) for n in forest.prompt_node] == ["a?"] * 6


def test_without_a_failure_nothing_is_tried_again() -> None:
    session = Session(lambda context, stream: "yes")
    forest = Prompts(2, templates=("{prompt} was not {attempt}",)).grow(tasks("a"), session)
    assert forest.n_trajectories == 2 and len(session.calls) == 1


@pytest.mark.parametrize(
    ("templates", "message"), [((), "is empty"), (("again",), "lacks {prompt}"), (("{prompt}{hint}",), "has {hint}")]
)
def test_prompts_that_cannot_be_are_refused(templates, message) -> None:
    with pytest.raises(ConfigError) as error:
        Prompts(templates=templates)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_each_hint_can_be_tried_several_times() -> None:
    """PolicyRollout: half of the group reads the document, and all is trained without it."""
    session = Session(lambda context, stream: "yes" if context.startswith("rules") else "no")
    rollout = again("each_hint", "everything", 2, template="{hint} {prompt}", samples=2)
    forest = rollout.grow([tasks("a", hints=["rules"])[0]], session)
    assert forest.success.tolist() == [0.0, 0.0, 1.0, 1.0] and len(set(forest.group)) == 1
    assert [session.decode(forest.context(int(n))) for n in forest.prompt_node] == ["a?"] * 4
    # of one without and one with the document A is -+0.707 (ddof 1); the failure alone has 0
    pair = gxpo.Forest.from_completions([[1]], [[[2], [3]]], [[0.0, 1.0]])
    assert [round(x, 3) for x in gxpo.method("policy_rollout").advantages(pair).tolist()] == [-0.707, 0.707]


# ---------------------------------------------------------------- directions
def test_a_group_has_one_direction_which_its_prompt_states() -> None:
    session = Session(lambda context, stream: "yes")
    rollout = again("stated_direction", "newest", 2, angles=(-15.0,), template="{first}/{second} {prompt}")
    forest = rollout.grow(tasks("a", "b"), session)
    assert [session.decode(r.prompt) for r in session.calls[0][0]] == ["97/-26 a?", "97/-26 b?"]
    assert [round(x, 6) for x in forest.info[3]["direction"]] == [0.965926, -0.258819]
    drawn_info = again("stated_direction", "newest", 2).grow(tasks(*"abcdefgh"), session).info
    assert all(drawn_info[i] == drawn_info[i + 1] for i in range(0, 16, 2)) and len({str(x) for x in drawn_info}) > 1
    with pytest.raises(ConfigError, match=r"lacks \{second\}"):
        again("stated_direction", "newest", template="{prompt}{first}")
