from __future__ import annotations

from collections import defaultdict
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.forest.forest_rows import few, naive_visits, record
from tests.naive import view
from tests.strategies import forests, random_forest

from gxpo.forest.forest import ACTION, Forest


# ---------------------------------------------------------------- returns (E6)
def naive_returns(forest: Forest, discount: float) -> list[float]:
    out = []
    for trajectory in view(forest):
        steps, outcome = trajectory["steps"], trajectory["reward"]
        paid = any(s["reward"] is not None for s in steps)
        gain = [s["reward"] or 0.0 for s in steps]
        if not paid and outcome is not None:
            gain[-1] = outcome
        if outcome is None:
            gain = [0.0] * len(steps)

        def total(i: int, steps: list = steps, gain: list = gain) -> float:
            return gain[i] + discount * sum(total(j) for j in range(len(steps)) if steps[j]["before"] == i)

        out += [total(i) for i in range(len(steps))]
    return out


@few
@given(forests(max_turns=6), st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_returns_are_those_of_the_definition(forest: Forest, discount: float) -> None:
    torch.testing.assert_close(
        forest.returns(discount), torch.tensor(naive_returns(forest, discount), dtype=torch.float64), rtol=0, atol=1e-12
    )


def test_returns_use_step_rewards_or_the_outcome_never_both() -> None:
    three = [{"action": [1]}, {"action": [2]}, {"action": [3]}]
    paid = [{"action": [1], "reward": 1.0}, {"action": [2]}, {"action": [3], "reward": 4.0}]
    f = Forest.from_records(
        [
            record("outcome", turns=three, reward=8.0),  # 8 on the last turn: 2, 4, 8
            record("paid", turns=paid, reward=100.0),  # 1 + (0 + 4/2)/2, 0 + 4/2, 4
            record("unscored", turns=paid, reward=None),
        ]
    )
    assert f.returns(0.5).tolist() == [2, 4, 8, 2, 2, 4, 0, 0, 0]


def test_returns_under_after_collect_all_that_follows() -> None:
    turns = [
        {"action": [1]},
        {"action": [2], "reward": 2.0},
        {"action": [3], "reward": 4.0, "after": 0},
        {"action": [4], "reward": 8.0, "after": 1},
    ]
    f = Forest.from_records([record(turns=turns, reward=0.0)])
    assert f.step_previous.tolist() == [-1, 0, 0, 1]
    assert f.returns(0.5).tolist() == [0.5 * (2 + 4) + 0.25 * 8, 2 + 4, 4, 8]


@few
@given(forests())
def test_visits_are_all_nodes_on_the_way_of_a_trajectory(forest: Forest) -> None:
    r, node = forest.visits
    assert list(zip(r.tolist(), node.tolist(), strict=True)) == sorted(naive_visits(forest))


@few
@given(forests())
def test_subtree_mean_is_over_scored_compared_members(forest: Forest) -> None:
    x = torch.rand(forest.n_trajectories, dtype=torch.float64)
    visitors = defaultdict(list)
    for r, n in naive_visits(forest):
        visitors[n].append(r)

    def mean(node: int, group: str) -> float:
        rows = [r for r in visitors[node] if forest.group[r] == group and forest.scored[r] and forest.compared[r]]
        return sum(float(x[r]) for r in rows) / len(rows) if rows else float("nan")

    def close(a: torch.Tensor, b: list[float]) -> None:
        torch.testing.assert_close(a, torch.tensor(b, dtype=torch.float64), equal_nan=True, rtol=0, atol=1e-12)

    groups = [{forest.group[r] for r in visitors[n]} for n in range(forest.n_nodes)]
    close(forest.subtree_mean(x), [mean(n, *g) if len(g) == 1 else float("nan") for n, g in enumerate(groups)])
    group_of = [forest.group[r] for r in forest.step_trajectory.tolist()]
    close(forest.subtree_mean(x, "S"), [mean(int(n), group_of[s]) for s, n in enumerate(forest.step_action)])
    nodes = forest.token_node[forest.path_token].tolist()
    close(
        forest.subtree_mean(x, "P"), [mean(n, group_of[int(s)]) for n, s in zip(nodes, forest.path_step, strict=True)]
    )


@few
@given(forests())
def test_siblings_share_a_parent_and_a_group(forest: Forest) -> None:
    groups = defaultdict(set)
    for r, n in naive_visits(forest):
        groups[n].add(forest.group[r])
    ids = forest.siblings()
    branch = [forest.kind[n] == ACTION and forest.parent[n] >= 0 and len(groups[n]) == 1 for n in range(forest.n_nodes)]
    assert [bool(i >= 0) for i in ids] == branch
    for a, b in combinations([n for n in range(forest.n_nodes) if branch[n]], 2):
        assert (ids[a] == ids[b]) == (forest.parent[a] == forest.parent[b] and groups[a] == groups[b])


def test_a_fork_inside_an_action_makes_siblings_of_what_follows() -> None:
    f = Forest.from_records(
        [
            record("a", prompt=[7], turns=[{"action": [1, 2, 3]}], reward=1.0),
            record("b", fork={"of": "a", "turn": 0, "token": 1}, turns=[{"action": [4]}], reward=0.0),
            record("c", fork={"of": "b", "turn": 0, "token": 2}, turns=[{"action": [5]}], reward=None),
        ]
    )
    assert [f.action(s) for s in range(3)] == [[1, 2, 3], [1, 4], [1, 4, 5]]
    assert (f.n_tokens, f.n_entries) == (1 + 3 + 1 + 1, 3 + 2 + 3)
    half, rest, other, third = 1, 2, 3, 4
    ids = f.siblings().tolist()
    assert ids[rest] == ids[other] and len({ids[half], ids[rest], ids[third]}) == 3 and ids[0] == -1
    assert f.subtree_mean(f.outcome).nan_to_num(9.0).tolist() == [0.5, 0.5, 1.0, 0.0, 9.0]
    assert f.path(third).tolist() == [0, half, other, third]
    assert f.context(other) == [7, 1, 4]


@pytest.mark.parametrize("empty", [Forest.from_records([]), random_forest(1).select([])], ids=["built", "selected"])
def test_a_forest_without_trajectories(empty: Forest) -> None:
    assert (empty.n_trajectories, empty.n_steps, empty.n_entries, empty.n_tokens) == (0, 0, 0, 0)
    assert empty.to_records() == [] and empty.flatten().n_nodes == 0
    assert empty.returns(0.9).shape == empty.lengths().shape == empty.scored.shape == (0,)
    for axis in "RSP":
        assert empty.ids("group", axis=axis).shape == (0,)
    assert empty.ids("state", "segment", "policy", axis="P").shape == (0,)
    assert empty.to_path(torch.zeros(0), "N").shape == (0,)
    assert empty.subtree_mean(torch.zeros(0)).shape == empty.siblings().shape == (0,)
    assert empty.subtree_mean(torch.zeros(0), "P").shape == empty.visits[0].shape == (0,)
    assert empty.pack().position.shape == (0,) and empty.pack().mask(torch.zeros(0, dtype=torch.int64)).shape == (0, 0)
    assert empty.select([]).n_nodes == empty.select(torch.zeros(0, dtype=torch.bool)).n_nodes == 0
    assert Forest.concat([empty, random_forest(1)]).n_trajectories == random_forest(1).n_trajectories


def test_trajectories_without_tokens_or_without_trainable_tokens() -> None:
    f = Forest.from_records(
        [
            record("empty", turns=[{"action": []}], reward=1.0),
            record("frozen", turns=[{"action": [1, 2], "trainable": False}], reward=1.0),
            record("both", turns=[{"action": []}, {"action": [3]}], reward=1.0),
        ]
    )
    assert f.lengths().tolist() == [0, 0, 1]
    assert f.path_of(0).numel() == 0 and f.path_of(1).tolist() == [0, 1]
    assert f.returns(0.5).tolist() == [1, 1, 0.5, 1]
    assert f.ids("turn", axis="P").shape == (3,)
    assert f.pack().predecessor.tolist() == [-1, 0, -1]


def test_a_trajectory_of_many_turns() -> None:
    turns = [{"action": [1, 2], "observation": [3], "reward": 1.0} for _ in range(2000)]
    f = Forest.from_records([record(turns=turns, reward=1.0), record("u", turns=turns[:10], reward=1.0)])
    assert f.returns(1.0)[:3].tolist() == [2000, 1999, 1998]
    assert f.pack().position.max() == 3 * 2000 - 1
    assert f.visits[0].numel() == 2 * 2000 + 2 * 10 and f.n_nodes == f.visits[0].numel() - 1
    assert f.select([1]).n_steps == 10 and len(f.to_records()[0]["turns"]) == 2000
