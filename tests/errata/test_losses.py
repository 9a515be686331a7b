"""docs/errata/losses.md: ratios, bounds, aggregation and KL in trainers.

Each test restates a system's documented formula in its own words and holds it against gxpo's number.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from tests.algorithms.objectives.by_position import Truncate
from torch import Tensor

import gxpo
from gxpo.algorithms.objectives import Clip, DualClip, Entries, LogClip, PolicyGradient, coefficients, kl_estimate
from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest

# Five tokens of two answers, A = 1 and -1.
OLD = torch.tensor([-0.5, -1.0, -2.0, -0.3, -0.7], dtype=torch.float64)
NEW = OLD + torch.tensor([0.3, -0.1, -0.4, 0.2, 0.5], dtype=torch.float64)
ROW, CREDIT = torch.tensor([0, 0, 1, 1, 1]), torch.tensor([1.0, 1.0, -1.0, -1.0, -1.0], dtype=torch.float64)
ALL = torch.ones(5, dtype=torch.bool)


def slope(loss: Callable[[Tensor], Tensor], at: Tensor = NEW) -> Tensor:
    x = at.clone().requires_grad_()
    return torch.autograd.grad(loss(x), x)[0]


def ours(term: PolicyGradient, at: Tensor = NEW) -> tuple[float, Tensor]:
    """Value and slope of a term on the five tokens."""
    forest = Forest.from_completions([[1]], [[[2, 3], [4, 5, 6]]], [1.0, 0.0])
    ones = torch.ones(5, dtype=torch.float64)

    def loss(x: Tensor) -> Tensor:
        return term(forest, gxpo.PolicyTokens(x, OLD), CREDIT, ones, {}, 0)[0]

    return float(loss(at)), slope(loss, at)


def clipped(rho: Tensor, credit: Tensor, low: float = 0.2, high: float = 0.2) -> Tensor:
    return torch.max(-credit * rho, -credit * rho.clamp(1 - low, 1 + high))


# ---------------------------------------------------------------- bounds
def test_one_bound_with_three_meanings() -> None:
    """TRL: the weight's bound is `epsilon_high` itself. verl, slime, NeMo-RL: 1 - eps, 1 + eps. tinker: 0 and 4."""

    def cispo(low: float, high: float, rho: float = 1.0) -> float:
        return min(max(rho, low), high)

    eps = 0.2
    on_policy = {"trl": cispo(-math.inf, eps), "verl": cispo(1 - eps, 1 + eps), "tinker": cispo(0.0, 4.0)}
    assert on_policy == {"trl": 0.2, "verl": 1.0, "tinker": 1.0}
    gate = Truncate(ratio_max=1.28)
    x = Entries.of(torch.tensor([0.1, 1.0, 5.0], dtype=torch.float64), torch.ones(3, dtype=torch.float64))
    weights = -slope(
        lambda lp: gate.loss(Entries(lp, x.below, x.log_ratio, x.ratio, x.credit, x.trajectory, x.turn)).sum(),
        x.logprob,
    )
    assert weights.tolist() == pytest.approx([0.1, 1.0, 1.28])
    # with 5.0, meant as a bound, TRL's gradients are five times those of its default
    assert cispo(-math.inf, 5.0) / cispo(-math.inf, eps) == pytest.approx(5.0)


def test_distances_of_zero_and_five() -> None:
    """SkyRL until #1928: bounds 1 - 0 and 1 + 5, so that every ratio below 1 was raised to 1."""
    before = NEW.sub(OLD).exp().clamp(1 - 0, 1 + 5)
    after = NEW.sub(OLD).exp().clamp(1 - 1, 1 + 4)
    assert before.tolist() == pytest.approx([1.349859, 1.0, 1.0, 1.221403, 1.648721], abs=1e-6)
    assert after.tolist() == pytest.approx([1.349859, 0.904837, 0.670320, 1.221403, 1.648721], abs=1e-6)
    _, actual = ours(PolicyGradient(surrogate=Truncate(5.0), aggregate="token_mean"))
    assert actual.tolist() == pytest.approx((-CREDIT * after / 5).tolist())


