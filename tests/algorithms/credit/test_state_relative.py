"""Step advantages by state: GiGPO's two levels and its other readings, HGPO's histories."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.credit.compositions import anchor_state_credit
from tests.algorithms.credit.walks import walks_of, wandering, z

import gxpo
from gxpo.algorithms.credit import GroupRelative
from gxpo.algorithms.credit.state_relative import history_groups
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.parts.registry import CREDITS

Grow = Callable[..., Forest]


# ---------------------------------------------------------------- anchor states
CARD = [
    ("a", 10.0, [1, 1], {"states": ["s0", "s1"], "step_rewards": [0.0, 10.0]}),
    ("a", 0.0, [1, 1, 1], {"states": ["s0", "s0", "s2"], "step_rewards": [0.0, 0.0, 0.0]}),
]


def test_gigpo_card(grow: Grow) -> None:
    forest = grow(CARD)
    assert forest.returns(0.95).tolist() == pytest.approx([9.5, 10, 0, 0, 0])
    joint = anchor_state_credit(scale="none")(forest, {}, 0)
    assert joint.tolist() == pytest.approx([11.333333, 5, -8.166667, -8.166667, -5], abs=1e-6)
    steps = joint - anchor_state_credit(scale="none", step_weight=0.0)(forest, {}, 0)
    assert steps.tolist() == pytest.approx([6.333333, 0, -3.166667, -3.166667, 0], abs=1e-6)
    scaled = anchor_state_credit()(forest, {}, 0) - anchor_state_credit(step_weight=0.0)(forest, {}, 0)
    assert scaled.tolist() == pytest.approx([1.154700, 0, -0.577350, -0.577350, 0], abs=1e-6)
    # the episode level over two trajectories: 5 / std(10, 0) = 5 / 7.071068
    full_value = anchor_state_credit()(forest, {}, 0)
    expected = [0.707107 + 1.154700, 0.707107, -0.707107 - 0.577350, -0.707107 - 0.577350, -0.707107]
    assert full_value.tolist() == pytest.approx(expected, abs=2e-6)


def gigpo_by_hand(rows: list, discount: float, weight: float, scaled: bool) -> list[float]:
    """GiGPO over dictionaries; rows (group, reward, states, step rewards, compared)."""

    def norm(value: float, members: list[float], own: bool) -> float:
        if len(members) < (2 if own or scaled else 1):
            return 0.0
        mean = sum(members) / len(members)
        if max(members) - min(members) <= 1e-12 * max(abs(m) for m in members):
            return 0.0 if own or scaled else value - mean
        spread = math.sqrt(sum((m - mean) ** 2 for m in members) / (len(members) - 1)) + 1e-6
        return (value - mean) / (spread if scaled else 1.0)

    outcomes: dict[str, list[float]] = {}
    anchors: dict[tuple[str, str], list[float]] = {}
    returns: list[list[float]] = []
    for group, reward, states, paid, compared in rows:
        future, own = 0.0, []
        for r in reversed(paid):
            future = r + discount * future
            own.insert(0, future)
        returns.append(own)
        if compared:
            outcomes.setdefault(group, []).append(reward)
            for state, value in zip(states, own, strict=True):
                if state is not None:
                    anchors.setdefault((group, state), []).append(value)
    out = []
    for (group, reward, states, _, compared), own in zip(rows, returns, strict=True):
        episode = norm(reward, outcomes.get(group, []), compared)
        for state, value in zip(states, own, strict=True):
            step = norm(value, anchors.get((group, state), []), compared) if state is not None else 0.0
            out.append(episode + weight * step)
    return out


STEP = st.tuples(st.sampled_from(["s", "t", None]), st.sampled_from([0.0, 1.0, 0.25]))
MULTITURN = st.lists(
    st.tuples(
        st.sampled_from("ab"), st.sampled_from([0.0, 1.0, 0.1]), st.lists(STEP, min_size=1, max_size=4), st.booleans()
    ),
    min_size=1,
    max_size=7,
)


@settings(max_examples=40, deadline=None)
@given(rows=MULTITURN, weight=st.sampled_from([0.0, 0.5, 1.0]), scaled=st.booleans())
def test_gigpo_equals_dictionaries(grow: Grow, rows: list, weight: float, scaled: bool) -> None:
    plain = [(g, r, [s for s, _ in steps], [p for _, p in steps], c) for g, r, steps, c in rows]
    forest = grow([(g, r, [1] * len(s), {"states": s, "step_rewards": p, "compared": c}) for g, r, s, p, c in plain])
    part = anchor_state_credit(step_weight=weight, scale="std" if scaled else "none")
    assert part(forest, {}, 0).tolist() == pytest.approx(gigpo_by_hand(plain, 0.95, weight, scaled), abs=1e-8)


def test_gigpo_without_step_weight_or_repeated_states_is_grpo(grow: Grow) -> None:
    forest = grow(CARD)
    grpo = GroupRelative()(forest, {}, 0)
    assert torch.equal(anchor_state_credit(step_weight=0.0)(forest, {}, 0), grpo)
    apart = grow([(g, r, n, f | {"states": [f"{i}{k}" for k in range(len(n))]}) for i, (g, r, n, f) in enumerate(CARD)])
    assert torch.equal(anchor_state_credit()(apart, {}, 0), grpo)
    unknown = grow([(g, r, n, f | {"states": [None] * len(n)}) for g, r, n, f in CARD])
    assert torch.equal(anchor_state_credit()(unknown, {}, 0), grpo)


def test_equal_states_of_two_groups_do_not_meet(grow: Grow) -> None:
    # T13: bucketed by state alone, the second task's returns would move the first one's
    other = [("b", 50.0, [1, 1], {"states": ["s0", "s2"], "step_rewards": [25.0, 25.0]})]
    card_forest, joint_forest = grow(CARD), grow(CARD + other)
    assert torch.equal(anchor_state_credit()(joint_forest, {}, 0)[:5], anchor_state_credit()(card_forest, {}, 0))
    assert not anchor_state_credit()(joint_forest, {}, 0)[5:].any()  # T14: a group of one has no raw score


def test_steps_of_a_state_sum_to_zero_at_any_length(grow: Grow) -> None:
    # T12: a turn of nine tokens is one step
    long = [(g, r, [9, *n[1:]], f) for g, r, n, f in CARD]
    short, stretched = anchor_state_credit()(grow(CARD), {}, 0), grow(long)
    assert torch.equal(anchor_state_credit()(stretched, {}, 0), short[stretched.path_step])
    steps = short - anchor_state_credit(step_weight=0.0)(grow(CARD), {}, 0)
    assert float(steps[[0, 2, 3]].sum()) == pytest.approx(0, abs=1e-12)


def test_of_two_successes_the_shorter_way_from_a_state_is_better(grow: Grow) -> None:
    ways = [("a", 1.0, [1], {"states": ["s"]}), ("a", 1.0, [1, 1], {"states": ["s", "t"]})]
    actual = anchor_state_credit(scale="none")(grow(ways), {}, 0)
    assert actual.tolist() == pytest.approx([(1 - 0.95) / 2, -(1 - 0.95) / 2, 0])


def test_a_trajectory_that_is_not_compared_enters_no_anchor(grow: Grow) -> None:
    extra = [("a", 7.0, [1], {"states": ["s0"], "step_rewards": [7.0], "compared": False})]
    actual = anchor_state_credit(scale="none")(grow(CARD + extra), {}, 0)
    assert torch.equal(actual[:5], anchor_state_credit(scale="none")(grow(CARD), {}, 0))
    assert float(actual[5]) == pytest.approx((7 - 5) + (7 - 9.5 / 3))


SEEDS = st.integers(0, 10**6)
ANCHOR_CARD = [
    ("a", 10.0, [1, 1], {"states": ["s0", "s1"], "step_rewards": [0.0, 10.0]}),
    ("a", 0.0, [1, 1, 1], {"states": ["s0", "s0", "s2"], "step_rewards": [0.0, 0.0, 0.0]}),
]


def test_the_card_over_steps(grow):
    """Over five rows the mean is 4, the std 5.477226; over two trajectories 5 and 7.071068."""
    forest = grow(ANCHOR_CARD)
    plain = anchor_state_credit(scale="none", step_weight=0.0, unit="step")
    assert plain(forest, {}, 0).tolist() == pytest.approx([6, 6, -4, -4, -4])
    scaled = anchor_state_credit(step_weight=0.0, unit="step")(forest, {}, 0)
    assert scaled.tolist() == pytest.approx([1.095445] * 2 + [-0.730297] * 3, abs=1e-6)


def test_a_lone_trajectory_and_a_state_met_once(grow):
    row_of_b = [("b", 10.0, [1, 1], {"states": ["s0", "s1"], "step_rewards": [0.0, 10.0]})]
    forest = grow(row_of_b)
    assert anchor_state_credit()(forest, {}, 0).tolist() == [0.0, 0.0]
    assert anchor_state_credit(scale="none", single="raw")(forest, {}, 0).tolist() == [10.0, 10.0]
    assert anchor_state_credit(single="raw")(forest, {}, 0).tolist() == pytest.approx([10 / (1 + 1e-6)] * 2)
    # over steps a lone trajectory of two turns is no group of one: its equal rows have 0
    assert anchor_state_credit(single="raw", unit="step")(forest, {}, 0).tolist() == [0.0, 0.0]
    assert anchor_state_credit(scale="none", single_state="raw")(forest, {}, 0).tolist() == [9.5, 10.0]
    # of the card, s1 and s2 are met once: returns 10 and 0 beside A^E of 5 and -5
    both = anchor_state_credit(scale="none", single_state="raw")(grow(ANCHOR_CARD), {}, 0)
    assert both.tolist() == pytest.approx([11.333333, 15, -8.166667, -8.166667, -5], abs=1e-6)


def test_a_history_splits_states(grow):
    """The second s0 of the second trajectory came from s0: alone in its group. The first ones began: R 9.5 and 0."""
    steps = anchor_state_credit(scale="none", history=1)(grow(ANCHOR_CARD), {}, 0) - anchor_state_credit(
        scale="none", step_weight=0.0
    )(grow(ANCHOR_CARD), {}, 0)
    assert steps.tolist() == pytest.approx([4.75, 0, -4.75, 0, 0])


@given(SEEDS, st.integers(0, 3), st.booleans(), st.booleans())
def test_anchor_states_agree_with_a_loop(seed, history, scaled, raw):
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
    actual = part(forest, {}, 0)
    assert actual.tolist() == pytest.approx([expected[s] for s in forest.path_step.tolist()], abs=1e-9)


@given(SEEDS)
def test_defaults_are_what_they_were(seed):
    forest = wandering(seed)
    listed_state_credit = anchor_state_credit(
        unit="trajectory", single="zero", single_state="zero", step_weight=1.0, discount=0.95
    )
    assert torch.equal(anchor_state_credit()(forest, {}, 0), listed_state_credit(forest, {}, 0))


@given(SEEDS)
def test_without_states_it_is_group_relative_over_steps(seed):
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


HistoryGroups = CREDITS["history_groups"]

HISTORY_SEEDS = st.integers(0, 10**6)
HISTORY_CARD = [
    ("a", 1.0, [1, 1, 1], {"states": ["s0", "s1", "s2"]}),
    ("a", 0.0, [1, 1, 1], {"states": ["s0", "s1", "s2"]}),
    ("a", 1.0, [1, 1, 1], {"states": ["s0", "s3", "s2"]}),
]
ONE = {"history": 1, "discount": 0.9}


def test_the_card(grow):
    """Returns .81 .9 1, 0 0 0, .81 .9 1. Of a's s2: level 0 (1/3), level 1 with b alone (1/2): (1/3 + 2 * 1/2) / 3."""
    forest = grow(HISTORY_CARD)
    plain = HistoryGroups(scale="none", **ONE)(forest, {}, 0)
    expected = [0.27, 0.45, 0.444444, -0.54, -0.45, -0.555556, 0.27, 0, 0.333333]
    assert plain.tolist() == pytest.approx(expected, abs=1e-6)
    scaled = HistoryGroups(**ONE)(forest, {}, 0)
    expected = [0.707105, 0.999998, 0.902367, -1.414210, -0.999998, -1.138069, 0.707105, 0, 0.707105]
    assert scaled.tolist() == pytest.approx(expected, abs=2e-6)


