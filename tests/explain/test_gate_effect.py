"""Weights on a token's gradient by its ratio, and their picture."""

import math
import xml.etree.ElementTree as tree

import pytest

import gxpo
from gxpo.explain.gate_effect import RATIOS, SAMPLED, TOLD, GateEffect, gate_effect, weights
from gxpo.explain.gate_picture import gate_picture
from gxpo.methods import METHODS
from gxpo.objectives import PolicyGradient

SVG = "{http://www.w3.org/2000/svg}"


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


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_drawn_or_says_why_not(name):
    made = gxpo.method(name)
    found = gate_effect(made)
    if type(made.terms["policy"]) is PolicyGradient and made.terms["policy"].beside != "step":
        assert isinstance(found, GateEffect), found
        curves = (found.rising, found.falling)
        assert all(math.isfinite(x) for curve in curves for x in curve)
    else:
        assert isinstance(found, str) and found


def test_ratios_reach_one_exactly_and_stay_below_certainty():
    assert 1.0 in RATIOS and all(r in RATIOS for r in TOLD) and RATIOS[-1] * SAMPLED < 1


def lines(svg, kind):
    found = [p for p in tree.fromstring(svg).iter(f"{SVG}polyline") if p.get("class") == kind]
    return [[tuple(map(float, pair.split(","))) for pair in p.get("points").split()] for p in found]


def test_a_picture_has_two_lines_over_the_bases_and_keeps_only_bends():
    base, cispo = (gate_effect(gxpo.method(name)) for name in ("grpo", "cispo"))
    svg = gate_picture(cispo, base, "cispo")
    assert svg == gate_picture(cispo, base, "cispo") and len(svg) < 4000
    (right,), (wrong,), both = (lines(svg, kind) for kind in ("right", "wrong", "base"))
    assert right == wrong and len(right) == 3 and len(both) == 2
    # the picture is 384 wide from x 40, for ratios up to 4; 196 high from y 14, for weights from 4 down to 0
    assert right[0] == pytest.approx((40 + 384 * 0.02 / 4, 14 + 196 * (4 - 0.02) / 4), abs=0.06)
    assert right[1] == pytest.approx((40 + 384 * 1.28 / 4, 14 + 196 * (4 - 1.28) / 4), abs=2.1)
    assert right[2] == pytest.approx((424, 14 + 196 * (4 - 1.28) / 4), abs=0.06)
    assert both[0][-1] == pytest.approx((424, 210), abs=0.06) and both[1][-1] == pytest.approx((424, 14), abs=0.06)


def test_what_pulls_back_is_drawn_below_zero_and_held_at_the_edge():
    base = gate_effect(gxpo.method("grpo"))
    pulled = GateEffect(tuple(1 - 3 * (r - 1) for r in RATIOS), tuple(r for r in RATIOS))
    (right,) = lines(gate_picture(pulled, base, "x"), "right")
    # weights from 4 down to -2: 1 - 3 (4 - 1) = -8 is held at -2, the picture's bottom
    assert right[-1] == pytest.approx((424, 210), abs=0.06) and right[0][1] == pytest.approx(
        14 + 196 * 0.06 / 6, abs=0.2
    )
