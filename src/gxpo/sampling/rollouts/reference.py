"""Reference answers as members of a group (LUFFY, GCPO): off-policy demonstrations without behaviour log-probs.

A reference answer (`session.solution`) becomes the tokens that the policy would have to write: the text, and then the
end that the policy's own answers have. In an environment its expert plays an episode. The reference is scored by the
task's verifier like any other. One that the verifier does not accept, or that is longer than the policy can answer,
stays unscored: it is in no statistic and no loss, counted with the unscored rollouts, its `info["failure"]` says why,
and a warning tells of the step's first one.
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
from gxpo.sampling.rollouts.base import Count, Rollout, Round
from gxpo.sampling.rollouts.build import Attempts, Draw, Episode
from gxpo.sampling.rollouts.episodes import Play

DEMONSTRATION = "demonstration"
EXPERTS = {"env.context": (("full", "window"), "learns from an expert, who writes no summaries")}


def reference_of(task: Task, solution: Callable[[Task], str | None]) -> str:
    """The task's reference answer; TaskError where there is none."""
    text = solution(task)
    if not text:
        raise TaskError(
            f"task {task.id!r} has no reference answer: give it one (info['solution']; in a .jsonl file a field "
            "'solution'; an environment's is its expert()), or train with a method that needs none"
        )
    return text


def demonstration(task: Task, session: Session) -> Completion:
    """The task's reference answer in tokens; TaskError where there is none."""
    return in_tokens(reference_of(task, session.solution), session)


def in_tokens(text: str, session: Session) -> Completion:
    """A text as the policy would have to write it, ended as the policy's answers are; log-probs are nan.

    The end is the chat format's first stop id; with `sampling.stop`, a text that holds a stop string ends with it.
    """
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
        limit = session.sampling.max_new_tokens
        length = int(torch.bincount(forest.path_step[forest.path_of(r)]).max()) if len(forest.path_of(r)) else 0
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


def reference_actions(episodes: Sequence[Episode], play: Play) -> list[Completion | None]:
    """What the reference does next in each attempt: of a prompt its answer, of an episode what its expert does.

    None where an expert knows nothing that helps. Log-probs are nan: nobody sampled this.
    """
    session = play.session
    if not play.world:
        return [demonstration(e.task, session) for e in episodes]
    knows = play.envs.expert([e.name for e in episodes])
    texts = [knows[e.name] for e in episodes]
    return [None if text is None or isinstance(text, EnvFailure) else in_tokens(text, session) for text in texts]


def solutions_of(tasks: Sequence[Task], session: Session) -> Callable[[Task], str | None]:
    """Worked solutions of these tasks: their own, or in an environment the actions of its expert, a line each."""
    lacking = [task for task in tasks if session.solution(task) is None]
    if session.envs is None or "expert" not in session.envs.provides or not lacking:
        return session.solution
    if session.episode.context == "summary":  # of tasks with solutions nothing is asked of an expert
        raise ConfigError("an expert writes no summaries of its way: set env.context to full or window")
    with Play(session) as play:
        draws = [
            Draw(task, f"{name}/solution", f"{name}/solution") for name, task in {t.id: t for t in lacking}.items()
        ]
        episodes = play.begin([draw.attempts(1, actor=reference_actions) for draw in draws])
        play.finish(episodes)
    ways = {e.task.id: "\n".join(session.decode(t["action"]) for t in e.turns) for e in episodes if e.failure is None}
    return lambda task: ways.get(task.id) or session.solution(task)


def demonstrated(draw: Draw, n: int, play: Play, first: int, label: str = "") -> Attempts:
    """The reference in the place of attempts, numbered from `first`."""
    read = unrestricted(play.session.sampling)
    return draw.attempts(n, first=first, label=label, origin=DEMONSTRATION, actor=reference_actions, read=read)


@part("reference_in_group", stage="rollout")
@dataclass(frozen=True)
class ReferenceInGroup(Rollout):
    """Every group is `group_size - references` samples and `references` times the reference answer.

    statistics  "mixed": the answer is compared with the samples like any other member; "policy": group statistics are
                of the samples alone, and the answer is measured against them (`compared` false)

    In an environment the reference is its expert. Source: LUFFY, arXiv 2504.14945.
    """

    group_size: Count = 8
    references: Count = 1
    statistics: Literal["mixed", "policy"] = "mixed"

    allows = EXPERTS

    def __post_init__(self) -> None:
        if self.references >= self.group_size:
            raise ConfigError(
                f"rollout.references is {self.references}; it must be from 1 to rollout.group_size - 1 = "
                f"{self.group_size - 1}"
            )

    def check_task(self, task: Task, solution: Callable[[Task], str | None]) -> None:
        """TaskError where a task has no reference answer."""
        reference_of(task, solution)

    def first(self, draws: Sequence[Draw], play: Play) -> list[Attempts]:
        own = self.group_size - self.references
        return [a for d in draws for a in (d.attempts(own), demonstrated(d, self.references, play, own))]

    def merge(self, rounds: Sequence[Round], play: Play) -> Forest:
        forest = rounds[0].forest
        given = torch.tensor([origin == DEMONSTRATION for origin in forest.origin], dtype=torch.bool)
        return accepted(
            forest.replace(compared=~given) if self.statistics == "policy" else forest,
            play.session,
        )