def test_the_recipes_weights(grow):
    """(2 * 1/3 + 3 * 1/2) / 5"""
    actual = HistoryGroups(scale="none", offset=2, ignore="zero", **ONE)(grow(HISTORY_CARD), {}, 0)
    assert float(actual[2]) == pytest.approx(0.433333, abs=1e-6)
    assert float(actual[5]) == pytest.approx(-0.566667, abs=1e-6)


def loop(forest, history, alpha, offset, ignore, scaled) -> list[float]:
    worth, walks = forest.returns(0.95).tolist(), walks_of(forest)
    groups: dict[tuple, list[float]] = {}
    for walk in walks:
        names = [m.state for m in walk.moves]
        for t, move in enumerate(walk.moves):
            for h in range(min(history, t) + 1):
                if walk.compared:
                    groups.setdefault((walk.group, *names[t - h : t + 1]), []).append(worth[move.row])
    out = [0.0] * forest.n_steps
    for walk in walks:
        names = [m.state for m in walk.moves]
        for t, move in enumerate(walk.moves):
            top = bottom = 0.0
            for h in range(min(history, t) + 1):
                members = groups.get((walk.group, *names[t - h : t + 1]), [])
                a = z(worth[move.row], members, walk.compared, scaled, 0, 1e-6)
                equal = bool(members) and max(members) - min(members) <= 1e-12 * max(map(abs, members))
                is_alone = len(members) < (2 if walk.compared else 1)
                if is_alone or (ignore == "equal" and equal and a == 0):
                    continue
                weight = (h + offset) ** alpha
                top, bottom = top + weight * a, bottom + weight
            out[move.row] = top / bottom if bottom else 0.0
    return out


