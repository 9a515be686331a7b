"""Allowed settings of surrogates, ratios, controls and terms, to the edge, and the errors for others.

Parts are made inside the tests: what a module makes when it is imported is no test of how parts are made.
"""

from __future__ import annotations

import math
import re

import pytest
import torch
from tests.algorithms.objectives.by_position import (
    Annealed,
    DivergenceMask,
    Filtered,
    NestedClip,
    RatioMask,
    Schedule,
    TwoPhaseDecay,
)

from gxpo.algorithms.objectives import Entries
from gxpo.algorithms.objectives.base import coefficients
from gxpo.algorithms.objectives.control import AdaptiveKl, ByAccuracy, DualBudget, EntropyTarget
from gxpo.algorithms.objectives.penalty import KLReward
from gxpo.base.errors import CheckpointError, ConfigError, GxpoError, MissingSignal
from gxpo.parts.registry import RATIOS, SURROGATES, TERMS


def test_edges_are_allowed_and_mean_what_they_say():
    assert TwoPhaseDecay(fall=0.0).coefficient(0.3) == 0.3
    assert DualBudget(budget=0.0, rate=0.5).adjust({"kl": 0.25}) == {"kl_over_budget": 0.25}
    falling = Schedule(to=0.0, total_steps=2)
    falling.adjust({"step": 2})
    assert falling.coefficient(0.3) == 0.0
    exact = RatioMask(clip_low=0.0, clip_high=0.0, ring_low=0.0, ring_high=0.0, ratio_max=0.5)
    entries = Entries.of(torch.tensor([1.0, 1.5]), torch.tensor([1.0, 1.0]), torch.tensor([-2.0, -2.0]))
    assert exact.loss(entries).tolist() == [2.0, 0.0]


EDGES = [
    (lambda: AdaptiveKl, {"horizon": 0.5}),
    (lambda: Schedule, {"total_steps": 1}),
    (lambda: TwoPhaseDecay, {"fall": 1.0, "total_steps": 1}),
    (lambda: ByAccuracy, {"slope": 0.0}),
    (lambda: SURROGATES["truncate"], {"ratio_min": 1.28}),
    (lambda: SURROGATES["divergence_mask"], {"divergence_low": 0.0, "divergence_high": 0.0, "ratio_max": 0.5}),
    (lambda: SURROGATES["drift"], {"drift_positive": 0.5, "drift_negative": 0.5}),
    (lambda: SURROGATES["future_drift"], {"safe_ratio": 0.5}),
    (lambda: SURROGATES["gamma"], {f"{k}_{s}": 0.5 for k in ("power", "decay") for s in ("positive", "negative")}),
    (lambda: SURROGATES["hybrid_clip"], {"sequence_clip_low": 0.0, "sequence_clip_high": 0.0}),
    (lambda: SURROGATES["nested_clip"], {"trajectory_clip": 0.0, "residual_clip": 0.0}),
    (lambda: SURROGATES["sigmoid"], {"tau_positive": 0.5, "tau_negative": 0.5}),
    (lambda: SURROGATES["ratio_target"], {"clip_low": 0.0, "clip_high": 0.0}),
    (lambda: RATIOS["sequence_sum"], {"log_ratio_max": 0.5}),
    (lambda: RATIOS["sequence_sum"], {"log_ratio_max": 80.0}),
    (lambda: TERMS["distillation"], {"ratio_max": 0.5}),
    (lambda: TERMS["entropy_band"], {"low": 0.0, "size": 0.0}),
    (lambda: TERMS["entropy_band"], {"low": 1.0, "high": 1.0}),
    (lambda: TERMS["implicit_negative"], {"rate_min": 0.5, "negative_weight": 0.0}),
    (lambda: TERMS["uniform_value"], {"next_scale": 0.0}),
]


