"""Terms: their figures by hand, sums of them, defaults of their functions, and their dtype."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from tests.algorithms.objectives.conftest import figures_of
from tests.algorithms.objectives.labelled_groups import forest_of
from tests.algorithms.objectives.test_entropy_band import episodes, value_and_slope, with_history
from torch import Tensor

from gxpo.algorithms.objectives import surrogate
from gxpo.algorithms.objectives.base import PolicyGradient, TermPart, TermSum
from gxpo.algorithms.objectives.control import AdaptiveKl
from gxpo.algorithms.objectives.distillation import Distillation
from gxpo.algorithms.objectives.entropy_band import EntropyBand, band_penalty
from gxpo.algorithms.objectives.inner_layer import InnerLayer
from gxpo.algorithms.objectives.masked_kl import MaskedKl
from gxpo.algorithms.objectives.penalty import KL, Entropy, MirrorKl, kl_estimate
from gxpo.algorithms.objectives.positive_likelihood import PositiveLikelihood
from gxpo.algorithms.objectives.power_mean import PowerMean, log_power_mean
from gxpo.algorithms.objectives.preference_pairs import PreferencePairs, sigmoid
from gxpo.algorithms.objectives.sequence_losses import (
    Classification,
    Discriminative,
    GroupVariance,
    ImplicitNegative,
    SquaredLogRatio,
    baseline_of,
    classification,
    discriminative,
    group_variance,
    hinge,
    implicit_negative,
    implied_negative,
    residuals,
    squared_log_ratio,
    straight_through,
)
from gxpo.algorithms.objectives.sequence_score import labels, log_sum_exp, over_groups, weight_gradients
from gxpo.algorithms.objectives.value import UniformValue, ValueRegression
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import PolicyTokens

NAN = math.nan
F64 = torch.float64


Negative = partial(ImplicitNegative, horizon=1.0)


def column(*x: float) -> Tensor:
    return torch.tensor(x, dtype=F64)


def moved(*gap: float, **more) -> PolicyTokens:
    """Policies whose log-ratios are these, to a log-prob of 0 everywhere."""
    x = column(*gap)
    return PolicyTokens(x, torch.zeros_like(x), torch.zeros_like(x), **more)


def figures(term, forest: Forest, policy: PolicyTokens, signals=None) -> dict[str, float]:
    one = torch.ones(forest.n_entries, dtype=F64)
    return figures_of(term, forest, policy, one, one, signals)


def value(term, forest: Forest, policy: PolicyTokens, signals=None) -> float:
    one = torch.ones(forest.n_entries, dtype=F64)
    return float(term(forest, policy, one, forest.to_path(forest.weight, "R"), signals or {}, 0)[0].detach())


# ---------------------------------------------------------------- sums
class Plain:
    """A term that knows nothing of `TermPart`."""

    couples = "token"

    def __call__(self, forest, policy, credit, weight, signals, step):
        return policy.logprob.sum() * 0 + signals["of"] + step

    def active(self, forest, credit, weight, signals=None):
        return (credit > 0) & (weight > 0)


class Asks(TermPart):
    constants = ("teacher_ids",)

    def __call__(self, forest, policy, credit, weight, signals, step):
        return policy.logprob.sum() * 0 + 10 * step

    def active(self, forest, credit, weight, signals=None):
        return (credit < 0) & (weight < 0)

    def metrics(self, forest, policy, credit, weight, signals=None):
        return {"approx_kl": 1.0}


def test_a_sum_hands_everything_on_to_its_terms(toy) -> None:
    both = Plain() + Asks()
    assert isinstance(both, TermSum) and [type(t) for t in both.terms] == [Plain, Asks]
    assert both.constants == ("teacher_ids",)
    assert float(both(toy.forest, toy.policy(), toy.credit, toy.weight, {"of": 3.0}, 4)[0].detach()) == 47.0
    weight = column(1, 0, -1, 1, 0)
    assert both.active(toy.forest, toy.credit, weight).tolist() == [True, False, True, False, False]
    three = both + Asks() + Asks()
    metrics = figures_of(three, toy.forest, toy.policy(), toy.credit, toy.weight, {"of": 3.0})
    assert metrics == {"approx_kl": 1.0, "approx_kl_2": 1.0, "approx_kl_3": 1.0}


def test_only_a_figure_of_the_same_name_takes_a_name(toy) -> None:
    """`kl_coef` is no second `kl`."""
    sum_ = PolicyGradient() + KL(coef=0.1, control=AdaptiveKl()) + KL(coef=0.2)
    metrics = figures_of(sum_, toy.forest, toy.policy(reference_logprob=toy.reference), toy.credit, toy.weight)
    assert set(metrics) == {"clip_fraction", "approx_kl", "ratio_max", "on_policy", "kl_coef", "kl", "kl_2"}
    assert metrics["kl"] == metrics["kl_2"]


# ---------------------------------------------------------------- dtype
class ByEntropy(surrogate.Surrogate):
    outputs = ("entropy",)

    def loss(self, x):
        assert x.entropy is not None
        return -x.credit * x.ratio * x.entropy


def test_losses_have_the_dtype_of_the_log_probs() -> None:
    forest = forest_of([("a", 2, 1), ("a", 3, 0)])
    single = torch.tensor([-0.2, -1.1, -2.4, -0.1, -0.2], requires_grad=True)
    old, far = single.detach().double() - 0.1, column(0.1, 0.2, 0.3, 0.4, 0.5)
    outputs = {"mean_logprob": -far, "divergence@0.5": far, "logprob@0.15": old}
    policy = PolicyTokens(single, old, old - 0.1, entropy=far, outputs=outputs)
    names = ("teacher_entropy", "teacher_ids", "teacher_logprob", "start_mean_logprob", "masked_logprob")
    signals = {**dict.fromkeys(names, far), "logprob@0.15": old - 0.1}
    for term in (
        Classification(),
        Discriminative(),
        Discriminative(score="ratio"),
        ImplicitNegative(horizon=10.0),
        SquaredLogRatio(),
        SquaredLogRatio(level="token"),
        UniformValue(),
        PreferencePairs(),
        Distillation(),
        Distillation(ratio_max=None),
        Entropy(coef=1.0),
        EntropyBand(),
        MirrorKl(),
        MaskedKl(),
        InnerLayer(),
        PositiveLikelihood(),
        PolicyGradient(surrogate=ByEntropy()),
    ):
        loss = term(forest, policy, torch.ones(5, dtype=F64), torch.ones(5, dtype=F64), signals, 0)[0]
        assert loss.dtype == torch.float32 and bool(loss.isfinite()), term
    assert weight_gradients(single, far).dtype == torch.float32


# ---------------------------------------------------------------- defaults of functions
def test_defaults() -> None:
    group, good = torch.zeros(2).long(), torch.tensor([True, False])
    log1p = lambda x: math.log1p(math.exp(x))  # noqa: E731
    loss = classification(column(0.5, -0.25), group, good, ~good)
    assert float(loss) == pytest.approx(log1p(-0.25 / 0.5) + log1p(-0.5 / 0.5))
    assert kl_estimate(column(0.0), column(0.5)).tolist() == pytest.approx([math.exp(0.5) - 1.5])
    # beta .1: .1 (-1) + .5 and its negative, squared, halved, over G - 1
    assert float(group_variance(column(1, 3), column(0, 1), group)) == pytest.approx(0.16)
    assert residuals(column(1, 3), column(0, 9), group, 1.0, good | ~good).tolist() == pytest.approx([3.5, -3.5])
    assert sigmoid(column(2.0), column(0.0)).tolist() == pytest.approx([log1p(-0.2)])
    assert squared_log_ratio(column(2.0), column(1.0)).tolist() == pytest.approx([-1.8])
    far = implied_negative(column(12.0), column(0.5))
    assert far.tolist() == pytest.approx([1 / 0.5 - math.exp(10.0)])
    bad = torch.tensor([False])
    # the negative ratio is 2 - e^x: at x = log .5 it is 1.5, at 2, held at 1, it is 2 - e and floored at 1
    assert implicit_negative(column(math.log(0.5)), column(0.5), bad).tolist() == pytest.approx([-math.log(1.5)])
    assert implicit_negative(column(2.0), column(0.5), bad).tolist() == [0.0]
    bounded_loss = implicit_negative(column(0.5), column(0.5), bad, 1e-3, log_ratio_max=0.1)
    assert bounded_loss.tolist() == pytest.approx([-math.log(2 - math.exp(0.1))])
    x = column(3.0).requires_grad_()
    straight = straight_through(x, column(1.0))
    assert float(straight.detach()) == 1.0 and torch.autograd.grad(straight.sum(), x)[0].tolist() == [1.0]


def test_discriminative_by_hand() -> None:
    """One group of a success and two failures; one of failures alone, which only counts. tau is 10."""
    group = torch.tensor([0, 0, 0, 1, 1])
    good = torch.tensor([True, False, False, False, False])
    loss = discriminative(column(1.0, 0.5, -0.5, 2.0, 3.0), group, good, ~good)
    gain = 1.0 - 10 * math.log((math.exp(0.05) + math.exp(-0.05)) / 2)
    assert float(loss) == pytest.approx(-gain / 2)
    assert float(hinge(column(0.5), 0.1, 2.0)) == pytest.approx(0.4**2)


# ---------------------------------------------------------------- figures of labels
LABELLED = [("a", 1, 1), ("a", 1, 0), ("b", 1, 1), ("b", 1, 0), ("c", 1, 1)]


@pytest.mark.parametrize("term", ["classification", "discriminative", "implicit_negative"])
def test_score_gap_is_a_mean_over_the_groups_read(term) -> None:
    """.3 + .1 and .2 - .4, the third group has no failure; in float64 though the log-probs are not."""
    classes = {"classification": Classification, "discriminative": Discriminative, "implicit_negative": Negative}
    x = torch.tensor([0.3, -0.1, 0.2, 0.4, NAN])
    a, b, c, d, _ = x.tolist()
    metrics = figures(classes[term](), forest_of(LABELLED), PolicyTokens(x, torch.zeros(5)))
    assert metrics["score_gap"] == pytest.approx(((a - b) + (c - d)) / 2, rel=1e-12)


def test_the_gap_of_scores_leaves_out_what_was_not_read() -> None:
    """The second success of the first group and the failure of the second have no weight, and are not run: .3 + .1."""
    forest = forest_of([("a", 1, 1), ("a", 1, 1), ("a", 1, 0), ("b", 1, 1), ("b", 1, 0)])
    one, weight = torch.ones(5, dtype=F64), column(1, 0, 1, 1, 0)
    metrics = figures_of(Negative(), forest, moved(0.3, NAN, -0.1, 0.7, NAN), one, weight)
    assert metrics["score_gap"] == pytest.approx(0.4)
    metrics = figures_of(Negative(), forest, moved(NAN, NAN, NAN, 0.7, NAN), one, column(0, 0, 0, 1, 0))
    assert metrics["score_gap"] == 0.0


def test_scores_of_float32_are_means_in_float64() -> None:
    x = torch.tensor([0.3, -0.1, 0.7, 0.2])
    metrics = figures(Discriminative(), forest_of([("a", 3, 1), ("a", 1, 0)]), PolicyTokens(x, torch.zeros(4)))
    a, b, c, d = x.tolist()
    assert metrics["score_gap"] == pytest.approx((a + b + c) / 3 - d, rel=1e-12)


def test_failures_below_the_floor() -> None:
    """Rate 1/2: (1 - e^x / 2) / (1 / 2) is below 1 where x > 0: one of the failure's tokens; the success's would not
    be, and the second group is not read."""
    forest = forest_of([("b", 1, 1), ("a", 1, 1), ("a", 2, 0)])
    assert figures(Negative(), forest, moved(NAN, -0.3, 0.1, -0.2))["clip_fraction"] == 0.25
    assert figures(Negative(), forest, moved(NAN, 0.3, 0.1, 0.2))["clip_fraction"] == 0.5
    assert figures(Negative(), forest, moved(NAN, 0.0, 0.0, 0.0))["clip_fraction"] == 0.0


def test_half_a_verdict_is_no_success() -> None:
    forest = forest_of([("a", 1, 1), ("a", 1, 0)]).replace(success=column(0.5, 0.6))
    good, bad = labels(forest, None, "this")
    assert (good.tolist(), bad.tolist()) == ([False, True], [True, False])


def test_sums_over_groups_far_out() -> None:
    one, yes = torch.zeros(1).long(), torch.tensor([True])
    assert log_sum_exp(column(-1000.0), one, yes, plus_one=True).tolist() == [0.0]
    assert log_sum_exp(column(-1000.0), one, yes).tolist() == [-1000.0]
    assert float(over_groups(column(3.0), one, yes)) == 3.0


# ---------------------------------------------------------------- figures of regressions
def test_the_residual_is_measured_against_the_compared() -> None:
    """D .2 .4 .9, outcomes 1 0 5, means of the first two .3 and .5: -.6, .6, -3.9."""
    rows = [("a", 1, 1), ("a", 1, 0), ("a", 1, 1, {"compared": False})]
    forest = forest_of(rows).replace(outcome=column(1, 0, 5))
    metrics = figures(GroupVariance(beta=1.0), forest, moved(0.2, 0.4, 0.9))
    assert metrics["implicit_reward_gap"] == pytest.approx(math.sqrt((0.36 + 0.36 + 15.21) / 3))


def test_residuals_of_what_was_read_alone() -> None:
    """r - b = .5, -.5 and tau D = .02, -.04; who is alone in a group has no residual."""
    forest = forest_of([("b", 1, 1), ("a", 1, 1), ("a", 1, 0)])
    metrics = figures(SquaredLogRatio(), forest, moved(NAN, 0.2, -0.4))
    assert metrics["implicit_reward_gap"] == pytest.approx(math.sqrt((0.48**2 + 0.46**2) / 2))
    for kind in ("log_mean_exp", "mean"):
        single_baseline = baseline_of(column(2.0), column(0.3), torch.zeros(1).long(), kind, 0.5)
        assert single_baseline.tolist() == pytest.approx([2.0])


def test_bellman_residuals() -> None:
    """y = +-.5 + u of the next token: .9, .5 and -.5; 2 D = .2, -.4, .6."""
    forest = forest_of([("b", 1, 1), ("a", 2, 1), ("a", 1, 0)])
    policy = moved(NAN, 0.1, -0.2, 0.3, outputs={"mean_logprob": column(NAN, 9.0, 0.4, 7.0)})
    signals = {"start_mean_logprob": torch.zeros(4, dtype=F64)}
    metrics = figures(UniformValue(scale=2.0), forest, policy, signals)
    assert metrics["implicit_reward_gap"] == pytest.approx(math.sqrt((0.49 + 0.81 + 1.21) / 3))
    single_forest = forest_of([("a", 1, 1)])
    assert figures(UniformValue(), single_forest, moved(0.1, outputs={"mean_logprob": column(0.0)}), signals) == {}


def test_regressions_on_float32_are_those_on_the_same_numbers() -> None:
    reward, u = torch.tensor([0.1, 0.7]), torch.tensor([0.0, 0.7, 0.0])
    a, b = reward.tolist()
    expected = 0.3 * math.log((math.exp(a / 0.3) + math.exp(b / 0.3)) / 2)
    baseline = baseline_of(reward, 0 * reward, torch.zeros(2).long(), "log_mean_exp", 0.3)
    assert baseline.tolist() == pytest.approx([expected] * 2, rel=1e-12)
    # y = .5 + .3 u, .5 and -.5, at log-ratios of 0
    forest, policy = forest_of([("a", 2, 1), ("a", 1, 0)]), moved(0.0, 0.0, 0.0, outputs={"mean_logprob": u})
    baseline = figures(UniformValue(next_scale=0.3), forest, policy, {"start_mean_logprob": 0 * u})
    expected = math.sqrt(((0.5 + 0.3 * u.tolist()[1]) ** 2 + 0.5) / 3)
    assert baseline["implicit_reward_gap"] == pytest.approx(expected, rel=1e-12)


def test_how_much_of_a_small_spread_is_explained(grow) -> None:
    """Errors .5 and -.25; the targets' variance is 1/16."""
    forest, signals = grow([("a", 2)]), {"value_target": column(0.0, 0.5)}
    metrics = figures(ValueRegression(), forest, moved(0.0, 0.0, value=column(0.5, 0.25)), signals)
    assert metrics == pytest.approx({"value_loss": 0.078125, "value_explained": 1 - 0.15625 / 0.0625})


