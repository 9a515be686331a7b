"""What functions of users give: a wrong value is an error with their file and line, what came and what is wanted."""

import re
import types

import pytest
import torch

import gxpo
from gxpo.algorithms.signals.base import compute_signals
from gxpo.base.errors import ConfigError, GxpoError
from gxpo.environments.tasks.user_source import OwnTasks
from gxpo.learning.base import steps_of
from gxpo.parts.functions import naming
from gxpo.parts.learning import Signals
from gxpo.parts.registry import part

FOREST = gxpo.Forest.from_completions([[1, 2]], [[[3, 4], [5], [6]]], [[1.0, 0.0, 0.5]], success=[1, 0, 0])
CODE = """
import torch
from dataclasses import dataclass
from gxpo.algorithms.objectives import TermPart
from gxpo.parts.registry import part

VALUE = None


def by_columns(outcome, group):
    return VALUE


def by_forest(forest, signals, step):
    return VALUE


def weight(forest, credit, signals, step):
    return VALUE


def curve(rate):
    return VALUE


def surrogate(x):
    return VALUE


@part("mine", stage="ratio")
def ratio(log_ratio):
    return VALUE


def of_forest(forest):
    return VALUE


@dataclass(frozen=True)
class Term(TermPart):
    def __call__(self, forest, policy, credit, weight, signals, step):
        return VALUE

    def active(self, forest, credit, weight, signals=None):
        return torch.ones(forest.n_entries, dtype=torch.bool)


@part("surprise", stage="signal", gives={"surprise": "P"})
def signal(forest, learner):
    return VALUE


def misspelt(outcome, gruop):
    return outcome
"""
KINDS = {  # keys -> the function, and the shape that is wanted, for 3 trajectories of 4 tokens in a group
    "credit=by_columns": ("by_columns", "(3,), one value for each trajectory"),
    "credit=by_forest": ("by_forest", "(4,), one value for each path token"),
    "credit.add.mine=by_columns": ("by_columns", "(3,), one value for each trajectory"),
    "weight.mine=weight": ("weight", "(4,), one value for each path token"),
    "weight.mine=group_weight": ("curve", "(1,), one value for each group"),
    "objective.surrogate=surrogate": ("surrogate", "(3,), one value for each entry"),
    "objective.ratio=ratio": ("ratio", "(3,), one value for each token"),
    "objective.add.mine=Term": ("__call__", "a tensor of shape (), one number"),
    "objective=Term": ("__call__", "a tensor of shape (), one number"),
    "reward.shape.mine=of_forest": ("of_forest", "(3,), one value for each trajectory"),
    "reward.add.mine=of_forest": ("of_forest", "(3,), one value for each trajectory"),
    "reward.step.mine=of_forest": ("of_forest", "(3,), one value for each step"),
}
VALUES = {
    "shape (7,)": torch.zeros(7),
    "shape (2, 3)": torch.zeros(2, 3),
    "None": None,
    "list of 2, not a tensor": [0.0, 1.0],
    "float, not a tensor": 1.0,
    "ndarray of shape (7,), not a tensor": torch.zeros(7).numpy(),
    "shape (7,) of torch.complex64": torch.zeros(7, dtype=torch.complex64),
}


@pytest.fixture(scope="module")
def users(tmp_path_factory):
    path = tmp_path_factory.mktemp("users") / "my_parts.py"
    path.write_text(CODE)
    return path


def loss(method):
    filled_method = method.fill(horizon=1.0, max_length=4, total_steps=1)
    logprob = torch.full((4,), -1.0, dtype=torch.float64, requires_grad=True)
    return filled_method.loss(filled_method.shaped(FOREST), gxpo.PolicyTokens(logprob, logprob.detach()))


def module_of(path):
    """The module of a user's file, of which a method has a part."""
    import sys

    (module,) = {m for m in list(sys.modules.values()) if getattr(m, "__file__", None) == str(path)}
    return module


