"""Allowed settings of objectives and the errors for others; details of terms that no other test looks at."""

from __future__ import annotations

import math
import re

import pytest
import torch
from tests.algorithms.objectives.by_position import Truncate
from tests.algorithms.objectives.conftest import figures_of

from gxpo.algorithms.objectives import surrogate
from gxpo.algorithms.objectives.base import PolicyGradient, TermPart, TermSum, coefficients
from gxpo.algorithms.objectives.control import Control
from gxpo.algorithms.objectives.masked_kl import MaskedKl, masked_kl
from gxpo.algorithms.objectives.penalty import KL, Entropy, Penalty, kl_estimate
from gxpo.algorithms.objectives.power_mean import PowerMean
from gxpo.algorithms.objectives.preference_pairs import PreferencePairs
from gxpo.algorithms.objectives.sequence_losses import GroupVariance, group_variance
from gxpo.algorithms.objectives.sequence_score import SequenceTerm
from gxpo.algorithms.objectives.surrogate import Entries, LogClip
from gxpo.algorithms.objectives.value import ValueRegression
from gxpo.base.errors import ConfigError, GxpoError, MissingSignal
from gxpo.parts.protocols import PolicyTokens
from gxpo.parts.registry import RATIOS, SURROGATES, TERMS

AGGREGATES = ("token_mean", "sequence_mean", "sequence_sum")

WORDS = {
    "policy_gradient": {
        "objective.ratio": ("token", "sequence", "turn"),
        "objective.aggregate": AGGREGATES,
        "objective.ratio_over": ("proximal", "behaviour"),
        "objective.on_unknown_behaviour": ("error", "one", "shaped"),
    },
    **{
        term: {
            "objective.ratio_over": ("proximal", "behaviour", "reference"),
            "objective.on_unknown_behaviour": ("error", "one"),
        }
        for term in ("classification", "group_variance")
    },
    "kl": {
        "objective.kl.estimator": ("k1", "abs", "k2", "k3", "k3+"),
        "objective.kl.aggregate": AGGREGATES,
        "objective.kl.ratio_over": ("proximal", "behaviour"),
        "objective.kl.on_unknown_behaviour": ("error", "one"),
    },
    "entropy": {"objective.entropy.aggregate": AGGREGATES},
    "masked_kl": {"objective.add.masked_kl.aggregate": AGGREGATES},
    "value_regression": {"objective.add.value_regression.aggregate": AGGREGATES},
    "power_mean": {
        "objective.ratio_over": ("proximal", "behaviour"),
        "objective.on_unknown_behaviour": ("error", "one"),
    },
    "preference_pairs": {
        "objective.pairs": ("verdict", "outcome", "ordered", "none"),
        "objective.form": ("sigmoid", "ipo", "hinge", "odds", "prospect", "clamped"),
        "objective.reference": ("start", "none", "opponents"),
        "objective.turns": ("answer", "turns", "suffix", "segment", "parting"),
        "objective.unpaired_against": ("zero", "batch"),
    },
    "discriminative": {
        "objective.score": ("logprob", "ratio"),
        "objective.ratio_over": ("proximal", "behaviour"),
    },
    "distillation": {"distillation.mean_over": ("taught", "all")},
    "entropy_band": {"objective.add.entropy_band.aggregate": (*AGGREGATES, "turn_mean")},
    "mirror_kl": {"objective.add.mirror_kl.aggregate": AGGREGATES},
    "implicit_negative": {
        "objective.emphasis": ("failure_rate", "root_odds"),
        "objective.aggregate": AGGREGATES,
    },
    "squared_log_ratio": {
        "objective.baseline": ("mean", "log_mean_exp", "others"),
        "objective.level": ("sequence", "token"),
        "objective.aggregate": AGGREGATES,
    },
    "uniform_value": {"objective.aggregate": AGGREGATES},
}


BESIDE = {"odds": {"reference": "none", "length_mean": True}, "batch": {"unpaired": True}}  # words that ask for more


