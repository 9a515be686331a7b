"""Attempts that begin with a plan: the beginning of an answer, or sub-goals that an executor acts under in turn."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.models.chat.messages import messages_of, opened, with_system
from gxpo.parts.protocols import Completion, ContextUpdate, Message, Reply, Request, Sampling, Session, Task, TimeStep
from gxpo.sampling.rollouts.attempts import Episode, Prompt
from gxpo.sampling.rollouts.build import (
    Limit,
    RolloutPart,
    Text,
    action,
    group_of,
    name_draws,
    requests,
    sample_within,
    stream,
)
from gxpo.sampling.rollouts.context import Context
from gxpo.sampling.rollouts.episodes import Play

PLANNER, EXECUTOR = "planner", "executor"
SUB_GOAL_PROMPT = "Sub-goal: {plan}\n\n{prompt}"
_HOLE = re.compile(r"\{(prompt|plan)\}")


def fill_template(template: str, observation: str | Sequence[Message], plan: str = "") -> list[Message]:
    """Turn an observation into messages, the last one put into a template: {prompt} is its text, {plan} the plan.

    An empty template leaves the messages as they are.

    >>> fill_template("Now: {plan}. {prompt}", "a door", "open it")
    [{'role': 'user', 'content': 'Now: open it. a door'}]
    """
    *before, last = messages_of(observation)
    values = {"prompt": str(last.get("content") or ""), "plan": plan}
    content = _HOLE.sub(lambda hole: values[hole[1]], template) if template else values["prompt"]
    return [*before, {**last, "content": content}]


def sub_goals(text: str, delimiter: str) -> tuple[str, ...]:
    """Split a plan into its sub-goals, in order; a plan without any has one, the empty text.

    >>> sub_goals("fetch the key, open the door,", ","), sub_goals(" ", ",")
    (('fetch the key', 'open the door'), ('',))
    """
    return tuple(goal.strip() for goal in text.split(delimiter) if goal.strip()) or ("",)


@dataclass
class Guided(Context):
    """Context in which every observation is shown together with the current sub-goal.

    The text `done` in an action is removed, and the next sub-goal becomes the current one; the last one stays.

    only_done  the newest action was `done` and nothing else: the environment is told nothing
    """

    goals: tuple[str, ...] = ("",)
    done: str = "<sub_done>"
    template: str = SUB_GOAL_PROMPT
    active: int = 0
    only_done: bool = False
    latest_observation: str | Sequence[Message] = ""  # the newest observation, without a sub-goal

    @property
    def goal(self) -> str:
        """The current sub-goal."""
        return self.goals[self.active]

    def open(self, observation: str | Sequence[Message]) -> ContextUpdate:
        self.latest_observation = observation
        return super().open(fill_template(self.template, observation, self.goal))

    def observe(self, observation: str | Sequence[Message]) -> ContextUpdate:
        self.latest_observation = observation
        return super().observe(fill_template(self.template, observation, self.goal))

    def repeat_goal(self) -> ContextUpdate:
        """Show the newest observation once more, together with the sub-goal that is current now."""
        return self.observe(self.latest_observation)

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
    """A planner's completion under `prompt` in a state; in an environment with its sub-goals."""

    number: int
    prompt: tuple[int, ...]
    completion: Completion
    goals: tuple[str, ...] = ("",)
    state: str | None = None

    def turn(self, **columns: Any) -> dict[str, Any]:
        """Build the first turn of a record."""
        return {
            "agent": PLANNER,
            "context": list(self.prompt),
            "state": self.state,
            **action(self.completion),
            **columns,
        }


@dataclass(frozen=True)
class Planning(RolloutPart):
    """Base class of rollouts that plan: options for asking, reading and showing plans, see `PlanExecute`.

    An empty prompt stands for the observation itself (of the planner), and for `SUB_GOAL_PROMPT` (of the executor).
    """

    plan_tokens: Limit = 8
    delimiter: Text = "\n"
    plan_prompt: str = ""
    execute_prompt: str = ""
    done: Text = "<sub_done>"

    def __post_init__(self) -> None:
        check_prompts(self.plan_prompt, self.execute_prompt)


def check_prompts(plan_prompt: str, execute_prompt: str) -> None:
    """Raise ConfigError for a planner's or executor's prompt that lacks its fields; empty ones are allowed."""
    places = (("plan_prompt", plan_prompt, ("{prompt}",)), ("execute_prompt", execute_prompt, ("{prompt}", "{plan}")))
    for name, text, holes in places:
        if text and any(hole not in text for hole in holes):
            raise ConfigError(f"rollout.{name} must hold {' and '.join(holes)}, or be empty: {text!r}")


