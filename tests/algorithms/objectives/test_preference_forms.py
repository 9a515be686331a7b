"""Forms of the pair loss and what a score is: the cards' numbers (SimPO, ORPO, KTO, POWER, CPL, Step-APO, prefixes)."""

from __future__ import annotations

import math

import pytest
import torch
from tests.algorithms.objectives import labelled_groups as groups
from tests.thorough import some

import gxpo
from gxpo.algorithms.objectives.preference_pairs import FORMS, PreferencePairs, odds
from gxpo.base.errors import ConfigError, GxpoError, MissingSignal
from gxpo.forest.forest import Forest


def column(*x: float) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


def spread(forest: Forest, totals: list[float]) -> torch.Tensor:
    """Log-probs [P] that sum to these totals, evenly over each trajectory's tokens."""
    length = forest.lengths()
    return torch.cat([column(t / int(n)).expand(int(n)) for t, n in zip(totals, length, strict=True)])


def policy(forest: Forest, totals: list[float], reference: list[float] | None = None) -> dict[str, torch.Tensor]:
    x = {"logprob": spread(forest, totals)}
    x |= {"behaviour_logprob": x["logprob"] * torch.nan}  # nobody asks who sampled
    return x if reference is None else x | {"reference_logprob": spread(forest, reference)}


def loss_of(name: str, forest: Forest, x: dict[str, torch.Tensor], **options: object) -> float:
    term = gxpo.method(name, {f"objective.{k}": v for k, v in options.items()}).terms["policy"]
    return groups.graded(term, forest, x)[0]


@pytest.mark.parametrize(
    ("form", "better", "worse", "beta", "options", "loss"),
    [
        ("sigmoid", -0.8, -1.1, 2.0, {"margin": 1.0}, 0.913015),  # z = .6 - 1
        ("odds", -0.8, -1.1, 1.0, {}, 0.477163),  # log odds ratio .491846
        ("odds", -2.0, -14 / 6, 1.0, {}, 0.522413),  # .376745
        ("prospect", 2.0, 0.5, 0.1, {}, 0.462570),  # a good answer of score 2, reference point .5
        ("prospect", 0.5, 2.0, 0.1, {}, 0.537430),  # a bad one of the same score
        ("prospect", 1.0, 0.3, 0.1, {}, 0.482507),
        ("prospect", 0.3, -1.0, 0.1, {}, 0.467546),
        ("sigmoid", -4.0, -10.0, 0.1, {"bias": 0.5}, 0.644397),
        ("sigmoid", -4.0, -10.0, 0.1, {}, 0.437488),
        ("sigmoid", 0.5, -0.2, 0.3, {"margin": 0.6}, 0.907040),  # V .8 against .2
        ("sigmoid", 0.5, -0.2, 0.3, {}, 0.593650),
        ("hinge", -0.8, -1.1, 2.0, {"margin": 0.5}, 0.9),
        ("ipo", 2.0, 0.0, 0.1, {}, 9.0),
    ],
)
def test_cards(form, better, worse, beta, options, loss):
    assert float(FORMS[form](column(better), column(worse), beta, **options)) == pytest.approx(loss, abs=6e-7)


def test_cards_through_the_methods():
    """Five tokens of log-prob -10 in all, six of -14; reference -11 and -13."""
    forest = groups.forest_of([("a", 5, 1), ("a", 6, 0)])
    free, against = policy(forest, [-10, -14]), policy(forest, [-10, -14], [-11, -13])
    assert loss_of("simpo", forest, free) == pytest.approx(0.613282, abs=6e-7)
    assert loss_of("orpo", forest, free) == pytest.approx(2.052241, abs=6e-7)
    assert loss_of("orpo", forest, free, nll=0.0, pair_weight=1.0) == pytest.approx(0.522413, abs=6e-7)
    assert loss_of("ipo", forest, against) == pytest.approx(9.0)
    assert loss_of("ipo", forest, against, length_mean=True) == pytest.approx(21.467778, abs=6e-7)
    assert loss_of("power_dl", forest, free, beta=0.1, nll=1e-4) == pytest.approx(0.675182, abs=6e-7)
    longer = groups.forest_of([("a", 5, 1), ("a", 7, 0)])
    assert loss_of("simpo", longer, policy(longer, [-10, -14])) == pytest.approx(0.974077, abs=6e-7)
    sums = groups.forest_of([("a", 1, 1), ("a", 1, 0)])
    assert loss_of("cpl_contrastive", sums, policy(sums, [-4, -10])) == pytest.approx(0.644397, abs=6e-7)


def test_step_apo_offsets_a_pair_by_the_difference_of_values():
    forest = groups.forest_of([("a", 1, 1, {"reward": 0.8}), ("a", 1, 0, {"reward": 0.2})])
    x = policy(forest, [-1.0, -1.0], [-1.5, -0.8])  # log-ratios .5 and -.2
    assert loss_of("step_apo", forest, x) == pytest.approx(0.907040, abs=6e-7)
    assert loss_of("step_apo", forest, x, gap_margin=0.0) == pytest.approx(0.593650, abs=6e-7)


