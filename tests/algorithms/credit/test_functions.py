"""What all functions of credit share: their documented defaults, arithmetic in float64, members that do not count; and
that a part is its function with the part's settings.
"""

from __future__ import annotations

import math

import pytest
import torch
from tests.algorithms.credit import compositions

from gxpo.algorithms.credit.baselines import length_weighted, prior_weight, pseudo_rollouts, shares, shrinkage_baseline
from gxpo.algorithms.credit.batch_whiten import batch_whiten
from gxpo.algorithms.credit.bonus import bounded, mean_of_lowest
from gxpo.algorithms.credit.consistency import answer_disagreement, between_groups, blended, diversity_adjusted
from gxpo.algorithms.credit.decoupled import batch_normalized, decoupled_sum
from gxpo.algorithms.credit.gae import gae
from gxpo.algorithms.credit.node_value import Visits, node_value
from gxpo.algorithms.credit.piece_relative import segment_relative, turn_relative
from gxpo.algorithms.credit.relative import group_relative
from gxpo.algorithms.credit.risk_bundle import mixed_value_at_risk
from gxpo.algorithms.credit.sets import max_second, pairwise_auc, set_leave_one_out, set_relative, subset_mean
from gxpo.algorithms.credit.success_rate import difficulty_weighted, logistic_weight, mixed_scale
from gxpo.algorithms.credit.value_delta import value_delta
from gxpo.algorithms.credit.value_trend import trend, trend_return
from gxpo.base.errors import ConfigError
from gxpo.forest import grouped
from gxpo.parts.registry import CREDITS

X = torch.tensor([1.0, 0.1, 0.7, 0.3, 0.45, 0.2, 0.9])
Y = torch.tensor([0.6, 0.35, 0.2, 0.8, 0.1, 0.55, 0.15])
GROUP = torch.tensor([0, 0, 0, 0, 1, 1, 1])
TREE = torch.tensor([0, 0, 1, 1, 2, 2, 2])
RIGHT = torch.tensor([True, False, True, False, False, True, False])
ALL = torch.ones(7, dtype=torch.bool)
OWNER, STEP_ROWS = torch.tensor([0, 0, 1, 1, 2, 3, 4, 5, 6, 6]), torch.arange(10) / 7
STATE = torch.tensor([0, 1, 0, 0, 1, 1, 2, 2, 2, -1])
GRPO = {"center": "mean", "scale": "std", "ddof": 1, "eps": 1e-6}

# function, what it must be given, what it takes if nothing is said
DEFAULTS = [
    (group_relative, (X, GROUP), {**GRPO, "quantile": 0.4, "shift": 0.0, "singleton": "zero", "where": ALL}),
    (batch_whiten, (X, RIGHT), {"where": ALL, "eps": 1e-8, "ddof": 1}),
    (bounded, (X, Y), {"low": -math.inf, "high": math.inf, "kappa": None}),
    (between_groups, (X, GROUP), {"where": ALL, "scale": "std", "ddof": 1, "eps": 1e-6}),
    (answer_disagreement, (TREE, GROUP), {"where": ALL}),
    (blended, (X, Y, 2 * X), {"steepness": 20.0, "midpoint": 1.5}),
    (
        decoupled_sum,
        (torch.stack([X, Y], 1), X[:2], GROUP),
        {"where": ALL, "ddof": 1, "eps": 1e-4, "singleton": "zero"},
    ),
    (decoupled_sum, (torch.stack([X, Y], 1), X[:2], torch.arange(7)), {"singleton": "zero"}),
    (batch_normalized, (X, RIGHT, ALL), {"ddof": 1, "eps": 1e-4}),
    (logistic_weight, (X,), {"low": 0.4, "high": 1.5, "steepness": 10.0, "midpoint": 0.75}),
    (
        difficulty_weighted,
        (X - 0.4, Y),
        {"low": 0.4, "high": 1.5, "steepness": 10.0, "midpoint": 0.75},
    ),
    (gae, (X, Y, GROUP, ALL), {"discount": 1.0, "lam": 1.0, "cut": ~ALL}),
    (length_weighted, (X, torch.tensor([1, 0, 2, 1, 3, 1, 0]), GROUP), {"where": ALL}),
    (mean_of_lowest, (X, GROUP, 2), {"share": 1.0}),
    (mixed_scale, (X, GROUP, Y), {"ddof": 1, "eps": 1e-6, "where": ALL}),
    (pairwise_auc, (X, RIGHT, GROUP), {"tau": 0.6, "acts": ALL}),
    (subset_mean, (RIGHT, GROUP, 2), {"where": ALL, "eps": 1e-6}),
    (set_leave_one_out, (RIGHT, GROUP, 2), {"where": ALL}),
    (max_second, (X, GROUP), {"where": ALL, "scale": "std", "eps": 1e-6}),
    (diversity_adjusted, (X, torch.stack([X, Y], 1), GROUP), {"where": ALL, "eps": 1e-6}),
    (shares, (X - 0.4, GROUP), {"eps": 1e-6, "where": ALL}),
    (mixed_value_at_risk, (5 * X, 1.0, 4.0), {"levels_at": (0.2, 0.9), "mix": 1.5, "zero_at": "high", "eps": 1e-6}),
    (segment_relative, (X, torch.arange(7), GROUP, 0 * GROUP), {"scale": "std", "ddof": 0, "eps": 1e-4, "where": ALL}),
    (segment_relative, (9 * torch.eye(40)[0], torch.arange(40), *[torch.zeros(40).long()] * 2), {"bound": 5.0}),
    (set_relative, (X, GROUP, TREE, 2), {"where": ALL}),
    (shrinkage_baseline, (X, GROUP, Y), {"variance": "prior", "where": ALL}),
    (prior_weight, (X, Y, Y / 10), {}),
    (turn_relative, (X, Y, GROUP), {"fairness": 1.0, "ddof": 0, "eps": 1e-8, "where": ALL}),
    (value_delta, (X, Y), {"best_of": 1, "form": "prob"}),
    (trend, (X - 0.45, GROUP), {"decay": 0.7, "lookahead": 4, "tolerance": 1e-5}),
    (trend_return, (X, GROUP), {"decay": 0.7, "lookahead": 4, "tolerance": 1e-5}),
    (pseudo_rollouts, (X, GROUP), {"value": 1.0, "count": 1, **GRPO, "where": ALL}),
]
NAMES = [f"{i}-{f.__name__}" for i, (f, *_) in enumerate(DEFAULTS)]


