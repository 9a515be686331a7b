"""Play of many attempts at once: begin, sample turns, fork and write records; a sample of a prompt is one turn.

`rollouts.rounds` runs a step with `Play`. To write a rollout of your own (which attempts begin, which go on, from
where, and what is trained), start at `gxpo.sampling.rollouts.base`.
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
from gxpo.models.chat.messages import messages_of, text_of
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
    instance_of,
)
from gxpo.sampling.rollouts.attempts import Attempts, Draw, Episode, Fork, Prompt, Snapshot, fork_episode
from gxpo.sampling.rollouts.build import forest_of, name_draws
from gxpo.sampling.rollouts.context import Context

if TYPE_CHECKING:
    from gxpo.sampling.rollouts.attempts import Actor


class Play:
    """Attempts of one step of a run, under way together: one turn of many at a time, and forks that leave them.

    restorable  keep each episode's position before each of its turns, so that forks can leave it there
    at_once     sample forks within actions in one call, with room for the shortest prefix, and cut each to its limit;
                else in one call for each length of prefix, which generates nothing that is cut off

    A turn is sampled under the stream (seed, step, draw, attempt, path, turn), so an attempt does not depend on the
    others of the batch. As a context manager it gives up whatever is still under way at the end.
    """

    def __init__(self, session: Session, *, restorable: bool = False, at_once: bool = False) -> None:
        self.session, self.restorable, self.at_once = session, restorable, at_once
        self.world = session.envs is not None
        self.envs: Envs = session.envs  # type: ignore[assignment]  # read only if there is a world
        self.rules = session.episode if self.world else EpisodeRules()
        self.episodes: list[Episode] = []  # all that were begun, each fork after its base
        self.step_draws: list[Draw] = []  # draws of the step so far, one for each group
        self._draw_counts = Counter[str]()
        self._can_snapshot = restorable and self.world and "snapshots" in self.envs.provides
        self.concurrent = self.world and getattr(self.envs, "concurrent", False)

    def __enter__(self) -> Play:
        return self

    def __exit__(self, *_: object) -> None:
        if self.world:
            # the engine keeps contexts between turns, and environments wait for a next action: neither comes
            self.session.release([e.name for e in self.episodes])
            self.envs.finish([e.name for e in self.episodes if e.failure is None])

    # ------------------------------------------------------------ beginning
    def draws(self, tasks: Sequence[Task]) -> list[Draw]:
        """Add draws of these tasks to the step; a task that was drawn in this step before gets a group of its own."""
        names = name_draws(tasks, self._draw_counts)
        new_draws = [Draw(task, n, f"s{self.session.step}/{n}") for task, n in zip(tasks, names, strict=True)]
        self.step_draws += new_draws
        return new_draws

    def start(self, tasks: Sequence[Task], draws: Sequence[str], group_size: int) -> list[Episode]:
        """Begin `group_size` attempts at each task under the names of its draws; attempt i is named "DRAW/i"."""
        named_draws = [Draw(task, n, f"s{self.session.step}/{n}") for task, n in zip(tasks, draws, strict=True)]
        return self.begin([draw.attempts(group_size) for draw in named_draws])

    def begin(self, requests: Iterable[Attempts | Fork]) -> list[Episode]:
        """Begin new attempts, at their tasks or as forks, without playing them yet.

        An attempt whose environment broke gets an empty action, so that it is in the records and counted.
        """
        requests = list(requests)
        forks = [fork for fork in requests if isinstance(fork, Fork)]
        specs = [a for a in requests if not isinstance(a, Fork)]
        episodes = self._begin_episodes(specs) if self.world else self._begin_samples(specs)
        self.episodes += episodes
        return episodes + (self.fork(forks) if forks else [])

    def _expand(self, specs: Sequence[Attempts]) -> Iterable[tuple[Attempts, StreamKey, str | None, str]]:
        """Yield every attempt as (spec, stream, id unless it is GROUP/ATTEMPT, name)."""
        for spec in specs:
            for number, name in zip(spec.numbers, spec.ids(), strict=True):
                key = StreamKey(self.session.seed, self.session.step, spec.draw, number, spec.path)
                has_own_id = spec.label or spec.home != spec.group
                yield spec, key, name if has_own_id else None, name.removeprefix(f"s{self.session.step}/")

    def _begin_samples(self, specs: Sequence[Attempts]) -> list[Episode]:
        # a prompt is encoded once for all attempts of its spec: a `Prompt` holds no state that they could disturb
        task_by_spec = {a: a.task if a.wording is None else a.wording.of_task(a.task) for a in specs}
        sampled_contexts = {a: Prompt(self.session.encode(task)) for a, task in task_by_spec.items()}
        trained_contexts = {a: Prompt(self.session.encode(a.task)) for a in specs if a.hides_wording}
        openings = {a: ContextUpdate(trained_contexts.get(a, sampled_contexts[a]).ids, rebuilt=True) for a in specs}
        return [
            Episode(
                name, a.task if a.hides_wording else task_by_spec[a], a.group, key, sampled_contexts[a], openings[a],
                TimeStep("", a.task.id), spec=a, label=label, trained_context=trained_contexts.get(a),
                info=dict(a.info),
            )
            for a, key, label, name in self._expand(specs)
        ]  # fmt: skip

    def _begin_episodes(self, specs: Sequence[Attempts]) -> list[Episode]:
        attempts = list(self._expand(specs))
        instances = {name: instance_of(self.envs, a.task) for a, _, _, name in attempts}
        first_answers = self.envs.reset(instances) if attempts else {}
        episodes = []
        for spec, key, label, name in attempts:
            answer = first_answers[name]
            try:
                context, trained_context, opening = self._open_contexts(spec, answer)
            except PictureError as error:  # a bad picture of one environment ends that episode alone
                answer = EnvFailure("nonsense", str(error))
                context, trained_context, opening = self._open_contexts(spec, answer)
            time_step = TimeStep("") if isinstance(answer, EnvFailure) else answer
            episode = Episode(
                name, spec.task, spec.group, key, context, opening, time_step, instance_info=time_step.info, spec=spec
            )
            episode.label, episode.trained_context, episode.info = label, trained_context, dict(spec.info)
            if isinstance(answer, EnvFailure):
                self._end_broken(episode, answer)
            episodes.append(episode)
        return episodes

    def _open_contexts(
        self, spec: Attempts, answer: TimeStep | EnvFailure
    ) -> tuple[Context, Context | None, ContextUpdate]:
        """Open an attempt's context, the one to train under if its wording is hidden, and the record's first update."""
        new_context = functools.partial(
            Context, self.session.chat, self.rules, self.envs.instructions, self.envs.tools, self.session.system
        )
        context, trained_context = new_context(wording=spec.wording), new_context() if spec.hides_wording else None
        # a broken environment has shown nothing; its attempt still needs a context for its empty action
        observation = "" if isinstance(answer, EnvFailure) else answer.observation
        opening = context.open(observation)
        return context, trained_context, opening if trained_context is None else trained_context.open(observation)

    def fork(self, forks: Sequence[Fork | tuple[Episode, int, StreamKey, str]]) -> list[Episode]:
        """Begin attempts that go on from where another stood before one of its turns, or within that turn's action.

        The environment is restored from a snapshot or, if it takes none, by its seed and the same actions: GxpoError if
        that leads to another state. A fork before an episode's next turn goes on beside it.
        """
        requests = [fork if isinstance(fork, Fork) else Fork(*fork) for fork in forks]
        self._check_forks(requests)
        if not self.world:
            twins = [fork_episode(fork, fork.base) for fork in requests]
            for fork, twin in zip(requests, twins, strict=True):
                if fork.anew:
                    twin.begin_anew()
        else:
            if not self.restorable:
                raise GxpoError(
                    "episodes of Play(session) keep nothing to fork from: set forks = True on the rollout's class, or "
                    "make your own play with Play(session, restorable=True)"
                )
            # a base that has not taken the turn yet stands there now: its snapshot is taken here
            snapshots_now = self._take_snapshots([f.base for f in requests if f.turn == len(f.base.turns)])
            places = [
                f.base.snapshots[f.turn] if f.turn < len(f.base.turns) else snapshots_now[f.base.name] for f in requests
            ]
            twins = [fork_episode(fork, place) for fork, place in zip(requests, places, strict=True)]
            # `begin_anew` empties the replies, which are needed to bring the environment back
            past_replies = {twin.name: [r for r in twin.replies if r is not None] for twin in twins}
            for fork, twin in zip(requests, twins, strict=True):
                if fork.anew:
                    twin.begin_anew()
            self._restore(list(zip(twins, places, strict=True)), past_replies)
        # an attempt is counted when its first turn is sampled; a fork that inherits turns never samples its first
        self.session.budget.rollouts += sum(twin.n_inherited > 0 for twin in twins)
        self.episodes += twins
        return twins

    def _check_forks(self, forks: Sequence[Fork]) -> None:
        """Raise GxpoError for a fork from a place that its base never reached, or with another attempt's name."""
        names = {e.name for e in self.episodes}
        for fork in forks:
            base, turns, label = fork.base, len(fork.base.turns), f"a fork of attempt {fork.base.name!r}"
            # without a world the one turn is the answer itself: a fork is within it, or before it
            last_turn = turns if self.world else 0
            if not 0 <= fork.turn <= last_turn:
                raise GxpoError(f"{label} leaves it before turn {fork.turn}: it has turns 0 to {last_turn}")
            length = len(base.action_tokens(fork.turn)) if fork.turn < turns else 0
            if not 0 <= fork.token <= length:
                raise GxpoError(f"{label} leaves turn {fork.turn} after {fork.token} tokens: its action has {length}")
            sampling = None if fork.anew or base.spec is None else base.spec.sampling
            limit = (sampling or self.session.sampling).max_new_tokens
            if fork.token >= limit:
                raise GxpoError(f"{label} after {fork.token} tokens has no room: an action has {limit} at most")
            if fork.name in names:
                raise GxpoError(f"{label} is named {fork.name!r}, as another attempt is: give it a name of its own")
            names.add(fork.name)

    def _take_snapshots(self, episodes: Sequence[Episode]) -> dict[str, Snapshot]:
        """Take the present positions of these running episodes, by episode name."""
        if not self.world:
            return {}
        names = [e.name for e in dict.fromkeys(episodes)]
        env_snapshots = self.envs.snapshot(names) if self._can_snapshot and names else {}
        for name, text in env_snapshots.items():
            if isinstance(text, EnvFailure):
                raise GxpoError(f"environment {self.envs.name}: no snapshot of episode {name}: {text.message}")
        return {
            e.name: Snapshot(e.context.copy(), e.opening, e.time_step, e.moves, env_snapshots.get(e.name))  # type: ignore[arg-type]  # failures were raised
            for e in episodes
        }

    def _restore(self, forks: Sequence[tuple[Episode, Snapshot]], moves: Mapping[str, Sequence[Reply]]) -> None:
        """Bring the forks' environments to their places; `moves`: the replies that led there, by fork name."""
        if not forks or not self.world:
            return
        # a snapshot brings the environment back at once
        if self._can_snapshot:
            failures = self.envs.restore({twin.name: at.snapshot or "" for twin, at in forks})
            for twin, _ in forks:
                if (failure := failures[twin.name]) is not None:
                    self._end_broken(twin, failure)
            return
        # without snapshots the same seed and actions must lead to the same place, many environments a step
        answers = self.envs.reset({twin.name: instance_of(self.envs, twin.task) for twin, _ in forks})
        for number in range(max(map(len, moves.values()))):
            replies = {n: past[number] for n, past in moves.items() if number < len(past)}
            alive = {n: reply for n, reply in replies.items() if not isinstance(answers[n], EnvFailure)}
            answers |= self.envs.step(alive) if alive else {}
        # an environment that is not deterministic is refused here, rather than trained on from a wrong state
        for twin, at in forks:
            answer = answers[twin.name]
            if isinstance(answer, EnvFailure):
                self._end_broken(twin, answer)
            elif (answer.observation, answer.state) != (at.time_step.observation, at.time_step.state):
                raise GxpoError(
                    f"environment {self.envs.name} can't be restarted: the same start ({twin.task.id}) and "
                    f"{len(moves[twin.name])} actions led to another state; give it snapshot() and restore()"
                )

    def _end_broken(self, episode: Episode, failure: EnvFailure) -> None:
        """End an episode whose environment broke before its first own action, with an empty action in its record."""
        episode.act(Completion([], [], "none"))
        episode.step(failure, self.rules.max_turns)

    # ------------------------------------------------------------ playing
    def active(self, episodes: Sequence[Episode]) -> list[Episode]:
        """Return the episodes that go on; end those whose context leaves no room for an action."""
        if not self.world:
            return [episode for episode in episodes if episode.end is None]
        active = []
        for episode in episodes:
            room = self.rules.max_context - len(episode.context.ids)
            if episode.end is None and room < self.session.sampling.max_new_tokens:
                episode.end = "context"
                # a record needs a turn of its own, so that the attempt is counted
                if len(episode.turns) == episode.n_inherited:
                    episode.act(Completion([], [], "none"))
            if episode.end is None:
                active.append(episode)
        return active

    def turn(self, active: Sequence[Episode], sampling: Sampling | None = None) -> None:
        """Sample an action of every episode and step their environments."""
        if active:
            self.take(*self._actions(active, sampling))

    def _actions(self, active: Sequence[Episode], sampling: Sampling | None) -> tuple[list[Episode], list[Completion]]:
        """Sample the next action of every episode; return the episodes that have one, and their actions."""
        # one engine call for each sampling setting (and prefix length), one actor call for each actor
        by_sampling: dict[tuple[Sampling | None, int], list[Episode]] = {}
        by_actor: dict[Actor, list[Episode]] = {}
        for episode in active:
            spec = episode.spec
            if spec is not None and spec.actor is not None:
                by_actor.setdefault(spec.actor, []).append(episode)
            else:
                own_sampling = sampling or (spec.sampling if spec is not None else None)
                by_sampling.setdefault((own_sampling, self._sampling_batch(episode)), []).append(episode)
        actions: dict[Episode, Completion] = {}
        for (batch_sampling, _), batch in by_sampling.items():
            actions |= zip(batch, self._sample(batch, batch_sampling), strict=True)
        for actor, batch in by_actor.items():
            pairs = zip(batch, actor(batch, self), strict=True)
            actions |= {episode: completion for episode, completion in pairs if completion is not None}
        # in the order of `active`, whichever call each action came from
        for episode in active:
            if episode not in actions:
                self._end_lost(episode)
        acting = [e for e in active if e in actions]
        return acting, [actions[e] for e in acting]

    @staticmethod
    def _end_lost(episode: Episode) -> None:
        """End an episode whose actor knows no action, unscored."""
        if len(episode.turns) == episode.n_inherited:
            episode.act(Completion([], [], "none"))
        episode.end = episode.failure = "lost"

    def _sampling_batch(self, episode: Episode) -> int:
        """Key of the engine call that samples an episode's next action, by the length of its prefix; 0: no prefix."""
        return min(1, len(episode.action_prefix)) if self.at_once else len(episode.action_prefix)

    def _sample(self, episodes: Sequence[Episode], sampling: Sampling | None) -> list[Completion]:
        """Sample an action of each episode, or the rest of one that has a prefix."""
        requests, limit = self._requests(episodes), (sampling or self.session.sampling).max_new_tokens
        # the limit is of the whole action: the call gives room to the shortest prefix, `truncate` cuts the others
        if shortest_prefix := min(len(e.action_prefix) for e in episodes):
            sampling = dataclasses.replace(sampling or self.session.sampling, max_new_tokens=limit - shortest_prefix)
        groups = self.session.sample(requests) if sampling is None else self.session.sample(requests, sampling)
        completions = [completion for group in groups for completion in group]
        if not shortest_prefix:
            return completions
        return [c.truncate(limit - len(e.action_prefix)) for e, c in zip(episodes, completions, strict=True)]

    @staticmethod
    def _requests(episodes: Sequence[Episode]) -> list[Request]:
        """Build the engine's requests; attempts at one prompt are samples of one request, which reads it once."""
        requests = []
        for _, samples in groupby(episodes, key=lambda e: e.spec if e.is_sample_of_prompt else e):
            first, *others = samples
            request = first.request()
            streams = (*request.streams, *(e.key for e in others))
            requests.append(dataclasses.replace(request, streams=streams) if others else request)
        return requests

    def take(self, active: Sequence[Episode], actions: Sequence[Completion]) -> None:
        """Take given actions of the episodes, whoever chose them, and step their environments."""
        if not self.world:
            for episode, completion in zip(active, actions, strict=True):
                episode.act(completion)
                episode.end = "done"
            return
        moves = self.moves(active, actions)
        answers = self.envs.step(moves) if moves else {}
        for episode in active:
            if episode.name in answers:
                episode.step(answers[episode.name], self.rules.max_turns)

    def moves(self, active: Sequence[Episode], actions: Sequence[Completion]) -> dict[str, Reply]:
        """Append these actions to the episodes; return the replies for the environments, by episode name."""
        if self.restorable:
            for episode, at in zip(active, self._take_snapshots(active).values(), strict=True):
                episode.snapshots.append(at)
        moves: dict[str, Reply] = {}
        for episode, completion in zip(active, actions, strict=True):
            is_summary = episode.context.summarising
            reply = episode.act(completion)
            # the environment never sees a summary; the context begins again from it
            if is_summary:
                episode._go_on(lambda context, summary=reply.content: context.summarise(summary))
            else:
                moves[episode.name] = reply
        return moves

    def finish(self, episodes: Sequence[Episode], sampling: Sampling | None = None) -> None:
        """Play these episodes to their ends; if environments work concurrently, each at its own pace."""
        if self.concurrent:
            return self._finish_each_at_its_pace(episodes, sampling)
        while active := self.active(episodes):
            self.turn(active, sampling)

    def _finish_each_at_its_pace(self, episodes: Sequence[Episode], sampling: Sampling | None) -> None:
        """Play episodes on as soon as their own environment has answered, sampling together those that are ready."""
        envs: Any = self.envs
        order = {episode: i for i, episode in enumerate(episodes)}
        ready, episode_by_name = list(episodes), dict[str, Episode]()
        while True:
            # act in every episode that can; only those whose action was a summary are ready again at once
            if active := self.active(ready):
                acting, actions = self._actions(active, sampling)
                moves = self.moves(acting, actions)
                envs.submit(moves)
                episode_by_name |= {episode.name: episode for episode in acting if episode.name in moves}
                ready = [episode for episode in acting if episode.name not in moves]
            elif not episode_by_name:
                return
            else:
                ready = []
            if ready:
                continue
            # block until some environment has answered
            for name, answer in envs.collect().items():
                episode = episode_by_name.pop(name)
                episode.step(answer, self.rules.max_turns)
                ready.append(episode)
            # environments answer in any order: the order of the engine's batch must not depend on it
            ready.sort(key=order.__getitem__)

    def transcript(self, episode: Episode) -> str:
        """Return the text of an attempt: a sample's answer, or an episode's actions and the observations after them."""
        action_texts = [self.session.decode(episode.action_tokens(turn)) for turn in range(len(episode.turns))]
        if not self.world:
            return action_texts[0]
        return "\n".join(
            line for pair in zip(action_texts, self.observations_after(episode), strict=True) for line in pair if line
        )

    @staticmethod
    def observations_after(episode: Episode) -> list[str]:
        """Return the text that the environment answered to each action of an episode."""
        later_observations = [turn.get("observation_text") or "" for turn in episode.turns[1:]]
        return [*later_observations, text_of(messages_of(episode.time_step.observation))]

    # ------------------------------------------------------------ writing
    def forest(self, episodes: Sequence[Episode] | None = None) -> Forest:
        """Build the forest of these episodes (default: all), in the order in which they were begun.

        It has the scores that they have so far; component "env" holds what the environment paid.
        """
        return self.restore_scores(self._unscored_forest(episodes))

    def restore_scores(self, forest: Forest) -> Forest:
        """Return the forest with the scores that the session remembers of its attempts."""
        recall = getattr(self.session, "recall", None)  # a session of one's own may have none
        return forest if recall is None else recall(forest)

    def _unscored_forest(self, episodes: Sequence[Episode] | None) -> Forest:
        """Build the unscored forest of these episodes (default: all)."""
        chosen_ids = None if episodes is None else set(map(id, episodes))
        members = [e for e in self.episodes if chosen_ids is None or id(e) in chosen_ids]
        # samples of prompts need no records, unless the policy's version changed within one of them
        are_samples = all(e.is_sample_of_prompt for e in members) and all(e.trained_context is None for e in members)
        if are_samples and not any(e.newest_action is not None and e.newest_action.versions for e in members):
            return self._forest_of_samples(members)
        # a fork's record refers to its base's, so bases are written too, and left out of the forest again
        with_bases = {id(e) for e in members}
        # bases come before their forks, so one pass from the end also finds the bases of bases
        for e in reversed(self.episodes):
            if id(e) in with_bases and e.base is not None:
                with_bases.add(id(e.base))
        episodes_with_bases = [e for e in self.episodes if id(e) in with_bases]
        if len(id_counts := Counter(e.id for e in episodes_with_bases)) < len(episodes_with_bases):
            name = id_counts.most_common(1)[0][0]
            raise GxpoError(f"two attempts have the id {name!r}: give a fork's key another attempt or path")
        forest = Forest.from_records(
            [e.record(dataclasses.asdict(self._recorded_sampling(e))) for e in episodes_with_bases]
        )
        if len(episodes_with_bases) == len(members):
            return forest
        return forest.select(
            [row for row, e in enumerate(episodes_with_bases) if chosen_ids is None or id(e) in chosen_ids]
        )

    def _recorded_sampling(self, episode: Episode) -> Sampling:
        """Return the sampling that an episode's record states, by which the learner reads its log-probs."""
        spec = episode.spec
        return (spec and (spec.read or spec.sampling)) or self.session.sampling

    def _forest_of_samples(self, episodes: Sequence[Episode]) -> Forest:
        """Build the forest of samples of prompts at once: the same as that of their records, but faster."""
        # a spec is one group of samples, in the order in which they were begun
        groups = [list(samples) for _, samples in groupby(episodes, key=lambda e: e.spec)]
        firsts = [group[0] for group in groups]
        forest = forest_of(
            [e.task for e in firsts],
            [e.group for e in firsts],
            [e.opening.ids for e in firsts],
            [[e.newest_action for e in group if e.newest_action is not None] for group in groups],
            self.session.sampling,
            ids=[e.id for e in episodes],
        )
        # columns that only some rollouts set are added where an attempt states them, as records would
        columns: dict[str, Any] = {}
        if any(e.info for e in episodes):
            columns["info"] = [dict(e.info) for e in episodes]
        specs = [e.spec for e in episodes if e.spec is not None]
        if any(a.origin != "policy" for a in specs):
            columns["origin"] = [a.origin for a in specs]
        if any(a.read or a.sampling for a in specs):
            columns["sampling"] = [dataclasses.asdict(self._recorded_sampling(e)) for e in episodes]
        if any(a.policy != "main" for a in specs):
            names = tuple(dict.fromkeys(a.policy for a in specs))
            policy_index_R = torch.tensor([names.index(a.policy) for a in specs])
            columns |= {
                "policy_names": names,
                "policy": forest.policy.index_copy(0, forest.last_action, policy_index_R),
            }
        # measured attempts give scores and nothing else: no gradient, no comparison, no weight
        measured_R = torch.tensor([a.is_measurement for a in specs], dtype=torch.bool)
        if bool(measured_R.any()):
            trainable_T = forest.trainable.clone()
            trainable_T[forest.path_token[forest.to_path(measured_R, "R")]] = False
            columns |= {"trainable": trainable_T, "compared": ~measured_R, "weight": (~measured_R).to(torch.float64)}
        return forest.replace(**columns) if columns else forest
