"""Group-relative advantages: GRPO, Dr. GRPO, RLOO, Lite PPO; values, units, baselines and traps."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.credit.compositions import against_baseline_credit
from torch import Tensor

import gxpo
from gxpo.algorithms.credit import GroupRelative, advantage, group_relative, length_weighted
from gxpo.algorithms.signals import Signals
from gxpo.base.errors import ConfigError, MissingSignal
from gxpo.forest.forest import Forest

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
        ({"scale": "leave_one_out_std", "center": "leave_one_out"}, 1.0, -0.377963),  # NeMo-RL
        ({"scale": "mean"}, 7.0, -1.0),  # MaxRL, up to eps
    ],
)
def test_one_winner_of_eight_in_each_convention(settings_: dict, winner: float, loser: float) -> None:
    actual = group_relative(WINNER, ONE, **settings_).tolist()
    close = 6e-5 if settings_.get("scale") == "mean" else 6e-7
    assert actual == pytest.approx([winner] + [loser] * 7, abs=close)


def test_the_cards_numbers() -> None:
    r, one = torch.tensor([1.0, 0, 0, 0]), torch.zeros(4, dtype=torch.int64)
    assert group_relative(r, one).tolist() == pytest.approx([1.499997] + [-0.499999] * 3, abs=1e-6)
    assert group_relative(r, one, eps=0.0).tolist() == pytest.approx([1.5] + [-0.5] * 3, abs=1e-12)
    assert group_relative(r, one, ddof=0, eps=0.0).tolist() == pytest.approx([1.732051] + [-0.577350] * 3, abs=1e-6)
    assert group_relative(r, one, eps=1e-4).tolist() == pytest.approx([1.499700] + [-0.499900] * 3, abs=1e-6)
    assert group_relative(r, one, scale="none").tolist() == [0.75, -0.25, -0.25, -0.25]
    actual = group_relative(r, one, "leave_one_out", "none").tolist()
    assert actual == pytest.approx([1.0, -1 / 3, -1 / 3, -1 / 3])
    pair = group_relative(r[:2], one[:2], ddof=0, eps=0.0).tolist()
    assert pair == pytest.approx([1.0, -1.0])  # 2-GRPO
    pair = group_relative(r[:2], one[:2]).tolist()
    assert pair == pytest.approx([0.707107, -0.707107], abs=2e-6)  # what it is not


def of(rewards: list[float], *settings_: object, **more: object) -> list[float]:
    return group_relative(torch.tensor(rewards), torch.zeros(len(rewards)).long(), *settings_, **more).tolist()  # type: ignore[arg-type]  # settings of many types


def test_cards_of_other_scales_and_baselines() -> None:
    # MC-GRPO: median .5, deviations .5 0 .5 .3 .4, median .4; .5 / .401 = 1.246883
    median = ("lower_median", "median_absolute", 1, 1e-3)
    actual = of([1, 0.5, 0, 0.2, 0.9], *median)
    assert actual == pytest.approx([1.246883, 0, -1.246883, -0.748130, 0.997506], abs=1e-6)
    assert of([1, 1, 1, 0, 0], *median) == pytest.approx([0, 0, 0, -1000, -1000])
    assert of([1, 0, 0, 0, 0], *median) == pytest.approx([1000, 0, 0, 0, 0])
    assert of([1, 0.5, 0.25, 0], *median)[2] == 0  # of an even number the lower
    # MaxRL
    assert of([1, 0, 0, 0], "mean", "mean") == pytest.approx([2.999988] + [-0.999996] * 3, abs=1e-6)
    # DGPO: 4 * .75 / (1.5 + 1e-4)
    balanced = ("mean", "mean_absolute", 1, 1e-4)
    assert of([1, 0, 0, 0], *balanced) == pytest.approx([1.999867] + [-0.666622] * 3, abs=1e-6)
    assert of([1, 1, 0, 0], *balanced) == pytest.approx([0.999950] * 2 + [-0.999950] * 2, abs=1e-6)
    # AsymRE and the quantile baseline
    assert of([1, 0, 0, 0], "mean", "none", shift=-0.1) == pytest.approx([0.85] + [-0.15] * 3)
    assert of([1, 0, 0, 0], "quantile", "none") == [1, 0, 0, 0]
    assert of([1, 1, 1, 0], "quantile", "none") == [0, 0, 0, -1]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([0.0, 1.0, 0.3, 2.5]), min_size=2, max_size=12))
def test_what_other_scales_and_baselines_promise(rewards: list[float]) -> None:
    size, mixed = len(rewards), len(set(rewards)) > 1
    balanced = of(rewards, "mean", "mean_absolute", 1, 0.0)
    assert sum(map(abs, balanced)) == pytest.approx(size if mixed else 0)  # the same for every task
    assert sum(balanced) == pytest.approx(0, abs=1e-9)
    by_mean = of(rewards, "mean", "mean", 1, 0.0)
    assert sum(by_mean) == pytest.approx(0, abs=1e-6)
    assert not mixed or min(by_mean) >= -1 - 1e-6
    shifted, plain = of(rewards, "mean", "none", shift=-0.1), of(rewards, "mean", "none")
    assert shifted == pytest.approx([a + 0.1 for a in plain])
    median = of(rewards, "lower_median", "median_absolute", 1, 1e-3)
    assert 0.0 in median and [a > 0 for a in median] == [r > sorted(rewards)[(size - 1) // 2] for r in rewards]
    for settings_ in (balanced, by_mean, shifted, median):
        order = sorted(range(size), key=lambda i: (rewards[i], settings_[i]))
        assert [settings_[i] for i in order] == sorted(settings_)  # more reward, more credit


@pytest.mark.parametrize("wins", range(9))
def test_the_quantile_baseline_of_successes_and_failures(wins: int) -> None:
    # 0 up to a rate of 1 - K, 1 above it
    rewards = [1.0] * wins + [0.0] * (8 - wins)
    baseline = 0.0 if wins / 8 <= 1 - 0.4 else 1.0
    expected = [r - baseline if 0 < wins < 8 else 0.0 for r in rewards]
    assert of(rewards, "quantile", "none") == pytest.approx(expected)


def test_a_group_of_one_may_keep_its_raw_reward() -> None:
    # T2: as where its mean is taken to be 0 and its std 1
    r, group = torch.tensor([3.0, 1.0, 0.0, 5.0]), torch.tensor([0, 1, 1, -1])
    actual = group_relative(r, group, singleton="raw").tolist()
    assert actual[0] == pytest.approx(3 / (1 + 1e-6)) and actual[1:] == group_relative(r, group)[1:].tolist()
    assert group_relative(r, group, "leave_one_out", "none", singleton="raw").tolist() == [3.0, 1.0, -1.0, 0.0]
    assert group_relative(r, group, scale="none", shift=-0.1, singleton="raw").tolist()[0] == 3.0
    compared = torch.tensor([False, True, False, True])  # alone among those compared; the others are measured by it
    assert group_relative(r, group, "mean", "none", where=compared, singleton="raw").tolist() == [0.0, 1.0, -1.0, 0.0]


def test_equal_outcomes_are_given_the_shift_and_nothing_else() -> None:
    for value in (0.1, 0.7, 1 / 3):
        assert of([value] * 7, "mean", "none", shift=-0.1) == [0.1] * 7
        assert of([value] * 7, "mean", "std", shift=-0.1) == [0.0] * 7
        for scale in ("mean", "mean_absolute", "median_absolute", "leave_one_out_std"):
            for center in ("mean", "leave_one_out", "lower_median", "quantile"):
                assert of([value] * 7, center, scale) == [0.0] * 7
    assert of([0.7], "mean", "none", shift=-0.1) == [0.0]
    assert (
        GroupRelative(scale="none", shift=-0.1).learns_from_equal_groups
        and not GroupRelative(shift=-0.1).learns_from_equal_groups
    )
    assert GroupRelative(center="none", scale="none").learns_from_equal_groups
    assert GroupRelative(center="none", scale="mean").learns_from_equal_groups


def test_turns_as_rows_weigh_long_trajectories_more(grow: Callable[..., Forest]) -> None:
    # T12: a winner of 2 turns among losers of 10: mean 2/72, sample std of 72 rows .165490; .972222 / .165491
    rows = [("a", 1.0, [1, 2]), *[("a", 0.0, [1] * 10)] * 7]
    actual = GroupRelative(unit="step")(grow(rows), {}, 0)
    assert actual.unique().tolist() == pytest.approx([-0.167852, 5.874817], abs=1e-6)
    assert GroupRelative()(grow(rows), {}, 0).unique().tolist() == pytest.approx([-0.353552, 2.474867], abs=1e-6)
    forest = grow([("a", 1.0, [1]), ("b", 1.0, [1, 1])])  # one row, and two that are equal
    assert GroupRelative(unit="step", singleton="raw", scale="none")(forest, {}, 0).tolist() == [1.0, 0.0, 0.0]


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0.0, 1.0, 0.3]), st.integers(1, 3), st.booleans()), min_size=1, max_size=6))
def test_a_turn_counts_as_a_row_in_a_loop_too(grow: Callable[..., Forest], rows: list) -> None:
    forest = grow([("a", r, [2] * n, {"compared": c}) for r, n, c in rows])
    wide = [(r, "a", c) for r, n, c in rows for _ in range(n)]
    actual = GroupRelative(unit="step")(forest, {}, 0).tolist()
    assert actual == pytest.approx([a for a in by_hand(wide, "std") for _ in range(2)], abs=1e-9)


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
    actual = group_relative(r, group, center, scale, ddof)
    assert actual[0] == 0
    assert actual[1] > 0 > actual[2]


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
    actual = group_relative(r, group)
    for g in range(3):
        of_group = group_relative(r[group == g], torch.zeros(int((group == g).sum()), dtype=torch.int64))
        assert torch.equal(actual[group == g], of_group)
    assert actual[10] == 0


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
    actual = GroupRelative(scale=scale)(forest, {}, 0)  # type: ignore[arg-type]  # drawn from the allowed words
    assert actual.dtype == torch.float64 and actual.shape == (forest.n_entries,)
    expected = by_hand(rows, scale)
    assert actual.tolist() == pytest.approx([expected[r] for r in forest.path_trajectory.tolist()], abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(rows=ROWS, random=st.randoms(use_true_random=False))
def test_order_of_trajectories_does_not_matter(grow: Callable[..., Forest], rows: list, random) -> None:
    forest = grow([(g, r, [1 + i % 3], {"compared": c}) for i, (r, g, c) in enumerate(rows)])
    order = list(range(len(rows)))
    random.shuffle(order)
    moved = forest.select(order)
    expected = GroupRelative()(forest, {}, 0)[forest.entries_of(order)]
    assert GroupRelative()(moved, {}, 0).tolist() == pytest.approx(expected.tolist(), abs=1e-12)


def test_an_uncompared_trajectory_is_measured_by_others(grow: Callable[..., Forest]) -> None:
    rows = [("a", 1.0, [1]), ("a", 0.0, [1]), ("a", 1.0, [1]), ("a", 0.0, [1])]
    credit = GroupRelative()(grow(rows), {}, 0)
    actual = GroupRelative()(grow([*rows, ("a", 9.0, [1], {"compared": False})]), {}, 0)
    assert torch.equal(actual[:4], credit)
    assert float(actual[4]) == pytest.approx((9 - 0.5) / (math.sqrt(1 / 3) + 1e-6))


def test_length_and_turns_of_a_trajectory_do_not_matter(grow: Callable[..., Forest]) -> None:
    # T12: the unit is the trajectory
    short = GroupRelative()(grow([("a", 1.0, [1]), ("a", 0.0, [1]), ("a", 0.0, [1])]), {}, 0)
    forest = grow([("a", 1.0, [1]), ("a", 0.0, [5, 2, 3]), ("a", 0.0, [2])])
    assert torch.equal(GroupRelative()(forest, {}, 0), short[forest.path_trajectory])


def test_credit_is_detached_float64() -> None:
    r = torch.tensor([1.0, 0.0], requires_grad=True)
    actual: Tensor = group_relative(r, torch.zeros(2, dtype=torch.int64))
    assert not actual.requires_grad and actual.dtype == torch.float64


def test_a_word_that_does_not_exist_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"credit\.scale is 'sdt'; it is one of std, leave_one_out_std, .* none"):
        GroupRelative(scale="sdt")  # type: ignore[arg-type]  # the point of the test
    for wrong in ({"center": "mode"}, {"singleton": "one"}, {"unit": "row"}):
        with pytest.raises(ConfigError, match=f"credit.{next(iter(wrong))} is"):
            GroupRelative(**wrong)
    for share in (0.0, 1.5, -0.1):
        with pytest.raises(ConfigError, match="above 0, up to 1"):
            GroupRelative(quantile=share)
    with pytest.raises(ConfigError, match="median_absolute divides by"):
        GroupRelative(scale="median_absolute", eps=0.0)


Grow = Callable[..., Forest]
F64 = torch.float64


def test_card_of_two_rollouts(grow: Grow) -> None:
    """r = [1, 0], b1 = g(phi2) = .3, b2 = g(phi1) = .7: A = [1 - .3, 0 - .7]."""
    forest = grow([("a", 1.0, [1]), ("a", 0.0, [1])])
    actual = against_baseline_credit()(forest, {"baseline": torch.tensor([0.3, 0.7], dtype=F64)}, 0)
    assert actual.tolist() == pytest.approx([0.7, -0.7])


def test_all_tokens_have_their_trajectorys_advantage(grow: Grow) -> None:
    forest = grow([("a", 1.0, [2, 1]), ("a", 1.0, [1])])
    actual = against_baseline_credit()(forest, {"baseline": torch.tensor([0.25, 0.5], dtype=F64)}, 0)
    assert actual.tolist() == [0.75] * 3 + [0.5] and against_baseline_credit().learns_from_equal_groups


@settings(max_examples=25, deadline=None)
@given(rewards=st.lists(st.lists(st.sampled_from([0.0, 0.3, 1.0]), min_size=1, max_size=4), min_size=1, max_size=4))
def test_the_mean_as_a_baseline_is_the_centred_outcome(grow: Grow, rewards) -> None:
    """Reduction: baseline = group mean is Dr. GRPO's credit, but for residues of rounding."""
    forest = grow([(f"g{g}", r, [1 + i % 2]) for g, group in enumerate(rewards) for i, r in enumerate(group)])
    mean = torch.tensor([sum(group) / len(group) for group in rewards for _ in group], dtype=F64)
    target = GroupRelative(scale="none")(forest, {}, 0)
    assert against_baseline_credit()(forest, {"baseline": mean}, 0).tolist() == pytest.approx(
        target.tolist(), abs=1e-12
    )


