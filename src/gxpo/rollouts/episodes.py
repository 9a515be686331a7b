"""Episodes in an environment: many at once, a turn of all of them at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gxpo.forest import Forest
from gxpo.protocols import Completion, EnvFailure, Opening, Reply, Request, Session, StreamKey, Task, TimeStep
from gxpo.rollouts.context import Context, text_of

AGENT = "agent"
LIMITS = ("turns", "context")  # ends of an episode that was cut


@dataclass
class Episode:
    """One attempt, as a record in the making. `end`: how it ended, None as long as it goes on.

    "done"               by itself
    "truncated"          by a limit of the environment
    "turns", "context"   by `EpisodeRules.max_turns` or `max_context`
    "raised", "nonsense", "timeout", "died"   the environment broke: the attempt stays unscored
    """

    name: str
    task: Task
    group: str
    key: StreamKey
    context: Context
    opening: Opening
    said: TimeStep  # the newest of the environment
    turns: list[dict[str, Any]] = field(default_factory=list)
    moves: int = 0  # turns without summaries
    end: str | None = None
    failure: str | None = None

    def request(self) -> Request:
        """The next action: a stream of its own for every turn."""
        key = dataclasses.replace(self.key, turn=len(self.turns))
        return Request(self.context.ids, (key,), keep=(self.name,))

    def act(self, completion: Completion) -> Reply:
        """Take the action in, as the newest turn."""
        where = {"context" if self.opening.rebuilt else "observation": list(self.opening.ids)}
        said = self.context.observation
        self.turns.append(
            {
                "agent": AGENT,
                **where,
                "action": completion.tokens,
                "logprob": completion.logprobs,
                "finish": completion.finish,
                "policy_version": completion.policy_version,
                "observation_text": text_of(said),
                "state": None if self.context.summarising else self.said.state,
                "extras": {} if completion.support is None else {"support": torch.as_tensor(completion.support)},
            }
        )
        if self.context.summarising:
            self.turns[-1]["info"] = {"summary": True}
        else:
            self.moves += 1
        return self.context.act(completion.tokens)

    def step(self, answer: TimeStep | EnvFailure, max_turns: int) -> None:
        """What the environment made of the newest action."""
        turn = self.turns[-1]
        if isinstance(answer, EnvFailure):
            self.end, self.failure = answer.kind, answer.message
            return
        self.said = answer
        turn["reward"] = answer.reward
        if answer.action_error:
            turn["info"] = {"action_error": answer.action_error}
        if answer.done:
            self.end = "truncated" if answer.truncated else "done"
        elif self.moves >= max_turns:
            self.end = "turns"
        else:
            self.opening = self.context.observe(answer.observation)

    @property
    def success(self) -> bool | None:
        """The verdict of the environment; an attempt that a limit cut has failed."""
        if self.failure is not None:
            return None
        if self.end in LIMITS or (self.end == "truncated" and self.said.success is None):
            return False
        return self.said.success

    @property
    def paid(self) -> float | None:
        """The sum of the step rewards; where there are none, the verdict; None where the environment broke."""
        if self.failure is not None:
            return None
        rewards = [t["reward"] for t in self.turns if t.get("reward") is not None]
        if rewards:
            return float(sum(rewards))
        return None if self.success is None else float(self.success)

    def record(self, sampling: dict[str, Any]) -> dict[str, Any]:
        """The line of `gxpo.rollouts/1`."""
        kept = self.context.kept + getattr(self.context.conversation, "kept_against_template", 0)
        info = {"end": self.end, "moves": self.moves, "rewritten": self.context.rewritten, "kept": kept}
        if self.failure is not None:
            info["failure"] = self.failure
        first, *rest = self.turns
        return {
            "schema": "gxpo.rollouts/1",
            "task": self.task.id,
            "group": self.group,
            "id": f"{self.group}/{self.key.attempt}",
            "prompt": first["context"],
            "turns": [{k: v for k, v in first.items() if k != "context"}, *rest],
            "reward": None,
            "rewards": {"env": self.paid},
            "success": self.success,
            "truncated": self.end in (*LIMITS, "truncated"),
            "sampling": sampling,
            "final_state": self.said.state,
            "info": info,
        }


def play(tasks: Sequence[Task], draws: Sequence[str], group_size: int, session: Session) -> Forest:
    """`group_size` episodes of each task, not scored: component "env" holds what the environment paid.

    A turn of an episode is sampled under the stream (seed, step, draw, attempt, turn). Episodes whose environment broke
    before their first action have an empty action, so that each attempt is there and counted.
    """
    envs, rules = session.envs, session.episode
    assert envs is not None
    episodes: list[Episode] = []
    started = envs.reset(
        {f"{draw}/{i}": t.info["seed"] for t, draw in zip(tasks, draws, strict=True) for i in range(group_size)}
    )
    for task, draw in zip(tasks, draws, strict=True):
        for i in range(group_size):
            name, key = f"{draw}/{i}", StreamKey(session.seed, session.step, draw, i)
            context = Context(session.chat, rules, envs.instructions, envs.tools, session.system)
            answer = started[name]
            broken = isinstance(answer, EnvFailure)
            said = TimeStep("") if isinstance(answer, EnvFailure) else answer
            episode = Episode(name, task, f"s{session.step}/{draw}", key, context, context.open(said.observation), said)
            if broken:
                episode.act(Completion([], [], "none"))
                episode.step(answer, rules.max_turns)
            episodes.append(episode)
    try:
        while running := _ready(episodes, session):
            _turn(running, session)
    finally:
        session.release([e.name for e in episodes])
        envs.finish([e.name for e in episodes if e.failure is None])
    sampling = dataclasses.asdict(session.sampling)
    return Forest.from_records([e.record(sampling) for e in episodes])


def _ready(episodes: Sequence[Episode], session: Session) -> list[Episode]:
    """Those that go on; one whose context leaves no room for an action ends here."""
    running = []
    for episode in episodes:
        if episode.end is None and len(episode.context.ids) + session.sampling.max_new_tokens > (
            session.episode.max_context
        ):
            episode.end = "context"
            if not episode.turns:
                episode.act(Completion([], [], "none"))
        if episode.end is None:
            running.append(episode)
    return running


def _turn(running: Sequence[Episode], session: Session) -> None:
    """An action of every episode, then what the environments make of them."""
    assert session.envs is not None
    moves: dict[str, Reply] = {}
    for episode, (completion,) in zip(running, session.sample([e.request() for e in running]), strict=True):
        summary = episode.context.summarising
        reply = episode.act(completion)
        if summary:
            episode.opening = episode.context.summarised(reply.content)
        else:
            moves[episode.name] = reply
    answers = session.envs.step(moves) if moves else {}
    for episode in running:
        if episode.name in answers:
            episode.step(answers[episode.name], session.episode.max_turns)
