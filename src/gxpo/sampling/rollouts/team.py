"""Multi-agent rollouts: attempts of a team at a task, in which roles speak in turn under contexts of their own."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from gxpo.base import media
from gxpo.base.errors import ConfigError, GxpoError, did_you_mean
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Completion, ContextUpdate, EpisodeRules, Request, Sampling, Session, StreamKey, Task
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.build import Attempts, Count, RolloutPart, action, dotted, record
from gxpo.sampling.rollouts.context import Context, marked
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.fork import Fork
from gxpo.sampling.rollouts.graph import SHARED, TASK, Graph, Role, Said, filled, graph


@dataclass(frozen=True)
class TeamPolicies:
    """Which policy speaks for which role.

    policy  "shared": one policy, SHARED, for all roles that are trained; "per_role": one for each, of the role's name
    frozen  roles that are not trained; each is a policy of its own name, which stays the model that the run starts from
    """

    graph: Graph
    policy: str
    frozen: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in self.frozen:
            if name not in self.graph.names:
                raise ConfigError(
                    f"rollout.frozen: the team has no role {name!r}{did_you_mean(name, self.graph.names)}; it has "
                    f"{', '.join(self.graph.names)}"
                )
        if set(self.graph.names) <= set(self.frozen):
            raise ConfigError("rollout.frozen names every role of the team: leave one to be trained")

    def of(self, role: Role) -> str:
        """The policy that speaks for a role."""
        return SHARED if self.policy == "shared" and role.name not in self.frozen else role.name

    @property
    def policies(self) -> dict[str, str]:
        """Policy name -> "trained" or "frozen", those that are trained first."""
        named = {self.of(role): "frozen" if role.name in self.frozen else "trained" for role in self.graph.roles}
        return dict(sorted(named.items(), key=lambda item: item[1] != "trained"))


class Walk:
    """One way through the team's graph, as far as it has come.

    role     who speaks next; None: the team is done
    read     what it is told, and `opening` the same as token ids
    said     the newest text of each role, and the task's
    answer   the team's, as it stands
    round    from 1; `calls` counts the actions so far
    cut      a context or an action was too long
    """

    def __init__(self, cast: TeamPolicies, task: Task, session: Session) -> None:
        self.cast, self.task, self.session = cast, task, session
        prompt = task.prompt
        if not isinstance(prompt, str):
            messages = [m for m in prompt if not isinstance(m, int)]
            if len(messages) < len(prompt):
                raise ConfigError(
                    f"a team reads its tasks as texts, and task {task.id!r} is token ids: give it as text"
                )
            prompt = marked(messages)
        self.said: dict[str, str] = {TASK: prompt, **dict.fromkeys(cast.graph.names, "")}
        self.answer, self.round, self.calls = "", 1, 0
        self.cut = False
        self.role: Role | None = cast.graph.roles[0]
        self._spoken: set[str] = set()
        self._running: dict[str, Context] = {}
        self.opening = self._open(self.role)

    def _open(self, role: Role) -> ContextUpdate:
        again = role.again if role.name in self._spoken else None
        self.read = filled(role.prompt if again is None else again, self.said)
        if not role.running:
            return ContextUpdate(self.session.encode(dataclasses.replace(self.task, prompt=self.read)), rebuilt=True)
        if role.name in self._running:
            return self._running[role.name].observe(self.read)
        context = Context(self.session.chat, EpisodeRules(), "", (), self.session.system)
        self._running[role.name] = context
        return context.open(self.read)

    @property
    def context(self) -> tuple[int, ...]:
        """What the next action is sampled under."""
        assert self.role is not None
        return self._running[self.role.name].ids if self.role.running else self.opening.ids

    def heard(self, completion: Completion) -> dict[str, str]:
        """What would have been said with this action."""
        assert self.role is not None
        return {**self.said, self.role.name: self.session.decode(completion.tokens)}

    def answered(self, said: Said) -> str:
        """What the team's answer would be with that."""
        assert self.role is not None
        return self.answer if self.role.answer is None else filled(self.role.answer, said)

    def turn(self, completion: Completion, *, whole: bool = False) -> dict[str, Any]:
        """The action as a turn of a record; `whole`: with all of its context, whatever stood before."""
        role = self.role
        assert role is not None
        where = {"context": list(self.context)} if whole or self.opening.rebuilt else {}
        return {
            "agent": role.name,
            "policy": self.cast.of(role),
            "state": f"{role.name}:{hashlib.blake2b(repr(self.context).encode(), digest_size=8).hexdigest()}",
            **(where or {"observation": list(self.opening.ids)}),
            "observation_text": media.text_of(self.read),
            "trainable": role.name not in self.cast.frozen,
            "info": {"round": self.round},
            **action(completion),
        }

    def line(
        self,
        name: str,
        group: str,
        turns: Sequence[Mapping[str, Any]],
        fork: Mapping[str, Any] | None = None,
        **info: Any,
    ) -> dict[str, Any]:
        """The walk as a line of `gxpo.rollouts/1`: all its turns, or those after a fork."""
        where: dict[str, Any] = {"fork": fork, "prompt_text": None, "turns": turns}
        if fork is None:
            first, *rest = turns
            where = {"prompt": first["context"], "prompt_text": first["observation_text"]}
            where["turns"] = [{k: v for k, v in first.items() if k != "context"}, *rest]
        cases = self.cast.graph.cases
        held = {} if cases is None else {"cases": [filled(case, self.said) for case in cases]}
        info = {"answer": self.answer, **held, **info}
        return record(self.task, group, name, self.session.sampling, truncated=self.cut, info=info, **where)

    def take(self, completion: Completion) -> None:
        """The action is said, and it is the next one's turn."""
        role, said = self.role, self.heard(completion)
        assert role is not None
        self.answer = self.answered(said)
        self.said, self.calls = said, self.calls + 1
        self.cut |= completion.finish == "length"
        self._spoken.add(role.name)
        if role.running:
            self._running[role.name].act(completion.tokens)
        self.role, self.round = self.cast.graph.after(role, said, self.round)
        if self.role is not None:
            self.opening = self._open(self.role)

    def stops(self) -> bool:
        """Ends the walk where the context leaves no room for an action; says whether the team is done."""
        room = self.session.episode.max_context - self.session.sampling.max_new_tokens
        if self.role is not None and len(self.context) > room:
            self.role, self.cut = None, True
        return self.role is None


