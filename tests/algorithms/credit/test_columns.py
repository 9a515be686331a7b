"""Columns of steps and tokens that advantage functions read, and values of `Relative` that are functions."""

from __future__ import annotations

import pytest
import torch

import gxpo
from gxpo.algorithms.credit import Relative, StateRelative, advantage, group_relative
from gxpo.algorithms.credit.columns import column
from gxpo.algorithms.credit.values import penalised_outcome
from gxpo.base.errors import ConfigError
from gxpo.parts import registry

ROWS = [
    ("a", 1.0, [2, 1], {"states": ["s", "t"]}),
    ("a", 0.0, [1, 1, 1], {"states": ["s", "t", "t"]}),
    ("b", 0.5, [3], {"states": ["s"], "compared": False}),
]
MINE = """
def longer(outcome, length, *, factor: float = 2.0):
    return outcome + factor * length
"""


@column("S")
def doubled(paid, *, times: float = 2.0):
    return times * paid


@registry.part("own_steps", stage="credit", axis="S")
def own_steps(doubled, outcome, trajectory, state, where=None, *, shift: float = 0.0):
    assert len(doubled) == len(outcome) == len(trajectory) == len(state) == len(where)
    return doubled + 10 * outcome + shift


@registry.part("own_tokens", stage="credit", axis="P", requires=("forks",))
def own_tokens(advantage, trainable, noise):
    return torch.where(trainable, advantage + noise, 0.0)


@registry.part("own_ends", stage="credit", axis="R", gives="P")
def own_ends(outcome, group, forest):
    assert len(outcome) == len(group) == forest.n_trajectories
    return torch.arange(forest.n_entries)


def test_columns_of_steps_and_their_options(grow):
    part = advantage(own_steps, times=3.0)
    assert repr(part) == "own_steps(state='id', min_similarity=1.0, shift=0.0, times=3.0)" and part.requires == (
        "states",
    )
    assert advantage(own_steps, state="observation").requires == ()
    assert part(grow(ROWS), {}, 0).tolist() == [10, 10, 13, 0, 0, 0, *[6.5] * 3]  # paid 0 1, 0 0 0, 0.5


def test_columns_of_tokens_and_the_statistics_options(grow):
    forest, part = grow(ROWS), advantage(own_tokens, scale="none")
    assert part.needs == ("noise",) and part.requires == ("forks",)
    assert part(forest, {"noise": torch.arange(9)}, 0).tolist() == [0.5, 1.5, 2.5, 2.5, 3.5, 4.5, 6, 7, 8]
    assert part(forest, {"noise": torch.ones(3)}, 0)[:4].tolist() == [1.5, 1.5, 1.5, 0.5]  # of trajectories
    assert advantage(own_ends)(forest, {}, 0).tolist() == list(range(9))


def test_a_value_may_be_a_function_with_options_of_its_own(grow, tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    method = gxpo.method("grpo", {"credit.value": f"{path}:longer", "credit.factor": 0.5, "credit.unit": "step"})
    value = torch.tensor([1.0 + 1.5, 1.0 + 1.5, 1.5, 1.5, 1.5])
    expected = group_relative(value, torch.zeros(5, dtype=torch.int64))
    assert torch.equal(method.credit(grow(ROWS[:2]), {}, 0), expected[[0, 0, 1, 2, 3, 4]])
    assert method.credit.learns_from_equal_groups and method.credit.needs == ()
    with pytest.raises(ConfigError, match=r"unknown key 'credit\.facto'; did you mean 'credit\.factor'"):
        gxpo.method("grpo", {"credit.value": f"{path}:longer", "credit.facto": 0.5})


def test_options_of_values_by_name():
    credit = gxpo.method("capo_genprm", {"credit.vote": "union"}).credit
    assert credit == Relative(penalised_outcome, unit="token", ddof=0, options={"vote": "union"})
    assert credit != Relative("penalised_outcome", unit="token", ddof=0) and credit.needs == ("segment_score",)
    with pytest.raises(ConfigError, match=r"credit\.penalty is -1\.0; it is 0 or more"):
        Relative("penalised_outcome", options={"penalty": -1.0})
    with pytest.raises(ConfigError, match=r"credit has no option 'votes'; did you mean 'vote'"):
        Relative("penalised_outcome", options={"votes": "union"})
    part = StateRelative("graph_return", discount=0.2)  # an option that is a field of the part is that field
    assert part.discount == 0.2 and part.options == {"form": "distance", "worth": 10.0}
