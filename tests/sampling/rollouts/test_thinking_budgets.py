"""Thinking that is cut: where, what follows, how it is stored, and what is trained."""

from __future__ import annotations

import pytest
import torch
from tests.sampling.rollouts.growing_session import GrowingSession, ids, tasks

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Sampling
from gxpo.sampling.rollouts.thinking_budgets import ThinkingBudgets

CLOSE = "|"


def say(context, stream):
    """Thinkings of the lengths that the task is named after, as letters; an answer says where it stands."""
    if stream.turn:
        return f"{stream.path[0]}{stream.path[1]}"
    size = int(stream.task.split("#")[0].split("-")[stream.attempt])
    return "abcdefghijkl"[:size] + (CLOSE if size % 2 else "")


def session(**options):
    options = {"sampling": Sampling(max_new_tokens=12), "step": 3} | options
    return GrowingSession(say, lambda task, text: float(text == "10"), **options)


PART = ThinkingBudgets(2, budgets=3, summaries=2, summary_tokens=3, end_text=CLOSE)


def grow(name="20-4", part=PART, **options):
    rollout_session = session(**options)
    return part.grow(tasks(name), rollout_session), rollout_session


def test_where_it_is_cut():
    # 9 tokens to think: budgets of 3, 6 and 9. "abcdefghijkl..." is cut at 9; "abcd" and its end token at 5
    forest, session = grow("12-4")
    thought = {}
    for r, info in enumerate(forest.info):
        step = int((forest.step_trajectory == r).nonzero()[0])
        thought[info["thinking"], info["budget"], info["covers"]] = session.decode(forest.action(step))
    assert thought == {
        (0, 0, 1): "abc",
        (0, 1, 1): "abcdef",
        (0, 2, 1): "abcdefghi",
        (1, 0, 1): "abc",
        (1, 1, 2): "abcd",
    }
    assert forest.n_trajectories == 2 * (3 + 2) and set(forest.group) == {"s3/12-4"}
    assert session.budget.rollouts == 2


def test_budgets_round_up_and_thinking_within_one_is_not_cut():
    part = ThinkingBudgets(1, budgets=2, summaries=1, summary_tokens=3, end_text=CLOSE)
    # 7 to think: 4 and 7; "abc|" and the end token make 5, "abc" of 3 and the end token 4: within the first budget
    forest, _ = grow("2", part, sampling=Sampling(max_new_tokens=10))
    assert [(i["budget"], i["covers"]) for i in forest.info] == [(0, 2)]
    forest, _ = grow("3", part, sampling=Sampling(max_new_tokens=10))
    assert sorted((i["budget"], i["covers"]) for i in forest.info) == [(0, 1), (1, 1)]


def test_closing_is_added_after_a_cut_unless_already_written():
    forest, session = grow("3-4")  # "abc|", end: 5 tokens, cut at 3 and whole; "abcd", end: the same lengths
    context = {}
    for r, info in enumerate(forest.info):
        step = (forest.step_trajectory == r).nonzero()[-1].item()
        node = forest.step_nodes(step)[0]
        context[info["thinking"], info["budget"]] = session.decode(forest.context(int(forest.parent[node])))
    assert context == {(0, 0): "3-4?abc|", (0, 1): "3-4?abc|", (1, 0): "3-4?abc|", (1, 1): "3-4?abcd|"}
    closing = [t for t, n in enumerate(forest.token_node.tolist()) if int(forest.kind[n]) == 1]
    assert not bool(forest.trainable[closing].any())


def test_a_thinking_is_stored_once():
    forest, _ = grow("12-12")
    # the prompt, two thinkings of 9, three closings each, and 2 x 3 x 2 answers of two characters and an end
    assert forest.n_tokens == len(ids("12-12?")) + 2 * (9 + 3) + 12 * 3
    assert sorted(set(forest.path_of(r).numel() for r in range(12))) == [6, 9, 12]
    segment = forest.segment[forest.path_token[forest.path_of(0)]].tolist()
    assert segment == [0] * 3 + [1] * 3 + [2] * 3 + [-1] * 3
    assert Forest.from_records(forest.to_records()).to_records() == forest.to_records()
    logprob = forest.path_behaviour_logprob[forest.path_of(0)].tolist()
    assert logprob == [-(i + 1) / 8 for i in range(9)] + [-(i + 1) / 8 for i in range(3)]


def test_only_the_answer_is_judged():
    forest, session = grow("12-4")
    assert {text for _, text in session.judged} == {f"{s}{a}" for s in range(3) for a in range(2)}
    right = {name for name, x in zip(forest.id, forest.outcome.tolist(), strict=True) if x}
    assert right == {"s3/12-4/0.1.0", "s3/12-4/1.1.0"}


def test_random_numbers_are_keyed():
    _, session = grow("12-4")
    (thinkings, first), (answers, second) = session.calls
    assert first.max_new_tokens == 9 and CLOSE in first.stop and second.max_new_tokens == 3
    assert [key.attempt for r in thinkings for key in r.streams] == [0, 1]
    keys = [key for r in answers for key in r.streams]
    assert len(set(keys)) == len(keys) == 10 and {key.turn for key in keys} == {1}
    again, _ = grow("12-4")
    assert again.to_records() == grow("12-4")[0].to_records()


def test_a_task_drawn_twice_is_two_groups():
    rollout_session = session()
    forest = PART.grow(tasks("4-4", "4-4"), rollout_session)
    assert set(forest.group) == {"s3/4-4", "s3/4-4#1"} and len(set(forest.id)) == forest.n_trajectories


def test_support_is_kept():
    forest, _ = grow("12-4", sampling=Sampling(max_new_tokens=12, top_k=2))
    assert forest.extras["support"].shape == (forest.n_tokens, 2)
    sampled = forest.path_token
    assert torch.equal(forest.extras["support"][sampled, 0], forest.token[sampled])


def test_held_out_tasks_are_attempted_once_each():
    forest = PART.evaluation(3).grow(tasks("12-4-5"), session())
    assert forest.n_trajectories == 3 and [i["budget"] for i in forest.info] == [0, 0, 0]


def test_a_shared_token_counts_once():
    forest, _ = grow("12-12")
    m = gxpo.method("anytime_brpo").fill(horizon=12.0)
    credit = m.advantages(forest)
    now = forest.path_behaviour_logprob.clone().requires_grad_()
    policy = gxpo.PolicyTokens(now, forest.path_behaviour_logprob)
    (gradient,) = torch.autograd.grad(m.loss(forest, policy, advantages=credit).value, now)
    total = torch.zeros(forest.n_tokens, dtype=torch.float64).index_add_(0, forest.path_token, gradient)
    own_n_tokens = torch.zeros(forest.n_tokens, dtype=torch.float64)
    own_n_tokens[forest.path_token] = credit
    assert bool(credit.any()) and torch.allclose(total, -own_n_tokens / (12 * forest.n_trajectories), atol=1e-15)


def test_refusals():
    for name in ("group_size", "budgets", "summaries", "summary_tokens"):
        with pytest.raises(ConfigError, match=rf"rollout\.{name} is 0; it is 1 or more"):
            ThinkingBudgets(**{name: 0})
    with pytest.raises(ConfigError, match=r"rollout\.end_text"):
        ThinkingBudgets(end_text="")
    with pytest.raises(ConfigError, match="fewer tokens to think"):
        grow(sampling=Sampling(max_new_tokens=5))
