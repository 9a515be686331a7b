"""Selecting, flattening and concatenating forests, and rollouts under the context that they were sampled in."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.forest.forest_rows import naive_ancestors, naive_visits, partition, record, seeds
from tests.learning.llamas import clean_llama
from tests.naive import view
from tests.strategies import RICH, forests, random_forest, random_records

from gxpo.forest.forest import Forest
from gxpo.learning.torch import TorchLearner

# ---------------------------------------------------------------- Selecting, flattening and concatenating forests
fewer = settings(max_examples=10, deadline=None)


# ---------------------------------------------------------------- choosing, joining, reordering
@fewer
@given(forests(**RICH), st.randoms(use_true_random=False))
def test_select_holds_exactly_those_trajectories(forest: Forest, rng: random.Random) -> None:
    trajectories = view(forest)
    rows = rng.sample(range(len(trajectories)), rng.randint(0, len(trajectories)))
    chosen = forest.select(rows)
    assert view(chosen) == [trajectories[r] for r in rows]
    reached = {n for _, n in naive_visits(chosen)} | set(chosen.prompt_node.tolist()) - {-1}
    reached |= {a for n in reached for a in naive_ancestors(chosen, int(chosen.sampled_under[n]))}
    assert reached == set(range(chosen.n_nodes))  # and nothing else is kept
    assert bool((chosen.parent < torch.arange(chosen.n_nodes)).all())
    entries = forest.entries_of(rows)
    assert torch.equal(chosen.token[chosen.path_token], forest.token[forest.path_token[entries]])
    mask = torch.zeros(len(trajectories), dtype=torch.bool)
    mask[rows] = True
    assert view(forest.select(mask)) == [trajectories[r] for r in sorted(rows)]


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


# ----------------------------------------------------------------
# Rollouts that were sampled under another context than they are trained under, and levels that rollouts note down
def record_contexts(name, turns, **more):
    return {
        "schema": "gxpo.rollouts/1",
        "group": "g",
        "id": name,
        "prompt": [3, 4],
        "turns": turns,
        "reward": 1.0,
    } | more


HINTED = record_contexts("a", [{"action": [5, 6], "logprob": [-1.0, -1.0], "sampled_under": [3, 4, 9, 9]}])
PLAIN = record_contexts("b", [{"action": [5, 7], "logprob": [-1.0, -1.0]}])


def test_a_row_is_read_under_the_context_it_was_sampled_in():
    """pi(5 6 | 3 4 9 9) for the hinted row, pi(. | 3 4) for the other: what rows with those prompts have."""
    learner = TorchLearner(clean_llama(), lr=0.0)
    forest = Forest.from_records([HINTED, PLAIN])
    trained_forest = Forest.from_records(
        [record_contexts("a", [{"action": [5, 6]}], prompt=[3, 4, 9, 9]), record_contexts("b", [{"action": [5, 7]}])]
    )
    sampled = learner.outputs(forest.in_context("sampled"))["logprob"]
    assert torch.allclose(sampled, learner.outputs(trained_forest)["logprob"], atol=1e-12, rtol=0)
    trained = learner.outputs(forest.in_context("trained"))["logprob"]
    plain = Forest.from_records(
        [record_contexts("a", [{"action": [5, 6]}]), record_contexts("b", [{"action": [5, 7]}])]
    )
    assert torch.allclose(trained, learner.outputs(plain)["logprob"], atol=1e-12, rtol=0)
    assert (sampled - trained)[:2].abs().min() > 1e-6 and torch.allclose(sampled[2:], trained[2:], atol=1e-12, rtol=0)


def test_a_split_action_follows_the_other_context_as_a_whole():
    learner = TorchLearner(clean_llama(), lr=0.0)
    fork = record_contexts("c", [{"action": [8]}], fork={"of": "a", "turn": 0, "token": 1})
    del fork["prompt"]
    forest = Forest.from_records([HINTED, fork]).in_context("sampled")
    trained_forest = Forest.from_records(
        [
            record_contexts("a", [{"action": [5, 6]}], prompt=[3, 4, 9, 9]),
            record_contexts("c", [{"action": [5, 8]}], prompt=[3, 4, 9, 9]),
        ]
    )
    assert torch.allclose(
        learner.outputs(forest)["logprob"], learner.outputs(trained_forest)["logprob"], atol=1e-12, rtol=0
    )


def test_without_such_rows_both_contexts_are_one():
    forest = Forest.from_records([PLAIN])
    assert torch.equal(forest.in_context("sampled").parent, forest.parent)
    with pytest.raises(ValueError, match="'trained' or 'sampled'"):
        forest.in_context("hinted")


def test_levels_from_what_rollouts_note_down():
    rows = [
        record_contexts(
            "a", [{"action": [5], "info": {"kind": "x"}}, {"observation": [1], "action": [6]}], info={"tree": 7}
        ),
        record_contexts("b", [{"action": [5], "info": {"kind": "y"}}], info={"tree": 7}),
        record_contexts("c", [{"action": [5], "info": {"kind": "x"}}], info={"tree": "other"}),
        record_contexts("d", [{"action": [5], "info": {"kind": "x"}}], group="h", info={"tree": 7}),
        record_contexts("e", [{"action": [5]}], group="h"),
    ]
    forest = Forest.from_records(rows)
    tree = forest.ids("group", "info.tree", axis="R").tolist()
    # a and b share a tree; d's is of another group, though it has the same name; e is in none
    assert tree[0] == tree[1] and len({tree[0], tree[2], tree[3]}) == 3 and tree[4] == -1
    assert forest.ids("info.tree").tolist() == tree
    kinds = forest.ids("step_info.kind", axis="S").tolist()  # steps: a0, a1, b0, c0, d0, e0
    assert kinds[0] == kinds[3] != kinds[2] and kinds[1] == kinds[5] == -1 and kinds[4] not in (kinds[0], -1)
    assert forest.ids("info.tree", axis="P").tolist() == [tree[0], tree[0], tree[1], tree[2], tree[3], -1]
    with pytest.raises(ValueError, match=r"step_info\.kind"):
        forest.ids("step_info.kind", axis="R")
