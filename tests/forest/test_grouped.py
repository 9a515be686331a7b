"""Every reduction against statistics taken group by group in plain Python."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gxpo.forest import grouped

VALUES = st.one_of(
    st.sampled_from([0.0, 1.0, 0.1, 0.3, 0.7, 1 / 3, -2.5]),
    st.floats(-50, 50, allow_nan=False).map(lambda v: round(v, 3)),
)
MEMBER = st.tuples(VALUES, st.integers(-1, 4), st.booleans())
COLUMNS = st.lists(MEMBER, min_size=1, max_size=24)


def columns(rows: list[tuple[float, int, bool]]) -> tuple[Tensor, Tensor, Tensor]:
    values, ids, where = zip(*rows, strict=True)
    return torch.tensor(values, dtype=torch.float64), torch.tensor(ids), torch.tensor(where)


def by_group(rows: list[tuple[float, int, bool]], statistic: Callable[[list[float]], float]) -> list[float]:
    """`statistic` of each member's group over its counting members, 0 outside groups and for empty groups."""
    members: dict[int, list[float]] = {}
    for value, group, enters in rows:
        members.setdefault(group, [])
        if enters:
            members[group].append(value)
    return [statistic(members[g]) if g >= 0 and members[g] else 0.0 for _, g, _ in rows]


def spread(values: list[float], ddof: int) -> float:
    if len(values) <= ddof or len(set(values)) == 1:
        return 0.0
    return math.sqrt(statistics.pvariance(values) * len(values) / (len(values) - ddof))


@settings(max_examples=120, deadline=None)
@given(COLUMNS)
def test_reductions_equal_plain_python(rows: list[tuple[float, int, bool]]) -> None:
    x, ids, where = columns(rows)
    expected: dict[Callable[..., Tensor], Callable[[list[float]], float]] = {
        grouped.sum: math.fsum,
        grouped.mean: statistics.fmean,
        grouped.min: np.min,
        grouped.max: np.max,
        grouped.median: statistics.median,
        lambda *a: grouped.median(*a, lower=True): statistics.median_low,
        grouped.std: lambda v: spread(v, 1),
        lambda *a: grouped.std(*a, ddof=0): lambda v: spread(v, 0),
        lambda x, i, w: grouped.count(i, w): len,
        lambda x, i, w: grouped.quantile(x, i, 0.3, w): lambda v: float(np.quantile(v, 0.3)),
        lambda x, i, w: grouped.quantile(x, i, 0.8, w, "higher"): lambda v: float(np.quantile(v, 0.8, method="higher")),
        lambda x, i, w: grouped.quantile(x, i, 0.8, w, "nearest"): lambda v: float(
            np.quantile(v, 0.8, method="nearest")
        ),
        lambda x, i, w: grouped.quantile(x, i, 0.8, w, "lower"): lambda v: float(np.quantile(v, 0.8, method="lower")),
    }
    for reduce, statistic in expected.items():
        assert reduce(x, ids, where).tolist() == pytest.approx(by_group(rows, statistic), abs=1e-9)


@settings(max_examples=80, deadline=None)
@given(COLUMNS)
def test_rank_softmax_and_leave_one_out_equal_loops(rows: list[tuple[float, int, bool]]) -> None:
    x, ids, where = columns(rows)
    average, lowest, soft, others_mean, equal = [], [], [], [], []
    for i, (value, group, enters) in enumerate(rows):
        peers = [v for v, g, e in rows if g == group and e and g >= 0]
        below, ties = len([v for v in peers if v < value]), peers.count(value)
        inside = enters and group >= 0
        average.append(below + (ties - 1) / 2 if inside else 0.0)
        lowest.append(float(below) if inside else 0.0)
        soft.append(1 / math.fsum(math.exp((v - value) / 2) for v in peers) if inside else 0.0)
        others = [v for j, (v, g, e) in enumerate(rows) if g == group >= 0 and e and j != i]
        others_mean.append(statistics.fmean(others) if others else 0.0)
        equal.append(len(set(peers)) <= 1)
    assert grouped.rank(x, ids, where).tolist() == pytest.approx(average)
    assert grouped.rank(x, ids, where, ties="min").tolist() == pytest.approx(lowest)
    assert grouped.softmax(x, ids, where, temperature=2.0).tolist() == pytest.approx(soft, abs=1e-12)
    assert grouped.leave_one_out(x, ids, where).tolist() == pytest.approx(others_mean, abs=1e-9)
    assert grouped.degenerate(x, ids, where).tolist() == equal


