"""A gradient that is not finite: the step is skipped, named and counted, and some in a row end the run for once."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.learning.llamas import random_forest, small_llama

import gxpo
from gxpo.algorithms.signals import Signals
from gxpo.base.errors import ModelError
from gxpo.learning.base import Epochs, deal
from gxpo.learning.natural_gradient import NaturalGradient
from gxpo.learning.slow_fast import SlowFast
from gxpo.learning.torch import TorchLearner
from gxpo.learning.turns_reversed import TurnsReversed
from gxpo.training import checkpoint
from gxpo.training.bound_learner import BoundLearner
from gxpo.training.metrics import comparable, read

SPIKE = """
import math
from dataclasses import dataclass

from gxpo.algorithms.objectives import TermPart


@dataclass(frozen=True)
class Spike(TermPart):
    learns_from_equal_groups = True

    def active(self, forest, credit, weight, signals=None):
        return forest.path_trainable

    def __call__(self, forest, policy, credit, weight, signals, step):
        return policy.logprob[3] * (math.inf if 2 <= step <= 4 else 1e-3)
"""
SMALL = {
    "tasks.per_step": 2,
    "rollout.group_size": 4,
    "sampling.max_new_tokens": 6,
    "eval.tasks": 2,
    "optim.lr": 0.01,
    "optim.schedule": "linear",
    "update.epochs": 2,
    "trainer.checkpoint_every": 2,
}


# ---------------------------------------------------------------- one step of each update
def bound() -> tuple[Any, BoundLearner, torch.Tensor, torch.Tensor]:
    forest = random_forest(1)
    forest = forest.replace(outcome=torch.nan_to_num(forest.outcome))
    method = gxpo.method("dr_grpo", {"objective.horizon": 8.0, "objective.surrogate": "unclipped"})
    signals = Signals.of(forest)
    learner = TorchLearner(small_llama(), lr=1e-2, weight_decay=0.1)
    credit = torch.randn(forest.n_entries, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    weight = method.token_weights(forest, credit, signals, 1)
    return forest, BoundLearner(learner, method, forest, signals, 7), credit, weight


def far(forest: Any) -> int:
    """A trained entry of the last group."""
    last = forest.ids("group", axis="P") == int(forest.ids("group", axis="R").max())
    return int((last & forest.path_trainable).nonzero()[0])


@pytest.mark.parametrize(
    ("update", "skips"),
    [(Epochs(epochs=2), 2), (SlowFast(inner_steps=2), 3), (NaturalGradient(), 1), (TurnsReversed(), 1)],
    ids=lambda x: type(x).__name__ if not isinstance(x, int) else "",
)
def test_nonfinite_updates_are_skipped_with_the_steepest_token(update, skips):
    forest, learner, credit, weight = bound()
    if isinstance(update, TurnsReversed):  # one step: all turns of one distance from the end
        forest = forest.replace(trainable=forest.trainable & False)
        forest.trainable[forest.path_token[forest.path_step == forest.path_step[-1]]] = True
    entry = int(forest.path_trainable.nonzero()[-1]) if isinstance(update, TurnsReversed) else far(forest)
    weight[entry] = torch.inf
    before, row = learner.learner.tensors(), int(forest.path_trajectory[entry])
    with pytest.warns(UserWarning) as caught:
        update.run(forest, credit, weight, learner)
    text = [str(w.message) for w in caught if "no optimiser step was taken" in str(w.message)]
    assert len(text) == sum(bool(i.nonfinite) for i in learner.infos) == len(learner.infos) == skips
    token = entry - int((forest.path_trajectory == row).nonzero()[0]) + 1
    where = f"largest slope is inf of term 'policy' in logprob at token {token} of rollout {forest.id[row]!r}"
    assert all(s.startswith("step 7: ") and where in s and f"of task {forest.task[row]!r}" in s for s in text)
    after = learner.learner.tensors()
    assert before.keys() == after.keys() and all(torch.equal(x, before[n]) for n, x in after.items())


def test_minibatches_after_a_skipped_one_keep_the_same_start():
    """The first half cannot be followed: the second half is the step's first, and the epoch after it off policy."""
    forest, learner, credit, weight = bound()
    one, other = deal(forest.ids("group", axis="R"), 2)
    weight[forest.entries_of(one)[0]] = torch.inf
    with warnings.catch_warnings(record=True):
        infos = Epochs(epochs=2, minibatches=2).run(forest, credit, weight, learner)
    assert [bool(i.nonfinite) for i in infos] == [True, False, True, False]
    assert [m["on_policy"] for m in learner.metrics] == [1.0, 0.0]
    forest, other_learner, credit, weight = bound()
    other_learner.proximal = learner.proximal
    for _ in range(2):
        other_learner.step(forest, credit, weight, other)
    assert learner.learner.fingerprint() == other_learner.learner.fingerprint()


# ---------------------------------------------------------------- a run
def train(folder: Path, name: str, **changed: Any) -> gxpo.Run:
    (folder / "mine.py").write_text(SPIKE)
    settings = {**SMALL, "objective.add.spike": f"{folder / 'mine.py'}:Spike", **changed}
    return gxpo.train("tiny:cold", "arithmetic", "dr_grpo", 6, out=folder / name, set=settings)


@pytest.fixture(scope="module")
def never_stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nonfinite")
    with pytest.warns(
        UserWarning, match=r"step 4: no optimiser step was taken.*of term 'spike' in logprob at token 4 "
    ):
        return train(folder, "whole", **{"trainer.max_nonfinite_steps": 4}).path


def test_skipped_steps_are_counted_and_left_out_of_other_figures(never_stopped):
    rows = read(never_stopped / "metrics.jsonl")
    assert [r["nonfinite_steps"] for r in rows] == [0, 2, 4, 6, 6, 6]
    assert [r["optimiser_steps"] for r in rows] == [2, 0, 0, 0, 2, 2]
    assert [r["loss"] is None and r["grad_norm"] is None for r in rows] == [False, True, True, True, False, False]
    crcs = [r["weights_fingerprint"] for r in rows]
    assert len(set(crcs[:4])) == 1 and len(set(crcs)) == 3
    assert rows[4]["lr"] == pytest.approx(0.01 * (1 - 2 / 12))  # the schedule counts steps that were taken


@pytest.mark.slow
def test_three_skipped_steps_end_the_run_and_resume_continues(never_stopped, tmp_path):
    with pytest.warns(UserWarning), pytest.raises(ModelError, match=r"3 steps in a row \(up to step 4\) moved nothing"):
        train(tmp_path, "stopped")
    stopped = tmp_path / "stopped"
    assert checkpoint.latest(stopped).name == "step-000004"
    gxpo.resume(stopped)
    one, other = (list(map(comparable, read(path / "metrics.jsonl"))) for path in (never_stopped, stopped))
    assert one == other
    full_value, ended = (checkpoint.load(checkpoint.latest(path))[0] for path in (never_stopped, stopped))
    assert full_value.keys() == ended.keys() and all(torch.equal(x, ended[n]) for n, x in full_value.items())
