"""Changes of value along a trajectory: the cards' numbers, loops, sums that telescope, masks, targets."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests import strategies
from tests.algorithms.credit.test_search_value import tree
from tests.strategies import forests

import gxpo
from gxpo.algorithms.credit import GroupRelative
from gxpo.algorithms.credit.value_delta import VALUE, ValueDelta, value_delta
from gxpo.algorithms.segments import SegmentTools, Surprising
from gxpo.base.errors import ConfigError, GxpoError
from gxpo.forest.forest import Forest
from gxpo.forest.reshape import pieces_of

F64 = torch.float64
NAN = math.nan
Grow = Callable[..., Forest]


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
    return valued(forest, [NAN if x is None else x for _, _, own_value in rows for x in own_value])


def valued(forest: Forest, values: list[float]) -> Forest:
    """The forest with these values of the path tokens, in order (shared ones: the last)."""
    column = torch.full((forest.n_tokens,), NAN, dtype=F64)
    column[forest.path_token] = torch.tensor(values, dtype=F64)
    return forest.replace(extras={**forest.extras, VALUE: column})


# ---------------------------------------------------------------- the cards
def test_vineppo() -> None:
    # V = [.5, .75] at two steps, R = 1: .75 - .5 and 1 - .75
    forest = chains((1.0, [0.5] * 4, [0.5, None, 0.75, None]))
    assert ValueDelta()(forest, {}, 0).tolist() == [0.25] * 4


def test_spo_chain() -> None:
    """p below .9 at 0, 2, 4, 6, every second: cuts before tokens 0 and 4, so V = [.5, .75] there; R = 1.
    Both differences are .25; tokens with p above .9 have 0."""
    p = [0.5, 0.95, 0.6, 0.99, 0.7, 0.95, 0.4, 0.97]
    forest = chains((1.0, p, [None] * 8))
    forest = Surprising(interval=2)(forest, SegmentTools(lambda ids: "x" * len(ids)))
    assert forest.segment[forest.path_token].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    forest = valued(forest, [0.5, NAN, NAN, NAN, 0.75, NAN, NAN, NAN])
    assert ValueDelta(max_probability=0.9)(forest, {}, 0).tolist() == [0.25, 0, 0.25, 0, 0.25, 0, 0.25, 0]


def test_spo_chain_without_a_value_of_the_prompt() -> None:
    # nothing to begin from: the first segment has 0
    forest = chains((1.0, [0.5] * 4, [None, None, 0.75, None]))
    assert ValueDelta()(forest, {}, 0).tolist() == [0.0, 0.0, 0.25, 0.25]


def test_pav() -> None:
    # best of 4: 1 - .75^4 = .68359375, 1 - .5^4 = .9375: .25390625; then the outcome 1 itself: .0625
    forest = chains((1.0, [0.5] * 2, [0.25, 0.5]))
    assert ValueDelta(best_of=4)(forest, {}, 0).tolist() == [0.25390625, 0.0625]
    assert ValueDelta(best_of=4, factor=5.0)(forest, {}, 0).tolist() == [1.26953125, 0.3125]


# ---------------------------------------------------------------- a loop
def loop(forest: Forest, best_of: int, confident: float) -> list[float]:
    """Token by token, trajectory by trajectory, from the end."""
    better = lambda v: 1 - (1 - v) ** best_of  # noqa: E731
    out = [0.0] * forest.n_entries
    for r in range(forest.n_trajectories):
        end, values_of_row = better(float(forest.outcome[r])), []
        for p in reversed(forest.path_of(r).tolist()):
            values_of_row.append(p)
            value = float(forest.extras[VALUE][forest.path_token[p]])
            if value == value:
                for q in values_of_row:
                    out[q] = end - better(value)
                end, values_of_row = better(value), []
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
    actual = ValueDelta(best_of=best_of, max_probability=confident)(forest, {}, 0)
    assert actual.tolist() == pytest.approx(loop(forest, best_of, confident), abs=1e-12)
    order = torch.randperm(forest.n_trajectories, generator=draws)
    moved = ValueDelta(best_of=best_of, max_probability=confident)(forest.select(order), {}, 0)
    assert torch.equal(moved, actual[forest.entries_of(order)])
    flat = forest.flatten()
    assert torch.equal(ValueDelta(best_of=best_of, max_probability=confident)(flat, {}, 0), actual)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.floats(0, 1), st.sampled_from([1, 2, 7]))
def test_differences_telescope_to_outcome_less_first_value(values, outcome, k) -> None:
    forest = chains((outcome, [0.5] * len(values), values))
    expected = (1 - (1 - outcome) ** k) - (1 - (1 - values[0]) ** k)
    assert float(ValueDelta(best_of=k)(forest, {}, 0).sum()) == pytest.approx(expected, abs=1e-12)


def test_with_the_prompt_alone_it_is_the_outcome_less_its_value() -> None:
    forest = chains((1.0, [0.5] * 3, [0.4, None, None]), (0.0, [0.5] * 2, [0.4, None]))
    assert ValueDelta()(forest, {}, 0).tolist() == pytest.approx([0.6] * 3 + [-0.4] * 2, abs=1e-15)


def test_a_very_strong_prover_sees_no_difference() -> None:
    forest = chains((1.0, [0.5] * 2, [0.25, 0.5]))
    assert max(ValueDelta(best_of=400)(forest, {}, 0).abs().tolist()) < 1e-12


def test_values_of_a_signal() -> None:
    # .5 -> .75 -> the outcome 1; before the first known value nothing
    forest = chains((1.0, [0.5] * 4, [None] * 4))
    part = ValueDelta("mine")
    assert part.needs == ("mine",) and part.learns_from_equal_groups and part.requires == ()
    mine = torch.tensor([NAN, 0.5, 0.75, NAN], dtype=F64)
    assert part(forest, {"mine": mine}, 0).tolist() == [0.0, 0.25, 0.25, 0.25]


# ---------------------------------------------------------------- whitening, masks, groups
def test_whitening_leaves_out_confident_tokens() -> None:
    forest = chains((1.0, [0.5, 0.95, 0.5, 0.6], [0.5, None, 0.75, 0.25]), (0.0, [0.5], [0.25]))
    # .25, (masked), -.5, .75, and -.25
    kept_values = [0.25, -0.5, 0.75, -0.25]
    mean, spread = statistics.fmean(kept_values), math.sqrt(statistics.variance(kept_values) + 1e-8)
    white = [(x - mean) / spread for x in kept_values]
    actual = ValueDelta(max_probability=0.9, whiten="token")(forest, {}, 0).tolist()
    assert actual == pytest.approx([white[0], 0.0, *white[1:]], abs=1e-9)


def test_an_unknown_log_prob_is_not_confident() -> None:
    forest = chains((1.0, [NAN, 0.99], [0.5, None]))
    assert ValueDelta(max_probability=0.9)(forest, {}, 0).tolist() == [0.5, 0.0]


def test_single_and_equal_groups_learn_unscored_ones_do_not() -> None:
    m = gxpo.method("grpo", {"credit": ValueDelta})
    forest = chains((1.0, [0.5], [0.5]), (1.0, [0.5], [0.75]), (None, [0.5], [0.25]))
    assert m.advantages(forest).tolist() == [0.5, 0.25, 0.0]


def test_a_masked_token_keeps_its_place_in_the_token_mean() -> None:
    """SPO's code divides by the unsure tokens alone: 2 of 4 here, so its gradient is twice this one."""
    forest = chains((1.0, [0.5, 0.95, 0.6, 0.99], [0.5, None, None, None]))
    keys = {"credit": ValueDelta, "credit.max_probability": 0.9, "objective.aggregate": "token_mean"}
    m = gxpo.method("grpo", keys)
    logprob = forest.path_behaviour_logprob.clone().requires_grad_()
    policy = gxpo.PolicyTokens(logprob, forest.path_behaviour_logprob)
    (gradient,) = torch.autograd.grad(m.loss(forest, policy).value, logprob)
    theirs = [-0.5 / 2, 0.0, -0.5 / 2, 0.0]
    assert gradient.tolist() == pytest.approx([x * 2 / 4 for x in theirs], abs=1e-12)