def inverted_cdf(values: list[float], q: float) -> float:
    """The smallest value that at least a share q does not exceed."""
    return min(v for v in values if Fraction(sum(w <= v for w in values), len(values)) >= Fraction(str(q)))


@settings(max_examples=60, deadline=None)
@given(COLUMNS, st.sampled_from([0.1, 0.25, 0.4, 0.5, 0.6, 0.7, 1.0]))
def test_the_inverted_distribution_function(rows: list[tuple[float, int, bool]], q: float) -> None:
    quantiles = grouped.quantile(*columns(rows)[:2], q, columns(rows)[2], "inverted_cdf")
    assert quantiles.tolist() == pytest.approx(by_group(rows, lambda v: inverted_cdf(v, q)))


def test_a_share_that_comes_out_whole_takes_no_member_more() -> None:
    # 0.1 * 30 and 0.7 * 10 are above 3 and 7 or just at them, by rounding
    for q, n, place in ((0.1, 30, 2), (0.7, 10, 6), (0.4, 5, 1), (0.6, 5, 2), (1.0, 7, 6), (0.01, 4, 0)):
        x = torch.arange(n, dtype=torch.float64)
        assert grouped.quantile(x, torch.zeros(n).long(), q, interpolation="inverted_cdf")[0] == place


def normalized(
    rows: list[tuple[float, int, bool]], center: str, scale: str, ddof: int, eps: float, q: float, shift: float
) -> list[float]:
    """`grouped.normalize`, a member at a time, with the rules of its docstring in words."""

    def middle(i: int) -> float:
        _, group, enters = rows[i]
        peers = [v for v, g, e in rows if g == group and e]
        if center == "leave_one_out" and enters:
            peers = [v for j, (v, g, e) in enumerate(rows) if g == group and e and j != i]
        if center == "none" or not peers:
            return 0.0
        low, mean = statistics.median_low, statistics.fmean
        centre_functions = {"mean": mean, "leave_one_out": mean, "median": statistics.median, "lower_median": low}
        return centre_functions[center](peers) if center in centre_functions else inverted_cdf(peers, q)

    out = []
    for i, (value, group, enters) in enumerate(rows):
        members = [j for j, (_, g, e) in enumerate(rows) if g == group and e]
        peers, others = [rows[j][0] for j in members], [rows[j][0] for j in members if j != i]
        is_member, equal = enters and group >= 0, len(set(peers)) <= 1
        by_spread = scale not in ("mean", "none")
        too_few = len(peers) < (ddof + 1 if scale.endswith("std") else 1)
        # exactly 0: in no group, too few to measure by, no spread, or nobody to be measured against
        if group < 0 or too_few or (equal and by_spread) or (is_member and center != "none" and not others):
            out.append(0.0)
            continue
        value = -shift if equal and is_member and center != "none" else value - middle(i) - shift
        # the distance from the centre, over the spread of the counting members
        off = [abs(rows[j][0] - middle(j)) for j in members]
        median = statistics.median_low if center == "lower_median" else statistics.median
        if scale == "std":
            value /= spread(peers, ddof) + eps
        elif scale == "leave_one_out_std":
            by = spread(others if is_member else peers, ddof)
            value /= by + eps if by > 0 else 1.0
        elif scale == "mean_absolute":
            value *= len(off) / (sum(off) + eps)
        elif scale == "median_absolute":
            value /= median(off) + eps
        elif scale == "mean":
            value = value / (statistics.fmean(peers) + eps) if sum(peers) > 0 else 0.0
        out.append(value)
    return out


@settings(max_examples=400, deadline=None)
@given(
    COLUMNS,
    st.sampled_from(grouped.CENTERS),
    st.sampled_from(grouped.SCALES),
    st.sampled_from([0, 1]),
    st.sampled_from([1e-6, 1e-4]),
    st.sampled_from([0.25, 0.4, 0.5, 0.75]),
    st.sampled_from([0.0, 0.0, -0.1, 2.0]),
)
def test_normalize_equals_a_member_at_a_time(
    rows: list[tuple[float, int, bool]], center: str, scale: str, ddof: int, eps: float, q: float, shift: float
) -> None:
    if scale == "mean":
        rows = [(abs(v), g, e) for v, g, e in rows]
    x, ids, where = columns(rows)
    normalised = grouped.normalize(
        x, ids, where, center=center, scale=scale, ddof=ddof, eps=eps, q=q, shift=shift
    ).tolist()
    # a median of 0 leaves eps to divide by, and rounding of the mean with it
    close = 1e-6 if scale == "median_absolute" else 1e-9
    assert normalised == pytest.approx(normalized(rows, center, scale, ddof, eps, q, shift), rel=close, abs=close)


