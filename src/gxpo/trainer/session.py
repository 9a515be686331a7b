"""What a rollout part may do while it grows groups: draw, sample, score; everything generated is charged."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch

from gxpo import runtime
from gxpo.chat import PlainChat
from gxpo.chat.plain import Tokens
from gxpo.errors import TaskError
from gxpo.forest import Forest
from gxpo.protocols import (
    Budget,
    Chat,
    Completion,
    Engine,
    Envs,
    EpisodeRules,
    Message,
    Request,
    Sampling,
    Task,
    TaskSource,
)
from gxpo.rollouts.again import reworded
from gxpo.rollouts.context import with_system
from gxpo.segments import Segmenter, SegmentTools
from gxpo.tasks.source import solution_of


def decoder(tokenizer: Any) -> Callable[[Sequence[int]], str]:
    """Ids to text, special tokens and steps that are no vocabulary id left out."""
    return lambda tokens: tokenizer.decode([t for t in tokens if t >= 0], skip_special_tokens=True)


class Session:
    """The stages as one step of the trainer sees them."""

    def __init__(
        self,
        *,
        source: TaskSource,
        engine: Engine,
        rewards: Any,
        tokenizer: Any,
        sampling: Sampling,
        seed: int,
        step: int,
        budget: Budget | None = None,
        chat: Chat | None = None,
        system: str | None = None,
        envs: Envs | None = None,
        episode: EpisodeRules | None = None,
        segmenter: Segmenter | None = None,
        learner: Any = None,
    ) -> None:
        """See `protocols.Session`. Without `chat` prompts are encoded as they are. `learner`: the policy, where the
        segmenter asks for its entropies."""
        self.source, self.engine, self.rewards, self.tokenizer = source, engine, rewards, tokenizer
        self.seed, self.step, self.system, self.envs = seed, step, system, envs
        self.chat: Chat = PlainChat(tokenizer) if chat is None else chat
        self.sampling = replace(sampling, stop_ids=tuple(dict.fromkeys((*sampling.stop_ids, *self.chat.stop_ids))))
        self.episode = episode or EpisodeRules()
        self.budget = budget if budget is not None else Budget()
        self._segmenter, self._learner = segmenter, learner
        self._drawn: list[Task] = []
        self._tasks: dict[str, Task] = {}
        self._scored: set[str] = set()

    def draw(self, n: int) -> list[Task]:
        """The next `n` tasks of this step; asking again goes on where the last call ended."""
        begin = len(self._drawn)
        self._drawn = self.source.draw(begin + n, self.step)
        fresh = self._drawn[begin:]
        self.know(fresh)
        return fresh

    @property
    def known(self) -> Mapping[str, Task]:
        """The tasks of this step by id: what was drawn, and what `know` was told."""
        return self._tasks

    def know(self, tasks: Sequence[Task]) -> None:
        """Remember tasks, so that rollouts of them can be scored."""
        self._tasks |= {t.id: t for t in tasks}

    def encode(self, task: Task) -> tuple[int, ...]:
        """The prompt's token ids: a text is a message of the user's; ids are left as they are."""
        prompt = task.prompt
        if not isinstance(prompt, str) and (not prompt or isinstance(prompt[0], int)):
            return cast("tuple[int, ...]", prompt)
        said = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else cast("tuple[Message, ...]", prompt)
        if self.system is not None:
            said = with_system(self.chat, self.system, said)
        return tuple(self.chat.start(said).context)

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of token ids, special tokens left out."""
        return decoder(self.tokenizer)(tokens)

    @cached_property
    def _tokens(self) -> Tokens:
        return getattr(self.chat, "tokens", None) or Tokens(self.tokenizer)

    def tokenize(self, text: str, *, markup: bool = False) -> tuple[int, ...]:
        """Ids of a text as it stands, without a template. The names of special tokens in it stay text, unless `markup`:
        for texts of the configuration, such as what ends a thinking."""
        return self._tokens.encode(text if markup else self._tokens.typed(text))

    def solution(self, task: Task) -> str | None:
        """A worked solution: the task's own `info["solution"]`, or what its source can write."""
        return solution_of(self.source, task)

    def answers(self, forest: Forest) -> list[str | None]:
        """The right answer to each trajectory's task as a text: the task's own, or what its source knows of it."""
        known = getattr(self.source, "answer", lambda task: None)
        found: dict[str, str | None] = {}
        for name in dict.fromkeys(forest.task):
            task = self._tasks.get(name)
            answer = None if task is None else known(task) if task.answer is None else task.answer
            found[name] = None if answer is None else str(answer)
        return [found[name] for name in forest.task]

    def asked(self, task: str, template: str, said: Mapping[str, str]) -> tuple[int, ...] | None:
        """Token ids of this step's task, asked in other words (`again.reworded`); None where that can't be done: an
        episode, a task that is not known, a prompt that is neither a text nor a chat with a text of the user's."""
        found = None if self.envs is not None else self._tasks.get(task)
        try:
            return None if found is None else self.encode(reworded(found, template, **said))
        except TaskError:
            return None

    def sample(self, requests: Sequence[Request], sampling: Sampling | None = None) -> list[list[Completion]]:
        """Completions of each request, in order; under several processes each samples its share."""
        sampling = self.sampling if sampling is None else sampling
        rank, world = runtime.rank(), runtime.world()
        # what an engine keeps for an episode is of use only where its next turn is sampled, too
        place = [zlib.crc32(r.keep[0].encode()) % world if r.keep else i % world for i, r in enumerate(requests)]
        mine = self.engine.sample([r for r, p in zip(requests, place, strict=True) if p == rank], sampling)
        if world == 1:
            out = mine
        else:
            shares = [iter(_unpack(blob)) for blob in runtime.gather(_pack(mine))]
            out = [next(shares[p]) for p in place]
        self.budget.generated_tokens += sum(len(c.tokens) for group in out for c in group)
        self.budget.rollouts += sum(stream.turn == 0 for request in requests for stream in request.streams)
        return out

    def release(self, names: Sequence[str]) -> None:
        """The engine may forget what it kept under these names."""
        self.engine.release(names)

    def texts(self, forest: Forest) -> list[str]:
        """What each trajectory's actions say."""
        entries = forest.path_trajectory.tolist()
        tokens: list[list[int]] = [[] for _ in range(forest.n_trajectories)]
        for r, token in zip(entries, forest.token[forest.path_token].tolist(), strict=True):
            tokens[r].append(token)
        return [self.decode(t) for t in tokens]

    def segment(self, forest: Forest) -> Forest:
        """The forest cut into the method's segments; as it is where there is no segmenter, or where it has segments."""
        if self._segmenter is None or bool((forest.segment >= 0).any()):
            return forest
        return self._segmenter(forest, SegmentTools(self.decode, self._learner))

    def score(self, forest: Forest, texts: Sequence[str] | None = None) -> Forest:
        """The forest with outcomes, components and success.

        A trajectory that brings a finite outcome, or was scored before in this step, keeps what it has. `texts` are
        judged in the place of all that was said.
        """
        fresh = torch.tensor([i not in self._scored for i in forest.id], dtype=torch.bool) & ~forest.scored
        self._scored |= set(forest.id)
        if not bool(fresh.any()):
            return forest
        rows = fresh.nonzero().squeeze(1)
        new = forest.select(rows)
        said: list[str] = self.texts(new) if texts is None else [texts[int(r)] for r in rows]
        scored = self._score(new, said)
        return scored if len(rows) == forest.n_trajectories else _merged(forest, rows, scored)

    def _score(self, forest: Forest, texts: Sequence[str]) -> Forest:
        """All trajectories scored, by the first process for all of them."""
        blob: dict[str, Any] = {}
        if runtime.rank() == 0:
            scored = self.rewards.score(forest, texts, [self._tasks[t] for t in forest.task])
            broken = torch.tensor(["failure" in info for info in forest.info], dtype=torch.bool)
            scored = scored.replace(outcome=scored.outcome.masked_fill(broken, torch.nan))
            if runtime.world() == 1:
                return scored
            blob = {
                "names": scored.component_names,
                "outcome": scored.outcome.tolist(),
                "components": scored.components.tolist(),
                "success": scored.success.tolist(),
            }
        blob = json.loads(runtime.gather(json.dumps(blob).encode())[0])
        block = torch.tensor(blob["components"], dtype=torch.float64).reshape(forest.n_trajectories, -1)
        return forest.with_rewards(
            torch.tensor(blob["outcome"], dtype=torch.float64),
            components={k: block[:, i] for i, k in enumerate(blob["names"])},
            success=torch.tensor(blob["success"], dtype=torch.float64),
        )