def test_three_spellings_of_a_bound_on_worsening_tokens() -> None:
    """verl: min(l, -A c) for A < 0. TRL and INTELLECT-2: min(rho, delta) as first argument. AReaL: min(l, c |A|)."""
    rho = (NEW - OLD).exp()
    plain = clipped(rho, CREDIT)
    dual = torch.where(CREDIT < 0, torch.min(plain, -CREDIT * 1.3), plain)
    delta = torch.max(-CREDIT * rho.clamp_max(1.3), -CREDIT * rho.clamp(0.8, 1.2))
    both = torch.min(plain, 1.3 * CREDIT.abs())
    value, _ = ours(PolicyGradient(surrogate=DualClip(ratio_max=1.3), aggregate="token_mean"))
    for other in (dual, delta, both):
        assert float(other.mean()) == pytest.approx(0.243313, abs=1e-6) == pytest.approx(value, abs=1e-6)


def test_a_ratio_that_is_a_product() -> None:
    """TRL's RLOO: -min(s A, clip(s) A), s the exponential of the row's summed log-ratios: e^.2 is above 1.2, and the
    second token, whose own ratio is e^-.1, has no gradient either. Under GRPO's token ratios it has -e^-.1 / 5."""
    row = lambda x, r: (x - OLD)[r == ROW].sum().exp()  # noqa: E731
    theirs = slope(lambda x: (clipped(row(x, 0), CREDIT[0]) + clipped(row(x, 1), CREDIT[2])) / 2)
    assert theirs[:2].tolist() == [0.0, 0.0]
    assert theirs[2:].tolist() == pytest.approx([math.exp(0.3) / 2] * 3)
    tokens = slope(lambda x: clipped((x - OLD).exp(), CREDIT).mean())
    assert float(tokens[1]) == pytest.approx(-0.180967, abs=1e-6)
    term = gxpo.method("rloo@trl").terms["policy"]
    assert isinstance(term, PolicyGradient) and ours(term)[1].tolist() == pytest.approx(theirs.tolist())
    assert 181 < math.log(1.2) / math.log1p(0.001) < 183


def test_a_bound_in_log_space() -> None:
    """GMPO's 0.4 holds rho in (e^-0.4, e^0.4), not in (0.6, 1.4); verl's `clip_ratio` is that of geo_mean too."""
    assert (math.exp(-0.4), math.exp(0.4)) == (pytest.approx(0.670320, abs=1e-6), pytest.approx(1.491825, abs=1e-6))
    rho, credit = torch.tensor([1.45], dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    x = Entries.of(rho, credit)
    assert not bool(LogClip(0.4, 0.4).clipped(x)) and bool(Clip(0.4, 0.4).clipped(x))


def test_thresholds_that_are_differences_of_probabilities() -> None:
    """verl's dppo_tv reads `clip_ratio` as a bound on p - p_old: a rare token may grow fourfold, no common one."""

    def kept(p: float, old: float, d: float = 0.2) -> bool:
        return p - old <= d

    rare, common = (0.04, 0.01), (0.95, 0.7)
    assert [kept(*rare), kept(*common)] == [True, False]
    x = Entries.of(torch.tensor([a / b for a, b in (rare, common)], dtype=torch.float64), torch.ones(2).double())
    assert Clip().clipped(x).tolist() == [True, True]


# ---------------------------------------------------------------- aggregation
def test_a_sum_over_a_sequence_in_two_versions() -> None:
    """verl's seq-mean-token-sum-norm: in 2026-01 the sum over the horizon, in 2026-08 over the sequences as well."""
    losses = clipped((NEW - OLD).exp(), CREDIT)
    january, august = float(losses.sum()) / 4, float(losses.sum()) / 2 / 4
    assert [january, august] == pytest.approx([0.391322, 0.195661], abs=1e-6)
    assert ours(PolicyGradient(aggregate="sequence_sum", horizon=4.0))[0] == pytest.approx(august)


def test_a_horizon_that_is_the_padded_width() -> None:
    """verl without `loss_scale_factor`: pad columns divide the loss."""
    losses = clipped((NEW - OLD).exp(), CREDIT)
    narrow, wide = (float(losses.sum()) / 2 / width for width in (3, 30))
    assert narrow == pytest.approx(10 * wide)
    with pytest.raises(gxpo.errors.GxpoError, match="horizon"):
        ours(PolicyGradient(aggregate="sequence_sum"))


def test_a_mean_of_means() -> None:
    """TRL's "bnpo" is the token mean of each micro-batch, averaged: the loss moves with how rows fall into them."""
    losses, lengths = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], dtype=torch.float64), [1, 1, 1, 3]
    rows = losses.split(lengths)
    by_two = [torch.cat(rows[:2]).mean(), torch.cat(rows[2:]).mean()]
    other = [torch.cat([rows[0], rows[3]]).mean(), torch.cat([rows[1], rows[2]]).mean()]
    actual = [float(sum(x) / 2) for x in (by_two, other)]
    assert actual == pytest.approx([3.0, 3.25])
    scale = coefficients(torch.tensor([0, 1, 2, 3, 3, 3]), torch.ones(6, dtype=torch.bool), "token_mean")
    assert float((scale * losses).sum()) == pytest.approx(3.5)


