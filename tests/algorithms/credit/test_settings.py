"""What every part's settings may be: the words, the edges of the numbers, and what is said of others."""

from __future__ import annotations

import re
from typing import get_args

import pytest

from gxpo.base.errors import ConfigError
from gxpo.parts.options import hints_of
from gxpo.parts.registry import CREDITS

CENTERS = ("mean", "leave_one_out", "median", "none")
ALL_CENTERS = ("mean", "leave_one_out", "median", "lower_median", "quantile", "none")
ALL_SCALES = ("std", "leave_one_out_std", "batch_std", "mean_absolute", "median_absolute", "mean", "none")

WORDS = {
    "ancestor_groups": {"weight": ("size", "equal"), "whiten": ("token", "none")},
    "batch_whiten": {
        "center": ("none", "mean", "leave_one_out"),
        "batch_unit": ("tokens", "trajectories"),
        "singleton": ("zero", "raw"),
    },
    "consistency_blended": {"scale": ("std", "none")},
    "decoupled": {"batch_unit": ("trajectories", "tokens", "none"), "singleton": ("zero", "raw")},
    "gae": {"anchor": ("first", "last"), "truncation": ("end", "extend", "trim")},
    "relative": {
        "center": (*ALL_CENTERS, "baseline"),
        "scale": ALL_SCALES,
        "singleton": ("zero", "raw"),
        "unit": ("own", "trajectory", "step", "segment", "token"),
    },
    "hierarchical_gae": {"truncation": ("end", "extend"), "keep_mode": ("each", "shared")},
    "node_value": {
        "form": ("paper", "released", "edge"),
        "value": ("leaf_mean", "child_mean"),
        "scale": ("none", "sibling_std"),
    },
    "pass_at_k": {"kind": ("analytic", "sloo_minus_one", "leave_one_out", "max_second", "max_mean")},
    "risk_bundle": {"zero_at": ("high", "low"), "share": ("std", "equal")},
    "segment_relative": {"scale": ("std", "batch_std", "none")},
    "graph_values": {"scale": ("none", "std")},
    "shrinkage_baseline": {"variance": ("bound", "prior", "sample")},
}


@pytest.mark.parametrize(("part", "setting"), [(p, s) for p, settings in WORDS.items() for s in settings])
def test_words(part, setting):
    make, words = CREDITS[part], WORDS[part][setting]
    further = {"form": "edge"} if (part, setting) == ("node_value", "scale") else {}
    further |= {"scale": "none"} if part == "relative" and setting == "center" else {}
    for word in words:
        assert getattr(make(**{**further, setting: word}), setting) == word
    with pytest.raises(ConfigError, match=f"^credit.{setting} is 'other'; it is one of {words[0]}, "):
        make(**{setting: "other"})
    for word in {*get_args(hints_of(make)[setting])} - {*words}:
        with pytest.raises(ConfigError, match=f"^credit.{setting} is {word!r}; it is one of {', '.join(words)}$"):
            make(**{setting: word})


EDGES = [
    ("bonus", {"low": 0.0, "high": 0.0, "kappa": 1.0, "share": 1.0}),
    ("difficulty_weighted", {"low": 0.0, "high": 0.0}),
    ("gae", {"discount": 0.0, "lam": 0.0, "target_lam": 0.0}),
    ("gae", {"discount": 1.0, "lam": 1.0, "target_lam": 1.0}),
    ("relative", {"quantile": 1.0}),
    ("relative", {"quantile": 0.01}),
    ("negative_groups", {"alpha": 0.0}),
    ("pairwise_auc", {"tau": 0.01}),
    ("pass_at_k", {"k": 1}),
    ("risk_bundle", {"size": 1, "mix": 0.0, "lr": 0.0}),
    ("segment_relative", {"bound": 0.01}),
    ("set_relative", {"size": 1}),
    ("turn_relative", {"discount": 0.0, "time": "step_info.time"}),
    ("turn_relative", {"discount": 1.0}),
    ("value_delta", {"best_of": 1, "max_probability": 1.0, "length_power": 0.0}),
    ("value_trend", {"decay": 0.0, "lookahead": 0}),
    ("value_trend", {"decay": 1.0}),
    ("pseudo_rollouts", {"count": 1, "value": -3.0}),
]


@pytest.mark.parametrize(("part", "given"), EDGES)
def test_edges_are_inside(part, given):
    part_object = CREDITS[part](**given)
    assert {name: getattr(part_object, name) for name in given} == given