# ---------------------------------------------------------------- beliefs
def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


def test_gains_in_belief() -> None:
    """C = [.2, .3, .25, .8]: gains [.1, -.05, .55]; with A = .5 and alpha 1 [.6, .45, 1.05]; logs of 1.5, 5/6, 3.2."""
    before, after = column(0.2, 0.3, 0.25), column(0.3, 0.25, 0.8)
    assert value_delta(before, after).tolist() == pytest.approx([0.1, -0.05, 0.55])
    assert (0.5 + value_delta(before, after)).tolist() == pytest.approx([0.6, 0.45, 1.05])
    assert value_delta(before, after, form="log").tolist() == pytest.approx([0.405465, -0.182322, 1.163151], abs=1e-6)
    assert float(value_delta(before, after).sum()) == pytest.approx(0.8 - 0.2)


def test_unknown_beliefs_gain_nothing_and_0_has_a_log() -> None:
    assert value_delta(column(math.nan, 0.5), column(0.5, math.nan)).tolist() == [0.0, 0.0]
    assert value_delta(column(0.0, 0.0), column(0.0, 1.0), form="log")[0] == 0.0
    assert math.isfinite(float(value_delta(column(0.0), column(1.0), form="log")))


@settings(max_examples=25, deadline=None)
@given(forest=forests(), alpha=st.sampled_from([0.0, 1.0, 2.5]), seed=st.integers(0, 99))
def test_gains_are_added_entry_by_entry(forest: Forest, alpha: float, seed: int) -> None:
    rng = random.Random(seed)
    before = [rng.choice([0.1, 0.4, math.nan]) for _ in range(forest.n_entries)]
    after = [rng.choice([0.2, 0.9, math.nan]) for _ in range(forest.n_entries)]
    signals = {"belief_before": column(*before), "belief_after": column(*after)}
    m = gxpo.method("grpo_vps", {"credit.add.progress.factor": alpha})
    plain = gxpo.method("grpo", {"credit.scale": "none"}).advantages(forest)
    actual = m.advantages(forest, signals)
    for p in range(forest.n_entries):
        gain = alpha * (after[p] - before[p])
        if math.isnan(gain) or not bool(forest.scored[forest.path_trajectory[p]]):
            gain = 0.0
        assert float(actual[p]) == pytest.approx(float(plain[p]) + gain, abs=1e-12)


