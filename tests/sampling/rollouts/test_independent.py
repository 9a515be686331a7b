"""Independent groups: named, keyed and stored as they were sampled."""

from __future__ import annotations

import pytest
from tests.sampling.rollouts.scripted_session import RIGHT, ScriptedSession

from gxpo.base.errors import ConfigError
from gxpo.forest.forest import ACTION, Forest
from gxpo.parts.protocols import Sampling, StreamKey, Task
from gxpo.sampling.rollouts import Independent

A, B = Task("a", "a?"), Task("b", (98,))


def tokens(forest: Forest, r: int) -> list[int]:
    return forest.token[forest.path_token[forest.path_of(r)]].tolist()


def test_what_was_sampled_is_what_is_stored() -> None:
    session = ScriptedSession(lambda stream: RIGHT)
    forest = Independent(group_size=2).grow([A, B], session)
    assert forest.group == ["s3/a", "s3/a", "s3/b", "s3/b"]
    assert forest.task == ["a", "a", "b", "b"]
    assert len(set(forest.id)) == 4
    assert [tokens(forest, r) for r in range(4)] == [[1, 10], [1, 11, 9], [1, 10], [1, 11, 9]]
    assert forest.path_behaviour_logprob.tolist() == [-0.5, -5, -0.5, -5.5, -4.5] * 2
    assert [forest.context(int(node)) for node in forest.prompt_node] == [[97], [97], [98], [98]]
    assert forest.truncated.tolist() == [False, True] * 2
    assert forest.step_finish == ["stop", "length"] * 2
    assert forest.origin == ["policy"] * 4
    assert all(s["temperature"] == 1.0 and s["max_new_tokens"] == 3 for s in forest.sampling)
    assert forest.policy_version[forest.kind == ACTION].tolist() == [3] * 4
    assert forest.prompt_text == ["a?", "a?", None, None]
    assert "support" not in forest.extras
    assert not bool(forest.scored.any()) and forest.component_names == ()
    assert session.budget.rollouts == 4 and session.budget.generated_tokens == 10 and session.budget.discarded == 0


def test_every_attempt_has_its_own_reproducible_stream() -> None:
    first, second = (ScriptedSession(lambda stream: RIGHT) for _ in range(2))
    Independent(3).grow([A, B, A], first)
    Independent(3).grow([A, B, A], second)
    assert first.streams == second.streams
    assert len(set(first.streams)) == 9
    assert first.streams[4] == StreamKey(seed=5, step=3, task="b", attempt=1)
    scripted = ScriptedSession(lambda stream: RIGHT)
    Independent(3).grow([B], scripted)
    assert scripted.streams == first.streams[3:6]


def test_a_task_drawn_twice_makes_two_groups_of_one_task() -> None:
    forest = Independent(2).grow([A, B, A], ScriptedSession(lambda stream: RIGHT))
    assert forest.group == ["s3/a"] * 2 + ["s3/b"] * 2 + ["s3/a#1"] * 2
    assert forest.task == ["a"] * 2 + ["b"] * 2 + ["a"] * 2


def test_the_support_is_stored_beside_the_tokens() -> None:
    forest = Independent(2).grow(
        [A], ScriptedSession(lambda stream: RIGHT, sampling=Sampling(top_k=2, max_new_tokens=3))
    )
    support = forest.extras["support"]
    assert support.shape == (forest.n_tokens, 3)
    assert support[forest.path_token].tolist() == [[t, -1, -1] for t in (1, 10, 1, 11, 9)]
    assert support[0].tolist() == [-1, -1, -1]  # the prompt's


def test_records_keep_the_groups() -> None:
    forest = Independent(2).grow([A, B], ScriptedSession(lambda stream: RIGHT))
    again = Forest.from_records(forest.to_records())
    assert again.to_records() == forest.to_records()
    assert again.group == forest.group


def test_group_size_is_checked() -> None:
    with pytest.raises(ConfigError, match="group_size"):
        Independent(0)
