"""DAPO's dynamic sampling: groups with mixed verdicts are kept, the others replaced."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.sampling.rollouts.scripted_session import RIGHT, UNSCORED, WRONG, ScriptedSession

from gxpo.base.errors import ConfigError, TaskError
from gxpo.parts.protocols import StreamKey, Task
from gxpo.sampling.rollouts import DynamicSampling
from gxpo.sampling.rollouts.dynamic_sampling import is_mixed

nan = float("nan")


def tasks(names: str) -> list[Task]:
    return [Task(name, "?") for name in names]


def by_name(stream: StreamKey) -> int:
    """Task "r..." is always solved, "w..." never, "m..." every other time, "u..." can't be scored."""
    kind = stream.task[0]
    return {"r": RIGHT, "w": WRONG, "u": UNSCORED}.get(kind, stream.attempt % 2)


# ---------------------------------------------------------------- the rule
def test_only_the_mixed_group_is_kept() -> None:
    success = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    assert is_mixed(success, torch.tensor([0, 0, 1, 1, 2, 2])).tolist() == [False, False, True, True, False, False]


def test_unknown_verdicts_have_no_part_and_singletons_are_kept() -> None:
    success = torch.tensor([1, 0, nan, 1, nan, 0, nan, nan, nan], dtype=torch.float64)
    group = torch.tensor([0, 0, 0, 1, 1, 2, 3, 4, 4])
    # 0: {1, 0} and one unknown; 1: {1}, a pair; 2: single; 3: single unknown; 4: all unknown
    assert is_mixed(success, group).tolist() == [True, True, True, False, False, True, False, False, False]


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from([0.0, 1.0, nan])), min_size=1), st.randoms())
def test_it_is_the_rule_by_loops_whatever_the_order(rows: list[tuple[int, float]], random: object) -> None:
    random.shuffle(rows)  # type: ignore[attr-defined]  # random.Random
    members: dict[int, list[float]] = {}
    for group, verdict in rows:
        members.setdefault(group, []).append(verdict)
    expected = []
    for group, _ in rows:
        known_members = [v for v in members[group] if v == v]
        expected.append(len(set(known_members)) == 2 or (len(members[group]) == 1 and len(known_members) == 1))
    got = is_mixed(torch.tensor([v for _, v in rows]), torch.tensor([g for g, _ in rows]))
    assert got.tolist() == expected


# ---------------------------------------------------------------- the loop
def test_groups_without_signal_are_replaced_and_charged() -> None:
    session = ScriptedSession(by_name, pool=["w2", "m2", "m3", "m4", "m5"])
    forest = DynamicSampling(group_size=2).grow([*tasks("r"), Task("m1", "?"), *tasks("w")], session)
    # batch 1: r, m1, w -> m1; batch 2: w2, m2, m3 -> m2, m3: three groups, done
    assert forest.group == ["s3/m1"] * 2 + ["s3/m2"] * 2 + ["s3/m3"] * 2
    assert session.drawn == [3]
    assert forest.success.tolist() == [0.0, 1.0] * 3
    assert session.budget.rollouts == 12 and session.budget.discarded == 6
    assert session.budget.generated_tokens == 6 * (2 + 3)  # discarded ones included


def test_the_surplus_is_dropped_in_drawing_order_and_charged() -> None:
    session = ScriptedSession(by_name, pool=["m2", "m3"])
    forest = DynamicSampling(group_size=2).grow([Task("m1", "?"), *tasks("r")], session)
    assert forest.group == ["s3/m1"] * 2 + ["s3/m2"] * 2
    assert session.budget.discarded == 4


def test_nothing_is_drawn_where_every_group_is_mixed() -> None:
    session = ScriptedSession(by_name)
    assert DynamicSampling(group_size=2).grow([Task("m1", "?"), Task("m2", "?")], session).n_trajectories == 4
    assert session.drawn == [] and session.budget.discarded == 0


def test_the_verdict_decides_and_never_the_shaped_outcome() -> None:
    # shaping makes every outcome differ; "w" is still a group without signal
    session = ScriptedSession(by_name, pool=["m1"], shaping=0.1)
    forest = DynamicSampling(group_size=2).grow(tasks("w"), session)
    assert forest.group == ["s3/m1"] * 2


def test_unscored_members_have_no_part_and_stay_in_their_group() -> None:
    def script(stream: StreamKey) -> int:
        return (
            (RIGHT, WRONG, UNSCORED)[stream.attempt] if stream.task == "m" else (RIGHT, RIGHT, UNSCORED)[stream.attempt]
        )

    session = ScriptedSession(script, pool=["m"])
    forest = DynamicSampling(group_size=3).grow(tasks("x"), session)
    assert forest.group == ["s3/m"] * 3
    assert forest.scored.tolist() == [True, True, False]


def test_a_task_drawn_again_is_tried_with_new_random_numbers() -> None:
    def second_time(stream: StreamKey) -> int:
        return stream.attempt % 2 if stream.task == "a#1" else WRONG

    session = ScriptedSession(second_time, pool=["a"])
    forest = DynamicSampling(group_size=2).grow(tasks("a"), session)
    assert forest.group == ["s3/a#1"] * 2 and forest.task == ["a"] * 2
    assert len(set(session.streams)) == 4


def test_at_the_limit_the_step_goes_on_with_what_it_has() -> None:
    session = ScriptedSession(by_name, pool=["w"] * 100)
    forest = DynamicSampling(group_size=2, max_batches=3).grow([Task("m1", "?"), *tasks("r")], session)
    assert forest.group == ["s3/m1"] * 2
    assert session.drawn == [2, 2]
    assert session.budget.rollouts == 12 and session.budget.discarded == 10


@pytest.mark.parametrize("max_batches", [0, -1, 30])
def test_without_a_limit_it_goes_on_until_the_tasks_end(max_batches: int) -> None:
    session = ScriptedSession(by_name, pool=[f"w{i}" for i in range(20)] + ["m1"])
    assert DynamicSampling(2, max_batches).grow(tasks("r"), session).group == ["s3/m1"] * 2
    session = ScriptedSession(by_name, pool=["w1"])
    with pytest.raises(TaskError, match="none of 2 groups has both a success and a failure"):
        DynamicSampling(2, max_batches).grow(tasks("r"), session)


def test_step_without_a_signal_is_an_error_with_a_remedy() -> None:
    session = ScriptedSession(by_name, pool=["r"] * 100)
    with pytest.raises(TaskError, match=r"none of 20 groups has both.*group_size") as caught:
        DynamicSampling(group_size=4).grow(tasks("rw"), session)
    assert "\n" not in str(caught.value)
    assert session.budget.discarded == session.budget.rollouts == 80


def test_a_batch_that_cannot_be_scored_is_replaced() -> None:
    session = ScriptedSession(by_name, pool=["m1"])
    assert DynamicSampling(group_size=2).grow(tasks("u"), session).group == ["s3/m1"] * 2


def test_dynamic_sampling_needs_verdicts_and_two_attempts() -> None:
    with pytest.raises(ConfigError, match="needs verdicts"):
        DynamicSampling(group_size=2).grow(tasks("m"), ScriptedSession(by_name, verdicts=False))
    with pytest.raises(ConfigError, match="2 or more"):
        DynamicSampling(group_size=1)
