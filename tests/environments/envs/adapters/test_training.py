"""Training through PettingZoo, of both APIs, and TextArena: two steps each, with both seats in the rollouts."""

from __future__ import annotations

import sys

import pytest
from tests.environments.envs.adapters import test_pettingzoo
from tests.environments.envs.fake_libraries import REASON
from tests.thorough import ALL

import gxpo
from gxpo.forest.records import load

SMALL = {
    "rollout": "seats", "rollout.group_size": 2, "tasks.per_step": 2, "eval.tasks": 2, "sampling.max_new_tokens": 1,
    "env.context": "window", "env.workers": 0, "trainer.rollouts_every": 1,
}  # fmt: skip


def seats(tmp_path, task, **options):
    """Train two steps; the seats of the second step's trajectories."""
    keys = {**SMALL, "tasks.options": {"max_turns": 3, **options}}
    ended = gxpo.train("tiny:cold", task, "grpo", steps=2, out=str(tmp_path / "run"), set=keys)
    assert len(ended.metrics) == 2 and not any(row.get("env_broken") for row in ended.metrics)
    forest = load(tmp_path / "run/rollouts/step-000002.jsonl")
    assert bool(forest.outcome.isfinite().all())
    return {info["seat"] for info in forest.info}


@pytest.mark.parametrize(("api", "agents"), [("parallel", {"a_0", "a_1"}), pytest.param("aec", {"x", "y"}, marks=ALL)])
def test_both_apis_of_pettingzoo_train(tmp_path, monkeypatch, api, agents):
    module = type(sys)("own_zoo")
    module.parallel_env, module.env = test_pettingzoo.Together, test_pettingzoo.InTurns
    monkeypatch.setitem(sys.modules, "own_zoo", module)
    assert seats(tmp_path, "pettingzoo:own_zoo", api=api) == agents


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("library", "task", "options"),
    [
        ("mpe2", "pettingzoo:mpe2.simple_spread_v3", {"options": {"N": 2}}),
        ("pygame", "pettingzoo:classic.tictactoe_v3", {"api": "aec"}),
        ("textarena", "textarena-seats:TicTacToe", {}),
    ],
)
def test_worlds_of_other_libraries_train(tmp_path, library, task, options):
    pytest.importorskip(library, reason=REASON)
    assert seats(tmp_path, task, **options)
