"""Single-step sub-goals (Hi-Agent): a planner is rewarded for a single action under its sub-goal."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gxpo.forest.forest import Forest
from gxpo.models.chat.messages import opened, with_system
from gxpo.parts.protocols import Completion, Conversation, Message, Request, Session, StreamKey, Task
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.attempts import Episode
from gxpo.sampling.rollouts.build import Count, Limit, RolloutPart, Text, action, group_of, name_draws, record, stream
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.expert_prefix import Place, carry_out, draw_places, expert_ways
from gxpo.sampling.rollouts.graph import SHARED
from gxpo.sampling.rollouts.plan_episodes import EXECUTOR, PLANNER, SUB_GOAL_PROMPT, check_prompts, fill_template
from gxpo.sampling.rollouts.reference import EXPERTS


@part("subgoal_steps", stage="rollout")
@dataclass(frozen=True)
class SubgoalSteps(RolloutPart):
    """Sub-goals at places on an expert's way, with one action under each, and `executions` actions under one of them.

    There are `group_size` sub-goals at each of `steps` places:

    high  "s{step}/{task}/t{turn}": a sub-goal, which is trained, and an action under it, which is not. The outcome is
          the environment's reward of the action
    low   "s{step}/{task}/t{turn}/low": actions under the first sub-goal of the place, trained; outcome 0

    Both note in info, as 0 or 1, for a reward to weigh (`reward.shape.noted`):
    "execution"  the action led to the state that the expert's leads to; where states are unknown, it is the same action
    "format"     high: the sub-goal ended by itself and is not empty; low: the environment could read the action

    Planner and executor read the newest observation alone, each in a context of its own, new every time. The
    environment is put back to the place for every action. No episode is played, so the cost is G actions a place and
    not G to the power of the turns. Held-out tasks are attempted as episodes: at every turn a sub-goal, then an action.

    group_size      G
    executions      actions of the low group; 0: the executor is not trained
    steps           places of each task, drawn on the expert's way; 0: all of them
    plan_tokens     longest sub-goal
    plan_prompt     the planner's prompt, with {prompt}, the observation; "": the observation itself
    execute_prompt  the executor's prompt, with {prompt} and {plan}
    policy          "shared": one policy for both; "per_role": each trains an adapter of its own

    At a place before turn t, the sub-goal i has the stream (seed, step, draw, i, path (t,)), the action under it
    the same with turn 1, member j of the low group (seed, step, draw, 0, path (t, j)).

    Source: Hi-Agent, arXiv 2510.14388, after its abstract and reviews. There, too, states are an expert's.
    """

    group_size: Count = 8
    executions: Limit = 8
    steps: Limit = 1
    plan_tokens: Count = 16
    plan_prompt: str = ""
    execute_prompt: Text = SUB_GOAL_PROMPT
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
        """Most actions of a trajectory."""
        return 2

    def evaluation(self, samples: int) -> _InTurns:
        """Return the rollout for held-out tasks: whole episodes, a sub-goal and an action every turn."""
        return _InTurns(self, samples)

    def of(self, role: str) -> str:
        """Return the name of a role's policy."""
        return SHARED if self.policy == "shared" else role

    def conversation_about(
        self, template: str, observation: str | Sequence[Message], plan: str, session: Session
    ) -> Conversation:
        """Start a conversation of one observation, to be answered next."""
        assert session.envs is not None
        messages = opened(session.envs.instructions, fill_template(template, observation, plan))
        return session.chat.start(with_system(session.chat, session.system, messages), session.envs.tools)

    def plan(
        self, conversations: Sequence[Conversation], keys: Sequence[Sequence[StreamKey]], session: Session
    ) -> list[list[Completion]]:
        """Sample sub-goals in each conversation."""
        short = min(self.plan_tokens, session.sampling.max_new_tokens)
        requests = self._requests(conversations, keys, PLANNER)
        return session.sample(requests, dataclasses.replace(session.sampling, max_new_tokens=short))

    def act(
        self, conversations: Sequence[Conversation], keys: Sequence[Sequence[StreamKey]], session: Session
    ) -> list[list[Completion]]:
        """Sample actions in each conversation."""
        return session.sample(self._requests(conversations, keys, EXECUTOR))

    def _requests(
        self, conversations: Sequence[Conversation], keys: Sequence[Sequence[StreamKey]], role: str
    ) -> list[Request]:
        policy = self.of(role)
        return [Request(tuple(c.context), tuple(k), policy=policy) for c, k in zip(conversations, keys, strict=True)]

    def turn(self, role: str, conversation: Conversation, completion: Completion, is_trained: bool) -> dict[str, Any]:
        """Build a turn of a record."""
        context = {"context": list(conversation.context), "trainable": is_trained}
        return {"agent": role, "policy": self.of(role), **context, **action(completion)}

    # ------------------------------------------------------------ single steps
    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        with _play(session, restorable=True) as play:
            # the planner: `group_size` sub-goals at every place, each with one action of the executor
            places = draw_places(expert_ways(play, tasks, name_draws(tasks)), self.steps, session)
            planners = [
                self.conversation_about(self.plan_prompt, place.time_step.observation, "", session) for place in places
            ]
            keys = [[_key(place, i, (), session) for i in range(self.group_size)] for place in places]
            plans = self.plan(planners, keys, session)
            steps = [
                _Step(
                    place,
                    planner,
                    completion,
                    session.decode(completion.tokens).strip(),
                    [dataclasses.replace(key, turn=1)],
                )
                for place, planner, place_keys, completions in zip(places, planners, keys, plans, strict=True)
                for completion, key in zip(completions, place_keys, strict=True)
            ]
            # the low group: further actions under each place's first sub-goal
            firsts = steps[:: self.group_size] if self.executions else []
            for first in firsts:
                low_keys = [_key(first.place, 0, (j,), session) for j in range(self.executions)]
                steps.append(dataclasses.replace(first, keys=low_keys, low=True))
            # all actions are sampled in one call, and each is carried out in an environment of its own
            executors = [
                self.conversation_about(self.execute_prompt, s.place.time_step.observation, s.goal, session)
                for s in steps
            ]
            actions = self.act(executors, [step.keys for step in steps], session)
            attempts = [
                _Trial(step, executor, completion, key)
                for step, executor, completions in zip(steps, executors, actions, strict=True)
                for completion, key in zip(completions, step.keys, strict=True)
            ]
            for t, fork in zip(
                attempts, carry_out(play, [(t.step.place, t.key, t.completion) for t in attempts]), strict=True
            ):
                t.fork = fork
        return session.score(Forest.from_records([self._record(t, session) for t in attempts]))

    def _record(self, t: _Trial, session: Session) -> dict[str, Any]:
        """Build the record of an action under a sub-goal, with the sub-goal's turn unless it is of the low group."""
        step, place, answer = t.step, t.step.place, t.fork.time_step
        group = f"{group_of(session, place.draw)}/t{place.turn}" + ("/low" if step.low else "")
        number = t.key.path[-1] if step.low else t.key.attempt
        state = place.time_step.state
        # another sub-goal is another decision, so it is part of the executor's state
        action_turn = self.turn(EXECUTOR, t.executor, t.completion, step.low)
        action_turn |= {"state": None if state is None else f"{state}|{step.goal}", "reward": answer.reward}
        if answer.action_error:
            action_turn["info"] = {"action_error": answer.action_error}
        plan_turn = {
            **self.turn(PLANNER, step.planner, step.completion, True),
            "state": None if state is None else f"plan:{state}",
        }
        first, *rest = [action_turn] if step.low else [plan_turn, action_turn]
        # the format is that of the turn which is trained
        is_readable = (
            answer.action_error != "malformed" if step.low else step.completion.finish == "stop" and bool(step.goal)
        )
        info: dict[str, Any] = {
            "format": float(is_readable),
            "execution": float(place.agrees(t.fork)),
            "sub_goal": step.goal,
        }
        columns: dict[str, Any] = {
            "prompt": first.pop("context"),
            "turns": [first, *rest],
            "reward": 0.0 if step.low else None,
            "rewards": {}
            if step.low
            else {"env": answer.reward if answer.reward is not None else float(bool(answer.success))},
            "truncated": t.completion.finish == "length",
            "final_state": answer.state,
            "info": info,
        }
        # a broken environment leaves the attempt unscored
        if t.fork.failure is not None:
            columns["info"] |= {"failure": t.fork.failure}
            columns |= {"reward": None, "rewards": {"env": None}}
        return record(place.episode.task, group, f"{group}/{number}", session.sampling, **columns)