def test_the_spread_of_the_others_is_exact_without_an_outlier() -> None:
    # T8: of seven 0.35 and a 0 the others of the 0 are equal; one-pass squares leave 1e-9, and -0.35 over that is -2154
    x, one = torch.tensor([0.35] * 7 + [0.0]), torch.zeros(8, dtype=torch.int64)
    normalised = grouped.normalize(x, one, center="leave_one_out", scale="leave_one_out_std")
    assert float(normalised[7]) == pytest.approx(-0.35, abs=1e-7)
    # and where the others differ by 1e-6 that is their spread, beside a member at 1e3
    far = torch.tensor([1e3, 0.0, 1e-6, 2e-6], dtype=torch.float64)
    normalised = grouped.normalize(far, one[:4], center="none", scale="leave_one_out_std", eps=0.0)
    assert float(normalised[0]) == pytest.approx(1e9, rel=1e-9)  # std of 0, 1e-6, 2e-6 is 1e-6


def test_no_scale_by_a_mean_that_is_not_above_zero() -> None:
    x, one = torch.tensor([-1.0, -1.0, 1.0]), torch.zeros(3, dtype=torch.int64)
    assert grouped.normalize(x, one, scale="mean").tolist() == [0.0, 0.0, 0.0]
    assert grouped.normalize(x[1:], one[1:], scale="mean").tolist() == [0.0, 0.0]
    # one that is not compared is still measured by a group of equals
    where = torch.tensor([True, True, False])
    normalised = grouped.normalize(torch.tensor([1.0, 1.0, 0.0]), one, where, scale="mean", eps=0.0)
    assert normalised.tolist() == [0.0, 0.0, -1.0]