@pytest.mark.parametrize(("function", "given", "defaults"), DEFAULTS, ids=NAMES)
def test_defaults(function, given, defaults):
    assert torch.equal(function(*given), function(*given, **defaults))


@pytest.mark.parametrize(("function", "given", "defaults"), DEFAULTS, ids=NAMES)
def test_the_arithmetic_is_in_float64(function, given, defaults):
    """Nothing is lost of what was given in float32, the distance of two numbers included."""
    exact = [x.double() if isinstance(x, torch.Tensor) and x.dtype == torch.float32 else x for x in given]
    actual = function(*given)
    assert actual.dtype == torch.float64 and torch.equal(actual, function(*exact))


PAIR, ONE, TWO = torch.tensor([1.0, 0.0]), torch.zeros(2, dtype=torch.int64), torch.arange(2)
UNIT = {"ddof": 0, "eps": 0.5}  # the population std of 1 and 0 is .5, and .5 / (.5 + .5) = .5

DIVIDED = [
    (group_relative, (PAIR, ONE), UNIT, 0.5),
    (between_groups, (PAIR, TWO), UNIT, 0.5),
    (decoupled_sum, (torch.stack([PAIR, PAIR], 1), torch.ones(2), ONE), UNIT, 2 * 0.5),
    (batch_normalized, (PAIR, ONE == 0, ONE == 0), UNIT, 0.5),
    (segment_relative, (PAIR, TWO, ONE, ONE), UNIT, 0.5),
    (segment_relative, (PAIR, TWO, ONE, ONE), {**UNIT, "scale": "batch_std"}, 0.5),
    (turn_relative, (PAIR, ONE, ONE), {**UNIT, "fairness": 0.0}, 0.5),
    (batch_whiten, (PAIR, ONE == 0), {"ddof": 0, "eps": 0.75}, 0.5),  # .5 / sqrt(.25 + .75)
    (mixed_scale, (PAIR, ONE, torch.ones(2)), {"ddof": 0, "eps": 0.5}, 0.5),  # the mean is .5, too
    (mixed_scale, (PAIR, ONE, torch.full((2,), 0.5)), {"ddof": 1, "eps": 0.5}, 0.414214),  # .5 / (.707107 + .5)
    (shares, (PAIR - 0.5, ONE), {"eps": 1.0}, 0.5),  # 2 * .5 / (1 + 1)
]


@pytest.mark.parametrize(
    ("function", "given", "settings", "expected"),
    DIVIDED,
    ids=[f"{i}-{f.__name__}" for i, (f, *_) in enumerate(DIVIDED)],
)
def test_what_divides(function, given, settings, expected):
    assert function(*given, **settings).tolist() == pytest.approx([expected, -expected], abs=1e-6)