def test_kto_values_single_answers_against_the_mean_of_the_step():
    """Scores 2 and -1: z0 = .5, a constant; 1 - sigmoid(.15) of both. Weights are of labels."""
    forest = groups.forest_of([("a", 1, 1), ("b", 1, 0)])
    x = policy(forest, [-1.0, -4.0], [-3.0, -3.0])
    term = gxpo.method("kto").terms["policy"]
    value, gradient = groups.graded(term, forest, x)
    assert value == pytest.approx(0.462570, abs=6e-7)
    slope = 0.1 * 0.462570 * 0.537430 / 2
    assert gradient.tolist() == pytest.approx([-slope, slope], abs=1e-8)
    weighed = loss_of("kto", forest, x, success_weight=2.0, failure_weight=0.5)
    assert weighed == pytest.approx(0.462570 * (2.0 + 0.5) / 2, abs=6e-7)
    low = policy(forest, [-5.0, -4.0], [-3.0, -3.0])  # a mean below 0: the reference point is 0
    assert loss_of("kto", forest, low) == pytest.approx((1 / (1 + math.exp(-0.2)) + 1 - 1 / (1 + math.exp(-0.1))) / 2)
    assert loss_of("kto", forest, low) == loss_of("kto", forest, low, unpaired_against="zero")


def test_a_shared_beginning_cancels_in_sums_and_not_in_means():
    """Answers .5 and -.3 apart after a beginning of two tokens: the margin is .8 with it and without."""
    after = groups.forest_of([("a", 1, 1), ("a", 1, 0)])
    whole_forest = groups.forest_of([("a", 3, 1), ("a", 3, 0)])
    shared = column(-0.7, -0.4)
    reference = torch.cat([shared, column(-1.0), shared, column(-1.0)])
    moved = column(0.3, -0.2)
    logprob = reference + torch.cat([moved, column(0.5), moved, column(-0.3)])
    x = {"logprob": logprob, "reference_logprob": reference, "behaviour_logprob": logprob}
    suffix_logprobs = {k: v[[2, 5]] for k, v in x.items()}
    expected = math.log1p(math.exp(-0.1 * 0.8))
    assert loss_of("dpo", whole_forest, x) == pytest.approx(expected)
    assert loss_of("dpo", after, suffix_logprobs) == pytest.approx(expected)
    assert loss_of("simpo", whole_forest, x) != pytest.approx(loss_of("simpo", after, suffix_logprobs))


TERMS = [
    gxpo.method(name).terms["policy"]
    for name in ("simpo", "orpo", "kto", "power_dl", "step_apo", "cpl_contrastive", "dmpo", "mpo_set", "ipo")
]


@pytest.mark.slow
@pytest.mark.parametrize("term", some(TERMS, TERMS[::2]))
def test_the_gradient_is_the_same_however_the_step_is_cut(term):
    groups.same_however_cut(term)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("term", [t for t in TERMS if t.couples == "group"])
def test_rules(seed, term):
    groups.weights_scale_derivatives(term, seed)


def test_without_a_reference_nothing_is_needed():
    term = PreferencePairs(reference="none")
    assert term.needs == () and PreferencePairs().needs == ("reference_logprob",)
    forest = groups.forest_of([("a", 1, 1), ("a", 1, 0)])
    with pytest.raises(MissingSignal, match=r"signal\.opponents"):
        groups.graded(PreferencePairs(reference="opponents"), forest, policy(forest, [-1, -1]))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"form": "ipo", "margin": 1.0}, "objective.margin belongs to objective.form 'sigmoid', 'hinge'"),
        ({"form": "hinge", "bias": 0.5}, "objective.bias belongs to objective.form 'sigmoid'"),
        ({"form": "ipo", "gap_margin": 1.0}, "objective.gap_margin belongs to"),
        ({"form": "odds"}, "set objective.reference=none, objective.length_mean=true"),
        ({"gamma": 0.5}, "objective.gamma does nothing here: it belongs to objective.turns"),
        ({"failure_weight": 0.5}, "objective.failure_weight does nothing here: it belongs to objective.pairs=none"),
        ({"unpaired_against": "batch"}, "objective.unpaired_against does nothing here"),
    ],
)
def test_settings_that_do_nothing_are_refused(wrong, message):
    with pytest.raises(ConfigError, match=message):
        PreferencePairs(**wrong)


def test_odds_of_what_is_no_probability():
    with pytest.raises(GxpoError, match="reads mean log-probs"):
        odds(column(0.2), column(-0.1), 1.0)
    assert math.isfinite(float(odds(column(0.0), column(-1e-9), 1.0)))  # certain on both sides
