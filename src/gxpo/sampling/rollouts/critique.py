"""Critics beside a solver: critiques of an attempt, each scored by what the solver makes of it (Critique-RL, HiLL)."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Annotated, Any, Literal

from annotated_types import Ge

from gxpo.base.errors import ConfigError, TaskError
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Completion, Request, Session, StreamKey, Task
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.build import (
    Count,
    Limit,
    RolloutPart,
    action,
    dotted_name,
    group_of,
    name_draws,
    record,
    stream,
)
from gxpo.sampling.rollouts.graph import SHARED
from gxpo.sampling.rollouts.reference import reference_of
from gxpo.sampling.rollouts.wording import Wording, check_template

CRITIQUE = """{prompt}

A proposed solution:
{attempt}

Check it step by step, and say what to change. End with VERDICT: right or VERDICT: wrong.
"""
REFINE = """{prompt}

An earlier attempt:
{attempt}

A reviewer wrote:
{critique}

Solve it again.
"""


def stated_verdict(text: str, right: str, wrong: str) -> float | None:
    """Parse a critique's verdict: 1 if the last match is of `right`, 0 if it is of `wrong`, None without a match.

    >>> [stated_verdict(text, "VERDICT: right", "VERDICT: wrong") for text in ("No. VERDICT: wrong", "Hm")]
    [0.0, None]
    """
    places = [max((m.end() for m in re.finditer(pattern, text)), default=-1) for pattern in (wrong, right)]
    return None if max(places) < 0 else float(places[1] > places[0])


def states_answer(text: str, answer: str) -> bool:
    """Return True if a text holds the answer, as a whole word or number.

    An answer of one or two characters also has to follow "=", ":", "is", "equals" or "to": "2 variables" states no 2.

    >>> [states_answer(text, "25") for text in ("it is 25.", "25 apples", "= 250", "is 2.25")]
    [True, False, False, False]
    """
    answer = answer.strip()
    number = rf"(?<![\w.]){re.escape(answer)}(?!\w|\.\d)"
    cue = r"(?:[=:]|\b(?:is|equals|to))\s*" if len(answer) <= 2 else ""
    return bool(answer) and re.search(cue + number, text, re.IGNORECASE) is not None


@dataclass(eq=False)
class _Call:
    """One action of a role: its view of the task, its context, and its text.

    parent   the action that it reads last: a refinement's critique, a critique's attempt
    outcome  of attempts and refinements; nan: the reward could not score it
    verdict  of critiques: stated, 1 right or 0 wrong; None: there is none;   leaks  it holds the answer
    """

    role: str
    task: Task
    read: Task
    context: tuple[int, ...]
    key: StreamKey
    group: str
    parent: _Call | None = None
    completion: Completion = field(default_factory=lambda: Completion([], [], "none"))
    text: str = ""
    outcome: float = float("nan")
    success: float = float("nan")
    verdict: float | None = None
    leaks: bool = False

    @property
    def id(self) -> str:
        return f"{self.group}/{dotted_name(self.key)}"


@part("critique", stage="rollout")
@dataclass(frozen=True)
class Critique(RolloutPart):
    """`group_size` critiques of each of `attempts` at a task, and `refinements` of the attempt under each critique.

    group_size   critiques of an attempt, which are a group: "s{step}/{task}/critic/{attempt}"
    attempts     the solver's attempts at a task; 0: the critic reads the task alone, before there is an attempt
    refinements  the solver's answers under each critique
    solver       "frozen": the model that the run starts from, sampled and not trained; "trained": an adapter of its
                 own; "shared": one policy plays both roles
    roles        names of the critic and of the solver: of agents, and of policies unless one is shared
    template     the critic's prompt: {prompt} and {attempt}, and {solution}, the reference solution, if it may see it
    refine_template  the solver's: {critique}, and {prompt} and {attempt}
    right_pattern, wrong_pattern  regular expressions of a critique's verdict on the attempt; the last match counts.
                  Both empty: no verdict is asked for, and there are no components of one
    refine_temperature  of a frozen solver's refinements; None: as the run samples
    critic_tokens  most tokens of a critique; None: as the run samples
    critique     "all" attempts; "all_wrong": of tasks without a right attempt the first one, as hints are (the solver
                 is then trained, and held-out tasks are attempted plainly)
    refine       "all" attempts, or those called "wrong": one that is called right is kept, as its own refinement, and
                 refine_template may leave {critique} out
    leak_check   "answer": a critique that holds the task's answer has no refinements, outcome 0, and component "leaks"
                 1: the solver never reads it

    A critique is one trajectory. Its outcome is the mean outcome of its refinements; it is a success if all of them
    are. Further components, for `reward.shape` (see `critique_reward`):

      verdict     1: its verdict on the attempt is right; 0: wrong, or there is none to be read
      unreadable  1: there is no verdict to be read
      attempt     verdict on the attempt itself;   refined  mean verdict on the refinements
      leaks       of a gate: 1: it holds the answer

    A trained solver's attempts (group "s{step}/{task}") and refinements (a group for each critique) are in the forest
    with their own rewards, and have none of these components; a frozen solver's are charged as discarded. A context
    that leaves no room for an action gives an empty text. Where the reward can't score an attempt or any refinement,
    the critique is unscored. Held-out tasks: one critique and one refinement of each attempt, so that accuracy is that
    after the critique and component "attempt" that before.
    """

    group_size: Count = 8
    attempts: Limit = 1
    refinements: Count = 4
    solver: Literal["frozen", "trained", "shared"] = "frozen"
    roles: list[str] = field(default_factory=lambda: ["critic", "solver"])
    template: str = CRITIQUE
    refine_template: str = REFINE
    right_pattern: str = r"(?i)VERDICT:\W*(right|correct)"
    wrong_pattern: str = r"(?i)VERDICT:\W*(wrong|incorrect)"
    refine_temperature: Annotated[float, Ge(0)] | None = None
    critic_tokens: Count | None = None
    critique: Literal["all", "all_wrong"] = "all"
    refine: Literal["all", "wrong"] = "all"
    leak_check: Literal["none", "answer"] = "none"

    single_turn = True
    components = ("verdict", "unreadable", "attempt", "refined", "leaks")
    trains_solver_calls = True  # False for held-out tasks

    def __post_init__(self) -> None:
        if len(self.roles) != 2 or len({*self.roles, "prompt", SHARED}) != 4:
            raise ConfigError(
                f"rollout.roles is {self.roles}: name two different roles, the critic and the solver, since neither "
                f"reads what it wrote itself, and call them neither 'prompt' nor {SHARED!r}"
            )
        read = ("attempt",) if self.attempts else ()
        check_template("rollout.template", self.template, ("prompt", *read), ("solution",))
        # where only what is called wrong is refined, the verdict has its use even if the solver never reads it
        needs = () if self.refine == "wrong" else ("critique",)
        check_template("rollout.refine_template", self.refine_template, needs, ("critique", "prompt", *read))
        if self.refine == "wrong" and not (self.right_pattern and self.attempts):
            raise ConfigError(
                "rollout.refine=wrong refines what a critic calls wrong: set rollout.right_pattern, wrong_pattern and "
                "attempts"
            )
        if bool(self.right_pattern) != bool(self.wrong_pattern):
            raise ConfigError(
                "rollout.right_pattern and rollout.wrong_pattern are two sides of one verdict: set both, or neither"
            )
        if self.critique == "all_wrong" and (self.solver == "frozen" or not self.attempts):
            raise ConfigError(
                "rollout.critique=all_wrong leaves a step without rollouts where every task has a right attempt: set "
                "rollout.solver=trained (or shared) and rollout.attempts to 1 or more, so that the attempts are trained"
            )
        for name in ("right_pattern", "wrong_pattern"):
            try:
                re.compile(getattr(self, name))
            except re.error as error:
                raise ConfigError(f"rollout.{name}={getattr(self, name)!r} is no regular expression: {error}") from None
        if self.refine_temperature is not None and self.solver != "frozen":
            raise ConfigError(
                f"rollout.refine_temperature is of a frozen solver, and rollout.solver is {self.solver}: leave it out"
            )

    @property
    def policies(self) -> dict[str, str]:
        """Policy name -> "trained" or "frozen"."""
        if self.solver == "shared":
            return {SHARED: "trained"}
        critic, solver = self.roles
        return {critic: "trained", solver: self.solver}

    def check_task(self, task: Task, solution: Callable[[Task], str | None]) -> None:
        """Raise TaskError if a task lacks the field that the critic reads or that the gate looks for."""
        if "{solution}" in self.template:
            reference_of(task, solution)
        if self.leak_check == "answer" and task.answer is None:
            raise TaskError(f"task {task.id!r} has no answer that rollout.leak_check=answer could find in a critique")

    def evaluation(self, samples: int) -> Critique:
        """Return the rollout for held-out tasks: `samples` chains of attempt, critique and refinement."""
        options: dict[str, Any] = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        sizes = {"attempts": samples, "group_size": 1} if self.attempts else {"group_size": samples}
        options.update(sizes, refinements=1)
        return (_HeldOut if self.critique == "all" else _Plain)(**options)

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        critic, solver = self.roles
        draws = list(zip(tasks, name_draws(tasks), strict=True))
        # the solver's attempts, scored before anybody reads them: the critics' verdicts are on these scores
        attempts = [
            self._call(solver, task, "{prompt}", {}, stream(session, draw, a), group_of(session, draw), session)
            for task, draw in draws
            for a in range(self.attempts)
        ]
        self._say(attempts, session)
        attempt_forest = self._score(attempts, session)
        # a group of critiques for each attempt, or for each task where there is none
        topics: list[tuple[Task, str, int, _Call | None]] = [(a.task, a.key.task, a.key.attempt, a) for a in attempts]
        topics = topics if self.attempts else [(task, draw, 0, None) for task, draw in draws]
        if self.critique == "all_wrong":
            wrong = self._all_wrong(attempts)
            topics = [topic for topic in topics if topic[3] in wrong]
        critiques = [
            self._call(critic, task, self.template, self._texts(task, a, session), stream(session, draw, i, (c,)),
                       f"{group_of(session, draw)}/{critic}/{i}", session, a)
            for task, draw, i, a in topics
            for c in range(self.group_size)
        ]  # fmt: skip
        self._say(critiques, session, tokens=self.critic_tokens)
        for critique in critiques:
            critique.verdict = (
                stated_verdict(critique.text, self.right_pattern, self.wrong_pattern) if self.right_pattern else None
            )
            critique.leaks = self.leak_check == "answer" and states_answer(critique.text, str(critique.task.answer))
        # the solver once more, under each critique; its mean outcome is the critique's
        refinements = [
            self._call(solver, c.task, self.refine_template,
                       {"critique": c.text} | ({} if c.parent is None else {"attempt": c.parent.text}),
                       dataclasses.replace(c.key, path=(*c.key.path, m), turn=1),
                       f"{c.group}.{c.key.path[0]}/{solver}", session, c)
            for c in critiques
            if not (c.leaks or self._keeps(c))
            for m in range(self.refinements)
        ]  # fmt: skip
        self._say(refinements, session, self.refine_temperature)
        refinement_forest = self._score(refinements, session)
        forest = self._critiques(critiques, refinements, session)
        if self.solver == "frozen" or not self.trains_solver_calls:
            session.budget.discarded += len(attempts) + len(refinements)
            return forest
        return Forest.concat([forest, *filter(None, (attempt_forest, refinement_forest))])

    @staticmethod
    def _all_wrong(attempts: Sequence[_Call]) -> set[_Call]:
        """Return the first attempt of each task that has a known failure and no known success."""
        by_group: dict[str, list[_Call]] = {}
        for attempt in attempts:
            by_group.setdefault(attempt.group, []).append(attempt)
        verdicts = {g: [a.success for a in group if math.isfinite(a.success)] for g, group in by_group.items()}
        return {group[0] for g, group in by_group.items() if verdicts[g] and max(verdicts[g]) < 1}

    def _keeps(self, critique: _Call) -> bool:
        """Return True if the attempt is not refined: the critic calls it right, and only wrong ones are refined."""
        return self.refine == "wrong" and critique.verdict == 1.0

    def _texts(self, task: Task, attempt: _Call | None, session: Session) -> dict[str, str]:
        """Return the texts in the critic's prompt beside the task's own."""
        texts = {} if attempt is None else {"attempt": attempt.text}
        return texts | ({"solution": session.solution(task) or ""} if "{solution}" in self.template else {})

    def _call(
        self,
        role: str,
        task: Task,
        template: str,
        texts: dict[str, str],
        key: StreamKey,
        group: str,
        session: Session,
        parent: _Call | None = None,
    ) -> _Call:
        """Open an action of a role under its template."""
        read = task if template == "{prompt}" else Wording(template, texts).of_task(task)
        return _Call(role, task, read, session.encode(read), key, group, parent)

    def _say(
        self, calls: Sequence[_Call], session: Session, temperature: float | None = None, tokens: int | None = None
    ) -> None:
        """Sample the text of each call; one whose context leaves no room for an action stays empty."""
        options = {"temperature": temperature, "max_new_tokens": tokens}
        sampling = dataclasses.replace(session.sampling, **{k: x for k, x in options.items() if x is not None})
        room = session.episode.max_context - sampling.max_new_tokens
        fitting = [call for call in calls if len(call.context) <= room]
        requests = [Request(call.context, (call.key,), policy=self._policy(call.role)) for call in fitting]
        completions = session.sample(requests, sampling) if requests else []
        for call, (completion,) in zip(fitting, completions, strict=True):
            call.completion, call.text = completion, session.decode(completion.tokens)

    def _policy(self, role: str) -> str:
        return SHARED if self.solver == "shared" else role

    def _score(self, calls: Sequence[_Call], session: Session) -> Forest | None:
        """Score the solver's calls by the task's reward; return their forest, None without calls."""
        if not calls:
            return None
        records = [self._record(call, session) for call in calls]
        forest = session.score(Forest.from_records(records), [call.text for call in calls])
        for call, outcome, success in zip(calls, forest.outcome.tolist(), forest.success.tolist(), strict=True):
            call.outcome, call.success = outcome, success
        forest.need_verdicts("rollout critique")
        return forest

    def _record(self, call: _Call, session: Session, **columns: Any) -> dict[str, Any]:
        """Build the `gxpo.rollouts/1` record of one call, whose prompt is all that it reads."""
        prompt_text = call.read.prompt if isinstance(call.read.prompt, str) else None
        turn = {
            "agent": call.role,
            "policy": self._policy(call.role),
            "trainable": self.policies[self._policy(call.role)] == "trained",
            **action(call.completion),
        }
        if call.role == self.roles[1] and call.parent is not None:
            columns["info"] = {"critique": call.parent.id}
        columns = {
            "prompt": list(call.context),
            "turns": [turn],
            "truncated": call.completion.finish in ("length", "none"),
            **columns,
        }
        return record(call.task, call.group, call.id, session.sampling, **columns) | {"prompt_text": prompt_text}

    def _critiques(self, critiques: Sequence[_Call], refinements: Sequence[_Call], session: Session) -> Forest:
        """Build the forest of the critiques, with their rewards."""
        records = []
        answers_of: dict[_Call, list[_Call]] = {critique: [] for critique in critiques}
        for refinement in refinements:
            assert refinement.parent is not None
            answers_of[refinement.parent].append(refinement)
        for critique, answers in answers_of.items():
            verdict = critique.verdict
            if self._keeps(critique) and critique.parent is not None:
                answers.append(critique.parent)
            attempt = float("nan") if critique.parent is None else critique.parent.success
            # without an attempt there is nothing to judge: these components stay unknown
            rewards = {"refined": fmean(r.success for r in answers) if answers else 0.0}
            if critique.parent is not None:
                rewards["attempt"] = attempt
                if self.right_pattern:
                    rewards |= {"verdict": float(verdict == attempt), "unreadable": float(verdict is None)}
            if self.leak_check == "answer":
                rewards["leaks"] = float(critique.leaks)
            outcome = fmean(r.outcome for r in answers) if answers else 0.0
            is_known = math.isfinite(sum(rewards.values()) + outcome)
            info: dict[str, Any] = {"verdict": verdict, "refinements": [r.text for r in answers]}
            if not is_known:
                info["failure"] = "the reward could not score the attempt or a refinement"
            columns = {
                "reward": outcome if is_known else None,
                "rewards": rewards if is_known else {},
                "success": bool(answers) and all(r.success >= 1 for r in answers) if is_known else None,
                "info": info,
            }
            records.append(self._record(critique, session, **columns))
        return Forest.from_records(records)


class _HeldOut(Critique):
    """Critiques of held-out tasks, of which the solver's own calls are left out."""

    trains_solver_calls = False


class _Plain(_HeldOut):
    """Attempts at held-out tasks, without critiques: hints are for training alone."""

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        solver = self.roles[1]
        attempts = [
            self._call(solver, task, "{prompt}", {}, stream(session, draw, a), group_of(session, draw), session)
            for task, draw in zip(tasks, name_draws(tasks), strict=True)
            for a in range(self.attempts)
        ]
        self._say(attempts, session)
        forest = self._score(attempts, session)
        assert forest is not None
        return forest
