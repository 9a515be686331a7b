"""OPO, REINFORCE++ and GiGPO against their cards' numbers and loops; sums of credits."""

from __future__ import annotations

import doctest
import math
from collections.abc import Callable
from importlib import import_module

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.credit.compositions import anchor_state_credit

from gxpo.algorithms.credit import CreditSum, GroupRelative, advantage, batch_whiten, group_relative, length_weighted
from gxpo.algorithms.credit.batch_whiten import batch_relative
from gxpo.algorithms.credit.gae import Gae
from gxpo.algorithms.credit.risk_bundle import RiskBundle
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Credit

Grow = Callable[..., Forest]
ROWS = st.lists(
    st.tuples(st.sampled_from("ab"), st.sampled_from([0.0, 1.0, 0.1, 0.7]), st.integers(1, 4), st.booleans()),
    min_size=1,
    max_size=10,
)


def grown(grow: Grow, rows: list) -> Forest:
    return grow([(g, r, [n], {"compared": c}) for g, r, n, c in rows])


# ---------------------------------------------------------------- length-weighted baseline
def test_opo_card() -> None:
    found = length_weighted(torch.tensor([1.0, 0, 0, 0]), torch.tensor([10, 20, 30, 40]), torch.zeros(4).long())
    assert found.tolist() == pytest.approx([0.9, -0.1, -0.1, -0.1])


@settings(max_examples=40, deadline=None)
@given(rows=ROWS)
def test_opo_equals_a_loop_and_its_token_sum_is_zero(grow: Grow, rows: list) -> None:
    forest = grown(grow, rows)
    expected, sums = [], {}
    for g, r, n, c in rows:
        peers = [(q, m) for h, q, m, d in rows if h == g and d]
        if not peers or (c and len({q for q, _ in peers}) == 1):
            credit = 0.0
        else:
            credit = r - sum(q * m for q, m in peers) / sum(m for _, m in peers)
        expected += [credit] * n
        if c:
            sums[g] = sums.get(g, 0.0) + n * credit
    assert advantage(length_weighted)(forest, {}, 0).tolist() == pytest.approx(expected, abs=1e-12)
    assert all(abs(total) < 1e-9 for total in sums.values())


def test_opo_with_equal_lengths_is_dr_grpo_and_equal_rewards_give_zero() -> None:
    r, one = torch.tensor([1.0, 0.3, 0.0, 0.7]), torch.zeros(4).long()
    dr = group_relative(r, one, scale="none")
    assert length_weighted(r, torch.full((4,), 7), one).tolist() == pytest.approx(dr.tolist())
    for size in range(1, 40):
        r, length = torch.full((size,), 0.7), torch.arange(1, size + 1)
        assert not length_weighted(r, length, torch.zeros(size).long()).any()


def test_a_trajectory_without_tokens_does_not_move_the_baseline() -> None:
    # of the members that weigh anything all are equal, up to what 3 * 0.1 + 4 * 0.1 over 7 rounds to
    r, length = torch.tensor([0.1, 0.1, 0.7], dtype=torch.float64), torch.tensor([3, 4, 0])
    found = length_weighted(r, length, torch.zeros(3).long(), torch.ones(3, dtype=torch.bool))
    assert found[:2].tolist() == [0.0, 0.0] and float(found[2]) == pytest.approx(0.6)


def test_opo_counts_trainable_tokens_only(grow: Grow) -> None:
    forest = grow([("a", 1.0, [4], {"trainable": [True, False, False, True]}), ("a", 0.0, [6])])
    assert advantage(length_weighted)(forest, {}, 0)[0] == pytest.approx(1 - 2 / 8)


# ---------------------------------------------------------------- batch whitening
def test_reinforce_pp_card(grow: Grow) -> None:
    forest = grow([(g, r, [n]) for g, r, n in zip("abcd", [1.0, 0, 0, 1], [1, 3, 2, 2], strict=True)])
    up, down = 1.207615, -0.724569
    expected = [up] + [down] * 3 + [down] * 2 + [up] * 2
    assert advantage(batch_relative)(forest, {}, 0).tolist() == pytest.approx(expected, abs=1e-6)


