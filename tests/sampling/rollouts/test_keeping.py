"""More attempts vote than are trained."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from tests.sampling.rollouts.retry_parts import OversampleForVote
from tests.sampling.rollouts.scripted_session import ScriptedSession

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Task
from gxpo.sampling.rollouts.keeping import right_for_first
from gxpo.sampling.rollouts.rounds import Independent

TASKS = [Task("a", "?"), Task("b", "?")]


class Voting(ScriptedSession):
    """The outcome is the share of the group's attempts that began with the same token."""

    def __init__(self, script):
        super().__init__(script)
        self.calls = []

    def score(self, forest):
        self.calls.append(forest.n_trajectories)
        first = [int(forest.token[forest.path_token[forest.path_of(r)]][0]) for r in range(forest.n_trajectories)]
        share = []
        for token, group in zip(first, forest.group, strict=True):
            rivals = [t for t, g in zip(first, forest.group, strict=True) if g == group]
            share.append(rivals.count(token) / len(rivals))
        return forest.with_rewards(torch.tensor(share))


def script(stream):
    return stream.attempt % 3 if stream.task == "a" else int(stream.attempt > 0)


def test_all_vote_and_the_first_are_returned():
    # a begins 0 1 2 0 1 2: a third each; b begins 0 1 1 1 1 1: 1/6, then 5/6
    session = Voting(script)
    forest = OversampleForVote(group_size=2, n_votes=6).grow(TASKS, session)
    assert session.calls == [12] and forest.id == ["s3/a/0", "s3/a/1", "s3/b/0", "s3/b/1"]
    assert forest.outcome.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 6, 5 / 6])
    assert session.budget.discarded == 8 and session.budget.rollouts == 12


def test_what_is_kept_is_what_fewer_attempts_would_have_been():
    many, few = Voting(script), Voting(script)
    of_many, of_few = OversampleForVote(2, 6).grow(TASKS, many), Independent(2).grow(TASKS, few)
    assert of_many.token.tolist() == of_few.token.tolist() and of_many.group == of_few.group
    assert many.budget.generated_tokens > few.budget.generated_tokens


def test_twice_as_many_vote_unless_told():
    session = Voting(script)
    assert OversampleForVote(3).grow(TASKS, session).n_trajectories == 6 and session.calls == [12]
    session = Voting(script)
    same = OversampleForVote(3, 3).grow(TASKS, session)
    assert same.n_trajectories == 6 and session.budget.discarded == 0
    for wrong in ({"group_size": 4, "n_votes": 3}, {"group_size": 0}):
        with pytest.raises(ConfigError, match=r"n_votes|group_size is 0"):
            OversampleForVote(**wrong)


def test_ttrl_is_a_rollout_and_a_reward():
    m = gxpo.method("ttrl", {"rollout.group_size": 4})
    assert m.rollout == OversampleForVote(4)
    assert m.run_keys["reward"].value == "majority_vote"


def test_a_success_of_the_second_round_replaces_the_first_attempt() -> None:
    def scored(answers: list[list[int]], groups: list[str], success: list[float]) -> Forest:
        forest = Forest.from_completions([[1]] * len(answers), [[a] for a in answers], groups=groups)
        return forest.with_rewards(torch.tensor(success), success=torch.tensor(success) > 0)

    first = scored([[2], [3], [4], [5]], ["a", "a", "b", "b"], [0.0, 0.0, 0.0, 0.0])
    second = scored([[6], [7], [8]], ["a", "a", "b"], [0.0, 1.0, 0.0])
    rounds = [SimpleNamespace(forest=first, scored=first), SimpleNamespace(forest=second, scored=second)]
    chosen = right_for_first(rounds, None, 2)
    tokens = [chosen.token[chosen.path_token[chosen.path_of(r)]].tolist() for r in range(4)]
    # group a: its first attempt [2] gives way to the success [7]; group b had none, so that it stays as it was
    assert tokens == [[7], [3], [4], [5]] and chosen.outcome.tolist() == [1.0, 0.0, 0.0, 0.0]
    assert right_for_first(rounds[:1], None, 2) is first
