"""Plan, then execute (HiMAC, PTA-GRPO): attempts in two turns, of which one or both are trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Ge

from gxpo.errors import ConfigError
from gxpo.forest import Forest
from gxpo.protocols import Completion, Request, Sampling, Session, Task
from gxpo.registry import part
from gxpo.rollouts.build import Count, action, group_of, name_draws, record, requests, sample_within, stream
from gxpo.rollouts.independent import Independent
from gxpo.rollouts.plan_episodes import EXECUTOR, PLANNER, Planning, attempts, two_phases


@dataclass(eq=False)
class _Attempt:
    """A plan for a drawn task, the context that its execution begins in, and the execution."""

    task: Task
    draw: str
    prompt: tuple[int, ...]  # the planner's
    number: int  # of the plan
    plan: Completion
    context: tuple[int, ...]
    execution: Completion | None = None
    path: tuple[int, ...] = ()  # which of several executions of the plan

    def again(self, number: int) -> _Attempt:
        """The plan for another execution."""
        return dataclasses.replace(self, execution=None, path=(number,))


class Plans(Planning):
    """Plans of tasks that are prompts, and their executions; those of episodes are in `gxpo.rollouts.plan_episodes`."""

    provides = ("states", "forks")

    def evaluation(self, samples: int) -> _OneEach | Independent:
        """How held-out tasks are attempted: by one plan and one execution of it."""
        return _OneEach(self, samples) if self.plan_tokens else Independent(samples)

    def together(self, tasks: Sequence[Task], plans: int, executions: int, session: Session) -> Forest:
        """`plans` plans of each task, `executions` of every one, all trained and in the task's group; scored."""
        if session.envs is not None:
            forest, _ = attempts(
                self, tasks, plans, executions, session,
                sampling=session.sampling, phase="together", trained=(True, True),
            )  # fmt: skip
            return session.score(forest)
        groups = [[plan.again(j) for j in range(executions)] for plan in self.planned(tasks, plans, session)]
        self.execute([attempt for group in groups for attempt in group], session.sampling, session)
        return self.forest(groups, "together", (True, True), session)

    # ------------------------------------------------------------ sampling
    def planned(self, tasks: Sequence[Task], samples: int, session: Session) -> list[_Attempt]:
        """`samples` plans of each task that is a prompt, with the contexts that their executions begin in."""
        draws = name_draws(tasks)
        prompts = [self._asked(task, self.plan_prompt, "", session) for task in tasks]
        asked = requests(prompts, draws, samples, session)
        limit = min(self.plan_tokens, session.sampling.max_new_tokens)
        short = dataclasses.replace(
            session.sampling, max_new_tokens=limit, stop=(*session.sampling.stop, self.delimiter)
        )
        out = []
        for task, draw, prompt, plans in zip(tasks, draws, prompts, session.sample(asked, short), strict=True):
            for i, plan in enumerate(plans):
                context = (*prompt, *plan.tokens)
                if self.execute_prompt:
                    context = self._asked(task, self.execute_prompt, session.decode(plan.tokens), session)
                out.append(_Attempt(task, draw, prompt, i, plan, context))
        return out

    def execute(self, attempts: Sequence[_Attempt], sampling: Sampling, session: Session) -> None:
        """An execution of every plan; an empty one where the plan has ended the answer."""
        for attempt in attempts:
            attempt.execution = Completion([], [], attempt.plan.finish, policy_version=attempt.plan.policy_version)
        rooms = {a: room for a in attempts if (room := self._room(a, sampling.max_new_tokens, session))}
        asked = [Request(a.context, (stream(session, a.draw, a.number, a.path, 1),)) for a in rooms]
        for attempt, (completion,) in zip(
            rooms, sample_within(session, asked, [*rooms.values()], sampling), strict=True
        ):
            attempt.execution = completion

    def _room(self, attempt: _Attempt, limit: int, session: Session) -> int:
        """How many tokens an execution may have; none where the plan has ended the answer."""
        if self.execute_prompt:
            return limit
        plan = attempt.plan
        ended = plan.finish == "stop" and self.delimiter not in session.decode(plan.tokens)
        return 0 if ended else limit - len(plan.tokens)

    @staticmethod
    def _asked(task: Task, template: str, plan: str, session: Session) -> tuple[int, ...]:
        if not template:
            return session.encode(task)
        if not isinstance(task.prompt, str):
            raise ConfigError(
                f"rollout.plan_prompt and execute_prompt need a text, and the prompt of {task.id} is none"
            )
        text = template.replace("{prompt}", task.prompt).replace("{plan}", plan)
        return session.encode(dataclasses.replace(task, prompt=text))

    # ------------------------------------------------------------ the forest
    def forest(
        self, groups: Sequence[Sequence[_Attempt]], phase: str, trained: tuple[bool, bool], session: Session
    ) -> Forest:
        """Scored; the attempts of each of `groups` have one plan. trained: whether plans and executions are."""
        forest = Forest.from_records([r for group in groups for r in _records(group, phase, trained, session)])
        executions = [a.execution for group in groups for a in group]
        texts = [session.decode(e.tokens) for e in executions if e is not None] if self.execute_prompt else None
        return session.score(forest, texts)


