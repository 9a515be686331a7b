"""Attempts: ids of requested ones, and an episode's turns, end, verdict and record."""

from __future__ import annotations

import math

import pytest

from gxpo.parts.protocols import Completion, ContextUpdate, EnvFailure, StreamKey, Task, TimeStep
from gxpo.sampling.rollouts.attempts import Draw, Episode, Prompt

TASK = Task("a", "1+1=")
KEY = StreamKey(0, 2, "a", 3)


def sample(**fields) -> Episode:
    """An attempt at a prompt of the ids 7, 8."""
    opening = ContextUpdate((7, 8), rebuilt=True)
    return Episode("a/3", TASK, "s2/a", KEY, Prompt((7, 8)), opening, TimeStep("", "a"), **fields)


def act(episode: Episode, *tokens: int, finish: str = "stop") -> None:
    episode.act(Completion(list(tokens), [-1.0] * len(tokens), finish))


def test_ids_have_the_number_and_the_path_of_the_stream() -> None:
    draw = Draw(TASK, "a", "s2/a")
    assert draw.attempts(2, first=3).ids() == ["s2/a/3", "s2/a/4"]
    assert draw.attempts(2, path=(0, 1)).ids() == ["s2/a/0.0.1", "s2/a/1.0.1"]


def test_labelled_attempts_are_counted_from_zero() -> None:
    draw = Draw(TASK, "a", "s2/a")
    assert draw.attempts(2, first=8, label="hint1").ids() == ["s2/a/hint1/0", "s2/a/hint1/1"]


def test_a_samples_record_has_its_prompt_and_one_turn() -> None:
    episode = sample()
    act(episode, 4, 5, finish="length")
    record = episode.record({"temperature": 1.0})
    assert record["id"] == "s2/a/3" and record["prompt"] == [7, 8] and record["prompt_text"] == "1+1="
    (turn,) = record["turns"]
    assert turn["action"] == [4, 5] and turn["logprob"] == [-1.0, -1.0] and "context" not in turn
    assert record["truncated"] is True and record["origin"] == "policy"


def test_an_unknown_log_prob_is_null_in_the_record() -> None:
    episode = sample()
    episode.act(Completion([4], [math.nan], "stop"))
    assert episode.turns[0]["logprob"] == [None]


def test_a_fork_within_an_action_records_only_its_own_tokens() -> None:
    base = sample()
    act(base, 4, 5, 6)
    fork = sample(base=base, prefix_tokens=(4, 5))
    fork.key = StreamKey(0, 2, "a", 3, (0,))
    assert fork.action_prefix == (4, 5) and fork.request().prompt == (7, 8, 4, 5)
    act(fork, 9)
    assert fork.action_tokens(0) == [4, 5, 9] and base.action_tokens(0) == [4, 5, 6]
    record = fork.record({})
    assert record["fork"] == {"of": "s2/a/3", "turn": 0, "token": 2} and record["id"] == "s2/a/3.0"
    assert record["turns"][0]["action"] == [9] and "prompt" not in record


def test_begun_anew_the_shared_tokens_are_the_prompt() -> None:
    base = sample()
    act(base, 4, 5)
    fork = sample(base=base, prefix_tokens=(4,))
    fork.begin_anew()
    act(fork, 9)
    record = fork.record({})
    assert record["prompt"] == [7, 8, 4] and record["prompt_text"] is None and "fork" not in record


def test_an_environment_that_breaks_leaves_no_verdict() -> None:
    episode = sample()
    act(episode, 4)
    episode.step(EnvFailure("raised", "boom"), max_turns=3)
    assert (episode.end, episode.failure, episode.success, episode.env_reward) == ("raised", "boom", None, None)


def test_an_attempt_that_a_limit_cuts_has_failed() -> None:
    episode = sample()
    act(episode, 4)
    episode.step(TimeStep("go on", "s"), max_turns=1)
    assert episode.end == "turns" and episode.success is False and episode.env_reward == 0.0


@pytest.mark.parametrize(("rewards", "success", "expected"), [((0.5, None, 0.25), True, 0.75), ((None,), True, 1.0)])
def test_the_env_reward_is_the_sum_of_steps_or_the_verdict(rewards, success, expected) -> None:
    episode = sample()
    for reward in rewards:
        act(episode, 4)
        episode.step(TimeStep("", "s", reward=reward, done=True, success=success), max_turns=9)
    assert episode.end == "done" and episode.env_reward == expected