# ---------------------------------------------------------------- pairs
def test_pairs_have_a_compared_member_and_different_outcomes() -> None:
    aside = {"compared": False}
    forest = forest_of([("a", 1, 1), ("a", 1, 0), ("a", 1, 1, aside), ("a", 1, 0, aside)])
    forest = forest.replace(outcome=column(1.0, 0.0, 0.7, 0.2))
    ordered = PreferencePairs(pairs="ordered")
    assert figures(ordered, forest, moved(0.1, 0.2, 0.3, 0.4))["pairs"] == 5.0  # six, but for the two set aside
    near = forest_of([("a", 1, 1)] * 3).replace(outcome=column(1e6 + 1e-7, 1e6, 0.0))
    assert figures(ordered, near, moved(0.1, 0.2, 0.3))["pairs"] == 2.0


# ---------------------------------------------------------------- distillation
def test_a_taught_token_that_nobody_knows_the_sampler_of(grow) -> None:
    forest, taught = grow([("a", 1)]), dict.fromkeys(("teacher_entropy", "teacher_ids", "teacher_logprob"), column(0.5))
    policy = PolicyTokens(column(-1.0), column(NAN), outputs={"divergence@0.5": column(0.3)})
    assert value(Distillation(), forest, policy, taught) == pytest.approx(0.3)  # a ratio of 1
    assert figures(Distillation(), forest, policy, taught)["taught_share"] == 1.0


