"""Reference answers as members of a group (LUFFY, GCPO): off-policy demonstrations without behaviour log-probs.

A reference answer (`session.solution`) becomes the tokens that the policy would have to write: the text, and then the
end that the policy's own answers have. In an environment its expert plays an episode. The task's verifier scores a
reference like any other attempt. One that it does not accept, or that is longer than the policy can answer, stays
unscored: it is in no statistic and no loss, and counted with the unscored rollouts; `info["failure"]` holds the reason,
and a warning names the step's first one.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from gxpo.base.errors import ConfigError, TaskError
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Completion, EnvFailure, Sampling, Session, Task
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.attempts import Attempts, Draw, Episode
from gxpo.sampling.rollouts.base import Count, Rollout, Round
from gxpo.sampling.rollouts.episodes import Play

DEMONSTRATION = "demonstration"
EXPERTS = {"env.context": (("full", "window"), "learns from an expert, who writes no summaries")}


def reference_of(task: Task, solution: Callable[[Task], str | None]) -> str:
    """Return the task's reference answer; TaskError if it has none."""
    text = solution(task)
    if not text:
        raise TaskError(
            f"task {task.id!r} has no reference answer: give it one (info['solution']; in a .jsonl file a field "
            "'solution'; an environment's is its expert()), or train with a method that needs none"
        )
    return text


def demonstration(task: Task, session: Session) -> Completion:
    """Return the task's reference answer in tokens; TaskError if it has none."""
    return in_tokens(reference_of(task, session.solution), session)


def in_tokens(text: str, session: Session) -> Completion:
    """Tokenise a text as the policy would have to write it, with the end of a policy's answer; log-probs are nan.

    The end is the chat format's first stop id; with `sampling.stop`, a text that holds a stop string ends with it.
    """
    ends = [text.index(stop) + len(stop) for stop in session.sampling.stop if stop in text]
    closing = () if ends else session.chat.stop_ids[:1]
    tokens = [*session.tokenize(text[: min(ends, default=len(text))]), *closing]
    return Completion(tokens, [math.nan] * len(tokens), "stop", policy_version=max(session.step - 1, 0))


def lift_restrictions(sampling: Sampling) -> Sampling:
    """Return the sampling without top-k and top-p: reference answers are read over the whole vocabulary."""
    return dataclasses.replace(sampling, top_k=0, top_p=1.0)


def accept_references(forest: Forest, session: Session) -> Forest:
    """Score the forest, but leave demonstrations that can't serve unscored; see the module."""
    forest = session.score(forest)
    info = list(forest.info)
    demonstrations = [r for r, origin in enumerate(forest.origin) if origin == DEMONSTRATION]
    reasons: dict[int, str] = {}
    # the limit holds for each action: an expert's episode has one length for each turn
    for r in demonstrations:
        limit = session.sampling.max_new_tokens
        length = int(torch.bincount(forest.path_step[forest.path_of(r)]).max()) if len(forest.path_of(r)) else 0
        if length > limit:
            reason = f"it has {length} tokens and sampling.max_new_tokens is {limit}"
        elif not bool(forest.scored[r]):
            reason = "the reward could not score it"
        elif bool(forest.success[r] < 1):
            reason = "the verifier does not accept it"
        else:
            continue
        reasons[r] = reason
        info[r] = {**info[r], "failure": f"reference answer left out: {reason}"}
    if not reasons:
        return forest
    first = next(iter(reasons))
    warnings.warn(
        f"{len(reasons)} of {len(demonstrations)} reference answers are left out, first that of task "
        f"{forest.task[first]!r}: {reasons[first]}",
        stacklevel=2,
    )
    rows = torch.tensor(list(reasons))
    return forest.replace(
        outcome=forest.outcome.index_fill(0, rows, math.nan),
        success=forest.success.index_fill(0, rows, math.nan),
        components=forest.components.index_fill(0, rows, math.nan),
        info=info,
    )


