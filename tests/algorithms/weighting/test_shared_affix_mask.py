"""GTPO's conflict tokens: the card, a loop over positions, who is on which side, the whole method's gradient."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gxpo
from gxpo.algorithms.weighting import TokenWeight
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest


def column(*x):
    return torch.tensor(x, dtype=torch.float64)


def forest_of(rows):
    """(group, tokens, fields of the record...)"""
    return Forest.from_records(
        [
            {"schema": "gxpo.rollouts/1", "group": g, "id": f"t{i}", "prompt": [1], "reward": 1.0}
            | {"turns": [{"action": list(t), "logprob": [-1.0] * len(t)}]}
            | (more[0] if more else {})
            for i, (g, t, *more) in enumerate(rows)
        ]
    )


def weights(rows, signs, gain=2.0):
    forest = forest_of(rows)
    credit = forest.to_path(column(*signs), "R")
    weight_P = TokenWeight("credit", "shared_affix", options={"gain": gain})(forest, credit, {}, 0)
    return [weight_P[forest.path_of(r)].tolist() for r in range(len(rows))]


def test_card() -> None:
    assert weights([("g", b"abc"), ("g", b"axc")], [1, -1]) == [[2, 1, 2], [0, 1, 0]]
    assert weights([("g", b"ab"), ("g", b"ab")], [1, -1]) == [[4, 4], [0, 0]]


def test_ends_are_aligned_from_the_end() -> None:
    rows = [("g", b"ab;"), ("g", b"axxb;")]
    assert weights(rows, [1, -1]) == [[2, 2, 2], [0, 1, 1, 0, 0]]
    # ";" alone is at the same place from the end, and nothing is from the start
    assert weights([("g", b"xb;"), ("g", b"axc;")], [1, -1]) == [[1, 1, 2], [1, 1, 1, 0]]


def test_runs_end_at_the_first_token_that_is_not_contested() -> None:
    assert weights([("g", b"abcde"), ("g", b"axcxe")], [1, -1]) == [[2, 1, 1, 1, 2], [0, 1, 1, 1, 0]]


def test_sides_groups_and_who_is_compared() -> None:
    same = [("g", b"a"), ("g", b"a")]
    assert weights(same, [1, 1]) == [[1], [1]] and weights(same, [1, 0]) == [[1], [1]]
    assert weights([("g", b"a"), ("h", b"a")], [1, -1]) == [[1], [1]]
    assert weights([("g", b"a"), ("g", b"a", {"compared": False})], [1, -1]) == [[1], [1]]
    three = [("g", b"a"), ("g", b"a"), ("g", b"a", {"compared": False})]
    assert weights(three, [1, -1, -1]) == [[4], [0], [0]] and weights(three, [1, -1, 0]) == [[4], [0], [1]]


ROWS = st.lists(
    st.tuples(
        st.sampled_from("gh"),
        st.lists(st.integers(5, 7), min_size=1, max_size=4),
        st.sampled_from([-1.0, 0.0, 2.0]),
        st.booleans(),
    ),
    min_size=1,
    max_size=7,
)


@settings(max_examples=150, deadline=None)
@given(ROWS)
def test_equals_a_loop(rows):
    def clash(i, back):
        """True for each token of row i, from that end, that occurs on both sides of its group."""
        row_tokens = rows[i][1][::-1] if back else rows[i][1]
        out = []
        for t, token in enumerate(row_tokens):
            sides = set()
            for g, tokens, sign, compared in rows:
                other = tokens[::-1] if back else tokens
                if compared and g == rows[i][0] and t < len(other) and other[t] == token and sign:
                    sides.add(sign > 0)
            out.append(len(sides) == 2)
        run = [all(out[: t + 1]) for t in range(len(out))]
        return run[::-1] if back else run

    expected = []
    for i, (_, tokens, sign, _) in enumerate(rows):
        ends = [a + b for a, b in zip(clash(i, False), clash(i, True), strict=True)]
        expected.append([3.0**n if sign > 0 else float(not (n and sign < 0)) for n in ends])
        assert len(tokens) == len(expected[-1])
    weight_P = weights([(g, t, {"compared": c}) for g, t, _, c in rows], [s for *_, s, _ in rows], gain=3.0)
    assert weight_P == expected


def test_gtpo_has_its_gradient_on_two_answers() -> None:
    """A = .5 - .1 H and -.5 - .1 H, a mean over tokens, then over answers, entropies .2 and .4; the third is too
    unsure."""
    forest = forest_of([("g", b"abc"), ("g", b"axc", {"reward": 0.0}), ("g", b"zz", {"reward": 0.5})])
    signals = {"entropy": column(0.2, 0.2, 0.2, 0.4, 0.4, 0.4, 0.9, 0.6)}
    logprob = (forest.path_behaviour_logprob + 3.0).requires_grad_()  # no ratio: however far the policy has moved
    m = gxpo.method("gtpo")
    policy = gxpo.PolicyTokens(logprob, forest.path_behaviour_logprob)
    (slope,) = torch.autograd.grad(m.loss(forest, policy, signals=signals).value, logprob)
    right, wrong = 0.5 - 0.02, -0.5 - 0.04
    expected = [-2 * right, -right, -2 * right, 0, -wrong, 0, 0, 0]
    assert slope.tolist() == pytest.approx([x / 9 for x in expected])


def test_bad_options() -> None:
    with pytest.raises(ConfigError, match=r"shared_affix_mask\.gain"):
        gxpo.method("gtpo", {"weight.shared_affix_mask.gain": 0.5})