# ---------------------------------------------------------------- entropy
def test_the_band_by_default_and_on_its_ends() -> None:
    h, centre = column(0.25, 0.5, 0.75, 2.0), column(0.5, 0.5, 0.5, NAN)
    assert band_penalty(h, centre).tolist() == [0.0] * 4
    assert band_penalty(column(0.125, 1.0), column(0.5, 0.5)).tolist() == [0.125, 0.25]
    flat = band_penalty(h, centre, hinge=False, size=0.5)
    assert flat.tolist() == [0.5, 0.0, 0.5, 0.0] and flat.dtype == F64
    assert band_penalty(h.float(), centre).dtype == torch.float32


def test_the_band_remembers_the_mean_of_its_steps() -> None:
    """The centre is .6 after one step or three, so the band (.3, .9): distances 0, .3, .25, or thrice .4."""
    forest, h = episodes([3]), column(0.5, 1.2, 0.05)
    weights, _ = value_and_slope(with_history(EntropyBand(control=None), 0.6, steps=3), forest, h)
    assert weights == pytest.approx(-0.001 * (1.75 - 0.55) / 3, rel=1e-12)
    weights, _ = value_and_slope(with_history(EntropyBand(control=None, hinge=False, size=0.5), 0.6), forest, h)
    assert weights == pytest.approx(-0.001 * (1.75 - 1.0) / 3)


