"""Reference answers as members of a group: nobody sampled them, so their behaviour log-probs are unknown.

A reference answer (`session.solution`) becomes the tokens that the policy would have to write: the text, and then the
end that the policy's own answers have. It is scored by the task's verifier like any other. One that the verifier does
not accept, or that is longer than the policy can answer, stays unscored: it is in no statistic and no loss, counted
with the unscored rollouts, its `info["failure"]` says why, and a warning tells of the step's first one.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from gxpo.errors import ConfigError, TaskError
from gxpo.forest import Forest
from gxpo.protocols import Completion, Sampling, Session, Task
from gxpo.rollouts.build import forest_of, name_draws, requests
from gxpo.rollouts.independent import Independent
from gxpo.rollouts.replay import side_by_side
from gxpo.rollouts.staged import last_failed, without

DEMONSTRATION = "demonstration"


def reference_of(task: Task, solution: Callable[[Task], str | None]) -> str:
    """The task's reference answer; TaskError where there is none."""
    text = solution(task)
    if not text:
        raise TaskError(
            f"task {task.id!r} has no reference answer: give it one (info['solution']; in a .jsonl file a field "
            "'solution'), or train with a method that needs none"
        )
    return text


def demonstration(task: Task, session: Session) -> Completion:
    """The task's reference answer in tokens, ended as the policy's answers are.

    The end is the chat format's first stop id; with `sampling.stop`, a text that holds a stop string ends with it.
    Log-probs are nan. Raises TaskError where there is no reference answer.
    """
    text = reference_of(task, session.solution)
    ends = [text.index(stop) + len(stop) for stop in session.sampling.stop if stop in text]
    closing = () if ends else session.chat.stop_ids[:1]
    tokens = [*session.tokenize(text[: min(ends, default=len(text))]), *closing]
    return Completion(tokens, [math.nan] * len(tokens), "stop", policy_version=max(session.step - 1, 0))


def unrestricted(sampling: Sampling) -> Sampling:
    """How the probability of a reference answer is read: at the run's temperature, over the whole vocabulary."""
    return dataclasses.replace(sampling, top_k=0, top_p=1.0)


def accepted(forest: Forest, session: Session) -> Forest:
    """The forest scored, with demonstrations that can't serve unscored; see the module."""
    forest = session.score(forest)
    info = list(forest.info)
    given = [r for r, origin in enumerate(forest.origin) if origin == DEMONSTRATION]
    bad: dict[int, str] = {}
    for r in given:
        length, limit = len(forest.path_of(r)), session.sampling.max_new_tokens
        if length > limit:
            why = f"it has {length} tokens and sampling.max_new_tokens is {limit}"
        elif not bool(forest.scored[r]):
            why = "the reward could not score it"
        elif bool(forest.success[r] < 1):
            why = "the verifier does not accept it"
        else:
            continue
        bad[r] = why
        info[r] = {**info[r], "failure": f"reference answer left out: {why}"}
    if not bad:
        return forest
    first = next(iter(bad))
    warnings.warn(
        f"{len(bad)} of {len(given)} reference answers are left out, first that of task {forest.task[first]!r}: "
        f"{bad[first]}",
        stacklevel=2,
    )
    rows = torch.tensor(list(bad))
    return forest.replace(
        outcome=forest.outcome.index_fill(0, rows, math.nan),
        success=forest.success.index_fill(0, rows, math.nan),
        components=forest.components.index_fill(0, rows, math.nan),
        info=info,
    )


def _need_prompts(session: Session) -> None:
    if session.envs is not None:
        raise ConfigError(
            "reference answers are put into groups of answers to a prompt, but the task is an environment: "
            "set rollout=independent, or choose another task"
        )


@dataclass(frozen=True)
class ReferenceOnFailure:
    """`group_size` samples of each task; where none succeeds, the reference answer takes the place of the last failure.

    The row that is replaced is charged as discarded. Groups with a success, and groups without a known failure, are
    left as they are. `success` decides, never the shaped outcome. Source: GCPO, arXiv 2510.07790.
    """

    group_size: int = 8

    provides = ("states",)
    single_turn = True

    def check_task(self, task: Task, solution: Callable[[Task], str | None]) -> None:
        """TaskError where a task has no reference answer."""
        reference_of(task, solution)

    def __post_init__(self) -> None:
        if self.group_size < 2:
            raise ConfigError(f"a reference answer is compared: rollout.group_size must be >= 2, not {self.group_size}")

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        _need_prompts(session)
        forest = session.score(Independent(self.group_size).grow(tasks, session))
        forest.need_verdicts("rollout reference")
        task_of = dict(zip(dict.fromkeys(forest.group), tasks, strict=True))
        solved = {g for g, verdict in zip(forest.group, forest.success.tolist(), strict=True) if verdict >= 1}
        failed = {g: r for g in task_of if g not in solved and (r := last_failed(forest, g)) is not None}
        if not failed:
            return forest
        given = [task_of[g] for g in failed]
        answers = [[demonstration(task, session)] for task in given]
        prompts = [session.encode(task) for task in given]
        gold = forest_of(given, list(failed), prompts, answers, unrestricted(session.sampling))
        gold = gold.replace(origin=[DEMONSTRATION] * len(given), id=[f"{g}/reference" for g in failed])
        session.budget.discarded += len(failed)
        kept = without(forest, list(failed.values()))
        return accepted(side_by_side(Forest.concat([kept, gold])), session)


@dataclass(frozen=True)
class ReferenceInGroup:
    """Every group is `group_size - references` samples and `references` times the reference answer.

    statistics  "mixed": the answer is compared with the samples like any other member; "policy": group statistics are
                of the samples alone, and the answer is measured against them (`compared` false)

    Source: LUFFY, arXiv 2504.14945.
    """

    group_size: int = 8
    references: int = 1
    statistics: Literal["mixed", "policy"] = "mixed"

    provides = ("states",)
    single_turn = True

    def check_task(self, task: Task, solution: Callable[[Task], str | None]) -> None:
        """TaskError where a task has no reference answer."""
        reference_of(task, solution)

    def __post_init__(self) -> None:
        if not 1 <= self.references < self.group_size:
            raise ConfigError(
                f"rollout.references is {self.references}; it must be from 1 to rollout.group_size - 1 = "
                f"{self.group_size - 1}"
            )
        if self.statistics not in ("mixed", "policy"):
            raise ConfigError(f"rollout.statistics is 'mixed' or 'policy', not {self.statistics!r}")

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        _need_prompts(session)
        draws, sampled = name_draws(tasks, Counter()), self.group_size - self.references
        prompts = [session.encode(task) for task in tasks]
        members = [
            [*own, *[demonstration(task, session)] * self.references]
            for task, own in zip(tasks, session.sample(requests(prompts, draws, sampled, session)), strict=True)
        ]
        groups = [f"s{session.step}/{draw}" for draw in draws]
        forest = forest_of(tasks, groups, prompts, members, session.sampling)
        given = torch.arange(forest.n_trajectories) % self.group_size >= sampled
        origin = [DEMONSTRATION if d else "policy" for d in given.tolist()]
        read = dataclasses.asdict(unrestricted(session.sampling))
        return accepted(
            forest.replace(
                origin=origin,
                compared=~given if self.statistics == "policy" else forest.compared,
                sampling=[dict(read) if d else own for d, own in zip(given.tolist(), forest.sampling, strict=True)],
            ),
            session,
        )
