"""Rollouts of a user's own agent behind an OpenAI-compatible endpoint; its recorded replies are trained."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Gt

from gxpo.base import runtime
from gxpo.base.errors import ConfigError, need
from gxpo.base.usercode import NotRun
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Completion, Sampling, Session, StreamKey, Task
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.build import Count, RolloutPart, action, group_of, name_draws, record
from gxpo.sampling.serve import agents
from gxpo.sampling.serve.connections import host_names
from gxpo.sampling.serve.history import History
from gxpo.sampling.serve.http import Server
from gxpo.sampling.serve.outcome import COMPONENT, outcome_of
from gxpo.sampling.serve.queue import Attempt, CallQueue, new_key, respond

Seconds = Annotated[float, Gt(0)]


@part("agent", stage="rollout")
@dataclass(frozen=True)
class AgentEpisodes(RolloutPart):
    """`group_size` episodes of your own agent at each task, which calls the policy through OpenAI's API.

    run          the agent: FILE.py:FUNCTION, package.module:FUNCTION, or a command line; it gets the endpoint and a key
    concurrency  most episodes under way at once; the next begins when one is over
    timeout      seconds that an episode may take, without the time that it waits for replies
    patience     seconds that calls wait for the other episodes' calls, to be sampled together; 0: not at all
    max_calls    most replies of an episode
    failure_reward  reward of an episode that raised, hung or asked for nothing; null: it is unscored
    allowed_hosts  host names, beside localhost, under which the endpoint answers, such as host.docker.internal
    cohorts      parts into which the episodes are divided, each sampled in batches of its own: while one is sampled,
                 agents and tools of the others work

    An episode is one trajectory and each reply an action of it. Messages that go on from a reply continue the ids that
    were sampled; others begin a context of their own. A reply depends on (seed, step, draw, attempt), on the ids of its
    context and on the number of earlier replies to the same ids, and not on when it was asked for. The state of an
    action is the request's `metadata.state`, or else the ids of its context.

    The reward is the number that the agent returns; if it returns none, or a text, the run's reward judges that text or
    the last reply. It is the component `agent`, which `reward` may weigh among others.
    """

    run: str | Callable[..., Any] = ""
    group_size: Count = 8
    concurrency: Count = 64
    timeout: Seconds = 120.0
    patience: Annotated[float, Ge(0)] = 20.0
    max_calls: Count = 32
    failure_reward: float | None = None
    allowed_hosts: Sequence[str] = ()
    cohorts: Count = 1

    held_out: ClassVar[bool] = False
    samples_prompts: ClassVar[bool] = False  # the agent writes the prompts
    provides = ("states",)
    single_turn = True
    components = (COMPONENT,)

    def __post_init__(self) -> None:
        if self.run == "":
            raise ConfigError(
                "rollout.run is missing: give FILE.py:FUNCTION or a command line, such as 'node agent.js'"
            )
        if self.cohorts > self.concurrency:
            raise ConfigError(
                f"rollout.cohorts={self.cohorts} divide the episodes under way, of which rollout.concurrency="
                f"{self.concurrency} allows fewer: lower rollout.cohorts"
            )

    @property
    def max_turns(self) -> int:
        """Most actions of a trajectory."""
        return self.max_calls

    def evaluation(self, samples: int) -> AgentEpisodes:
        """Return the rollout for held-out tasks: the same agent, told that the episodes are held out."""
        options: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        options["group_size"] = samples
        rollout = _HeldOut(**options)
        # the same loaded agent: a command or file is not loaded a second time
        vars(rollout)["agent"] = self.agent
        return rollout

    @cached_property
    def agent(self) -> agents.Agent:
        """The agent, loaded once, so that editing its file does not change a run under way."""
        return agents.agent_of(self.run)

    def check_sampling(self, sampling: Sampling) -> None:
        """Raise ConfigError for an agent that can't be loaded, and if several processes would each run it."""
        if runtime.world() > 1:
            raise ConfigError("rollout agent runs in one process: start the run without torchrun")
        need("uvicorn", "serve")
        host_names(self.allowed_hosts, "rollout.allowed_hosts")
        with suppress(NotRun):
            _ = self.agent

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        queue = CallQueue(patience=self.patience, most_calls=self.max_calls)
        server = Server(queue, session.decode, hosts=host_names(self.allowed_hosts, "rollout.allowed_hosts"))
        play = _Play(self, session, queue, server.base_url)
        try:
            return play.forest(tasks)
        finally:
            play.stop()
            server.close(wait=False)