def test_turns_that_nothing_is_trained_in(grow) -> None:
    forest = grow([("a", 3), ("a", 1, {"trainable": [False]})])
    assert EntropyBand().scale(forest).tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0], rel=1e-12)


# ---------------------------------------------------------------- KL
def test_kl_of_trained_tokens_by_its_own_estimator(grow, toy) -> None:
    forest = grow([("a", 2, {"trainable": [True, False]})])
    signals = {"proximal_logprob": column(-0.5, -9.0), "reference_logprob": column(-0.75, -1.0)}
    assert KL(coef=1.0, estimator="k1").start_value(forest, signals) == pytest.approx(0.25)
    # k1 .4 -.1 | -.2 .1 .5: sums .3 and .4, over the horizon, over two trajectories
    term = KL(coef=1.0, estimator="k1", aggregate="sequence_sum", horizon=10.0)
    loss = value(term, toy.forest, toy.policy(reference_logprob=toy.reference))
    assert loss == pytest.approx((0.3 + 0.4) / 10 / 2)


def test_masked_kl_is_weighted_by_the_trajectory(grow) -> None:
    forest, x = grow([("a", 1, {"weight": 0.5})]), column(-0.5)
    loss = value(MaskedKl(), forest, PolicyTokens(x, x), {"masked_logprob": x})
    assert loss == pytest.approx(0.5 * 0.03 * 0.5)