OUTSIDE = [
    ("difficulty_weighted", {"low": -0.01}, "credit.low is -0.01; it is 0 or more"),
    ("difficulty_weighted", {"high": -0.01}, "credit.high is -0.01; it is 0 or more"),
    ("gae", {"discount": 1.01}, "credit.discount is 1.01; it is from 0 to 1"),
    ("gae", {"lam": -0.01}, "credit.lam is -0.01; it is from 0 to 1"),
    ("gae", {"target_lam": 1.5}, "credit.target_lam is 1.5; it is from 0 to 1, or null"),
    ("relative", {"quantile": 0.0}, "credit.quantile is 0.0; it is above 0, up to 1"),
    ("relative", {"quantile": 1.01}, "credit.quantile is 1.01; it is above 0, up to 1"),
    (
        "relative",
        {"scale": "median_absolute", "eps": 0.0},
        "credit.scale=median_absolute divides by credit.eps where most outcomes agree: above 0",
    ),
    ("negative_groups", {"alpha": -0.1}, "credit.alpha is -0.1; it is 0 or more"),
    ("pairwise_auc", {"tau": 0.0}, "credit.tau is 0.0; it is above 0"),
    ("pass_at_k", {"k": 0}, "credit.k is 0; it is 1 or more"),
    ("segment_relative", {"bound": 0.0}, "credit.bound is 0.0; it is above 0"),
    ("set_relative", {"size": 0}, "credit.size is 0; it is 1 or more"),
    ("turn_relative", {"time": "state"}, "credit.time is 'state'; it is 'turn' or 'step_info.KEY'"),
    ("turn_relative", {"discount": -0.1}, "credit.discount is -0.1; it is from 0 to 1"),
    ("turn_relative", {"discount": 1.1}, "credit.discount is 1.1; it is from 0 to 1"),
    (
        "pseudo_rollouts",
        {"count": 0},
        "credit.count is 0; it is 1 or more",
    ),
    (
        "pseudo_rollouts",
        {"value": float("inf")},
        "credit.value is inf; it is above -inf and below inf",
    ),
    (
        "decoupled",
        {"weights": {"format": float("nan")}},
        "credit.weights is {'format': nan}; it is by name: above -inf and below inf, or null",
    ),
    ("decoupled", {"weights": {"format": 0.0}}, "credit.weights: no reward has a weight other than 0"),
    *(
        (
            "risk_bundle",
            wrong,
            "credit risk_bundle: size {size} is at least 1, 0 < low ({low}) < high ({high}) < 1, and mix {mix} and lr "
            "{lr} are at least 0".format(**{"size": 5, "low": 0.2, "high": 0.9, "mix": 1.5, "lr": 0.1, **wrong}),
        )
        for wrong in (
            {"size": 0},
            {"low": 0.0},
            {"high": 1.0},
            {"low": 0.5, "high": 0.5},
            {"mix": -0.1},
            {"lr": -0.1},
        )
    ),
]


@pytest.mark.parametrize(("part", "given", "said"), OUTSIDE)
def test_what_lies_outside_is_refused(part, given, said):
    with pytest.raises(ConfigError, match=f"^{re.escape(said)}$"):
        CREDITS[part](**given)


@pytest.mark.parametrize("part", ["difficulty_weighted", "relative", "retrospective", "state_relative"])
def test_equal_outcomes_are_a_signal_without_centre_and_scale(part):
    make = CREDITS[part]
    for center in CENTERS:
        for scale in ("std", "none"):
            signal = center == "none" and scale == "none"
            assert make(center=center, scale=scale).learns_from_equal_groups == signal


@pytest.mark.parametrize(
    ("part", "given", "learns"),
    [
        ("relative", {"scale": "none", "shift": -0.1}, True),
        ("relative", {"scale": "mean", "shift": -0.1}, True),
        ("relative", {"center": "none", "scale": "mean"}, True),
        ("relative", {"scale": "mean"}, False),
        ("relative", {"scale": "std", "shift": -0.1}, False),
        ("decoupled", {"batch_unit": "tokens"}, True),
        ("decoupled", {"batch_unit": "trajectories"}, False),
        ("batch_whiten", {"center": "none"}, True),
        ("batch_whiten", {"center": "mean"}, False),
        ("batch_whiten", {"center": "leave_one_out"}, False),
    ],
)
def test_equal_outcomes_are_a_signal(part, given, learns):
    assert CREDITS[part](**given).learns_from_equal_groups == learns