def reference_actions(episodes: Sequence[Episode], play: Play) -> list[Completion | None]:
    """Return the reference's next action in each attempt: a prompt's answer, or the action of an episode's expert.

    None if an expert has no action. Log-probs are nan, since no policy sampled them.
    """
    session = play.session
    if not play.world:
        return [demonstration(e.task, session) for e in episodes]
    expert_texts = play.envs.expert([e.name for e in episodes])
    texts = [expert_texts[e.name] for e in episodes]
    return [None if text is None or isinstance(text, EnvFailure) else in_tokens(text, session) for text in texts]


def solutions_of(tasks: Sequence[Task], session: Session) -> Callable[[Task], str | None]:
    """Return worked solutions of these tasks: their own, or the actions of the environment's expert, a line each."""
    unsolved_tasks = [task for task in tasks if session.solution(task) is None]
    if session.envs is None or "expert" not in session.envs.provides or not unsolved_tasks:
        return session.solution
    if session.episode.context == "summary":  # checked here: tasks with solutions of their own need no expert
        raise ConfigError("an expert writes no summaries of its way: set env.context to full or window")
    with Play(session) as play:
        draws = [
            Draw(task, f"{name}/solution", f"{name}/solution")
            for name, task in {t.id: t for t in unsolved_tasks}.items()
        ]
        episodes = play.begin([draw.attempts(1, actor=reference_actions) for draw in draws])
        play.finish(episodes)
    ways = {e.task.id: "\n".join(session.decode(t["action"]) for t in e.turns) for e in episodes if e.failure is None}
    return lambda task: ways.get(task.id) or session.solution(task)


def demonstrate(draw: Draw, n: int, play: Play, first: int, label: str = "") -> Attempts:
    """Request `n` attempts that the reference makes, numbered from `first`."""
    read = lift_restrictions(play.session.sampling)
    return draw.attempts(n, first=first, label=label, origin=DEMONSTRATION, actor=reference_actions, read=read)


@part("reference_in_group", stage="rollout")
@dataclass(frozen=True)
class ReferenceInGroup(Rollout):
    """Groups of `group_size - references` samples and `references` times the reference answer.

    statistics  "mixed": the answer is compared with the samples like any other member; "policy": group statistics are
                those of the samples alone, and the answer is measured against them (`compared` false)

    If `references` is `group_size`, nothing is sampled: for imitation, with credit `constant_advantage`. In an
    environment the reference is its expert. Source: LUFFY, arXiv 2504.14945.
    """

    group_size: Count = 8
    references: Count = 1
    statistics: Literal["mixed", "policy"] = "mixed"

    allows = EXPERTS

    def __post_init__(self) -> None:
        if self.references > self.group_size:
            raise ConfigError(
                f"rollout.references is {self.references}; it must be from 1 to rollout.group_size = {self.group_size}"
            )
        if self.references == self.group_size and self.statistics == "policy":
            raise ConfigError(
                f"rollout.statistics=policy compares with samples, and all {self.group_size} of a group are "
                "references: raise rollout.group_size, or set rollout.statistics=mixed"
            )

    def check_task(self, task: Task, solution: Callable[[Task], str | None]) -> None:
        """Raise TaskError if a task has no reference answer."""
        reference_of(task, solution)

    def first(self, draws: Sequence[Draw], play: Play) -> list[Attempts]:
        n_samples = self.group_size - self.references
        return [a for d in draws for a in (d.attempts(n_samples), demonstrate(d, self.references, play, n_samples))]

    def merge(self, rounds: Sequence[Round], play: Play) -> Forest:
        forest = rounds[0].forest
        is_demonstration_R = torch.tensor([origin == DEMONSTRATION for origin in forest.origin], dtype=torch.bool)
        return accept_references(
            forest.replace(compared=~is_demonstration_R) if self.statistics == "policy" else forest,
            play.session,
        )