class GuidedPlay(Play):
    """Play of attempts whose first turn is a plan."""

    def __init__(self, session: Session, planning: Planning) -> None:
        super().__init__(session)
        self.planning = planning

    # ------------------------------------------------------------ planning
    def plan(self, attempts_by_draw: Sequence[Sequence[Episode]], samples: int) -> list[list[Plan]]:
        """Sample `samples` plans for each draw; one whose attempts all broke gets empty plans."""
        return (
            self._plan_sub_goals(attempts_by_draw, samples)
            if self.world
            else self._plan_answers(attempts_by_draw, samples)
        )

    def _sample_plans(self, requests: Sequence[Request], *stop: str) -> list[list[Completion]]:
        sampling, limit = self.session.sampling, min(self.planning.plan_tokens, self.session.sampling.max_new_tokens)
        short = dataclasses.replace(sampling, max_new_tokens=limit, stop=(*sampling.stop, *stop))
        return self.session.sample(requests, short) if requests else []

    def _plan_answers(self, attempts_by_draw: Sequence[Sequence[Episode]], samples: int) -> list[list[Plan]]:
        firsts = [attempts[0] for attempts in attempts_by_draw]
        prompts = [self._prompt_ids(e.task, self.planning.plan_prompt, "") for e in firsts]
        plans_by_draw = self._sample_plans(
            requests(prompts, [e.key.task for e in firsts], samples, self.session), self.planning.delimiter
        )
        return [
            [Plan(i, prompt, completion, state=e.task.id) for i, completion in enumerate(plans)]
            for e, prompt, plans in zip(firsts, prompts, plans_by_draw, strict=True)
        ]

    def _prompt_ids(self, task: Task, template: str, plan: str) -> tuple[int, ...]:
        if not template:
            return self.session.encode(task)
        if not isinstance(task.prompt, str):
            raise ConfigError(
                f"rollout.plan_prompt and execute_prompt need a text, and the prompt of {task.id} is none"
            )
        text = template.replace("{prompt}", task.prompt).replace("{plan}", plan)
        return self.session.encode(dataclasses.replace(task, prompt=text))

    def _plan_sub_goals(self, attempts_by_draw: Sequence[Sequence[Episode]], samples: int) -> list[list[Plan]]:
        """Sample sub-goals for each draw, under the first observation of an attempt that is alive."""
        session, planning = self.session, self.planning
        limit = min(planning.plan_tokens, session.sampling.max_new_tokens)
        plans_by_draw = [[Plan(i, (), Completion([], [], "none")) for i in range(samples)] for _ in attempts_by_draw]
        questions: list[tuple[int, str | None, Request]] = []
        for draw_index, episodes in enumerate(attempts_by_draw):
            # attempts of a draw share their first observation, so any that did not break will do
            alive = next((e for e in episodes if e.end is None), None)
            if alive is None:
                continue
            messages = opened(self.envs.instructions, fill_template(planning.plan_prompt, alive.time_step.observation))
            start = session.chat.start(with_system(session.chat, session.system, messages), self.envs.tools)
            if len(start.context) + limit <= self.rules.max_context:
                keys = tuple(dataclasses.replace(alive.key, attempt=i, path=()) for i in range(samples))
                questions.append((draw_index, alive.time_step.state, Request(tuple(start.context), keys)))
        completions_by_draw = self._sample_plans([request for _, _, request in questions])
        for (draw_index, state, request), plans in zip(questions, completions_by_draw, strict=True):
            state = None if state is None else f"plan:{state}"
            plans_by_draw[draw_index] = [
                Plan(
                    i,
                    request.prompt,
                    completion,
                    sub_goals(session.decode(completion.tokens), planning.delimiter),
                    state,
                )
                for i, completion in enumerate(plans)
            ]
        return plans_by_draw

    # ------------------------------------------------------------ executing
    def guide(self, episode: Episode, plan: Plan, first: Episode | None) -> None:
        """Put an attempt under a plan; `first`, an earlier attempt under the same plan, already stores its turn."""
        planning, session = self.planning, self.session
        if self.world:
            context = Guided(
                episode.context.chat, self.rules, self.envs.instructions, self.envs.tools, session.system,
                goals=plan.goals, done=planning.done, template=planning.execute_prompt or SUB_GOAL_PROMPT,
            )  # fmt: skip
            episode.context, episode.opening = context, context.open(episode.time_step.observation)
            episode.turns = [plan.turn(info={"aside": "plan"})]
        else:
            executor_prompt = (*plan.prompt, *plan.completion.tokens)
            if planning.execute_prompt:
                executor_prompt = self._prompt_ids(
                    episode.task, planning.execute_prompt, session.decode(plan.completion.tokens)
                )
            episode.context, episode.opening = Prompt(executor_prompt), ContextUpdate(executor_prompt, rebuilt=True)
            episode.time_step = TimeStep("", f"{episode.task.id}:{'.'.join(map(str, plan.completion.tokens))}")
            episode.turns, episode.newest_action = [plan.turn()], plan.completion
        # the plan's turn is stored once: later attempts are forks after it
        episode.replies = [None]
        if first is not None:
            episode.base, episode.n_inherited = first, 1

    def finish(self, episodes: Sequence[Episode], sampling: Sampling | None = None) -> None:
        """Execute every plan; after a plan that ended the answer the execution is empty."""
        if self.world:
            return super().finish(episodes, sampling)
        rooms = {e: room for e in episodes if (room := self._room(e, self.session.sampling.max_new_tokens))}
        completions = sample_within(self.session, [e.request() for e in rooms], [*rooms.values()], sampling)
        completion_by_episode = {e: completion for e, (completion,) in zip(rooms, completions, strict=True)}
        for episode in episodes:
            plan = episode.newest_action
            assert plan is not None
            episode.act(
                completion_by_episode.get(episode)
                or Completion([], [], plan.finish, policy_version=plan.policy_version)
            )

    def _room(self, episode: Episode, limit: int) -> int:
        """Return the tokens that an execution may have: none if the plan has ended the answer."""
        plan = episode.newest_action
        assert plan is not None
        if self.planning.execute_prompt:
            return limit
        plan_ends_answer = plan.finish == "stop" and self.planning.delimiter not in self.session.decode(plan.tokens)
        return 0 if plan_ends_answer else limit - len(plan.tokens)

    def moves(self, active: Sequence[Episode], actions: Sequence[Completion]) -> dict[str, Reply]:
        moves: dict[str, Reply] = {}
        for episode, completion in zip(active, actions, strict=True):
            context = episode.context
            assert isinstance(context, Guided)
            is_summary, goal = context.summarising, context.goal
            reply = episode.act(completion)
            turn = episode.turns[-1]
            if turn["state"] is not None:  # another sub-goal is another decision
                turn["state"] += f"|{goal}"
            if is_summary:
                episode.opening = context.summarise(reply.content)
            elif context.only_done:
                # going on to the next sub-goal is no move: the environment is not told, and no turn of it is used up
                turn["info"], episode.replies[-1] = {"aside": "sub_done"}, None
                episode.moves -= 1
                episode.opening = context.repeat_goal()
            else:
                moves[episode.name] = reply
        return moves


