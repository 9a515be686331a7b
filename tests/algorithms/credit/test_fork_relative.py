"""Credit of steps at forks: what became of all who took them."""

from __future__ import annotations

import math
from collections import defaultdict

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import strategies

from gxpo.algorithms.credit import GroupRelative
from gxpo.algorithms.credit.fork_relative import Forks, fork_relative, forks_of, step_value
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.parts.registry import CREDITS

ForkRelative = CREDITS["fork_relative"]


def tree(*rows) -> Forest:
    """(id, outcome, [one token or error per turn of its own], (base, turns it takes over) or None) each."""
    records = []
    for name, reward, turns, fork in rows:
        own_fields = [
            {"action": [t] if isinstance(t, int) else [3], "info": {} if isinstance(t, int) else {"action_error": t}}
            for t in turns
        ]
        where = {"prompt": [1]} if fork is None else {"fork": {"of": fork[0], "turn": fork[1] - 1, "token": None}}
        records.append(
            {"schema": "gxpo.rollouts/1", "group": "g", "id": name, "reward": reward, "turns": own_fields, **where}
        )
    return Forest.from_records(records)


def loop(forest: Forest, part: ForkRelative) -> list[float]:
    """The credit of each path token, over dictionaries."""

    def z(of: dict, where) -> dict:
        among = [v for k, v in of.items() if where(k)]
        if len(among) < 2 or max(among) - min(among) <= 1e-12 * max(map(abs, among)):
            return dict.fromkeys(of, 0.0)
        mean = math.fsum(among) / len(among)
        std = math.sqrt(math.fsum((x - mean) ** 2 for x in among) / (len(among) - 1))
        return {k: (v - mean) / (std + 1e-6) for k, v in of.items()}

    steps = defaultdict(list)  # trajectory -> its rows of S
    for s, r in enumerate(forest.step_trajectory.tolist()):
        steps[r].append(s)
    over = {}
    for g in set(forest.group):
        over |= z({r: float(forest.outcome[r]) for r in steps_of_group(forest, g)}, lambda r: bool(forest.compared[r]))
    rows = defaultdict(list)  # (group, node) -> rows of S
    fork = {}
    for r, own_value in steps.items():
        for s in own_value:
            place = forest.group[r], int(forest.step_action[s])
            rows[place].append(s)
            before = own_value[own_value.index(s) - 1] if s != own_value[0] else None
            fork[place] = (forest.group[r], None if before is None else int(forest.step_action[before]))
    value = {}
    for place, own_value in rows.items():
        chosen = [s for s in own_value if forest.compared[forest.step_trajectory[s]]] or own_value
        actual = []
        for s in chosen:
            r = int(forest.step_trajectory[s])
            at = steps[r].index(s)
            d = len(steps[r]) - 1 - at if part.discount_from == "end" else at
            error = "action_error" in forest.step_info[s]
            actual.append(part.decay**d * float(forest.outcome[r]) + part.well_formed * (not error))
        value[place] = math.fsum(actual) / len(actual)
    local = dict.fromkeys(rows, 0.0)
    for key in set(fork.values()):
        if key[1] is None and not part.first_steps:
            continue
        members = {p: value[p] for p in rows if fork[p] == key}
        local |= z(members, lambda p: any(bool(forest.compared[forest.step_trajectory[s]]) for s in rows[p]))
    out = []
    for p in range(forest.n_entries):
        r, s = int(forest.path_trajectory[p]), int(forest.path_step[p])
        place = forest.group[r], int(forest.step_action[s])
        out.append(part.trajectory_weight * over[r] + part.fork_weight * local[place])
    return out


def steps_of_group(forest: Forest, group: str) -> list[int]:
    return [r for r in range(forest.n_trajectories) if forest.group[r] == group]


# ---------------------------------------------------------------- the card
def test_the_card():
    # one fork, two children that end with 1 and 0: mean .5, std .707107, so +-.5 / .707108; the shared step has none
    forest = tree(("a", 1.0, [5, 6], None), ("b", 0.0, [7], ("a", 1)))
    assert ForkRelative(trajectory_weight=0.0)(forest, {}, 0).tolist() == pytest.approx(
        [0.0, 0.707106, 0.0, -0.707106], abs=1e-6
    )
    # with the trajectories' own z, +-.707106, on the whole path of each
    assert ForkRelative()(forest, {}, 0).tolist() == pytest.approx([0.707106, 1.414212, -0.707106, -1.414212], abs=1e-6)


def test_the_outcome_decays_towards_the_beginning():
    # a: three turns, 1. b leaves after its first and needs two turns less: 1
    forest = tree(("a", 1.0, [4, 5, 6], None), ("b", 1.0, [7], ("a", 1)))
    forks = forks_of(forest)
    value = step_value(forest.outcome, forks, 0.5)
    # rows: a's three steps, b's two. The shared one has 1/4 by a and 1/2 by b
    assert value.tolist() == [0.375, 0.5, 1.0, 0.375, 1.0]
    begin = step_value(forest.outcome, forks, 0.5, "begin")
    assert begin.tolist() == [1.0, 0.5, 0.25, 1.0, 0.5]
    # outcomes are equal, but b's way is the shorter one
    credit = ForkRelative(decay=0.5)(forest, {}, 0)
    assert credit.tolist() == pytest.approx([0.0, -0.7071048, 0.0, 0.0, 0.7071048], abs=2e-6)