def test_a_mean_of_each_micro_batch_that_is_summed() -> None:
    """verl's geo_mean: every micro-batch's mean is backpropagated unscaled, so k of them are k times the gradient."""
    means = -(NEW - OLD)[ROW == 0].mean().exp(), (NEW - OLD)[ROW == 1].mean().exp()
    one, two = (means[0] + means[1]) / 2, means[0] + means[1]
    assert float(two) == pytest.approx(2 * float(one), abs=1e-15)
    grads = [float(slope(lambda x, k=k: -(x - OLD)[ROW == 0].mean().exp() / k)[0]) for k in (2, 1)]
    assert grads[1] == pytest.approx(2 * grads[0]) and grads[0] == pytest.approx(-0.276293, abs=1e-6)
    assert float(ours(PolicyGradient(ratio="sequence", surrogate=LogClip()))[1][0]) == pytest.approx(grads[0])


def test_rows_without_a_token_in_a_mean() -> None:
    """verl's geo_mean counts a fully masked row, with ratio e^0; its agg_loss does not."""
    rows = torch.tensor([0, 0, 1, 1, 1, 2])
    counted = torch.tensor([True] * 5 + [False])
    scale = coefficients(rows, counted, "sequence_mean")
    assert scale.tolist() == pytest.approx([0.25, 0.25, 1 / 6, 1 / 6, 1 / 6, 0.0])
    over_three = 1 / 3 / 2
    assert over_three == pytest.approx(float(scale[0]) * 2 / 3)


def test_one_ratio_for_a_sequence_under_a_token_mean() -> None:
    """TRL broadcasts a row's ratio and sums over tokens (dapo, bnpo, dr_grpo), verl's gspo takes `loss_agg_mode` as it
    is, by default token-mean: long answers weigh more, which GSPO set out to stop."""
    s = torch.stack([(NEW - OLD)[r == ROW].mean().exp() for r in (0, 1)])
    losses = clipped(s[ROW], CREDIT, 3e-4, 4e-4)
    by_token, by_row = float(losses.mean()), float(torch.stack([losses[r == ROW].mean() for r in (0, 1)]).mean())
    assert [by_token, by_row] == pytest.approx([0.262942, 0.052385], abs=1e-6)
    assert ours(PolicyGradient(ratio="sequence", surrogate=Clip(3e-4, 4e-4)))[0] == pytest.approx(by_row)
    with pytest.raises(ConfigError, match="token_mean"):
        gxpo.method("gspo", {"objective.aggregate": "token_mean"})