class TeamAttempt(Walk):
    """A way of the team through its graph that is one trajectory.

    plain  the same way under the task's own words, where others are hidden from training
    """

    failure = base = None

    def __init__(
        self, cast: TeamPolicies, asked: Attempts, key: StreamKey, label: str | None, name: str, session: Session
    ) -> None:
        worded = asked.task if asked.wording is None else asked.wording.of_task(asked.task)
        super().__init__(cast, worded, session)
        self.plain = Walk(cast, asked.task, session) if asked.hidden else None
        self.asked, self.key, self.group = asked, key, asked.group
        self.id, self.name = label or f"{asked.group}/{dotted(key)}", name
        self.info: dict[str, Any] = dict(asked.info)
        self.turns: list[dict[str, Any]] = []
        self.names: list[str] = []  # of what the engine keeps

    def request(self) -> Request:
        """The next action; what a running context has in the engine is kept for its next turn."""
        assert self.role is not None
        keep = (f"{self.name}/{self.role.name}",) if self.role.running else ()
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
    """Attempts of a team, under way together."""

    def __init__(self, session: Session, cast: TeamPolicies) -> None:
        super().__init__(session)
        self.cast = cast

    def __exit__(self, *_: object) -> None:
        attempts: list[Any] = list(self.episodes)
        self.session.release([name for attempt in attempts for name in attempt.names])

    def begin(self, asked: Iterable[Attempts | Fork]) -> list[Any]:
        requests = list(asked)
        own = [a for a in requests if isinstance(a, Attempts)]
        if len(own) < len(requests):
            raise GxpoError("attempts of a team can't be forked: begin others, draw.attempts(n, first=...)")
        begun: list[Any] = [TeamAttempt(self.cast, *each, self.session) for each in self._each(own)]
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


class Teamwork(RolloutPart):
    """Base of team rollouts: the roles and their policies, the length and the evaluation of a team's attempts."""

    graph: str | Graph
    policy: Literal["shared", "per_role"]
    frozen: list[str]

    provides = ("states",)
    single_turn = True

    def __post_init__(self) -> None:
        _ = self.cast  # whatever is wrong with the team is found here

    @cached_property
    def cast(self) -> TeamPolicies:
        return TeamPolicies(graph(self.graph), self.policy, tuple(self.frozen))

    @property
    def policies(self) -> dict[str, str]:
        """Policy name -> "trained" or "frozen"."""
        return self.cast.policies

    @property
    def max_turns(self) -> int:
        """The most actions that a trajectory can have."""
        return self.calls

    @property
    def calls(self) -> int:
        """The most actions that are sampled for each of `group_size`."""
        return self.cast.graph.longest

    def evaluation(self, samples: int) -> Team:
        """Held-out tasks are attempted by the team, one sample a turn."""
        return Team(samples, self.graph, self.policy, self.frozen)


@part("team", stage="rollout")
@dataclass(frozen=True)
class Team(Teamwork):
    """`group_size` attempts of a team at each task: the group is "s{step}/{task}", scored by the team's answer.

    graph       a team: "solver_verifier", "second_opinion", or FILE.py:NAME (see `gxpo.sampling.rollouts.graph`)
    policy      "shared": one policy speaks for all roles; "per_role": each role trains an adapter of its own
    frozen      roles that stay the model the run starts from: their tokens are sampled and not trained

    An attempt is one trajectory. Each turn has its agent, its policy and its own context (or goes on in the agent's
    running one); `previous` goes through all agents in the order in which they spoke. The state acted in is the
    context, so equal contexts of one role in a group are one anchor state. A turn is sampled under the stream (seed,
    step, draw, attempt, turn). An attempt whose next context would leave no room for an action ends there, with the
    answer that it has, and is truncated; so is one with an action that was cut.
    """

    group_size: Count = 8
    graph: str | Graph = "solver_verifier"
    policy: Literal["shared", "per_role"] = "shared"
    frozen: list[str] = field(default_factory=list)

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        with TeamPlay(session, self.cast) as play:
            play.finish(play.begin([draw.attempts(self.group_size) for draw in play.draws(tasks)]))
            return play.forest()
