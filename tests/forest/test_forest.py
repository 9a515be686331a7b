from __future__ import annotations

import random
from collections import defaultdict
from itertools import combinations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.naive import view
from tests.strategies import RICH, forests, random_forest, random_records

from gxpo.forest.columns import sum_after, sum_before, with_ancestors
from gxpo.forest.forest import ACTION, Forest
from gxpo.forest.grouped import dense, distinct, place_in

few = settings(max_examples=25, deadline=None)
fewer = settings(max_examples=10, deadline=None)
seeds = st.integers(0, 2**32 - 1)


def partition(ids: torch.Tensor) -> list[int]:
    """Ids renamed by first appearance; -1 stays."""
    names: dict[int, int] = {}
    return [-1 if i < 0 else names.setdefault(i, len(names)) for i in ids.tolist()]


def record(id: str = "t0", group: str = "g", turns: list | None = None, **more: object) -> dict:
    turns = [{"action": [1, 2]}] if turns is None else turns
    return {"schema": "gxpo.rollouts/1", "group": group, "id": id, "turns": turns, **more}


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
    known = {"R": R_LEVELS, "S": R_LEVELS + S_LEVELS, "P": R_LEVELS + S_LEVELS + P_LEVELS}[axis]
    levels = data.draw(st.lists(st.sampled_from(known), max_size=3))
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


def test_equal_states_and_equal_prompts_of_two_groups_do_not_meet() -> None:
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
def test_to_tokens_is_the_mean_of_a_tokens_entries(forest: Forest) -> None:
    x = torch.rand(forest.n_entries, dtype=torch.float64)
    found = defaultdict(list)
    for p, t in enumerate(forest.path_token.tolist()):
        found[t].append(x[p].item())
    shown = forest.to_tokens(x)
    for t in range(forest.n_tokens):
        assert shown[t].isnan() if t not in found else abs(shown[t] - sum(found[t]) / len(found[t])) < 1e-12


@few
@given(forests())
def test_entries_of_a_trajectory_and_lengths(forest: Forest) -> None:
    lengths = forest.lengths()
    for r in range(forest.n_trajectories):
        entries = forest.path_of(r)
        assert entries.tolist() == [p for p in range(forest.n_entries) if forest.path_trajectory[p] == r]
        assert lengths[r] == forest.path_trainable[entries].sum()


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


# ---------------------------------------------------------------- trees
def naive_ancestors(forest: Forest, node: int) -> list[int]:
    return [] if node < 0 else [*naive_ancestors(forest, int(forest.parent[node])), node]


def naive_visits(forest: Forest) -> set[tuple[int, int]]:
    return {
        (int(forest.step_trajectory[s]), n)
        for s in range(forest.n_steps)
        for n in naive_ancestors(forest, int(forest.step_action[s]))
    }


@few
@given(forests())
def test_visits_are_all_nodes_on_the_way_of_a_trajectory(forest: Forest) -> None:
    r, node = forest.visits
    assert list(zip(r.tolist(), node.tolist(), strict=True)) == sorted(naive_visits(forest))


@few
@given(forests())
def test_subtree_mean_is_over_scored_compared_members_of_one_group(forest: Forest) -> None:
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
def test_ancestors_are_found_whatever_lies_between(raw: list[int], asked: list[tuple[int, int]]) -> None:
    parent, expected = backwards(raw), set()
    asked = [(owner, node) for owner, node in asked if node < len(raw)]
    for owner, node in asked:
        while node >= 0:
            expected.add((owner, node))
            node = int(parent[node])
    owners, nodes = (torch.tensor([pair[k] for pair in asked], dtype=torch.int64) for k in (0, 1))
    found = with_ancestors(parent, owners, nodes)
    assert list(zip(*(x.tolist() for x in found), strict=True)) == sorted(expected)


KEYS = st.one_of(st.integers(-3, 20), st.integers(-3, 20).map(lambda k: k << 57), st.integers(0, 10**12))


@given(st.lists(KEYS, max_size=30), st.lists(KEYS, max_size=30))
def test_keys_near_and_far_apart_are_numbered_in_order(raw: list[int], others: list[int]) -> None:
    keys, order = torch.tensor(raw, dtype=torch.int64), sorted(set(raw))
    assert distinct(keys).tolist() == order
    assert dense(keys).tolist() == [order.index(k) for k in raw]
    asked = torch.tensor(raw + others, dtype=torch.int64)
    expected = [order.index(k) if k in order else -1 for k in raw + others]
    assert place_in(torch.tensor(order, dtype=torch.int64), asked).tolist() == expected


