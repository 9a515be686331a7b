"""Nodes that forks cut, and the columns of the trajectories that share them."""

from __future__ import annotations

import pytest
from tests.forest.record_rows import fork, record
from tests.naive import view

from gxpo.forest.forest import OBSERVATION, Forest


def actions(forest: Forest) -> list[list[list[int]]]:
    return [[[t["token"] for t in s["tokens"]] for s in t["steps"]] for t in view(forest)]


def test_e2_context_is_shared_when_equal_actions_only_by_fork() -> None:
    turns = [{"observation": [8], "action": [1, 2]}, {"observation": [9], "action": [3]}]
    f = Forest.from_records([record("a", turns, prompt=[7]), record("b", turns, prompt=[7])])
    assert f.n_tokens == 2 + 2 * 2 + 2 * 1 + 2 * 1  # prompt and first observation once; all after an action twice
    assert not set(f.path_token[f.path_of(0)].tolist()) & set(f.path_token[f.path_of(1)].tolist())
    forked = Forest.from_records([record("a", turns, prompt=[7]), fork("a", 0, None, turns[1:])])
    assert forked.n_tokens == 2 + 2 + 1 + 2  # the action by fork, then the equal observation after it
    assert view(forked)[1]["steps"] == view(f)[1]["steps"]


@pytest.mark.parametrize("token", [0, 1, 2, 3])
def test_e3_a_fork_splits_its_node(token: int) -> None:
    turns = [
        {"observation": [8], "action": [1, 2, 3], "reward": 0.5, "finish": "stop", "info": {"k": 1}, "state": "s"},
        {"observation": [9], "action": [4], "caller": 0},
    ]
    forked_turn = {"action": [5, 6], "reward": -1.0}
    f = Forest.from_records(
        [record("a", turns, prompt=[7], reward=1.0), fork("a", 0, token, [forked_turn], reward=2.0)]
    )
    assert actions(f) == [[[1, 2, 3], [4]], [[*[1, 2, 3][:token], 5, 6]]]
    assert f.step_turn.tolist() == [0, 1, 0]
    assert f.step_reward.nan_to_num(9).tolist() == [0.5, 9, -1.0]
    assert f.step_finish == ["stop", None, None] and f.step_info == [{"k": 1}, {}, {}]
    nodes = f.step_nodes(0)
    assert len(nodes) == (2 if token in (1, 2) else 1) and f.turn[nodes].tolist() == [0] * len(nodes)
    assert f.step_action[0] == nodes[-1]
    assert f.caller[f.step_action[1]] == f.previous[f.step_action[1]] == nodes[-1]
    assert f.state_names[int(f.step_state[2])] == "s"
    assert f.n_tokens == 2 + 3 + 2 + 2  # the observation is shared at token 0 too
    assert f.outcome.tolist() == [1.0, 2.0]


def test_e3_forks_of_forks_and_into_another_group() -> None:
    f = Forest.from_records(
        [
            record("a", [{"action": [1, 2, 3, 4]}], prompt=[7]),
            fork("a", 0, 3, [{"action": [5, 6], "agent": "b", "policy_version": 4}], "b"),
            fork("b", 0, 4, [{"action": [8]}, {"action": [9]}], "c", group="other"),  # 1 2 3 | 5 | 8
            fork("c", 0, 2, [{"action": []}], "d"),  # ends inside an action
            fork("c", 1, None, [], "e"),  # the same actions, another outcome
        ]
    )
    assert actions(f) == [[[1, 2, 3, 4]], [[1, 2, 3, 5, 6]], [[1, 2, 3, 5, 8], [9]], [[1, 2]], [[1, 2, 3, 5, 8], [9]]]
    assert f.n_tokens == 1 + 4 + 2 + 1 + 1
    assert [f.agent_names[i] for i in f.step_agent] == ["agent", "b", "b", "agent", "b", "b", "agent"]
    assert f.policy_version[f.token_node[f.path_token[f.path_of(2)]]].tolist() == [0, 0, 0, 4, 4, 0]
    assert f.group == ["g", "g", "other", "g", "g"]


def test_e3_token_null_keeps_the_turn_with_its_reward() -> None:
    turns = [{"action": [1], "reward": 0.5, "finish": "stop"}, {"action": [2]}]
    base = record("a", turns, reward=1.0, rewards={"x": 1.0}, success=True, final_state="s", final_observation=[3])
    f = Forest.from_records([base, fork("a", 0, None, [{"observation": [9], "action": [4]}])])
    assert actions(f)[1] == [[1], [4]]
    assert f.step_reward[2] == 0.5 and f.step_finish[2] == "stop"
    assert not f.scored[1] and f.success[1].isnan() and f.components[1].isnan().all()
    assert f.final_state[1] is None and f.final_observation[1] == []


def test_segments_and_where_a_fork_goes_on_in_one() -> None:
    base = record("a", [{"action": [1, 2, 3, 4], "segments": [0, 2]}])
    f = Forest.from_records(
        [
            base,
            fork("a", 0, 3, [{"action": [5, 6]}], "same"),
            fork("a", 0, 3, [{"action": [5, 6], "segments": [1]}], "next"),
            record("none"),
        ]
    )
    assert f.segment[f.path_token].tolist() == [0, 0, 1, 1] + [0, 0, 1, 1, 1] + [0, 0, 1, 1, 2] + [-1] * 3
    assert f.ids("trajectory", "segment").tolist()[-3:] == [-1, -1, -1]


def test_equal_observations_with_other_media_are_not_shared() -> None:
    turns = [[{"observation": [8], "action": [1], "media": media}] for media in (["a.png"], ["b.png"], [], ["a.png"])]
    f = Forest.from_records([record(f"t{i}", t, prompt=[7]) for i, t in enumerate(turns)])
    assert [t["steps"][0]["media"] for t in view(f)] == [["a.png"], ["b.png"], [], ["a.png"]]
    assert (f.kind == OBSERVATION).sum() == 3