def attempts(
    planning: Planning,
    tasks: Sequence[Task],
    samples: int,
    copies: int,
    session: Session,
    *,
    phase: str,
    trains: tuple[bool, bool],
    sampling: Sampling | None = None,
    plans: Sequence[Sequence[Plan]] | None = None,
) -> tuple[Forest, list[list[Plan]]]:
    """Play `copies` executions of each of `samples` plans of every task; return the scored forest and the plans.

    sampling  sampling of the executions; None: the run's
    trained   True for plans, True for executions: whose tokens are trained
    plans     plans of each task to execute instead of new ones: then the group is (task, plan), else the task

    Execution j of plan i is sampled under (seed, step, draw, i, path (j,), turn), turns counted from 1; the plan under
    (seed, step, draw, i), and so are the turns of its trial.
    """
    draws, per_draw = name_draws(tasks), samples * copies
    play = GuidedPlay(session, planning)
    # the attempts begin first, since a planner needs their first observation
    with play:
        episodes_of_step = play.start(tasks, draws, per_draw)
        episodes_by_draw = [episodes_of_step[i : i + per_draw] for i in range(0, len(episodes_of_step), per_draw)]
        plans_by_draw = (
            play.plan(episodes_by_draw, samples) if plans is None else [list(task_plans) for task_plans in plans]
        )
        # attempt i * copies + j executes plan i; the first one that is alive stores the plan's turn for the others
        for draw, episodes, draw_plans in zip(draws, episodes_by_draw, plans_by_draw, strict=True):
            for i, plan in enumerate(draw_plans):
                first = None
                for j, episode in enumerate(episodes[i * copies : (i + 1) * copies]):
                    episode.key = stream(session, draw, plan.number, () if phase == "macro" else (j,))
                    if plans is not None:
                        episode.group = f"{group_of(session, draw)}/z{plan.number}"
                        episode.label = None if play.world else f"{episode.group}/{j}"
                    if episode.end is None:
                        play.guide(episode, plan, first)
                        first = first or episode
        play.finish(episodes_of_step, sampling or session.sampling)
    recorded_sampling = dataclasses.asdict(session.sampling)
    forest = Forest.from_records([_record(e, recorded_sampling, phase, trains) for e in episodes_of_step])
    # with a prompt of its own the execution alone is judged, without the plan before it
    if play.world or not planning.execute_prompt:
        return session.score(forest), plans_by_draw
    return session.score(
        forest, [session.decode(e.newest_action.tokens) for e in episodes_of_step if e.newest_action is not None]
    ), plans_by_draw


def _record(episode: Episode, sampling: Mapping[str, Any], phase: str, trains: tuple[bool, bool]) -> dict[str, Any]:
    row = episode.record(dict(sampling))
    for turn in row["turns"]:
        is_plan = turn["agent"] == PLANNER
        turn |= {"agent": PLANNER if is_plan else EXECUTOR, "trainable": trains[0 if is_plan else 1]}
    row["info"] = {**row["info"], "phase": phase, "plan": episode.key.attempt}
    if not isinstance(episode.context, Prompt):  # an episode that broke before it was guided has no sub-goals
        row["info"]["sub_goals"] = list(getattr(episode.context, "goals", ()))
    return row