# ---------------------------------------------------------------- choosing, joining, reordering
@fewer
@given(forests(**RICH), st.randoms(use_true_random=False))
def test_select_holds_exactly_those_trajectories(forest: Forest, rng: random.Random) -> None:
    whole = view(forest)
    rows = rng.sample(range(len(whole)), rng.randint(0, len(whole)))
    chosen = forest.select(rows)
    assert view(chosen) == [whole[r] for r in rows]
    reached = {n for _, n in naive_visits(chosen)} | set(chosen.prompt_node.tolist()) - {-1}
    reached |= {a for n in reached for a in naive_ancestors(chosen, int(chosen.sampled_under[n]))}
    assert reached == set(range(chosen.n_nodes))  # and nothing else is kept
    assert bool((chosen.parent < torch.arange(chosen.n_nodes)).all())
    entries = forest.entries_of(rows)
    assert torch.equal(chosen.token[chosen.path_token], forest.token[forest.path_token[entries]])
    mask = torch.zeros(len(whole), dtype=torch.bool)
    mask[rows] = True
    assert view(forest.select(mask)) == [whole[r] for r in sorted(rows)]


@fewer
@given(seeds, st.randoms(use_true_random=False))
def test_selecting_is_building_from_the_selected_records(seed: int, rng: random.Random) -> None:
    records = random_records(seed, mixed_turns=False, forks=False)
    rows = sorted(rng.sample(range(len(records)), rng.randint(1, len(records))))
    built, chosen = Forest.from_records([records[r] for r in rows]), Forest.from_records(records).select(rows)
    assert view(built) == view(chosen)
    assert built.n_tokens == chosen.n_tokens
    for levels in (("state",), ("agent", "turn"), ("segment", "step")):
        assert partition(built.ids(*levels)) == partition(chosen.ids(*levels))
    assert torch.equal(built.returns(0.9), chosen.returns(0.9))


@fewer
@given(forests(**RICH))
def test_flatten_shares_nothing_and_changes_nothing(forest: Forest) -> None:
    flat = forest.flatten()
    assert view(flat) == view(forest)
    _, visited = flat.visits
    assert len(visited.unique()) == len(visited)  # no node is on the way of two trajectories
    assert bool((flat.parent < torch.arange(flat.n_nodes)).all())
    same = [
        n for n in ("path_step", "path_trajectory", "step_trajectory", "step_previous", "step_state", "step_reward")
    ]
    for name in (*same, "outcome", "components", "success", "weight"):
        torch.testing.assert_close(getattr(flat, name), getattr(forest, name), equal_nan=True, rtol=0, atol=0)
    assert torch.equal(flat.path_trainable, forest.path_trainable)
    assert torch.equal(flat.path_behaviour_logprob.nan_to_num(1), forest.path_behaviour_logprob.nan_to_num(1))
    for levels in (("group",), ("state",), ("segment", "turn"), ("policy",), ("agent", "turn")):
        assert torch.equal(flat.ids(*levels, axis="P"), forest.ids(*levels, axis="P"))
    assert torch.equal(flat.returns(0.9), forest.returns(0.9))


@fewer
@given(forests(**RICH), forests())
def test_concat_holds_all_trajectories(one: Forest, two: Forest) -> None:
    both = Forest.concat([one, two])
    expected = view(one) + view(two)
    assert [{**t, "id": ""} for t in view(both)] == [{**t, "id": ""} for t in expected]
    assert len(set(both.id)) == len(both.id) and both.id[: one.n_trajectories] == one.id
    again = both.select(range(one.n_trajectories, both.n_trajectories))
    assert [t["steps"] for t in view(again)] == [t["steps"] for t in view(two)]
    assert Forest.concat([one]) is one and Forest.concat([]).n_trajectories == 0


def test_concat_renames_ids_that_collide_and_only_those() -> None:
    forests_ = [Forest.from_records([record("a"), record(f"a+{i}")]) for i in (1, 2, 5)]
    assert Forest.concat(forests_).id == ["a", "a+1", "a+3", "a+2", "a+4", "a+5"]


def test_concat_refuses_tensors_of_two_kinds() -> None:
    one, two = (Forest.from_records([record(turns=[{"action": [1], "extras": {"x": torch.zeros(1, dtype=d)}}])])
                for d in (torch.float32, torch.int64))  # fmt: skip
    with pytest.raises(ValueError, match=r"extras\['x'\] differ"):
        Forest.concat([one, two])


