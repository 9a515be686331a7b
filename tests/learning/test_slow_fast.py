"""Fast steps, reposition, slow correction, and the rise of the entropy that ends it."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.learning.llamas import clean_llama, random_forest

import gxpo
from gxpo.algorithms.signals import Signals
from gxpo.base.errors import CheckpointError, ConfigError, GxpoError
from gxpo.forest.forest import Forest
from gxpo.learning.base import Epochs
from gxpo.learning.slow_fast import SlowFast, reposition, surge
from gxpo.learning.torch import TorchLearner
from gxpo.parts.protocols import StepInfo
from gxpo.training.bound_learner import BoundLearner

FOREST = Forest.from_completions([[2]], [[[5], [6]]], [0.0, 1.0])
ONES = torch.ones(2, dtype=torch.float64)


class Scalar:
    """A learner of one number that loses 0.1 a step and reports one entropy."""

    def __init__(self, entropy=1.0, empty=False) -> None:
        self.theta, self.steps, self.empty = torch.tensor([1.0], dtype=torch.float64), 0, empty
        self.entropy, self.seen = entropy, []

    def step(self, forest, credit, weight, trajectories=None):
        assert trajectories is None
        self.seen.append(float(self.theta))
        self.steps += 1
        if not self.empty:
            self.theta = self.theta - 0.1
        return StepInfo(empty=self.empty, outputs={"entropy": torch.full((2,), self.entropy, dtype=torch.float64)})

    def snapshot(self):
        return {"theta": self.theta.clone()}

    def restore(self, snapshot):
        self.theta = snapshot["theta"].clone()


def play(part, entropies):
    """Optimiser steps of each step of the update, where the steps report these entropies."""
    counts = []
    for entropy in entropies:
        learner = Scalar(entropy)
        part.run(FOREST, ONES, ONES, learner)
        counts.append(learner.steps)
    return counts


# ---------------------------------------------------------------- the three phases
def test_the_card():
    # theta_0 = 1, three steps of -.1 give theta_3 = .7; 1 + .8 (.7 - 1) = .76; the correction gives .66
    learner = Scalar()
    infos = SlowFast(inner_steps=3, alpha=0.8).run(FOREST, ONES, ONES, learner)
    assert learner.seen == pytest.approx([1.0, 0.9, 0.8, 0.76]) and float(learner.theta) == pytest.approx(0.66)
    assert len(infos) == 4 == SlowFast().optimiser_steps(5)


@given(st.floats(0, 1), st.floats(-9, 9), st.floats(-9, 9))
def test_reposition_stays_between_and_is_exact_at_both_ends(alpha, start, end):
    a, b = {"w": torch.tensor([start], dtype=torch.float64)}, {"w": torch.tensor([end], dtype=torch.float64)}
    assert torch.equal(reposition(a, b, 0.0)["w"], a["w"]) and torch.equal(reposition(a, b, 1.0)["w"], b["w"])
    between = float(reposition(a, b, alpha)["w"])
    assert between == pytest.approx(start + alpha * (end - start), abs=1e-9)


def test_nothing_to_learn_from_is_one_empty_step():
    learner = Scalar(empty=True)
    infos = SlowFast().run(FOREST, ONES, ONES, learner)
    assert [i.empty for i in infos] == [True] and float(learner.theta) == 1.0


# ---------------------------------------------------------------- on a model
def bound(learner, forest, seed):
    method = gxpo.method("grpo")
    signals = Signals.of(forest, {})
    credit = torch.randn(forest.n_entries, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    weight = method.token_weights(forest, credit, signals, 1)
    return BoundLearner(learner, method, forest, signals, 1), credit, weight


def scored(seed):
    forest = random_forest(seed)
    return forest.replace(outcome=torch.nan_to_num(forest.outcome))


def run(part, learner, seed):
    forest = scored(seed)
    bound_learner, credit, weight = bound(learner, forest, seed)
    return part.run(forest, credit, weight, bound_learner), bound_learner


def fresh(**settings):
    return TorchLearner(clean_llama(), lr=1e-2, **settings)


@pytest.mark.parametrize("k", [0, 2])
def test_alpha_one_is_plain_steps_bit_for_bit(k):
    ours, plain = fresh(), fresh()
    for seed in (1, 2):
        infos, _ = run(SlowFast(inner_steps=k, alpha=1.0), ours, seed)
        run(Epochs(epochs=k + 1), plain, seed)
        assert len(infos) == k + 1
    assert ours.fingerprint() == plain.fingerprint()
    assert all(torch.equal(x, plain.tensors()[name]) for name, x in ours.tensors().items())


def test_alpha_zero_undoes_the_way_but_not_what_adam_has_seen():
    learner, still = fresh(), fresh()
    start = learner.snapshot()
    where = []
    original = learner.step
    learner.step = lambda *a, **k: (where.append(learner.snapshot()), original(*a, **k))[1]
    run(SlowFast(inner_steps=2, alpha=0.0), learner, 1)
    assert all(torch.equal(where[2][n], start[n]) for n in start)
    assert any(not torch.equal(where[1][n], start[n]) for n in start)
    run(Epochs(), still, 1)
    assert learner.optimiser.steps == 3 and still.optimiser.steps == 1
    assert learner.fingerprint() != still.fingerprint()


def test_the_ratio_is_over_the_policy_at_the_start_throughout():
    learner = fresh()
    forest = scored(1)
    before = learner.outputs(forest)["logprob"]
    infos, bound_learner = run(SlowFast(inner_steps=2, alpha=0.5), learner, 1)
    first_logprob = infos[0].outputs["logprob"]
    is_known = first_logprob.isfinite()
    assert torch.allclose(first_logprob[is_known], before[is_known], rtol=0, atol=1e-12)
    assert torch.equal(bound_learner.proximal[is_known], first_logprob[is_known])
    assert [m["on_policy"] for m in bound_learner.metrics] == [1.0, 0.0, 0.0]


def test_killed_and_resumed_is_the_run_that_was_never_stopped():
    def part():
        return SlowFast(inner_steps=2, window=3, threshold=0.5)

    def go(part, learner, steps):
        return [len(run(part, learner, s)[0]) for s in steps]

    full_part, learner = part(), fresh()
    counts = go(full_part, learner, range(1, 8))
    for stop in (3, 5):
        first, one = part(), fresh()
        begun = go(first, one, range(1, stop + 1))
        saved, tensors, meta = json.dumps(first.state_dict()), one.tensors(), one.meta()
        second, other = part(), fresh()
        second.load_state_dict(json.loads(saved))
        other.load_tensors(tensors, meta)
        assert begun + go(second, other, range(stop + 1, 8)) == counts
        assert other.fingerprint() == learner.fingerprint() and second.state_dict() == full_part.state_dict()
    assert set(counts) == {1, 3}  # the rule has acted on the way


# ---------------------------------------------------------------- the rise of the entropy
def test_the_score_of_the_newest():
    # of [1, 1, 4]: mean 2, population std sqrt(2): z = 2 / 1.41421 = 1.41421
    assert surge([9.0, 1.0, 1.0, 4.0], 3) == pytest.approx(math.sqrt(2), abs=1e-6)
    assert surge([1.0, 4.0], 3) == 0.0 and surge([2.0] * 5, 3) == 0.0
    assert surge([4.0, 1.0, 1.0], 3) == pytest.approx(-math.sqrt(0.5), abs=1e-6)


def test_a_rise_ends_it_for_good_from_the_next_step_on():
    part = SlowFast(inner_steps=3, window=3, threshold=1.0)
    # [1, 1, 4] is 1.41 above; seen after the third step, so the fourth is plain, and falling again changes nothing
    assert play(part, [1.0, 1.0, 4.0, 0.0, 0.0, 0.0]) == [4, 4, 4, 1, 1, 1]
    assert part.plain


def test_a_fall_does_not_end_it():
    assert play(SlowFast(window=3), [4.0, 4.0, 1.0, 0.5, 0.2]) == [4] * 5


def test_no_rule_before_the_window_is_full():
    assert play(SlowFast(window=4), [1.0, 1.0, 9.0]) == [4] * 3
    assert play(SlowFast(window=4), [1.0, 1.0, 1.0, 9.0, 1.0]) == [4, 4, 4, 4, 1]


@given(st.lists(st.floats(0, 5), min_size=1, max_size=12), st.integers(2, 5), st.floats(0.2, 2.5))
def test_the_rule_against_a_loop(entropies, window, threshold):
    counts, over = [], False
    for i in range(len(entropies)):
        recent = entropies[max(0, i - window) : i]
        if len(recent) == window and max(recent) > min(recent):
            mean = math.fsum(recent) / window
            std = math.sqrt(math.fsum((x - mean) ** 2 for x in recent) / window)
            z = (recent[-1] - mean) / (std + 1e-9)
            if abs(z - threshold) < 1e-6:
                return  # rounding decides
            over = over or z >= threshold
        counts.append(1 if over else 4)
    assert play(SlowFast(window=window, threshold=threshold), entropies) == counts


def test_two_parts_remember_apart():
    one, other = SlowFast(window=2, threshold=0.9), SlowFast(window=2, threshold=0.9)
    play(one, [1.0, 4.0, 1.0])
    assert one.plain and not other.plain and other.state_dict()["entropies"] == []


# ---------------------------------------------------------------- refusals
def test_refusals():
    for fields in ({"inner_steps": -1}, {"alpha": 1.1}, {"alpha": -0.1}):
        with pytest.raises(ConfigError, match=rf"update\.{next(iter(fields))} is "):
            SlowFast(**fields)
    with pytest.raises(ConfigError, match=r"update\.window"):
        SlowFast(window=1)
    with pytest.raises(CheckpointError, match="slow_fast"):
        SlowFast().load_state_dict({"epochs": 1})

    class Silent(Scalar):
        def step(self, *args):
            super().step(*args)
            return StepInfo(empty=False)

    with pytest.raises(GxpoError, match="watches the entropy"):
        SlowFast().run(FOREST, ONES, ONES, Silent())