@pytest.mark.parametrize(("part", "given"), EDGES)
def test_edges_are_inside(part, given):
    part_at_edge = part()(**given)
    assert {name: getattr(part_at_edge, name) for name in given} == given


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Schedule(to=math.inf), r"^control\.to is inf; it is 0 or more"),
        (lambda: DualBudget(rate=0.0), r"^control\.rate is 0\.0; it is above 0"),
        (lambda: Schedule(shape="exponential").coefficient(0.0), r"^control: an exponential .* control\.shape=cosine$"),
        (lambda: DivergenceMask("mean"), r"^objective\.divergence is 'mean'"),  # type: ignore[arg-type]  # the point
        (lambda: RatioMask(importance="all"), r"^objective\.importance is 'all'"),  # type: ignore[arg-type]  # the point
        (lambda: Filtered(observation_noise=0.0), r"^objective\.observation_noise is 0\.0; it is above 0"),
    ],
)
def test_what_is_beyond_them_is_refused_by_name(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


REFUSED = [
    (lambda: AdaptiveKl(bound=0.0), "control.bound is 0.0; it is above 0"),
    (lambda: AdaptiveKl(horizon=0.0), "control.horizon is 0.0; it is above 0"),
    (
        lambda: Schedule(to=0.0, shape="exponential"),
        "control.to is 0, which an exponential schedule never reaches: set control.shape=cosine",
    ),
    (lambda: EntropyTarget(target=0.0), "control.target is 0.0; it is above 0"),
    (lambda: Annealed(min_step=1.5), "control.min_step is 1.5; it is above 0, up to 1"),
    (lambda: SURROGATES["truncate"](ratio_min=2.0), "objective.ratio_min is 2.0; it is from 0 to ratio_max (1.28)"),
    (
        lambda: DivergenceMask(ratio_max=0.0),
        "objective.ratio_max is 0.0; it is above 0",
    ),
    (
        lambda: SURROGATES["drift"](drift_positive=0.0),
        "objective.drift_positive is 0.0; it is above 0",
    ),
    (
        lambda: SURROGATES["entropy_adaptive_clip"](credit_gain=1.5),
        "objective.credit_gain is 1.5; it is from 0 to 1",
    ),
    (
        lambda: SURROGATES["future_drift"](factor_low=0.0),
        "objective.factor_low is 0.0; it is above 0, up to 1",
    ),
    (
        lambda: SURROGATES["future_drift"](safe_ratio=0.0),
        "objective.safe_ratio is 0.0; it is above 0",
    ),
    (
        lambda: SURROGATES["hybrid_clip"](sequence_clip_low=-0.1),
        "objective.sequence_clip_low is -0.1; it is 0 or more",
    ),
    (
        lambda: RatioMask(clip_low=0.7),
        "objective.clip_low (0.7) is at most ring_low (0.6), and clip_high (0.2) at most ring_high (2.0)",
    ),
    (
        lambda: NestedClip(-0.1),
        "objective.trajectory_clip is -0.1; it is 0 or more",
    ),
    (
        lambda: SURROGATES["sigmoid"](tau_negative=0.0),
        "objective.tau_negative is 0.0; it is above 0",
    ),
    (
        lambda: Filtered(process_noise=0.0),
        "objective.process_noise and initial_variance are both 0, so the ratio is always 1: raise one",
    ),
    (lambda: RATIOS["sequence_sum"](log_ratio_max=80.5), "objective.log_ratio_max is 80.5; it is above 0, up to 80"),
    (
        lambda: TERMS["preference_pairs"](weight_by_gap=True),
        "objective.weight_by_gap weighs pairs of outcomes: set objective.pairs=ordered, or outcome",
    ),
    *(
        (
            lambda name=name: TERMS["value_regression"](**{name: ""}),
            "value regression: head and target are names, or null for the plain value",
        )
        for name in ("head", "target")
    ),
    (
        lambda: TERMS["positive_likelihood"](coef=-0.1),
        "objective.add.positive_likelihood.coef is -0.1; it is 0 or more",
    ),
    (lambda: TERMS["distillation"](beta=math.inf), "distillation.beta is inf; it is 0 or more"),
    (
        lambda: TERMS["implicit_negative"](rate_min=0.6),
        "objective.rate_min is 0.6; it is above 0, up to 0.5",
    ),
    (
        lambda: TERMS["inner_layer"](ratio_over="behaviour"),
        "an inner layer's ratio is over the same layer at the start of the step, and nobody sampled from it: set "
        "objective.ratio_over=proximal",
    ),
    (
        lambda: TERMS["squared_log_ratio"](level="token", baseline="others"),
        "objective.baseline 'others' compares whole trajectories: set objective.level=sequence",
    ),
]

WORDS = [
    (lambda x: Schedule(shape=x), "control.shape", "linear, cosine, exponential, dip"),
    (lambda x: SURROGATES["hybrid_clip"](mixing=x), "objective.mixing", "average, entropy"),
    (lambda x: SURROGATES["hybrid_clip"](sides=x), "objective.sides", "both, improving"),
    (lambda x: RatioMask(side=x), "objective.side", "one, two, ring"),
    (lambda x: RATIOS["prefix"](prefix=x), "objective.prefix", "min, mean, sum"),
    (lambda x: KLReward(1.0, x), "objective.kl.estimator", "k1, abs, k2, k3, k3+"),
    (
        lambda x: coefficients(torch.zeros(1).long(), torch.ones(1).bool(), x),
        "objective.aggregate",
        "token_mean, sequence_mean, sequence_sum",
    ),
]


@pytest.mark.parametrize(("make", "message"), REFUSED)
def test_what_lies_outside_is_refused(make, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        make()


@pytest.mark.parametrize(("make", "key", "words"), WORDS)
def test_words_that_do_not_exist_are_refused(make, key, words):
    message = f"{key} is 'other'; it is one of {words}"
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}(; did you mean .*)?$"):
        make("other")


# ---------------------------------------------------------------- what is missing when a term is called
UNKNOWN = (
    "objective.add.mirror_kl: 5 of 5 trained tokens have no log-prob of the old policy: record `logprob` for them, or "
    "give a proximal policy"
)
NO_VERDICT = (
    "this objective learns from verdicts, and 2 of 2 trajectories have none: give `success` in the records, use a "
    "reward with a verdict, or set objective.success_at to the outcome that counts as one"
)
MISSING = [
    ("entropy", {"coef": 1.0}, "objective.entropy needs the policy's entropy: give it, or set its coef to 0"),
    ("entropy_band", {}, "entropy_band needs the policy's entropy: give it, or leave the term out"),
    ("kl", {"coef": 1.0}, "objective.kl needs reference_logprob: give a reference, or set objective.kl.coef to 0"),
    ("mirror_kl", {}, UNKNOWN),
    (
        "group_variance",
        {"ratio_over": "reference"},
        "this objective needs reference_logprob: give the reference policy's log-probs",
    ),
    ("classification", {}, NO_VERDICT),
    (
        "uniform_value",
        {"on_unknown_behaviour": "one"},
        "this objective reads the policy's mean log-prob over the vocabulary: output mean_logprob",
    ),
    ("value_regression", {}, "value_target is infinite for some tokens: check the rewards"),
]


@pytest.mark.parametrize(("term", "given", "message"), MISSING)
def test_what_is_missing_is_asked_for(toy, term, given, message):
    nan = torch.full_like(toy.old, math.nan)
    policy = toy.policy(behaviour_logprob=nan, value=toy.old)
    with pytest.raises(GxpoError, match=f"^{re.escape(message)}$") as caught:
        TERMS[term](**given)(toy.forest, policy, toy.credit, toy.weight, {"value_target": toy.old + math.inf}, 0)
    assert isinstance(caught.value, MissingSignal) == (term not in ("mirror_kl", "classification", "value_regression"))


def test_a_horizon_of_zero_divides_nothing():
    with pytest.raises(GxpoError, match=r"^objective\.horizon is 0\.0, and objective\.aggregate 'sequence_sum'"):
        coefficients(torch.zeros(1).long(), torch.ones(1).bool(), "sequence_sum", 0.0)


# ---------------------------------------------------------------- what follows from settings
@pytest.mark.parametrize(
    ("term", "given", "couples"),
    [
        ("discriminative", {}, "step"),
        ("discriminative", {"beta": 0.5}, "step"),
        ("discriminative", {"beta": 0.0}, "group"),
        ("squared_log_ratio", {}, "trajectory"),
        ("squared_log_ratio", {"baseline": "others", "tau": 0.5}, "group"),
        ("squared_log_ratio", {"baseline": "others", "tau": 0.0}, "trajectory"),
        ("squared_log_ratio", {"level": "token"}, "token"),
    ],
)
def test_what_is_coupled(term, given, couples):
    assert TERMS[term](**given).couples == couples


def test_a_band_reads_the_entropy():
    assert TERMS["entropy_band"]().outputs == ("logprob", "entropy")


# ---------------------------------------------------------------- controls and surrogates
def test_a_control_starts_in_force():
    fresh = EntropyTarget()
    assert fresh.state_dict() == {"total": 0.0, "lowest": 0.0, "below": 1.0}
    assert fresh.adjust({}) == {"entropy_below_target": 1.0}


def test_a_control_reports_its_progress_and_checks_its_memory():
    assert TwoPhaseDecay(total_steps=4).adjust({"step": 1}) == {"schedule_progress": 0.25}
    message = "the control's part of the checkpoint has ['factor'], not ['progress']: is it of another control?"
    with pytest.raises(CheckpointError, match=f"^{re.escape(message)}$"):
        TwoPhaseDecay().load_state_dict({"factor": 1.0})


def test_the_nested_clip_counts_what_it_holds_and_nothing_else():
    near = Entries.of(torch.tensor([1.05, 1.0, 3.0, 3.0]), torch.tensor([1.0, 0.0, 1.0, 0.0]))
    assert NestedClip(0.2, 0.2).clipped(near).tolist() == [False, False, True, False]