def test_the_quantile_that_is_asked_for():
    """The smallest outcome that 7 of 10 do not exceed is 1, that 6 of 10 do not is 0."""
    outcome, one = torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0]), torch.zeros(5, dtype=torch.int64)
    for quantile, center in ((0.7, 1.0), (0.6, 0.0)):
        actual = group_relative(outcome, one, "quantile", "none", quantile=quantile)
        assert torch.equal(actual, outcome.double() - center)


def test_words_of_functions():
    with pytest.raises(ConfigError, match=r"^credit\.form is 'other'; it is one of paper, released, edge$"):
        node_value(PAIR, ONE, (Visits(ONE, ONE, ONE), ONE), form="other")


# ---------------------------------------------------------------- parts
# group, outcome, lengths of the turns, further fields: the fifth attempt is not compared, the sixth is correct though
# its outcome is 0, the seventh is wrong though it is 0.5, group "c" is all wrong
ROWS = [
    ("a", 1.0, [2, 1], {"info": {"tree": 0}}),
    ("a", 0.25, [1, 1], {"success": False, "info": {"tree": 0}, "origin": "replay"}),
    ("a", 0.5, [4, 1], {"success": False, "info": {"tree": 1}, "origin": "replay"}),
    ("a", 0.0, [1, 1], {"info": {"tree": 1}}),
    ("a", 2.0, [1, 1], {"compared": False, "info": {"tree": 0}, "origin": "replay"}),
    ("b", 0.0, [1, 2], {"success": True, "info": {"tree": 0}}),
    ("b", 0.5, [3, 1], {"success": False, "info": {"tree": 0}, "origin": "replay"}),
    ("b", 0.25, [1, 1], {"info": {"tree": 0}}),
    ("c", 0.0, [1, 1], {"info": {"tree": 1}}),
    ("c", 0.25, [2, 2], {"success": False, "info": {"tree": 1}}),
    ("c", 0.75, [1, 1], {"success": False, "info": {"tree": 1}}),
]
CORRECT = torch.tensor([r in (0, 4, 5, 7) for r in range(11)])
RATE = torch.tensor([1 / 4] * 5 + [2 / 3] * 3 + [0.0] * 3, dtype=torch.float64)
LOGPROB = torch.linspace(-2, -0.5, 11, dtype=torch.float64)  # the same for all tokens of an attempt
REPLAYED = torch.tensor([r in (1, 2, 4, 6) for r in range(11)])
SET = {"center": "median", "scale": "std", "ddof": 0, "eps": 0.5}
CURVE = {"low": 0.2, "high": 1.2, "steepness": 3.0, "midpoint": 0.4}


def group_of(f):
    return f.ids("group", axis="R")


def advantage(f, outcome=None, **given):
    return group_relative(f.outcome if outcome is None else outcome, group_of(f), where=f.compared, **{**SET, **given})


def compared_steps(f):
    return f.compared[f.step_trajectory]


def levels_of(f, of_steps, ids):
    """A trajectory's advantage and 0.7 times its step's."""
    return advantage(f)[f.step_trajectory] + 0.7 * group_relative(of_steps, ids, where=compared_steps(f), **SET)


def negative(f, s):
    solved = torch.tensor([True] * 8 + [False] * 3)
    return torch.where(solved, advantage(f), 0.6 * advantage(f, scale="none"))


def retrospective(f, s):
    again = shares(advantage(f), group_of(f), 0.3, f.compared) * s["improvement"]
    return torch.where(REPLAYED, again, advantage(f))


def consistent(f, s):
    between = between_groups(f.outcome, group_of(f), f.compared, "std", 0, 0.5)
    disagreement = answer_disagreement(s["answer_cluster"], group_of(f), f.compared)
    return blended(advantage(f, center="mean"), between, disagreement, 2.0, 0.6)


def by_sets(function):
    return lambda f, s: function(CORRECT, group_of(f), 3, f.compared)


