"""Turns from the last to the first: the published numbers, what each step is given, and what it is on a model."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.battery import battery
from tests.learning.llamas import clean_llama

import gxpo
from gxpo.algorithms.signals import Signals
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.learning.base import Epochs
from gxpo.learning.torch import TorchLearner
from gxpo.learning.turns_reversed import TurnsReversed, turn_numbers, turn_ratio
from gxpo.parts.protocols import StepInfo
from gxpo.training.bound_learner import BoundLearner


def column(*x):
    return torch.tensor(x, dtype=torch.float64)


def record(name, *turns, group="g", reward=0.0, trainable=True):
    actions = [
        {"observation": [50 + i], "action": list(tokens), "logprob": [-1.0] * len(tokens), "trainable": trainable}
        for i, tokens in enumerate(turns)
    ]
    return {"schema": "gxpo.rollouts/1", "group": group, "id": name, "prompt": [1], "turns": actions, "reward": reward}


FROM_THE_END = TurnsReversed(reduce="product", count="end", old_policy="step")


# ---------------------------------------------------------------- the card
def test_the_ratio_of_a_turn():
    # means .025 and .075; sums .05 and .15
    moved, of = column(0.1, -0.05, 0.1, 0.05), torch.tensor([0, 0, 1, 1])
    assert turn_ratio(moved, of, 2).tolist() == pytest.approx([math.exp(0.025), math.exp(0.075)], abs=1e-12)
    assert turn_ratio(moved, of, 2, "product").tolist() == pytest.approx([1.051271, 1.161834], abs=1e-6)


def test_the_ratio_of_a_turn_is_finite():
    actual = turn_ratio(column(1e6, -1e6), torch.tensor([0, 1]), 3)
    assert actual.tolist() == pytest.approx([math.exp(20), math.exp(-20), 1.0])


# ---------------------------------------------------------------- which turn is when
@given(st.integers(0, 10_000))
def test_distances_are_what_a_loop_says(seed):
    rng = random.Random(seed)
    records = [
        record(f"{i}", *[[rng.randrange(2, 9) for _ in range(rng.randrange(1, 4))] for _ in range(rng.randrange(1, 5))])
        for i in range(rng.randrange(1, 5))
    ]
    for row in records:
        for turn in row["turns"]:
            turn["trainable"] = rng.random() < 0.8
    forest = Forest.from_records(records)
    before, after = turn_numbers(forest)
    for r, row in enumerate(records):
        at = forest.path_of(r).tolist()
        for i, turn in enumerate(row["turns"]):
            earlier, later = (sum(t["trainable"] for t in row["turns"][cut]) for cut in (slice(i), slice(i + 1, None)))
            for _ in turn["action"]:
                p = at.pop(0)
                assert (int(before[p]), int(after[p])) == (earlier, later)
        assert not at


class Scripted:
    """Records what each step is given; a step adds `drift` to the log-probs of all tokens."""

    def __init__(self, forest, drift=0.05, empty=()):
        self.forest, self.drift, self.now, self.steps, self.empty = forest, drift, 0.0, [], set(empty)
        self.renewed = []

    def renew(self):
        self.renewed.append(self.now)

    def logprob(self):
        return self.forest.path_behaviour_logprob + self.now

    def step(self, forest, credit, weight, trajectories=None):
        assert trajectories is None
        empty = len(self.steps) in self.empty
        self.steps.append((forest.path_trainable.clone(), credit.clone(), weight.clone()))
        self.now += 0.0 if empty else self.drift
        return StepInfo(empty=empty)


def test_each_step_has_one_turn_and_the_credit_so_far():
    # a: turns of 2, 1, 3 tokens; b: one of 2. By number: (3, -), (1, -), (2, 2)
    forest = Forest.from_records([record("a", [5, 6], [7], [8, 9, 10], reward=1.0), record("b", [11, 12])])
    learner = Scripted(forest, drift=0.15)
    credit, weight = column(1, 1, 1, 1, 1, 1, -1, -1), torch.ones(8, dtype=torch.float64)
    assert len(TurnsReversed().run(forest, credit, weight, learner)) == 3
    trained = [[int(x) for x in step[0]] for step in learner.steps]
    assert trained == [[0, 0, 0, 1, 1, 1, 0, 0], [0, 0, 1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0, 1, 1]]
    # every step moves its tokens by .15: e^.15 = 1.161834, and twice that is held at 1.2; b has not been trained on
    credits = [step[1].tolist() for step in learner.steps]
    assert credits[1] == pytest.approx([math.exp(0.15)] * 6 + [-1] * 2)
    assert credits[2] == pytest.approx([1.2] * 6 + [-1] * 2)
    assert learner.renewed == pytest.approx([0.15, 0.3])


def test_turns_from_the_end_and_products_since_the_start():
    # a: turns of 2, 1, 3 tokens; b: one of 2. From the end: (3, 2), (1, -), (2, -)
    forest = Forest.from_records([record("a", [5, 6], [7], [8, 9, 10], reward=1.0), record("b", [11, 12])])
    learner = Scripted(forest, drift=0.05)
    credit, weight = column(1, 1, 1, 1, 1, 1, -1, -1), torch.ones(8, dtype=torch.float64)
    infos = FROM_THE_END.run(forest, credit, weight, learner)
    assert len(infos) == 3 and not learner.renewed
    trained = [[int(x) for x in step[0]] for step in learner.steps]
    assert trained == [[0, 0, 0, 1, 1, 1, 1, 1], [0, 0, 1, 0, 0, 0, 0, 0], [1, 1, 0, 0, 0, 0, 0, 0]]
    # after the first step three tokens have moved by .05 each: e^.15; b's two: e^.1. After the second one token has
    # moved by .1 since the start: e^.15 e^.1
    credits = [step[1].tolist() for step in learner.steps]
    assert credits[0] == credit.tolist()
    a, b = math.exp(0.15), math.exp(0.1)
    assert credits[1] == pytest.approx([a] * 6 + [-b] * 2)
    assert credits[2] == pytest.approx([1.2] * 6 + [-b] * 2)  # e^.25 = 1.284 is held


def test_empty_and_last_steps_correct_nothing():
    forest = Forest.from_records([record("a", [5], [6]), record("b", [7], [8])])
    learner = Scripted(forest, drift=0.1, empty={0})
    looked = []
    learner.logprob = lambda: looked.append(1) or Scripted.logprob(learner)
    credit = column(1, 1, -1, -1)
    infos = TurnsReversed().run(forest, credit, torch.ones(4, dtype=torch.float64), learner)
    assert [i.empty for i in infos] == [True, False] and torch.equal(learner.steps[1][1], credit)
    assert len(looked) == 1


def test_turns_without_trained_tokens_are_no_turns():
    records = [record("a", [5], [6]), record("b", [7], [8])]
    for row in records:
        row["turns"][1]["trainable"] = False
    forest = Forest.from_records(records)
    learner = Scripted(forest)
    TurnsReversed().run(forest, column(1, 1, -1, -1), torch.ones(4, dtype=torch.float64), learner)
    assert len(learner.steps) == 1 and torch.equal(learner.steps[0][0], forest.path_trainable)


def test_a_shared_turn_at_two_distances_counts_at_each():
    base = record("a", [5, 6], [7])
    fork = {"schema": "gxpo.rollouts/1", "group": "g", "id": "b", "fork": {"of": "a", "turn": 0, "token": 2},
            "turns": [{"action": [8], "logprob": [-1.0]}], "reward": 1.0}  # fmt: skip
    forest = Forest.from_records([base, fork])
    learner = Scripted(forest)
    FROM_THE_END.run(forest, torch.ones(6, dtype=torch.float64), torch.ones(6, dtype=torch.float64), learner)
    # entries: a's 5 6 | 7, b's 5 6 8: a's first turn is one before its end, b's only turn is the last
    weights = [step[2].tolist() for step in learner.steps]
    assert weights == [[0, 0, 1, 1, 1, 1], [1, 1, 0, 0, 0, 0]]


# ---------------------------------------------------------------- on a model
def fresh():
    return TorchLearner(clean_llama(vocab_size=64), lr=1e-2, weight_decay=0.0)


def bound(learner, forest, overrides=None):
    m = gxpo.method("seeupo", overrides)
    signals = Signals.of(forest, {})
    credit = m.advantages(forest, signals)
    weight = m.token_weights(forest, credit, signals)
    return m, BoundLearner(learner, m, forest, signals, 1), credit, weight


def crc(update, forest):
    learner = fresh()
    _, bound_learner, credit, weight = bound(learner, forest)
    infos = update.run(forest, credit, weight, bound_learner)
    return learner.fingerprint(), infos, bound_learner


def test_with_one_turn_it_is_one_plain_step_bit_for_bit():
    forest = Forest.from_completions([[7, 8]], [[[5, 6], [9], [10, 11, 12]]], [0.0, 1.0, 0.5])
    ours, infos, _ = crc(TurnsReversed(), forest)
    plain, _, _ = crc(Epochs(), forest)
    assert ours == plain and len(infos) == 1


@pytest.mark.parametrize("update", [TurnsReversed(), FROM_THE_END])
def test_by_hand_on_a_model(update):
    """Two turns: the second step's ratio is over what stood before it, or over the start; its credit is corrected."""
    forest, learner = battery(2), fresh()
    m, bound_learner, credit, weight = bound(learner, forest)
    start = learner.outputs(forest)["logprob"]
    update.run(forest, credit, weight, bound_learner)

    other, (number, to_go) = fresh(), turn_numbers(forest)
    at = to_go if update.count == "end" else number.max() - number
    signals = Signals.of(forest, {})
    current, old = credit.clone(), start
    for k in (0, 1):
        narrowed = Forest.from_records(forest.to_records())
        trainable = forest.trainable.clone()
        for p in range(forest.n_entries):
            if int(at[p]) != k:
                trainable[forest.path_token[p]] = False
        narrowed = forest.replace(trainable=trainable)

        def loss(x, narrowed=narrowed, current=current, old=old):
            pol = gxpo.PolicyTokens(x["logprob"], forest.path_behaviour_logprob, proximal_logprob=old)
            return m.objective(narrowed, pol, current, weight, signals)

        other.step(narrowed, loss, couples="trajectory")
        after = other.outputs(forest)["logprob"]
        for r in range(forest.n_trajectories):
            rows = [p for p in forest.path_of(r).tolist() if int(at[p]) == k]
            total = math.fsum(float(after[p] - start[p]) for p in rows)
            total /= 1 if update.reduce == "product" else max(len(rows), 1)
            current[forest.path_of(r)] *= min(max(math.exp(total), 0.8), 1.2)
        old = after if update.old_policy == "turn" else start
    ours, theirs = learner.snapshot(), other.snapshot()
    assert max(float((ours[n] - theirs[n]).abs().max()) for n in ours) < 1e-9
    if update.old_policy == "turn":
        assert [row["on_policy"] for row in bound_learner.metrics] == [1.0, 1.0]
    else:
        assert [row["on_policy"] for row in bound_learner.metrics] == [1.0, 0.0]
        assert torch.allclose(bound_learner.proximal, start, atol=1e-12)


