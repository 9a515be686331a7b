"""Rollouts that go on in later steps: against a policy that writes a text of known length, and over a resume."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
import torch
from tests.sampling.rollouts.scripted_session import ScriptedSession

from gxpo.base.errors import ConfigError, TaskError
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Completion, Request, Sampling, StreamKey, Task
from gxpo.sampling.rollouts.partial import PartialRollouts

END = 99


class Writing(ScriptedSession):
    """Attempt i of task "k" writes k + i tokens, counted from 10, and then END; log-probs are -1/100 of the token."""

    def __init__(self, step: int, limit: int = 6, **fields) -> None:
        super().__init__(lambda stream: 1, step=step, sampling=Sampling(max_new_tokens=limit), **fields)
        self.contexts: list[tuple[int, ...]] = []
        self.sizes: list[int] = []
        self.tasks: dict[str, Task] = {}

    def know(self, tasks: Sequence[Task]) -> None:
        self.tasks |= {t.id: t for t in tasks}

    def sample(self, requests: Sequence[Request], sampling: Sampling | None = None) -> list[list[Completion]]:
        size = (sampling or self.sampling).max_new_tokens
        out = []
        for request in requests:
            (stream,) = request.streams
            self.streams.append(stream)
            self.contexts.append(request.prompt)
            self.sizes.append(size)
            done = len([t for t in request.prompt if 10 <= t < END])
            full_counts = [*(10 + j for j in range(int(stream.task.split("#")[0]) + stream.attempt)), END]
            tokens = full_counts[done : done + size]
            finish = "stop" if tokens[-1] == END else "length"
            out.append([Completion(tokens, [-t / 100 for t in tokens], finish, policy_version=self.step - 1)])
        return out

    def encode(self, task: Task) -> tuple[int, ...]:
        return (1, int(task.id))


def written(forest: Forest, r: int) -> list[int]:
    return forest.token[forest.path_token[forest.path_of(r)]].tolist()


def grown(part: PartialRollouts, step: int, names: Sequence[str], limit: int = 6) -> tuple[Forest, Writing]:
    session = Writing(step, limit)
    return part.grow([Task(n, n, answer=int(n)) for n in names], session), session


def test_three_steps() -> None:
    """Limit 6 in windows of 2; two attempts of tasks 1 (1 and 2 tokens and END) and 4 (4 and 5 tokens and END)."""
    part = PartialRollouts(group_size=2, windows=3)
    forest, session = grown(part, 1, ["1", "4"])
    assert forest.id == ["s1/1/0", "s1/1/1", "s1/4/0", "s1/4/1"] and session.sizes == [2] * 4
    assert [written(forest, r) for r in range(4)] == [[10, END], [10, 11], [10, 11], [10, 11]]
    assert forest.truncated.tolist() == [False, True, True, True]
    assert forest.scored.tolist() == [False, True, True, True] and forest.outcome[1:].tolist() == [0.0] * 3
    assert bool(forest.success.isnan().all())

    forest, session = grown(part, 2, ["2"])
    assert forest.id == ["s1/1/1", "s1/4/0", "s1/4/1", "s2/2/0", "s2/2/1"]  # what goes on stands first
    assert [written(forest, r)[2:] for r in range(3)] == [[END], [12, 13], [12, 13]]
    assert session.contexts[:3] == [(1, 1, 10, 11), (1, 4, 10, 11), (1, 4, 10, 11)]  # token-in, token-out
    assert forest.truncated.tolist() == [False, True, True, True, True] and set(session.tasks) == {"1", "4"}
    assert session.tasks["4"] == Task("4", "4", answer=4)

    forest, session = grown(part, 3, [])
    assert [written(forest, r) for r in range(4)][:2] == [[10, 11, 12, 13, END], [10, 11, 12, 13, 14, END]]
    assert not bool(forest.truncated.any()) and part.memory == []
    version = forest.to_path(forest.policy_version, "N")
    assert version[forest.path_of(1)].tolist() == [0, 0, 1, 1, 2, 2]  # each window has the version that wrote it
    assert forest.path_behaviour_logprob[forest.path_of(1)].tolist() == [-0.10, -0.11, -0.12, -0.13, -0.14, -0.99]
    assert forest.step_turn[forest.step_trajectory == 1].tolist() == [0, 1, 2]


def test_the_limit_ends_a_rollout_and_windows_need_not_divide_it() -> None:
    """Limit 5 in windows of 2, 2 and 1: over after 5 tokens, not truncated, not scored yet: the verifier's."""
    part = PartialRollouts(group_size=1, windows=3)
    sizes = []
    for step, names in ((1, ["9"]), (2, []), (3, [])):
        forest, session = grown(part, step, names, limit=5)
        sizes += session.sizes
    assert sizes == [2, 2, 1] and written(forest, 0) == [10, 11, 12, 13, 14]
    assert forest.truncated.tolist() == [False] and not bool(forest.scored.any()) and part.memory == []
    assert forest.step_finish == ["length"] * 3


def test_one_window_is_the_plain_rollout() -> None:
    forest, session = grown(PartialRollouts(group_size=2, windows=1), 1, ["1", "3"])
    assert not bool(forest.truncated.any()) and session.sizes == [6] * 4
    assert [written(forest, r)[-1] for r in range(4)] == [END] * 4
    assert session.streams == [StreamKey(5, 1, t, i) for t in ("1", "3") for i in range(2)]


def test_no_two_windows_share_random_numbers() -> None:
    """The same task in three steps, its attempts going on: every window has a stream of its own."""
    part, streams = PartialRollouts(group_size=2, windows=3), []
    for step in (1, 2, 3):
        streams += grown(part, step, ["9", "9"])[1].streams
    assert len(streams) == len(set(streams)) == 4 + 8 + 12
    assert [s.turn for s in streams[4:8]] == [1] * 4 and [s.turn for s in streams[8:12]] == [0] * 4


def test_a_resumed_run_goes_on_alike() -> None:
    part = PartialRollouts(group_size=2, windows=3)
    grown(part, 1, ["4"])
    other = PartialRollouts(group_size=2, windows=3)
    other.load_state_dict(json.loads(json.dumps(part.state_dict())))
    for step in (2, 3):
        one, two = grown(part, step, ["2"])[0], grown(other, step, ["2"])[0]
        assert one.to_records() == two.to_records()
    assert other.state_dict() == part.state_dict()


def test_a_step_s_forest_does_not_change_later() -> None:
    part = PartialRollouts(group_size=1, windows=3)
    forest, _ = grown(part, 1, ["4"])
    records = forest.to_records()
    grown(part, 2, [])
    assert forest.to_records() == records


def test_what_it_can_t_do_is_refused() -> None:
    part = PartialRollouts(group_size=1, windows=3)
    with pytest.raises(TaskError, match="is not JSON"):
        part.grow([Task("1", "1", answer=torch.zeros(1))], Writing(1))
    with pytest.raises(ConfigError, match=r"rollout\.windows"):
        PartialRollouts(windows=0)