@settings(max_examples=60, deadline=None)
@given(COLUMNS, st.randoms(use_true_random=False))
def test_order_of_members_does_not_matter(rows: list[tuple[float, int, bool]], random) -> None:
    order = list(range(len(rows)))
    random.shuffle(order)
    x, ids, where = columns(rows)
    shuffled = [c[order] for c in (x, ids, where)]
    reductions: list[Callable[..., Tensor]] = [
        grouped.mean,
        grouped.std,
        grouped.median,
        grouped.rank,
        grouped.normalize,
    ]
    for reduce in reductions:
        assert reduce(*shuffled).tolist() == pytest.approx(reduce(x, ids, where)[order].tolist(), abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(COLUMNS, st.sampled_from([float("nan"), float("inf"), 1e300]))
def test_members_that_do_not_enter_move_no_statistic(rows: list[tuple[float, int, bool]], other: float) -> None:
    x, ids, where = columns(rows)
    changed = torch.where(where, x, torch.tensor(other, dtype=torch.float64))
    for reduce in (grouped.mean, grouped.std, grouped.min, grouped.max, grouped.median, grouped.rank, grouped.softmax):
        assert torch.equal(reduce(changed, ids, where), reduce(x, ids, where))
    entered = where & (ids >= 0)
    assert torch.equal(grouped.normalize(changed, ids, where)[entered], grouped.normalize(x, ids, where)[entered])


@settings(max_examples=40, deadline=None)
@given(COLUMNS, st.lists(st.floats(0, 9, allow_nan=False), min_size=24, max_size=24))
def test_weighted_mean_equals_numpy(rows: list[tuple[float, int, bool]], weights: list[float]) -> None:
    x, ids, where = columns(rows)
    expected = []
    for _, group, _ in rows:
        chosen = [(v, w) for (v, g, e), w in zip(rows, weights, strict=False) if g == group >= 0 and e]
        total = sum(w for _, w in chosen)
        average = np.average([v for v, _ in chosen], weights=[w for _, w in chosen]) if total > 1e-9 else None
        expected.append(average)
    statistics = grouped.mean(x, ids, where, weight=torch.tensor(weights[: len(rows)], dtype=torch.float64)).tolist()
    for a, b in zip(statistics, expected, strict=True):
        assert b is None or a == pytest.approx(b, abs=1e-9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [0.1, 0.3, 0.7, 1 / 3])
def test_equal_members_have_no_spread_whatever_their_number(value: float, dtype: torch.dtype) -> None:
    # T1: the float32 mean of eight 0.7 is off by 6e-8, and 6e-8 / 1e-9 is an advantage of 60
    for size in (2, 3, 5, 7, 8, 11, 16, 31, 64):
        x, ids = torch.full((size,), value, dtype=dtype), torch.zeros(size, dtype=torch.int64)
        assert grouped.degenerate(x, ids).all()
        assert (grouped.std(x, ids) == 0).all()
        for center in ("mean", "leave_one_out", "median"):
            for scale in ("std", "none"):
                assert (grouped.normalize(x, ids, center=center, scale=scale, eps=1e-9) == 0).all()


def test_values_equal_up_to_rounding_are_equal() -> None:
    # three ways of writing 0.3 in float64
    x = torch.tensor([0.1 + 0.2, 0.3, 0.6 / 2], dtype=torch.float64)
    assert (grouped.normalize(x, torch.zeros(3, dtype=torch.int64), eps=1e-12) == 0).all()
    assert not grouped.degenerate(torch.tensor([1.0, 1.0 + 1e-11], dtype=torch.float64), torch.zeros(2).long()).any()


def test_values_that_differ_by_rounding_share_a_rank() -> None:
    x = torch.tensor([0.1 + 0.2, 0.5, 0.3, 0.6 / 2, 0.30000001, 0.1 + 0.2], dtype=torch.float64)
    ids, where = torch.tensor([0, 0, 0, 0, 1, 0]), torch.tensor([True] * 5 + [False])
    assert x[0] != x[2]
    assert grouped.settled(x, ids, where).tolist() == [0.3, 0.5, 0.3, 0.3, 0.30000001, 0.1 + 0.2]
    assert grouped.rank(x, ids, where).tolist() == [1.0, 3.0, 1.0, 1.0, 0.0, 0.0]
    near = torch.tensor([-1e-7, 2e-7, 1e-3], dtype=torch.float64)
    assert grouped.settled(near, ids[:3], absolute=1e-5).tolist() == [-1e-7, -1e-7, 1e-3]
    assert grouped.settled(near, ids[:3]).tolist() == near.tolist()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_sum_reaches_its_bound_but_for_rounding(dtype: torch.dtype) -> None:
    parts = torch.tensor([0.7, 0.2, 0.1], dtype=dtype)
    total = torch.stack([parts[0] + parts[1] + parts[2], parts[2], parts[0] * torch.nan, parts[0] / 0.7 * 0.9999])
    assert grouped.reaches(total, 1.0).tolist() == [True, False, False, False]
    assert grouped.reaches(-total[:2], -0.1).tolist() == [False, True]


def test_variance_is_taken_in_two_passes() -> None:
    # T8: E[x^2] - E[x]^2 of seven 0.35 and a 0 is negative for the leave-one-out std; and 1e8 swallows a spread of 1
    x = torch.tensor([0.35] * 7 + [0.0])
    normalised = grouped.normalize(x, torch.zeros(8, dtype=torch.int64))
    assert normalised.abs().max() <= 7 / math.sqrt(8)
    far = torch.tensor([1e8, 1e8 + 1, 1e8 + 2], dtype=torch.float64)
    assert grouped.std(far, torch.zeros(3, dtype=torch.int64)).tolist() == pytest.approx([1.0] * 3, abs=1e-9)


def test_softmax_is_float64_inside_and_does_not_overflow() -> None:
    ids = torch.zeros(2, dtype=torch.int64)
    half = torch.tensor([1.0, 2.0], dtype=torch.float16)
    assert grouped.softmax(half, ids, temperature=0.3)[1] == pytest.approx(1 / (1 + math.exp(-1 / 0.3)), abs=1e-12)
    assert grouped.softmax(torch.tensor([-900.0, 900.0]), ids).tolist() == [0.0, 1.0]


def test_empty_columns_and_columns_in_no_group() -> None:
    empty, none = torch.zeros(0), torch.zeros(0, dtype=torch.int64)
    outside = torch.full((3,), -1)
    for reduce in (grouped.sum, grouped.mean, grouped.std, grouped.min, grouped.max, grouped.median, grouped.rank,
                   grouped.softmax, grouped.leave_one_out, grouped.normalize):  # fmt: skip
        assert reduce(empty, none).shape == (0,)
        assert reduce(torch.ones(3), outside).tolist() == [0.0] * 3
        assert reduce(torch.ones(3), outside).dtype == torch.float64


def test_without_a_spread_eps_is_not_divided_by() -> None:
    # T7: a remainder row divided by eps is 1e6 times its reward
    one = torch.zeros(1, dtype=torch.int64)
    for center in ("none", "mean", "leave_one_out", "median"):
        assert grouped.normalize(torch.ones(1), one, center=center, ddof=0).tolist() == [0.0]
    assert grouped.normalize(torch.ones(1), one, center="none", scale="none").tolist() == [1.0]


def test_shapes_and_words_are_checked() -> None:
    x, ids = torch.ones(3), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ValueError, match="one column each"):
        grouped.mean(x, ids[:2])
    with pytest.raises(ValueError, match="where must be bool"):
        grouped.mean(x, ids, torch.ones(3))
    for call in (
        lambda: grouped.normalize(x, ids, center="mode"),
        lambda: grouped.normalize(x, ids, scale="mad"),
        lambda: grouped.rank(x, ids, ties="max"),
        lambda: grouped.quantile(x, ids, 0.5, interpolation="midway"),
    ):
        with pytest.raises(ValueError, match="is"):
            call()