def test_a_clip_that_never_binds() -> None:
    """GSPO's 3e-4 and 4e-4 bound a geometric mean; 0.2 in their place lets every sequence here pass."""
    s = [float((NEW - OLD)[r == ROW].mean().exp()) for r in (0, 1)]
    assert all(0.8 < x < 1.2 for x in s) and all(x > 1 + 4e-4 for x in s)
    wide, tight = (
        ours(PolicyGradient(ratio="sequence", surrogate=Clip(*eps)))[1] for eps in ((0.2, 0.2), (3e-4, 4e-4))
    )
    assert bool((wide[:2] != 0).all()) and not bool(tight[:2].any())


def test_masked_tokens_in_the_denominator() -> None:
    """TRL until #6439: rows cut off left the numerator and stayed in the denominator."""
    losses, kept_values = (
        torch.tensor([1.0, 1.0, 1.0, 1.0], dtype=torch.float64),
        torch.tensor([True, True, False, False]),
    )
    assert float((losses * kept_values).sum() / 4) == 0.5
    scale = coefficients(torch.tensor([0, 0, 1, 1]), kept_values, "token_mean")
    assert float((scale * losses).sum()) == 1.0


def test_an_entropy_bonus_under_the_policys_normaliser() -> None:
    """A bonus that is summed over tokens and divided by sequences x horizon is length / horizon of what was asked."""
    coef, entropies = 0.01, torch.full((5,), 0.7, dtype=torch.float64)
    asked_coef = coef * float(entropies.mean())
    divided = coef * float(entropies.sum()) / (2 * 100)
    assert divided == pytest.approx(asked_coef * 2.5 / 100)
    forest = Forest.from_completions([[1]], [[[2, 3], [4, 5, 6]]], [1.0, 0.0])
    term = gxpo.method("dr_grpo", {"objective.entropy.coef": coef}).fill(horizon=100.0).terms["entropy"]
    policy = gxpo.PolicyTokens(NEW, OLD, entropy=entropies)
    actual = term(forest, policy, CREDIT, torch.ones(5, dtype=torch.float64), {}, 0)[0]
    assert float(actual) == pytest.approx(-asked_coef)


# ---------------------------------------------------------------- KL and mismatch
P, Q = (torch.tensor(x, dtype=torch.float64) for x in ([0.5, 0.2, 0.15, 0.1, 0.05], [0.2, 0.2, 0.2, 0.2, 0.2]))


