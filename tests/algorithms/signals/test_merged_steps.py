"""The reward model of steps and merged steps: features against a loop, labels, what it learns, resume."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import strategies
from tests.algorithms.credit.compositions import piece_reward_credit, step_reward_credit
from tests.algorithms.credit.test_search_value import tree

from gxpo.algorithms.signals.merged_steps import MergedSteps, span_features, step_labels
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.forest.reshape import pieces_of

F64 = torch.float64


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


class Hidden:
    def __init__(self, table: torch.Tensor) -> None:
        self.table = table

    def hidden(self, forest: Forest, layer: int = -1) -> torch.Tensor:
        return self.table


def tools_of(table: torch.Tensor) -> Any:
    return SimpleNamespace(learner=Hidden(table), decode=str, blank_id=0, step=1, seed=0)


# ---------------------------------------------------------------- features and labels
@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_features_equal_a_loop(seed):
    forest = strategies.random_forest(seed, groups=2, rollouts=5)
    spans = pieces_of(forest)
    hidden = noise(forest.n_entries, 3, seed=seed)
    single, pair, follows = span_features(hidden, spans.first, spans.last, spans.trajectory, spans.piece)
    for k in range(len(spans.first)):
        own_hidden = hidden[int(spans.first[k]) : int(spans.last[k]) + 1]
        before = k > 0 and int(spans.trajectory[k]) == int(spans.trajectory[k - 1])
        both = hidden[int(spans.first[k - 1]) : int(spans.last[k]) + 1] if before else own_hidden
        assert bool(follows[k]) == before
        assert single[k].tolist() == pytest.approx([*own_hidden.mean(0).tolist(), *own_hidden[-1].tolist()], abs=1e-9)
        assert pair[k].tolist() == pytest.approx([*both.mean(0).tolist(), *own_hidden[-1].tolist()], abs=1e-9)


def test_a_step_is_labelled_by_what_came_of_it():
    place, outcome = torch.tensor([0, 0, 1, 2]), torch.tensor([1.0, 0.0, 1.0, 7.0], dtype=F64)
    where = torch.tensor([True, True, True, False])
    assert step_labels(outcome, place, where).tolist() == pytest.approx([0.5, 0.5, 1.0, math.nan], nan_ok=True)


# ---------------------------------------------------------------- the part
def by_hand() -> Forest:
    """x - a right, b wrong; c of two steps, wrong."""
    return tree(("a", 1, [2, 1], None), ("b", 0, [1], ("a", 2)), ("c", 0, [1, 1], None))


def test_shared_steps_count_once_and_pairs_take_the_2nd_label():
    part, forest = MergedSteps(min_rows=2), by_hand()
    table = noise(forest.n_tokens, 2).float()
    actual = part.compute(forest, {}, tools_of(table))["piece_reward"]
    assert actual.tolist() == [0.0] * forest.n_entries
    figures = part.learn(forest, {}, tools_of(table))
    # steps x (1/2), a 1, b 0, c's 0 0; pairs x+a 1, x+b 0, c's 0
    assert part.memory["target"].tolist() == [0.5, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0]
    assert figures["steps_rows"] == 0.0 and figures["steps_used"] == 0.0
    assert figures["steps_error"] == pytest.approx(1.25 / 5)
    single = MergedSteps(min_rows=2, pair_weight=0.0)
    single.compute(forest, {}, tools_of(table))
    single.learn(forest, {}, tools_of(table))
    assert single.memory["target"].tolist() == [0.5, 1.0, 0.0, 0.0, 0.0]


def told(seed: int) -> tuple[Forest, torch.Tensor]:
    """Attempts of three steps whose hidden state tells how they end, from the second step on."""
    rng = torch.Generator().manual_seed(seed)
    right = (torch.rand(24, generator=rng) < 0.5).int().tolist()
    forest = tree(*((f"t{i}", r, [2, 2, 2], None, f"g{i // 6}") for i, r in enumerate(right)))
    table = 0.1 * noise(forest.n_tokens, 2, seed=seed)
    for r, success in enumerate(right):
        own_path_token = forest.path_token[forest.path_of(r)]
        table[own_path_token[2:], 0] += 2.0 * success - 1.0
    return forest, table.float()


def test_it_learns_which_steps_end_well():
    part, figures = MergedSteps(min_rows=64), {}
    for seed in range(6):
        forest, table = told(seed)
        reward = part.compute(forest, {}, tools_of(table))["piece_reward"]
        figures = part.learn(forest, {}, tools_of(table))
    assert figures["steps_used"] == 1.0 and figures["steps_error"] < 0.6 * figures["steps_spread"]
    late = reward[4::6]
    assert bool((late[forest.success >= 1].min() > late[forest.success < 1].max()).item())
    credit = piece_reward_credit()(forest, {"piece_reward": reward}, 0)
    assert credit.shape == (forest.n_entries,)


def test_nothing_of_the_judged_rollouts_is_in_their_rewards():
    part = MergedSteps(min_rows=64)
    for seed in range(4):
        forest, table = told(seed)
        part.compute(forest, {}, tools_of(table))
        part.learn(forest, {}, tools_of(table))
    forest, table = told(9)
    before = part.compute(forest, {}, tools_of(table))["piece_reward"]
    other = forest.replace(outcome=1 - forest.outcome)
    assert torch.equal(part.compute(other, {}, tools_of(table))["piece_reward"], before)


def test_a_loaded_one_goes_on_alike():
    part = MergedSteps(min_rows=16, buffer=100)
    for seed in range(3):
        forest, table = told(seed)
        part.compute(forest, {}, tools_of(table))
        part.learn(forest, {}, tools_of(table))
    assert part.rows == 100
    other = MergedSteps(min_rows=16, buffer=100)
    other.load_tensors({k: v.clone() for k, v in part.tensors().items()})
    other.load_state_dict(part.state_dict())
    forest, table = told(7)
    one, two = (p.compute(forest, {}, tools_of(table))["piece_reward"] for p in (part, other))
    assert torch.equal(one, two)
    assert part.learn(forest, {}, tools_of(table)) == other.learn(forest, {}, tools_of(table))
    assert all(torch.equal(part.tensors()[k], other.tensors()[k]) for k in part.tensors())


def test_unscored_and_uncompared_rollouts_teach_nothing():
    forest = tree(("a", 1, [1, 1], None), ("b", None, [1, 1], None), ("c", 0, [1, 1], None))
    forest = forest.replace(compared=torch.tensor([True, True, False]))
    part, table = MergedSteps(min_rows=2), noise(forest.n_tokens, 2).float()
    part.compute(forest, {}, tools_of(table))
    part.learn(forest, {}, tools_of(table))
    assert part.memory["target"].tolist() == [1.0, 1.0, 1.0]  # two steps of a and their pair


def test_refusals():
    for bad in (
        {"pair_weight": 1.5},
        {"score_unit": "pair"},
        {"ridge": -1.0},
        {"min_rows": 1},
        {"min_rows": 99, "buffer": 9},
    ):
        with pytest.raises(ConfigError, match="merged_steps"):
            MergedSteps(**bad)


# ---------------------------------------------------------------- the credit that reads it
def test_the_credit_by_hand():
    # outcomes 1, 0, 0: A^E = [1.154699, -.577350, -.577350]; rewards of pieces 1 2 | 1 0 | 1 1: mean 1, std .632456 (6)
    forest = by_hand()
    reward = torch.tensor([1.0, 9, 2, 1, 9, 0, 1, 1], dtype=F64)  # what is not first in its piece is not read
    credit = piece_reward_credit()(forest, {"piece_reward": reward}, 0)
    high, low, one = 1.154699, -0.577350, 1.581136
    expected = [high, high, high + one, low, low, low - one, low, low]
    assert credit.tolist() == pytest.approx(expected, abs=1e-5)
    none = piece_reward_credit(step_weight=0.0)(forest, {"piece_reward": reward}, 0)
    assert none.tolist() == pytest.approx([high] * 3 + [low] * 5, abs=1e-5)


@settings(max_examples=20)
@given(st.integers(0, 10**6))
def test_of_turns_it_is_the_credit_of_steps(seed):
    forest = strategies.random_forest(seed, groups=2, rollouts=5, unscored=False)
    forest = forest.replace(segment=torch.full_like(forest.segment, -1))
    has = torch.bincount(forest.path_step, minlength=forest.n_steps) > 0
    if not bool(has.all()):
        return  # a turn without tokens is a step, and no piece
    reward = noise(forest.n_steps, seed=seed)
    actual = piece_reward_credit()(forest, {"piece_reward": forest.to_path(reward, "S")}, 0)
    assert torch.allclose(actual, step_reward_credit()(forest, {"process_reward": reward}, 0), atol=1e-9)
