"""GRPO, Dr. GRPO and RLOO: worked numbers, and the traps that other trainers fell into."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gxpo.credit import GroupRelative, group_relative
from gxpo.errors import ConfigError
from gxpo.forest import Forest

ONE = torch.zeros(8, dtype=torch.int64)
WINNER = torch.tensor([1.0] + [0.0] * 7)


@pytest.mark.parametrize(
    ("settings_", "winner", "loser"),
    [
        ({"eps": 1e-4}, 2.474174, -0.353453),  # TRL
        ({"eps": 1e-5}, 2.474804, -0.353543),  # AReaL
        ({}, 2.474867, -0.353552),  # verl, SkyRL, slime: the default
        ({"eps": 1e-9}, 2.474874, -0.353553),  # OpenRLHF
        ({"ddof": 0}, 2.645743, -0.377963),  # rLLM, ART
        ({"scale": "none"}, 0.875, -0.125),  # Dr. GRPO, tinker, prime-rl
        ({"scale": "none", "center": "leave_one_out"}, 1.0, -0.142857),  # RLOO
    ],
)
def test_one_winner_of_eight_in_each_convention(settings_: dict, winner: float, loser: float) -> None:
    found = group_relative(WINNER, ONE, **settings_).tolist()
    assert found == pytest.approx([winner] + [loser] * 7, abs=6e-7)


def test_the_cards_numbers() -> None:
    r, one = torch.tensor([1.0, 0, 0, 0]), torch.zeros(4, dtype=torch.int64)
    assert group_relative(r, one).tolist() == pytest.approx([1.499997] + [-0.499999] * 3, abs=1e-6)
    assert group_relative(r, one, eps=0.0).tolist() == pytest.approx([1.5] + [-0.5] * 3, abs=1e-12)
    assert group_relative(r, one, ddof=0, eps=0.0).tolist() == pytest.approx([1.732051] + [-0.577350] * 3, abs=1e-6)
    assert group_relative(r, one, eps=1e-4).tolist() == pytest.approx([1.499700] + [-0.499900] * 3, abs=1e-6)
    assert group_relative(r, one, scale="none").tolist() == [0.75, -0.25, -0.25, -0.25]
    found = group_relative(r, one, "leave_one_out", "none").tolist()
    assert found == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3])
    pair = group_relative(r[:2], one[:2], ddof=0, eps=0.0).tolist()
    assert pair == pytest.approx([1.0, -1.0])  # 2-GRPO


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("value", [0.1, 0.3, 0.7, 1 / 3])
def test_identical_rewards_give_exactly_zero(value: float, dtype: torch.dtype) -> None:
    # T1: with a float32 mean and eps 1e-9, eight rewards of 0.7 give 0.92 to some members
    for size in range(2, 65):
        r, one = torch.full((size,), value, dtype=dtype), torch.zeros(size, dtype=torch.int64)
        for center, scale in (("mean", "std"), ("mean", "none"), ("leave_one_out", "none"), ("leave_one_out", "std")):
            assert not group_relative(r, one, center, scale, eps=1e-9).any()


@pytest.mark.parametrize("center", ["mean", "leave_one_out", "median"])
@pytest.mark.parametrize("scale", ["std", "none"])
@pytest.mark.parametrize("ddof", [0, 1])
def test_a_group_of_one_has_no_credit(center: str, scale: str, ddof: int) -> None:
    # T2: elsewhere its raw reward, or nan
    r, group = torch.tensor([3.0, 1.0, 0.0]), torch.tensor([0, 1, 1])
    found = group_relative(r, group, center, scale, ddof)
    assert found[0] == 0
    assert found[1] > 0 > found[2]


def test_groups_are_ids_and_never_positions() -> None:
    # T6: reading five rewards as rows of one group gives .6, -.4, .6, -.4, -.4
    r, group = torch.tensor([1.0, 0, 1, 0, 0]), torch.tensor([0, 0, 1, 1, 1])
    expected = [0.5, -0.5, 2 / 3, -1 / 3, -1 / 3]
    assert group_relative(r, group, scale="none").tolist() == pytest.approx(expected)
    order = torch.tensor([4, 1, 2, 0, 3])
    assert group_relative(r[order], group[order], scale="none").tolist() == pytest.approx([expected[i] for i in order])


def test_a_ragged_tail_is_measured_like_any_group() -> None:
    # T7: groups of four and a remainder of two and of one
    r = torch.tensor([1.0, 0, 0, 0, 1, 1, 0, 0, 1, 0, 1])
    group = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 3])
    found = group_relative(r, group)
    for g in range(3):
        alone = group_relative(r[group == g], torch.zeros(int((group == g).sum()), dtype=torch.int64))
        assert torch.equal(found[group == g], alone)
    assert found[10] == 0


REWARDS = st.lists(st.sampled_from([0.0, 1.0, 0.1, 0.7, 1 / 3, -1.0, 2.5]), min_size=2, max_size=16)


@settings(max_examples=80, deadline=None)
@given(REWARDS, st.floats(0.1, 30), st.floats(-20, 20), st.booleans())
def test_shift_and_scale_invariance_zero_sum_and_bound(rewards: list[float], a: float, b: float, loo: bool) -> None:
    r, one = torch.tensor(rewards, dtype=torch.float64), torch.zeros(len(rewards), dtype=torch.int64)
    plain = group_relative(r, one, eps=0.0)
    assert group_relative(a * r + b, one, eps=0.0).tolist() == pytest.approx(plain.tolist(), abs=1e-7)
    center = "leave_one_out" if loo else "mean"
    centred = group_relative(r, one, center, "none")
    assert group_relative(a * r + b, one, center, "none").tolist() == pytest.approx((a * centred).tolist(), abs=1e-7)
    assert float(plain.sum()) == pytest.approx(0, abs=1e-9)
    assert float(centred.sum()) == pytest.approx(0, abs=1e-9)
    g = len(rewards)
    assert float(plain.abs().max()) <= (g - 1) / math.sqrt(g) + 1e-9  # T8
    dr = group_relative(r, one, "mean", "none")
    loo_credit = group_relative(r, one, "leave_one_out", "none")
    assert loo_credit.tolist() == pytest.approx((g / (g - 1) * dr).tolist(), abs=1e-9)


def by_hand(rows: list[tuple[float, str, bool]], scale: str) -> list[float]:
    """GRPO and Dr. GRPO over dictionaries of lists."""
    groups: dict[str, list[float]] = {}
    for reward, group, compared in rows:
        if compared:
            groups.setdefault(group, []).append(reward)
    out = []
    for reward, group, compared in rows:
        members = groups.get(group, [])
        needed = 2 if compared or scale == "std" else 1
        equal = len(set(members)) == 1
        if len(members) < needed or (equal and (compared or scale == "std")):
            out.append(0.0)
            continue
        mean = sum(members) / len(members)
        if scale == "none":
            out.append(reward - mean)
        else:
            out.append((reward - mean) / (math.sqrt(sum((m - mean) ** 2 for m in members) / (len(members) - 1)) + 1e-6))
    return out


ROWS = st.lists(
    st.tuples(st.sampled_from([0.0, 1.0, 0.1, 0.7, -2.0]), st.sampled_from("abc"), st.booleans()),
    min_size=1,
    max_size=12,
)


@settings(max_examples=40, deadline=None)
@given(rows=ROWS, scale=st.sampled_from(["std", "none"]))
def test_the_part_equals_dictionaries(
    grow: Callable[..., Forest], rows: list[tuple[float, str, bool]], scale: str
) -> None:
    forest = grow([(g, r, [1 + i % 3], {"compared": c}) for i, (r, g, c) in enumerate(rows)])
    found = GroupRelative(scale=scale)(forest, {}, 0)  # type: ignore[arg-type]  # drawn from the allowed words
    assert found.dtype == torch.float64 and found.shape == (forest.n_entries,)
    expected = by_hand(rows, scale)
    assert found.tolist() == pytest.approx([expected[r] for r in forest.path_trajectory.tolist()], abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(rows=ROWS, random=st.randoms(use_true_random=False))
def test_order_of_trajectories_does_not_matter(grow: Callable[..., Forest], rows: list, random) -> None:
    forest = grow([(g, r, [1 + i % 3], {"compared": c}) for i, (r, g, c) in enumerate(rows)])
    order = list(range(len(rows)))
    random.shuffle(order)
    moved = forest.select(order)
    expected = GroupRelative()(forest, {}, 0)[forest.entries_of(order)]
    assert GroupRelative()(moved, {}, 0).tolist() == pytest.approx(expected.tolist(), abs=1e-12)


def test_a_trajectory_that_is_not_compared_is_measured_by_the_others(grow: Callable[..., Forest]) -> None:
    rows = [("a", 1.0, [1]), ("a", 0.0, [1]), ("a", 1.0, [1]), ("a", 0.0, [1])]
    alone = GroupRelative()(grow(rows), {}, 0)
    found = GroupRelative()(grow([*rows, ("a", 9.0, [1], {"compared": False})]), {}, 0)
    assert torch.equal(found[:4], alone)
    assert float(found[4]) == pytest.approx((9 - 0.5) / (math.sqrt(1 / 3) + 1e-6))


def test_length_and_turns_of_a_trajectory_do_not_matter(grow: Callable[..., Forest]) -> None:
    # T12: the unit is the trajectory
    short = GroupRelative()(grow([("a", 1.0, [1]), ("a", 0.0, [1]), ("a", 0.0, [1])]), {}, 0)
    forest = grow([("a", 1.0, [1]), ("a", 0.0, [5, 2, 3]), ("a", 0.0, [2])])
    assert torch.equal(GroupRelative()(forest, {}, 0), short[forest.path_trajectory])


def test_credit_is_detached_float64() -> None:
    r = torch.tensor([1.0, 0.0], requires_grad=True)
    found: Tensor = group_relative(r, torch.zeros(2, dtype=torch.int64))
    assert not found.requires_grad and found.dtype == torch.float64


def test_a_word_that_does_not_exist_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"credit\.scale is 'sdt'; it is one of std, none"):
        GroupRelative(scale="sdt")  # type: ignore[arg-type]  # the point of the test