def expected_slopes(estimate: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """By the logits: the mean over tokens of the policy of the estimate's derivative, the sampling held."""
    logits = P.log().requires_grad_()
    logp = logits.log_softmax(0)
    return torch.autograd.grad((P * estimate(logp, Q.log())).sum(), logits)[0]


def of_kl(forward: bool) -> Tensor:
    logits = P.log().requires_grad_()
    logp = logits.log_softmax(0)
    kl = (Q * (Q.log() - logp)).sum() if forward else (logp.exp() * (logp - Q.log())).sum()
    return torch.autograd.grad(kl, logits)[0]


def test_k3_as_a_loss_is_the_other_direction() -> None:
    """GRPO's estimate as a loss has the gradient of KL(reference || policy); k2 has that of KL(policy || reference)."""
    actual = expected_slopes(lambda logp, ref: kl_estimate(logp, ref, "k3"))
    assert actual.tolist() == pytest.approx(of_kl(forward=True).tolist())
    assert expected_slopes(lambda logp, ref: kl_estimate(logp, ref, "k2")).tolist() == pytest.approx(
        of_kl(forward=False).tolist()
    )
    assert float((actual - of_kl(forward=False)).norm()) == pytest.approx(0.0956, abs=1e-4)


def test_k1_as_a_loss_does_nothing() -> None:
    actual = expected_slopes(lambda logp, ref: kl_estimate(logp, ref, "k1"))
    assert actual.abs().max() < 1e-15 < of_kl(forward=False).abs().max()


def test_one_beta_before_and_after_a_correction() -> None:
    """TRL 1.16 multiplies k3 by the ratio (use_bias_correction_kl): one beta, another gradient, the exact one."""

    def corrected(logp: Tensor, ref: Tensor) -> Tensor:
        d = ref - logp
        return (d.exp() - 1 - d) * (logp - P.log()).exp()

    actual = expected_slopes(corrected)
    assert actual.tolist() == pytest.approx(of_kl(forward=False).tolist())
    plain = expected_slopes(lambda logp, ref: kl_estimate(logp, ref, "k3"))
    cosine = float(actual @ plain / actual.norm() / plain.norm())
    assert 0.9 < cosine < 0.999


def test_a_value_of_one_estimator_with_the_gradient_of_another() -> None:
    """verl's "k3+": k2 - stop(k2) + stop(k3)."""

    def straight(logp: Tensor, ref: Tensor) -> Tensor:
        d = ref - logp
        k2, k3 = d.square() / 2, d.exp() - 1 - d
        return k2 - k2.detach() + k3.detach()

    x = torch.tensor([-1.0], dtype=torch.float64)
    ref = torch.tensor([-1.4], dtype=torch.float64)
    assert float(straight(x, ref)) == pytest.approx(math.exp(-0.4) - 1 + 0.4)
    assert float(slope(lambda lp: straight(lp, ref).sum(), x)) == pytest.approx(0.4)  # k3's own: 1 - e^d = 0.329680
    assert float(slope(lambda lp: kl_estimate(lp, ref, "k3").sum(), x)) == pytest.approx(0.329680, abs=1e-6)


def test_a_clamp_beyond_which_nothing_is_pulled_back() -> None:
    """verl's low_var_kl holds d in +-20 and k3 in +-10: the token that has gone furthest has no gradient."""

    def verl(logp: Tensor, ref: Tensor) -> Tensor:
        d = (ref - logp).clamp(-20, 20)
        return (d.exp() - d - 1).clamp(-10, 10)

    far, ref = torch.tensor([-5.0], dtype=torch.float64), torch.tensor([-1.0], dtype=torch.float64)
    assert float(slope(lambda lp: verl(lp, ref).sum(), far)) == 0.0
    assert float(slope(lambda lp: kl_estimate(lp, ref, "k3").sum(), far)) == pytest.approx(1 - math.exp(4.0))


def test_bounds_of_a_ratio_that_are_applied_to_its_inverse() -> None:
    """verl rejects by k1 = -log(ratio) between log(lower) and log(upper): "0.5_4" keeps ratios from 0.25 to 2."""

    def kept(ratio: float, lower: float = 0.5, upper: float = 4.0) -> bool:
        return math.log(lower) <= -math.log(ratio) <= math.log(upper)

    assert [kept(w) for w in (0.24, 0.26, 0.49, 1.9, 2.1, 3.9)] == [False, True, True, True, False, False]
    meant = [0.5 <= w <= 4.0 for w in (0.24, 0.26, 0.49, 1.9, 2.1, 3.9)]
    assert meant == [False, False, False, True, True, True]
    # its weights, of the same spelling, are held the way it reads
    assert [w if meant[i] else 0.0 for i, w in enumerate((0.24, 0.26, 0.49, 1.9, 2.1, 3.9))] == [0, 0, 0, 1.9, 2.1, 3.9]


def test_a_correction_that_is_already_in_the_ratio() -> None:
    """verl's bypass mode takes the sampler as the old policy; weights on top would count the mismatch twice."""
    with pytest.raises(ConfigError, match="ratio_over"):
        gxpo.method("tis", {"objective.ratio_over": "behaviour"})


def test_a_loss_that_means_nothing() -> None:
    """CISPO's and GPG's values are log-likelihoods: they fall while rewards stand still, and have REINFORCE's slope."""
    on_policy = {k: ours(PolicyGradient(surrogate=g, aggregate="token_mean"), OLD) for k, g in
                 (("clip", Clip()), ("cispo", Truncate()))}  # fmt: skip
    assert on_policy["clip"][0] == pytest.approx(0.2) and on_policy["cispo"][0] == pytest.approx(-0.3)
    assert on_policy["clip"][1].tolist() == pytest.approx(on_policy["cispo"][1].tolist())