def test_reinforce_pp_baseline_card(grow: Grow) -> None:
    forest = grow([("a", r, [1]) for r in (1.0, 0, 0, 0)] + [("b", r, [1]) for r in (1.0, 1, 1, 0)])
    expected = [1.620185] + [-0.540062] * 3 + [0.540062] * 3 + [-1.620185]
    assert advantage(batch_relative, center="mean")(forest, {}, 0).tolist() == pytest.approx(expected, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(rows=ROWS, center=st.sampled_from(["none", "mean"]))
def test_whitening_equals_a_loop(grow: Grow, rows: list, center: str) -> None:
    forest = grown(grow, rows)
    value = []
    for g, r, _, c in rows:
        peers = [q for h, q, _, d in rows if h == g and d]
        if center == "none":
            value.append(r)
        elif not peers or (c and (len(peers) < 2 or len(set(peers)) == 1)):
            value.append(0.0)
        else:
            value.append(r - sum(peers) / len(peers))
    tokens = [v for v, (_, _, n, c) in zip(value, rows, strict=True) for _ in range(n) if c]
    if len(tokens) < 2 or max(tokens) - min(tokens) <= 1e-12:
        expected = [0.0] * forest.n_entries
    else:
        mean = math.fsum(tokens) / len(tokens)
        root = math.sqrt(math.fsum((t - mean) ** 2 for t in tokens) / (len(tokens) - 1) + 1e-8)
        expected = [(v - mean) / root for v, (_, _, n, _) in zip(value, rows, strict=True) for _ in range(n)]
    found = advantage(batch_relative, center=center)(forest, {}, 0)  # type: ignore[arg-type]  # drawn from the allowed words
    assert found.tolist() == pytest.approx(expected, abs=1e-9)


def test_a_batch_of_equal_rewards_gives_exactly_zero_but_differing_groups_move(grow: Grow) -> None:
    for value in (0.1, 0.7, 1 / 3):
        same = grow([(g, value, [n]) for g, n in zip("aabbcc", [1, 2, 3, 4, 5, 6], strict=True)])
        assert not advantage(batch_relative)(same, {}, 0).any()
    between = grow([("a", 1.0, [2]), ("a", 1.0, [1]), ("b", 0.0, [3]), ("b", 0.0, [1])])
    assert (advantage(batch_relative)(between, {}, 0) != 0).all()
    assert not advantage(batch_relative, center="mean")(between, {}, 0).any()
    assert (
        advantage(batch_relative).learns_from_equal_groups
        and not advantage(batch_relative, center="mean").learns_from_equal_groups
    )


@settings(max_examples=60, deadline=None)
@given(rows=ROWS, center=st.sampled_from(["none", "mean", "leave_one_out"]), ddof=st.sampled_from([0, 1]),
       single=st.sampled_from(["zero", "raw"]))  # fmt: skip
def test_whitening_over_trajectories_equals_a_loop(grow: Grow, rows: list, center: str, ddof: int, single: str) -> None:
    forest, value = grown(grow, rows), []
    for i, (g, r, _, c) in enumerate(rows):
        peers = [q for h, q, _, d in rows if h == g and d]
        others = [q for j, (h, q, _, d) in enumerate(rows) if h == g and d and j != i]
        if center == "none" or (c and not others and single == "raw"):
            value.append(r)
        elif not peers or (c and len(set(peers)) == 1):
            value.append(0.0)
        else:
            against = others if c and center == "leave_one_out" else peers
            value.append(r - math.fsum(against) / len(against))
    batch = [v for v, (_, _, _, c) in zip(value, rows, strict=True) if c]
    if len(batch) <= ddof or max(batch) - min(batch) <= 1e-12:
        expected = [0.0] * len(rows)
    else:
        mean = math.fsum(batch) / len(batch)
        std = math.sqrt(math.fsum((v - mean) ** 2 for v in batch) / (len(batch) - ddof))
        expected = [(v - mean) / (std + 1e-4) for v in value]
    part = advantage(batch_relative, center=center, over="trajectories", ddof=ddof, singleton=single, eps=1e-4)  # type: ignore[arg-type]  # drawn from the allowed words
    found = part(forest, {}, 0)
    assert found.tolist() == pytest.approx([expected[r] for r in forest.path_trajectory.tolist()], abs=1e-9)


def test_the_population_variance_over_tokens(grow: Grow) -> None:
    # mean .375, variance .234375: .625 / .484123
    forest = grow([(g, r, [n]) for g, r, n in zip("abcd", [1.0, 0, 0, 1], [1, 3, 2, 2], strict=True)])
    assert advantage(batch_relative, ddof=0)(forest, {}, 0)[0] == pytest.approx(1.290994, abs=1e-6)
    for wrong in ({"over": "rows"}, {"center": "median"}, {"singleton": "one"}):
        with pytest.raises(ConfigError, match=f"credit.{next(iter(wrong))} is"):
            advantage(batch_relative, **wrong)


def test_untrainable_tokens_enter_no_statistic(grow: Grow) -> None:
    # T11: tool tokens in the middle change no action token's credit
    rows = [("a", 1.0, [2]), ("a", 0.0, [3]), ("b", 1.0, [4]), ("b", 0.5, [1])]
    longer = [("a", 1.0, [2]), ("a", 0.0, [5], {"trainable": [True, False, True, False, True]}), *rows[2:]]
    for part in (advantage(batch_relative), advantage(batch_relative, center="mean")):
        forest, gapped = grow(rows), grow(longer)
        found = part(gapped, {}, 0)
        assert found[gapped.path_trainable].tolist() == pytest.approx(part(forest, {}, 0).tolist(), abs=1e-12)
        assert not found[~gapped.path_trainable].any()
    assert not batch_whiten(torch.tensor([1.0, 5.0]), torch.tensor([True, False])).any()
    apart = batch_whiten(torch.tensor([1.0, 5.0, 2.0, 3.0]), torch.tensor([True, False, True, False]))
    assert apart.tolist() == pytest.approx([-0.707107, 0.0, 0.707107, 0.0], abs=1e-6)


def test_whitening_of_values_whose_squares_overflow():
    """(x - mean) / std of [1e300, 0, 0, 0] with one degree of freedom: std = 1e300 / 2, so 1.5 and three times -0.5."""
    every = torch.ones(4, dtype=torch.bool)
    white = batch_whiten(torch.tensor([1e300, 0.0, 0.0, 0.0], dtype=torch.float64), every)
    assert torch.allclose(white, torch.tensor([1.5, -0.5, -0.5, -0.5], dtype=torch.float64), rtol=1e-12)


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
    whole = anchor_state_credit()(forest, {}, 0)
    expected = [0.707107 + 1.154700, 0.707107, -0.707107 - 0.577350, -0.707107 - 0.577350, -0.707107]
    assert whole.tolist() == pytest.approx(expected, abs=2e-6)


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
    alone, both = grow(CARD), grow(CARD + other)
    assert torch.equal(anchor_state_credit()(both, {}, 0)[:5], anchor_state_credit()(alone, {}, 0))
    assert not anchor_state_credit()(both, {}, 0)[5:].any()  # T14: a group of one has no raw score


def test_steps_of_a_state_sum_to_zero_and_action_length_does_not_matter(grow: Grow) -> None:
    # T12: a turn of nine tokens is one step
    long = [(g, r, [9, *n[1:]], f) for g, r, n, f in CARD]
    short, stretched = anchor_state_credit()(grow(CARD), {}, 0), grow(long)
    assert torch.equal(anchor_state_credit()(stretched, {}, 0), short[stretched.path_step])
    steps = short - anchor_state_credit(step_weight=0.0)(grow(CARD), {}, 0)
    assert float(steps[[0, 2, 3]].sum()) == pytest.approx(0, abs=1e-12)


def test_of_two_successes_the_shorter_way_from_a_state_is_better(grow: Grow) -> None:
    ways = [("a", 1.0, [1], {"states": ["s"]}), ("a", 1.0, [1, 1], {"states": ["s", "t"]})]
    found = anchor_state_credit(scale="none")(grow(ways), {}, 0)
    assert found.tolist() == pytest.approx([(1 - 0.95) / 2, -(1 - 0.95) / 2, 0])


def test_a_trajectory_that_is_not_compared_enters_no_anchor(grow: Grow) -> None:
    extra = [("a", 7.0, [1], {"states": ["s0"], "step_rewards": [7.0], "compared": False})]
    found = anchor_state_credit(scale="none")(grow(CARD + extra), {}, 0)
    assert torch.equal(found[:5], anchor_state_credit(scale="none")(grow(CARD), {}, 0))
    assert float(found[5]) == pytest.approx((7 - 5) + (7 - 9.5 / 3))


# ---------------------------------------------------------------- common to all
ALL = [GroupRelative(), GroupRelative(scale="none"), GroupRelative(center="none", scale="none"),
       advantage(length_weighted), advantage(batch_relative), advantage(batch_relative, center="mean"),
       anchor_state_credit(), anchor_state_credit(center="none", scale="none")]  # fmt: skip


@pytest.mark.parametrize("part", ALL, ids=str)
def test_every_credit_keeps_the_contract(part: Credit, grow: Grow) -> None:
    rows = [*CARD, ("b", 0.1, [2, 2], {"states": ["s0", "s0"]}), ("c", 0.7, [1]), ("c", 0.7, [4])]
    forest = grow(rows)
    found = part(forest, {}, 0)
    assert found.shape == (forest.n_entries,) and found.dtype == torch.float64
    assert found.isfinite().all() and not found.requires_grad
    order = [4, 2, 0, 3, 1]
    moved = part(forest.select(order), {}, 0)
    assert moved.tolist() == pytest.approx(found[forest.entries_of(order)].tolist(), abs=1e-12)
    equal = grow(
        [(g, r, [n]) for g, r, n in [("a", 0.1, 2), ("a", 0.1, 3), ("b", 0.7, 1), ("b", 0.7, 2), ("c", 0.3, 1)]]
    )
    assert bool(part(equal, {}, 0).any()) == part.learns_from_equal_groups


def test_credits_add_and_scale(grow: Grow) -> None:
    forest = grow(CARD)
    a, b = GroupRelative(scale="none"), advantage(batch_relative)
    both = 2 * a + b * 0.5 + a
    assert isinstance(both, CreditSum) and len(both.parts) == 3
    expected = 3 * a(forest, {}, 0) + 0.5 * b(forest, {}, 0)
    assert both(forest, {}, 0).tolist() == pytest.approx(expected.tolist())
    assert both.learns_from_equal_groups and not (a + a).learns_from_equal_groups
    assert (a + anchor_state_credit()).requires == ("states",)
    assert torch.equal((3 * (a + b))(forest, {}, 0), 3 * (a + b)(forest, {}, 0))


def test_a_plain_function_adds_to_a_part(grow: Grow) -> None:
    forest = grow(CARD)

    def last_turn(forest: Forest, signals, step: int) -> torch.Tensor:
        return forest.to_path(torch.tensor([0.0, 1, 0, 0, 1], dtype=torch.float64), "S")

    def number(forest: Forest, signals, step: int) -> torch.Tensor:
        return torch.full((forest.n_entries,), float(step), dtype=torch.float64)

    assert (number + GroupRelative())(forest, {}, 7).tolist() == (GroupRelative()(forest, {}, 0) + 7).tolist()
    for both in (GroupRelative() + last_turn, last_turn + GroupRelative()):
        expected = GroupRelative()(forest, {}, 0) + last_turn(forest, {}, 0)
        assert torch.equal(both(forest, {}, 0), expected)


def test_a_wrong_word_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"credit\.center is 'median'"):
        advantage(batch_relative, center="median")  # type: ignore[arg-type]  # the point of the test
    with pytest.raises(ConfigError, match=r"credit\.center is 'middle'"):
        anchor_state_credit(center="middle")  # type: ignore[arg-type]  # the point of the test


