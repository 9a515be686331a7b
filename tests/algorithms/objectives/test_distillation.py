"""Distillation: the card's weights, the loss and its slope against a loop, what is in the mean, routing."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.objectives.conftest import figures_of

import gxpo
from gxpo.algorithms.objectives.distillation import Distillation, confidence_weight
from gxpo.base.errors import ConfigError, MissingSignal
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import PolicyTokens

F64 = torch.float64
NAN = math.nan


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=F64)


def signals_of(entropy: torch.Tensor) -> dict[str, torch.Tensor]:
    """Signals that the term needs; ids and log-probs are read by the learner alone."""
    return {"teacher_entropy": entropy, "teacher_ids": entropy, "teacher_logprob": entropy}


# ---------------------------------------------------------------- weights by entropy
def test_card_weights() -> None:
    weights = confidence_weight(column(0.2, 1.0, 2.0), 1.0)
    assert weights.tolist() == pytest.approx([1.858013, 0.834859, 0.307128], abs=1e-6)
    assert float(weights.mean()) == pytest.approx(1.0) and confidence_weight(column(0.2, 9.0), 0.0).tolist() == [
        1.0,
        1.0,
    ]


@given(st.lists(st.floats(0, 12), min_size=1, max_size=8), st.floats(0, 5))
def test_weights_are_of_mean_one_and_fall_with_entropy(entropy, beta) -> None:
    weights = confidence_weight(column(*entropy), beta)
    assert float(weights.mean()) == pytest.approx(1.0)
    ordered = weights[column(*entropy).argsort()]
    assert bool((ordered.diff() <= 1e-12).all())
    shifted = confidence_weight(column(*[h + 900 for h in entropy]), beta)
    assert shifted.tolist() == pytest.approx(weights.tolist(), rel=1e-9)
    assert confidence_weight(column(), 1.0).shape == (0,)


# ---------------------------------------------------------------- the term
def test_worked_mean(toy) -> None:
    """Change of log-probs [.3, -.1, -.4, .2, .5]; tokens 0, 3, 4 have a teacher at distances [.1, .4, .2].

    min(rho, 1.5) = [1.349859, 1.221403, 1.5 (of 1.648721)]: (.1349859 + .4885611 + .3) / 3 = .3078490
    """
    far = column(0.1, 7.0, 7.0, 0.4, 0.2).requires_grad_()
    signals = signals_of(column(0.5, NAN, NAN, 0.5, 0.5))
    policy = PolicyTokens(toy.logprob, toy.old, outputs={"divergence@0.5": far})
    term = Distillation(ratio_max=1.5)
    value = term(toy.forest, policy, toy.credit, toy.weight, signals, 0)[0]
    assert float(value.detach()) == pytest.approx(0.3078490, abs=1e-7)
    slope, logprob_gradient = torch.autograd.grad(value, (far, toy.logprob), allow_unused=True)
    assert slope.tolist() == pytest.approx([1.349859 / 3, 0, 0, 1.221403 / 3, 0.5], abs=1e-6)
    assert logprob_gradient is None or not bool(logprob_gradient.any())  # the ratio carries no gradient
    loss_over_all = Distillation(ratio_max=1.5, mean_over="all")(
        toy.forest, policy, toy.credit, toy.weight, signals, 0
    )[0]
    assert float(loss_over_all.detach()) == pytest.approx(0.3078490 * 3 / 5, abs=1e-7)
    plain = Distillation(ratio_max=None, coef=2.0)(toy.forest, policy, toy.credit, toy.weight, signals, 0)[0]
    assert float(plain.detach()) == pytest.approx(2 * 0.7 / 3)
    figures = figures_of(term, toy.forest, policy, toy.credit, toy.weight, signals)
    assert figures == pytest.approx({"teacher_divergence": 0.7 / 3, "teacher_entropy": 0.5, "taught_share": 0.6})
    assert term.active(toy.forest, toy.credit, toy.weight, signals).tolist() == [True, False, False, True, True]
    assert bool(term.active(toy.forest, toy.credit, toy.weight).all())


def rollouts(seed: int) -> tuple[Forest, random.Random]:
    rng, records = random.Random(seed), []
    for i in range(rng.randrange(1, 6)):
        n = rng.randrange(1, 5)
        turn = {"action": [5] * n, "logprob": [-1.0] * n, "trainable": [rng.random() < 0.8 for _ in range(n)]}
        records.append({"schema": "gxpo.rollouts/1", "group": f"g{i % 2}", "id": f"t{i}", "prompt": [1, 2],
                        "turns": [turn], "reward": 0.0, "weight": rng.choice((0.0, 1.0, 0.5))})  # fmt: skip
    return Forest.from_records(records), rng


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["taught", "all"]), st.sampled_from([0.0, 1.5]))
def test_value_and_slope_equal_a_loop(seed, over, beta) -> None:
    forest, rng = rollouts(seed)
    n = forest.n_entries
    entropy = [rng.choice((NAN, rng.uniform(0, 3))) for _ in range(n)]
    far = [rng.uniform(0, 2) for _ in range(n)]
    change = [rng.choice((math.log(1e6), math.log(1e-6), math.log(2), rng.uniform(-1, 1))) for _ in range(n)]
    x = column(*far).requires_grad_()
    policy = PolicyTokens(column(*change) - 1, torch.full((n,), NAN, dtype=F64), outputs={"divergence@0.0": x},
                          proximal_logprob=torch.full((n,), -1.0, dtype=F64))  # fmt: skip
    term = Distillation(alpha=0.0, mean_over=over, beta=beta)  # type: ignore[arg-type]
    value = term(forest, policy, x.detach(), x.detach(), signals_of(column(*entropy)), 0)[0]
    trained = forest.path_trainable.tolist()
    weight_by_token = [float(forest.weight[r]) for r in forest.path_trajectory.tolist()]
    read = [p for p in range(n) if trained[p] and not math.isnan(entropy[p]) and weight_by_token[p] > 0]
    raw = {p: math.exp(-beta * entropy[p]) for p in read}
    mean = sum(raw.values()) / len(raw) if raw else 1.0
    counted = sum(trained[p] and (over == "all" or not math.isnan(entropy[p])) for p in range(n))
    slope = [0.0] * n
    for p in read:
        slope[p] = weight_by_token[p] * min(math.exp(change[p]), 2.0) * raw[p] / mean / counted
    assert float(value.detach()) == pytest.approx(sum(s * d for s, d in zip(slope, far, strict=True)), abs=1e-9)
    (gradient,) = torch.autograd.grad(value, x)
    assert gradient.tolist() == pytest.approx(slope, abs=1e-9)


def test_nobody_is_taught(toy) -> None:
    far = torch.ones(5, dtype=F64, requires_grad=True)
    policy = PolicyTokens(toy.logprob, toy.old, outputs={"divergence@0.5": far})
    blind = signals_of(torch.full((5,), NAN, dtype=F64))
    term = Distillation(beta=1.0)
    assert float(term(toy.forest, policy, toy.credit, toy.weight, blind, 0)[0].detach()) == 0.0
    assert not bool(term.active(toy.forest, toy.credit, toy.weight, blind).any())
    assert figures_of(term, toy.forest, policy, toy.credit, toy.weight, blind) == {"taught_share": 0.0}
    assert not bool(Distillation(coef=0.0).active(toy.forest, toy.credit, toy.weight).any())


def test_what_is_wrong_is_said(toy) -> None:
    for wrong in ({"alpha": 1.5}, {"ratio_max": 0.0}, {"beta": -1.0}, {"coef": -1.0}, {"mean_over": "some"}):
        with pytest.raises(ConfigError, match=r"alpha|ratio_max|beta|over|coef"):
            Distillation(**wrong)  # type: ignore[arg-type]
    with pytest.raises(MissingSignal, match=r"divergence@0\.5"):
        Distillation()(toy.forest, toy.policy(), toy.credit, toy.weight, signals_of(toy.old), 0)[0]
    term = Distillation(alpha=1)
    assert term.outputs == ("logprob", "divergence@1.0") and term.couples == "token" and not term.reads_credit


# ---------------------------------------------------------------- routing
def test_every_token_is_trained_by_one_of_the_two_terms() -> None:
    """SRPO on a group of right, wrong with a teacher, and a group of wrong ones that has none."""
    records = []
    for i, (group, right, n) in enumerate((("a", 1, 2), ("a", 0, 3), ("b", 0, 1), ("b", 0, 2))):
        turn = {"action": [5] * n, "logprob": [-1.0] * n}
        records.append({"schema": "gxpo.rollouts/1", "group": group, "id": f"t{i}", "prompt": [1, 2], "turns": [turn],
                        "reward": float(right), "success": bool(right)})  # fmt: skip
    forest = Forest.from_records(records)
    entropy = column(NAN, NAN, 0.2, 1.0, 2.0, NAN, NAN, NAN)
    signals = signals_of(entropy)
    logprob = torch.full((8,), -1.0, dtype=F64).requires_grad_()
    far = column(*[0.3] * 8).requires_grad_()
    m = gxpo.method("srpo_routing")
    credit = m.advantages(forest, signals)
    high = math.sqrt(0.5)  # (1 - .5) / std with one degree of freedom, .7071068
    assert credit[:5].tolist() == pytest.approx([high] * 2 + [-high] * 3, abs=1e-5) and not bool(credit[5:].any())
    weight = m.token_weights(forest, credit, signals)
    assert weight.tolist() == [1, 1, 0, 0, 0, 1, 1, 1]
    policy = PolicyTokens(logprob, column(*[-1.0] * 8), outputs={"divergence@0.5": far})
    value = m.loss(forest, policy, signals=signals).value
    by_logprob, by_far = torch.autograd.grad(value, (logprob, far))
    assert by_logprob.tolist() == pytest.approx([-high / 8] * 2 + [0] * 6, abs=1e-6)
    expected = [0, 0, 1.858013 / 8, 0.834859 / 8, 0.307128 / 8, 0, 0, 0]
    assert by_far.tolist() == pytest.approx(expected, abs=1e-6)
    assert float(value.detach()) == pytest.approx(-2 * high / 8 + 0.3 * 3 / 8, abs=1e-5)
