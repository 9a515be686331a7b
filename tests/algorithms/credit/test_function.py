"""Advantages that are pure functions of columns: of gxpo's own, of a user's file, in Python."""

from __future__ import annotations

import math
from typing import Annotated

import pytest
import torch
from annotated_types import Gt

import gxpo
from gxpo.algorithms.credit import advantage, group_relative
from gxpo.algorithms.credit.sets import pairwise_auc
from gxpo.algorithms.credit.success_rate import negative_groups
from gxpo.base.errors import ConfigError, MissingSignal
from gxpo.parts import registry
from gxpo.parts.definition import show
from gxpo.parts.functions import checked_by

MINE = """
from typing import Annotated
from annotated_types import Gt


def times(outcome, where, *, factor: Annotated[float, Gt(0)] = 2.0):
    return factor * outcome * where


def plain(forest, signals, step):
    return forest.to_path(forest.outcome, "R")
"""


def forest():
    return gxpo.Forest.from_completions([[1], [2]], [[[3], [4, 5]], [[3], [4]]], [[1.0, 0.0], [0.5, 0.25]])


def test_keyword_parameters_are_options_of_the_part():
    method = gxpo.method("grpo", {"credit": "pairwise_auc", "credit.tau": 0.3})
    assert method.credit == advantage(pairwise_auc, tau=0.3) and method.credit != advantage(pairwise_auc)
    assert (show(method.credit), show(pairwise_auc), repr(method.credit)) == (
        "pairwise_auc", "pairwise_auc", "pairwise_auc(tau=0.3)",
    )  # fmt: skip
    assert method.keys["credit.tau"].value == 0.3
    assert gxpo.method("grpo", {"credit": pairwise_auc, "credit.tau": 0.3}).credit == method.credit
    with pytest.raises(ConfigError, match=r"credit\.tau is -1.0; it is above 0"):
        gxpo.method("grpo", {"credit": "pairwise_auc", "credit.tau": -1.0})
    with pytest.raises(ConfigError, match=r"unknown key 'credit\.tua'; did you mean 'credit\.tau'"):
        gxpo.method("grpo", {"credit": "pairwise_auc", "credit.tua": 1.0})


def test_a_function_with_statistic_has_its_options():
    method = gxpo.method(
        "grpo", {"credit.add.negative_groups": "negative_groups", "credit.scale": "none", "credit.eps": 1.0}
    )
    added = method.credit.parts[1]  # type: ignore[union-attr]
    assert added == advantage(negative_groups, scale="none", eps=1.0)
    with pytest.raises(ConfigError, match=r"credit\.eps"):
        advantage(negative_groups, scale="median_absolute", eps=0.0)


def test_of_a_users_file_by_the_names_of_its_columns(tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    keys = {"credit": f"{tmp_path}/mine.py:times", "credit.factor": 3}
    method = gxpo.method("grpo", keys)
    assert method.advantages(forest()).tolist() == [3.0, 0.0, 0.0, 1.5, 0.75]
    assert method.keys["credit"].value == keys["credit"] and show(method.credit).endswith("mine.py:times")
    with pytest.raises(ConfigError, match=r"credit\.factor is 0.0; it is above 0"):
        gxpo.method("grpo", {**keys, "credit.factor": 0.0})
    other = gxpo.method("grpo", {"credit": f"{tmp_path}/mine.py:plain"})
    assert other.advantages(forest()).tolist() == [1.0, 0.0, 0.0, 0.5, 0.25]


def test_a_parameter_that_is_no_column_is_a_signal_that_it_needs():
    def against(outcome, baseline):
        return outcome - baseline

    with pytest.raises(ConfigError, match="reads signal 'baseline', which no part provides"):
        gxpo.method("grpo", {"credit": against})
    part = advantage(against)
    assert part.needs == ("baseline",)
    baseline = torch.tensor([0.5, 0.5, 0.0, 0.0], dtype=torch.float64)
    assert part(forest(), {"baseline": baseline}, 0).tolist() == [0.5, -0.5, -0.5, 0.5, 0.25]
    unknown = {"behaviour_logprob": torch.full((5,), math.nan)}
    with pytest.raises(MissingSignal, match="5 of 5 trainable tokens: record `logprob`"):
        advantage(pairwise_auc)(forest(), unknown, 0)


def test_facts_come_from_the_decorator_or_the_options():
    @registry.part(
        "invented", stage="credit", requires=("forks",), learns_from_equal_groups=lambda center, **_: center == "none"
    )
    def invented(outcome, group, where, *, center: str = "mean", eps: Annotated[float, Gt(0)] = 1.0):
        return group_relative(outcome, group, center, "none", where=where)

    assert advantage(invented).requires == ("forks",) and not advantage(invented).learns_from_equal_groups
    assert advantage(invented, center="none").learns_from_equal_groups
    assert gxpo.method("grpo", {"credit": invented}).requires == ("forks",)
    with pytest.raises(TypeError, match="is no dataclass that can be made"):
        registry.part("invented", stage="update")(lambda: None)


def test_options_are_checked_together():
    def in_order(low, high):
        return None if low < high else f"low {low} is not below high {high}"

    @registry.part("between", stage="credit")
    @checked_by(in_order)
    def between(outcome, *, low: float = 0.0, high: float = 1.0):
        return outcome.clamp(low, high)

    assert gxpo.method("grpo", {"credit": between}).advantages(forest())[0] == 1
    with pytest.raises(ConfigError, match=r"low 2\.0 is not below high 1\.0"):
        gxpo.method("grpo", {"credit": between, "credit.low": 2.0})
