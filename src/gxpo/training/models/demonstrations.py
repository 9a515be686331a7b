"""Demonstrations for the tiny model's warm-up in an environment: episodes of a noisy expert."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import gxpo.environments.envs
from gxpo.base.errors import ModelError
from gxpo.environments import worlds
from gxpo.models.chat.plain import PlainChat
from gxpo.models.decoder.vision import vision_of
from gxpo.parts.protocols import EnvFailure, Message, Reply, Request, Sampling, StreamKey, TimeStep
from gxpo.sampling.engines.torch import TorchEngine

CHECK_STEP = -2  # step in the random streams of a check
WORLDS = "gxpo_worlds"  # package of the built-in worlds
EPISODES = 64  # episodes that are played at a time

Observation = str | Sequence[Message]


def prompt_ids(model: Any, tokenizer: Any, prompt: Any) -> list[int]:
    """Tokenize a prompt as the beginning of a run's conversation."""
    if isinstance(prompt, str):
        return tokenizer(prompt).input_ids
    vision = vision_of(model)
    return list(PlainChat(tokenizer, None if vision is None else vision.ids).start(prompt).context)


class Demonstrations:
    """Source of (observation, action) pairs from episodes on training instances.

    An action is the expert's with probability `expert` (always up to step `errs_from`), otherwise a uniform draw from
    the legal ones. Every observation is a separate prompt, as with `env.context=window`, `env.window=0`.
    """

    def __init__(
        self, task: str, options: Mapping[str, Any], expert: float, random: np.random.Generator, errs_from: int = 0
    ) -> None:
        self.world = worlds.make(task, seed=0, options=options, workers=0)
        envs, needs = self.world.envs, ("expert", "legal") if expert < 1 else ("expert",)
        if envs is None or not {*needs} <= {*envs.provides}:
            raise ModelError(f"the warm-up on {task!r} needs a world with {' and '.join(f'{x}()' for x in needs)}")
        self.envs, self.expert, self.random, self.errs_from = envs, expert, random, errs_from
        self._observations: dict[str, Observation] = {}  # by episode
        self._observations_by_agent: dict[str, dict[str, str]] = {}  # by episode and agent, in a world of several
        self._n_begun = 0

    def files(self) -> list[Path]:
        """Return the source files that the demonstrations depend on."""
        episodes = Path(str(gxpo.environments.envs.__file__)).parent
        return sorted([*episodes.glob("*.py"), *(episodes.parents[1] / WORLDS).glob("*.py")])

    def examples(self, n: int, step: int) -> list[tuple[Observation, str]]:
        """Return the next `n` pairs for a step of the warm-up."""
        pairs: list[tuple[Observation, str]] = []
        if "agents" in self.envs.provides:
            return self._joint_examples(n, step)
        while len(pairs) < n:
            self._start_episodes()
            actions = self._choose_actions(list(self._observations), self.expert if step > self.errs_from else 1.0)
            pairs += [(self._observations[name], action) for name, action in actions.items()]
            answers = self.envs.step({name: Reply(action) for name, action in actions.items()})
            self._observations = {name: _observation(a) for name, a in answers.items() if not _step(a).done}
        return pairs[:n]

    def _joint_examples(self, n: int, step: int) -> list[tuple[Observation, str]]:
        """Return the next `n` pairs of a world of several agents, each of one agent."""
        pairs: list[tuple[Observation, str]] = []
        while len(pairs) < n:
            self._start_episodes()
            share = self.expert if step > self.errs_from else 1.0
            orders = {
                name: {"players": {"*": "expert" if self.random.random() < share else "random"}}
                for name in self._observations
            }
            for name, answer in self.envs.step({n: Reply(json.dumps(order)) for n, order in orders.items()}).items():
                info, observations = _step(answer).info, self._observations_by_agent[name]
                pairs += [(observations[agent], action) for agent, action in info["actions"].items()]
                observations |= {
                    agent: news["observation"] for agent, news in info["agents"].items() if news["observation"]
                }
                if _step(answer).done:
                    del self._observations[name]
        return pairs[:n]

    def _choose_actions(self, names: list[str], share: float) -> dict[str, str]:
        expert_actions = self.envs.expert(names)
        legal_actions = self.envs.legal(names) if "legal" in self.envs.provides else {}
        actions = {}
        for name in names:
            expert, legal = expert_actions[name], legal_actions.get(name, [])
            if isinstance(expert, EnvFailure) or isinstance(legal, EnvFailure):
                raise ModelError(f"the environment broke during the warm-up: {self.envs.messages}")
            follows_expert = expert is not None and self.random.random() < share
            if not (follows_expert and expert):  # by chance, or where the expert has no action
                if not legal:
                    raise ModelError("the warm-up's expert knows no action, and the world has no legal() to draw from")
                expert = str(self.random.choice(legal))
            actions[name] = expert
        return actions

    def _start_episodes(self) -> None:
        n_missing = EPISODES - len(self._observations)
        if n_missing:
            numbers = range(self._n_begun, self._n_begun + n_missing)
            seeds = {f"demonstration {i}": t.info["seed"] for i, t in zip(numbers, self._tasks(n_missing), strict=True)}
            self._n_begun += n_missing
            answers = self.envs.reset(seeds)
            self._observations |= {name: _observation(a) for name, a in answers.items()}
            self._observations_by_agent |= {name: _observations_by_agent(a) for name, a in answers.items()}

    def _tasks(self, n: int) -> list[Any]:
        return self.world.source.draw(n, self._n_begun)

    def check(self, model: Any, tokenizer: Any, tasks: int, max_new_tokens: int) -> tuple[float, float]:
        """Return the sampled policy's success rate on held-out instances and the share of its well-formed actions."""
        # Sampled, as a run does: the band of a world's recipe is that of the sampled policy.
        engine, sampling = TorchEngine(model, tokenizer), Sampling(max_new_tokens=max_new_tokens)
        seeds = {task.id: task.info["seed"] for task in self.world.source.held_out(tasks)}
        answers = self.envs.reset(seeds)
        if "agents" in self.envs.provides:
            return self._joint_check(answers, model, tokenizer, engine, sampling)
        observation_by_name = {name: _observation(answer) for name, answer in answers.items()}
        n_succeeded = n_actions = n_formed = turn = 0
        while observation_by_name:
            requests = [
                Request(
                    tuple(prompt_ids(model, tokenizer, observation)), (StreamKey(0, CHECK_STEP, name, 0, turn=turn),)
                )
                for name, observation in observation_by_name.items()
            ]
            actions = [
                tokenizer.decode(c.tokens, skip_special_tokens=True) for (c,) in engine.sample(requests, sampling)
            ]
            answers = self.envs.step(
                {name: Reply(action) for name, action in zip(observation_by_name, actions, strict=True)}
            )
            steps = {name: _step(answer) for name, answer in answers.items()}
            n_actions += len(steps)
            n_formed += sum(s.action_error != "malformed" for s in steps.values())
            n_succeeded += sum(bool(s.done and s.success) for s in steps.values())
            turn += 1
            observation_by_name = {
                name: _observation(s) for name, s in steps.items() if not s.done and turn < self.envs.max_turns
            }
        self.envs.finish(list(seeds))
        return n_succeeded / len(seeds), n_formed / n_actions

    def _joint_check(
        self, answers: Any, model: Any, tokenizer: Any, engine: TorchEngine, sampling: Sampling
    ) -> tuple[float, float]:
        """Return the shares of episodes that end in somebody's success, and of actions that are possible."""
        seeds, turn, n_succeeded, n_actions, n_formed = list(answers), 0, 0, 0, 0
        observations = {name: _observations_by_agent(answer) for name, answer in answers.items()}
        step_by_name = {name: _step(answer) for name, answer in answers.items()}
        while step_by_name and turn < self.envs.max_turns:
            speakers = [(name, agent) for name, step in step_by_name.items() for agent in step.info["acting"]]
            requests = [
                Request(
                    tuple(prompt_ids(model, tokenizer, observations[name][agent])),
                    (StreamKey(0, CHECK_STEP, f"{name}/{agent}", 0, turn=turn),),
                )
                for name, agent in speakers
            ]
            actions: dict[str, dict[str, str]] = {name: {} for name in step_by_name}
            for (name, agent), (sample,) in zip(speakers, engine.sample(requests, sampling), strict=True):
                actions[name][agent] = tokenizer.decode(sample.tokens, skip_special_tokens=True)
            moves = {name: Reply(json.dumps({"actions": texts})) for name, texts in actions.items()}
            step_by_name = {name: _step(answer) for name, answer in self.envs.step(moves).items()}
            n_actions += len(speakers)
            for name, step in step_by_name.items():
                n_formed += len(actions[name]) - sum(bool(x["action_error"]) for x in step.info["agents"].values())
                n_succeeded += bool(step.done and step.success)
                observations[name] |= {a: x["observation"] for a, x in step.info["agents"].items() if x["observation"]}
            step_by_name, turn = {name: step for name, step in step_by_name.items() if not step.done}, turn + 1
        self.envs.finish(seeds)
        return n_succeeded / len(seeds), n_formed / n_actions

    def close(self) -> None:
        """Close the environments."""
        self.world.close()


def _step(answer: TimeStep | EnvFailure) -> TimeStep:
    if isinstance(answer, EnvFailure):
        raise ModelError(f"the environment broke during the warm-up: {answer.message}")
    return answer


def _observations_by_agent(answer: TimeStep | EnvFailure) -> dict[str, str]:
    """Observation of each agent of a world of several; empty in a world of one."""
    return {agent: news["observation"] for agent, news in _step(answer).info.get("agents", {}).items()}


def _observation(answer: TimeStep | EnvFailure) -> Observation:
    return _step(answer).observation