@pytest.mark.parametrize(("term", "key"), [(t, k) for t, keys in WORDS.items() for k in keys])
def test_words(term, key):
    words, setting = WORDS[term][key], key.rpartition(".")[2]
    for word in words:
        TERMS[term](**{setting: word}, **BESIDE.get(word, {}))
    message = f"{key} is 'other'; it is one of {', '.join(words)}"
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}(; did you mean .*)?$"):
        TERMS[term](**{setting: "other"})


EDGES = [
    (surrogate.Clip, {"clip_low": 0.0, "clip_high": 0.0}),
    (surrogate.LogClip, {"log_clip_low": 0.0, "log_clip_high": 0.0}),
    (surrogate.DualClip, {"ratio_max": 1.01}),
    (Truncate, {"ratio_max": float("inf")}),
    (Truncate, {"ratio_max": 0.01}),
    (SURROGATES["elastic_clip"], {"elastic_credit": 0.0, "elastic_variance": 0.0}),
    (TERMS["policy_gradient"], {"shaping_gamma": 0.01}),
    (TERMS["masked_kl"], {"coef": 0.0, "entropy_coef": 0.0, "kl_max": 0.01}),
    (TERMS["value_regression"], {"coef": 0.0, "clip": 0.01}),
    (TERMS["power_mean"], {"clip_low": 0.0, "clip_min": 0.0, "clip_max": 0.0, "gamma": 0.0}),
    (TERMS["preference_pairs"], {"beta": 0.01, "label_smoothing": 0.0, "success_weight": 0.01}),
    (TERMS["discriminative"], {"tau": 0.01, "delta": 0.0, "beta": 0.0}),
]


@pytest.mark.parametrize(("part", "given"), EDGES)
def test_edges_are_inside(part, given):
    term = part(**given)
    assert {name: getattr(term, name) for name in given} == given


OUTSIDE = [
    (surrogate.Clip, {"clip_low": -0.1}, "objective.clip_low is -0.1; it is 0 or more"),
    (surrogate.Clip, {"clip_high": -0.1}, "objective.clip_high is -0.1; it is 0 or more"),
    (surrogate.LogClip, {"log_clip_low": -0.1}, "objective.log_clip_low is -0.1; it is 0 or more"),
    (surrogate.LogClip, {"log_clip_high": -0.1}, "objective.log_clip_high is -0.1; it is 0 or more"),
    (surrogate.DualClip, {"ratio_max": 1.0}, "objective.ratio_max is 1.0; it is above 1"),
    (surrogate.DualClip, {"clip_low": -0.1}, "objective.clip_low is -0.1; it is 0 or more"),
    (Truncate, {"ratio_max": 0.0}, "objective.ratio_max is 0.0; it is above 0"),
    *(
        (
            SURROGATES["elastic_clip"],
            {name: -0.1},
            f"objective.{name} is -0.1; it is 0 or more",
        )
        for name in ("elastic_credit", "elastic_variance")
    ),
    (SURROGATES["elastic_clip"], {"clip_low": -0.1}, "objective.clip_low is -0.1; it is 0 or more"),
    (TERMS["policy_gradient"], {"shaping_gamma": 0.0}, "objective.shaping_gamma is 0.0; it is above 0"),
    *(
        (
            TERMS["policy_gradient"],
            {"ratio": "sequence", name: value},
            f"objective.{label} works with objective.ratio 'token' only, and surrogates that look at single tokens: "
            "set one of the two",
        )
        for name, value, label in (
            ("dedup_shared_tokens", True, "dedup_shared_tokens"),
            ("on_unknown_behaviour", "shaped", "on_unknown_behaviour 'shaped'"),
        )
    ),
    (
        TERMS["kl"],
        {"ratio_weighted": True, "estimator": "k3+"},
        "objective.kl.ratio_weighted corrects the derivative of k3 itself, k3+ has another: set "
        "objective.kl.estimator=k3",
    ),
    (TERMS["masked_kl"], {"coef": -0.1}, "objective.add.masked_kl.coef is -0.1; it is 0 or more"),
    (TERMS["masked_kl"], {"entropy_coef": -0.1}, "objective.add.masked_kl.entropy_coef is -0.1; it is 0 or more"),
    (TERMS["masked_kl"], {"kl_max": 0.0}, "objective.add.masked_kl.kl_max is 0.0; it is above 0, or null"),
    (TERMS["value_regression"], {"coef": -0.1}, "objective.add.value_regression.coef is -0.1; it is 0 or more"),
    (TERMS["value_regression"], {"clip": 0.0}, "objective.add.value_regression.clip is 0.0; it is above 0, or null"),
    (TERMS["classification"], {"tau": 0.0}, "objective.tau is 0.0; it is above 0"),
    (TERMS["group_variance"], {"beta": 0.0}, "objective.beta is 0.0; it is above 0"),
    (TERMS["discriminative"], {"tau": 0.0}, "objective.tau is 0.0; it is above 0, or null"),
    (TERMS["discriminative"], {"delta": -0.1}, "objective.delta is -0.1; it is 0 or more"),
    (TERMS["discriminative"], {"beta": -0.1}, "objective.beta is -0.1; it is 0 or more"),
    (TERMS["preference_pairs"], {"beta": 0.0}, "objective.beta is 0.0; it is above 0"),
    (
        TERMS["preference_pairs"],
        {"label_smoothing": 0.5},
        "objective.label_smoothing is 0.5; it is from 0 to below 0.5",
    ),
    (
        TERMS["preference_pairs"],
        {"label_smoothing": -0.1},
        "objective.label_smoothing is -0.1; it is from 0 to below 0.5",
    ),
    (
        TERMS["preference_pairs"],
        {"label_smoothing": 0.1, "form": "ipo"},
        "objective.label_smoothing belongs to objective.form 'sigmoid': leave one of the two out",
    ),
    (
        TERMS["preference_pairs"],
        {"success_weight": 0.0},
        "objective.success_weight is 0.0; it is above 0",
    ),
    *(
        (TERMS["power_mean"], wrong, "objective.")
        for wrong in ({"clip_low": -0.1}, {"clip_low": 1.0}, {"clip_min": -0.1}, {"clip_min": 99.0}, {"gamma": -0.1})
    ),
]