def test_the_loss_of_a_turn_is_a_mean_over_its_own_tokens():
    """Long earlier turns do not thin out the last one."""
    short = [record("a", [5, 6], reward=1.0), record("b", [7, 8])]
    long = [record("a", [9] * 7, [5, 6], reward=1.0), record("b", [10] * 7, [7, 8])]
    losses = []
    for records in (short, long):
        forest = Forest.from_records(records)
        learner = fresh()
        _, bound_learner, credit, weight = bound(learner, forest)
        infos = TurnsReversed().run(forest, credit, weight, bound_learner)
        # at ratio 1 the loss is -mean over trajectories of M
        losses.append((infos[0].loss, int(infos[0].outputs["logprob"].isfinite().sum())))
    assert losses[0] == pytest.approx(losses[1]) and losses[1][1] == 4


def test_equal_groups_move_nothing():
    learner = fresh()
    before = learner.fingerprint()
    forest = battery(5, rewards=(0.1, 0.7, 1 / 3))
    _, bound_learner, credit, weight = bound(learner, forest)
    infos = TurnsReversed().run(forest, credit, weight, bound_learner)
    assert all(i.empty for i in infos) and learner.fingerprint() == before


def test_the_method():
    m = gxpo.method("seeupo")
    # outcomes 1, 0 | 1, 1: centred .5, -.5, 0, 0; std over the batch (ddof 1) sqrt(.5 / 3) = .408248
    rows = [record("a", [5], group="g", reward=1.0), record("b", [6], group="g"),
            record("c", [7], group="h", reward=1.0), record("d", [8], group="h", reward=1.0)]  # fmt: skip
    actual = m.advantages(Forest.from_records(rows)).tolist()
    assert actual == pytest.approx([1.224745, -1.224745, 0.0, 0.0], abs=1e-6)
    assert m.couples == "trajectory" and m.update == TurnsReversed()
    far = gxpo.method("seeupo", {"credit.bound": 1.0}).advantages(Forest.from_records(rows)).tolist()
    assert far == [1.0, -1.0, 0.0, 0.0]


def test_refusals():
    for fields in ({"correction_low": 1.5}, {"correction_low": -0.1}, {"correction_high": -1.0}):
        with pytest.raises(ConfigError, match=rf"update\.{next(iter(fields))} is "):
            TurnsReversed(**fields)
    for fields in ({"reduce": "sum"}, {"count": "middle"}, {"old_policy": "now"}):
        with pytest.raises(ConfigError, match=rf"update\.{next(iter(fields))}"):
            TurnsReversed(**fields)
    with pytest.raises(ConfigError, match=r"credit\.bound"):
        gxpo.method("seeupo", {"credit.bound": 0.0})
    with pytest.raises(ConfigError, match=r"update\.planned_steps"):
        TurnsReversed(planned_steps=0)
    assert TurnsReversed(planned_steps=4).optimiser_steps(9) == 4
