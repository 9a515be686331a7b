"""Weights on a token's gradient by its ratio, and their picture."""

import math

import pytest
from gxpo.explain.method_pictures import surrogate_figure
from gxpo.explain.surrogate_effect import RATIOS, SAMPLED, TOLD, SurrogateEffect, surrogate_effect, weights

import gxpo
from gxpo.algorithms.objectives import PolicyGradient
from gxpo.methods import METHODS


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
        ("luffy", list(TOLD), list(TOLD)),
        ("dr_grpo", [0.1, 0.5, 0.9, 1, 1.1, 0, 0, 0], [0, 0, 0.9, 1, 1.1, 1.5, 2, 4]),
    ],
)
def test_weights_by_ratio(spec, rising, falling):
    made = gxpo.method(spec)
    assert weights(made, TOLD, 1.0) == pytest.approx(rising, abs=1e-12)
    assert weights(made, TOLD, -1.0) == pytest.approx(falling, abs=1e-12)


def test_dapos_bound_is_between_the_plain_one_and_1_3():
    at = (1.19, 1.27, 1.29)
    assert weights(gxpo.method("grpo"), at, 1.0) == pytest.approx([1.19, 0, 0])
    assert weights(gxpo.method("dapo"), at, 1.0) == pytest.approx([1.19, 1.27, 0])


def test_every_method_is_drawn_or_says_why_not():
    wrong = []
    for name in METHODS:
        made = gxpo.method(name)
        effect = surrogate_effect(made)
        if type(made.terms["policy"]) is PolicyGradient and made.terms["policy"].beside != "step":
            drawn = isinstance(effect, SurrogateEffect)
            right = drawn and all(math.isfinite(x) for curve in (effect.rising, effect.falling) for x in curve)
        else:
            right = isinstance(effect, str) and effect
        if not right:
            wrong.append((name, effect))
    assert wrong == []


def test_ratios_reach_one_exactly_and_stay_below_certainty():
    assert 1.0 in RATIOS and all(r in RATIOS for r in TOLD) and RATIOS[-1] * SAMPLED < 1


def lines(figure):
    """{label: [(x, y) of its points]}; of the base's two curves the last."""
    return {line.get_label(): list(map(tuple, line.get_xydata())) for line in figure.axes[0].lines}


def test_a_picture_has_the_curve_of_each_sign_over_the_bases():
    base, cispo = (surrogate_effect(gxpo.method(name)) for name in ("grpo", "cispo"))
    drawn = lines(surrogate_figure(cispo, base, "cispo"))
    right, wrong = drawn["cispo, A > 0"], drawn["A < 0"]
    assert right == wrong and [x for x, _ in right] == list(RATIOS)
    assert right[0] == pytest.approx((0.02, 0.02)) and right[-1] == pytest.approx((4.0, 1.28))
    assert drawn["grpo"][-1] == pytest.approx((4.0, 4.0))  # A < 0: no bound above


def test_what_pulls_back_is_drawn_below_zero_and_held_at_the_edge():
    base = surrogate_effect(gxpo.method("grpo"))
    pulled = SurrogateEffect(tuple(1 - 3 * (r - 1) for r in RATIOS), tuple(r for r in RATIOS))
    right = lines(surrogate_figure(pulled, base, "x"))["x, A > 0"]
    assert right[-1][1] == -2.0 and right[0][1] == pytest.approx(1 + 3 * 0.98)  # 1 - 3 (4 - 1) = -8 is held at -2
