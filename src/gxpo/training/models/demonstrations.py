"""Demonstrations for the tiny model's warm-up on an environment: episodes of a noisy expert."""

from __future__ import annotations

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

CHECKING = -2  # the step of a check's streams
WORLDS = "gxpo_worlds"  # the package of the built-in worlds
EPISODES = 64  # demonstrations in the making at a time

Shown = str | Sequence[Message]  # an observation


def prompt_ids(model: Any, tokenizer: Any, prompt: Any) -> list[int]:
    """Token ids of a prompt, as a run's conversation begins."""
    if isinstance(prompt, str):
        return tokenizer(prompt).input_ids
    vision = vision_of(model)
    return list(PlainChat(tokenizer, None if vision is None else vision.ids).start(prompt).context)


class Demonstrations:
    """(observation, action) pairs from episodes on training instances.

    An action is the expert's with probability `expert`, up to step `errs_from` always, else one of those that are
    possible, each as likely. Every observation is a prompt of its own, as under `env.context=window`, `env.window=0`.
    """

    def __init__(
        self, task: str, options: Mapping[str, Any], expert: float, random: np.random.Generator, errs_from: int = 0
    ) -> None:
        self.world = worlds.make(task, seed=0, options=options, workers=0)
        envs, wanted = self.world.envs, ("expert", "legal") if expert < 1 else ("expert",)
        if envs is None or not {*wanted} <= {*envs.provides}:
            raise ModelError(f"the warm-up on {task!r} needs a world with {' and '.join(f'{x}()' for x in wanted)}")
        self.envs, self.expert, self.random, self.errs_from = envs, expert, random, errs_from
        self._running: dict[str, Shown] = {}  # episode -> what it shows
        self._begun = 0

    def files(self) -> list[Path]:
        """Source files on which the demonstrations depend."""
        episodes = Path(str(gxpo.environments.envs.__file__)).parent
        return sorted([*episodes.glob("*.py"), *(episodes.parents[1] / WORLDS).glob("*.py")])

    def examples(self, n: int, step: int) -> list[tuple[Shown, str]]:
        """The next `n` pairs."""
        pairs: list[tuple[Shown, str]] = []
        while len(pairs) < n:
            self._fill()
            chosen = self._actions(list(self._running), self.expert if step > self.errs_from else 1.0)
            pairs += [(self._running[name], action) for name, action in chosen.items()]
            answers = self.envs.step({name: Reply(action) for name, action in chosen.items()})
            self._running = {name: _shown(a) for name, a in answers.items() if not _step(a).done}
        return pairs[:n]

    def _actions(self, names: list[str], share: float) -> dict[str, str]:
        best = self.envs.expert(names)
        possible = self.envs.legal(names) if "legal" in self.envs.provides else {}
        chosen = {}
        for name in names:
            expert, legal = best[name], possible.get(name, [])
            if isinstance(expert, EnvFailure) or isinstance(legal, EnvFailure):
                raise ModelError(f"the environment broke during the warm-up: {self.envs.messages}")
            knows = expert is not None and self.random.random() < share
            if not (knows and expert):
                if not legal:
                    raise ModelError("the warm-up's expert knows no action, and the world has no legal() to draw from")
                expert = str(self.random.choice(legal))
            chosen[name] = expert
        return chosen

    def _fill(self) -> None:
        missing = EPISODES - len(self._running)
        if missing:
            begun = range(self._begun, self._begun + missing)
            seeds = {f"demonstration {i}": t.info["seed"] for i, t in zip(begun, self._tasks(missing), strict=True)}
            self._begun += missing
            self._running |= {name: _shown(a) for name, a in self.envs.reset(seeds).items()}

    def _tasks(self, n: int) -> list[Any]:
        return self.world.source.draw(n, self._begun)

    def check(self, model: Any, tokenizer: Any, tasks: int, max_new_tokens: int) -> tuple[float, float]:
        """Success rate of the sampled policy on held-out instances, and the share of its actions that were parsed."""
        engine, sampling = TorchEngine(model, tokenizer), Sampling(max_new_tokens=max_new_tokens)
        seeds = {task.id: task.info["seed"] for task in self.world.source.held_out(tasks)}
        running = {name: _shown(answer) for name, answer in self.envs.reset(seeds).items()}
        succeeded = acted = formed = turn = 0
        while running:
            requests = [
                Request(tuple(prompt_ids(model, tokenizer, shown)), (StreamKey(0, CHECKING, name, 0, turn=turn),))
                for name, shown in running.items()
            ]
            said = [tokenizer.decode(c.tokens, skip_special_tokens=True) for (c,) in engine.sample(requests, sampling)]
            answers = self.envs.step({name: Reply(action) for name, action in zip(running, said, strict=True)})
            steps = {name: _step(answer) for name, answer in answers.items()}
            acted += len(steps)
            formed += sum(s.action_error != "malformed" for s in steps.values())
            succeeded += sum(bool(s.done and s.success) for s in steps.values())
            turn += 1
            running = {name: _shown(s) for name, s in steps.items() if not s.done and turn < self.envs.max_turns}
        self.envs.finish(list(seeds))
        return succeeded / len(seeds), formed / acted

    def close(self) -> None:
        """Close the environments."""
        self.world.close()


def _step(answer: TimeStep | EnvFailure) -> TimeStep:
    if isinstance(answer, EnvFailure):
        raise ModelError(f"the environment broke during the warm-up: {answer.message}")
    return answer


def _shown(answer: TimeStep | EnvFailure) -> Shown:
    return _step(answer).observation
