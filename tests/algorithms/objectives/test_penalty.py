"""KL estimators by enumeration over the vocabulary, KL terms in loss and reward, the KL to the old policy, entropy."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.algorithms.objectives.by_position import Annealed, Unclipped
from tests.algorithms.objectives.conftest import figures_of, grow_forest
from torch import Tensor

import gxpo
from gxpo.algorithms.credit import group_relative
from gxpo.algorithms.objectives import KL, Entropy, KLReward, PolicyGradient, kl_estimate, penalised_outcome
from gxpo.algorithms.objectives.penalty import ESTIMATORS, MirrorKl, mirror_kl
from gxpo.base.errors import CheckpointError, ConfigError, GxpoError, MissingSignal
from gxpo.parts.protocols import PolicyTokens

# ----------------------------------------------------------------
# KL estimators by enumeration over the vocabulary, their three places, and the entropy bonus
BERNOULLI = (torch.tensor([0.4, 0.0], dtype=torch.float64), torch.tensor([0.3, 0.7], dtype=torch.float64).log())


def five() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5, generator=generator, dtype=torch.float64)
    return logits, torch.randn(5, generator=generator, dtype=torch.float64).log_softmax(0)


def expected_gradient(
    logits: Tensor, reference: Tensor, estimator: str, place: str, sampler: Tensor | None = None
) -> Tensor:
    """Gradient in the logits of what the parts minimise, exact over every token of the vocabulary.

    A trajectory a token, weighted by the probability that the sampler (the policy itself) gives it.
    """
    logits = logits.clone().requires_grad_()
    logprob = logits.log_softmax(0)
    sampler_logprob = logprob.detach() if sampler is None else sampler
    n = len(logits)
    forest = grow_forest([("a", 1, {"reward": 0.0, "weight": n * float(p)}) for p in sampler_logprob.exp()])
    policy, weight = PolicyTokens(logprob, sampler_logprob, reference), forest.to_path(forest.weight, "R")
    ones = torch.ones(n, dtype=torch.float64)
    if place == "reward":  # the estimate is a cost, credited by REINFORCE
        signals = {"proximal_logprob": logprob.detach(), "reference_logprob": reference}
        paid = KLReward(1.0, estimator).penalise(forest, signals).outcome  # type: ignore[arg-type]  # one of the words
        value = PolicyGradient(surrogate=Unclipped())(forest, policy, paid, weight, {}, 0)[0]
    else:
        term = KL(1.0, estimator=estimator, ratio_weighted=place == "loss x ratio")  # type: ignore[arg-type]  # as above
        value = term(forest, policy, 0 * ones, ones, {}, 0)[0]
    return torch.autograd.grad(value, logits)[0]


def exact(logits: Tensor, reference: Tensor) -> dict[str, Tensor]:
    """Gradients in the logits, by name: KL(policy || reference), KL(reference || policy), sum |policy - reference|, and
    the policy's means of the log-ratio's absolute value and of half its square."""
    logits = logits.clone().requires_grad_()
    logprob = logits.log_softmax(0)
    p, q, d = logprob.exp(), reference.exp(), logprob - reference
    values = {
        "zero": 0 * p.sum(),
        "reverse": (p * d).sum(),
        "forward": -(q * d).sum(),
        "l1": (p - q).abs().sum(),
        "absolute": (p * d.abs()).sum(),
        "square": (p * d.square()).sum() / 2,
    }
    return {k: torch.autograd.grad(v, logits, retain_graph=True)[0] for k, v in values.items()}


TABLE = {  # what the expected gradient is: a sum of `exact` ones
    ("loss", "k1"): ("zero",),
    ("loss", "abs"): ("l1",),
    ("loss", "k2"): ("reverse",),
    ("loss", "k3"): ("forward",),
    ("loss", "k3+"): ("reverse",),
    ("loss x ratio", "k1"): ("reverse",),
    ("loss x ratio", "abs"): ("absolute",),
    ("loss x ratio", "k2"): ("square",),
    ("loss x ratio", "k3"): ("reverse",),
    ("reward", "k1"): ("reverse",),
    ("reward", "abs"): ("absolute", "-l1"),
    ("reward", "k2"): ("square", "-reverse"),
    ("reward", "k3"): ("reverse", "-forward"),
    ("reward", "k3+"): ("reverse", "-forward"),
}
FAR = (torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64), torch.tensor([0.01, 0.9, 0.09], dtype=torch.float64).log())
CASES = pytest.mark.parametrize("case", [BERNOULLI, five(), FAR], ids=["bernoulli", "five", "far"])


@CASES
@pytest.mark.parametrize(("place", "estimator"), TABLE, ids=" ".join)
def test_what_each_estimator_does_in_each_place(case: tuple[Tensor, Tensor], place: str, estimator: str) -> None:
    # T9
    gradients = exact(*case)
    expected = sum(
        (-gradients[name[1:]] if name.startswith("-") else gradients[name] for name in TABLE[place, estimator]),
        torch.zeros_like(case[0]),
    )
    gradient = expected_gradient(*case, estimator, place)
    assert gradient.tolist() == pytest.approx(expected.tolist(), abs=1e-13)
    exactly = (gradient - gradients["reverse"]).abs().max() < 1e-12
    assert bool(exactly) == (TABLE[place, estimator] == ("reverse",))


def test_every_estimator_is_in_the_table_or_refused() -> None:
    places = ("loss", "loss x ratio", "reward")
    assert set(TABLE) | {("loss x ratio", "k3+")} == {(p, e) for p in places for e in ESTIMATORS}
    with pytest.raises(ConfigError, match=r"objective\.kl\.estimator=k3"):
        KL(0.1, estimator="k3+", ratio_weighted=True)


@CASES
def test_times_the_ratio_it_is_exact_whoever_sampled(case: tuple[Tensor, Tensor]) -> None:
    sampler = torch.linspace(0.5, -1.0, len(case[0]), dtype=torch.float64).log_softmax(0)
    reverse = exact(*case)["reverse"]
    for estimator in ("k1", "k3"):
        gradient = expected_gradient(*case, estimator, "loss x ratio", sampler)
        assert gradient.tolist() == pytest.approx(reverse.tolist(), abs=1e-13)
    for estimator in ("k1", "k2", "k3", "k3+"):
        assert (expected_gradient(*case, estimator, "loss", sampler) - reverse).abs().max() > 1e-3


def test_the_gradient_of_k3_as_a_loss_points_elsewhere() -> None:
    # T9: near the true gradient, but neither its direction nor its length
    reverse, gradient = exact(*five())["reverse"], expected_gradient(*five(), "k3", "loss")
    cosine = float(torch.nn.functional.cosine_similarity(reverse, gradient, dim=0))
    assert 0.5 < cosine < 0.999
    assert abs(float(gradient.norm() / reverse.norm()) - 1) > 0.01


def test_bernoulli_card() -> None:
    logits, reference = BERNOULLI
    logprob = logits.log_softmax(0)
    p = logprob.exp()
    value = {k: float((p * kl_estimate(logprob, reference, k)).sum()) for k in ("k1", "k2", "k3")}
    assert value == pytest.approx({"k1": 0.190402, "k2": 0.205019, "k3": 0.190402}, abs=6e-7)
    # the derivative in the one logit: the other's is its negative
    for estimator, place, expected in (
        ("k1", "loss", 0.0),
        ("k2", "loss", 0.299677),
        ("k3", "loss", 0.298688),
        ("k3+", "loss", 0.299677),
        ("k1", "reward", 0.299677),
        ("k3", "loss x ratio", 0.299677),
    ):
        gradient = expected_gradient(logits, reference, estimator, place)
        assert gradient.tolist() == pytest.approx([expected, -expected], abs=6e-7)


def test_toy_card(toy) -> None:
    values = {
        "k1": [0.4, -0.1, -0.2, 0.1, 0.5],
        "k2": [0.08, 0.005, 0.02, 0.005, 0.125],
        "k3": [0.070320, 0.005171, 0.021403, 0.004837, 0.106531],
        "abs": [0.4, 0.1, 0.2, 0.1, 0.5],
        "k3+": [0.070320, 0.005171, 0.021403, 0.004837, 0.106531],
    }
    gradients = {
        "k1": [1.0] * 5,
        "abs": [1.0, -1.0, -1.0, 1.0, 1.0],
        "k3+": [0.4, -0.1, -0.2, 0.1, 0.5],
        "k2": [0.4, -0.1, -0.2, 0.1, 0.5],
        "k3": [0.329680, -0.105171, -0.221403, 0.095163, 0.393469],
    }
    for estimator, expected in values.items():
        assert kl_estimate(toy.logprob, toy.reference, estimator).tolist() == pytest.approx(expected, abs=6e-7)
        term = KL(0.5, "token_mean", estimator=estimator)  # type: ignore[arg-type]  # one of the words
        value, gradient = toy.loss(term, reference_logprob=toy.reference)
        assert value == pytest.approx(0.5 * sum(expected) / 5, abs=1e-6)
        assert gradient == pytest.approx([0.1 * g for g in gradients[estimator]], abs=1e-6)
    means = [sum(values[k]) / 5 for k in ("k1", "k2", "k3")]
    assert means == pytest.approx([0.14, 0.047, 0.041652], abs=1e-6)


def test_times_the_ratio_value_and_slope(toy) -> None:
    """rho k and its derivative rho (k + k'), rho and k of the card's tokens."""
    rho = [1.349859, 0.904837, 0.670320, 1.221403, 1.648721]
    for estimator, value, slope in (
        ("k1", [0.4, -0.1, -0.2, 0.1, 0.5], [1.0] * 5),
        (
            "k3",
            [0.070320, 0.005171, 0.021403, 0.004837, 0.106531],
            [0.329680, -0.105171, -0.221403, 0.095163, 0.393469],
        ),
    ):
        term = KL(0.5, "token_mean", estimator=estimator, ratio_weighted=True)  # type: ignore[arg-type]  # one of the words
        actual, gradient = toy.loss(term, reference_logprob=toy.reference)
        assert actual == pytest.approx(0.1 * sum(r * v for r, v in zip(rho, value, strict=True)), abs=1e-6)
        expected = [0.1 * r * (v + s) for r, v, s in zip(rho, value, slope, strict=True)]
        assert gradient == pytest.approx(expected, abs=1e-6)
        policy = toy.policy(reference_logprob=toy.reference, proximal_logprob=toy.logprob.detach())
        assert figures_of(term, toy.forest, policy, toy.credit, toy.weight)["kl"] == pytest.approx(
            sum(value) / 5, abs=1e-6
        )


@pytest.mark.parametrize("change", [-math.log(1e6), math.log(1e6)])
def test_extreme_ratios_are_not_held(toy, change: float) -> None:
    """rho = e^change and d = 1: k3 = e - 2, whose slope is 1 - e."""
    policy = {"reference_logprob": toy.logprob.detach() + 1, "behaviour_logprob": toy.logprob.detach() - change}
    value, gradient = toy.loss(KL(1.0, "token_mean", ratio_weighted=True), **policy)
    assert value == pytest.approx(math.exp(change) * (math.e - 2))
    assert gradient == pytest.approx([-math.exp(change) / 5] * 5)


def test_a_weighted_kl_where_the_denominator_is_unknown(toy) -> None:
    logprobs = {"reference_logprob": toy.reference, "proximal_logprob": toy.logprob.detach()}
    on_policy = toy.loss(KL(1.0, ratio_weighted=True), **logprobs)
    assert on_policy[0] == pytest.approx(toy.loss(KL(1.0), **logprobs)[0])
    over_behaviour = toy.loss(KL(1.0, ratio_weighted=True, ratio_over="behaviour"), **logprobs)
    assert over_behaviour == toy.loss(KL(1.0, ratio_weighted=True), reference_logprob=toy.reference)
    unknown = {"reference_logprob": toy.reference, "behaviour_logprob": torch.full_like(toy.old, torch.nan)}
    with pytest.raises(GxpoError, match="5 of 5 trainable tokens have no behaviour"):
        toy.loss(KL(1.0, ratio_weighted=True), **unknown)
    assert toy.loss(KL(1.0, ratio_weighted=True, on_unknown_behaviour="one"), **unknown) == on_policy
    with pytest.raises(ConfigError, match="ratio_over"):
        KL(1.0, ratio_over="reference")  # type: ignore[arg-type]  # the point of the test


def test_k3_is_never_negative_and_is_not_clamped() -> None:
    # T10: with the log-ratio clamped to 20 or the value to 10, tokens beyond have no gradient
    x = torch.tensor([-1e-9, -30.0, -4.0, -25.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.0, -3.0, -1.0, -1.0], dtype=torch.float64)
    estimate = kl_estimate(x, reference, "k3")
    assert (estimate >= 0).all()
    estimate.sum().backward()
    assert x.grad is not None
    assert x.grad[1:].tolist() == pytest.approx([1 - math.exp(27), 1 - math.exp(3), 1 - math.exp(24)])


def test_the_kl_term_has_its_own_aggregation(toy) -> None:
    # T18, T21, c2 trap 4
    changes = {"reference_logprob": toy.reference}
    plain = toy.loss(KL(1.0), **changes)
    assert plain[0] == pytest.approx(((0.070320 + 0.005171) / 2 + (0.021403 + 0.004837 + 0.106531) / 3) / 2, abs=1e-6)
    assert toy.loss(KL(1.0), weight=3 * toy.weight, **changes) == plain
    both = PolicyGradient(aggregate="token_mean") + KL(1.0)
    expected = toy.loss(PolicyGradient(aggregate="token_mean"))[0] + plain[0]
    assert toy.loss(both, **changes)[0] == pytest.approx(expected)


def test_the_reference_is_frozen(toy) -> None:
    reference = toy.reference.clone().requires_grad_()
    kl_estimate(toy.logprob, reference, "k2").sum().backward()
    assert reference.grad is None


def test_kl_is_felt_where_the_credit_is_zero(toy) -> None:
    term = PolicyGradient() + KL(0.1)
    assert term.active(toy.forest, torch.zeros(5), toy.weight).all()


def test_a_missing_reference_is_said(toy) -> None:
    with pytest.raises(MissingSignal, match="reference_logprob"):
        toy.loss(KL(0.1))
    holes = toy.reference.clone()
    holes[2] = float("nan")
    with pytest.raises(MissingSignal, match="nan for 1 of 5"):
        toy.loss(KL(0.1), reference_logprob=holes)
    assert KL(0.1).needs == ("reference_logprob",)
    off = KL(0.0)
    assert off.needs == () and toy.loss(off)[0] == 0 and not off.active(toy.forest, toy.credit, toy.weight).any()
    with pytest.raises(ConfigError, match=r"objective\.kl\.estimator is 'k4'"):
        KL(0.1, estimator="k4")  # type: ignore[arg-type]  # the point of the test
    with pytest.raises(ConfigError, match=r"objective\.kl\.estimator"):
        KLReward(0.1, "k4")  # type: ignore[arg-type]  # the point of the test


# ---------------------------------------------------------------- in the reward
def test_the_kl_of_trainable_tokens_enters_the_group_statistics(grow) -> None:
    # T23: per trajectory 0.1 * (0.4 - 0.2) and 0.1 * (0.1 + 0.5); then the group's mean is taken
    trajectory = torch.tensor([0, 0, 0, 1, 1])
    kl = torch.tensor([0.4, float("nan"), -0.2, 0.1, 0.5], requires_grad=True)
    trainable = torch.tensor([True, False, True, True, True])
    outcome = torch.tensor([1.0, 0.0, float("nan")])
    penalised = penalised_outcome(outcome, kl, trajectory, 0.1, where=trainable)
    assert penalised[:2].tolist() == pytest.approx([0.98, -0.06]) and penalised[2].isnan()
    assert penalised.dtype == torch.float64 and not penalised.requires_grad
    credit = group_relative(penalised[:2], torch.zeros(2).long(), scale="none")
    assert credit.tolist() == pytest.approx([0.52, -0.52])


def test_kl_reward_penalises_the_forest(grow) -> None:
    forest = grow([("a", 2, {"trainable": [True, False]}), ("a", 2, {"reward": None})])
    nan = float("nan")
    signals = {
        "proximal_logprob": torch.tensor([-1.0, nan, -1.0, -1.0], dtype=torch.float64),
        "reference_logprob": torch.tensor([-3.0, -1.0, -2.0, -1.0], dtype=torch.float64),
    }
    penalised = KLReward(0.5, "k1").penalise(forest, signals).outcome
    assert float(penalised[0]) == pytest.approx(1.0 - 0.5 * 2.0) and penalised[1].isnan()
    assert float(forest.outcome[0]) == 1.0
    signals["reference_logprob"][3] = nan
    with pytest.raises(MissingSignal, match="nan for 1 of 3"):
        KLReward(0.5).penalise(forest, signals)


# ---------------------------------------------------------------- entropy
@pytest.mark.parametrize("mode", ["token_mean", "sequence_mean", "sequence_sum"])
def test_the_bonus_is_coef_times_the_mean_entropy(toy, mode: str) -> None:
    # T20: divided by the policy term's normaliser it would be len times too small
    entropy = torch.tensor([1.0, 2.0, 0.5, 0.25, 3.0], dtype=torch.float64, requires_grad=True)
    policy = PolicyTokens(toy.logprob, toy.old, entropy=entropy)
    term = PolicyGradient(aggregate=mode, horizon=100) + Entropy(0.01)  # type: ignore[arg-type]  # one of the words
    gradient = torch.autograd.grad(term(toy.forest, policy, toy.credit, toy.weight, {}, 0)[0], entropy)[0]
    assert gradient.tolist() == pytest.approx([-0.01 / 5] * 5)
    assert figures_of(term, toy.forest, policy, toy.credit, toy.weight)["entropy"] == pytest.approx(1.35)
    bonus = Entropy(0.01)(toy.forest, policy, toy.credit, 5 * toy.weight, {}, 0)[0]
    assert float(bonus.detach()) == pytest.approx(-0.0135)


def test_entropy_is_aggregated_over_trainable_tokens(grow) -> None:
    forest = grow([("a", 3, {"trainable": [True, False, True]}), ("a", 1)])
    entropy = torch.tensor([1.0, 77.0, 2.0, 4.0], dtype=torch.float64)
    policy = PolicyTokens(-entropy, -entropy, entropy=entropy)
    args = (forest, policy, torch.zeros(4), torch.ones(4), {}, 0)
    assert float(Entropy(1.0)(*args)[0]) == pytest.approx(-7 / 3)
    assert float(Entropy(1.0, "sequence_mean")(*args)[0]) == pytest.approx(-(1.5 + 4) / 2)


def test_missing_entropy_is_said(toy) -> None:
    with pytest.raises(MissingSignal, match="entropy"):
        toy.loss(Entropy(0.1))
    assert Entropy(0.1).outputs == ("logprob", "entropy") and Entropy(0.0).outputs == ("logprob",)
    assert toy.loss(Entropy(0.0))[0] == 0


# ---------------------------------------------------------------- MDPO
# The estimate's value and gradient by enumeration, the tabular solution, its coefficient over a run
F64 = torch.float64
OLD = torch.tensor([0.5, 0.3, 0.2], dtype=F64)
CREDIT = torch.tensor([1.0, 0.0, -1.0], dtype=F64)


# ---------------------------------------------------------------- the estimate
def test_mirror_kl_is_unbiased_under_the_old_policy():
    logits = torch.tensor([0.2, -0.4, 0.9], dtype=F64, requires_grad=True)
    log_policy = torch.log_softmax(logits, 0)
    exact = (log_policy.exp() * (log_policy - OLD.log())).sum()  # KL(policy || old)
    (expected,) = torch.autograd.grad(exact, logits, retain_graph=True)
    sampled = (OLD * mirror_kl(log_policy - OLD.log())).sum()  # every token as often as the old policy draws it
    (gradient,) = torch.autograd.grad(sampled, logits)
    assert float(sampled.detach()) == pytest.approx(float(exact.detach()))
    torch.testing.assert_close(gradient, expected)


@settings(max_examples=50, deadline=None)
@given(st.floats(-14, 14))
def test_value_and_slope(gap):
    x = torch.tensor([gap], dtype=F64, requires_grad=True)
    value = mirror_kl(x)
    (slope,) = torch.autograd.grad(value.sum(), x)
    assert float(value.detach()) == pytest.approx(math.exp(gap) * gap - math.exp(gap) + 1, abs=1e-9)
    assert float(value.detach()) >= -1e-9 and float(slope) == pytest.approx(math.exp(gap) * gap, abs=1e-9)
    assert float(value.detach()) >= 0 or abs(gap) < 1e-6


def test_card_the_minimum_over_all_policies_is_the_tilted_one():
    """pi ~ old exp(t A), t = .5: [.661783 .240835 .097382]; the loss's slope in the logits vanishes there."""
    best = torch.softmax(OLD.log() + 0.5 * CREDIT, 0)
    assert best.tolist() == pytest.approx([0.661783, 0.240835, 0.097382], abs=1e-6)
    forest = grow_forest([("a", 1)] * 3)
    logits = best.log().clone().requires_grad_()
    logprob = torch.log_softmax(logits, 0)
    m = gxpo.method("mdpo", {"objective.add.mirror_kl.coef": 2.0, "objective.aggregate": "token_mean"})
    # each of the three answers once, weighing as often as the old policy draws it
    policy = PolicyTokens(logprob, OLD.log(), proximal_logprob=OLD.log())
    gain = m.terms["policy"](forest, policy, CREDIT, OLD, {}, 0)[0]
    near = m.terms["mirror_kl"](forest.replace(weight=OLD), policy, CREDIT, OLD, {}, 0)[0]
    (slope,) = torch.autograd.grad(gain + near, logits, retain_graph=True)
    assert slope.tolist() == pytest.approx([0.0] * 3, abs=1e-12)
    assert float(torch.autograd.grad(gain, logits)[0].abs().max()) > 0.05


# ---------------------------------------------------------------- the term
def test_it_is_of_every_trained_token_whatever_it_earned(toy):
    term = MirrorKl(coef=0.5)
    value, gradient = toy.loss(term, weight=0 * toy.weight)  # weights of tokens are not for it
    gaps = [0.3, -0.1, -0.4, 0.2, 0.5]
    each = [math.exp(d) * d - math.exp(d) + 1 for d in gaps]
    assert value == pytest.approx(0.5 * (sum(each[:2]) / 4 + sum(each[2:]) / 6))
    assert gradient == pytest.approx([0.5 * math.exp(d) * d / (4 if i < 2 else 6) for i, d in enumerate(gaps)])
    metrics = figures_of(term, toy.forest, toy.policy(), toy.credit, toy.weight)
    assert metrics["mirror_kl"] == pytest.approx(sum(each) / 5)


def test_mirror_kl_has_no_gradient_on_the_first_update(toy):
    logprob_now = toy.logprob.detach()
    assert toy.loss(MirrorKl(), proximal_logprob=logprob_now) == (0.0, [0.0] * 5)
    m = gxpo.method("mdpo", {"objective.aggregate": "token_mean"})
    assert toy.loss(m.terms["policy"], proximal_logprob=logprob_now)[1] == pytest.approx([-0.2, -0.2, 0.2, 0.2, 0.2])
    assert m.terms["policy"].surrogate == Unclipped() and m.keys["update.epochs"].value == 4


def test_mirror_kl_is_to_the_proximal_policy_else_the_sampler(toy):
    proximal = toy.old - 0.3
    both = toy.loss(MirrorKl(), proximal_logprob=proximal)
    assert both == toy.loss(MirrorKl(), behaviour_logprob=proximal) != toy.loss(MirrorKl())
    unknown = toy.old.clone()
    unknown[1] = torch.nan
    with pytest.raises(GxpoError, match="1 of 5 trained tokens have no log-prob of the old"):
        toy.loss(MirrorKl(), behaviour_logprob=unknown)


def test_trajectories_of_weight_zero_and_other_coefficients(grow):
    forest = grow([("a", 2), ("a", 1, {"weight": 0.0})])
    x = torch.tensor([-1.0, -1.2, torch.nan], dtype=F64, requires_grad=True)
    old = torch.tensor([-1.1, -1.1, -1.0], dtype=F64)
    term = MirrorKl(aggregate="token_mean")
    value = term(forest, PolicyTokens(x, old), torch.zeros(3), torch.ones(3), {}, 0)[0]
    assert float(value.detach()) == pytest.approx(sum(math.exp(d) * d - math.exp(d) + 1 for d in (0.1, -0.1)) / 3)
    nothing = MirrorKl(coef=0.0)
    assert not nothing.active(forest, torch.zeros(3), torch.ones(3)).any()
    with pytest.raises(ConfigError, match=r"objective\.add\.mirror_kl\.coef"):
        MirrorKl(coef=-1.0)
    with pytest.raises(ConfigError, match=r"objective\.add\.mirror_kl\.aggregate"):
        MirrorKl(aggregate="mean")  # type: ignore[arg-type]  # not one of the words


# ---------------------------------------------------------------- its coefficient over a run
def test_the_coefficient_grows_as_one_over_t_and_stops():
    term, coefficients = MirrorKl(coef=0.5, min_step=0.25, total_steps=4), []
    assert term.control is not None
    for step in range(1, 7):
        coefficients.append(term.current_coef)
        assert term.control.adjust({"step": step})["schedule_progress"] == min(step / 4, 1.0)
    assert coefficients == pytest.approx([0.5 / t for t in (1, 0.75, 0.5, 0.25, 0.25, 0.25)])
    still = MirrorKl(min_step=1.0, total_steps=1)
    assert still.control is not None
    still.control.adjust({"step": 1})
    assert still.current_coef == 1.0


def test_it_is_resumed_exactly():
    first, again = Annealed(total_steps=7), Annealed(total_steps=7)
    for step in (1, 2, 3):
        first.adjust({"step": step})
    again.load_state_dict(first.state_dict())
    for step in (4, 5):
        assert first.coefficient(0.3) == again.coefficient(0.3)
        assert first.adjust({"step": step}) == again.adjust({"step": step})
    with pytest.raises(CheckpointError):
        again.load_state_dict({"factor": 1.0})
    with pytest.raises(ConfigError, match="total_steps"):
        Annealed().adjust({"step": 1})
    for make in (lambda: Annealed(min_step=0.0), lambda: Annealed(total_steps=0)):
        with pytest.raises(ConfigError, match="control"):
            make()


def test_runs_do_not_share_what_the_control_remembers():
    one, two = (gxpo.method("mdpo").fill(horizon=8.0, max_length=8, total_steps=10) for _ in range(2))
    assert one.terms["mirror_kl"].control.total_steps == 10
    one.adjust({"step": 5.0})
    assert one.terms["mirror_kl"].current_coef == pytest.approx(2.0) and two.terms["mirror_kl"].current_coef == 1.0
    assert gxpo.method("mdpo").terms["mirror_kl"].current_coef == 1.0
    assert gxpo.method("mdpo", {"objective.add.mirror_kl.min_step": 1.0}).terms["mirror_kl"].control == Annealed(1.0)
    state = one.state_dict()
    two.load_state_dict(state)
    assert two.terms["mirror_kl"].current_coef == pytest.approx(2.0)


# ---------------------------------------------------------------- a teacher in the reward
def test_wrong_answers_alone_pay_for_differing_from_the_teacher():
    """log pi -1.2, -.5, -2 and the teacher's -.7, -.9, -1: rewards +.0005, -.0004, +.001, in all .0011."""
    forest = gxpo.Forest.from_completions([[1]], [[[2, 3, 4], [2, 3, 4]]], [[0.0, 1.0]])
    forest = forest.with_rewards(forest.outcome, success=forest.outcome)
    signals = {
        "proximal_logprob": torch.tensor([-1.2, -0.5, -2.0] * 2, dtype=torch.float64),
        "teacher_token_logprob": torch.tensor([-0.7, -0.9, -1.0] * 2, dtype=torch.float64),
    }
    part = gxpo.method("dgpo_distill").kl_reward
    assert (part.coef, part.estimator, part.needs) == (0.001, "k1", ("teacher_token_logprob",))
    assert [round(x, 9) for x in part.penalise(forest, signals).outcome.tolist()] == [0.0011, 1.0]
    everywhere = gxpo.method("dgpo_distill", {"objective.kl.rollouts": "all"}).kl_reward
    assert [round(x, 9) for x in everywhere.penalise(forest, signals).outcome.tolist()] == [0.0011, 1.0011]


@pytest.mark.parametrize("key", ["to", "rollouts"])
def test_a_teacher_in_the_loss_is_a_distillation(key):
    value = {"to": "teacher", "rollouts": "wrong"}[key]
    with pytest.raises(ConfigError, match=f"objective.kl.{key} belongs to a KL in the reward"):
        gxpo.method("grpo", {f"objective.kl.{key}": value})