# ---------------------------------------------------------------- imitation
def test_the_likelihood_of_what_turned_out_well(grow) -> None:
    """-log pi 1, 2 | 4 of positive credit, the last at half weight; the others' are never read."""
    forest = grow([("a", 3), ("a", 2, {"weight": 0.5, "trainable": [True, False]}), ("a", 1, {"weight": 0.0})])
    credit, weight = column(0.5, 0.5, -1, 1, 1, 1), column(1, 1, 1, 0.5, 0.5, 0)
    policy = moved(-1.0, -2.0, NAN, -4.0, NAN, NAN)
    term = PositiveLikelihood()
    assert (term.coef, term.threshold) == (0.01, 1e-7)
    assert term.active(forest, credit, weight).tolist() == [True, True, False, True, False, False]
    loss = float(term(forest, policy, credit, weight, {}, 0)[0].detach())
    assert loss == pytest.approx(0.01 * (1 + 2 + 2) / 4)  # the one of weight 0 counts
    assert figures_of(term, forest, policy, credit, weight) == pytest.approx({"positive_nll": 7 / 3})
    assert figures_of(term, forest, policy, -credit.abs(), weight) == {}
    one = grow([("a", 1)])
    likelihood_term = PositiveLikelihood(coef=2.0, threshold=0.5)
    assert float(likelihood_term(one, moved(-3.0), column(0.6), column(1.0), {}, 0)[0].detach()) == pytest.approx(6.0)
    assert not likelihood_term.active(one, column(0.5), column(1.0)).any()
    loss = likelihood_term(grow([("a", 2)]), moved(-3.0, NAN), column(0.6, 0.5), column(1.0, 1.0), {}, 0)[0]
    assert float(loss.detach()) == pytest.approx(6.0)  # credit at the threshold is not above it
    assert not PositiveLikelihood(coef=0.0).active(one, column(1.0), column(1.0)).any()
    assert PositiveLikelihood(coef=0.5).active(one, column(1.0), column(1.0)).all()