@dataclass(frozen=True)
class _HeldOut(AgentEpisodes):
    """Agent episodes of an evaluation."""

    held_out: ClassVar[bool] = True


@dataclass(eq=False)
class _Episode:
    """An attempt of the agent at a task. `end`: as in `sampling.rollouts.attempts.Episode`, or "silent"."""

    task: Task
    group: str
    attempt: Attempt
    playing: agents.Playing = field(default_factory=agents.Playing)
    end: str = ""

    @property
    def turns(self) -> list[dict[str, Any]]:
        return self.attempt.history.turns()


class _Play:
    """The agent episodes of a step, under way together."""

    def __init__(self, part: AgentEpisodes, session: Session, queue: CallQueue, base_url: str) -> None:
        self.part, self.session, self.queue, self.base_url = part, session, queue, base_url
        self.open_episodes: list[_Episode] = []

    def forest(self, tasks: Sequence[Task]) -> Forest:
        """Play all episodes to their ends, and return their scored forest."""
        episodes = self._episodes(tasks)
        # Each cohort has its own episodes and its own places: which one begins where another ends is not left to time.
        cohorts = range(self.part.cohorts)
        queue_by_cohort = [[e for e in episodes[::-1] if e.attempt.cohort == cohort] for cohort in cohorts]
        places = [len(range(cohort, self.part.concurrency, self.part.cohorts)) for cohort in cohorts]
        while any(queue_by_cohort) or self.open_episodes:
            for cohort in cohorts:
                n_running = sum(e.attempt.cohort == cohort for e in self.open_episodes)
                for _ in range(min(places[cohort] - n_running, len(queue_by_cohort[cohort]))):
                    self._begin(queue_by_cohort[cohort].pop())
            # answer the calls that are there together, but wake up when the next episode is overdue
            calls = self.queue.take(self._next_deadline())
            respond(self.queue, calls, self.session, action)
            finished_ids = {id(attempt) for attempt in self.queue.collect()}
            for episode in [e for e in self.open_episodes if id(e.attempt) in finished_ids]:
                self._finish(episode)
            self._stop_overdue()
        if self.queue.n_unawaited:
            warnings.warn(
                f"episodes kept others waiting for rollout.patience={self.part.patience:g} s: {self.queue.n_unawaited} "
                "batches went without them, and another run of this seed may differ in the last bits",
                stacklevel=2,
            )
        return self._scored_forest(episodes)

    def stop(self) -> None:
        """Stop all episodes that are under way."""
        for episode in self.open_episodes:
            episode.playing.stop()
        self.queue.close()

    # ------------------------------------------------------------ playing
    def _episodes(self, tasks: Sequence[Task]) -> list[_Episode]:
        session, out = self.session, []
        for task, draw in zip(tasks, name_draws(tasks), strict=True):
            for i in range(self.part.group_size):
                tokenizer = getattr(session, "tokenizer", None)
                # every episode has a key of its own, by which the endpoint tells whose call it is
                history = History(session.chat, tokenizer, session.system, session.episode.max_context)
                key = StreamKey(session.seed, session.step, draw, i)
                attempt = Attempt(new_key(), len(out), f"{draw}/{i}", key, history, cohort=len(out) % self.part.cohorts)
                out.append(_Episode(task, group_of(session, draw), attempt))
        return out

    def _begin(self, episode: _Episode) -> None:
        attempt = episode.attempt
        self.queue.open(attempt)
        self.open_episodes.append(episode)
        line = agents.Line(self.base_url, attempt.key, attempt.stream.attempt, self.part.held_out)
        episode.playing = agents.start(self.part.agent, episode.task, line, lambda: self.queue.end(attempt))

    def _next_deadline(self) -> float | None:
        """Return the time at which the first working episode exceeds its timeout; None if all wait for replies."""
        time = self.queue.clock()
        working = [e.attempt for e in self.open_episodes if e.attempt.since is not None]
        return min((time + self.part.timeout - a.own_seconds(time) for a in working), default=None)

    def _stop_overdue(self) -> None:
        time = self.queue.clock()
        for episode in [e for e in self.open_episodes if e.attempt.own_seconds(time) >= self.part.timeout]:
            episode.playing.fail("timeout", f"it took longer than rollout.timeout={self.part.timeout:g} s")
            episode.playing.stop()
            self.queue.end(episode.attempt)

    def _finish(self, episode: _Episode) -> None:
        """Close an episode: settle how it ended, its outcome, and its caches in the engine."""
        self.open_episodes.remove(episode)
        attempt, playing = episode.attempt, episode.playing
        # an agent that returned nothing may have posted its outcome, or printed one that can't be read
        if playing.kind is None and playing.outcome == agents.Outcome():
            if attempt.post_error is not None:
                playing.fail("nonsense", f"posted to /v1/reward: {attempt.post_error}")
            elif attempt.outcome_body is not None:
                playing.outcome = outcome_of(attempt.outcome_body)
            elif playing.output_error:
                playing.fail("nonsense", playing.output_error)
        if playing.kind is None and not attempt.history.threads:
            playing.fail("silent", "it asked the policy for nothing: is OPENAI_BASE_URL, or base_url, what it calls?")
        # an agent that crashes because its calls were refused was cut by the limit, not broken
        limit_end = {"calls": "turns", "context": "context"}.get(attempt.limit or "", "")
        has_crashed = playing.kind in ("raised", "died")
        episode.end = limit_end if has_crashed and limit_end else playing.kind or "done"
        self.session.release([f"{attempt.name}/{thread.number}" for thread in attempt.history.threads])

    # ------------------------------------------------------------ writing
    def _scored_forest(self, episodes: Sequence[_Episode]) -> Forest:
        self.session.budget.rollouts += len(episodes)
        agent_is_weighed = COMPONENT in getattr(self.session, "weighted_names", ())
        forest = Forest.from_records([self._record(e, agent_is_weighed) for e in episodes])
        return self.session.score(forest, [self._text_to_judge(e) for e in episodes])

    def _text_to_judge(self, episode: _Episode) -> str:
        """Return the text that the run's reward judges: the agent's answer, or its last reply."""
        if episode.playing.outcome.answer is not None:
            return episode.playing.outcome.answer
        turns = episode.turns
        return self.session.decode(turns[-1]["action"]) if turns else ""

    def _record(self, episode: _Episode, agent_is_weighed: bool) -> dict[str, Any]:
        """Build the `gxpo.rollouts/1` record of an episode.

        An agent that ran into a limit and broke has failed, since the policy used up its calls; any other break leaves
        the episode unscored, unless `failure_reward` gives its reward.
        """
        playing, is_limited = episode.playing, episode.end in ("turns", "context")
        is_broken = playing.kind is not None and not is_limited
        reward = self.part.failure_reward if is_broken else 0.0 if is_limited else playing.outcome.reward
        is_decided = is_broken or is_limited
        # an episode that never called the policy gets an empty action, so that it is counted
        turns = episode.turns or [
            {"context": list(self.session.encode(episode.task)), **action(Completion([], [], "none"))}
        ]
        first, *rest = turns
        history = episode.attempt.history
        info: dict[str, Any] = {
            **playing.outcome.info,
            "agent": {"end": episode.end, "contexts": len(history.threads), "overridden": history.overridden},
        }
        if is_broken:
            info["failure"] = f"agent: {playing.message}"
        # a decided reward stands; where `reward` weighs the agent's with others, the total is computed later
        return record(
            episode.task,
            episode.group,
            f"{episode.group}/{episode.attempt.stream.attempt}",
            self.session.sampling,
            prompt=first["context"],
            turns=[{k: v for k, v in first.items() if k != "context"}, *rest],
            rewards={COMPONENT: reward, **({} if is_decided else playing.outcome.rewards)},
            success=False if is_limited or (is_broken and reward is not None) else playing.outcome.success,
            truncated=is_limited or turns[-1]["finish"] == "length",
            info=info,
        ) | {"reward": reward if is_decided or not agent_is_weighed else None}
