"""Episodes in an environment: many at once, a turn of all of them at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gxpo.errors import GxpoError
from gxpo.forest import Forest
from gxpo.protocols import (
    Completion,
    EnvFailure,
    Opening,
    Reply,
    Request,
    Sampling,
    Session,
    StreamKey,
    Task,
    TimeStep,
)
from gxpo.rollouts.context import Context, text_of

AGENT = "agent"
LIMITS = ("turns", "context")  # ends of an episode that was cut


@dataclass(frozen=True)
class Standing:
    """Where an episode stood before one of its actions; `snapshot` of its environment, where one was taken."""

    context: Context
    opening: Opening
    said: TimeStep
    moves: int
    snapshot: str | None


@dataclass(eq=False)
class Episode:
    """One attempt, as a record in the making. `end`: how it ended, None as long as it goes on.

    "done"               by itself
    "truncated"          by a limit of the environment
    "turns", "context"   by `EpisodeRules.max_turns` or `max_context`
    "raised", "nonsense", "timeout", "died"   the environment broke: the attempt stays unscored

    A fork goes on from `base`, whose first `inherited` turns it has as its own first ones.
    """

    name: str
    task: Task
    group: str
    key: StreamKey
    context: Context
    opening: Opening
    said: TimeStep  # the newest of the environment
    turns: list[dict[str, Any]] = field(default_factory=list)  # inherited ones included
    moves: int = 0  # turns without summaries
    end: str | None = None
    failure: str | None = None
    replies: list[Reply | None] = field(default_factory=list)  # what the environment was given in each; None: nothing
    stood: list[Standing] = field(default_factory=list)  # before each turn, where forks are wanted
    about: Mapping[str, Any] = field(default_factory=dict)  # what the environment says of the instance
    base: Episode | None = None
    inherited: int = 0

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
        summary = self.context.summarising
        if summary:
            self.turns[-1]["info"] = {"summary": True}
        else:
            self.moves += 1
        reply = self.context.act(completion.tokens)
        self.replies.append(None if summary else reply)
        return reply

    def step(self, answer: TimeStep | EnvFailure, max_turns: int) -> None:
        """What the environment made of the newest action."""
        turn = self.turns[-1]
        if isinstance(answer, EnvFailure):
            self.end, self.failure = answer.kind, answer.message
            return
        self.said = answer
        turn["reward"] = answer.reward
        if known := {**answer.info, **({"action_error": answer.action_error} if answer.action_error else {})}:
            turn["info"] = known
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

    @property
    def id(self) -> str:
        """ "GROUP/ATTEMPT", with the path of its stream behind: "GROUP/3.0.1"."""
        return f"{self.group}/{'.'.join(map(str, (self.key.attempt, *self.key.path)))}"

    def record(self, sampling: dict[str, Any]) -> dict[str, Any]:
        """The line of `gxpo.rollouts/1`; a fork's comes after its base's."""
        kept = self.context.kept + getattr(self.context.conversation, "kept_against_template", 0)
        info = {**self.about, "end": self.end, "moves": self.moves, "rewritten": self.context.rewritten, "kept": kept}
        if self.failure is not None:
            info["failure"] = self.failure
        first, *rest = self.turns[self.inherited :]
        begin: dict[str, Any] = {"turns": [first, *rest]}
        if self.base is None or not self.inherited:
            begin = {"prompt": first["context"], "turns": [{k: v for k, v in first.items() if k != "context"}, *rest]}
        else:
            begin["fork"] = {"of": self.base.id, "turn": self.inherited - 1, "token": None}
        return {
            "schema": "gxpo.rollouts/1",
            "task": self.task.id,
            "group": self.group,
            "id": self.id,
            **begin,
            "reward": None,
            "rewards": {"env": self.paid},
            "success": self.success,
            "truncated": self.end in (*LIMITS, "truncated"),
            "sampling": sampling,
            "final_state": self.said.state,
            "info": info,
        }


Fork = tuple[Episode, int, StreamKey, str]  # of whom, before which of its turns; the fork's stream and name


class Play:
    """Episodes of one step of a run, under way together: a turn of many at a time, and forks that leave them.

    restorable  forks are wanted: where each episode stood before each of its turns is kept

    A turn is sampled under the stream (seed, step, draw, attempt, path, turn), so nothing depends on who else plays.
    Used as a context manager: what is still under way at the end is given up.
    """

    def __init__(self, session: Session, *, restorable: bool = False) -> None:
        assert session.envs is not None
        self.session, self.envs, self.rules, self.restorable = session, session.envs, session.episode, restorable
        self.episodes: list[Episode] = []  # all that were begun; a fork after its base
        self._snapshots = restorable and "snapshots" in self.envs.provides

    def __enter__(self) -> Play:
        return self

    def __exit__(self, *_: object) -> None:
        self.session.release([e.name for e in self.episodes])
        self.envs.finish([e.name for e in self.episodes if e.failure is None])

    # ------------------------------------------------------------ beginning
    def start(self, tasks: Sequence[Task], draws: Sequence[str], group_size: int) -> list[Episode]:
        """`group_size` episodes of each task: attempt i of a draw is called "DRAW/i".

        Those whose environment broke have an empty action, so that each attempt is there and counted.
        """
        pairs = [(task, draw, i) for task, draw in zip(tasks, draws, strict=True) for i in range(group_size)]
        started = self.envs.reset({f"{draw}/{i}": task.info["seed"] for task, draw, i in pairs})
        begun = []
        for task, draw, i in pairs:
            key = StreamKey(self.session.seed, self.session.step, draw, i)
            answer = started[f"{draw}/{i}"]
            context = Context(
                self.session.chat, self.rules, self.envs.instructions, self.envs.tools, self.session.system
            )
            said = TimeStep("") if isinstance(answer, EnvFailure) else answer
            group, opening = f"s{self.session.step}/{draw}", context.open(said.observation)
            episode = Episode(f"{draw}/{i}", task, group, key, context, opening, said, about=said.info)
            if isinstance(answer, EnvFailure):
                self._broken(episode, answer)
            begun.append(episode)
        self.episodes += begun
        return begun

    def fork(self, forks: Sequence[Fork]) -> list[Episode]:
        """New episodes that stand where another stood before one of its turns (from 0, inherited ones counted).

        The environment is restored from a snapshot, or, where it has none, its seed and actions are gone through again:
        GxpoError where that leads elsewhere. A fork before an episode's next turn goes on beside it.
        """
        if not self.restorable:
            raise GxpoError("episodes of Play(session) keep nothing to fork from: use Play(session, restorable=True)")
        current = self._standing([e for e, turn, _, _ in forks if turn == len(e.turns)])
        begun = []
        for base, turn, key, name in forks:
            at = base.stood[turn] if turn < len(base.turns) else current[base.name]
            twin = Episode(name, base.task, base.group, key, at.context.copy(), at.opening, at.said)
            twin.turns, twin.replies, twin.stood = base.turns[:turn], base.replies[:turn], base.stood[:turn]
            twin.moves, twin.about, twin.base, twin.inherited = at.moves, base.about, base, turn
            begun.append((twin, at))
        self._restore(begun)
        self.session.budget.rollouts += sum(twin.inherited > 0 for twin, _ in begun)  # others are counted when sampled
        self.episodes += [twin for twin, _ in begun]
        return [twin for twin, _ in begun]

    def _standing(self, episodes: Sequence[Episode]) -> dict[str, Standing]:
        """Where these running episodes stand now."""
        names = [e.name for e in dict.fromkeys(episodes)]
        taken = self.envs.snapshot(names) if self._snapshots and names else {}
        for name, text in taken.items():
            if isinstance(text, EnvFailure):
                raise GxpoError(f"environment {self.envs.name}: no snapshot of episode {name}: {text.message}")
        return {
            e.name: Standing(e.context.copy(), e.opening, e.said, e.moves, taken.get(e.name))  # type: ignore[arg-type]  # failures were raised
            for e in episodes
        }

    def _restore(self, forks: Sequence[tuple[Episode, Standing]]) -> None:
        if not forks:
            return
        if self._snapshots:
            found = self.envs.restore({twin.name: at.snapshot or "" for twin, at in forks})
            for twin, _ in forks:
                if (failure := found[twin.name]) is not None:
                    self._broken(twin, failure)
            return
        answers = self.envs.reset({twin.name: twin.task.info["seed"] for twin, _ in forks})
        moves = {twin.name: [r for r in twin.replies if r is not None] for twin, _ in forks}
        for number in range(max(map(len, moves.values()))):
            acting = {n: own[number] for n, own in moves.items() if number < len(own)}
            alive = {n: reply for n, reply in acting.items() if not isinstance(answers[n], EnvFailure)}
            answers |= self.envs.step(alive) if alive else {}
        for twin, at in forks:
            answer = answers[twin.name]
            if isinstance(answer, EnvFailure):
                self._broken(twin, answer)
            elif (answer.observation, answer.state) != (at.said.observation, at.said.state):
                raise GxpoError(
                    f"environment {self.envs.name} can't be restarted: the same seed ({twin.task.info['seed']}) and "
                    f"{len(moves[twin.name])} actions led to another state; give it snapshot() and restore()"
                )

    def _broken(self, episode: Episode, failure: EnvFailure) -> None:
        """An episode whose environment broke before its first action of its own: an empty one stands for it."""
        episode.act(Completion([], [], "none"))
        episode.step(failure, self.rules.max_turns)

    # ------------------------------------------------------------ playing
    def running(self, episodes: Sequence[Episode]) -> list[Episode]:
        """Those that go on; one whose context leaves no room for an action ends here."""
        running = []
        for episode in episodes:
            room = self.rules.max_context - len(episode.context.ids)
            if episode.end is None and room < self.session.sampling.max_new_tokens:
                episode.end = "context"
                if len(episode.turns) == episode.inherited:
                    episode.act(Completion([], [], "none"))
            if episode.end is None:
                running.append(episode)
        return running

    def turn(self, running: Sequence[Episode], sampling: Sampling | None = None) -> None:
        """An action of every episode, then what the environments make of them."""
        if not running:
            return
        requests = [episode.request() for episode in running]
        sampled = self.session.sample(requests) if sampling is None else self.session.sample(requests, sampling)
        self.take(running, [completion for (completion,) in sampled])

    def take(self, running: Sequence[Episode], actions: Sequence[Completion]) -> None:
        """These actions of the episodes, whoever chose them, then what the environments make of them."""
        if self.restorable:
            for episode, at in zip(running, self._standing(running).values(), strict=True):
                episode.stood.append(at)
        moves: dict[str, Reply] = {}
        for episode, completion in zip(running, actions, strict=True):
            summary = episode.context.summarising
            reply = episode.act(completion)
            if summary:
                episode.opening = episode.context.summarised(reply.content)
            else:
                moves[episode.name] = reply
        answers = self.envs.step(moves) if moves else {}
        for episode in running:
            if episode.name in answers:
                episode.step(answers[episode.name], self.rules.max_turns)

    def finish(self, episodes: Sequence[Episode], sampling: Sampling | None = None) -> None:
        """Play these to their ends."""
        while running := self.running(episodes):
            self.turn(running, sampling)

    def forest(self, episodes: Sequence[Episode] | None = None) -> Forest:
        """These episodes (default: all) in the order in which they were begun; not scored, component "env" holds what
        the environment paid. The bases of forks have to be among them."""
        chosen = set(map(id, self.episodes if episodes is None else episodes))
        sampling = dataclasses.asdict(self.session.sampling)
        return Forest.from_records([e.record(sampling) for e in self.episodes if id(e) in chosen])


def play(tasks: Sequence[Task], draws: Sequence[str], group_size: int, session: Session) -> Forest:
    """`group_size` episodes of each task, to their ends, not scored."""
    with Play(session) as stage:
        stage.finish(stage.start(tasks, draws, group_size))
        return stage.forest()
