"""Score centring: the worked numbers, no drift under any sampler, the cap of `truncated`, what it can't go with."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import gxpo
from gxpo.algorithms.objectives.score_centring import ScoreCentring
from gxpo.algorithms.signals.sampler_distribution import sampler_distribution
from gxpo.base.errors import ConfigError, GxpoError, MissingSignal
from gxpo.learning.divergence import expected_score, with_rest
from gxpo.parts.protocols import PolicyTokens

F64 = torch.float64
# The card: four ids, advantage 1.   q = (.5, .3, .15, .05), p = (.4, .4, .1, .1)
Q, P = (0.5, 0.3, 0.15, 0.05), (0.4, 0.4, 0.1, 0.1)


def row(*values: float) -> torch.Tensor:
    return torch.tensor([values], dtype=F64)


def slope(q: torch.Tensor, p: torch.Tensor, k: int, cap: float | None) -> list[float]:
    """Gradient in the logits of C, with the sampler's k likeliest ids recorded."""
    logits = p.log().requires_grad_()
    ids = q.topk(k, 1).indices
    sampler = with_rest(q.log(), q.log().logsumexp(1), ids)
    value = expected_score(with_rest(logits, logits.logsumexp(1), ids), sampler, cap)
    return torch.autograd.grad(value.sum(), logits)[0][0].tolist()


# ---------------------------------------------------------------- worked numbers
def test_card_of_two_recorded_ids() -> None:
    # tails are .2 and .2: rho = 1, coefficients q - rho p = (.1, -.1); the tail counts as proportional to p
    assert slope(row(*Q), row(*P), 2, None) == pytest.approx([0.1, -0.1, 0.0, 0.0], abs=1e-12)
    # all ids recorded: q - p
    assert slope(row(*Q), row(*P), 4, None) == pytest.approx([0.1, -0.1, 0.05, -0.05], abs=1e-12)


def test_card_of_truncated_weights() -> None:
    # cap 1.2: m = min(p, 1.2 q) = (.4, .36, .1, .06), in all .92; m - .92 p = (.032, -.008, .008, -.032)
    assert slope(row(*Q), row(*P), 4, 1.2) == pytest.approx([0.032, -0.008, 0.008, -0.032], abs=1e-12)
    # two recorded: m = (.4, .36), of the tail min(.2, .24) = .2 by p; in all .96: (.016, -.024, .004, .004)
    assert slope(row(*Q), row(*P), 2, 1.2) == pytest.approx([0.016, -0.024, 0.004, 0.004], abs=1e-12)
    # no ratio above the cap: sum m = 1, m = p, and nothing is left to centre
    assert slope(row(*Q), row(*P), 4, 3.0) == pytest.approx([0.0] * 4, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from([None, 0.7, 1.0, 2.0]))
def test_a_constant_advantage_moves_nothing(seed: int, cap: float | None) -> None:
    """Over the sampler's own draws, the weighted score less its centring sums to 0 when every id is recorded."""
    generator = torch.Generator().manual_seed(seed)
    q, p = (torch.randn(1, 6, generator=generator, dtype=F64).softmax(1) for _ in range(2))
    drift = [0.0] * 6
    for y in range(6):
        weight = 1.0 if cap is None else min(float(p[0, y] / q[0, y]), cap)
        for v in range(6):
            drift[v] += float(q[0, y]) * weight * ((v == y) - float(p[0, v]))
    assert slope(q, p, 6, cap) == pytest.approx(drift, abs=1e-12)
    assert slope(p, p, 3, cap if cap is None or cap >= 1 else None) == pytest.approx([0.0] * 6, abs=1e-12)


