"""Pairs with a memory: weights of populations (group-robust), labels that follow the policy (POWER-DL)."""

from __future__ import annotations

import math

import pytest
import torch
from tests.algorithms.objectives import labelled_groups as groups

import gxpo
from gxpo.algorithms.objectives.robust_pairs import RobustPairs, mirror_step
from gxpo.base.errors import CheckpointError, ConfigError, GxpoError
from gxpo.parts.protocols import PolicyTokens


def column(*x: float) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64)


def of(*populations: str):
    """A pair of one token each for every name."""
    rows = [(f"{i}", 1, good, {"info": {"region": p}}) for i, p in enumerate(populations) for good in (1, 0)]
    return groups.forest_of(rows)


def losing(*loss: float) -> torch.Tensor:
    """Log-probs of pairs with these losses, beta 1 without a reference: softplus(-h) = loss."""
    margin = [-math.log(math.expm1(x)) for x in loss]
    return torch.cat([column(-1.0, -1.0 - h) for h in margin])


def term(**options) -> RobustPairs:
    return RobustPairs(**{"reference": "none", "beta": 1.0, "population": "info.region", **options})


def step(part, forest, logprob):
    """Value and figures; the part has then seen the step."""
    ones = torch.ones_like(logprob)
    value, figures = part(forest, PolicyTokens(logprob, logprob * torch.nan), 0 * ones, ones, {}, 0)
    part.adjust(figures)
    return float(value), figures


def test_card_of_mirror_ascent():
    half, loss = column(0.5, 0.5), column(1.0, 0.4)
    assert mirror_step(half, loss, 0.01).tolist() == pytest.approx([0.501500, 0.498500], abs=6e-7)
    assert mirror_step(half, loss, 1.0).tolist() == pytest.approx([0.645656, 0.354344], abs=6e-7)
    assert mirror_step(half, loss, 0.0).tolist() == [0.5, 0.5]


@pytest.mark.parametrize(("rate", "loss"), [(0.01, 0.700900), (1.0, 0.787394), (0.0, 0.7)])
def test_card_through_the_term(rate, loss):
    value, figures = step(term(population_rate=rate), of("north", "south"), losing(1.0, 0.4))
    assert value == pytest.approx(loss, abs=6e-7)
    assert figures["population_loss_north"] == pytest.approx(1.0)


def test_populations_count_once_however_many_pairs_they_have():
    part, forest = term(population_rate=0.0), of("north", "north", "south")
    assert step(part, forest, losing(1.0, 0.6, 0.2))[0] == pytest.approx((0.8 + 0.2) / 2)


def test_weights_go_on_from_step_to_step_and_from_a_checkpoint():
    forest, part = of("north", "south"), term(population_rate=1.0)
    step(part, forest, losing(1.0, 0.4))
    other = term(population_rate=1.0)
    other.load_state_dict(part.state_dict())
    value, figures = step(part, forest, losing(1.0, 0.4))
    assert figures["population_weight_north"] == pytest.approx(1 / (1 + math.exp(-1.2)))  # twice .6 of loss
    assert step(other, forest, losing(1.0, 0.4))[0] == value
    with pytest.raises(CheckpointError, match="robust_pairs"):
        other.load_state_dict({"counts": {}})


def test_a_population_that_is_missing_or_new():
    part = term(population_rate=1.0)
    step(part, of("north", "south"), losing(1.0, 0.4))
    value, figures = step(part, of("north"), losing(1.0))
    north = 0.645656 * math.e / (0.645656 * math.e + 0.354344)  # the south has loss 0 here
    assert figures["population_weight_north"] == pytest.approx(north, abs=1e-6) and value == pytest.approx(
        north, abs=1e-6
    )
    _, figures = step(part, of("north", "west"), losing(0.5, 0.5))
    assert sum(x for k, x in figures.items() if k.startswith("population_weight_")) == pytest.approx(1.0)
    before = [north, 1 - north, 0.5]  # the newcomer begins with the mean weight
    grown = [before[0] * math.exp(0.5), before[1], before[2] * math.exp(0.5)]
    assert figures["population_weight_west"] == pytest.approx(grown[2] / sum(grown), abs=1e-6)


def test_weights_are_constants_of_the_gradient():
    forest, part = of("north", "south"), term(population_rate=1.0)
    x = {"logprob": losing(1.0, 0.4)}
    _, gradient = groups.graded(part, forest, x | {"behaviour_logprob": x["logprob"]})
    slopes = [0.645656 * (math.exp(-1.0) - 1), 0.354344 * (math.exp(-0.4) - 1)]  # dl/dh = e^-l - 1
    assert gradient.tolist() == pytest.approx([slopes[0], -slopes[0], slopes[1], -slopes[1]], abs=1e-6)


def test_populations_that_are_not_told():
    rows = [("a", 1, 1, {"info": {"region": "n"}}), ("a", 1, 0, {"info": {"region": "s"}})]
    x = losing(1.0)
    with pytest.raises(GxpoError, match="are of two populations"):
        step(term(), groups.forest_of(rows), x)
    with pytest.raises(GxpoError, match="has no 'region' in its info"):
        step(term(), groups.forest_of([("a", 1, 1), ("a", 1, 0)]), x)
    with pytest.raises(ConfigError, match=r"objective\.population"):
        term(population="info.")
    with pytest.raises(ConfigError, match=r"objective\.label_rate"):
        term(form="ipo", label_rate=0.1)


def test_card_of_dynamic_labels():
    """Lengths 5 and 6, log-probs -10 and -14: z = .1 ((-10 + 1) / 5 - (-14 + 1) / 6) = .036667, label 1 -> .950917."""
    forest = groups.forest_of([("a", 5, 1), ("a", 6, 0)])
    logprob = torch.cat([column(-2.0).expand(5), column(-14 / 6).expand(6)])
    part = gxpo.method("power_dl", {"objective.beta": 0.1, "objective.nll": 1e-4}).terms["policy"]
    value, figures = step(part, forest, logprob)
    assert value == pytest.approx(0.675182, abs=6e-7) and figures["pair_label"] == 1.0
    assert list(part.memory["labels"].values()) == pytest.approx([0.950917], abs=6e-7)
    value, figures = step(part, forest, logprob)
    z = 0.1 * (-9 / 5 + 13 / 6)
    flipped = 0.950917 * math.log1p(math.exp(-z)) + 0.049083 * math.log1p(math.exp(z)) + 1e-4 * 2
    assert value == pytest.approx(flipped, abs=1e-6) and figures["pair_label"] == pytest.approx(0.950917, abs=6e-7)
    again = gxpo.method("power_dl").terms["policy"]
    again.load_state_dict(part.state_dict())
    assert again.state_dict() == part.state_dict() and len(part.state_dict()["labels"]) == 1


def test_the_first_look_of_a_step_moves_the_labels():
    forest, part = groups.forest_of([("a", 1, 1), ("a", 1, 0)]), term(population="", label_rate=1.0)
    ones = torch.ones(2, dtype=torch.float64)
    for logprob in (losing(0.5), losing(0.1)):  # two updates of one step
        part(forest, PolicyTokens(logprob, ones), 0 * ones, ones, {}, 0)
    part.adjust({})
    assert list(part.memory["labels"].values()) == pytest.approx([math.exp(-0.5)])  # sigmoid(z) = e^-loss


def test_the_gradient_is_the_same_however_the_step_is_cut():
    groups.same_however_cut(term(population="", label_rate=0.2))  # with populations: tests/methods/test_methods.py