@settings(max_examples=60, deadline=None)
@given(COLUMNS, st.sampled_from([0, 1]))
def test_mean_and_std_are_the_mean_and_the_std(rows: list[tuple[float, int, bool]], ddof: int) -> None:
    x, ids, where = columns(rows)
    middle, spread_of = grouped.mean_and_std(x, ids, where, ddof)
    assert middle.tolist() == pytest.approx(by_group(rows, statistics.fmean), abs=1e-9)
    assert spread_of.tolist() == pytest.approx(by_group(rows, lambda v: spread(v, ddof)), abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(COLUMNS)
def test_members_of_no_group_change_no_bit(rows: list[tuple[float, int, bool]]) -> None:
    """Left out of the columns, or in them without a group, and with gaps in the ids: the same bits."""
    x, ids, where = columns(rows)
    inside = ids >= 0
    reductions: list[Callable[..., Tensor]] = [grouped.sum, grouped.mean, grouped.std, grouped.min, grouped.max,
                                               grouped.median, grouped.rank, grouped.softmax, grouped.leave_one_out,
                                               grouped.normalize]  # fmt: skip
    for reduce in reductions:
        statistics = reduce(x, ids, where)
        assert torch.equal(statistics[inside], reduce(x[inside], ids[inside], where[inside]))
        assert torch.equal(statistics, reduce(x, torch.where(inside, 3 * ids + 7, -1), where))
        assert torch.equal(statistics, reduce(x, ids, where)) and (statistics[~inside] == 0).all()


@pytest.mark.parametrize(
    "reduce", [grouped.sum, grouped.mean, grouped.std, grouped.softmax, grouped.leave_one_out, grouped.normalize]
)
def test_gradients_reach_the_members_that_enter_and_no_others(reduce: Callable[..., Tensor]) -> None:
    ids = torch.tensor([0, 1, 0, -1, 0, 1, 0, 1])
    where = torch.tensor([True, True, True, True, False, True, True, True])
    x = torch.tensor([1.0, 2.0, 4.0, 9.0, -3.0, 5.0, 6.5, 3.5], dtype=torch.float64, requires_grad=True)
    entered = [i for i in range(8) if where[i] and ids[i] >= 0]

    def of_entered(values: Tensor) -> Tensor:
        return reduce(torch.zeros(8, dtype=torch.float64).index_put((torch.tensor(entered),), values), ids, where)[
            entered
        ]

    assert torch.autograd.gradcheck(of_entered, x.detach()[entered].requires_grad_())
    grad = torch.autograd.grad(reduce(x, ids, where)[entered].square().sum(), x)[0]
    assert grad[[3, 4]].tolist() == [0.0, 0.0] and grad[entered].abs().max() > 0


# ---------------------------------------------------------------- values near the ends of float64
def _column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("unit", [1e300, 1.5e308, 1e160, 1e-160, 1e-300, 3e-308])
def test_rewards_of_any_magnitude_have_the_same_advantages(unit: float) -> None:
    """(1, 0): mean 1/2, std sqrt(1/2); (1, 1, 0, -1): mean 1/4, deviations 3/4, 3/4, -1/4, -5/4, whose squares sum to
    11/4; half that is 1/4 of the sum of absolutes 3; the others' means are 0, 0, 1/3, 2/3."""
    ids = torch.tensor([0, 0, 1, 1, 1, 1])
    x = _column(1, 0, 1, 1, 0, -1) * unit
    std = (11 / 12) ** 0.5
    expected = {
        ("mean", "std"): [0.5**0.5, -(0.5**0.5), 0.75 / std, 0.75 / std, -0.25 / std, -1.25 / std],
        ("leave_one_out", "std"): [2**0.5, -(2**0.5), 1 / std, 1 / std, -1 / 3 / std, -5 / 3 / std],
        ("mean", "mean_absolute"): [1, -1, 1, 1, -1 / 3, -5 / 3],
        ("mean", "mean"): [1, -1, 3, 3, -1, -5],
        ("median", "median_absolute"): [1, -1, 1, 1, -1, -3],
    }
    for (center, scale), values in expected.items():
        normalised = grouped.normalize(x, ids, center=center, scale=scale, eps=0.0)
        assert torch.allclose(normalised, _column(*values), rtol=1e-12, atol=0), (center, scale, normalised)
    single = {
        "mean": [0.5, 0.5, 0.25, 0.25, 0.25, 0.25],
        "std": [0.5**0.5] * 2 + [std] * 4,
        "leave_one_out": [0, 1, 0, 0, 1 / 3, 2 / 3],
        "median": [0.5, 0.5, 0.5, 0.5, 0.5, 0.5],
    }
    for name, values in single.items():
        normalised = getattr(grouped, name)(x, ids)
        assert torch.allclose(normalised / unit, _column(*values), rtol=1e-12, atol=1e-12), (name, normalised)
    middle, spread = grouped.mean_and_std(x, ids)
    assert torch.equal(middle, grouped.mean(x, ids)) and torch.equal(spread, grouped.std(x, ids))


def test_advantages_of_grpo_for_rewards_out_of_any_range() -> None:
    zeros = torch.zeros(2, dtype=torch.int64)
    assert grouped.normalize(_column(1e300, 0), zeros).tolist() == pytest.approx([0.5**0.5, -(0.5**0.5)], rel=1e-12)
    assert grouped.normalize(_column(1e308, -1e308), zeros).tolist() == pytest.approx([0.5**0.5, -(0.5**0.5)])
    # the std of (1e-300, 0) is 7e-301, far below eps
    assert grouped.normalize(_column(1e-300, 0), zeros).tolist() == pytest.approx([5e-295, -5e-295], rel=1e-9, abs=0)
    assert grouped.normalize(_column(1e308, 1e308), zeros).tolist() == [0, 0]
    one = grouped.normalize(_column(1e308, 1e308, 0, 1e308), zeros.repeat(2), shift=0.5)
    assert one.tolist() == pytest.approx([0.5, 0.5, -1.5, 0.5])
    cut = grouped.normalize(_column(1e308, 0, 0), torch.tensor([0, 0, 0]), scale="leave_one_out_std", eps=0.0)
    # the others of the first are equal: it is not scaled; those of a 0 are (1e308, 0)
    assert cut.tolist() == pytest.approx([1e308 / 1.5, -(2**0.5) / 3, -(2**0.5) / 3])
    assert grouped.softmax(_column(1e308, 1e308), zeros, temperature=0.1).tolist() == [0.5, 0.5]
    assert grouped.softmax(_column(1e308, -1e308), zeros, temperature=1e-3).tolist() == [1, 0]
    assert grouped.quantile(_column(1.7e308, -1.7e308), zeros, 0.25).tolist() == pytest.approx([-0.85e308] * 2)
    weighted = grouped.mean(_column(1e308, 1.5e308), zeros, weight=_column(3, 1))
    assert weighted.tolist() == pytest.approx([1.125e308] * 2)


def test_an_extreme_group_changes_no_bit_of_the_others() -> None:
    torch.manual_seed(3)
    ids = torch.arange(400) // 8
    x, where = torch.randn(400, dtype=torch.float64), torch.rand(400) > 0.2
    for magnitude in (1e300, 1e-300):
        y = x.clone()
        y[ids == 7] *= magnitude
        rest = ids != 7
        for center in grouped.CENTERS:
            for scale in grouped.SCALES:
                one, other = (grouped.normalize(z, ids, where, center=center, scale=scale) for z in (x, y))
                assert torch.equal(one[rest], other[rest]), (center, scale, magnitude)
        for name in ("mean", "std", "median", "leave_one_out"):
            one, other = (getattr(grouped, name)(z, ids, where) for z in (x, y))
            assert torch.equal(one[rest], other[rest]), (name, magnitude)