PARTS = [
    ("relative", SET, "R", lambda f, s: advantage(f)),
    ("relative", {"center": "quantile", "quantile": 0.7, "scale": "none", "shift": 0.1}, "R",
     lambda f, s: advantage(f, center="quantile", quantile=0.7, scale="none", shift=0.1)),
    ("relative", {**SET, "group_by": ("agent",), "unit": "step"}, "S",
     lambda f, s: group_relative(f.outcome[f.step_trajectory], f.ids("group", axis="S"), where=compared_steps(f),
                                 **SET)),
    ("anchor_state", {**SET, "discount": 0.5, "step_weight": 0.7}, "S",
     lambda f, s: levels_of(f, f.returns(0.5), f.ids("state", axis="S"))),
    ("step_reward", {**SET, "step_weight": 0.7}, "S",
     lambda f, s: levels_of(f, s["process_reward"], f.ids("group", axis="S"))),
    ("bonus", {"value": "gap", "low": -0.3, "high": 0.05}, "R",
     lambda f, s: (f.outcome - s["baseline"]).clamp(-0.3, 0.05)),
    ("bonus", {"value": "confidence_gap", "factor": 0.7, "share": 0.5}, "R",
     lambda f, s: torch.where(grouped.max(CORRECT, group_of(f), f.compared) > 0,
                              0.7 * (s["prompt_confidence"] - LOGPROB.exp()), 0.0)),
    ("consistency_blended", {"steepness": 2.0, "midpoint": 0.6, "unit": "nats", "ddof": 0, "eps": 0.5}, "R",
     consistent),
    ("difficulty_weighted", {**SET, **CURVE}, "R", 
     lambda f, s: difficulty_weighted(advantage(f), RATE, **CURVE)),
    ("diversity_adjusted", SET, "R",
     lambda f, s: advantage(f, diversity_adjusted(f.outcome, s["embedding"], group_of(f), f.compared))),
    ("length_weighted", {}, "R", lambda f, s: length_weighted(f.outcome, f.lengths(), group_of(f), f.compared)),
    ("mixed_scale", {"ddof": 1, "eps": 0.5}, "R",
     lambda f, s: mixed_scale(f.outcome, group_of(f), RATE, f.compared, ddof=1, eps=0.5)),
    ("negative_groups", {**SET, "alpha": 0.6}, "R", negative),
    ("pairwise_auc", {"tau": 0.9}, "R",
     lambda f, s: pairwise_auc(LOGPROB, CORRECT, group_of(f), f.compared, tau=0.9)),
    ("pass_at_k", {"k": 3, "eps": 0.5}, "R", lambda f, s: subset_mean(CORRECT, group_of(f), 3, f.compared, 0.5)),
    ("pass_at_k", {"kind": "leave_one_out", "k": 3}, "R", by_sets(set_leave_one_out)),
    ("pass_at_k", {"kind": "max_second", "eps": 0.5}, "R",
     lambda f, s: max_second(f.outcome, group_of(f), f.compared, eps=0.5)),
    ("retrospective", {**SET, "share_eps": 0.3}, "R", retrospective),
    ("set_relative", {"size": 2, "identity": "info.tree"}, "R",
     lambda f, s: set_relative(f.outcome, group_of(f), f.ids("group", "info.tree", axis="R"), 2, f.compared)),
    ("shrinkage_baseline", {"variance": "sample"}, "R",
     lambda f, s: shrinkage_baseline(f.outcome, group_of(f), s["baseline"], f.compared, variance="sample")),
    ("tree_relative", {"ddof": 0, "eps": 0.5}, "R",
     lambda f, s: advantage(f, center="mean") + group_relative(f.outcome, f.ids("info.tree", axis="R"), ddof=0, eps=0.5,
                                                               where=f.compared)),
    ("pseudo_rollouts", {**SET, "value": 2.0, "count": 2}, "R",
     lambda f, s: pseudo_rollouts(f.outcome, group_of(f), f.compared, value=2.0, count=2, **SET)),
]  # fmt: skip


PART_NAMES = [f"{i}-{part}" for i, (part, *_) in enumerate(PARTS)]


@pytest.mark.parametrize(("part", "given", "axis", "expected"), PARTS, ids=PART_NAMES)
def test_a_part_is_its_function_with_the_parts_settings(grow, part, given, axis, expected):
    """Over the compared members, verdicts before outcomes, and the credit on every token of its trajectory or step."""
    steps = {"states": ["s", "t"], "step_rewards": [0.25, 0.5]}
    forest = grow([(g, r, n, {**fields, **(steps if r else {"states": ["s", "t"]})}) for g, r, n, fields in ROWS])
    signals = {
        "answer_cluster": torch.tensor([0, 0, 1, 2, 1, 3, 3, 4, 5, 6, 5]),
        "baseline": torch.linspace(0, 1, 11, dtype=torch.float64),
        "embedding": torch.tensor([[1.0, i % 3, i % 2] for i in range(11)], dtype=torch.float64),
        "improvement": torch.linspace(-1, 1, 11, dtype=torch.float64),
        "behaviour_logprob": forest.to_path(LOGPROB, "R"),
        "prompt_confidence": torch.linspace(0.2, 0.7, 11, dtype=torch.float64),
        "process_reward": torch.linspace(0, 2, 22, dtype=torch.float64).square(),
    }
    make = getattr(compositions, f"{part}_credit", None) or CREDITS[part]
    actual = make(**given)(forest, signals, 0)
    assert bool(actual.any())
    assert torch.allclose(actual, forest.to_path(expected(forest, signals), axis), rtol=0, atol=1e-12)