def test_without_alpha_grpo_vps_is_grpo_without_std(grow: Grow) -> None:
    forest = grow([("a", 1.0, [2, 1]), ("a", 0.0, [3]), ("b", 0.5, [1])])
    signals = {"belief_before": torch.rand(7).double(), "belief_after": torch.rand(7).double()}
    actual = gxpo.method("grpo_vps", {"credit.add.progress.factor": 0.0}).advantages(forest, signals)
    assert torch.equal(actual, GroupRelative(scale="none")(forest, {}, 0))


def test_grpo_vps_asks_for_segments_and_joint_probabilities() -> None:
    m = gxpo.method("grpo_vps")
    assert "segments" in m.requires and m.signals["answer_belief"].reduce == "joint"
    assert m.signals["answer_belief"].unit == "segment" and (m.segmenter.segments, m.segmenter.candidates) == (None, 4)


# ---------------------------------------------------------------- pieces of a tree
def by_hand() -> Forest:
    """x (2 tokens) - a right, b wrong; c wrong alone, of two pieces. V: root 1/3, x 1/2."""
    return tree(("a", 1, [2, 1], None), ("b", 0, [1], ("a", 2)), ("c", 0, [1, 1], None))


def test_pieces_by_hand():
    # x: 1/2 - 1/3; a: 1 - 1/2; b: 0 - 1/2; c: 0 - 1/3, then 0
    sixth, half, third = 1 / 6, 0.5, 1 / 3
    expected = [sixth, sixth, half, sixth, sixth, -half, -third, 0.0]
    assert ValueDelta("pieces", target="last")(by_hand(), {}, 0).tolist() == pytest.approx(expected, abs=1e-12)
    twice = ValueDelta("pieces", 2.0)(by_hand(), {}, 0)
    assert twice.tolist() == pytest.approx([2 * x for x in expected], abs=1e-12)
    assert ValueDelta("pieces", 0.0)(by_hand(), {}, 0).tolist() == [0.0] * 8