@part("plan_execute", stage="rollout")
@dataclass(frozen=True)
class PlanExecute(Plans):
    """Plans are tried out and trained, or executions of the best plan, in turn by the number of the step.

    macro  `blueprints` plans of each task, each executed once, greedily, whose outcome is the plan's. Group: the task.
           Only plan tokens are trained
    micro  as many plans, tried out in the same way; the best one z* (the first of equals) is executed `group_size`
           times by sampling. Group: (task, z*). Only execution tokens are trained; z* stands in all of them, stored
           once. What was tried out is discarded, its tokens charged

    blueprints      M
    group_size      N
    alternate       steps of a phase, macro first
    trial           temperature at which plans are tried out; 0: greedily. A policy that remembers nothing goes round in
                    circles when it is greedy, and then no plan succeeds: try the run's own
    plan_tokens     longest plan; 0: no plan, and every step is `independent`
    delimiter       a plan ends with the token that completes it; in an environment it stands between sub-goals
    plan_prompt     what the planner is asked, with {prompt}; "": the task's prompt, or first observation, itself
    execute_prompt  what the executor is asked, with {prompt} and {plan}; "": the execution goes on, token by token,
                    from the planner's prompt and the plan. In an environment: what the executor is told every turn,
                    {prompt} the observation and {plan} the sub-goal in force; "": "Sub-goal: " and it, before the other
    done            in an environment: what the executor says to go on to the next sub-goal

    On prompts a plan is one text. Without `execute_prompt` it is the beginning of the answer: plan and execution are
    judged together and have `sampling.max_new_tokens` between them, and a plan that ends the answer has an empty
    execution. With it the execution alone is judged. Held-out tasks are attempted by one plan and one execution, both
    sampled as evaluations are.

    In an environment the planner reads the first observation and writes sub-goals; the executor acts turn by turn
    under one of them, in a context of its own. `done` in an action brings the next sub-goal into force (the last one
    stays) and is taken out of what the environment is told; an action that says nothing else takes no turn of it.

    Plan and execution are turns of agents "planner" and "executor" in one trajectory. Tokens of trials are never
    trained; greedy ones have the greedy policy's log-prob, 0.

    Source: HiMAC, arXiv 2603.00977, after secondary notes: no code, group sizes unknown. That plans are made and tried
    out afresh in the micro phase is ours. The task's own reward chooses z*; as the best of M it is optimistic, and it
    is used for nothing else.
    """

    blueprints: Count = 8
    group_size: Count = 8
    alternate: Count = 1
    trial: Annotated[float, Ge(0)] = 0.0

    def phase(self, step: int) -> str:
        """The phase, "macro" or "micro", of a step, counted from 1."""
        return ("macro", "micro")[(step - 1) // self.alternate % 2]

    def tried(self, sampling: Sampling) -> Sampling:
        """How plans are tried out."""
        if self.trial:
            return dataclasses.replace(sampling, temperature=self.trial)
        return dataclasses.replace(sampling, temperature=0.0, top_k=0, top_p=1.0)

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        if not self.plan_tokens:
            return Independent(self.group_size).grow(tasks, session)
        if session.envs is not None:
            sizes, phase = (self.blueprints, self.group_size), self.phase(session.step)
            return two_phases(self, tasks, sizes, phase, self.tried(session.sampling), session)
        tried = self.planned(tasks, self.blueprints, session)
        self.execute(tried, self.tried(session.sampling), session)
        trials = self.forest([[a] for a in tried], "macro", (True, False), session)
        if self.phase(session.step) == "macro":
            return trials
        session.budget.discarded += len(tried)
        outcome = trials.outcome.nan_to_num(nan=-torch.inf).tolist()
        groups = []
        for begin in range(0, len(tried), self.blueprints):
            best = tried[max(range(begin, begin + self.blueprints), key=lambda r: outcome[r])]
            groups.append([best.again(i) for i in range(self.group_size)])
        self.execute([a for group in groups for a in group], session.sampling, session)
        return self.forest(groups, "micro", (False, True), session)


@part("planned", stage="rollout")
@dataclass(frozen=True)
class Planned(Plans):
    """`plans` plans of each task and `executions` of every one: one group "s{step}/{task}" of plans * executions.

    A trajectory is a plan and one of its executions, both sampled and both trained; the executions of a plan share its
    tokens, stored once, and info["plan"] says which it is. Everything else is as in `PlanExecute`: `plan_tokens`,
    `delimiter`, `plan_prompt`, `execute_prompt`, `done`, and how held-out tasks are attempted.

    With one execution a plan this is `independent` attempts that are cut in two.
    Source: PTA-GRPO, arXiv 2510.01833.
    """

    plans: Count = 4
    executions: Count = 2
    plan_tokens: Count = 8

    @property
    def group_size(self) -> int:
        """Attempts a task."""
        return self.plans * self.executions

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        return self.together(tasks, self.plans, self.executions, session)


@dataclass(frozen=True)
class _OneEach:
    """`samples` attempts at each task, each a plan and an execution of it, both as `session.sampling` says."""

    part: Plans
    samples: int

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        return self.part.together(tasks, self.samples, 1, session)


def _records(
    group: Sequence[_Attempt], phase: str, trained: tuple[bool, bool], session: Session
) -> Iterator[dict[str, Any]]:
    """Attempts with one plan as lines of `gxpo.rollouts/1`; all but the first are forks after its plan."""
    first, base = group[0], ""
    name = group_of(session, first.draw) + (f"/z{first.number}" if phase == "micro" else "")
    for i, attempt in enumerate(group):
        assert attempt.execution is not None
        number = {"micro": f"{i}", "together": f"{attempt.number}.{i}"}.get(phase, f"{attempt.number}")
        state = f"{attempt.task.id}:{'.'.join(map(str, attempt.plan.tokens))}"
        execution = {"context": list(attempt.context), **_turn(EXECUTOR, attempt.execution, trained[1], state)}
        columns: dict[str, Any] = {"fork": {"of": base, "turn": 0, "token": None}, "turns": [execution]}
        if not i:
            base = f"{name}/{number}"
            plan = _turn(PLANNER, attempt.plan, trained[0], attempt.task.id)
            columns = {"prompt": list(attempt.prompt), "turns": [plan, execution]}
        yield record(
            attempt.task,
            name,
            f"{name}/{number}",
            session.sampling,
            truncated=attempt.execution.finish == "length",
            info={"phase": phase, "plan": attempt.number},
            **columns,
        )


def _turn(agent: str, said: Completion, trained: bool, state: str) -> dict[str, Any]:
    return {"agent": agent, "state": state, "trainable": trained, **action(said)}
