"""SALT: equal steps of different trajectories have their mean credit."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.credit.walks import walks_of, wandering

import gxpo
from gxpo.algorithms.credit import GroupRelative
from gxpo.algorithms.credit.state_relative import shared_edges
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.parts.registry import CREDITS

SharedEdges = CREDITS["shared_edges"]

SEEDS = st.integers(0, 10**6)


def paths(rows, **fields) -> Forest:
    """(reward, [(state, action token), ...], last state) of one group."""
    return Forest.from_records(
        {
            "schema": "gxpo.rollouts/1",
            "group": "g",
            "id": str(i),
            "prompt": [1],
            "reward": reward,
            "turns": [{"observation": [2], "action": [a], "state": s} for s, a in steps],
            "final_state": final,
            **fields,
        }
        for i, (reward, steps, final) in enumerate(rows)
    )


CARD = [
    (1.0, [("s0", 10), ("s1", 11)], "s2"),
    (0.0, [("s0", 10), ("s1", 12)], "s3"),
    (0.0, [("s0", 13), ("s4", 14)], "s5"),
    (1.0, [("s0", 10), ("s1", 11)], "s2"),
]


def test_the_card():
    """GRPO gives +-.866024 (mean 1/2, std .577350); the first step of three: (.866024 - .866024 + .866024) / 3."""
    actual = SharedEdges(history=0)(paths(CARD), {}, 0)
    a, third = 0.866024, 0.288675
    expected = [third, a, third, -a, -a, -a, third, a]
    assert actual.tolist() == pytest.approx(expected, abs=1e-6)
    assert torch.equal(SharedEdges()(paths(CARD), {}, 0), actual)  # here the histories are equal as well
    rloo = SharedEdges(center="leave_one_out", scale="none")(paths(CARD), {}, 0)
    assert rloo.tolist() == pytest.approx([2 / 9, 2 / 3, 2 / 9, -2 / 3, -2 / 3, -2 / 3, 2 / 9, 2 / 3])


def test_what_makes_edges_equal():
    base = [(1.0, [("s", 3), ("t", 4)], "u"), (0.0, [("s", 3), ("t", 4)], "u")]
    merged = SharedEdges()(paths(base), {}, 0)
    assert merged.tolist() == [0.0] * 4
    grpo = GroupRelative()(paths(base), {}, 0)
    other = {
        "another action": [base[0], (0.0, [("s", 3), ("t", 5)], "u")],
        "another next state": [base[0], (0.0, [("s", 3), ("t", 4)], "v")],
        "an unknown next state": [(1.0, base[0][1], None), (0.0, base[1][1], None)],
    }
    for rows in other.values():
        actual = SharedEdges()(paths(rows), {}, 0)
        assert actual[[0, 2]].tolist() == [0.0, 0.0] and torch.equal(actual[[1, 3]], grpo[[1, 3]])
    # from another state to t: the same last step without history only
    rows = [base[0], (0.0, [("r", 3), ("t", 4)], "u")]
    assert torch.equal(SharedEdges()(paths(rows), {}, 0), grpo)
    assert SharedEdges(history=0)(paths(rows), {}, 0)[[1, 3]].tolist() == [0.0, 0.0]


@given(SEEDS, st.integers(0, 2))
def test_it_agrees_with_a_loop(seed, history):
    forest = wandering(seed)
    own_values = {}
    for row, value in zip(forest.path_step.tolist(), GroupRelative()(forest, {}, 0).tolist(), strict=True):
        own_values[row] = value
    keys, members = {}, {}
    for walk in walks_of(forest):
        names = [m.state for m in walk.moves]
        for t, move in enumerate(walk.moves):
            if move.after is None or move.row not in own_values:
                continue
            key = (walk.group, t < history, *names[max(t - history, 0) : t + 1], move.action, move.after)
            keys[move.row] = key, walk.compared
            if walk.compared:
                members.setdefault(key, []).append(own_values[move.row])
    expected = dict(own_values)
    for row, (key, compared) in keys.items():
        among = members.get(key, []) + ([] if compared else [own_values[row]])
        expected[row] = sum(among) / len(among)
    actual = SharedEdges(history=history)(forest, {}, 0)
    assert actual.tolist() == pytest.approx([expected[s] for s in forest.path_step.tolist()], abs=1e-9)


@given(SEEDS, st.integers(0, 2))
def test_the_sum_of_a_state_s_action_stays(seed, history):
    """So a policy that sees the state alone has GRPO's gradient: the score of equal actions is one and the same."""
    forest = wandering(seed, empty_actions=False)
    begin = torch.zeros(forest.n_steps, dtype=torch.int64)
    begin[forest.path_step.flip(0)] = torch.arange(forest.n_entries).flip(0)  # an entry for every step
    gained = (SharedEdges(history=history)(forest, {}, 0) - GroupRelative()(forest, {}, 0))[begin].tolist()
    sums: dict[tuple, float] = {}
    for walk in walks_of(forest):
        for move in walk.moves if walk.compared else ():
            key = (walk.group, move.state, move.action)
            sums[key] = sums.get(key, 0.0) + gained[move.row]
    assert all(abs(x) < 1e-9 for x in sums.values())


@given(SEEDS)
def test_without_equal_edges_salt_is_grpo_in_any_order(seed):
    forest = wandering(seed)
    credit = SharedEdges()(forest, {}, 0)
    order = torch.randperm(forest.n_trajectories, generator=torch.Generator().manual_seed(seed))
    assert torch.allclose(SharedEdges()(forest.select(order), {}, 0), credit[forest.entries_of(order)], atol=1e-12)
    apart = forest.replace(
        step_state=torch.arange(forest.n_steps), state_names=tuple(f"s{i}" for i in range(forest.n_steps))
    )
    assert torch.equal(SharedEdges()(apart, {}, 0), GroupRelative()(forest, {}, 0))


def test_somebody_who_is_not_compared_changes_nobodys():
    """Its own step is averaged with those that are: (-.7071 + .7071 + 2.1213) / 3."""
    edge = torch.tensor([0, 0, 0, -1])
    advantage = torch.tensor([-0.5, 0.5, 2.0, 1.0])
    where = torch.tensor([True, True, False, True])
    assert shared_edges(advantage, edge, where).tolist() == pytest.approx([0, 0, 2 / 3, 1.0])
    assert shared_edges(advantage, edge).tolist() == pytest.approx([2 / 3] * 3 + [1.0])
    assert shared_edges(advantage, edge).dtype == torch.float64


def test_the_method_and_its_settings():
    m = gxpo.method("salt")
    assert m.credit == SharedEdges() and m.requires == ("states",)
    assert (
        SharedEdges(center="none", scale="none").learns_from_equal_groups and not SharedEdges().learns_from_equal_groups
    )
    for wrong in ({"center": "middle"}, {"scale": "var"}, {"history": -2}, {"min_similarity": 2.0}):
        with pytest.raises(ConfigError, match=f"credit.{next(iter(wrong))} is"):
            SharedEdges(**wrong)
