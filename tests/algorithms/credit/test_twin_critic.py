"""Twin critics over utterances: worked numbers, a loop, where values are read, the method."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import forests

import gxpo
from gxpo.algorithms.credit.twin_critic import TwinCritic, twin_critic
from gxpo.base.errors import ConfigError, GxpoError
from gxpo.forest.forest import Forest

F64 = torch.float64
NAN = float("nan")
Grow = Callable[..., Forest]
HEADS = ("q1", "q2", "v1", "v2", "baseline")
HALF = {"t0": 0, "t1": 0, "t2": 1}  # the low bit of blake2b's one-byte digest


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


def half(name: str) -> int:
    return hashlib.blake2b(name.encode(), digest_size=1).digest()[0] & 1


def test_card() -> None:
    """min(.7, .8) - min(.5, .4) = .3."""
    actual = twin_critic(column(0.7), column(0.8), column(0.5), column(0.4))
    assert actual.tolist() == pytest.approx([0.3])


def test_values_are_read_at_the_ends_of_each_turn(grow: Grow) -> None:
    """Three times the same two turns, of 2 and 3 tokens; outcome 1, g = .9. V at first tokens, Q at last ones, 9.9
    elsewhere. A = .3, then min(.6, .2) - min(.1, .5) = .1; targets of Q_i: 0 + .9 V_i' = .09, .45, then 1; of V_i: Q_i.
    The first pair is fitted to the first two trajectories, the second to the third."""
    forest = grow([("a", 1.0, [2, 3])] * 3)
    assert {name: half(name) for name in forest.id} == HALF
    wild, nowhere = 9.9, [NAN] * 5
    signals = {
        "value@q1": column(*3 * [wild, 0.7, wild, wild, 0.6]),
        "value@q2": column(*3 * [wild, 0.8, wild, wild, 0.2]),
        "value@v1": column(*3 * [0.5, wild, 0.1, wild, wild]),
        "value@v2": column(*3 * [0.4, wild, 0.5, wild, wild]),
        "value@baseline": column(*3 * [0.1, 0.2, 0.0, 0.05, 0.1]),
    }
    part = TwinCritic()
    assert part(forest, signals, 0).tolist() == pytest.approx(3 * [0.2, 0.1, 0.1, 0.05, 0.0])
    actual = part.targets(forest, signals, 0)
    expected = {
        "q1": [*2 * [NAN, 0.09, NAN, NAN, 1.0], *nowhere],
        "q2": [*nowhere, *nowhere, NAN, 0.45, NAN, NAN, 1.0],
        "v1": [*2 * [0.7, NAN, 0.6, NAN, NAN], *nowhere],
        "v2": [*nowhere, *nowhere, 0.8, NAN, 0.2, NAN, NAN],
        "baseline": 3 * [0.3, 0.3, 0.1, 0.1, 0.1],
    }
    assert set(actual) == {f"value_target@{name}" for name in HEADS} == set(part.provides)
    for name, values in expected.items():
        assert actual[f"value_target@{name}"].tolist() == pytest.approx(values, nan_ok=True), name
    plain = TwinCritic(baseline=False)
    assert plain(forest, signals, 0).tolist() == pytest.approx(3 * [0.3, 0.3, 0.1, 0.1, 0.1])
    assert plain.needs == tuple(f"value@{n}" for n in HEADS[:4]) and "value_target@baseline" not in plain.provides


@settings(max_examples=40, deadline=None)
@given(
    forest=forests(unscored=False, texts=False, after=False, max_turns=4),
    seed=st.integers(0, 999),
    discount=st.sampled_from([0.9, 1.0, 0.0]),
)
def test_equals_a_loop_on_any_forest(forest, seed, discount) -> None:
    rng = random.Random(seed)
    text = {n: [rng.uniform(-1, 1) for _ in range(forest.n_entries)] for n in HEADS}
    signals = {f"value@{n}": column(*x) for n, x in text.items()}
    credit = [0.0] * forest.n_entries
    targets = {n: [NAN] * forest.n_entries for n in HEADS}
    for r in range(forest.n_trajectories):
        steps = [s for s in range(forest.n_steps) if int(forest.step_trajectory[s]) == r]
        paid = {s: float(forest.step_reward[s]) for s in steps}
        if all(x != x for x in paid.values()):
            paid = dict.fromkeys(steps, 0.0)
            paid[steps[-1]] = float(forest.outcome[r])
        turns: list[dict[str, Any]] = []
        for s in steps:
            own_paths = [
                p for p in forest.path_of(r).tolist() if int(forest.path_step[p]) == s and forest.path_trainable[p]
            ]
            if own_paths:
                turns.append({"own": own_paths, "r": 0.0})
            if turns and paid[s] == paid[s]:
                turns[-1]["r"] += paid[s]
        for t, after in zip(turns, [*turns[1:], None], strict=False):
            first, last = t["own"][0], t["own"][-1]
            a = min(text["q1"][last], text["q2"][last]) - min(text["v1"][first], text["v2"][first])
            for i in "12":
                if int(i) != half(forest.id[r]) + 1:
                    continue
                then = 0.0 if after is None else text[f"v{i}"][after["own"][0]]
                targets[f"q{i}"][last], targets[f"v{i}"][first] = t["r"] + discount * then, text[f"q{i}"][last]
            for p in t["own"]:
                credit[p], targets["baseline"][p] = a - text["baseline"][p], a
    part = TwinCritic(discount=discount)
    assert part(forest, signals, 0).tolist() == pytest.approx(credit, abs=1e-9)
    for name, actual in part.targets(forest, signals, 0).items():
        assert actual.tolist() == pytest.approx(targets[name.split("@")[1]], abs=1e-9, nan_ok=True)


def test_critics_that_know_the_values_tell_the_better_utterance(grow: Grow) -> None:
    """Two turns; after "a" the game is won, after "b" lost; V = .5. A = +-.5: what REINFORCE with V has."""
    forest = grow([("a", 1.0, [2]), ("a", 0.0, [2])])
    q, v = column(0, 1, 0, 0), column(0.5, 0.5, 0.5, 0.5)
    signals = {"value@q1": q, "value@q2": q, "value@v1": v, "value@v2": v}
    assert TwinCritic(baseline=False)(forest, signals, 0).tolist() == pytest.approx([0.5, 0.5, -0.5, -0.5])


def test_the_method_trains_five_heads_and_has_no_ratio_bound(grow: Grow) -> None:
    """Gradient of -A rho, mean over three answers of one token: -A/3 rho, however far the policy has moved."""
    m, forest = gxpo.method("archer"), grow([("a", 1.0, [1]), ("a", 0.0, [1]), ("a", 0.0, [1])])
    assert set(m.value_heads) == {f"value@{n}" for n in HEADS}
    signals = {f"value@{n}": column(x, -x, x) for n, x in zip(HEADS, (0.8, 0.9, 0.1, 0.1, 0.0), strict=True)}
    # A = .8 - .1, and min(-.8, -.9) - min(-.1, -.1) = -.8
    advantage = m.advantages(forest, signals)
    assert advantage.tolist() == pytest.approx([0.7, -0.8, 0.7])
    behaviour = column(-1, -1, -1)
    logprob = column(0.0, -2.0, -1.0).requires_grad_()
    outputs = {f"value@{n}": column(0, 0, 0) for n in HEADS}
    policy = gxpo.PolicyTokens(logprob, behaviour, outputs=outputs)
    out = m.loss(forest, policy, advantages=advantage, signals=signals)
    (slope,) = torch.autograd.grad(out.value, logprob)
    e = 2.718281828459045
    assert slope.tolist() == pytest.approx([-0.7 * e / 3, 0.8 / e / 3, -0.7 / 3])
    # targets of q1: 1 and 0, of v2: q2 of the third, of the baseline: A. Squared errors against 0, halved
    assert out.metrics["value_loss@q1"] == pytest.approx((1 + 0) / 4)
    assert out.metrics["value_loss@v2"] == pytest.approx(0.81 / 2)
    assert out.metrics["value_loss@baseline"] == pytest.approx((0.49 + 0.64 + 0.49) / 6)


def test_unscored_trajectories_have_no_credit(grow: Grow) -> None:
    m, forest = gxpo.method("archer"), grow([("a", 1.0, [2]), ("a", None, [2])])
    signals = {f"value@{n}": column(1, 2, 3, 4) for n in HEADS}
    assert m.advantages(forest, signals)[2:].tolist() == [0.0, 0.0]


def test_what_it_refuses(grow: Grow) -> None:
    with pytest.raises(ConfigError, match=r"credit\.discount is 1\.5"):
        TwinCritic(discount=1.5)
    signals = {f"value@{n}": column(1, NAN) for n in HEADS}
    with pytest.raises(GxpoError, match="the 'value@q1' of 1 of 1"):
        TwinCritic()(grow([("a", 1.0, [2])]), signals, 0)