def test_the_functions_doctests_hold() -> None:
    for name in ("relative", "baselines", "batch_whiten"):
        assert doctest.testmod(import_module(f"gxpo.algorithms.credit.{name}")).failed == 0


def test_opo_of_equal_outcomes_is_exactly_zero_whoever_else_is_measured() -> None:
    # (1 * .1 + 2 * .1) / 3 is not .1 in floating point
    r, length, one = torch.tensor([0.1, 0.1, 0.7], dtype=torch.float64), torch.tensor([1, 2, 4]), torch.zeros(3).long()
    assert length_weighted(r, length, one, torch.tensor([True, True, False]))[:2].tolist() == [0.0, 0.0]
    assert length_weighted(r, torch.tensor([1, 2, 0]), one)[:2].tolist() == [0.0, 0.0]
    for where in (None, one[1:] == 0):  # nobody has a weight
        assert length_weighted(r[1:], torch.tensor([0, 0]), one[1:], where).tolist() == [0.0, 0.0]
    assert length_weighted(r[1:], torch.tensor([1, 3]), one[1:]).tolist() == pytest.approx([-0.45, 0.15])


def test_sums_hand_on_what_their_summands_leave_remember_and_observe(grow: Grow) -> None:
    forest = grow([("a", 1.0, [1]), ("a", 0.0, [1]), ("b", 1.0, [1]), ("b", 1.0, [1])])
    value = {"value": torch.tensor([0.25, 0.5, 0.0, 1.0], dtype=torch.float64)}
    both = RiskBundle(size=2, low=0.25, high=0.75) + 0.5 * Gae() + GroupRelative()
    assert both.provides == ("value_target",) and both.needs == ("value",)
    assert both.targets(forest, value, 0)["value_target"].tolist() == [1.0, 0.0, 1.0, 1.0]
    both.observe(forest)  # the sheets' sums are 2 and 1
    assert both.state_dict() == {"0": {"low": 1.25, "high": 1.75}}
    other = RiskBundle(size=2, low=0.25, high=0.75) + Gae()
    other.load_state_dict(both.state_dict())
    assert other.state_dict() == both.state_dict()
    with pytest.raises(ConfigError, match=r"^two credits of a sum both hand over value_target: leave one out$"):
        Gae() + Gae(lam=0.5)
    with pytest.raises(ConfigError, match=r"^a sum of 1 credits needs as many factors, not 2$"):
        CreditSum((GroupRelative(),), (1.0, 2.0))
    assert (GroupRelative() + 2 * Gae()).__mul__(4).factors == (4.0, 8.0)