def test_rows_without_a_record_are_zero() -> None:
    logits = torch.randn(2, 5, dtype=F64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    ids = torch.tensor([[-1, -1], [2, 0]])
    sampler = torch.tensor([[-math.inf] * 3, [math.log(0.5), math.log(0.5), -math.inf]], dtype=F64)
    value = expected_score(with_rest(logits, logits.logsumexp(1), ids), sampler, None)
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    assert value.tolist()[0] == 0.0 and not bool(gradient[0].any()) and bool(gradient.isfinite().all())
    p = logits.detach()[1].softmax(0)
    assert gradient[1].tolist() == pytest.approx([0.5 - float(p[0]), -float(p[1]), 0.5 - float(p[2]), -float(p[3]),
                                                  -float(p[4])])  # fmt: skip


# ---------------------------------------------------------------- the term
def signals_of(toy, recorded=(True, True, True, True, False), **further):
    known = torch.tensor(recorded)[:, None]
    logprob = torch.where(known, torch.tensor([0.6, 0.3, 0.1], dtype=F64).log(), -math.inf)
    return {"sampler_ids": torch.where(known, torch.tensor([3, 7]), -1), "sampler_logprob": logprob, **further}


def test_worked_value(toy) -> None:
    """Advantages [1, 1, -1, -1, -1], lengths 2 and 3; C = [1, 2, 3, 4, 5], of which the last has no record.

    mean of answers' means: (1 + 2) / 4 - (3 + 4) / 6 = -.416667; over all five tokens: (3 - 7) / 5
    """
    c = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0], dtype=F64).requires_grad_()
    policy = PolicyTokens(toy.logprob, toy.old, outputs={"expected_score@none": c})
    value, figures = ScoreCentring()(toy.forest, policy, toy.credit, toy.weight, signals_of(toy), 0)
    assert float(value.detach()) == pytest.approx(3 / 4 - 7 / 6)
    assert torch.autograd.grad(value, c)[0].tolist() == pytest.approx([1 / 4, 1 / 4, -1 / 6, -1 / 6, 0])
    assert figures == pytest.approx({"centring_share": 0.8, "centring_mass": 0.9})
    term = ScoreCentring(aggregate="token_mean", coef=0.5)
    assert float(term(toy.forest, policy, toy.credit, toy.weight, signals_of(toy), 0)[0].detach()) == pytest.approx(
        -0.4
    )
    assert term.active(toy.forest, toy.credit, toy.weight, signals_of(toy)).tolist() == [True] * 4 + [False]
    assert not bool(ScoreCentring(coef=0.0).active(toy.forest, toy.credit, toy.weight).any())
    with pytest.raises(MissingSignal, match="expected_score@none"):
        ScoreCentring()(toy.forest, toy.policy(), toy.credit, toy.weight, signals_of(toy), 0)


def test_the_sampled_tokens_own_weight_is_not_counted_twice(toy) -> None:
    """Weights [2, .5, .5, 1, 1]: min(proximal / behaviour, 2), times a weight of .5 of the last two tokens."""
    c = torch.ones(5, dtype=F64)
    behaviour = torch.zeros(5, dtype=F64) - 1
    ratio = torch.tensor([4.0, 0.5, 0.5, 2.0, 2.0], dtype=F64)
    signals = signals_of(toy, behaviour_logprob=behaviour, proximal_logprob=behaviour + ratio.log())
    policy = PolicyTokens(toy.logprob, behaviour, outputs={"expected_score@2.0": c})
    weight = torch.tensor([2.0, 0.5, 0.5, 1.0, 1.0], dtype=F64)
    term = ScoreCentring(aggregate="token_mean", cap=2.0)
    # advantages times what is left of the weights, 1 1 1 .5: (1 + 1 - 1 - .5) / 5
    assert float(term(toy.forest, policy, toy.credit, weight, signals, 0)[0]) == pytest.approx(0.1)


# ---------------------------------------------------------------- composition
def test_it_follows_the_policy_term_and_the_weight() -> None:
    plain = gxpo.method("dapo+score_centring").terms["score_centring"]
    assert (plain.aggregate, plain.cap, plain.output) == ("token_mean", None, "expected_score@none")
    both = gxpo.method("grpo+tis+score_centring", {"weight.mismatch.cap": 3.0}).terms["score_centring"]
    assert (both.aggregate, both.cap, both.output) == ("sequence_mean", 3.0, "expected_score@3.0")
    assert gxpo.method("luspo+score_centring").terms["score_centring"].horizon == 1.0


@pytest.mark.parametrize(
    ("spec", "keys", "says"),
    [
        ("hispo+score_centring", {}, "ratio_over"),
        ("grpo+score_centring", {"weight.mask": "mismatch_mask"}, "weight.mask"),
        ("grpo+tis+score_centring", {"objective.add.score_centring.cap": 5.0}, "leave its own out"),
        ("simpo+score_centring", {}, "corrects a policy gradient"),
    ],
)
def test_what_it_can_not_go_with(spec, keys, says) -> None:
    with pytest.raises(ConfigError, match=says):
        gxpo.method(spec, keys)


def test_rollouts_without_a_record_are_refused(toy) -> None:
    with pytest.raises(GxpoError, match=r"sampling\.engine=torch"):
        sampler_distribution(toy.forest)
    wrong = {"sampler_ids": torch.zeros(toy.forest.n_tokens, 2), "sampler_logprob": torch.zeros(toy.forest.n_tokens, 2)}
    with pytest.raises(GxpoError, match=r"\[T, K \+ 1\]"):
        sampler_distribution(toy.forest.replace(extras=wrong))