@dataclass(frozen=True)
class _Step:
    """A sub-goal at a place, with the streams of the actions under it."""

    place: Place
    planner: Conversation
    completion: Completion
    goal: str
    keys: list[StreamKey]
    low: bool = False


@dataclass(eq=False)
class _Trial:
    """An action under a sub-goal, and the episode that it was carried out in."""

    step: _Step
    executor: Conversation
    completion: Completion
    key: StreamKey
    fork: Episode = None  # type: ignore[assignment]  # set before anything reads it


def _play(session: Session, *, restorable: bool = False) -> Play:
    """Make a play whose contexts hold the newest observation alone, which is all that both agents read."""
    play = Play(session, restorable=restorable)
    play.rules = dataclasses.replace(session.episode, context="window", window=0)
    return play


def _key(place: Place, attempt: int, path: tuple[int, ...], session: Session) -> StreamKey:
    return stream(session, place.draw, attempt, (place.turn, *path))


@dataclass(frozen=True)
class _InTurns:
    """Rollout for held-out tasks: `samples` episodes each, with a sub-goal and then an action every turn."""

    part: SubgoalSteps
    samples: int

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        part = self.part
        with _play(session) as play:
            episodes = play.start(tasks, name_draws(tasks), self.samples)
            rows: dict[int, list[dict[str, Any]]] = {id(e): [] for e in episodes}
            while active := play.active(episodes):
                turns = [rows[id(e)] for e in active]
                # the planner reads the observation, the executor the observation and its sub-goal: two streams a turn
                planners = [
                    part.conversation_about(part.plan_prompt, e.time_step.observation, "", session) for e in active
                ]
                keys = [[dataclasses.replace(e.key, turn=len(t))] for e, t in zip(active, turns, strict=True)]
                plans = [completion for (completion,) in part.plan(planners, keys, session)]
                goals = [session.decode(completion.tokens).strip() for completion in plans]
                executors = [
                    part.conversation_about(part.execute_prompt, e.time_step.observation, goal, session)
                    for e, goal in zip(active, goals, strict=True)
                ]
                keys = [[dataclasses.replace(key, turn=key.turn + 1)] for (key,) in keys]
                actions = [completion for (completion,) in part.act(executors, keys, session)]
                # turns are collected here, because the play records one agent's alone
                for episode_turns, planner, plan, executor, act in zip(
                    turns, planners, plans, executors, actions, strict=True
                ):
                    episode_turns += [part.turn(PLANNER, planner, plan, True), part.turn(EXECUTOR, executor, act, True)]
                    episode_turns[-2]["info"] = {"aside": "plan"}
                play.take(active, actions)
            sampling = dataclasses.asdict(session.sampling)
            return session.score(Forest.from_records([_with_plans(e, rows[id(e)], sampling) for e in episodes]))


def _with_plans(episode: Episode, turns: list[dict[str, Any]], sampling: dict[str, Any]) -> dict[str, Any]:
    """Build the episode's record with both agents' turns in the place of its own."""
    row = episode.record(sampling)
    if not turns:  # it ended before its first turn
        return row
    for turn, played_turn in zip(turns[1::2], episode.turns, strict=False):
        turn |= {key: played_turn[key] for key in ("state", "reward", "info") if key in played_turn}
    first, *rest = turns
    return row | {"prompt": first["context"], "turns": [{k: v for k, v in first.items() if k != "context"}, *rest]}