def test_a_missing_baseline_and_a_scale_are_refused(grow: Grow) -> None:
    forest = grow([("a", 1.0, [1])])
    with pytest.raises(MissingSignal, match="baseline"):
        against_baseline_credit()(forest, Signals.of(forest), 0)
    with pytest.raises(ConfigError, match=r"^credit\.scale is 'std'; with credit\.center=baseline it is 'none'$"):
        GroupRelative(center="baseline")


ROWS_OF_BATCH = st.lists(
    st.tuples(
        st.sampled_from("abc"), st.sampled_from([0.0, 1.0, 0.1, 0.7]), st.integers(1, 4), st.sampled_from([1, 1, 0])
    ),
    min_size=1,
    max_size=10,
)


def forest_of(rows):
    return Forest.from_records(
        [
            {
                "schema": "gxpo.rollouts/1",
                "group": g,
                "id": f"t{i}",
                "prompt": [1],
                "turns": [{"action": [5] * n, "logprob": [-1.0] * n}],
                "reward": r,
                "compared": bool(c),
            }
            for i, (g, r, n, c) in enumerate(rows)
        ]
    )


def spread(values, ddof):
    if len(values) <= ddof:
        return 0.0
    mean = sum(values) / len(values)
    return math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - ddof))


# ---------------------------------------------------------------- batch
def test_lite_ppo_card():
    # [1 0 0 0 | 1 1 1 0]: batch std .534522 with one degree of freedom
    reward, group = torch.tensor([1.0, 0, 0, 0, 1, 1, 1, 0]), torch.tensor([0] * 4 + [1] * 4)
    actual = group_relative(reward, group, scale="batch_std", eps=0.0)
    assert actual.tolist() == pytest.approx([1.403122] + [-0.467707] * 3 + [0.467707] * 3 + [-1.403122], abs=1e-6)


