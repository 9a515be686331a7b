"""Plan and execute in environments (HiMAC): a planner writes sub-goals, an executor acts under one at a time."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gxpo.errors import ConfigError
from gxpo.forest import Forest
from gxpo.protocols import Completion, ContextUpdate, Message, Reply, Request, Sampling, Session, Task
from gxpo.rollouts.build import Episode, Limit, RolloutPart, Text, action, group_of, name_draws, stream
from gxpo.rollouts.context import Context, messages_of, opened, with_system
from gxpo.rollouts.episodes import Play

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
    """What a planner wrote under `prompt` in a state, and the sub-goals in it."""

    number: int
    prompt: tuple[int, ...]
    said: Completion
    goals: tuple[str, ...]
    state: str | None = None

    def turn(self) -> dict[str, Any]:
        """The first turn of a record."""
        state = None if self.state is None else f"plan:{self.state}"
        return {"agent": PLANNER, "context": list(self.prompt), "state": state, "info": {"aside": "plan"}} | action(
            self.said
        )


@dataclass(frozen=True)
class Planning(RolloutPart):
    """How plans are asked for, read and told: see `PlanExecute`. Empty prompts: the observation, and `TOLD`."""

    plan_tokens: Limit = 8
    delimiter: Text = ","
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
    """Episodes whose first turn is a plan."""

    def __init__(self, session: Session, how: Planning) -> None:
        super().__init__(session)
        self.how = how

    def plan(self, begun: Sequence[Sequence[Episode]], samples: int) -> list[list[Plan]]:
        """`samples` plans of each draw, whose episodes are given; one whose episodes all broke has empty plans."""
        session, how = self.session, self.how
        limit = min(how.plan_tokens, session.sampling.max_new_tokens)
        out = [[Plan(i, (), Completion([], [], "none"), ("",)) for i in range(samples)] for _ in begun]
        asked = []
        for at, episodes in enumerate(begun):
            alive = next((e for e in episodes if e.end is None), None)
            if alive is None:
                continue
            shown = opened(self.envs.instructions, filled(how.plan_prompt, alive.said.observation))
            start = session.chat.start(with_system(session.chat, session.system, shown), self.envs.tools)
            if len(start.context) + limit <= self.rules.max_context:
                keys = tuple(dataclasses.replace(alive.key, attempt=i, path=()) for i in range(samples))
                asked.append((at, alive.said.state, Request(tuple(start.context), keys)))
        short = dataclasses.replace(session.sampling, max_new_tokens=limit)
        found = session.sample([request for _, _, request in asked], short) if asked else []
        for (at, state, request), plans in zip(asked, found, strict=True):
            out[at] = [
                Plan(i, request.prompt, said, sub_goals(session.decode(said.tokens), how.delimiter), state)
                for i, said in enumerate(plans)
            ]
        return out

    def guide(self, episode: Episode, plan: Plan, first: Episode | None) -> None:
        """The episode follows the plan, which it has from `first`, another episode under it, where there is one."""
        how = self.how
        context = Guided(
            episode.context.chat,
            self.rules,
            self.envs.instructions,
            self.envs.tools,
            self.session.system,
            goals=plan.goals,
            done=how.done,
            template=how.execute_prompt or TOLD,
        )
        episode.context, episode.opening = context, context.open(episode.said.observation)
        episode.turns, episode.replies = [plan.turn()], [None]
        if first is not None:
            episode.base, episode.inherited = first, 1

    def take(self, running: Sequence[Episode], actions: Sequence[Completion]) -> None:
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
        answers = self.envs.step(moves) if moves else {}
        for episode in running:
            if episode.name in answers:
                episode.step(answers[episode.name], self.rules.max_turns)


def attempts(
    how: Planning,
    tasks: Sequence[Task],
    samples: int,
    copies: int,
    session: Session,
    *,
    sampling: Sampling,
    phase: str,
    trained: tuple[bool, bool],
    plans: Sequence[Sequence[Plan]] | None = None,
) -> tuple[Forest, list[list[Plan]]]:
    """`copies` executions of each of `samples` plans of every task, not scored, and the plans.

    sampling  of the executions
    trained   whether plans and executions are
    plans     of each task, instead of new ones: then the group is (task, plan), else the task

    Execution j of plan i is sampled under (seed, step, draw, i, path (j,), turn), turns counted from 1; the plan under
    (seed, step, draw, i), and so are the turns of its trial.
    """
    draws = name_draws(tasks)
    play = GuidedPlay(session, how)
    with play:
        each = samples * copies
        every = play.start(tasks, draws, each)
        begun = [every[i : i + each] for i in range(0, len(every), each)]
        own = play.plan(begun, samples) if plans is None else [list(given) for given in plans]
        for draw, episodes, made in zip(draws, begun, own, strict=True):
            for i, plan in enumerate(made):
                first = None
                for j, episode in enumerate(episodes[i * copies : (i + 1) * copies]):
                    path = () if phase == "macro" else (j,)
                    episode.key = stream(session, draw, plan.number, path)
                    if plans is not None:
                        episode.group = f"{group_of(session, draw)}/z{plan.number}"
                    if episode.end is None:
                        play.guide(episode, plan, first)
                        first = first or episode
        play.finish(every, sampling)
    recorded = dataclasses.asdict(session.sampling)
    rows = [_record(e, recorded, phase, trained) for e in every]
    return Forest.from_records(rows), own


def _record(episode: Episode, sampling: Mapping[str, Any], phase: str, trained: tuple[bool, bool]) -> dict[str, Any]:
    row = episode.record(dict(sampling))
    for turn in row["turns"]:
        planned = turn["agent"] == PLANNER
        turn |= {"agent": PLANNER if planned else EXECUTOR, "trainable": trained[0 if planned else 1]}
    goals = getattr(episode.context, "goals", ())  # none where the environment broke before the first action
    row["info"] |= {"phase": phase, "plan": episode.key.attempt, "sub_goals": list(goals)}
    return row


def two_phases(
    how: Planning,
    tasks: Sequence[Task],
    sizes: tuple[int, int],
    phase: str,
    trial: Sampling,
    session: Session,
) -> Forest:
    """The episodes of one of `PlanExecute`'s phases, scored; sizes: plans of a task, executions of the best of them."""
    blueprints, group_size = sizes
    trials, plans = attempts(how, tasks, blueprints, 1, session, sampling=trial, phase="macro", trained=(True, False))
    trials = session.score(trials)
    if phase == "macro":
        return trials
    session.budget.discarded += trials.n_trajectories
    outcome = [-math.inf if math.isnan(x) else x for x in trials.outcome.tolist()]
    best = []
    for begin, made in zip(range(0, len(outcome), blueprints), plans, strict=True):
        best.append([made[max(range(blueprints), key=lambda i: outcome[begin + i])]])
    forest, _ = attempts(
        how, tasks, 1, group_size, session, sampling=session.sampling, phase=phase, trained=(False, True), plans=best
    )
    return session.score(forest)
