"""Tables by group: sums, extremes, quantiles and order of a few members, by hand; groups out of float64's range."""

from __future__ import annotations

import math

import pytest
import torch

from gxpo.forest.grouped import Groups

# members 0 and 1 count in group 0, member 4 is of it and does not; member 2 is group 1, member 3 is in none
IDS = torch.tensor([0, 0, 1, -1, 0])
WHERE = torch.tensor([True, True, True, True, False])
X = torch.tensor([3.0, 1.0, 5.0, 7.0, 9.0], dtype=torch.float64)


def groups(ids: torch.Tensor = IDS, where: torch.Tensor | None = WHERE) -> Groups:
    return Groups(ids, where)


def test_tables_have_a_row_for_each_group_and_a_row_of_zeros():
    g = groups()
    assert g.enters.tolist() == [True, True, True, False, False]
    assert g.count.tolist() == [2, 1, 0]
    assert g.total(X).tolist() == [4, 5, 0]
    assert g.mean(X).tolist() == [2, 5, 0]
    assert (g.extreme(X, "amin").tolist(), g.extreme(X, "amax").tolist()) == ([1, 5, 0], [3, 5, 0])


def test_a_lookup_gives_every_member_the_row_of_its_group():
    g = groups()
    assert g.lookup(g.mean(X)).tolist() == [2, 2, 5, 0, 2]  # also member 4, which is in no statistic


def test_leave_one_out_is_the_mean_of_the_others():
    # of member 2 there are no others; member 4 does not count, so all that count are others
    assert groups().leave_one_out(X).tolist() == [1, 3, 0, 0, 2]


def test_std_is_zero_for_too_few_and_for_equal_members():
    g = groups()
    centred = X - g.lookup(g.mean(X))
    assert g.std(X, centred, ddof=1).tolist() == pytest.approx([math.sqrt(2), 0, 0])
    assert g.std(X, centred, ddof=2).tolist() == [0, 0, 0]


def test_members_equal_up_to_rounding_are_degenerate():
    x = torch.tensor([1.0, 1.0 + 1e-13, 1.0, 1.0 + 1e-11], dtype=torch.float64)
    assert Groups(torch.tensor([0, 0, 1, 1]), None).degenerate(x).tolist()[:2] == [True, False]


def test_counting_members_are_ordered_by_group_and_value():
    values, begins, sizes, order = groups().ordered(X)
    assert (values.tolist(), order.tolist()) == ([1, 3, 5], [1, 0, 2])
    assert (begins.tolist(), sizes.tolist()) == ([0, 2, 3], [2, 1, 0])


@pytest.mark.parametrize(
    ("interpolation", "expected"), [("linear", 1.5), ("lower", 1.0), ("higher", 2.0), ("nearest", 2.0)]
)
def test_quantiles_between_two_members(interpolation, expected):
    x = torch.tensor([3.0, 0.0, 2.0, 1.0], dtype=torch.float64)  # position 0.5 * 3 = 1.5; the even one of 1 and 2 is 2
    assert Groups(torch.zeros(4, dtype=torch.int64), None).quantile(x, 0.5, interpolation).tolist()[0] == expected


def test_an_inverted_cdf_is_not_moved_by_rounding():
    x = torch.arange(1.0, 31.0, dtype=torch.float64)  # 0.1 * 30 is above 3 in floating point
    assert Groups(torch.zeros(30, dtype=torch.int64), None).quantile(x, 0.1, "inverted_cdf").tolist()[0] == 3.0


def test_exponents_of_groups_out_of_range():
    # frexp(2^500) is (0.5, 501), frexp(2^-450) is (0.5, -449); 1 and 0 are in range
    x = torch.tensor([2.0**500, 1.0, 1.0, 2.0**-450, 0.0], dtype=torch.float64)
    assert Groups(torch.tensor([0, 0, 1, 2, 3]), None).exponents(x).tolist() == [501, 501, 0, -449, 0]


@pytest.mark.parametrize("size", [1e200, 1e-200])
def test_a_spread_out_of_range_is_noticed(size):
    g, x = Groups(torch.zeros(2, dtype=torch.int64), None), torch.tensor([size, -size], dtype=torch.float64)
    assert not g.is_extreme
    g.std(x, x, ddof=1)  # the squares overflow, or underflow
    assert g.is_extreme


def test_columns_of_other_shapes_are_refused():
    with pytest.raises(ValueError, match=r"where must be bool of shape \(5,\), not torch.float32 \(5,\)"):
        Groups(IDS, torch.ones(5))
    with pytest.raises(ValueError, match="one column each, of one length"):
        groups().column(X[:3])
    with pytest.raises(ValueError, match="interpolation is one of"):
        groups().quantile(X, 0.5, "median")