# ---------------------------------------------------------------- policy gradient, power mean
class Looks(surrogate.Surrogate):
    couples = "trajectory"

    def loss(self, x):
        assert x.entropy is None
        return -x.credit * x.ratio * x.turn


def test_what_the_policy_gradient_reads_and_shows_its_surrogate(toy) -> None:
    credit = column(1, 0, 0, -1, 0)
    assert PolicyGradient().active(toy.forest, credit, toy.weight).tolist() == [True, False, False, True, False]
    # turns 0 and 1: the second trajectory's alone counts, -A rho over 5 tokens
    term = PolicyGradient(surrogate=Looks(), aggregate="token_mean")
    loss = float(term(toy.forest, toy.policy(), credit, toy.weight, {}, 0)[0].detach())
    assert loss == pytest.approx(math.exp(0.2) / 5)


def test_one_token_that_is_shaped(grow) -> None:
    policy = PolicyTokens(column(-1.0), column(NAN))
    metrics = figures(PolicyGradient(on_unknown_behaviour="shaped"), grow([("a", 1)]), policy)
    assert metrics["shaped_share"] == 1.0


def test_the_power_mean_far_out(toy) -> None:
    one = torch.zeros(1).long()
    assert log_power_mean(column(800.0), one, 1, 1.0).tolist() == [800.0]
    for outcome, power in ((1.0, math.exp(-27.0)), (-1.0, math.exp(27.0))):
        forest = toy.forest.replace(outcome=column(outcome, outcome))
        assert PowerMean(gamma=100.0).adapt(forest)[0] == pytest.approx(power)
    forest, credit = forest_of([("a", 1, 1)] * 3), torch.tensor([0.3, 0.7, 1.3])
    loss = PowerMean(gamma=0.0)(forest, moved(0.0, 0.0, 0.0), credit, torch.ones(3), {}, 0)[0]
    assert float(loss) == pytest.approx(-sum(credit.tolist()) / 3, rel=1e-12)
    policy = toy.policy(proximal_logprob=toy.logprob.detach())
    assert figures(PowerMean(), toy.forest, policy)["on_policy"] == 1.0
