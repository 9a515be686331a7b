"""PettingZoo's two APIs, on worlds of their classes, without the library's games."""

from __future__ import annotations

import sys
import types

import gymnasium
import numpy as np
import pettingzoo
import pytest

from gxpo.environments.envs.adapters import AdapterError
from gxpo.environments.envs.adapters.pettingzoo import PettingZoo, as_text
from gxpo.environments.envs.joint import Joint


class Together(pettingzoo.ParallelEnv):
    """Two agents that are paid for saying the same; over after two steps."""

    metadata = {"name": "together"}  # noqa: RUF012
    possible_agents = ["a_0", "a_1"]  # noqa: RUF012

    def action_space(self, agent):
        return gymnasium.spaces.Discrete(3)

    def observation_space(self, agent):
        return gymnasium.spaces.Box(0, 9, (1,))

    def reset(self, seed=None, options=None):
        self.agents, self.n = list(self.possible_agents), 0
        return {a: np.array([seed]) for a in self.agents}, {a: {} for a in self.agents}

    def step(self, actions):
        self.n += 1
        agents, over = self.agents, self.n == 2
        reward = float(len(set(actions.values())) == 1)
        self.agents = [] if over else agents
        every = lambda x: dict.fromkeys(agents, x)  # noqa: E731
        return every(np.array([self.n])), every(reward), every(over), every(False), every({})


class InTurns(pettingzoo.AECEnv):
    """Who says 1 first wins; the other loses."""

    metadata = {"name": "in_turns"}  # noqa: RUF012
    possible_agents = ["x", "y"]  # noqa: RUF012

    def action_space(self, agent):
        return gymnasium.spaces.Discrete(2)

    def observe(self, agent):
        return {"observation": np.array([0.0]), "action_mask": np.array([1, 1])}

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos = {a: {} for a in self.agents}
        self.agent_selection = "x"

    def step(self, action):
        mover = self.agent_selection
        other = "y" if mover == "x" else "x"
        self._cumulative_rewards[mover] = 0
        if action == 1:
            self.rewards = {mover: 1, other: -1}
            self.terminations = dict.fromkeys(self.agents, True)
            self._accumulate_rewards()
        self.agent_selection = other


@pytest.fixture(autouse=True)
def module(monkeypatch):
    fake = types.ModuleType("own_zoo")
    fake.parallel_env, fake.env = Together, InTurns
    monkeypatch.setitem(sys.modules, "own_zoo", fake)


def test_agents_of_the_parallel_api_act_at_once():
    world = Joint(PettingZoo("own_zoo"))
    step = world.reset(5)
    assert step.info["acting"] == ["a_0", "a_1"] and step.info["agents"]["a_0"]["observation"] == "5"
    world.step('{"actions": {"a_0": "2", "a_1": "2"}}')
    end = world.step('{"actions": {"a_0": "0", "a_1": "nine"}}')
    assert end.done and end.reward == 2.0  # the unreadable action became the first, 0
    assert end.info["agents"]["a_1"]["action_error"] == "malformed"


def test_agents_of_the_aec_api_act_in_turns():
    world = Joint(PettingZoo("own_zoo", api="aec"))
    assert world.reset(0).info["acting"] == ["x"]
    step = world.step("0").info
    assert step["acting"] == ["y"] and step["agents"]["x"]["observation"] == ""  # it reads at its next turn
    end = world.step("1").info["agents"]
    assert {a: fields["reward"] for a, fields in end.items()} == {"x": -1.0, "y": 1.0}
    assert {a: fields["success"] for a, fields in end.items()} == {"x": False, "y": True}


def test_a_module_that_is_not_there_is_named():
    with pytest.raises(AdapterError, match="pettingzoo:no_such_world can't be imported: No module named"):
        PettingZoo("no_such_world")


def test_observations_are_rounded_and_masks_left_out():
    assert as_text({"observation": np.array([0.126, -1]), "action_mask": np.array([1])}, 2) == "observation: 0.13 -1"
    assert as_text(np.eye(2), 1) == "1 0\n0 1"