def test_what_is_carried_out_earns_something():
    forest = tree(("a", 1.0, [5, "illegal"], None), ("b", 1.0, [7], ("a", 1)))
    part = ForkRelative(trajectory_weight=0.0, decay=1.0, well_formed=0.2)
    assert part(forest, {}, 0).tolist() == pytest.approx([0.0, -0.707102, 0.0, 0.707102], abs=1e-5)
    assert ForkRelative(decay=1.0)(forest, {}, 0).tolist() == [0.0] * 4


# ---------------------------------------------------------------- loops and properties
PARTS = st.sampled_from(
    [
        ForkRelative(),
        ForkRelative(first_steps=True, discount_from="begin", decay=0.7),
        ForkRelative(trajectory_weight=0.3, fork_weight=2.0, decay=1.0, well_formed=0.5, first_steps=True),
    ]
)


@settings(max_examples=30)
@given(st.integers(0, 10**6), PARTS)
def test_it_agrees_with_a_loop(seed, part):
    forest = strategies.random_forest(seed, groups=3, rollouts=6, unscored=False)
    marked = [{"action_error": "illegal"} if (seed + s) % 3 == 0 else {} for s in range(forest.n_steps)]
    forest = forest.replace(step_info=marked)
    assert part(forest, {}, 0).tolist() == pytest.approx(loop(forest, part), abs=1e-8)


@given(st.integers(0, 10**6))
def test_without_forks_it_is_grpo(seed):
    forest = strategies.random_forest(seed, forks=False, unscored=False, contexts=False)
    assert torch.equal(ForkRelative()(forest, {}, 0), GroupRelative()(forest, {}, 0))


@given(st.integers(0, 10**6))
def test_shared_steps_have_one_value_and_siblings_sum_to_0(seed):
    forest = strategies.random_forest(seed, groups=2, rollouts=6, unscored=False, uncompared=False)
    forks = forks_of(forest, first_steps=True)
    local = fork_relative(step_value(forest.outcome, forks, 0.9), forks)
    seen_credits: dict[int, float] = {}
    total: dict[int, float] = defaultdict(float)
    for place, key, credit in zip(forks.place.tolist(), forks.fork.tolist(), local.tolist(), strict=True):
        if place not in seen_credits:
            seen_credits[place] = credit
            total[key] += credit
        assert seen_credits[place] == credit
    assert all(abs(x) < 1e-6 for x in total.values())


@given(st.integers(0, 10**6), st.floats(-5, 5))
def test_order_and_a_shift_of_the_outcome_do_not_matter(seed, shift):
    forest = strategies.random_forest(seed, groups=2, rollouts=6, unscored=False)
    part = ForkRelative(decay=1.0, first_steps=True)
    credit = part(forest, {}, 0)
    order = torch.randperm(forest.n_trajectories, generator=torch.Generator().manual_seed(seed))
    assert torch.allclose(part(forest.select(order), {}, 0), credit[forest.entries_of(order)], atol=1e-9)
    moved = part(forest.replace(outcome=forest.outcome + shift), {}, 0)
    assert torch.allclose(moved, credit, atol=1e-4)


def test_equal_contexts_of_others_are_no_fork():
    """Two attempts whose contexts were rebuilt to the same tokens have not come the same way."""
    turns = [{"action": [5]}, {"context": [8, 8], "action": [6]}]
    record = {"schema": "gxpo.rollouts/1", "group": "g", "prompt": [1]}
    forest = Forest.from_records(
        [{**record, "id": "a", "reward": 1.0, "turns": turns}, {**record, "id": "b", "reward": 0.0, "turns": turns}]
    )
    assert ForkRelative(trajectory_weight=0.0)(forest, {}, 0).tolist() == [0.0] * 4


def test_whoever_is_not_compared_moves_nobody():
    rows = [("a", 1.0, [5, 6], None), ("b", 0.0, [7], ("a", 1)), ("c", 5.0, [8], ("a", 1))]
    forest = tree(*rows)
    forest = forest.replace(compared=torch.tensor([True, True, False]))
    credit = ForkRelative(decay=1.0)(forest, {}, 0)
    assert credit[:4].tolist() == ForkRelative(decay=1.0)(tree(*rows[:2]), {}, 0).tolist()
    assert credit[5] > 5.0  # (5 - .5) / .707 twice


def test_refusals():
    with pytest.raises(ConfigError, match=r"credit.discount_from is 'now'"):
        ForkRelative(discount_from="now")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"credit.decay is 1.5; it is from 0 to 1"):
        ForkRelative(decay=1.5)
    with pytest.raises(ConfigError, match=r"credit.discount_from is 'now'"):
        empty = torch.zeros(0, dtype=torch.int64)
        step_value(torch.zeros(0), Forks(empty, empty, empty), 1.0, "now")
    assert ForkRelative.requires == ("forks",)
