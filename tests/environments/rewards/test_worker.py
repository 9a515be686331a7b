"""Worker process of rewards: declared parameters, returned values, forks and imports."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
import torch
from tests.environments.rewards.scored_tasks import Source, forest_of, tasks_of

from gxpo.environments.rewards import RewardSet
from gxpo.environments.rewards.worker import Unusable, call_each, parameters, validate_score

NO_SCORER = Source(default=None)


def score(rewards: RewardSet, texts: list[str], answer: object = "4", finish: str = "stop"):
    return rewards.score(forest_of(texts, finish), texts, tasks_of(texts, answer))


def test_a_child_that_a_reward_in_process_forks_goes_no_further() -> None:
    children: list[int] = []

    def forking(completion: str) -> float:
        children.append(os.fork())
        if children[-1] == 0 and completion == "exits":
            raise SystemExit(3)
        return 0.5

    with pytest.warns(UserWarning, match="can't be sent"):
        rewards = RewardSet.make(forking, source=NO_SCORER)
    outcome = score(rewards, ["returns", "exits"]).outcome.tolist()
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    assert outcome == [0.5, 0.5]


def test_booleans_and_scalars_are_numbers_and_the_rest_is_not() -> None:
    import numpy as np

    assert [validate_score(x) for x in (True, False, 2, np.float32(0.5), np.bool_(True), torch.tensor(3))] == [
        1,
        0,
        2,
        0.5,
        1,
        3,
    ]
    assert validate_score({"a": np.int64(2)}) == {"a": 2.0}
    for value in (None, "1", math.nan, -math.inf, [1], {}, {1: 2.0}, {"a": None}, 10**400, torch.ones(2)):
        with pytest.raises((ValueError, OverflowError, RuntimeError)):
            validate_score(value)


def test_parameters_are_those_declared() -> None:
    def f(completion, *, answer, extra=3, **rest): ...

    assert parameters(f) == ("completion", "answer")
    with pytest.raises(Unusable, match="asks for 'response'"):
        parameters(lambda response: 1)


def test_a_worker_starts_on_the_standard_library_alone(tmp_path: Path) -> None:
    (tmp_path / "lean.py").write_text("import sys\ndef loaded(completion): return 'torch' in sys.modules\n")
    with RewardSet.make(f"{tmp_path}/lean.py:loaded", source=NO_SCORER) as rewards:
        assert score(rewards, ["x"]).outcome.tolist() == [0.0]


def test_reused_return_object_is_judged_as_it_was_returned():
    components, total = {"correct": 0.0}, torch.zeros(())

    def counting() -> dict[str, float]:
        components["correct"] += 1.0
        return components

    assert call_each(counting, [((), {})] * 3) == [("ok", {"correct": x}) for x in (1.0, 2.0, 3.0)]
    assert call_each(lambda: total.add_(0.5), [((), {})] * 2) == [("ok", 0.5), ("ok", 1.0)]
    assert call_each(lambda x: {"a": x}, [((math.inf,), {}), ((1,), {})])[1] == ("ok", {"a": 1.0})
    assert call_each(lambda x: x, [((math.nan,), {}), (("1",), {})])[0] == (
        "nonsense",
        "returned nan, not a finite number",
    )
