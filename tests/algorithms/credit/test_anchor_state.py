"""GiGPO's groups: what else a state may be told by, and how other systems take its two levels."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.algorithms.credit.compositions import anchor_state_credit
from tests.algorithms.credit.walks import walks_of, wandering, z

from gxpo.algorithms.credit import GroupRelative
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest

SEEDS = st.integers(0, 10**6)
CARD = [
    ("a", 10.0, [1, 1], {"states": ["s0", "s1"], "step_rewards": [0.0, 10.0]}),
    ("a", 0.0, [1, 1, 1], {"states": ["s0", "s0", "s2"], "step_rewards": [0.0, 0.0, 0.0]}),
]


def test_the_card_over_steps(grow):
    """Over five rows the mean is 4, the std 5.477226; over two trajectories 5 and 7.071068."""
    forest = grow(CARD)
    plain = anchor_state_credit(scale="none", step_weight=0.0, unit="step")
    assert plain(forest, {}, 0).tolist() == pytest.approx([6, 6, -4, -4, -4])
    scaled = anchor_state_credit(step_weight=0.0, unit="step")(forest, {}, 0)
    assert scaled.tolist() == pytest.approx([1.095445] * 2 + [-0.730297] * 3, abs=1e-6)


def test_a_lone_trajectory_and_a_state_met_once(grow):
    alone = [("b", 10.0, [1, 1], {"states": ["s0", "s1"], "step_rewards": [0.0, 10.0]})]
    forest = grow(alone)
    assert anchor_state_credit()(forest, {}, 0).tolist() == [0.0, 0.0]
    assert anchor_state_credit(scale="none", single="raw")(forest, {}, 0).tolist() == [10.0, 10.0]
    assert anchor_state_credit(single="raw")(forest, {}, 0).tolist() == pytest.approx([10 / (1 + 1e-6)] * 2)
    # over steps a lone trajectory of two turns is no group of one: its equal rows have 0
    assert anchor_state_credit(single="raw", unit="step")(forest, {}, 0).tolist() == [0.0, 0.0]
    assert anchor_state_credit(scale="none", single_state="raw")(forest, {}, 0).tolist() == [9.5, 10.0]
    # of the card, s1 and s2 are met once: returns 10 and 0 beside A^E of 5 and -5
    both = anchor_state_credit(scale="none", single_state="raw")(grow(CARD), {}, 0)
    assert both.tolist() == pytest.approx([11.333333, 15, -8.166667, -8.166667, -5], abs=1e-6)


def test_a_history_splits_states(grow):
    """The second s0 of the second trajectory came from s0: alone in its group. The first ones began: R 9.5 and 0."""
    steps = anchor_state_credit(scale="none", history=1)(grow(CARD), {}, 0) - anchor_state_credit(
        scale="none", step_weight=0.0
    )(grow(CARD), {}, 0)
    assert steps.tolist() == pytest.approx([4.75, 0, -4.75, 0, 0])


@given(SEEDS, st.integers(0, 3), st.booleans(), st.booleans())
def test_it_agrees_with_a_loop(seed, history, scaled, raw):
    forest = wandering(seed)
    part = anchor_state_credit(
        scale="std" if scaled else "none",
        history=history,
        unit="step",
        single="raw" if raw else "zero",
        single_state="raw" if raw else "zero",
    )
    worth, walks = forest.returns(0.95).tolist(), walks_of(forest)
    rows: dict[str, list[float]] = {}
    for r in forest.step_trajectory.tolist():
        if walks[r].compared:
            rows.setdefault(walks[r].group, []).append(walks[r].outcome)
    places: dict[tuple, list[float]] = {}
    keys: dict[int, tuple] = {}
    for walk in walks:
        names = [m.state for m in walk.moves]
        for t, move in enumerate(walk.moves):
            past = tuple(names[max(t - history, 0) : t + 1])
            keys[move.row] = (walk.group, past, t < history)
            if walk.compared:
                places.setdefault(keys[move.row], []).append(worth[move.row])

    def level(value: float, members: list[float], own: bool) -> float:
        if raw and own and len(members) == 1:
            return value / (1 + 1e-6 if scaled else 1)
        return z(value, members, own, scaled, 1, 1e-6)

    expected = []
    for row, r in enumerate(forest.step_trajectory.tolist()):
        walk = walks[r]
        total = level(walk.outcome, rows.get(walk.group, []), walk.compared)
        if row in keys:
            total += level(worth[row], places.get(keys[row], []), walk.compared)
        expected.append(total)
    found = part(forest, {}, 0)
    assert found.tolist() == pytest.approx([expected[s] for s in forest.path_step.tolist()], abs=1e-9)


@given(SEEDS)
def test_defaults_are_what_they_were(seed):
    forest = wandering(seed)
    named = anchor_state_credit(unit="trajectory", single="zero", single_state="zero", step_weight=1.0, discount=0.95)
    assert torch.equal(anchor_state_credit()(forest, {}, 0), named(forest, {}, 0))


@given(SEEDS)
def test_over_steps_without_states_it_is_group_relative_over_steps(seed):
    forest = wandering(seed)
    for single in ("zero", "raw"):
        expected = GroupRelative(unit="step", singleton=single)(forest, {}, 0)
        assert torch.equal(anchor_state_credit(step_weight=0.0, unit="step", single=single)(forest, {}, 0), expected)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"unit": "turn"},
            r"credit\.unit is 'turn' \(test\); it is one of own, trajectory, step, .*",
        ),
        ({"single": "one"}, r"credit\.singleton is 'one' \(test\); it is one of zero, raw"),
        ({"single_state": "one"}, r"credit\.add\.state\.singleton is 'one' \(test\); it is one of zero, raw"),
        ({"history": -1}, r"credit\.add\.state\.history is -1 \(test\); it is 0 or more"),
    ],
)
def test_refusals(given, said):
    with pytest.raises(ConfigError, match=f"^{said}$"):
        anchor_state_credit(**given)


def test_an_empty_forest():
    empty = Forest.from_records([])
    assert anchor_state_credit(history=2)(empty, {}, 0).tolist() == []
