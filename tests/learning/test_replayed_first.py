"""Replayed rollouts first: exactly the two steps that would be taken one after the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.learning.llamas import clean_llama

import gxpo
from gxpo.algorithms.signals import Signals
from gxpo.forest.forest import Forest
from gxpo.learning.base import Epochs
from gxpo.learning.torch import TorchLearner
from gxpo.parts.protocols import StepInfo
from gxpo.training.bound_learner import BoundLearner

METHOD = "pipo"


def records(group: str, rewards: list[float], origin: str) -> list[dict[str, Any]]:
    rows = []
    for i, reward in enumerate(rewards):
        n = 2 + i % 2
        turn = {"action": [5 + i, 7, 9][:n], "logprob": [-2.5, -3.0, -2.0][:n]}
        row = {"schema": "gxpo.rollouts/1", "group": group, "id": f"{group}{i}", "prompt": [2, 3], "turns": [turn]}
        rows.append({**row, "reward": reward, "origin": origin})
    return rows


OLD = [*records("a", [1.0, 0.0, 0.0], "replay"), *records("b", [0.0, 1.0], "replay")]
NEW = [*records("c", [0.0, 1.0, 1.0], "policy"), *records("d", [1.0, 0.0], "policy")]


def fresh() -> TorchLearner:
    return TorchLearner(clean_llama(), lr=1e-2)


def update(learner: TorchLearner, rows: list[dict[str, Any]], value: float, method: str = METHOD, part: Any = None):
    """One step of the trainer from the update on; `value` is the improvement."""
    m, forest = gxpo.method(method), Forest.from_records(rows)
    columns = {"improvement": torch.full((len(rows),), value, dtype=torch.float64)}
    signals = Signals.of(forest, columns, {"improvement": "R"})
    credit = m.advantages(forest, signals)
    weight = m.token_weights(forest, credit, signals, 1)
    bound = BoundLearner(learner, m, forest, signals, 1)
    return (part or m.update).run(forest, credit, weight, bound)


@pytest.mark.parametrize("value", [1.7, -0.2])
def test_it_is_one_step_on_the_old_and_then_one_on_the_new(value: float) -> None:
    """The ratios of both are over who sampled them, so each step can be taken alone."""
    ours, apart = fresh(), fresh()
    infos = update(ours, [*NEW, *OLD], value)
    update(apart, OLD, value)  # nothing but replayed rows: the second step is empty
    update(apart, NEW, value)
    assert [i.empty for i in infos] == [False, False] and ours.optimiser.steps == apart.optimiser.steps == 2
    assert all(torch.allclose(x, apart.snapshot()[n], rtol=0, atol=1e-12) for n, x in ours.snapshot().items())
    assert any(not torch.equal(x, fresh().snapshot()[n]) for n, x in ours.snapshot().items())


def test_without_improvement_it_is_the_step_on_the_new() -> None:
    ours, plain = fresh(), fresh()
    assert len(update(ours, [*NEW, *OLD], 0.0)) == 1
    update(plain, NEW, 0.0)
    assert all(torch.allclose(x, plain.snapshot()[n], rtol=0, atol=1e-12) for n, x in ours.snapshot().items())


def test_without_replayed_rollouts_it_is_one_plain_step() -> None:
    ours, plain = fresh(), fresh()
    (info,) = update(ours, NEW, 3.0)
    m, forest = gxpo.method("grpo", {"objective.ratio_over": "behaviour"}), Forest.from_records(NEW)
    signals = Signals.of(forest, {})
    credit = m.advantages(forest, signals)
    bound = BoundLearner(plain, m, forest, signals, 1)
    m.update.run(forest, credit, m.token_weights(forest, credit, signals, 1), bound)
    assert not info.empty and ours.fingerprint() == plain.fingerprint()
    assert Epochs(first="replay").optimiser_steps(5) == m.update.optimiser_steps(5) + 1 == 2


def test_minibatches_are_of_one_kind() -> None:
    calls = []

    class Recorder:
        def step(self, forest, credit, weight, trajectories=None):
            calls.append(trajectories.tolist())
            return StepInfo(empty=False)

    forest = Forest.from_records([*NEW, *OLD])
    ones = torch.ones(forest.n_entries)
    infos = Epochs(2, 2, first="replay").run(forest, ones, ones, Recorder())
    assert calls == [[5, 6, 7], [8, 9], [0, 1, 2], [3, 4]] * 2 and len(infos) == 8
    assert Epochs(2, 2, first="replay").optimiser_steps(4) == 8