@given(
    HISTORY_SEEDS, st.integers(0, 3), st.sampled_from([0.0, 1.0, 2.0]), st.integers(1, 2), st.booleans(), st.booleans()
)
def test_history_groups_agree_with_a_loop(seed, history, alpha, offset, leaves_out, scaled):
    forest = wandering(seed)
    ignore = "equal" if leaves_out else "none"
    part = HistoryGroups(history=history, alpha=alpha, offset=offset, ignore=ignore, scale="std" if scaled else "none")
    expected = loop(forest, history, alpha, offset, ignore, scaled)
    assert part(forest, {}, 0).tolist() == pytest.approx([expected[s] for s in forest.path_step.tolist()], abs=1e-9)


@given(HISTORY_SEEDS, st.booleans())
def test_without_history_it_is_gigpos_step_level(seed, scaled):
    forest, scale = wandering(seed), "std" if scaled else "none"
    both = anchor_state_credit(scale=scale, ddof=0)(forest, {}, 0)
    step = both - anchor_state_credit(scale=scale, ddof=0, step_weight=0.0)(forest, {}, 0)
    actual = HistoryGroups(history=0, scale=scale)(forest, {}, 0)
    assert torch.allclose(actual, step, rtol=0, atol=1e-9)


@given(HISTORY_SEEDS, st.floats(-3, 3))
def test_order_and_a_shift_of_the_returns_do_not_matter(seed, shift):
    forest = wandering(seed)
    credit = HistoryGroups()(forest, {}, 0)
    order = torch.randperm(forest.n_trajectories, generator=torch.Generator().manual_seed(seed))
    assert torch.allclose(HistoryGroups()(forest.select(order), {}, 0), credit[forest.entries_of(order)], atol=1e-9)
    x, keys = torch.tensor([0.0, 1.0, 0.5, 0.5]), [torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, -1, 1])]
    assert torch.allclose(history_groups(x + shift, keys), history_groups(x, keys), atol=1e-4)


