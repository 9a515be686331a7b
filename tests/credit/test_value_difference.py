"""Differences of values along a trajectory: the cards' numbers, a loop, sums that telescope, masks."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import strategies

import gxpo
from gxpo.credit.value_difference import VALUE, ValueDifference, value_difference
from gxpo.errors import ConfigError, GxpoError
from gxpo.forest import Forest
from gxpo.segments import SegmentTools, Surprising

F64 = torch.float64
NAN = math.nan


def chains(*rows: tuple[float | None, list[float], list[float | None]], **fields: Any) -> Forest:
    """(outcome, probabilities of its tokens, values before them) each, a group of all."""
    forest = Forest.from_records(
        {
            "schema": "gxpo.rollouts/1",
            "group": "g",
            "id": f"t{i}",
            "prompt": [1],
            "reward": outcome,
            "turns": [{"action": [3] * len(p), "logprob": [math.log(x) if x == x else None for x in p]}],
            **fields,
        }
        for i, (outcome, p, _) in enumerate(rows)
    )
    return valued(forest, [NAN if x is None else x for _, _, own in rows for x in own])


def valued(forest: Forest, values: list[float]) -> Forest:
    """The forest with these values of the path tokens, in order (shared ones: the last)."""
    column = torch.full((forest.n_tokens,), NAN, dtype=F64)
    column[forest.path_token] = torch.tensor(values, dtype=F64)
    return forest.replace(extras={**forest.extras, VALUE: column})


# ---------------------------------------------------------------- the cards
def test_vineppo() -> None:
    # V = [.5, .75] at two steps, R = 1: .75 - .5 and 1 - .75
    forest = chains((1.0, [0.5] * 4, [0.5, None, 0.75, None]))
    assert ValueDifference()(forest, {}, 0).tolist() == [0.25] * 4


def test_spo_chain() -> None:
    """p below .9 at 0, 2, 4, 6, every second: cuts before tokens 0 and 4, so V = [.5, .75] there; R = 1.
    Both differences are .25; tokens with p above .9 have 0."""
    p = [0.5, 0.95, 0.6, 0.99, 0.7, 0.95, 0.4, 0.97]
    forest = chains((1.0, p, [None] * 8))
    forest = Surprising(interval=2)(forest, SegmentTools(lambda ids: "x" * len(ids)))
    assert forest.segment[forest.path_token].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    forest = valued(forest, [0.5, NAN, NAN, NAN, 0.75, NAN, NAN, NAN])
    assert ValueDifference(confident=0.9)(forest, {}, 0).tolist() == [0.25, 0, 0.25, 0, 0.25, 0, 0.25, 0]


def test_spo_chain_without_a_value_of_the_prompt() -> None:
    # nothing to begin from: the first segment has 0
    forest = chains((1.0, [0.5] * 4, [None, None, 0.75, None]))
    assert ValueDifference()(forest, {}, 0).tolist() == [0.0, 0.0, 0.25, 0.25]


def test_pav() -> None:
    # best of 4: 1 - .75^4 = .68359375, 1 - .5^4 = .9375: .25390625; then the outcome 1 itself: .0625
    forest = chains((1.0, [0.5] * 2, [0.25, 0.5]))
    assert ValueDifference(best_of=4)(forest, {}, 0).tolist() == [0.25390625, 0.0625]
    assert ValueDifference(best_of=4, factor=5.0)(forest, {}, 0).tolist() == [1.26953125, 0.3125]


# ---------------------------------------------------------------- a loop
def loop(forest: Forest, best_of: int, confident: float) -> list[float]:
    """Token by token, trajectory by trajectory, from the end."""
    better = lambda v: 1 - (1 - v) ** best_of  # noqa: E731
    out = [0.0] * forest.n_entries
    for r in range(forest.n_trajectories):
        end, held = better(float(forest.outcome[r])), []
        for p in reversed(forest.path_of(r).tolist()):
            held.append(p)
            value = float(forest.extras[VALUE][forest.path_token[p]])
            if value == value:
                for q in held:
                    out[q] = end - better(value)
                end, held = better(value), []
    for p, logprob in enumerate(forest.path_behaviour_logprob.tolist()):
        if math.exp(logprob) > confident:
            out[p] = 0.0
    return out


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([1, 4]), st.sampled_from([1.0, 0.5]))
def test_it_agrees_with_a_loop(seed: int, best_of: int, confident: float) -> None:
    forest = strategies.random_forest(seed, groups=2, rollouts=4, unscored=False)
    draws = torch.Generator().manual_seed(seed)
    value = torch.rand(forest.n_tokens, generator=draws, dtype=F64)
    value[torch.rand(forest.n_tokens, generator=draws) < 0.5] = NAN
    forest = forest.replace(extras={**forest.extras, VALUE: value}, outcome=forest.outcome.sigmoid())
    found = ValueDifference(best_of=best_of, confident=confident)(forest, {}, 0)
    assert found.tolist() == pytest.approx(loop(forest, best_of, confident), abs=1e-12)
    order = torch.randperm(forest.n_trajectories, generator=draws)
    moved = ValueDifference(best_of=best_of, confident=confident)(forest.select(order), {}, 0)
    assert torch.equal(moved, found[forest.entries_of(order)])
    flat = forest.flatten()
    assert torch.equal(ValueDifference(best_of=best_of, confident=confident)(flat, {}, 0), found)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.floats(0, 1), st.sampled_from([1, 2, 7]))
def test_the_differences_add_up_to_the_outcome_less_the_first_value(values, outcome, k) -> None:
    value, trajectory = torch.tensor(values, dtype=F64), torch.zeros(len(values), dtype=torch.int64)
    found = value_difference(value, torch.tensor([outcome], dtype=F64), trajectory, k)
    expected = (1 - (1 - outcome) ** k) - (1 - (1 - values[0]) ** k)
    assert float(found.sum()) == pytest.approx(expected, abs=1e-12)


def test_with_the_prompt_alone_it_is_the_outcome_less_its_value() -> None:
    forest = chains((1.0, [0.5] * 3, [0.4, None, None]), (0.0, [0.5] * 2, [0.4, None]))
    assert ValueDifference()(forest, {}, 0).tolist() == pytest.approx([0.6] * 3 + [-0.4] * 2, abs=1e-15)


def test_a_very_strong_prover_sees_no_difference() -> None:
    forest = chains((1.0, [0.5] * 2, [0.25, 0.5]))
    assert max(ValueDifference(best_of=400)(forest, {}, 0).abs().tolist()) < 1e-12


# ---------------------------------------------------------------- whitening, masks, groups
def test_whitening_is_over_trainable_tokens_that_are_not_confident() -> None:
    forest = chains((1.0, [0.5, 0.95, 0.5, 0.6], [0.5, None, 0.75, 0.25]), (0.0, [0.5], [0.25]))
    # .25, (masked), -.5, .75, and -.25
    kept = [0.25, -0.5, 0.75, -0.25]
    mean, spread = statistics.fmean(kept), math.sqrt(statistics.variance(kept) + 1e-8)
    white = [(x - mean) / spread for x in kept]
    found = ValueDifference(confident=0.9, whiten="token")(forest, {}, 0).tolist()
    assert found == pytest.approx([white[0], 0.0, *white[1:]], abs=1e-9)


def test_an_unknown_log_prob_is_not_confident() -> None:
    forest = chains((1.0, [NAN, 0.99], [0.5, None]))
    assert ValueDifference(confident=0.9)(forest, {}, 0).tolist() == [0.5, 0.0]


def test_a_group_of_one_and_of_equal_outcomes_learns_and_an_unscored_one_has_nothing() -> None:
    m = gxpo.method("grpo", {"credit": ValueDifference})
    forest = chains((1.0, [0.5], [0.5]), (1.0, [0.5], [0.75]), (None, [0.5], [0.25]))
    assert m.advantages(forest).tolist() == [0.5, 0.25, 0.0]


def test_a_masked_token_keeps_its_place_in_the_token_mean() -> None:
    """SPO's code divides by the unsure tokens alone: 2 of 4 here, so its gradient is twice this one."""
    forest = chains((1.0, [0.5, 0.95, 0.6, 0.99], [0.5, None, None, None]))
    keys = {"credit": ValueDifference, "credit.confident": 0.9, "objective.aggregate": "token_mean"}
    m = gxpo.method("grpo", keys)
    logprob = forest.path_behaviour_logprob.clone().requires_grad_()
    policy = gxpo.PolicyTokens(logprob, forest.path_behaviour_logprob)
    (gradient,) = torch.autograd.grad(m.loss(forest, policy).value, logprob)
    theirs = [-0.5 / 2, 0.0, -0.5 / 2, 0.0]
    assert gradient.tolist() == pytest.approx([x * 2 / 4 for x in theirs], abs=1e-12)


# ---------------------------------------------------------------- refusals
def test_refusals() -> None:
    bare = chains((1.0, [0.5], [0.5])).replace(extras={})
    with pytest.raises(GxpoError, match=r"use rollout=continuations"):
        ValueDifference()(bare, {}, 0)
    with pytest.raises(GxpoError, match=r"credit\.best_of=4 is of chances"):
        ValueDifference(best_of=4)(chains((2.0, [0.5], [0.5])), {}, 0)
    for field, value in (("best_of", 0), ("confident", 0.0), ("confident", 1.5), ("whiten", "turn")):
        with pytest.raises(ConfigError, match=rf"credit\.{field}"):
            ValueDifference(**{field: value})
    assert ValueDifference.requires == ("state_values",) and ValueDifference().on_equal == "signal"
