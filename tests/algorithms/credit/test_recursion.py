"""The linear recursion and temporal differences against loops, one chain at a time."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gxpo.algorithms.credit.recursion import linear_recursion, next_in, semi_mdp, td_residual

F64 = torch.float64
ROWS = st.lists(
    st.tuples(
        st.integers(0, 3),  # chain
        st.booleans(),  # counted
        st.floats(-2, 2),  # delta
        st.sampled_from([0.0, 1.0, 0.9, -0.5, 1e-200, 3.0]),  # coefficient
    ),
    max_size=40,
)


def loop(rows, following):
    """A_i = delta_i + c_i A_next, from the end of each chain, in Python floats."""
    out = [0.0] * len(rows)
    for i in reversed(range(len(rows))):
        out[i] = rows[i][2] + (rows[i][3] * out[following[i]] if following[i] >= 0 else 0.0)
    return out


@settings(max_examples=60, deadline=None)
@given(rows=ROWS)
def test_the_recursion_equals_a_loop_over_each_chain(rows) -> None:
    rows = sorted(rows, key=lambda row: row[0])
    chain = torch.tensor([r[0] for r in rows], dtype=torch.int64)
    counted = torch.tensor([r[1] for r in rows], dtype=torch.bool)
    following = next_in(chain, counted)
    expected = []
    for i, (c, local_value, *_) in enumerate(rows):
        later = [j for j in range(i + 1, len(rows)) if rows[j][0] == c and rows[j][1]]
        expected.append(later[0] if local_value and later else -1)
    assert following.tolist() == expected
    delta, coefficient = torch.tensor([r[2] for r in rows], dtype=F64), torch.tensor([r[3] for r in rows], dtype=F64)
    actual = linear_recursion(delta, coefficient, following)
    assert actual.tolist() == pytest.approx(loop(rows, expected), rel=1e-9, abs=1e-9)
    assert delta.tolist() == [r[2] for r in rows]  # untouched


def test_a_long_chain_is_exact_to_rounding() -> None:
    """A geometric series: sum_k 0.999^k over 20000 rows, and a sum of ones."""
    n = 20000
    following = torch.cat([torch.arange(1, n), torch.tensor([-1])])
    ones = torch.ones(n, dtype=F64)
    series = linear_recursion(ones, 0.999, following)
    assert float(series[0]) == pytest.approx((1 - 0.999**n) / 0.001, rel=1e-12)
    assert linear_recursion(ones, 1.0, following).tolist() == [float(n - i) for i in range(n)]


def test_a_row_does_not_depend_on_the_rest_of_the_batch() -> None:
    generator = torch.Generator().manual_seed(0)
    delta = torch.randn(300, generator=generator, dtype=F64)
    chain = torch.tensor([0] * 7 + [1] * 293)
    first_chain = linear_recursion(delta[:7], 0.97, next_in(chain[:7]))
    assert torch.equal(linear_recursion(delta, 0.97, next_in(chain))[:7], first_chain)


def test_rows_of_a_chain_need_not_stand_together() -> None:
    assert next_in(torch.tensor([0, 1, 0, 1, 0])).tolist() == [2, 3, 4, -1, -1]


def test_no_rows() -> None:
    nothing = torch.zeros(0, dtype=torch.int64)
    assert next_in(nothing).shape == (0,) and linear_recursion(nothing.double(), 0.9, nothing).shape == (0,)


def test_td_residuals_discount_each_transition() -> None:
    """delta = r + g V' - V:  1 + .5*4 - 2 = 1;  0 + .9*8 - 4 = 3.2;  3 - 8 = -5, or with 10 beyond 3 + 9 - 8 = 4."""
    reward, value = torch.tensor([1.0, 0.0, 3.0]), torch.tensor([2.0, 4.0, 8.0])
    discount, following = torch.tensor([0.5, 0.9, 0.9], dtype=F64), torch.tensor([1, 2, -1])
    assert td_residual(reward, value, following, discount).tolist() == pytest.approx([1.0, 3.2, -5.0])
    actual = td_residual(reward, value, following, discount, at_end=torch.full((3,), 10.0))
    assert actual.tolist() == pytest.approx([1.0, 3.2, 4.0]) and not math.isnan(float(actual.sum()))


def test_options_have_the_reward_and_the_discount_of_their_time() -> None:
    """Two turns that pay 0 0, three that pay .5 0 1, at .9: 0 and .81; .5 + .81*1 = 1.31 and .729."""
    option = torch.tensor([0, 0, 1, 1, 1])
    earned, after = semi_mdp(torch.tensor([0, 0, 0.5, 0, 1], dtype=F64), next_in(option), 0.9)
    assert earned[[0, 2]].tolist() == pytest.approx([0.0, 1.31])
    assert after[[0, 2]].tolist() == pytest.approx([0.81, 0.729]) and float(after[4]) == pytest.approx(0.9)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 999), discount=st.sampled_from([1.0, 0.9, 0.0]))
def test_options_equal_a_loop(seed, discount) -> None:
    rng = random.Random(seed)
    sizes = [rng.randrange(1, 5) for _ in range(rng.randrange(1, 5))]
    option = torch.tensor([k for k, n in enumerate(sizes) for _ in range(n)])
    reward = [rng.uniform(-1, 1) for _ in option]
    earned, after = semi_mdp(torch.tensor(reward, dtype=F64), next_in(option), discount)
    at = 0
    for n in sizes:
        for i in range(n):
            total = sum(discount**j * reward[at + i + j] for j in range(n - i))
            assert float(earned[at + i]) == pytest.approx(total) and float(after[at + i]) == discount ** (n - i)
        at += n
