"""DAPO's soft overlong punishment."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gxpo.base.errors import ConfigError
from gxpo.environments.rewards.length import Overlong, overlong_penalty
from gxpo.forest.forest import Forest


def test_the_papers_numbers() -> None:
    # limit 20480, buffer 4096, so it starts at 16384:
    # (17408 - 16384) / 4096 = .25; (18432 - 16384) / 4096 = .5; 4096 / 4096 = 1; beyond stays at 1
    length = torch.tensor([10000, 16000, 16384, 17408, 18432, 20480, 20481])
    assert overlong_penalty(length, 20480, 4096).tolist() == [0, 0, 0, -0.25, -0.5, -1, -1]
    assert overlong_penalty(length, 20480, 4096, factor=0.5).tolist() == [0, 0, 0, -0.125, -0.25, -0.5, -0.5]
    assert overlong_penalty(length, 20480, 4096).dtype == torch.float64


@given(st.integers(1, 1000), st.floats(0.01, 1.0), st.floats(0.0, 3.0), st.lists(st.integers(0, 1500), min_size=2))
def test_never_positive_never_below_minus_factor_and_longer_is_never_better(
    limit: int, share: float, factor: float, lengths: list[int]
) -> None:
    values = overlong_penalty(torch.tensor(sorted(lengths)), limit, share * limit, factor)
    assert bool((values <= 0).all() and (values >= -factor).all() and (values.diff() <= 0).all())


def test_only_the_policys_own_tokens_count() -> None:
    def turn(observation: int, action: int) -> dict[str, list[int]]:
        return {"observation": [7] * observation, "action": [8] * action}

    head = {"schema": "gxpo.rollouts/1", "group": "g", "reward": 1.0}
    forest = Forest.from_records(
        [
            {**head, "id": "a", "prompt": [1] * 50, "turns": [turn(0, 4), turn(90, 5)]},
            {**head, "id": "b", "prompt": [1] * 50, "turns": [turn(0, 8)]},
        ]
    )
    # 4 + 5 = 9 and 8 own tokens of 10 at most, buffer .2 * 10 = 2: starts at 8
    assert Overlong(max_length=10)(forest)["overlong"].tolist() == [-0.5, 0.0]


def test_bad_settings_are_refused() -> None:
    forest = Forest.from_completions([[1]], [[[2]]])
    with pytest.raises(ConfigError, match="max_length is not set"):
        Overlong()(forest)
    for settings in ({"buffer": 0.0}, {"buffer": 1.5}, {"max_length": 0}):
        with pytest.raises(ConfigError, match="overlong"):
            Overlong(**settings)  # type: ignore[arg-type]  # deliberately wrong
    with pytest.raises(ValueError, match="buffer"):
        overlong_penalty(torch.tensor([1]), 10, 11)