@fewer
@given(seeds, st.randoms(use_true_random=False))
def test_order_of_records_and_groups_does_not_matter(seed: int, rng: random.Random) -> None:
    records = random_records(seed, **RICH)
    left, shuffled = list(records), []
    while left:  # any order in which a base stands before its forks
        ready = [r for r in left if "fork" not in r or r["fork"]["of"] in {s["id"] for s in shuffled}]
        shuffled.append(rng.choice(ready))
        left.remove(shuffled[-1])
    one, two = Forest.from_records(records), Forest.from_records(shuffled)
    places = [one.id.index(i) for i in two.id]
    first = view(one)
    assert view(two) == [first[r] for r in places]
    assert one.n_tokens == two.n_tokens and one.n_nodes == two.n_nodes
    entries = one.entries_of(places)
    for levels in (("group",), ("state",), ("agent", "turn"), ("token",)):
        assert partition(two.ids(*levels, axis="P")) == partition(one.ids(*levels, axis="P")[entries])
    mean = one.subtree_mean(one.outcome, "P")[entries]
    places_of = two.subtree_mean(two.outcome, "P")
    torch.testing.assert_close(places_of, mean, equal_nan=True, rtol=0, atol=1e-12)


def test_rows_that_can_not_be_selected() -> None:
    f = random_forest(3)
    with pytest.raises(ValueError, match="twice"):
        f.select([0, 0])
    with pytest.raises(ValueError, match="trajectories"):
        f.select([f.n_trajectories])
    with pytest.raises(ValueError, match="trajectories"):
        f.select([-1])
    with pytest.raises(ValueError, match="mask"):
        f.select(torch.ones(f.n_trajectories + 1, dtype=torch.bool))
    assert f.select(range(f.n_trajectories)) is f


# ---------------------------------------------------------------- scores, edges
def test_scored_is_derived_from_the_outcome() -> None:
    f = Forest.from_records([record("a", reward=0.0), record("b", reward=None), record("c")])
    assert f.scored.tolist() == [True, False, False]
    g = f.with_rewards(torch.tensor([float("nan"), 1.0, 2.0]), components={"x": torch.zeros(3)}, success=torch.ones(3))
    assert g.scored.tolist() == [False, True, True] and g.component_names == ("x",)
    assert f.scored.tolist() == [True, False, False]
    with pytest.raises(ValueError, match="outcome has 2 rows"):
        f.with_rewards(torch.zeros(2))


@pytest.mark.parametrize("empty", [Forest.from_records([]), random_forest(1).select([])], ids=["built", "selected"])
def test_a_forest_without_trajectories(empty: Forest) -> None:
    assert (empty.n_trajectories, empty.n_steps, empty.n_entries, empty.n_tokens) == (0, 0, 0, 0)
    assert empty.to_records() == [] and empty.flatten().n_nodes == 0
    assert empty.returns(0.9).shape == empty.lengths().shape == empty.scored.shape == (0,)
    for axis in "RSP":
        assert empty.ids("group", axis=axis).shape == (0,)
    assert empty.ids("state", "segment", "policy", axis="P").shape == (0,)
    assert empty.to_path(torch.zeros(0), "N").shape == empty.to_tokens(torch.zeros(0)).shape == (0,)
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


def test_columns_of_other_lengths_are_refused() -> None:
    f = random_forest(1)
    for name, axis in (("behaviour_logprob", "T"), ("step_reward", "S"), ("outcome", "R"), ("id", "R"), ("kind", "N")):
        with pytest.raises(ValueError, match=f"{name} has .* rows; axis {axis}"):
            f.replace(**{name: getattr(f, name)[:-1]})
    with pytest.raises(ValueError, match="components"):
        f.replace(component_names=("a", "b", "c", "d", "e"))


def test_a_trajectory_of_many_turns() -> None:
    turns = [{"action": [1, 2], "observation": [3], "reward": 1.0} for _ in range(2000)]
    f = Forest.from_records([record(turns=turns, reward=1.0), record("u", turns=turns[:10], reward=1.0)])
    assert f.returns(1.0)[:3].tolist() == [2000, 1999, 1998]
    assert f.pack().position.max() == 3 * 2000 - 1
    assert f.visits[0].numel() == 2 * 2000 + 2 * 10 and f.n_nodes == f.visits[0].numel() - 1
    assert f.select([1]).n_steps == 10 and len(f.to_records()[0]["turns"]) == 2000
