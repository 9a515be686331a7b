"""A rollout of one's own: rounds, wordings, forks and measured attempts, on prompts and in worlds."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

import pytest
from tests.sampling.rollouts.acting_session import acting, seeded, turns_of
from tests.sampling.rollouts.branching_session import pool
from tests.sampling.rollouts.growing_session import GrowingSession, tasks

from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Sampling, StreamKey
from gxpo.sampling.rollouts import Attempts, Draw, Fork, Play, Rollout, Round, base
from gxpo.sampling.rollouts.wording import Wording

SHOUT = Wording("{prompt} LOUD:{word}", {"word": "x"})


def wrong(task: str, text: str) -> float:
    return float(text == "right")


def test_the_example_of_the_docstring_works_as_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", base.__doc__ or "", re.DOTALL)
    example = ModuleType("example")
    monkeypatch.setitem(sys.modules, "example", example)
    exec(code, vars(example))
    session = GrowingSession(lambda context, key: "right" if context == "b?" or key.attempt == 3 else "no", wrong)
    forest = example.OnceMore(2).grow(tasks("a", "b"), session)
    assert forest.group == ["s60/a", "s60/a", "s60/b", "s60/b", "s60/a", "s60/a"]
    assert forest.id[-2:] == ["s60/a/2", "s60/a/3"]
    assert forest.success.tolist() == [0, 0, 1, 1, 0, 1]


@dataclass(frozen=True)
class Worded(Rollout):
    """One attempt in plain words, one told more, one of another policy that is only measured."""

    group_size: int = 1
    hidden: bool = True

    def first(self, draws: Sequence[Draw], play: Play) -> list[Attempts | Fork]:
        out: list[Attempts | Fork] = []
        for draw in draws:
            messages = draw.attempts(
                1, label="told", wording=SHOUT, hides_wording=self.hidden, origin="hint", info={"n": 1}
            )
            cold = Sampling(temperature=0.0, max_new_tokens=7)
            adjacent_attempts = draw.attempts(
                1, first=1, label="beside", policy="old", sampling=cold, is_measurement=True
            )
            out += [draw.attempts(1), messages, adjacent_attempts]
        return out


@pytest.mark.parametrize("hidden", [True, False])
def test_wordings_are_sampled_under_and_trained_on_unless_hidden(hidden: bool) -> None:
    session = GrowingSession(lambda context, key: context[-1], wrong)
    forest = Worded(hidden=hidden).grow(tasks("a"), session)
    assert forest.id == ["s60/a/0", "s60/a/told/0", "s60/a/beside/0"]
    assert [session.decode(forest.action(s)) for s in range(3)] == ["?", "x", "?"]
    prompts = [session.decode(forest.context(int(node))) for node in forest.prompt_node]
    assert prompts == ["a?", "a?" if hidden else "a? LOUD:x", "a?"]
    sampled = forest.in_context("sampled")
    assert session.decode(sampled.context(int(sampled.parent[forest.last_action[1]]))) == "a? LOUD:x"
    assert forest.origin == ["policy", "hint", "policy"] and forest.info[1] == {"n": 1}
    assert forest.compared.tolist() == [True, True, False] and forest.weight.tolist() == [1.0, 1.0, 0.0]
    assert [bool(forest.path_trainable[forest.path_of(r)].any()) for r in range(3)] == [True, True, False]
    assert [forest.policy_names[int(forest.policy[n])] for n in forest.last_action] == ["main", "main", "old"]
    assert [s["temperature"] for s in forest.sampling] == [1.0, 1.0, 0.0]
    assert [how.temperature for _, how in session.calls] == [1.0, 0.0]


@pytest.mark.parametrize("hidden", [True, False])
def test_hidden_wording_in_a_world_leaves_the_records_plain(hidden: bool) -> None:
    with pool(start=2, good="abcdefghijklmnopqrstuvwxyz") as world:
        session = acting(world, lambda context, key: "z" if "LOUD" in context else "a")
        forest = Worded(hidden=hidden).grow(seeded(session, 0), session)
    messages = turns_of(forest, 1)
    assert [t["said"] for t in messages] == ["z", "z"]
    assert ("LOUD" in messages[1]["context"]) is not hidden
    sampled = turns_of(forest.in_context("sampled"), 1)
    assert sampled[1]["context"] == "count\n\n2 left\n> LOUD:xz1 left\n>"
    plain = [t["context"] for t in turns_of(forest, 0)]
    assert plain == ["count\n\n2 left\n>", "count\n\n2 left\n>a1 left\n>"]
    if hidden:
        assert [t["context"] for t in messages] == [x.replace("a1", "z1") for x in plain]
    assert not turns_of(forest, 2)[0]["trained"][0]


def test_an_attempt_is_left_within_its_action() -> None:
    session = GrowingSession(lambda context, key: "cd" if key.path else "abef", wrong)
    with Play(session) as play:
        (first,) = play.begin([play.draws(tasks("a"))[0].attempts(1)])
        play.finish([first])
        play.finish(play.fork([Fork(first, 0, replace(first.key, path=(0,)), "a/0.0", 2)]))
        second = play.episodes[-1]
        play.finish(play.fork([Fork(second, 0, StreamKey(5, 60, "a", 0, (0, 0)), "a/0.0.0", 3)]))
        forest = play.forest()
    message = [session.decode(forest.action(s)) for s in range(3)]
    assert message == ["abef", "abcd", "abccd"]
    assert forest.id == ["s60/a/0", "s60/a/0.0", "s60/a/0.0.0"]
    assert forest.n_tokens == len("a?") + len("abef") + len("cd") + len("cd") + 3  # what is shared is stored once
    assert [how.max_new_tokens for _, how in session.calls] == [40, 38, 37]
    assert [r.prompt[2:] for requests, _ in session.calls for r in requests] == [(), (97, 98), (97, 98, 99)]


def test_a_turn_of_an_episode_is_left_within_its_action() -> None:
    with pool(start=2, good="abcdefghijklmnopqrstuvwxyz") as world:
        session = acting(world, lambda context, key: "q" if key.path and context.endswith("b") else "bc")
        with Play(session, restorable=True) as play:
            (first,) = play.begin([play.draws(seeded(session, 0))[0].attempts(1)])
            play.finish([first])
            play.finish(play.fork([Fork(first, 1, replace(first.key, path=(0,)), "steps/0/0.0", 1)]))
            forest = play.forest()
    assert [t["said"] for t in turns_of(forest, 0)] == ["bc", "bc"]
    assert [t["said"] for t in turns_of(forest, 1)] == ["bc", "bq"]
    assert forest.success.tolist() == [1.0, 1.0]


class Joined(Rollout):
    """After the first turn one more attempt joins."""

    group_size = 1

    def after_turn(self, episodes: Sequence[Any], play: Play) -> list[Attempts | Fork]:
        return [play.step_draws[0].attempts(1, first=1)] if len(episodes) == 1 else []

    def merge(self, rounds: Sequence[Round], play: Play) -> Forest:
        return rounds[0].scored


def test_attempts_join_a_round_after_a_turn() -> None:
    with pool(start=2, good="abcdefghijklmnopqrstuvwxyz") as world:
        session = acting(world, lambda context, key: "a")
        forest = Joined().grow(seeded(session, 0), session)
    assert forest.id == ["s1/steps/0/0", "s1/steps/0/1"] and forest.outcome.tolist() == [1.0, 1.0]
