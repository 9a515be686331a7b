"""When a trial stops: levels of looks, decisions by hand, false positives and power in simulated trials."""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np
import pytest

from gxpo.base.errors import ConfigError
from gxpo.compare.inference import seed_interval
from gxpo.compare.stopping import TrialBudget, decide, look, look_levels, sentence, trial_power

TRIALS = 1000
# The 95 % point of a share of 5 % in 1000 trials: .05 + 1.645 sqrt(.05 * .95 / 1000) = .0613.
MOST_FALSE_POSITIVES = 0.0613


def _normal(draws, shape):
    return draws.standard_normal(shape)


def _heavy_tailed(draws, shape):
    return draws.standard_t(3, shape)


def _skewed(draws, shape):
    # Less a normal base of the same spread: differences of mean 0 with a skewness of 2 / 2^1.5 = .71.
    return draws.exponential(1.0, shape) - 1.0


@pytest.mark.parametrize("arms", [1, 2, 3, 4])
@pytest.mark.parametrize("outcome", [_normal, _heavy_tailed, _skewed])
def test_null_trials_rarely_decide(outcome, arms):
    draws = np.random.default_rng(arms)
    base = _normal if outcome is _skewed else outcome
    for seeds in (3, 6, 12):
        # All arms share the base's runs, as in a trial.
        differences = outcome(draws, (TRIALS, arms, seeds)) - base(draws, (TRIALS, 1, seeds))
        is_decided = look(differences, look_levels(TrialBudget(seeds=seeds), arms)).deciding > 0
        assert is_decided.any(-1).mean() <= MOST_FALSE_POSITIVES


def test_an_end_by_minutes_keeps_the_level():
    # Minutes end each trial after 3 to 12 seeds, whatever its differences are.
    draws = np.random.default_rng(0)
    differences = draws.standard_normal((TRIALS, 12))
    ends = draws.integers(3, 13, TRIALS)
    decided = 0
    for seeds in range(3, 13):
        of_end = differences[ends == seeds, :seeds]
        decided += int((look(of_end, look_levels(TrialBudget(), 1, seeds)).deciding > 0).sum())
    assert decided / TRIALS <= MOST_FALSE_POSITIVES


# From seed to seed paired differences of the studies vary by .05 (median). One arm of 12 seeds, by 20,000 trials: .68
# for an effect of .05 (the fixed number of seeds: .88), 1.00 for .1 and .2, after 9.9, 6.5 and 4.8 seeds on average.
@pytest.mark.parametrize(("effect", "share", "seeds"), [(0.05, 0.68, 9.9), (0.1, 1.0, 6.5), (0.2, 1.0, 4.8)])
def test_power_at_the_spread_of_the_studies(effect, share, seeds):
    power, used = trial_power(effect, 0.05, TrialBudget(seeds=12))
    assert power == pytest.approx(share, abs=0.04) and used == pytest.approx(seeds, abs=0.2)


def test_levels_of_looks_sum_to_the_whole():
    # F(3), F(4), F(5), F(6) = 1/16, 4/16, 9/16, 1: increments of 1, 3, 5 and 7 sixteenths, over two arms.
    levels = look_levels(TrialBudget(seeds=6), arms=2)
    assert levels == pytest.approx([0, 0, 0.025 / 16, 0.025 * 3 / 16, 0.025 * 5 / 16, 0.025 * 7 / 16])
    # Cut after four seeds: the last look has 15/16.
    assert look_levels(TrialBudget(seeds=6), 2, 4) == pytest.approx([0, 0, 0.025 / 16, 0.025 * 15 / 16])
    assert look_levels(TrialBudget(seeds=6, sequential=False), 1).tolist() == [0, 0, 0, 0, 0, 0.05]
    assert look_levels(TrialBudget(seeds=2), 1).tolist() == [0, 0]


def test_interval_of_a_look_by_hand():
    # .1, .2, .3: mean .2, s .1; t(2) at a two-sided 5 % is 4.302653: .2 +- 4.302653 * .1 / sqrt(3) = .2 +- .248414
    looks = look([0.1, 0.2, 0.3], look_levels(TrialBudget(seeds=3), 1))
    assert looks.mean == pytest.approx([0.1, 0.15, 0.2])
    assert looks.half[2] == pytest.approx(0.248414, abs=1e-6)
    assert math.isnan(looks.half[0]) and math.isnan(looks.half[1]) and not looks.deciding


def test_one_arm_and_one_look_is_students_interval():
    differences = [0.1, 0.4, 0.2, 0.3, 0.35]
    estimate = decide({"a": differences}, TrialBudget(seeds=5, sequential=False)).arms["a"].estimate
    fixed = seed_interval(differences)
    assert (estimate.mean, estimate.low, estimate.high) == pytest.approx((fixed.mean, fixed.low, fixed.high))


