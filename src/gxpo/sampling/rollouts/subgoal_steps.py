"""Single-step sub-goals (Hi-Agent): a planner is rewarded for one action under its sub-goal."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Completion, Conversation, Message, Request, Session, StreamKey, Task
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.build import (
    Count,
    Episode,
    Limit,
    RolloutPart,
    Text,
    action,
    group_of,
    name_draws,
    record,
    stream,
)
from gxpo.sampling.rollouts.context import opened, with_system
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.expert_prefix import Place, carry_out, chosen, expert_ways
from gxpo.sampling.rollouts.graph import SHARED
from gxpo.sampling.rollouts.plan_episodes import EXECUTOR, PLANNER, TOLD, check_prompts, filled
from gxpo.sampling.rollouts.reference import EXPERTS


@part("subgoal_steps", stage="rollout")
@dataclass(frozen=True)
class SubgoalSteps(RolloutPart):
    """At each of `steps` places on an expert's way: `group_size` sub-goals, one action under each; and `executions`
    actions under one of them.

    high  "s{step}/{task}/t{turn}": a sub-goal, which is trained, and an action under it, which is not. The outcome is
          what the environment pays for the action (its task's reward)
    low   "s{step}/{task}/t{turn}/low": actions under the first sub-goal of the place, trained; outcome 0

    Both note in info what happened, as 0 or 1, for a reward to weigh (`reward.shape.noted`):
    "execution"  the action led to the state that the expert's leads to; where states are unknown, it is the same action
    "format"     of high: the sub-goal ended by itself and says something; of low: the environment could read the action

    Planner and executor read the newest observation alone, each in a context of its own, new every time. The
    environment is put back to the place for every action. No episode is played, so the cost is G actions a place and
    not G to the power of the turns. Held-out tasks are attempted as episodes: at every turn a sub-goal, then an action.

    group_size      G
    executions      of the low group; 0: the executor is not trained
    steps           places a task, drawn on the expert's way; 0: all of it
    plan_tokens     longest sub-goal
    plan_prompt     what the planner is asked, with {prompt}, the observation; "": that itself
    execute_prompt  what the executor is told, with {prompt} and {plan}
    policy          "shared": one policy speaks for both; "per_role": each trains an adapter of its own

    At a place before turn t, the sub-goal i has the stream (seed, step, draw, i, path (t,)), the action under it
    the same with turn 1, member j of the low group (seed, step, draw, 0, path (t, j)).

    Source: Hi-Agent, arXiv 2510.14388, after its abstract and reviews. There, too, states are an expert's.
    """

    group_size: Count = 8
    executions: Limit = 8
    steps: Limit = 1
    plan_tokens: Count = 16
    plan_prompt: str = ""
    execute_prompt: Text = TOLD
    policy: Literal["shared", "per_role"] = "shared"

    provides = ("states",)
    requires = ("expert", "restarts")
    allows = EXPERTS

    def __post_init__(self) -> None:
        check_prompts(self.plan_prompt, self.execute_prompt)

    @property
    def policies(self) -> dict[str, str]:
        """Policy name -> "trained"."""
        return {SHARED: "trained"} if self.policy == "shared" else {PLANNER: "trained", EXECUTOR: "trained"}

    @property
    def max_turns(self) -> int:
        """The most actions that a trajectory has."""
        return 2

    def evaluation(self, samples: int) -> _InTurns:
        """How held-out tasks are attempted."""
        return _InTurns(self, samples)

    def of(self, role: str) -> str:
        """The policy that speaks for a role."""
        return SHARED if self.policy == "shared" else role

    def asked(self, template: str, observation: str | Sequence[Message], plan: str, session: Session) -> Conversation:
        """A conversation that stands before the answer to one observation."""
        assert session.envs is not None
        shown = opened(session.envs.instructions, filled(template, observation, plan))
        return session.chat.start(with_system(session.chat, session.system, shown), session.envs.tools)

    def plan(
        self, conversations: Sequence[Conversation], keys: Sequence[Sequence[StreamKey]], session: Session
    ) -> list[list[Completion]]:
        """Sub-goals, as sampled in each conversation."""
        short = min(self.plan_tokens, session.sampling.max_new_tokens)
        requests = self._requests(conversations, keys, PLANNER)
        return session.sample(requests, dataclasses.replace(session.sampling, max_new_tokens=short))

    def act(
        self, conversations: Sequence[Conversation], keys: Sequence[Sequence[StreamKey]], session: Session
    ) -> list[list[Completion]]:
        """Actions, as sampled in each conversation."""
        return session.sample(self._requests(conversations, keys, EXECUTOR))

    def _requests(
        self, conversations: Sequence[Conversation], keys: Sequence[Sequence[StreamKey]], role: str
    ) -> list[Request]:
        policy = self.of(role)
        return [Request(tuple(c.context), tuple(k), policy=policy) for c, k in zip(conversations, keys, strict=True)]

    def turn(self, role: str, conversation: Conversation, said: Completion, trained: bool) -> dict[str, Any]:
        """A turn of a record."""
        context = {"context": list(conversation.context), "trainable": trained}
        return {"agent": role, "policy": self.of(role), **context, **action(said)}

    # ------------------------------------------------------------ single steps
    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        with _play(session, restorable=True) as play:
            places = chosen(expert_ways(play, tasks, name_draws(tasks)), self.steps, session)
            planners = [self.asked(self.plan_prompt, place.said.observation, "", session) for place in places]
            keys = [[_key(place, i, (), session) for i in range(self.group_size)] for place in places]
            plans = self.plan(planners, keys, session)
            steps = [
                _Step(place, planner, said, session.decode(said.tokens).strip(), [dataclasses.replace(key, turn=1)])
                for place, planner, own, found in zip(places, planners, keys, plans, strict=True)
                for said, key in zip(found, own, strict=True)
            ]
            firsts = steps[:: self.group_size] if self.executions else []
            for first in firsts:
                low = [_key(first.place, 0, (j,), session) for j in range(self.executions)]
                steps.append(dataclasses.replace(first, keys=low, low=True))
            executors = [self.asked(self.execute_prompt, s.place.said.observation, s.goal, session) for s in steps]
            actions = self.act(executors, [step.keys for step in steps], session)
            tried = [
                _Tried(step, executor, said, key)
                for step, executor, found in zip(steps, executors, actions, strict=True)
                for said, key in zip(found, step.keys, strict=True)
            ]
            for t, fork in zip(tried, carry_out(play, [(t.step.place, t.key, t.said) for t in tried]), strict=True):
                t.fork = fork
        return session.score(Forest.from_records([self._record(t, session) for t in tried]))

    def _record(self, t: _Tried, session: Session) -> dict[str, Any]:
        step, place, said = t.step, t.step.place, t.fork.said
        group = f"{group_of(session, place.draw)}/t{place.turn}" + ("/low" if step.low else "")
        number = t.key.path[-1] if step.low else t.key.attempt
        state = place.said.state
        act = self.turn(EXECUTOR, t.executor, t.said, step.low)
        act |= {"state": None if state is None else f"{state}|{step.goal}", "reward": said.reward}
        if said.action_error:
            act["info"] = {"action_error": said.action_error}
        plan = {
            **self.turn(PLANNER, step.planner, step.said, True),
            "state": None if state is None else f"plan:{state}",
        }
        first, *rest = [act] if step.low else [plan, act]
        readable = said.action_error != "malformed" if step.low else step.said.finish == "stop" and bool(step.goal)
        info: dict[str, Any] = {
            "format": float(readable),
            "execution": float(place.agrees(t.fork)),
            "sub_goal": step.goal,
        }
        columns: dict[str, Any] = {
            "prompt": first.pop("context"),
            "turns": [first, *rest],
            "reward": 0.0 if step.low else None,
            "rewards": {}
            if step.low
            else {"env": said.reward if said.reward is not None else float(bool(said.success))},
            "truncated": t.said.finish == "length",
            "final_state": said.state,
            "info": info,
        }
        if t.fork.failure is not None:
            columns["info"] |= {"failure": t.fork.failure}
            columns |= {"reward": None, "rewards": {"env": None}}
        return record(place.episode.task, group, f"{group}/{number}", session.sampling, **columns)


@dataclass(frozen=True)
class _Step:
    """A sub-goal at a place, and the streams of the actions under it."""

    place: Place
    planner: Conversation
    said: Completion
    goal: str
    keys: list[StreamKey]
    low: bool = False


@dataclass(eq=False)
class _Tried:
    """An action under a sub-goal, and what came of it."""

    step: _Step
    executor: Conversation
    said: Completion
    key: StreamKey
    fork: Episode = None  # type: ignore[assignment]  # set before anything reads it


def _play(session: Session, *, restorable: bool = False) -> Play:
    """Episodes in whose contexts nothing gathers: both agents read the newest observation alone."""
    play = Play(session, restorable=restorable)
    play.rules = dataclasses.replace(session.episode, context="window", window=0)
    return play


def _key(place: Place, attempt: int, path: tuple[int, ...], session: Session) -> StreamKey:
    return stream(session, place.draw, attempt, (place.turn, *path))


@dataclass(frozen=True)
class _InTurns:
    """`samples` episodes of each task: at every turn a sub-goal from the planner, then an action of the executor."""

    part: SubgoalSteps
    samples: int

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        part = self.part
        with _play(session) as play:
            episodes = play.start(tasks, name_draws(tasks), self.samples)
            rows: dict[int, list[dict[str, Any]]] = {id(e): [] for e in episodes}
            while running := play.running(episodes):
                turns = [rows[id(e)] for e in running]
                planners = [part.asked(part.plan_prompt, e.said.observation, "", session) for e in running]
                keys = [[dataclasses.replace(e.key, turn=len(t))] for e, t in zip(running, turns, strict=True)]
                plans = [said for (said,) in part.plan(planners, keys, session)]
                goals = [session.decode(said.tokens).strip() for said in plans]
                executors = [
                    part.asked(part.execute_prompt, e.said.observation, goal, session)
                    for e, goal in zip(running, goals, strict=True)
                ]
                keys = [[dataclasses.replace(key, turn=key.turn + 1)] for (key,) in keys]
                actions = [said for (said,) in part.act(executors, keys, session)]
                for own, planner, plan, executor, act in zip(turns, planners, plans, executors, actions, strict=True):
                    own += [part.turn(PLANNER, planner, plan, True), part.turn(EXECUTOR, executor, act, True)]
                    own[-2]["info"] = {"aside": "plan"}
                play.take(running, actions)
            sampling = dataclasses.asdict(session.sampling)
            return session.score(Forest.from_records([_with_plans(e, rows[id(e)], sampling) for e in episodes]))


def _with_plans(episode: Episode, turns: list[dict[str, Any]], sampling: dict[str, Any]) -> dict[str, Any]:
    """The episode's record with both agents' turns in the place of its own."""
    row = episode.record(sampling)
    if not turns:  # it ended before anybody spoke
        return row
    for own, said in zip(turns[1::2], episode.turns, strict=False):
        own |= {key: said[key] for key in ("state", "reward", "info") if key in said}
    first, *rest = turns
    return row | {"prompt": first["context"], "turns": [{k: v for k, v in first.items() if k != "context"}, *rest]}
