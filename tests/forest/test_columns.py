"""Group ids, broadcasts between axes, statistics along pointers, and checks of columns."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.forest.forest_rows import few, partition, record, seeds
from tests.strategies import forests, random_forest

from gxpo.forest.columns import sum_after, sum_before, with_ancestors
from gxpo.forest.forest import ACTION, Forest
from gxpo.forest.grouped import dense, distinct, place_in

# ---------------------------------------------------------------- ids
R_LEVELS = ("group", "trajectory", "task", "origin")
S_LEVELS = ("step", "turn", "state", "agent")
P_LEVELS = ("segment", "policy", "token")


def naive_level(f: Forest, level: str, axis: str, i: int) -> object:
    if axis == "R":
        r = i
    else:
        s = i if axis == "S" else int(f.path_step[i])
        r = int(f.step_trajectory[s])
        if level in S_LEVELS:
            column = {"turn": f.step_turn, "state": f.step_state, "agent": f.step_agent}
            return s if level == "step" else int(column[level][s])
    if level in R_LEVELS:
        return {"group": f.group, "task": f.task, "origin": f.origin, "trajectory": range(10**6)}[level][r]
    t = int(f.path_token[i])
    return {"segment": int(f.segment[t]), "policy": int(f.policy[f.token_node[t]]), "token": t}[level]


@few
@given(forests(), st.data())
def test_ids_are_those_of_a_dictionary(forest: Forest, data: st.DataObject) -> None:
    axis = data.draw(st.sampled_from("RSP"))
    levels_of_axis = {"R": R_LEVELS, "S": R_LEVELS + S_LEVELS, "P": R_LEVELS + S_LEVELS + P_LEVELS}[axis]
    levels = data.draw(st.lists(st.sampled_from(levels_of_axis), max_size=3))
    names: dict[tuple, int] = {}
    expected = []
    for i in range({"R": forest.n_trajectories, "S": forest.n_steps, "P": forest.n_entries}[axis]):
        key = tuple(naive_level(forest, level, axis, i) for level in ("group", *levels))
        expected.append(-1 if -1 in key else names.setdefault(key, len(names)))
    ids = forest.ids(*levels, axis=axis)
    assert ids.dtype == torch.int64
    assert partition(ids) == expected
    assert not len(ids) or int(ids.max()) < max(len(ids), forest.n_trajectories)


@few
@given(forests())
def test_group_ids_are_the_same_on_every_axis(forest: Forest) -> None:
    group = forest.ids("group", axis="R")
    assert torch.equal(forest.ids("group", axis="P"), forest.to_path(group, "R"))
    assert torch.equal(forest.ids("group", axis="S"), group[forest.step_trajectory])


def test_ids_take_the_coarsest_axis_that_has_the_levels() -> None:
    f = random_forest(1)
    assert len(f.ids("group")) == len(f.ids()) == f.n_trajectories
    assert len(f.ids("group", "state")) == f.n_steps
    assert len(f.ids("turn", "segment")) == f.n_entries


def test_equal_states_of_two_groups_have_different_ids() -> None:
    turns = [{"action": [1], "state": "s", "observation": [5]}]
    f = Forest.from_records([record(f"t{i}", f"g{i % 2}", turns, prompt=[9]) for i in range(4)])
    assert partition(f.ids("state")) == [0, 1, 0, 1]
    assert len(set(f.group)) == 2 and f.ids("group").tolist() == [0, 1, 0, 1]
    assert (f.kind != ACTION).sum() == 2  # one prompt and one observation are stored once all the same


def test_unknown_levels_and_axes_are_refused() -> None:
    f = random_forest(1)
    with pytest.raises(ValueError, match="'stat' does not exist on axis S; there are group"):
        f.ids("stat", axis="S")
    with pytest.raises(ValueError, match="'state' does not exist on axis R"):
        f.ids("state", axis="R")
    with pytest.raises(ValueError, match="not 'Q'"):
        f.ids(axis="Q")
    with pytest.raises(ValueError, match="not 'P'"):
        f.to_path(torch.zeros(f.n_entries), "P")
    with pytest.raises(ValueError, match="axis R of this forest has"):
        f.to_path(torch.zeros(f.n_trajectories + 1), "R")


# ---------------------------------------------------------------- broadcasting
@few
@given(forests())
def test_to_path_follows_the_indices(forest: Forest) -> None:
    first = forest.first_token.tolist()
    for axis, n in (("R", forest.n_trajectories), ("S", forest.n_steps), ("N", forest.n_nodes), ("T", forest.n_tokens)):
        x = torch.rand(n)
        given_ = forest.to_path(x, axis).tolist()
        for p in range(forest.n_entries):
            t = int(forest.path_token[p])
            node = max(n for n in range(forest.n_nodes) if first[n] <= t < first[n + 1])
            row = {"R": int(forest.path_trajectory[p]), "S": int(forest.path_step[p]), "N": node, "T": t}[axis]
            assert given_[p] == x[row].item()


@few
@given(forests())
def test_entries_of_a_trajectory_and_lengths(forest: Forest) -> None:
    lengths = forest.lengths()
    for r in range(forest.n_trajectories):
        entries = forest.path_of(r)
        assert entries.tolist() == [p for p in range(forest.n_entries) if forest.path_trajectory[p] == r]
        assert lengths[r] == forest.path_trainable[entries].sum()


def backwards(raw: list[int]) -> torch.Tensor:
    """A column that leads to earlier rows, or to none."""
    return torch.tensor([min(p, i - 1) for i, p in enumerate(raw)], dtype=torch.int64)


@given(st.lists(st.integers(-1, 30), max_size=31), st.sampled_from([0.0, 0.5, 0.9, 1.0]), seeds)
def test_sums_over_what_leads_to_a_row_and_what_it_leads_to(raw: list[int], discount: float, seed: int) -> None:
    previous = backwards(raw)
    x = torch.rand(len(raw), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    after, before = x.tolist(), [0.0] * len(raw)
    for i in range(len(raw) - 1, -1, -1):
        if previous[i] >= 0:
            after[int(previous[i])] += discount * after[i]
    for i, p in enumerate(previous.tolist()):
        if p >= 0:
            before[i] = float(x[p]) + before[p]
    assert sum_after(previous, x, discount).tolist() == pytest.approx(after, rel=1e-12)
    assert sum_before(previous, x).tolist() == pytest.approx(before, rel=1e-12)


@given(st.lists(st.integers(-1, 30), max_size=31), st.lists(st.tuples(st.integers(0, 4), st.integers(0, 30))))
def test_ancestors_are_found_whatever_lies_between(raw: list[int], pairs: list[tuple[int, int]]) -> None:
    parent, expected = backwards(raw), set()
    pairs = [(owner, node) for owner, node in pairs if node < len(raw)]
    for owner, node in pairs:
        while node >= 0:
            expected.add((owner, node))
            node = int(parent[node])
    owners, nodes = (torch.tensor([pair[k] for pair in pairs], dtype=torch.int64) for k in (0, 1))
    extended = with_ancestors(parent, owners, nodes)
    assert list(zip(*(x.tolist() for x in extended), strict=True)) == sorted(expected)


KEYS = st.one_of(st.integers(-3, 20), st.integers(-3, 20).map(lambda k: k << 57), st.integers(0, 10**12))


@given(st.lists(KEYS, max_size=30), st.lists(KEYS, max_size=30))
def test_keys_near_and_far_apart_are_numbered_in_order(raw: list[int], others: list[int]) -> None:
    keys, order = torch.tensor(raw, dtype=torch.int64), sorted(set(raw))
    assert distinct(keys).tolist() == order
    assert dense(keys).tolist() == [order.index(k) for k in raw]
    queries = torch.tensor(raw + others, dtype=torch.int64)
    expected = [order.index(k) if k in order else -1 for k in raw + others]
    assert place_in(torch.tensor(order, dtype=torch.int64), queries).tolist() == expected


# ---------------------------------------------------------------- scores, edges
def test_scored_is_derived_from_the_outcome() -> None:
    f = Forest.from_records([record("a", reward=0.0), record("b", reward=None), record("c")])
    assert f.scored.tolist() == [True, False, False]
    g = f.with_rewards(torch.tensor([float("nan"), 1.0, 2.0]), components={"x": torch.zeros(3)}, success=torch.ones(3))
    assert g.scored.tolist() == [False, True, True] and g.component_names == ("x",)
    assert f.scored.tolist() == [True, False, False]
    with pytest.raises(ValueError, match="outcome has 2 rows"):
        f.with_rewards(torch.zeros(2))


def test_columns_of_other_lengths_are_refused() -> None:
    f = random_forest(1)
    for name, axis in (("behaviour_logprob", "T"), ("step_reward", "S"), ("outcome", "R"), ("id", "R"), ("kind", "N")):
        with pytest.raises(ValueError, match=f"{name} has .* rows; axis {axis}"):
            f.replace(**{name: getattr(f, name)[:-1]})
    with pytest.raises(ValueError, match="components"):
        f.replace(component_names=("a", "b", "c", "d", "e"))