def test_a_wrong_value_names_the_function_and_both_shapes(users):
    wrong = []
    for kind, (function, expected) in KINDS.items():
        key, _, name = kind.partition("=")
        keys = {key: f"{users}:{name}"} if name != "group_weight" else {key: name, f"{key}.curve": f"{users}:curve"}
        method = gxpo.method("grpo", keys)
        module = module_of(users)
        decorated = function == "ratio"  # a function begins with its decorators
        line = CODE.count("\n", 0, CODE.index(f"def {function}(")) + 1 - decorated
        place = f"(my_parts.py line {line}, in {function}) gave "
        for value_text, value in VALUES.items():
            module.VALUE = value
            try:
                loss(method)
                wrong.append(f"{kind} {value_text}: accepted")
            except GxpoError as error:
                if place + value_text not in str(error) or expected not in str(error):
                    wrong.append(f"{kind} {value_text}: {error}")
            except Exception as error:
                wrong.append(f"{kind} {value_text}: {type(error).__name__} {error}")
    assert wrong == []


def test_signals_of_a_wrong_shape(users):
    method = gxpo.method("grpo", {"signal.surprise": f"{users}:signal"})
    tools = types.SimpleNamespace(learner=None)
    for text, value in VALUES.items():
        module_of(users).VALUE = value
        message = (
            rf"signal surprise \(my_parts.py line \d+, in signal\) gave {re.escape(text)}; it has to give shape \(4,\)"
        )
        with pytest.raises(GxpoError, match=message):
            compute_signals(method.signals["surprise"], FOREST, Signals.of(FOREST), tools)


def test_a_misspelt_parameter_gets_the_nearest_name(users):
    with pytest.raises(
        ConfigError,
        match=r"'gruop', which no part provides \(my_parts.py line \d+, in misspelt\); did you mean 'group'",
    ):
        gxpo.method("grpo", {"credit": f"{users}:misspelt"})
    with pytest.raises(ConfigError, match=r"parameter 'log_ration'; did you mean 'log_ratio'.*; a ratio reads"):
        part("mine", stage="ratio")(lambda log_ration: log_ration)
    with pytest.raises(ConfigError, match="reads signal 'entrpy', which no part provides; did you mean 'entropy'"):
        gxpo.method("grpo", {"weight.mine": "token_weight", "weight.mine.score": "entrpy"})


def test_what_fails_outside_of_a_users_code_names_it_all_the_same(users):
    weight = gxpo.method("grpo", {"weight.mine": f"{users}:weight"}).weights["mine"]
    message = r"part x \(my_parts.py line \d+, in weight\) gave what can't be used: TypeError: no"
    with pytest.raises(GxpoError, match=message), naming("part x", weight):
        raise TypeError("no")
    with pytest.raises(TypeError, match=r"^no$"), naming("part x", gxpo.method("grpo").credit):
        raise TypeError("no")


class Source:
    def __init__(self, value):
        self.value = value

    def draw(self, n, step):
        return self.value

    held_out = draw


def test_a_task_source_that_gives_no_list():
    for value, name in ((None, "NoneType"), ("text", "str"), ({"prompt": "?"}, "dict"), (3, "int")):
        message = rf"draw \(test_given_values.py line \d+, in draw\) gave {name}; it has to give a list of tasks"
        with pytest.raises(GxpoError, match=message):
            OwnTasks(Source(value), "mine").draw(1, 1)


class Steps:
    def __init__(self, value):
        self.value = value

    def optimiser_steps(self, groups):
        return self.value


def test_an_update_that_gives_no_number_of_steps():
    assert steps_of(Steps(2), 4) == 2
    for value in (None, 0, -1, 1.5, True, "2"):
        with pytest.raises(GxpoError, match=r"in optimiser_steps\) gave .* optimiser steps for 4 groups; .*1 or more"):
            steps_of(Steps(value), 4)
