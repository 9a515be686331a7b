"""Effect of a method: advantage by group composition, equal groups, gradient weight by ratio."""

import math

import pytest
from tests.battery import battery, kinds_of_parts, made_up
from tests.thorough import cover_in_lists

import gxpo
from gxpo.algorithms.objectives import PolicyGradient
from gxpo.explain.effect import (
    RATIOS,
    SAMPLED,
    TABLE_RATIOS,
    Answer,
    Effect,
    SurrogateEffect,
    effect,
    gradient_weights,
    obstacle,
    on_equal,
    push,
    rollouts,
    surrogate_effect,
)
from gxpo.methods import METHODS

UNDECLARED = {
    *("gigpo", "hgpo", "graph_gpo", "graft"),  # steps of one group may differ where its outcomes do not
    "arspo",  # the reward is another component
}


# ---------------------------------------------------------------- made-up rollouts
def test_grpo_on_nine_groups():
    """c of 8 right: mean c / 8, sample std sqrt(8 / 7 p (1 - p)), eps 1e-6.

    c = 1: std .353553, .875 / .353554 = 2.474867, -.125 / .353554 = -.353552;   c = 4: std .534522, .935413
    """
    grpo = effect(gxpo.method("grpo"))
    assert isinstance(grpo, Effect) and not grpo.by_gradient
    assert grpo.right[0] is None and grpo.wrong[8] is None and grpo.wrong[0] == grpo.right[8] == 0
    assert grpo.right[1] == pytest.approx(2.474867, abs=1e-6) and grpo.wrong[1] == pytest.approx(-0.353552, abs=1e-6)
    assert grpo.right[4] == -grpo.wrong[4] == pytest.approx(0.935413, abs=1e-6)
    assert grpo.wrong[7] == -grpo.right[1]


def test_methods_that_change_no_credit_push_as_grpo_does():
    base = effect(gxpo.method("grpo"))
    for name in ("gspo", "dapo", "cispo", "papo"):
        assert effect(gxpo.method(name)).same_as(base), name
    assert not effect(gxpo.method("rloo")).same_as(base)
    assert effect(gxpo.method("rloo")).wrong[1] == pytest.approx(-1 / 7)


def test_an_objective_without_credit_is_shown_by_its_gradient():
    """GVPO at D = 0, beta .1: -dL / dlogp = (r - mean) beta / (G - 1) / groups; 9 groups of 8 times 4 tokens are 288
    entries: (r - mean) .1 / 7 / 9 * 288 = .457143 (r - mean), at c = 1 .4 and -.057143."""
    gvpo = effect(gxpo.method("gvpo"))
    assert isinstance(gvpo, Effect) and gvpo.by_gradient
    assert gvpo.right[1] == pytest.approx(0.4) and gvpo.wrong[1] == pytest.approx(-0.4 / 7)


def test_own_rewards_take_the_place_of_the_given_ones():
    # lengths 2 and 6 of the right ones: mean 4, std sqrt(8), z = -+.707107, exp(-.05 z) = 1.035988, .965263; wrong: -1
    answers = [Answer("g", 1.0, 2), Answer("g", 1.0, 6), Answer("g", 0.0)]
    forest = gxpo.method("grpo_lead").shaped(rollouts(answers))
    assert forest.outcome.tolist() == pytest.approx([1.035988, 0.965263, -1.0], abs=1e-6)
    assert forest.component_names == ("correct", "concise") and forest.success.tolist() == [1, 1, 0]
    taxed = gxpo.method("dapo").fill(max_length=10).shaped(rollouts([Answer("g", 1.0, 9), Answer("g", 1.0, 8)]))
    assert taxed.outcome.tolist() == [0.5, 1.0]  # (9 - 8) / 2 over the last fifth of 10


def test_what_a_model_has_to_give_is_said():
    assert obstacle(gxpo.method("grpo")) == ""
    assert "baseline" in obstacle(gxpo.method("poise")) and "value" in obstacle(gxpo.method("gae"))
    assert "states" in obstacle(gxpo.method("gigpo"))
    assert effect(gxpo.method("poise")) == obstacle(gxpo.method("poise"))


def test_the_mean_over_tokens_and_groups_of_their_own():
    forest = rollouts([Answer("b", 1.0, 3), Answer("a", 0.0), Answer("b", 0.0, 5), Answer("a", 1.0)])
    assert forest.group == ["b", "b", "a", "a"] and forest.lengths().tolist() == [3, 5, 4, 4]
    assert push(gxpo.method("rloo"), forest).tolist() == [1, -1, -1, 1]


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "gspo", "dapo", "opo", "disco", "gdpo_multi", "tis"])
def test_equal_groups_teach_nothing(name):
    assert on_equal(gxpo.method(name)) == "zero"


@pytest.mark.parametrize("name", ["reinforce_pp", "gae", "poise", "gvpo", "papo", "grpo_lead", "spectral_po"])
def test_equal_groups_teach_something(name):
    """The last two say so nowhere: length tells right answers apart, and the first error wrong ones."""
    assert on_equal(gxpo.method(name)) == "signal"