def _merged(forest: Forest, rows: torch.Tensor, scored: Forest) -> Forest:
    """The forest with the scores of `scored` in these rows; a component that a row has not is nan there."""
    columns = {}
    for name in dict.fromkeys((*forest.component_names, *scored.component_names)):
        columns[name] = torch.full((forest.n_trajectories,), torch.nan, dtype=torch.float64)
        if name in forest.component_names:
            columns[name] = forest.components[:, forest.component_names.index(name)].clone()
        if name in scored.component_names:
            columns[name][rows] = scored.components[:, scored.component_names.index(name)]
    return forest.with_rewards(
        forest.outcome.index_copy(0, rows, scored.outcome),
        components=columns,
        success=forest.success.index_copy(0, rows, scored.success),
    )


def _pack(groups: list[list[Completion]]) -> bytes:
    """Completions as JSON, floats exactly."""
    return json.dumps([[asdict(c) for c in group] for group in groups], default=_listed).encode()


def _listed(array: Any) -> dict[str, Any]:
    array = np.asarray(array)
    return {"dtype": str(array.dtype), "shape": array.shape, "values": array.reshape(-1).tolist()}


def _unpack(blob: bytes) -> list[list[Completion]]:
    def array(found: dict[str, Any]) -> Any:
        if set(found) != {"dtype", "shape", "values"}:
            return found
        return np.asarray(found["values"], dtype=found["dtype"]).reshape(found["shape"])

    return [[Completion(**row) for row in group] for group in json.loads(blob, object_hook=array)]