def test_a_level_of_equal_returns_and_a_step_that_is_average():
    """Level 0: 0 1 1 .5, mean .625; level 1 pairs the two 1s. Then level 0: 0 .5 1, where the middle one has 0."""
    x = torch.tensor([0.0, 1.0, 1.0, 0.5], dtype=torch.float64)
    keys = [torch.zeros(4, dtype=torch.int64), torch.tensor([-1, 0, 0, -1])]
    plain = {"scale": "none"}
    assert history_groups(x, keys, ignore="equal", **plain).tolist() == pytest.approx([-0.625, 0.375, 0.375, -0.125])
    assert history_groups(x, keys, ignore="none", **plain).tolist() == pytest.approx([-0.625, 0.125, 0.125, -0.125])
    middle = torch.tensor([0.0, 0.5, 1.0, 0.0], dtype=torch.float64)
    keys = [torch.tensor([0, 0, 0, -1]), torch.tensor([-1, 0, -1, 0])]
    # of the middle one: level 0 is 0, level 1 (.5 against 0) .25: averaged 2/3 * .25, or .25 alone
    assert float(history_groups(middle, keys, ignore="equal", **plain)[1]) == pytest.approx(0.166667, abs=1e-6)
    assert float(history_groups(middle, keys, ignore="zero", **plain)[1]) == 0.25


def test_defaults_and_float64():
    x, keys = torch.tensor([0.1, 0.7, 0.3]), [torch.zeros(3, dtype=torch.int64)]
    actual = history_groups(x, keys)
    assert actual.dtype == torch.float64 and torch.equal(
        actual, history_groups(x.double(), keys, alpha=1.0, offset=1, ignore="equal", scale="std")
    )
    assert torch.equal(actual, history_groups(x, keys, ddof=0, eps=1e-6, where=torch.ones(3, dtype=torch.bool)))
    # std of 1 and 0 over both is .5
    assert history_groups(torch.tensor([1.0, 0.0]), [torch.zeros(2).long()], eps=0.5).tolist() == [0.5, -0.5]


def test_the_method_and_its_settings():
    m = gxpo.method("hgpo", {"credit.history": 4})
    assert m.credit == HistoryGroups(history=4) and m.requires == ("states",)
    assert math.isclose(gxpo.method("hgpo@paper").keys["objective.kl.coef"].value, 0.01)
    for wrong, message in (
        ({"ignore": "all"}, "credit.ignore is 'all'; it is one of equal, zero, none"),
        ({"scale": "mean"}, "credit.scale is 'mean'; it is one of std, none"),
        ({"history": -1}, "credit.history is -1; it is 0 or more"),
        ({"offset": 0}, "credit.offset is 0; it is 1 or more"),
    ):
        with pytest.raises(ConfigError, match=message.replace(".", r"\.")):
            HistoryGroups(**wrong)