@pytest.mark.slow
@pytest.mark.parametrize("names", cover_in_lists(sorted(set(METHODS) - UNDECLARED), kinds_of_parts))
def test_who_learns_from_equal_groups_says_so(names):
    assert [name for name in names if learns_in_silence(name)] == []


BOUNDS = {"primal_dual_marl": {"credit.cost": "correct", "credit.cost_limit": 0.5}}


def learns_in_silence(name):
    """A method that does not say that it learns from equal groups, and does on unequal lengths and log-probs and
    whatever else it reads, drawn at random."""
    m = gxpo.method(name, BOUNDS.get(name, {})).fill(horizon=12.0, max_length=12)
    forest = battery(5, sizes=(4, 4), rewards=(0.0, 1.0))
    scores = {"correct": forest.outcome}
    parts = (*m.shapes.values(), *m.rewards.values())
    scores |= {name: 0.05 * forest.lengths() for part in parts for name in getattr(part, "reads", ())}
    # components of several objectives and of critics
    scores |= {
        name: forest.outcome for name in ("first", "second", "safe", "useful", "verdict", "attempt", "refined", "leaks")
    }
    forest = forest.replace(
        action_text=["so <aux>"] * forest.n_steps,
        step_info=[{**info, "calls": [{"name": "search"}] * (n % 3)} for n, info in enumerate(forest.step_info)],
        info=[{**info, "needed_calls": 1} for info in forest.info],
    )
    forest = m.shaped(forest.with_rewards(forest.outcome, components=scores))
    signals = made_up(m, forest, 1)
    return m.reads_credit and bool((m.advantages(forest, signals) != 0).any()) and on_equal(m) != "signal"


# ---------------------------------------------------------------- gradient by ratio
@pytest.mark.parametrize(
    ("spec", "rising", "falling"),
    [
        # ratios 0.1 0.5 0.9 1 1.1 1.5 2 4
        ("grpo", [0.1, 0.5, 0.9, 1, 1.1, 0, 0, 0], [0, 0, 0.9, 1, 1.1, 1.5, 2, 4]),
        ("dapo", [0.1, 0.5, 0.9, 1, 1.1, 0, 0, 0], [0, 0, 0.9, 1, 1.1, 1.5, 2, 4]),
        ("ppo", [0.1, 0.5, 0.9, 1, 1.1, 0, 0, 0], [0, 0, 0.9, 1, 1.1, 1.5, 2, 0]),  # dual clip at 3
        ("gspo", [0.1, 0.5, 0.9, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1.1, 1.5, 2, 4]),
        ("gmpo", [0.1, 0.5, 0.9, 1, 1.1, 0, 0, 0], [0, 0, 0.9, 1, 1.1, 1.5, 2, 4]),
        ("cispo", [0.1, 0.5, 0.9, 1, 1.1, 1.28, 1.28, 1.28], [0.1, 0.5, 0.9, 1, 1.1, 1.28, 1.28, 1.28]),
        ("gpg", [1] * 8, [1] * 8),
        ("luffy", list(TABLE_RATIOS), list(TABLE_RATIOS)),
        ("dr_grpo", [0.1, 0.5, 0.9, 1, 1.1, 0, 0, 0], [0, 0, 0.9, 1, 1.1, 1.5, 2, 4]),
    ],
)
def test_weights_by_ratio(spec, rising, falling):
    method = gxpo.method(spec)
    assert gradient_weights(method, TABLE_RATIOS, 1.0) == pytest.approx(rising, abs=1e-12)
    assert gradient_weights(method, TABLE_RATIOS, -1.0) == pytest.approx(falling, abs=1e-12)


def test_dapos_bound_is_between_the_plain_one_and_1_3():
    at = (1.19, 1.27, 1.29)
    assert gradient_weights(gxpo.method("grpo"), at, 1.0) == pytest.approx([1.19, 0, 0])
    assert gradient_weights(gxpo.method("dapo"), at, 1.0) == pytest.approx([1.19, 1.27, 0])


@pytest.mark.slow
def test_every_method_is_drawn_or_says_why_not():
    wrong = []
    for name in METHODS:
        method = gxpo.method(name)
        effect = surrogate_effect(method)
        if type(method.terms["policy"]) is PolicyGradient and method.terms["policy"].read_scope != "step":
            is_drawn = isinstance(effect, SurrogateEffect)
            right = is_drawn and all(math.isfinite(x) for curve in (effect.rising, effect.falling) for x in curve)
        else:
            right = isinstance(effect, str) and effect
        if not right:
            wrong.append((name, effect))
    assert wrong == []


def test_ratios_reach_one_exactly_and_stay_below_certainty():
    assert 1.0 in RATIOS and all(r in RATIOS for r in TABLE_RATIOS) and RATIOS[-1] * SAMPLED < 1
