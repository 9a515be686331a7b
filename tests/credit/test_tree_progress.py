"""Values after pieces: targets of a head, telescoping credit, a loop."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import strategies
from tests.credit.test_search_value import tree

import gxpo
from gxpo.credit.pieces import pieces_of
from gxpo.credit.tree_progress import TreeProgress
from gxpo.errors import ConfigError, GxpoError
from gxpo.forest import Forest

F64 = torch.float64


def by_hand() -> Forest:
    """x (2 tokens) - a right, b wrong; c wrong alone, of two pieces. V: root 1/3, x 1/2."""
    return tree(("a", 1, [2, 1], None), ("b", 0, [1], ("a", 2)), ("c", 0, [1, 1], None))


def test_credit_by_hand():
    # x: 1/2 - 1/3; a: 1 - 1/2; b: 0 - 1/2; c: 0 - 1/3, then 0
    sixth, half, third = 1 / 6, 0.5, 1 / 3
    expected = [sixth, sixth, half, sixth, sixth, -half, -third, 0.0]
    assert TreeProgress()(by_hand(), {}, 0).tolist() == pytest.approx(expected, abs=1e-12)
    twice = TreeProgress(progress=2.0)(by_hand(), {}, 0)
    assert twice.tolist() == pytest.approx([2 * x for x in expected], abs=1e-12)
    assert TreeProgress(progress=0.0)(by_hand(), {}, 0).tolist() == [0.0] * 8


def test_targets_by_hand():
    forest = by_hand()
    (last,) = TreeProgress().targets(forest, {}, 0).values()
    nan = math.nan
    assert last.tolist() == pytest.approx([nan, 0.5, 1.0, nan, 0.5, 0.0, 0.0, 0.0], nan_ok=True)
    (first,) = TreeProgress(at="first").targets(forest, {}, 0).values()
    assert first.tolist() == pytest.approx([1 / 3, nan, 0.5, 1 / 3, nan, 0.5, 1 / 3, 0.0], nan_ok=True)


@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_it_agrees_with_a_loop_and_adds_up(seed):
    forest = strategies.random_forest(seed, groups=3, rollouts=6, unscored=False)
    credit = TreeProgress()(forest, {}, 0)
    target = TreeProgress().targets(forest, {}, 0)["value_target"]
    pieces = pieces_of(forest)
    tokens = {r: set(forest.path_token[forest.path_of(r)].tolist()) for r in range(forest.n_trajectories)}
    for r in range(forest.n_trajectories):
        same = [o for o in tokens if forest.group[o] == forest.group[r] and bool(forest.compared[o])]
        outcome = float(forest.outcome[r])
        mean = sum(float(forest.outcome[o]) for o in same) / len(same) if same else outcome
        before, total = mean, 0.0
        mine = [k for k in range(len(pieces.first)) if int(pieces.trajectory[k]) == r]
        for k in mine:
            end = int(forest.path_token[int(pieces.last[k])])
            through = [float(forest.outcome[o]) for o in same if end in tokens[o]]
            after = sum(through) / len(through) if through and k != mine[-1] else outcome
            own = credit[int(pieces.first[k]) : int(pieces.last[k]) + 1].tolist()
            assert own == pytest.approx([after - before] * len(own), abs=1e-9)
            assert float(target[int(pieces.last[k])]) == pytest.approx(after, abs=1e-9)
            total, before = total + own[0], after
        if mine:
            assert total == pytest.approx(outcome - mean, abs=1e-9)
    assert int(target.isfinite().sum()) == len(pieces.first)


def test_equal_outcomes_have_no_credit_and_a_target():
    forest = tree(("a", 1, [2, 1], None), ("b", 1, [1], ("a", 2)))
    forest = forest.replace(outcome=torch.full((2,), 0.1, dtype=F64))
    assert TreeProgress()(forest, {}, 0).tolist() == [0.0] * forest.n_entries
    target = TreeProgress().targets(forest, {}, 0)["value_target"]
    assert target[target.isfinite()].tolist() == pytest.approx([0.1] * 4)


def test_the_head_is_trained_where_a_step_ends():
    m, forest = gxpo.method("alphamath"), by_hand()
    logprob = torch.zeros(forest.n_entries, dtype=F64, requires_grad=True)
    value = torch.zeros(forest.n_entries, dtype=F64, requires_grad=True)
    pol = gxpo.PolicyTokens(logprob, torch.zeros(forest.n_entries, dtype=F64), value=value)
    credit = m.advantages(forest)
    assert credit.tolist() == [1.0, 1.0, 1.0] + [0.0] * 5  # right attempts are imitated, nothing is centred
    out = m.loss(forest, pol)
    out.value.backward()
    # 6 targets .5 1 .5 0 0 0: d/dv of 0.5 * mean (v - target)^2 / 2 at 0 = -target / 12
    expected = [0.0, -0.5 / 12, -1 / 12, 0.0, -0.5 / 12, 0.0, 0.0, 0.0]
    assert value.grad is not None and value.grad.tolist() == pytest.approx(expected, abs=1e-12)
    # -log pi, mean over the 3 tokens of the right attempt, 3 attempts
    assert logprob.grad is not None and logprob.grad.tolist() == pytest.approx([-1 / 9] * 3 + [0.0] * 5, abs=1e-12)


def test_refusals():
    with pytest.raises((ConfigError, GxpoError), match="at"):
        TreeProgress(at="middle")  # type: ignore[arg-type]  # refused
    with pytest.raises(ConfigError, match="progress"):
        TreeProgress(progress=math.inf)
