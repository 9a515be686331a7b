"""An outcome times one plus the process reward."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.environments.rewards.shapes import shape
from tests.strategies import random_forest

import gxpo
from gxpo.base.errors import ConfigError
from gxpo.environments.rewards.outcomes import process_bonus

ProcessBonus = shape("process_bonus")

nan = float("nan")


def with_bonus(outcome: torch.Tensor, process: torch.Tensor) -> torch.Tensor:
    return process_bonus(outcome, lambda name: process)


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_right_with_two_useful_chunks_of_four_and_wrong() -> None:
    # 1 * (1 + 2/4) = 1.5; 0 * (1 + 3/4) = 0
    assert with_bonus(column(1, 0), column(2 / 4, 3 / 4)).tolist() == [1.5, 0.0]


def test_an_unknown_process_leaves_a_failure_a_failure_and_makes_a_success_unknown() -> None:
    assert with_bonus(column(0, 1, nan), column(nan, nan, 0.5)).isnan().tolist() == [False, True, True]


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.5, 1.0]), st.floats(0, 1)), min_size=1))
def test_it_never_orders_a_failure_above_a_success(rows: list[tuple[float, float]]) -> None:
    found = with_bonus(column(*(r for r, _ in rows)), column(*(p for _, p in rows))).tolist()
    for (right, process), reward in zip(rows, found, strict=True):
        assert right <= reward <= 2 * right and reward == pytest.approx(right + right * process)


def test_the_part_reads_its_component_and_names_what_is_missing() -> None:
    forest = random_forest(3)
    n = forest.n_trajectories
    ones = torch.ones(n, dtype=torch.float64)
    scored = forest.with_rewards(ones, components={"correct": ones, "process": 0.25 * ones})
    assert ProcessBonus()(scored).tolist() == [1.25] * n
    with pytest.raises(ConfigError, match=r"'useful', which no reward computes.*\(there is correct, process\)"):
        ProcessBonus(component="useful")(scored)
    with pytest.raises(ConfigError, match="between 0 and 1"):
        ProcessBonus()(forest.with_rewards(ones, components={"process": 2 * ones}))


def test_search_r2_as_published_asks_for_it_and_by_default_does_without() -> None:
    assert gxpo.method("search_r2@paper").shapes == {"process": ProcessBonus()}
    assert gxpo.method("search_r2").shapes == {}
