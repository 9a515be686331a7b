"""Plan, then execute (HiMAC, PTA-GRPO): attempts of a plan and its execution, of which one or both are trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge

from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Sampling, Session, Task
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.build import Count
from gxpo.sampling.rollouts.plan_episodes import Planning, attempts
from gxpo.sampling.rollouts.rounds import Independent


class Plans(Planning):
    """Base class of rollouts that plan first; held-out tasks are attempted by one plan and one execution of it."""

    provides = ("states", "forks")

    def evaluation(self, samples: int) -> Planned | Independent:
        """Return the rollout for held-out tasks; plan and execution are both sampled by `session.sampling`."""
        if not self.plan_tokens:
            return Independent(samples)
        options = {field.name: getattr(self, field.name) for field in dataclasses.fields(Planning)}
        return Planned(**options, plans=samples, executions=1)


@part("plan_execute", stage="rollout")
@dataclass(frozen=True)
class PlanExecute(Plans):
    """Plans and executions of the best plan, trained in turn by the number of the step.

    macro  `blueprints` plans of each task, each executed once, greedily, whose outcome is the plan's. Group: the task.
           Only plan tokens are trained
    micro  as many plans, tried out in the same way; the best one z* (the first of equals) is executed `group_size`
           times by sampling. Group: (task, z*). Only execution tokens are trained; z* stands in all of them, stored
           once. What was tried out is discarded, its tokens charged

    blueprints      M
    group_size      N
    phase_steps     steps of a phase, macro first
    trial_temperature  temperature at which plans are tried out; 0: greedily. A policy that remembers nothing goes round
                    in circles when it is greedy, and then no plan succeeds: try the run's own
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
    phase_steps: Count = 1
    trial_temperature: Annotated[float, Ge(0)] = 0.0

    def phase(self, step: int) -> str:
        """The phase, "macro" or "micro", of a step, counted from 1."""
        return ("macro", "micro")[(step - 1) // self.phase_steps % 2]

    def trial_sampling(self, sampling: Sampling) -> Sampling:
        """Return the sampling of executions that try out a plan."""
        if self.trial_temperature:
            return dataclasses.replace(sampling, temperature=self.trial_temperature)
        return dataclasses.replace(sampling, temperature=0.0, top_k=0, top_p=1.0)

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        if not self.plan_tokens:
            return Independent(self.group_size).grow(tasks, session)
        m, trial = self.blueprints, self.trial_sampling(session.sampling)
        trials, plans = attempts(self, tasks, m, 1, session, phase="macro", trains=(True, False), sampling=trial)
        if self.phase(session.step) == "macro":
            return trials
        # the micro phase only chooses by its trials: of equal outcomes the first plan, an unscored one last
        session.budget.discarded += trials.n_trajectories
        outcome = trials.outcome.nan_to_num(nan=-torch.inf).reshape(-1, m).tolist()
        best_plans = [
            [task_plans[max(range(m), key=task_outcomes.__getitem__)]]
            for task_plans, task_outcomes in zip(plans, outcome, strict=True)
        ]
        micro, _ = attempts(
            self, tasks, 1, self.group_size, session, phase="micro", trains=(False, True), plans=best_plans
        )
        return micro


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
        """Number of attempts at a task."""
        return self.plans * self.executions

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        each = (self.plans, self.executions)
        return attempts(self, tasks, *each, session, phase="together", trains=(True, True))[0]
