"""Attempts at tasks, played many at a time: samples of prompts are episodes of one turn.

`Play` is the one machine that begins attempts, samples their turns, forks them and writes them down;
`rollouts.rounds` goes through a step with it. What a rollout of one's own decides (who begins, who goes on, from
where, what of it is trained) is in `gxpo.sampling.rollouts.base`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch

from gxpo.base.errors import GxpoError, PictureError
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import (
    Completion,
    ContextUpdate,
    EnvFailure,
    Envs,
    EpisodeRules,
    Reply,
    Request,
    Sampling,
    Session,
    StreamKey,
    Task,
    TimeStep,
)
from gxpo.sampling.rollouts.build import (
    Attempts,
    Draw,
    Episode,
    Prompt,
    Snapshot,
    forest_of,
    name_draws,
)
from gxpo.sampling.rollouts.context import Context, messages_of, text_of
from gxpo.sampling.rollouts.fork import Fork

if TYPE_CHECKING:
    from gxpo.sampling.rollouts.build import Actor


class Play:
    """Attempts of one step of a run, under way together: a turn of many at a time, and forks that leave them.

    restorable  forks are wanted: where each episode stood before each of its turns is kept
    at_once     forks within actions are sampled together, with room for the shortest beginning, and cut to their own;
                else in as many calls as there are lengths, and nothing is generated that is cut off

    A turn is sampled under the stream (seed, step, draw, attempt, path, turn), so nothing depends on who else plays.
    Used as a context manager: what is still under way at the end is given up.
    """

    def __init__(self, session: Session, *, restorable: bool = False, at_once: bool = False) -> None:
        self.session, self.restorable, self.at_once = session, restorable, at_once
        self.world = session.envs is not None
        self.envs: Envs = session.envs  # type: ignore[assignment]  # without a world nobody asks for it
        self.rules = session.episode if self.world else EpisodeRules()
        self.episodes: list[Episode] = []  # all that were begun; a fork after its base
        self.drawn: list[Draw] = []  # of the step so far, one for each group
        self._count = Counter[str]()
        self._snapshots = restorable and self.world and "snapshots" in self.envs.provides
        self.concurrent = self.world and getattr(self.envs, "concurrent", False)

    def __enter__(self) -> Play:
        return self

    def __exit__(self, *_: object) -> None:
        if self.world:
            self.session.release([e.name for e in self.episodes])
            self.envs.finish([e.name for e in self.episodes if e.failure is None])

    # ------------------------------------------------------------ beginning
    def draws(self, tasks: Sequence[Task]) -> list[Draw]:
        """The tasks with a name each for their groups; a task that was drawn in this step before has another one."""
        names = name_draws(tasks, self._count)
        new = [Draw(task, n, f"s{self.session.step}/{n}") for task, n in zip(tasks, names, strict=True)]
        self.drawn += new
        return new

    def start(self, tasks: Sequence[Task], draws: Sequence[str], group_size: int) -> list[Episode]:
        """`group_size` attempts at each task under the names of its draws: attempt i of a draw is called "DRAW/i"."""
        named = [Draw(task, n, f"s{self.session.step}/{n}") for task, n in zip(tasks, draws, strict=True)]
        return self.begin([draw.attempts(group_size) for draw in named])

    def begin(self, asked: Iterable[Attempts | Fork]) -> list[Episode]:
        """New attempts, not yet played: those that begin at their tasks, and forks.

        Those whose environment broke have an empty action, so that each attempt is there and counted.
        """
        asked = list(asked)
        forks = [fork for fork in asked if isinstance(fork, Fork)]
        own = [a for a in asked if not isinstance(a, Fork)]
        begun = self._worlds(own) if self.world else self._prompts(own)
        self.episodes += begun
        return begun + (self.fork(forks) if forks else [])

    def _each(self, asked: Sequence[Attempts]) -> Iterable[tuple[Attempts, StreamKey, str | None, str]]:
        """Every attempt: what it was asked by, its stream, its id where that does not follow from it, and its name."""
        for a in asked:
            for number, name in zip(a.numbers, a.ids(), strict=True):
                key = StreamKey(self.session.seed, self.session.step, a.draw, number, a.path)
                named = a.label or a.home != a.group
                yield a, key, name if named else None, name.removeprefix(f"s{self.session.step}/")

    def _prompts(self, asked: Sequence[Attempts]) -> list[Episode]:
        worded = {a: a.task if a.wording is None else a.wording.of_task(a.task) for a in asked}
        shown = {a: Prompt(self.session.encode(task)) for a, task in worded.items()}
        plain = {a: Prompt(self.session.encode(a.task)) for a in asked if a.hidden}
        opening = {a: ContextUpdate(plain.get(a, shown[a]).ids, rebuilt=True) for a in asked}
        return [
            Episode(
                name, a.task if a.hidden else worded[a], a.group, key, shown[a], opening[a], TimeStep("", a.task.id),
                asked=a, label=label, plain=plain.get(a), info=dict(a.info),
            )
            for a, key, label, name in self._each(asked)
        ]  # fmt: skip

    def _worlds(self, asked: Sequence[Attempts]) -> list[Episode]:
        each = list(self._each(asked))
        started = self.envs.reset({name: a.task.info["seed"] for a, _, _, name in each}) if each else {}
        begun = []
        for a, key, label, name in each:
            answer = started[name]
            try:
                context, plain, opening = self._opened(a, answer)
            except PictureError as error:  # what an environment shows costs its own episode alone
                answer = EnvFailure("nonsense", str(error))
                context, plain, opening = self._opened(a, answer)
            said = TimeStep("") if isinstance(answer, EnvFailure) else answer
            episode = Episode(name, a.task, a.group, key, context, opening, said, about=said.info, asked=a)
            episode.label, episode.plain, episode.info = label, plain, dict(a.info)
            if isinstance(answer, EnvFailure):
                self._broken(episode, answer)
            begun.append(episode)
        return begun

    def _opened(self, a: Attempts, answer: TimeStep | EnvFailure) -> tuple[Context, Context | None, ContextUpdate]:
        """The context of an attempt that begins, the one without hidden words, and the record's first update."""
        fresh = functools.partial(
            Context, self.session.chat, self.rules, self.envs.instructions, self.envs.tools, self.session.system
        )
        context, plain = fresh(wording=a.wording), fresh() if a.hidden else None
        observation = "" if isinstance(answer, EnvFailure) else answer.observation
        opening = context.open(observation)
        return context, plain, opening if plain is None else plain.open(observation)

    def fork(self, forks: Sequence[Fork | tuple[Episode, int, StreamKey, str]]) -> list[Episode]:
        """New attempts that stand where another stood before one of its turns, or within the action that followed.

        The environment is restored from a snapshot, or, where it has none, its seed and actions are gone through again:
        GxpoError where that leads elsewhere. A fork before an episode's next turn goes on beside it.
        """
        named = [fork if isinstance(fork, Fork) else Fork(*fork) for fork in forks]
        self._check_forks(named)
        if not self.world:
            begun = [self._twin(fork, fork.base) for fork in named]
            for fork, twin in zip(named, begun, strict=True):
                if fork.anew:
                    twin.begin_anew()
        else:
            if not self.restorable:
                raise GxpoError(
                    "episodes of Play(session) keep nothing to fork from: a rollout that forks says forks = True, and "
                    "one with a Play of its own uses Play(session, restorable=True)"
                )
            current = self._standing([f.base for f in named if f.turn == len(f.base.turns)])
            at = [f.base.stood[f.turn] if f.turn < len(f.base.turns) else current[f.base.name] for f in named]
            begun = [self._twin(fork, place) for fork, place in zip(named, at, strict=True)]
            done = {twin.name: [r for r in twin.replies if r is not None] for twin in begun}
            for fork, twin in zip(named, begun, strict=True):
                if fork.anew:
                    twin.begin_anew()
            self._restore(list(zip(begun, at, strict=True)), done)
        # others are counted when they are sampled
        self.session.budget.rollouts += sum(twin.inherited > 0 for twin in begun)
        self.episodes += begun
        return begun

    def _check_forks(self, forks: Sequence[Fork]) -> None:
        """GxpoError for a fork from where its base never was, and for one that has the name of another attempt."""
        names = {e.name for e in self.episodes}
        for fork in forks:
            base, turns, subject = fork.base, len(fork.base.turns), f"a fork of attempt {fork.base.name!r}"
            last = turns if self.world else 0
            if not 0 <= fork.turn <= last:
                raise GxpoError(f"{subject} leaves it before turn {fork.turn}: it has turns 0 to {last}")
            length = len(base.whole(fork.turn)) if fork.turn < turns else 0
            if not 0 <= fork.token <= length:
                raise GxpoError(f"{subject} leaves turn {fork.turn} after {fork.token} tokens: its action has {length}")
            sampling = None if fork.anew or base.asked is None else base.asked.sampling
            limit = (sampling or self.session.sampling).max_new_tokens
            if fork.token >= limit:
                raise GxpoError(f"{subject} after {fork.token} tokens has no room: an action has {limit} at most")
            if fork.name in names:
                raise GxpoError(f"{subject} is named {fork.name!r}, as another attempt is: give it a name of its own")
            names.add(fork.name)

    @staticmethod
    def _twin(fork: Fork, at: Snapshot | Episode) -> Episode:
        base, turn, key, name, token, info, _ = fork
        twin = Episode(name, base.task, base.group, key, at.context.copy(), at.opening, at.said)
        twin.turns, twin.replies, twin.stood = base.turns[:turn], base.replies[:turn], base.stood[:turn]
        twin.moves = 0 if isinstance(at, Episode) else at.moves
        twin.about, twin.base, twin.inherited, twin.asked, twin.info = base.about, base, turn, base.asked, dict(info)
        twin.begun = tuple(base.whole(turn)[:token]) if token else ()
        return twin

    def _standing(self, episodes: Sequence[Episode]) -> dict[str, Snapshot]:
        """Where these running episodes stand now."""
        if not self.world:
            return {}
        names = [e.name for e in dict.fromkeys(episodes)]
        taken = self.envs.snapshot(names) if self._snapshots and names else {}
        for name, text in taken.items():
            if isinstance(text, EnvFailure):
                raise GxpoError(f"environment {self.envs.name}: no snapshot of episode {name}: {text.message}")
        return {
            e.name: Snapshot(e.context.copy(), e.opening, e.said, e.moves, taken.get(e.name))  # type: ignore[arg-type]  # failures were raised
            for e in episodes
        }

    def _restore(self, forks: Sequence[tuple[Episode, Snapshot]], moves: Mapping[str, Sequence[Reply]]) -> None:
        """Puts environments where these forks stand; `moves` led there."""
        if not forks or not self.world:
            return
        if self._snapshots:
            found = self.envs.restore({twin.name: at.snapshot or "" for twin, at in forks})
            for twin, _ in forks:
                if (failure := found[twin.name]) is not None:
                    self._broken(twin, failure)
            return
        answers = self.envs.reset({twin.name: twin.task.info["seed"] for twin, _ in forks})
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
        if not self.world:
            return [episode for episode in episodes if episode.end is None]
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
        if running:
            self.take(*self._actions(running, sampling))

    def _actions(self, running: Sequence[Episode], sampling: Sampling | None) -> tuple[list[Episode], list[Completion]]:
        """The next action of every episode that has one."""
        ways: dict[tuple[Sampling | None, int], list[Episode]] = {}
        others: dict[Actor, list[Episode]] = {}
        for episode in running:
            asked = episode.asked
            if asked is not None and asked.actor is not None:
                others.setdefault(asked.actor, []).append(episode)
            else:
                way = sampling or (asked.sampling if asked is not None else None)
                ways.setdefault((way, self._widest(episode)), []).append(episode)
        actions: dict[Episode, Completion] = {}
        for (way, _), together in ways.items():
            actions |= zip(together, self._sampled(together, way), strict=True)
        for actor, together in others.items():
            known = zip(together, actor(together, self), strict=True)
            actions |= {episode: said for episode, said in known if said is not None}
        for episode in running:
            if episode not in actions:
                self._lost(episode)
        acting = [e for e in running if e in actions]
        return acting, [actions[e] for e in acting]

    @staticmethod
    def _lost(episode: Episode) -> None:
        """An episode whose actor knows no action ends here, unscored."""
        if len(episode.turns) == episode.inherited:
            episode.act(Completion([], [], "none"))
        episode.end = episode.failure = "lost"

    def _widest(self, episode: Episode) -> int:
        """Which of those that go on within an action are sampled together: 0, none of it is there yet."""
        return min(1, len(episode.kept)) if self.at_once else len(episode.kept)

    def _sampled(self, episodes: Sequence[Episode], sampling: Sampling | None) -> list[Completion]:
        """An action of each, or what is left of it."""
        requests, limit = self._requests(episodes), (sampling or self.session.sampling).max_new_tokens
        if least := min(len(e.kept) for e in episodes):
            sampling = dataclasses.replace(sampling or self.session.sampling, max_new_tokens=limit - least)
        groups = self.session.sample(requests) if sampling is None else self.session.sample(requests, sampling)
        flat = [completion for group in groups for completion in group]
        return [c.within(limit - len(e.kept)) for e, c in zip(episodes, flat, strict=True)] if least else flat

    @staticmethod
    def _requests(episodes: Sequence[Episode]) -> list[Request]:
        """What is asked of the engine: attempts at one prompt are samples of one request."""
        out = []
        for _, together in groupby(episodes, key=lambda e: e.asked if _sample_of_prompt(e) else e):
            first, *others = together
            request = first.request()
            streams = (*request.streams, *(e.key for e in others))
            out.append(dataclasses.replace(request, streams=streams) if others else request)
        return out

    def take(self, running: Sequence[Episode], actions: Sequence[Completion]) -> None:
        """These actions of the episodes, whoever chose them, then what the environments make of them."""
        if not self.world:
            for episode, completion in zip(running, actions, strict=True):
                episode.act(completion)
                episode.end = "done"
            return
        moves = self.moves(running, actions)
        answers = self.envs.step(moves) if moves else {}
        for episode in running:
            if episode.name in answers:
                episode.step(answers[episode.name], self.rules.max_turns)

    def moves(self, running: Sequence[Episode], actions: Sequence[Completion]) -> dict[str, Reply]:
        """Takes these actions in; gives what the environments are told, by episode."""
        if self.restorable:
            for episode, at in zip(running, self._standing(running).values(), strict=True):
                episode.stood.append(at)
        moves: dict[str, Reply] = {}
        for episode, completion in zip(running, actions, strict=True):
            summary = episode.context.summarising
            reply = episode.act(completion)
            if summary:
                episode._go_on(lambda context, said=reply.content: context.summarised(said))
            else:
                moves[episode.name] = reply
        return moves

    def finish(self, episodes: Sequence[Episode], sampling: Sampling | None = None) -> None:
        """Play these to their ends; where environments act at the same time, each at its own pace."""
        if self.concurrent:
            return self._finish_apart(episodes, sampling)
        while running := self.running(episodes):
            self.turn(running, sampling)

    def _finish_apart(self, episodes: Sequence[Episode], sampling: Sampling | None) -> None:
        """Each episode goes on as soon as its own environment has answered; those that can are sampled together."""
        envs: Any = self.envs
        place = {episode: i for i, episode in enumerate(episodes)}
        ready, waiting = list(episodes), dict[str, Episode]()
        while True:
            if running := self.running(ready):
                acting, actions = self._actions(running, sampling)
                moves = self.moves(acting, actions)
                envs.submit(moves)
                waiting |= {episode.name: episode for episode in acting if episode.name in moves}
                ready = [episode for episode in acting if episode.name not in moves]
            elif not waiting:
                return
            else:
                ready = []
            if ready:
                continue
            for name, answer in envs.collect().items():
                episode = waiting.pop(name)
                episode.step(answer, self.rules.max_turns)
                ready.append(episode)
            ready.sort(key=place.__getitem__)

    def transcript(self, episode: Episode) -> str:
        """What was said in an attempt: of a sample its answer, of an episode its actions and what came of each."""
        said = [self.session.decode(episode.whole(turn)) for turn in range(len(episode.turns))]
        if not self.world:
            return said[0]
        return "\n".join(line for pair in zip(said, self.came(episode), strict=True) for line in pair if line)

    @staticmethod
    def came(episode: Episode) -> list[str]:
        """What the environment said to each action of an episode."""
        read = [turn.get("observation_text") or "" for turn in episode.turns[1:]]
        return [*read, text_of(messages_of(episode.said.observation))]

    # ------------------------------------------------------------ writing
    def forest(self, episodes: Sequence[Episode] | None = None) -> Forest:
        """These episodes (default: all) in the order in which they were begun, with the scores that they have got so
        far; component "env" holds what the environment paid."""
        return self.recalled(self._written(episodes))

    def recalled(self, forest: Forest) -> Forest:
        """The forest of attempts of this play with the scores that they have got so far."""
        recall = getattr(self.session, "recall", None)  # a session of one's own may have none
        return forest if recall is None else recall(forest)

    def _written(self, episodes: Sequence[Episode] | None) -> Forest:
        """These episodes (default: all), not scored."""
        among = None if episodes is None else set(map(id, episodes))
        chosen = [e for e in self.episodes if among is None or id(e) in among]
        plain = all(map(_sample_of_prompt, chosen)) and all(e.plain is None for e in chosen)
        if plain and not any(e.sampled is not None and e.sampled.versions for e in chosen):
            return self._samples(chosen)
        with_bases = {id(e) for e in chosen}
        for e in reversed(self.episodes):
            if id(e) in with_bases and e.base is not None:
                with_bases.add(id(e.base))
        episodes_with_bases = [e for e in self.episodes if id(e) in with_bases]
        if len(ids := Counter(e.id for e in episodes_with_bases)) < len(episodes_with_bases):
            name = ids.most_common(1)[0][0]
            raise GxpoError(f"two attempts have the id {name!r}: give a fork's key another attempt or path")
        forest = Forest.from_records([e.record(dataclasses.asdict(self._read(e))) for e in episodes_with_bases])
        if len(episodes_with_bases) == len(chosen):
            return forest
        return forest.select([row for row, e in enumerate(episodes_with_bases) if among is None or id(e) in among])

    def _read(self, episode: Episode) -> Sampling:
        asked = episode.asked
        return (asked and (asked.read or asked.sampling)) or self.session.sampling

    def _samples(self, episodes: Sequence[Episode]) -> Forest:
        """Samples of prompts, written all at once: the same forest as that of their records, sooner."""
        groups = [list(together) for _, together in groupby(episodes, key=lambda e: e.asked)]
        firsts = [group[0] for group in groups]
        forest = forest_of(
            [e.task for e in firsts],
            [e.group for e in firsts],
            [e.opening.ids for e in firsts],
            [[e.sampled for e in group if e.sampled is not None] for group in groups],
            self.session.sampling,
            ids=[e.id for e in episodes],
        )
        columns: dict[str, Any] = {}
        if any(e.info for e in episodes):
            columns["info"] = [dict(e.info) for e in episodes]
        asked = [e.asked for e in episodes if e.asked is not None]
        if any(a.origin != "policy" for a in asked):
            columns["origin"] = [a.origin for a in asked]
        if any(a.read or a.sampling for a in asked):
            columns["sampling"] = [dataclasses.asdict(self._read(e)) for e in episodes]
        if any(a.policy != "main" for a in asked):
            names = tuple(dict.fromkeys(a.policy for a in asked))
            place = torch.tensor([names.index(a.policy) for a in asked])
            columns |= {"policy_names": names, "policy": forest.policy.index_copy(0, forest.last_action, place)}
        measured = torch.tensor([a.measured for a in asked], dtype=torch.bool)
        if bool(measured.any()):
            trainable = forest.trainable.clone()
            trainable[forest.path_token[forest.to_path(measured, "R")]] = False
            columns |= {"trainable": trainable, "compared": ~measured, "weight": (~measured).to(torch.float64)}
        return forest.replace(**columns) if columns else forest


def _sample_of_prompt(episode: Episode) -> bool:
    """True if the attempt begins at its task's prompt, so that it may be one of several samples of a request."""
    return isinstance(episode.context, Prompt) and episode.base is None and episode.asked is not None