@pytest.mark.parametrize(("part", "given", "message"), OUTSIDE)
def test_what_lies_outside_is_refused(part, given, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
        part(**given)


# ---------------------------------------------------------------- figures
def figures(toy, term, **given):
    return figures_of(term, toy.forest, toy.policy(**given), toy.credit, toy.weight)


NOTHING = {"clip_fraction": 0.0, "approx_kl": 0.0, "ratio_max": 1.0, "on_policy": 1.0}


@pytest.mark.parametrize("term", [PolicyGradient(), PowerMean()], ids=["PolicyGradient", "PowerMean"])
def test_figures_of_the_ratio(toy, term) -> None:
    """log rho = .3 -.1 -.4 .2 .5; rho - 1 - log rho = .049859 .004837 .070320 .021403 .148721.

    The plain clip cuts e^.3 > 1.2 and e^-.4 < .8; where all succeed the power mean's upper bound is 1.4.
    """
    expected = {"clip_fraction": 0.4, "approx_kl": 0.059028, "ratio_max": math.exp(0.5), "on_policy": 0.0}
    if isinstance(term, PowerMean):
        expected["clip_fraction"] = 0.2
    assert figures(toy, term) == pytest.approx(expected, abs=1e-6)
    assert figures(toy, term, behaviour_logprob=toy.logprob.detach()) == NOTHING
    nobody = torch.zeros_like(toy.credit)
    assert figures_of(term, toy.forest, toy.policy(), nobody, toy.weight) == NOTHING


def test_figures_of_a_shaped_step_without_credit(toy) -> None:
    term = PolicyGradient(on_unknown_behaviour="shaped")
    nobody = torch.zeros_like(toy.credit)
    assert figures_of(term, toy.forest, toy.policy(), nobody, toy.weight) == {**NOTHING, "shaped_share": 0.0}


def test_what_is_held_in_log_space() -> None:
    x = Entries.of(
        torch.tensor([0.5, 0.3, -0.5, -0.3, 0.5, -0.5]).exp(), torch.tensor([1.0, 1.0, -1.0, -1.0, -1.0, 0.5])
    )
    assert LogClip().clipped(x).tolist() == [True, False, True, False, False, False]


class OfTheForest(Penalty):
    name = "length"

    def quantity(self, forest, policy, entries):
        return forest.to_path(forest.lengths().to(torch.float64), "R")[entries]


def test_figures_of_penalties(toy) -> None:
    # lengths 2 2 3 3 3; d = reference - logprob = -.4 .1 .2 -.1 -.5
    assert figures(toy, OfTheForest(coef=0.5)) == pytest.approx({"length": 13 / 5})
    signals = {"proximal_logprob": toy.logprob.detach(), "reference_logprob": toy.reference}
    k3 = sum(math.exp(d) - 1 - d for d in (-0.4, 0.1, 0.2, -0.1, -0.5)) / 5
    assert KL(coef=0.1).start_value(toy.forest, signals) == pytest.approx(k3)
    assert KL(coef=0.1).start_value(toy.forest, {}) is None
    policy = toy.policy(reference_logprob=toy.reference)
    for coef, expected in ((0.0, {}), (0.1, {"kl": pytest.approx(k3)})):
        assert figures_of(KL(coef=coef), toy.forest, policy, toy.credit, toy.weight, signals) == expected


class Watching(Control):
    from_zero, follows = True, "kl"

    def coefficient(self, start):
        return start

    def adjust(self, figures):
        return {}


def test_a_kl_that_may_begin_asks_for_both_policies(toy) -> None:
    term = KL(control=Watching())
    assert term.needs == ("reference_logprob", "proximal_logprob") and KL(coef=0.1).needs == ("reference_logprob",)
    assert figures_of(term, toy.forest, toy.policy(), toy.credit, toy.weight) == {"kl_coef": 0.0}
    equal = {"proximal_logprob": toy.reference, "reference_logprob": toy.reference}
    assert figures_of(term, toy.forest, toy.policy(), toy.credit, toy.weight, equal) == {"kl_coef": 0.0, "kl": 0.0}


def test_the_residual_of_z_scores(toy) -> None:
    # outcomes 3 and 1, z .707107 and -.707107; D = .2 and .3, and beta D has a std below 1, so it is not divided:
    # (.707107 + .05) and its negative
    forest = toy.forest.replace(outcome=torch.tensor([3.0, 1.0], dtype=torch.float64))
    for standardise, gap in ((False, 1 + 0.05), (True, 0.707107 + 0.05)):
        term = GroupVariance(beta=1.0, standardise=standardise)
        metrics = figures_of(term, forest, toy.policy(), toy.credit, toy.weight)
        assert metrics["implicit_reward_gap"] == pytest.approx(gap, abs=1e-5)


# ---------------------------------------------------------------- sums
class Plain:
    couples = "token"


class Asks(TermPart):
    couples, outputs, needs, requires = "group", ("logprob", "entropy"), ("value",), ("states",)

    def metrics(self, forest, policy, credit, weight, signals=None):
        return {"kl": 1.0, "of": float(signals["of"])}

    def active(self, forest, credit, weight, signals=None):
        return signals["active"]

    def __call__(self, forest, policy, credit, weight, signals, step):
        return policy.logprob.sum()


def test_a_sum_needs_what_its_terms_need(toy) -> None:
    both = Asks() + PolicyGradient() + Asks()
    assert (both.couples, both.outputs) == ("group", ("logprob", "entropy"))
    assert (both.needs, both.requires) == (("value",), ("states",))
    only = torch.tensor([True, False, False, False, False])
    signals = {"of": 2.0, "active": only}
    assert (Asks() + Asks()).active(toy.forest, toy.credit, toy.weight, signals).tolist() == only.tolist()
    three = Asks() + Asks() + Asks()
    metrics = figures_of(three, toy.forest, toy.policy(), toy.credit, toy.weight, signals)
    assert metrics == {"kl": 1.0, "of": 2.0, "kl_2": 1.0, "of_2": 2.0, "kl_3": 1.0, "of_3": 2.0}
    assert TermSum((Plain(),)).outputs == ("logprob",)  # type: ignore[arg-type]  # a term that says nothing of itself
    with pytest.raises(ConfigError, match=r"^an objective needs at least one term$"):
        TermSum(())


# ---------------------------------------------------------------- values
def test_a_loss_has_the_dtype_of_the_log_probs(toy) -> None:
    single = toy.logprob.detach().float().requires_grad_()
    policy = PolicyTokens(single, toy.old, toy.reference, entropy=-single, value=single)
    signals = {"masked_logprob": toy.reference, "value_target": toy.old, "value": toy.old}
    for term in (PolicyGradient(), PowerMean(), KL(coef=1.0), KL(coef=1.0, ratio_weighted=True), Entropy(coef=1.0),
                 MaskedKl(), ValueRegression(), ValueRegression(clip=0.2), GroupVariance()):  # fmt: skip
        assert term(toy.forest, policy, toy.credit, toy.weight, signals, 0)[0].dtype == torch.float32, term


def test_weights_of_trajectories_and_tokens_that_are_not_trained(grow) -> None:
    """Tokens 0 and 2 of three are trained, the second trajectory at half weight, so each is divided by 2.

    Value: (1 - 0)^2 / 2 and half of (3 - 1)^2 / 2, over 2. KL with the ratio: e^.2 k1 of .5 and half of e^-.1 .25.
    """
    forest = grow([("a", 2, {"trainable": [True, False]}), ("a", 1, {"weight": 0.5})])
    old = torch.tensor([-1.0, math.nan, -2.0], dtype=torch.float64)
    logprob = torch.tensor([-0.8, -0.5, -2.1], dtype=torch.float64)
    reference = torch.tensor([-1.3, math.nan, -2.35], dtype=torch.float64)
    value, one = torch.tensor([1.0, 9.0, 3.0], dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    policy = PolicyTokens(logprob, old, reference, value=value)
    target = {"value_target": torch.tensor([0.0, math.nan, 1.0], dtype=torch.float64)}
    assert float(ValueRegression(coef=1.0)(forest, policy, one, one, target, 0)[0]) == pytest.approx(
        (0.5 + 0.5 * 2) / 2
    )
    term = KL(coef=1.0, estimator="k1", aggregate="token_mean", ratio_weighted=True)
    expected = (math.exp(0.2) * 0.5 + 0.5 * math.exp(-0.1) * 0.25) / 2
    assert float(term(forest, policy, one, one, {}, 0)[0]) == pytest.approx(expected)
    with pytest.raises(MissingSignal, match=r"^the value term needs the policy's value: give PolicyTokens\.value$"):
        ValueRegression()(forest, PolicyTokens(logprob, old), one, one, target, 0)[0]


def test_masked_kl_by_default_and_by_the_longest_answer(toy) -> None:
    # k3 of d = -.4 .1 .2 -.1 -.5: .070320 .005171 .021403 .004837 .106531; -logprob = .2 1.1 2.4 .1 .2
    k3, nll = (0.070320, 0.005171, 0.021403, 0.004837, 0.106531), (0.2, 1.1, 2.4, 0.1, 0.2)
    each = [-0.01 * k + 0.03 * x for k, x in zip(k3, nll, strict=True)]
    assert masked_kl(toy.logprob.detach(), toy.reference).tolist() == pytest.approx(each, abs=1e-7)
    signals = {"masked_logprob": toy.reference}
    term = MaskedKl(aggregate="sequence_sum", horizon=10.0)
    loss = term(toy.forest, toy.policy(), toy.credit, toy.weight, signals, 0)[0]
    assert float(loss.detach()) == pytest.approx(sum(each) / 10 / 2, abs=1e-7)


def test_the_ratio_of_a_turn_is_its_geometric_mean() -> None:
    log_ratio, turn = torch.tensor([0.1, 0.3, -0.4, 0.2]), torch.tensor([0, 0, 1, 1])
    log_ratios = RATIOS["turn"]().level(log_ratio, torch.zeros(4, dtype=torch.int64), turn)
    assert log_ratios.tolist() == pytest.approx([0.2, 0.2, -0.1, -0.1])


def test_pairs_alone_leave_equal_groups_out() -> None:
    assert PreferencePairs(unpaired=True).learns_from_equal_groups and not PreferencePairs().learns_from_equal_groups


def test_an_estimator_that_does_not_exist() -> None:
    with pytest.raises(ConfigError, match=r"^objective\.kl\.estimator is 'k4'; it is one of k1, abs, k2, k3, k3\+$"):
        kl_estimate(torch.zeros(1), torch.zeros(1), "k4")


def test_on_the_bound_and_without_credit_nothing_is_clipped() -> None:
    x = Entries.of(torch.tensor([0.5, 1.5, 9.0, 0.1]), torch.tensor([-1.0, 1.0, 0.0, 0.0]))
    assert surrogate.Clip(0.5, 0.5).clipped(x).tolist() == [False] * 4
    assert x.trajectory.tolist() == x.turn.tolist() == [0, 1, 2, 3]


def test_one_compared_member_gives_nothing_to_regress_to(grow) -> None:
    two = torch.tensor([1.0, 3.0])
    loss = group_variance(two, two.flip(0), torch.zeros(2).long(), 1.0, compared=torch.tensor([True, False]))
    assert float(loss) == 0.0
    forest, any_weight = grow([("a", 2), ("b", 1), ("b", 1)]), torch.ones(4, dtype=torch.float64)
    assert GroupVariance().active(forest, any_weight, any_weight).tolist() == [False, False, True, True]


def test_the_power_mean_where_nobody_knows_who_sampled(toy) -> None:
    term, nan = PowerMean(on_unknown_behaviour="one"), torch.full_like(toy.old, math.nan)
    assert toy.loss(term, behaviour_logprob=nan) == toy.loss(PowerMean(), behaviour_logprob=toy.logprob.detach())


class ByEntropy(surrogate.Surrogate):
    couples, outputs = "step", ("entropy",)

    def loss(self, x):
        return -x.credit * x.ratio * x.entropy


def test_surrogates_that_read_the_entropy_and_the_whole_step(toy) -> None:
    """-A rho H over the 5 tokens, A 1 0 -1 0 0 and H 1 2 3 4 5: -e^.3 + 3 e^-.4."""
    term, entropy = PolicyGradient(surrogate=ByEntropy(), aggregate="token_mean"), torch.arange(1.0, 6.0)
    assert (term.couples, term.outputs) == ("step", ("logprob", "entropy"))
    credit = torch.tensor([1.0, 0.0, -1.0, 0.0, 0.0], dtype=torch.float64)
    loss = term(toy.forest, toy.policy(entropy=entropy), credit, toy.weight, {}, 0)[0]
    assert float(loss.detach()) == pytest.approx((-math.exp(0.3) + 3 * math.exp(-0.4)) / 5)
    assert term.active(toy.forest, credit.clamp_min(0), toy.weight).tolist() == [True] * 5
    assert term.active(toy.forest, 0 * credit, toy.weight).tolist() == [False] * 5
    with pytest.raises(
        MissingSignal, match=r"^this objective's surrogate needs the policy's entropy: give it as `entropy`$"
    ):
        term(toy.forest, toy.policy(), credit, toy.weight, {}, 0)[0]


class OfTokens(SequenceTerm):
    couples = "token"

    def __call__(self, forest, policy, credit, weight, signals, step):
        return policy.logprob.sum()


def test_terms_on_single_tokens_read_those_that_have_a_weight(toy) -> None:
    weight = torch.tensor([1.0, 0.0, 0.0, 2.0, 0.0], dtype=torch.float64)
    assert OfTokens().active(toy.forest, toy.credit, weight).tolist() == [True, False, False, True, False]


def test_a_sum_over_answers_needs_the_longest_one() -> None:
    message = (
        "objective.horizon is None, and objective.aggregate 'sequence_sum' divides by it: set it to the longest "
        "trainable length a trajectory can have, in tokens"
    )
    one = torch.zeros(2, dtype=torch.int64)
    with pytest.raises(GxpoError, match=f"^{re.escape(message)}$"):
        coefficients(one, one == 0, "sequence_sum")
