"""PettingZoo's worlds of several agents (Terry et al. 2021, arXiv:2009.14471), of its parallel and its AEC API."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gxpo.base.errors import need
from gxpo.environments.envs.actions import action_text
from gxpo.environments.envs.adapters import AdapterError, digest
from gxpo.parts.protocols import TimeStep


def as_text(observation: Any, digits: int) -> str:
    """Text of an observation: numbers rounded, arrays row by row, mappings by name without the action mask.

    >>> as_text({"observation": np.array([0.123, 2.0]), "action_mask": np.array([1])}, 2)
    'observation: 0.12 2'
    """
    if isinstance(observation, Mapping):
        field_by_name = {name: x for name, x in observation.items() if name != "action_mask"}
        return "\n".join(f"{name}: {as_text(x, digits)}" for name, x in field_by_name.items())
    array = np.asarray(observation)
    if array.ndim < 2:
        return " ".join(f"{round(float(x), digits) + 0.0:g}" for x in array.reshape(-1))
    return "\n".join(as_text(row, digits) for row in array)


@dataclass
class PettingZoo:
    """A world of PettingZoo, mpe2 or any package with their API. Actions are discrete, and written as their numbers.

    id       module of the world: "mpe2.simple_spread_v3", "classic.tictactoe_v3" (of pettingzoo) or one's own
    api      "parallel", all act at once, or "aec", in turns; "": parallel where the module has it
    names    words for the actions, in their order
    digits   of the numbers in observations
    success  least sum of an agent's rewards that counts as a success
    options  of the world's constructor

    An action that is no number in range is malformed, one that the world's mask excludes is illegal; both become the
    first action that is possible, since the world has to go on.
    """

    id: str
    api: str = ""
    names: Sequence[str] = ()
    digits: int = 2
    success: float = 1.0
    max_turns: int = 50
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        need("pettingzoo", "envs")
        if self.api not in ("", "parallel", "aec"):
            raise AdapterError(f"pettingzoo:{self.id}: api is 'parallel' or 'aec', not {self.api!r}")
        module = self._module()
        kinds = {"parallel": "parallel_env", "aec": "env"}
        present = [api for api, name in kinds.items() if hasattr(module, name)]
        if not present or self.api not in ("", *present):
            raise AdapterError(f"pettingzoo:{self.id}: its module has no {kinds.get(self.api, 'env')}()")
        self._is_parallel = (self.api or present[0]) == "parallel"
        self._make = getattr(module, kinds["parallel" if self._is_parallel else "aec"])
        numbers = f" Its words: {', '.join(f'{i} {name}' for i, name in enumerate(self.names))}." if self.names else ""
        self.instructions = f"You are one of several agents. Reply with the number of an action.{numbers}"

    def _module(self) -> Any:
        failure: BaseException | None = None
        for name in (self.id, f"pettingzoo.{self.id}"):
            try:
                return importlib.import_module(name)
            except Exception as error:  # a module of the library may need packages that are not installed
                # the module itself is not there under this name; anything else is what the user has to mend
                is_absent = isinstance(error, ModuleNotFoundError) and str(error.name) in name
                failure = failure if is_absent and failure is not None else error
        raise AdapterError(f"pettingzoo:{self.id} can't be imported: {' '.join(str(failure).split())[:200]}")

    def reset(self, seed: int) -> dict[str, TimeStep]:
        self._world = self._make(**self.options)
        first = self._world.reset(seed=seed)
        self._totals = dict.fromkeys(self._world.possible_agents, 0.0)
        self._errors: dict[str, str | None] = {}
        self._over: set[str] = set()
        self._turn = 0
        if self._is_parallel:
            self._observations = dict(first[0])
            self._infos = dict(first[1])
            return {agent: self._news(agent) for agent in self._world.agents}
        return {agent: self._news(agent) for agent in self._world.agents}

    def acting(self) -> list[str]:
        agents = [agent for agent in self._world.agents if agent not in self._over]
        if self._is_parallel or not agents:
            return agents
        return [self._world.agent_selection]

    def step(self, actions: Mapping[str, str]) -> dict[str, TimeStep]:
        self._turn += 1
        numbers = {agent: self._number(agent, text) for agent, text in actions.items()}
        return self._step_all(numbers) if self._is_parallel else self._step_one(numbers)

    def legal(self, agent: str) -> list[str]:
        mask, space = self._mask(agent), self._space(agent)
        return [str(i) for i in range(space) if mask is None or mask[i]]

    # ------------------------------------------------------------ both kinds
    def _step_all(self, numbers: Mapping[str, int]) -> dict[str, TimeStep]:
        observations, rewards, terminations, truncations, infos = self._world.step(dict(numbers))
        self._observations |= observations
        self._infos |= infos
        return {a: self._end(a, float(rewards[a]), bool(terminations[a]), bool(truncations[a])) for a in observations}

    def _step_one(self, numbers: Mapping[str, int]) -> dict[str, TimeStep]:
        world, (agent,) = self._world, numbers
        before = {a: float(world._cumulative_rewards[a]) for a in world.agents if a != agent}
        world.step(numbers[agent])
        # rewards add up until an agent acts; the one that has acted starts anew
        news = {}
        for a in list(world.agents):
            reward = float(world._cumulative_rewards[a]) - before.get(a, 0.0)
            is_terminated, is_truncated = bool(world.terminations[a]), bool(world.truncations[a])
            if a not in self._over and (
                a == agent or is_terminated or is_truncated or reward or a == world.agent_selection
            ):
                news[a] = self._end(a, reward, is_terminated, is_truncated)
        return news

    def _end(self, agent: str, reward: float, is_terminated: bool, is_truncated: bool) -> TimeStep:
        """Time step of an agent after its action."""
        self._totals[agent] += reward
        if done := is_terminated or is_truncated:
            self._over.add(agent)
        success = self._totals[agent] >= self.success if done else None
        error = self._errors.pop(agent, None)
        return self._news(
            agent, reward=reward, done=done, truncated=is_truncated and not is_terminated, success=success, error=error
        )

    def _news(self, agent: str, error: str | None = None, **fields: Any) -> TimeStep:
        observation = self._observations[agent] if self._is_parallel else self._world.observe(agent)
        reads = self._is_parallel or self._is_next(agent) or fields.get("done")  # not between its turns
        text = as_text(observation, self.digits) if reads else ""
        return TimeStep(text, digest(text, self._turn), action_error=error, **fields)

    def _is_next(self, agent: str) -> bool:
        return agent == self._world.agent_selection

    def _number(self, agent: str, text: str) -> int:
        word, legal = action_text(text), self.legal(agent)
        number = str(list(self.names).index(word)) if word in self.names else word
        if number in legal:
            return int(number)
        is_in_range = number.isdecimal() and int(number) < self._space(agent)
        self._errors[agent] = "illegal" if is_in_range else "malformed"
        return int(legal[0])

    def _space(self, agent: str) -> int:
        space = self._world.action_space(agent)
        if not hasattr(space, "n"):
            raise AdapterError(f"pettingzoo:{self.id}: {agent} acts in {type(space).__name__}; actions are discrete")
        return int(space.n)

    def _mask(self, agent: str) -> Any:
        observation = self._observations[agent] if self._is_parallel else self._world.observe(agent)
        if isinstance(observation, Mapping) and "action_mask" in observation:
            return observation["action_mask"]
        return (self._infos if self._is_parallel else self._world.infos).get(agent, {}).get("action_mask")
