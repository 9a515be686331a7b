"""Attempts of a team on the attempt machine: whatever asks a task again does so of a team, too."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

from gxpo.errors import ConfigError
from gxpo.forest import Forest
from gxpo.protocols import Completion, Request, Sampling, Session, StreamKey
from gxpo.rollouts.build import Attempts, Fork, dotted
from gxpo.rollouts.episodes import Play
from gxpo.rollouts.team import TeamPolicies, Walk


class TeamAttempt(Walk):
    """A way of the team through its graph that is one trajectory.

    plain  the same way under the task's own words, where others are hidden from training
    """

    failure = base = None

    def __init__(
        self, cast: TeamPolicies, asked: Attempts, key: StreamKey, label: str | None, session: Session
    ) -> None:
        worded = asked.task if asked.wording is None else asked.wording.of_task(asked.task)
        super().__init__(cast, worded, session)
        self.plain = Walk(cast, asked.task, session) if asked.hidden else None
        self.asked, self.key, self.group = asked, key, asked.group
        self.id = label or f"{asked.group}/{dotted(key)}"
        self.info: dict[str, Any] = dict(asked.info)
        self.turns: list[dict[str, Any]] = []
        self.names: list[str] = []  # of what the engine keeps

    def request(self) -> Request:
        """The next action; what a running context has in the engine is kept for its next turn."""
        assert self.role is not None
        keep = (f"{self.id}/{self.role.name}",) if self.role.running else ()
        self.names += keep
        key = dataclasses.replace(self.key, turn=self.calls)
        return Request(self.context, (key,), keep=keep, policy=self.cast.of(self.role))

    def act(self, completion: Completion) -> None:
        """The action is said, and written down under the words that are trained."""
        turn = self.turn(completion)
        if self.plain is not None:
            turn = self.plain.turn(completion) | {"sampled_under": list(self.context)}
            self.plain.take(completion)
        if self.asked.measured:
            turn["trainable"] = False
        self.turns.append(turn)
        self.take(completion)

    def record(self, sampling: dict[str, Any]) -> dict[str, Any]:
        """The line of `gxpo.rollouts/1`."""
        if not self.turns:  # not even the first context has room: the attempt is there, and counted
            self.role = self.cast.graph.roles[0]
            self.turns.append(self.turn(Completion([], [], "none")))
        line = self.line(self.id, self.group, self.turns, rounds=self.round, **self.info)
        measured = {"compared": False, "weight": 0.0} if self.asked.measured else {}
        return line | measured | {"origin": self.asked.origin, "sampling": sampling}


class TeamPlay(Play):
    """Attempts of a team, all of whose roles one policy speaks for."""

    def __init__(self, session: Session, cast: TeamPolicies) -> None:
        if session.envs is not None:
            raise ConfigError(
                "a team works on tasks that are prompts: give it such a task, or leave rollout.team out in a world"
            )
        super().__init__(session)
        self.cast = cast

    def __exit__(self, *_: object) -> None:
        attempts: list[Any] = list(self.episodes)
        self.session.release([name for attempt in attempts for name in attempt.names])

    def begin(self, asked: Iterable[Attempts | Fork]) -> list[Any]:
        own = [a for a in asked if isinstance(a, Attempts)]
        if any(a.policy != "main" for a in own):
            raise ConfigError("a team's attempts are all made by its own policy: set rollout.of=current")
        begun: list[Any] = [TeamAttempt(self.cast, a, key, name, self.session) for a, key, name, _ in self._each(own)]
        self.episodes += begun
        return begun

    def running(self, episodes: Sequence[Any]) -> list[Any]:
        return [attempt for attempt in episodes if not attempt.stops()]

    def turn(self, running: Sequence[Any], sampling: Sampling | None = None) -> None:
        ways: dict[Sampling | None, list[Any]] = {}
        for attempt in running:
            ways.setdefault(sampling or attempt.asked.sampling, []).append(attempt)
        for way, together in ways.items():
            requests = [attempt.request() for attempt in together]
            sampled = self.session.sample(requests) if way is None else self.session.sample(requests, way)
            for attempt, (completion,) in zip(together, sampled, strict=True):
                attempt.act(completion)

    def transcript(self, episode: Any) -> str:
        """The team's answer."""
        return episode.answer

    def forest(self, episodes: Sequence[Any] | None = None) -> Forest:
        """These attempts, scored by the team's answer."""
        chosen: list[Any] = list(self.episodes if episodes is None else episodes)
        forest = Forest.from_records([e.record(dataclasses.asdict(self._read(e))) for e in chosen])
        return self.session.score(forest, [e.answer for e in chosen])