def test_targets_by_hand():
    forest = by_hand()
    (last,) = ValueDelta("pieces", target="last").targets(forest, {}, 0).values()
    nan = math.nan
    assert last.tolist() == pytest.approx([nan, 0.5, 1.0, nan, 0.5, 0.0, 0.0, 0.0], nan_ok=True)
    (first,) = ValueDelta("pieces", target="first").targets(forest, {}, 0).values()
    assert first.tolist() == pytest.approx([1 / 3, nan, 0.5, 1 / 3, nan, 0.5, 1 / 3, 0.0], nan_ok=True)


@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_pieces_agree_with_a_loop_and_add_up(seed):
    forest = strategies.random_forest(seed, groups=3, rollouts=6, unscored=False)
    credit = ValueDelta("pieces", target="last")(forest, {}, 0)
    target = ValueDelta("pieces", target="last").targets(forest, {}, 0)["value_target"]
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
            own_credit = credit[int(pieces.first[k]) : int(pieces.last[k]) + 1].tolist()
            assert own_credit == pytest.approx([after - before] * len(own_credit), abs=1e-9)
            assert float(target[int(pieces.last[k])]) == pytest.approx(after, abs=1e-9)
            total, before = total + own_credit[0], after
        if mine:
            assert total == pytest.approx(outcome - mean, abs=1e-9)
    assert int(target.isfinite().sum()) == len(pieces.first)


def test_equal_outcomes_have_no_credit_and_a_target():
    forest = tree(("a", 1, [2, 1], None), ("b", 1, [1], ("a", 2)))
    forest = forest.replace(outcome=torch.full((2,), 0.1, dtype=F64))
    assert ValueDelta("pieces", target="last")(forest, {}, 0).tolist() == [0.0] * forest.n_entries
    target = ValueDelta("pieces", target="last").targets(forest, {}, 0)["value_target"]
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


# ---------------------------------------------------------------- refusals
def test_refusals() -> None:
    bare = chains((1.0, [0.5], [0.5])).replace(extras={})
    with pytest.raises(GxpoError, match=r"use rollout=monte_carlo_values"):
        ValueDelta()(bare, {}, 0)
    with pytest.raises(GxpoError, match=r"credit\.best_of=4 is of chances"):
        ValueDelta(best_of=4)(chains((2.0, [0.5], [0.5])), {}, 0)
    for field, value in (("best_of", 0), ("max_probability", 0.0), ("max_probability", 1.5), ("whiten", "turn"),
                         ("form", "ratio"), ("target", "middle"), ("branch_key", "token")):  # fmt: skip
        with pytest.raises(ConfigError, match=rf"credit\.{field} is"):
            ValueDelta(**{field: value})
    with pytest.raises(ConfigError, match=r"credit\.length_power is of branch points, not of pieces"):
        ValueDelta("pieces", length_power=1.0)
    assert ValueDelta().requires == ("state_values",) and ValueDelta().learns_from_equal_groups
    assert (
        ValueDelta("branch_points").requires == ("forks",) and not ValueDelta("branch_points").learns_from_equal_groups
    )
    with pytest.raises(ConfigError, match="'mine', which no part provides"):
        gxpo.method("grpo", {"credit": "value_delta", "credit.value": "mine"})