@settings(max_examples=60, deadline=None)
@given(ROWS_OF_BATCH)
def test_batch_std_equals_a_loop(rows):
    std = spread([r for _, r, _, c in rows if c], 1)
    expected = []
    for g, r, n, c in rows:
        peers = [q for h, q, _, d in rows if h == g and d]
        flat = not peers or (c and len(set(peers)) == 1) or std < 1e-9
        expected += [0.0 if flat else (r - sum(peers) / len(peers)) / (std + 1e-6)] * n
    m = gxpo.method("lite_ppo")
    assert m.advantages(forest_of(rows)).tolist() == pytest.approx(expected, abs=1e-9)


def test_batch_std_of_one_group_is_grpo_at_any_reward_scale():
    reward = torch.tensor([0.2, 1.0, 0.4, 0.9, 0.1, 0.1], dtype=torch.float64)
    group = torch.tensor([0, 0, 0, 1, 1, 1])
    actual = group_relative(reward, group, scale="batch_std", eps=0.0)
    moved = group_relative(3 * reward + 5, group, scale="batch_std", eps=0.0)
    torch.testing.assert_close(moved, actual)
    one = torch.zeros(6).long()
    torch.testing.assert_close(group_relative(reward, one, scale="batch_std"), group_relative(reward, one))


def test_methods_and_bad_options():
    m = gxpo.method("hapo")
    assert (
        m.credit == advantage(length_weighted, scale="std", bound=5.0)
        and m.couples == "step"
        and "entropy" in m.outputs
    )
    for wrong in ({"scale": "mean"}, {"eps": -1.0}, {"bound": 0.0}):
        with pytest.raises(ConfigError, match="credit"):
            advantage(length_weighted, **wrong)
