"""Formulas as settings: functions by name, of a file or as objects, with their options; what is said of wrong ones."""

from __future__ import annotations

import pytest
import torch
from tests.environments.rewards.test_outcomes import grown

import gxpo
from gxpo.algorithms.weighting import GroupWeight, TokenWeight
from gxpo.base.errors import ConfigError
from gxpo.environments.rewards.shape import Shape

MINE = """
from typing import Annotated
from annotated_types import Ge

def easy_first(rate, size, *, power: Annotated[float, Ge(0)] = 1.0):
    return rate**power

def squared(outcome, read, *, component="progress"):
    return outcome**2 + read(component)

def wrong(nothing_of_the_kind):
    return nothing_of_the_kind
"""


@pytest.fixture
def mine(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def weights(method, rewards):
    forest = gxpo.Forest.from_completions([[1]], [[[2]] * len(rewards)], rewards)
    return method.token_weights(forest, method.advantages(forest)).tolist()


def test_a_curve_of_ones_own_and_its_options(mine):
    keys = {"weight.mine": "group_weight", "weight.mine.curve": f"{mine}:easy_first"}
    assert weights(gxpo.method("grpo", keys), [1.0, 0.0, 0.0, 0.0]) == [0.25] * 4
    assert weights(gxpo.method("grpo", {**keys, "weight.mine.power": 2}), [1.0, 0.0, 0.0, 0.0]) == [0.0625] * 4
    assert gxpo.method("grpo", {**keys, "weight.mine.power": 2}).keys["weight.mine.power"].value == 2
    with pytest.raises(ConfigError, match=r"weight\.mine\.power is -1.*; it is 0 or more"):
        gxpo.method("grpo", {**keys, "weight.mine.power": -1.0})


def test_a_function_as_an_object():
    part = TokenWeight("credit", lambda x: 1.0 + (x > 0), unit="trajectory")
    forest = gxpo.Forest.from_completions([[1]], [[[2, 3], [4]]], [1.0, 0.0])
    actual = part(forest, torch.tensor([1.0, 1.0, -1.0]), {}, 0)
    assert actual.tolist() == [2.0, 2.0, 1.0]


def test_a_shape_of_ones_own(mine):
    m = gxpo.method("grpo", {"reward.shape.mine": "shape", "reward.shape.mine.function": f"{mine}:squared"})
    shaped = m.shaped(grown([("g", True, 0.25), ("g", False, 0.5), ("g", None, 0.5)]))
    assert shaped.outcome.tolist()[:2] == [1.25, 0.5] and shaped.outcome[2].isnan()
    assert m.shapes["mine"].component == "progress"


def test_what_is_wrong_is_said_when_the_method_is_composed(mine):
    for keys, message in (
        ({"weight.x": "group_weight", "weight.x.curve": "noise_awar"}, r"weight\.x\.curve: unknown .*'noise_aware'"),
        ({"weight.x": "group_weight", "weight.x.curve": f"{mine}:none"}, "has no 'none'"),
        ({"weight.x": "group_weight", "weight.x.curve": "noise_aware", "weight.x.flipp": 1}, r"mean 'weight\.x\.flip'"),
        ({"weight.x": "group_weight", "weight.x.curve": "ramp", "weight.x.hard_rate": 0.9}, "must be below easy_rate"),
        ({"weight.x": "token_weight", "weight.x.score": "nothing"}, "reads signal 'nothing', which no part provides"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            gxpo.method("grpo", keys)
    with pytest.raises(ConfigError, match="has no option 'flap'"):
        GroupWeight(curve="noise_aware", options={"flap": 1})
    m = gxpo.method("grpo", {"reward.shape.x": "shape", "reward.shape.x.function": f"{mine}:wrong"})
    with pytest.raises(ConfigError, match="asks for 'nothing_of_the_kind'; there is outcome"):
        m.shaped(grown([("g", True, 0.25)]))


def test_a_saved_configuration_names_functions_as_they_were_stated():
    keys = gxpo.method("s_grpo", {"weight.noise_aware.flip": 0.2}).keys
    assert (keys["weight.noise_aware.curve"].value, keys["weight.noise_aware.flip"].value) == ("noise_aware", 0.2)
    assert gxpo.method("bnpo").weights["beta_density"] == GroupWeight("success_rate", "beta_density")
    assert Shape("signed") == Shape("signed", {"right": 1.0})