def test_a_decided_arm_gets_no_further_seed():
    # Look 4 of 12 at 5 % / 2 * 3/100 = .00075: t(3) = 14.2; .2 +- 14.2 * .0082 / 2 excludes 0, .02 +- ... does not.
    budget = TrialBudget(seeds=12)
    differences = {"good": [0.2, 0.21, 0.19, 0.2], "none": [0.1, -0.1, 0.08, 0.0]}
    decision = decide(differences, budget)
    assert not decision.stop and decision.next_seeds == ("none",)
    assert decision.arms["good"].verdict == "better" and decision.arms["good"].decided_at == 4
    # It stands whatever follows, and with every arm decided the trial ends.
    later = decide({"good": [*differences["good"], -5.0, -5.0], "none": []}, budget)
    assert later.arms["good"] == decision.arms["good"]
    decision_of_one = decide({"good": differences["good"]}, budget)
    assert decision_of_one.stop and decision_of_one.reason == "decided"


def test_harm_is_worse():
    assert decide({"a": [-0.2, -0.21, -0.19]}, TrialBudget(seeds=3)).arms["a"].verdict == "worse"


def test_a_trial_ends_at_its_seeds_whatever_they_are():
    decision = decide({"a": [0.3, -0.2, 0.1]}, TrialBudget(seeds=3))
    assert (decision.stop, decision.reason, decision.next_seeds) == (True, "seeds", ())
    with pytest.raises(ConfigError, match="planned were 3"):
        decide({"a": [0.3, -0.2, 0.1, 0.4]}, TrialBudget(seeds=3))


@pytest.mark.parametrize(("spent", "reason"), [({"minutes": 10.0}, "minutes"), ({"tokens": 5e6}, "tokens")])
def test_a_spent_budget_ends_with_the_level_left(spent, reason):
    # Three of twelve seeds: at 5 % * 1/100 the half-width is 44.7 * .0058 = .258, at 5 % it is 4.30 * .0058 = .025.
    budget = TrialBudget(seeds=12, minutes=10, tokens=5_000_000)
    assert not decide({"a": [0.2, 0.21, 0.19]}, budget).stop
    decision = decide({"a": [0.2, 0.21, 0.19]}, budget, **spent)
    assert decision.stop and decision.arms["a"].verdict == "better"
    assert decide({"a": [0.2, -0.1, 0.3]}, budget, **spent).reason == reason


def test_a_changed_budget_is_refused():
    stored = asdict(TrialBudget(seeds=6))
    assert TrialBudget(seeds=6).same_as(stored).seeds == 6
    with pytest.raises(ConfigError, match="planned with seeds=6, not 12"):
        TrialBudget(seeds=12).same_as(stored)


def test_equal_differences_decide_nothing_by_themselves():
    arm = decide({"a": [0.25, 0.25, 0.25]}, TrialBudget(seeds=3)).arms["a"]
    assert arm.verdict == "undecided" and "all equal" in sentence("a", arm)
    # With 4 held-out tasks a step is .25: s is at least .25 / sqrt(6) = .102, and 4.3 * .102 / sqrt(3) = .2536 > .25
    assert decide({"a": [0.25] * 3}, TrialBudget(seeds=3), resolution=0.25).arms["a"].verdict == "undecided"
    assert decide({"a": [0.25] * 3}, TrialBudget(seeds=3), resolution=0.01).arms["a"].verdict == "better"
    # .1 + .2 - .3 is rounding.
    assert decide({"a": [0.25, 0.25 + 1e-16, 0.25]}, TrialBudget(seeds=3)).arms["a"].verdict == "undecided"


def test_an_arm_that_never_acted_equals_the_base():
    decision = decide({"a": [0.0, 0.0, 0.0], "b": []}, TrialBudget(seeds=4))
    assert decision.arms["a"].verdict == "equal" and decision.next_seeds == ("a", "b")
    assert sentence("a", decision.arms["a"]) == "a equals the base: every difference of 3 seeds is exactly 0"
    assert "no pair" in sentence("b", decision.arms["b"])


def test_pairs_without_a_figure_are_left_out():
    # Two pairs of three seeds are none to decide by; a fourth seed is refused by the plan.
    arm = decide({"a": [0.2, math.nan, 0.21]}, TrialBudget(seeds=3)).arms["a"]
    assert arm.verdict == "undecided" and arm.estimate.n == 2 and arm.estimate.mean == pytest.approx(0.205)
    assert "fewer than 3" in sentence("a", arm)
    # Look 4 of 4 has 3/4 of 5 %: t(2) at .0375 is 5.02; .2 +- 5.02 * .01 / sqrt(3) = .2 +- .029
    decided = decide({"a": [0.2, math.nan, 0.21, 0.19]}, TrialBudget(seeds=4)).arms["a"]
    assert decided.decided_at == 4 and decided.estimate.low == pytest.approx(0.171, abs=1e-3)


@pytest.mark.parametrize("differences", [{}, {"a": [math.inf]}])
def test_nothing_to_compare_is_refused(differences):
    with pytest.raises(ConfigError):
        decide(differences, TrialBudget())


@pytest.mark.parametrize(
    "limits", [{"seeds": 0}, {"seeds": 10**6}, {"minutes": 0.0}, {"tokens": math.inf}, {"alpha": 1}]
)
def test_budgets_without_an_end_are_refused(limits):
    with pytest.raises(ConfigError):
        TrialBudget(**limits)
