"""Adaptive stages: who is tried again, who stops, and which success of old stands in."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.sampling.rollouts.replay_session import (
    ENV,
    RIGHT,
    UNSCORED,
    StepSession,
    right_first,
    tasks,
    train,
    world_session,
    world_tasks,
)
from tests.sampling.rollouts.retry_parts import RetryUntilSolved
from tests.sampling.rollouts.scripted_session import WRONG

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.environments.envs import EnvPool, source
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import EpisodeRules, Sampling, StreamKey
from gxpo.sampling.rollouts.retry import Retry
from gxpo.sampling.rollouts.rounds import Independent


def written(stream: StreamKey) -> int:
    """The name of a task spells its attempts: "01.." fails, then succeeds. A stage draws the task anew, as "NAME#1"."""
    name, _, again = stream.task.partition("#")
    at = int(again or 0) * 4 + stream.attempt
    return {"0": WRONG, "1": RIGHT, "?": UNSCORED}[name[at]]


# ---------------------------------------------------------------- stages
def test_a_task_with_a_success_leaves_after_its_stage() -> None:
    # the card's check: k = 4, S = 2: one success in stage 1 -> n = 4; none -> n = 8
    session = StepSession(written)
    forest = RetryUntilSolved(8, 4).grow(tasks("0100----", "00000010", "00000000"), session)
    names = ["0100----", "00000010", "00000000"]
    assert [forest.group.count(f"s3/{name}") for name in names] == [4, 8, 8]
    assert forest.group == [f"s3/{n}" for n, size in zip(names, (4, 8, 8), strict=True) for _ in range(size)]
    assert forest.success.tolist() == [0, 1, 0, 0] + [0] * 6 + [1, 0] + [0] * 8
    assert session.budget.rollouts == 20 and session.budget.discarded == 0
    assert len(set(session.streams)) == 20 and len(set(forest.id)) == 20


def test_the_expected_number_of_attempts() -> None:
    """Every pattern of a first stage of four, each with its probability: E n = 4 (1 + 0.9^4) = 6.6244 at p = 0.1."""
    patterns = ["".join(bits) for bits in itertools.product("01", repeat=4)]
    forest = RetryUntilSolved(8, 4, reuse=False).grow(tasks(*(p + "0000" for p in patterns)), StepSession(written))
    expected = 0.0
    for pattern in patterns:
        probability = math.prod(0.1 if bit == "1" else 0.9 for bit in pattern)
        expected += probability * forest.group.count(f"s3/{pattern}0000")
    assert expected == pytest.approx(6.6244, abs=1e-12)


@given(st.lists(st.text("01?", min_size=12, max_size=12), min_size=1, max_size=4, unique=True), st.integers(1, 12))
def test_stages_are_what_a_loop_says(names: list[str], most: int) -> None:
    forest = RetryUntilSolved(most, min(4, most), reuse=False).grow(tasks(*names), StepSession(written))
    for name in names:
        n = 0
        while n < most:
            stage = name[n : min(n + 4, most)]
            n += len(stage)
            if "1" in stage:
                break
        assert forest.group.count(f"s3/{name}") == n


def test_one_stage_is_independent_attempts() -> None:
    names = tasks("01000000", "00000000")
    staged = RetryUntilSolved(4, 4).grow(names, StepSession(written))
    plain = StepSession(written)
    assert staged.to_records() == plain.score(Independent(4).grow(names, plain)).to_records()


def test_task_drawn_twice_is_two_groups_with_separate_streams() -> None:
    session = StepSession(lambda stream: WRONG)
    forest = RetryUntilSolved(4, 2).grow(tasks("a", "a"), session)
    assert forest.group == ["s3/a"] * 4 + ["s3/a#1"] * 4
    assert len(set(session.streams)) == 8 and {s.task for s in session.streams} == {"a", "a#1", "a#2", "a#3"}


def test_last_stage_may_be_smaller_and_none_exceeds_the_group() -> None:
    assert RetryUntilSolved(5, 2).grow(tasks("a"), StepSession(lambda stream: WRONG)).n_trajectories == 5
    with pytest.raises(ConfigError, match=r"rollout\.stage_size is 8.*rollout\.group_size=4"):
        RetryUntilSolved(4, 8)


def test_verdicts_decide_and_are_needed() -> None:
    shaped = StepSession(written, shaping=0.5)
    assert RetryUntilSolved(8, 4).grow(tasks("00000000"), shaped).n_trajectories == 8
    with pytest.raises(ConfigError, match="needs verdicts"):
        RetryUntilSolved(4, 2).grow(tasks("0000"), StepSession(written, verdicts=False))


# ---------------------------------------------------------------- reuse
def remembering(script: Callable[[StreamKey], int] = lambda s: WRONG) -> tuple[Retry, StepSession]:
    """A part that has stored a success of task "a" in step 1, and a session of step 2 with `script`."""
    part = RetryUntilSolved(4, 2)
    train(part, ["a", "b"], StepSession(lambda s: int(s.task == "a" and s.attempt == 1), step=1))
    return part, StepSession(script, step=2)


def test_a_stored_success_takes_the_place_of_the_last_failure() -> None:
    part, session = remembering()
    forest = part.grow(tasks("a", "b"), session)
    assert forest.group == ["s2/a"] * 4 + ["s2/b"] * 4
    assert forest.origin == ["policy"] * 3 + ["replay"] + ["policy"] * 4
    assert forest.id[:4] == ["s2/a/0", "s2/a/1", "s2/a#1/0", "s2/a/replay"]
    assert forest.outcome.tolist() == [0, 0, 0, 1] + [0] * 4
    assert int(forest.policy_version[forest.last_action[3]]) == 1 and forest.info[3] == {"sampled_as": "s1/a/1"}
    assert session.budget.rollouts == 8 and session.budget.discarded == 1
    # a group of one success in four: (1 - 1/4) / 0.5 = 1.5 and (0 - 1/4) / 0.5 = -0.5
    credit = gxpo.method("ar3po", {"credit.eps": 0.0}).advantages(forest)
    assert [float(credit[forest.path_of(r)[0]]) for r in range(8)] == pytest.approx([-0.5] * 3 + [1.5] + [0] * 4)


def test_where_an_attempt_succeeds_nothing_is_reused() -> None:
    part, session = remembering(lambda s: int(s.task == "a#1"))
    assert set(part.grow(tasks("a"), session).origin) == {"policy"}
    without = RetryUntilSolved(4, 2, reuse=False)
    without.load_state_dict(part.state_dict())
    assert set(without.grow(tasks("a"), StepSession(lambda s: WRONG, step=2)).origin) == {"policy"}


def test_a_group_without_a_known_failure_is_left_alone() -> None:
    part, session = remembering(lambda s: UNSCORED)
    assert set(part.grow(tasks("a"), session).origin) == {"policy"}
    part, session = remembering(lambda s: WRONG if s.task == "a" and s.attempt == 0 else UNSCORED)
    forest = part.grow(tasks("a"), session)
    assert forest.id == ["s2/a/1", "s2/a#1/0", "s2/a#1/1", "s2/a/replay"]  # the one known failure gave way


def test_the_newest_success_is_kept_through_a_checkpoint() -> None:
    part = RetryUntilSolved(4, 2, max_stored=1)
    train(part, ["a", "b"], StepSession(lambda s: int(s.task == "a" and s.attempt == 1), step=1))
    train(part, ["a"], StepSession(right_first(2), step=2))
    assert [r["id"] for r in part.buffer.of("a")] == ["s2/a/1"] and part.buffer.of("b") == []
    other = RetryUntilSolved(4, 2, max_stored=1)
    other.load_state_dict(json.loads(json.dumps(part.state_dict())))
    later = [p.grow(tasks("a"), StepSession(lambda s: WRONG, step=3)).to_records() for p in (part, other)]
    assert later[0] == later[1] and later[0][-1]["info"] == {"sampled_as": "s2/a/1"}
    # a reused row is not stored as if it had been sampled again
    part.observe(Forest.from_records(later[0]))
    assert [r["id"] for r in part.buffer.of("a")] == ["s2/a/1"]


@pytest.mark.slow
def test_stored_successes_are_drawn_evenly_or_the_newest_is() -> None:
    """Four are stored. Over 400 groups each comes 100 times, +- 4 sd of 8.7; a step drawn again is the same."""
    part = RetryUntilSolved(4, 2)
    train(part, ["a"], StepSession(lambda s: RIGHT, step=1))  # both attempts of the first stage
    train(part, ["a"], StepSession(lambda s: RIGHT, step=2))
    stored = [r["id"] for r in part.buffer.of("a")]
    assert stored == ["s1/a/0", "s1/a/1", "s2/a/0", "s2/a/1"]

    def drawn(part: Retry, steps: range) -> list[str]:
        grown = [part.grow(tasks("a"), StepSession(lambda s: WRONG, step=step)) for step in steps]
        return [str(forest.info[-1]["sampled_as"]) for forest in grown]

    actual = drawn(part, range(3, 403))
    assert all(abs(actual.count(name) - 100) < 35 for name in stored)
    assert drawn(part, range(3, 13)) == actual[:10]
    newest = RetryUntilSolved(4, 2, choice="recent")
    newest.load_state_dict(part.state_dict())
    assert set(drawn(newest, range(3, 13))) == {"s2/a/1"}


def test_a_reused_row_is_in_the_statistics_and_has_no_gradient() -> None:
    """Rewards 0 0 0 1, credit -.5 -.5 -.5 1.5: the failures are pushed down, the success moves nothing; the token mean
    divides by all four. With a weight of 1 it is pushed up as well."""
    for coef, rows in ((None, [-0.5] * 3 + [0.0]), (1.0, [-0.5] * 3 + [1.5])):
        keys = {} if coef is None else {"rollout.coef": coef}
        m = gxpo.method("ar3po", {"credit.eps": 0.0, **keys})
        part = RetryUntilSolved(4, 2, coef=m.rollout.coef)
        part.load_state_dict(remembering()[0].state_dict())
        forest = part.grow(tasks("a"), StepSession(lambda s: WRONG, step=2))
        now = forest.path_behaviour_logprob.clone().requires_grad_()
        policy = gxpo.PolicyTokens(now, forest.path_behaviour_logprob, proximal_logprob=now.detach())
        (gradient,) = torch.autograd.grad(m.loss(forest, policy).value, now)
        tokens = [len(forest.path_of(r)) for r in range(4)]
        target = [-a / sum(tokens) for a, n in zip(rows, tokens, strict=True) for _ in range(n)]
        assert gradient.tolist() == pytest.approx(target, abs=1e-12)


def test_refusals_of_reuse() -> None:
    with pytest.raises(ConfigError, match=r"rollout\.choice"):
        RetryUntilSolved(choice="all")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"rollout\.coef is -1.0; it is 0 or more"):
        RetryUntilSolved(coef=-1.0)
    with pytest.raises(ConfigError, match=r"rollout\.max_stored"):
        RetryUntilSolved(max_stored=0)


def test_episodes_have_stages_too() -> None:
    part = RetryUntilSolved(4, 2)
    with EnvPool(source(ENV), workers=0) as envs:
        for step in (1, 2, 3):
            now = world_session(envs, rules=EpisodeRules(3), sampling=Sampling(max_new_tokens=1), step=step)
            forest = now.score(part.grow(world_tasks(now, 6), now))
            part.observe(forest)
            assert forest.group == sorted(forest.group) and len(set(forest.id)) == forest.n_trajectories
            for group in set(forest.group):
                rows = [r for r, name in enumerate(forest.group) if name == group]
                known_buffers = {r["id"] for r in part.buffer.of(forest.task[rows[0]])}
                first = [float(forest.success[r]) for r in rows[:2]]
                assert len(rows) == (2 if 1.0 in first else 4)
                assert "replay" not in [forest.origin[r] for r in rows] or known_buffers
    # instances with an odd seed need four turns and have three: none of them ever succeeds, and nothing is stored
    stored = [len(part.buffer.of(f"steps/{seed}")) for seed in range(6)]
    assert stored[1::2] == [0, 0, 0] and 1 <= max(stored) <= 8
    assert forest.group.count("s3/steps/1") == 4


# ---------------------------------------------------------------- the ratio of a reused row
@pytest.mark.parametrize(("over", "reused"), [("proximal", 1.0), ("behaviour", math.exp(0.3))])
def test_reused_rows_take_the_ratio_to_the_setting_ratio_over(over: str, reused: float) -> None:
    part = RetryUntilSolved(4, 2, coef=1.0)
    part.load_state_dict(remembering()[0].state_dict())
    forest = part.grow(tasks("a"), StepSession(lambda s: WRONG, step=2))
    old = forest.to_path(torch.tensor([o == "replay" for o in forest.origin]), "R")
    behaviour = forest.path_behaviour_logprob
    now = torch.where(old, behaviour + 0.3, behaviour).requires_grad_()  # the policy has moved since step 1
    m = gxpo.method("ar3po", {"objective.ratio_over": over, "objective.surrogate": "unclipped"})
    policy = gxpo.PolicyTokens(now, behaviour, proximal_logprob=now.detach())
    credit = m.advantages(forest)
    (gradient,) = torch.autograd.grad(m.loss(forest, policy, advantages=credit).value, now)
    expected = -credit / forest.n_entries * (1 + (reused - 1) * old.double())
    assert gradient.tolist() == pytest.approx(expected.tolist(), abs=1e-15)
