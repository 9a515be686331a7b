"""Plan, then execute: a planner writes the beginning of an answer, or sub-goals that an executor acts under in turn."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Completion, ContextUpdate, Message, Reply, Request, Sampling, Session, Task, TimeStep
from gxpo.sampling.rollouts.build import (
    Episode,
    Limit,
    Prompt,
    RolloutPart,
    Text,
    action,
    group_of,
    name_draws,
    requests,
    sample_within,
    stream,
)
from gxpo.sampling.rollouts.context import Context, messages_of, opened, with_system
from gxpo.sampling.rollouts.episodes import Play

PLANNER, EXECUTOR = "planner", "executor"
TOLD = "Sub-goal: {plan}\n\n{prompt}"
_HOLE = re.compile(r"\{(prompt|plan)\}")


def filled(template: str, observation: str | Sequence[Message], plan: str = "") -> list[Message]:
    """An observation as messages, the last of which says the template: {prompt} is what it said, {plan} the plan.

    An empty template leaves them as they are.

    >>> filled("Now: {plan}. {prompt}", "a door", "open it")
    [{'role': 'user', 'content': 'Now: open it. a door'}]
    """
    *before, last = messages_of(observation)
    said = {"prompt": str(last.get("content") or ""), "plan": plan}
    content = _HOLE.sub(lambda hole: said[hole[1]], template) if template else said["prompt"]
    return [*before, {**last, "content": content}]


def sub_goals(text: str, delimiter: str) -> tuple[str, ...]:
    """The sub-goals that a plan names, in order; a plan that names none has one, the empty text.

    >>> sub_goals("fetch the key, open the door,", ","), sub_goals(" ", ",")
    (('fetch the key', 'open the door'), ('',))
    """
    return tuple(goal.strip() for goal in text.split(delimiter) if goal.strip()) or ("",)


@dataclass
class Guided(Context):
    """A context in which every observation stands beside the sub-goal in force.

    An action that says `done` is freed of it, and the next sub-goal comes into force; the last one stays.

    only_done  the newest action said that and nothing else: the environment is told nothing
    """

    goals: tuple[str, ...] = ("",)
    done: str = "<sub_done>"
    template: str = TOLD
    active: int = 0
    only_done: bool = False
    seen: str | Sequence[Message] = ""  # the newest observation, without a sub-goal

    @property
    def goal(self) -> str:
        """The sub-goal in force."""
        return self.goals[self.active]

    def open(self, observation: str | Sequence[Message]) -> ContextUpdate:
        self.seen = observation
        return super().open(filled(self.template, observation, self.goal))

    def observe(self, observation: str | Sequence[Message]) -> ContextUpdate:
        self.seen = observation
        return super().observe(filled(self.template, observation, self.goal))

    def again(self) -> ContextUpdate:
        """The newest observation once more, beside the sub-goal that is in force now."""
        return self.observe(self.seen)

    def act(self, tokens: Sequence[int]) -> Reply:
        reply = super().act(tokens)
        self.only_done = False
        if self.done not in reply.content:
            return reply
        reply = dataclasses.replace(reply, content=reply.content.replace(self.done, "").strip())
        if self.active + 1 < len(self.goals):
            self.active += 1
            self.only_done = not reply.content and not reply.calls
        return reply


@dataclass(frozen=True)
class Plan:
    """What a planner wrote under `prompt` in a state; in an environment with the sub-goals in it."""

    number: int
    prompt: tuple[int, ...]
    said: Completion
    goals: tuple[str, ...] = ("",)
    state: str | None = None

    def turn(self, **columns: Any) -> dict[str, Any]:
        """The first turn of a record."""
        return {"agent": PLANNER, "context": list(self.prompt), "state": self.state, **action(self.said), **columns}


@dataclass(frozen=True)
class Planning(RolloutPart):
    """How plans are asked for, read and told: see `PlanExecute`. Empty prompts: the observation, and `TOLD`."""

    plan_tokens: Limit = 8
    delimiter: Text = "\n"
    plan_prompt: str = ""
    execute_prompt: str = ""
    done: Text = "<sub_done>"

    def __post_init__(self) -> None:
        check_prompts(self.plan_prompt, self.execute_prompt)


def check_prompts(plan_prompt: str, execute_prompt: str) -> None:
    """Refuse prompts of a planner and an executor that lack their places; an empty one is the observation itself."""
    places = (("plan_prompt", plan_prompt, ("{prompt}",)), ("execute_prompt", execute_prompt, ("{prompt}", "{plan}")))
    for name, text, holes in places:
        if text and any(hole not in text for hole in holes):
            raise ConfigError(f"rollout.{name} must hold {' and '.join(holes)}, or be empty: {text!r}")


class GuidedPlay(Play):
    """Attempts whose first turn is a plan."""

    def __init__(self, session: Session, how: Planning) -> None:
        super().__init__(session)
        self.how = how

    # ------------------------------------------------------------ planning
    def plan(self, begun: Sequence[Sequence[Episode]], samples: int) -> list[list[Plan]]:
        """`samples` plans of each draw, whose attempts are given; one whose attempts all broke has empty plans."""
        return self._sub_goals(begun, samples) if self.world else self._beginnings(begun, samples)

    def _planned(self, requests: Sequence[Request], *stop: str) -> list[list[Completion]]:
        sampling, limit = self.session.sampling, min(self.how.plan_tokens, self.session.sampling.max_new_tokens)
        short = dataclasses.replace(sampling, max_new_tokens=limit, stop=(*sampling.stop, *stop))
        return self.session.sample(requests, short) if requests else []

    def _beginnings(self, begun: Sequence[Sequence[Episode]], samples: int) -> list[list[Plan]]:
        firsts = [attempts[0] for attempts in begun]
        prompts = [self._asked(e.task, self.how.plan_prompt, "") for e in firsts]
        found = self._planned(
            requests(prompts, [e.key.task for e in firsts], samples, self.session), self.how.delimiter
        )
        return [
            [Plan(i, prompt, said, state=e.task.id) for i, said in enumerate(plans)]
            for e, prompt, plans in zip(firsts, prompts, found, strict=True)
        ]

    def _asked(self, task: Task, template: str, plan: str) -> tuple[int, ...]:
        if not template:
            return self.session.encode(task)
        if not isinstance(task.prompt, str):
            raise ConfigError(
                f"rollout.plan_prompt and execute_prompt need a text, and the prompt of {task.id} is none"
            )
        text = template.replace("{prompt}", task.prompt).replace("{plan}", plan)
        return self.session.encode(dataclasses.replace(task, prompt=text))

    def _sub_goals(self, begun: Sequence[Sequence[Episode]], samples: int) -> list[list[Plan]]:
        session, how = self.session, self.how
        limit = min(how.plan_tokens, session.sampling.max_new_tokens)
        out = [[Plan(i, (), Completion([], [], "none")) for i in range(samples)] for _ in begun]
        asked: list[tuple[int, str | None, Request]] = []
        for at, episodes in enumerate(begun):
            alive = next((e for e in episodes if e.end is None), None)
            if alive is None:
                continue
            shown = opened(self.envs.instructions, filled(how.plan_prompt, alive.said.observation))
            start = session.chat.start(with_system(session.chat, session.system, shown), self.envs.tools)
            if len(start.context) + limit <= self.rules.max_context:
                keys = tuple(dataclasses.replace(alive.key, attempt=i, path=()) for i in range(samples))
                asked.append((at, alive.said.state, Request(tuple(start.context), keys)))
        found = self._planned([request for _, _, request in asked])
        for (at, state, request), plans in zip(asked, found, strict=True):
            state = None if state is None else f"plan:{state}"
            out[at] = [
                Plan(i, request.prompt, said, sub_goals(session.decode(said.tokens), how.delimiter), state)
                for i, said in enumerate(plans)
            ]
        return out

    # ------------------------------------------------------------ executing
    def guide(self, episode: Episode, plan: Plan, first: Episode | None) -> None:
        """The attempt follows the plan, which it has from `first`, another attempt under it, where there is one."""
        how, session = self.how, self.session
        if self.world:
            context = Guided(
                episode.context.chat, self.rules, self.envs.instructions, self.envs.tools, session.system,
                goals=plan.goals, done=how.done, template=how.execute_prompt or TOLD,
            )  # fmt: skip
            episode.context, episode.opening = context, context.open(episode.said.observation)
            episode.turns = [plan.turn(info={"aside": "plan"})]
        else:
            shown = (*plan.prompt, *plan.said.tokens)
            if how.execute_prompt:
                shown = self._asked(episode.task, how.execute_prompt, session.decode(plan.said.tokens))
            episode.context, episode.opening = Prompt(shown), ContextUpdate(shown, rebuilt=True)
            episode.said = TimeStep("", f"{episode.task.id}:{'.'.join(map(str, plan.said.tokens))}")
            episode.turns, episode.sampled = [plan.turn()], plan.said
        episode.replies = [None]
        if first is not None:
            episode.base, episode.inherited = first, 1

    def finish(self, episodes: Sequence[Episode], sampling: Sampling | None = None) -> None:
        """Executes every plan; where it has ended an answer, the execution is empty."""
        if self.world:
            return super().finish(episodes, sampling)
        rooms = {e: room for e in episodes if (room := self._room(e, self.session.sampling.max_new_tokens))}
        found = sample_within(self.session, [e.request() for e in rooms], [*rooms.values()], sampling)
        executed = {e: completion for e, (completion,) in zip(rooms, found, strict=True)}
        for episode in episodes:
            plan = episode.sampled
            assert plan is not None
            episode.act(executed.get(episode) or Completion([], [], plan.finish, policy_version=plan.policy_version))

    def _room(self, episode: Episode, limit: int) -> int:
        """How many tokens an execution may have; none where the plan has ended the answer."""
        plan = episode.sampled
        assert plan is not None
        if self.how.execute_prompt:
            return limit
        ended = plan.finish == "stop" and self.how.delimiter not in self.session.decode(plan.tokens)
        return 0 if ended else limit - len(plan.tokens)

    def moves(self, running: Sequence[Episode], actions: Sequence[Completion]) -> dict[str, Reply]:
        moves: dict[str, Reply] = {}
        for episode, completion in zip(running, actions, strict=True):
            context = episode.context
            assert isinstance(context, Guided)
            summary, goal = context.summarising, context.goal
            reply = episode.act(completion)
            turn = episode.turns[-1]
            if turn["state"] is not None:  # another sub-goal is another decision
                turn["state"] += f"|{goal}"
            if summary:
                episode.opening = context.summarised(reply.content)
            elif context.only_done:
                turn["info"], episode.replies[-1] = {"aside": "sub_done"}, None
                episode.moves -= 1
                episode.opening = context.again()
            else:
                moves[episode.name] = reply
        return moves


def attempts(
    how: Planning,
    tasks: Sequence[Task],
    samples: int,
    copies: int,
    session: Session,
    *,
    phase: str,
    trained: tuple[bool, bool],
    sampling: Sampling | None = None,
    plans: Sequence[Sequence[Plan]] | None = None,
) -> tuple[Forest, list[list[Plan]]]:
    """`copies` executions of each of `samples` plans of every task, scored, and the plans.

    sampling  of the executions; None: the run's
    trained   whether plans and executions are
    plans     of each task, instead of new ones: then the group is (task, plan), else the task

    Execution j of plan i is sampled under (seed, step, draw, i, path (j,), turn), turns counted from 1; the plan under
    (seed, step, draw, i), and so are the turns of its trial.
    """
    draws, each = name_draws(tasks), samples * copies
    play = GuidedPlay(session, how)
    with play:
        every = play.start(tasks, draws, each)
        begun = [every[i : i + each] for i in range(0, len(every), each)]
        own = play.plan(begun, samples) if plans is None else [list(given) for given in plans]
        for draw, episodes, made in zip(draws, begun, own, strict=True):
            for i, plan in enumerate(made):
                first = None
                for j, episode in enumerate(episodes[i * copies : (i + 1) * copies]):
                    episode.key = stream(session, draw, plan.number, () if phase == "macro" else (j,))
                    if plans is not None:
                        episode.group = f"{group_of(session, draw)}/z{plan.number}"
                        episode.label = None if play.world else f"{episode.group}/{j}"
                    if episode.end is None:
                        play.guide(episode, plan, first)
                        first = first or episode
        play.finish(every, sampling or session.sampling)
    recorded = dataclasses.asdict(session.sampling)
    forest = Forest.from_records([_record(e, recorded, phase, trained) for e in every])
    if play.world or not how.execute_prompt:
        return session.score(forest), own
    return session.score(forest, [session.decode(e.sampled.tokens) for e in every if e.sampled is not None]), own


def _record(episode: Episode, sampling: Mapping[str, Any], phase: str, trained: tuple[bool, bool]) -> dict[str, Any]:
    row = episode.record(dict(sampling))
    for turn in row["turns"]:
        planned = turn["agent"] == PLANNER
        turn |= {"agent": PLANNER if planned else EXECUTOR, "trainable": trained[0 if planned else 1]}
    row["info"] = {**row["info"], "phase": phase, "plan": episode.key.attempt}
    if not isinstance(episode.context, Prompt):  # it has no sub-goals where the environment broke before an action
        row["info"]["sub_goals"] = list(getattr(episode.context, "goals", ()))
    return row
