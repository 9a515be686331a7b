"""Joint answers of roles that act at the same time (MAGRPO): each text is paid by the answers that it is part of."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Completion, Request, Session, Task
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.build import Count, group_of, name_draws, stream
from gxpo.sampling.rollouts.graph import Graph, fill_text
from gxpo.sampling.rollouts.team import Teamwork, Walk


def marginal(reward: Tensor, combinations: Sequence[Sequence[int]], roles: int, texts: int) -> Tensor:
    """Mean reward of the joint answers that each text is part of, [roles, texts] float64; nan if any is unknown.

    reward        [J] of the joint answers;   combinations  the number of each role's text in each of them

    >>> pairs = [(0, 0), (0, 1), (1, 0), (1, 1)]
    >>> marginal(torch.tensor([1.0, 0.0, 0.0, 0.5]), pairs, 2, 2).tolist()
    [[0.5, 0.25], [0.5, 0.25]]
    """
    index = torch.tensor(combinations).reshape(-1, roles) + torch.arange(roles) * texts
    total = torch.zeros(roles * texts, dtype=torch.float64)
    total = total.index_add_(0, index.reshape(-1), reward.to(torch.float64).repeat_interleave(roles))
    return (total / torch.bincount(index.reshape(-1), minlength=roles * texts)).reshape(roles, texts)


@part("team_joint", stage="rollout")
@dataclass(frozen=True)
class TeamJoint(Teamwork):
    """`group_size` texts of each role of a team whose roles act at the same time, scored as joint answers.

    graph, policy, frozen_roles, paused_roles   see `Team`; every role but the first has `at_once`, and nothing is sent
                                                back
    joint   "cross": every text of a role with every one of the others, group_size^n answers; "aligned": the k-th
            texts of all roles, group_size answers

    A text is one trajectory, and group "s{step}/{task}/{role}" the texts of a role. Its outcome is the mean outcome of
    the joint answers that it is part of, and it is a success if all of them are. All roles are sampled in one call. A
    frozen role has one text, which is not returned. Held-out tasks are attempted by the team as in `Team`.
    Source: MAGRPO, arXiv 2508.04652.
    """

    group_size: Count = 8
    graph: str | Graph = "halves"
    policy: Literal["shared", "per_role"] = "shared"
    frozen_roles: list[str] = field(default_factory=list)
    paused_roles: list[str] = field(default_factory=list, kw_only=True)
    joint: Literal["cross", "aligned"] = field(default="cross", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        team = self.cast.graph
        if team.helpers or not all(role.at_once for role in team.roles[1:]) or any(role.back for role in team.roles):
            raise ConfigError(
                "rollout.graph: rollout team_joint is for roles that act at the same time: give every role but the "
                "first at_once=True, and none calls or back, or use rollout=team"
            )

    @property
    def max_turns(self) -> int:
        """Most actions of a trajectory; `calls` is the number of a task's roles."""
        return 1

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        rows = [_Row(self, task, draw, session) for task, draw in zip(tasks, name_draws(tasks), strict=True)]
        # no role reads another: all of them are sampled in one call
        completions = iter(session.sample([request for row in rows for request in row.requests]))
        for row in rows:
            row.texts = [next(completions) for _ in row.requests]
        answers = [(row, pick) for row in rows for pick in row.combinations]
        forest = Forest.from_records([row.joint_record(i, pick) for i, (row, pick) in enumerate(answers)])
        scored_forest = session.score(forest, [row.answer(pick) for row, pick in answers])
        # of each text the mean over its joint answers, and whether all of them are successes
        lines, outcomes, successes, start = list[dict[str, Any]](), list[float](), list[float](), 0
        for row in rows:
            end = start + len(row.combinations)
            n_roles, n_texts = len(row.requests), max(map(len, row.texts))
            mean = marginal(scored_forest.outcome[start:end], row.combinations, n_roles, n_texts)
            success = marginal(scored_forest.success[start:end], row.combinations, n_roles, n_texts)
            start = end
            for i, k in row.trained:
                lines.append(row.record(i, k))
                outcomes.append(float(mean[i, k]))
                successes.append(float(success[i, k] >= 1) if bool(success[i, k].isfinite()) else torch.nan)
        return Forest.from_records(lines).with_rewards(
            torch.tensor(outcomes, dtype=torch.float64), success=torch.tensor(successes, dtype=torch.float64)
        )


class _Row:
    """A task's roles and their texts.

    walks     of each role, one that stands before its turn
    texts     of each role its completions
    """

    def __init__(self, part: TeamJoint, task: Task, draw: str, session: Session) -> None:
        self.part, self.draw, self.session = part, draw, session
        self.walks: list[Walk] = []
        for number in range(len(part.cast.graph.roles)):
            walk = Walk(part.cast, task, session)
            for _ in range(number):
                walk.take(Completion([], [], "none"))
            self.walks.append(walk)
        sizes = [1 if role.name in part.cast.untrained else part.group_size for role in part.cast.graph.roles]
        self.requests = [
            Request(
                walk.context,
                tuple(stream(session, draw, k, (), i) for k in range(size)),
                policy=part.cast.of(part.cast.graph.roles[i]),
            )
            for i, (walk, size) in enumerate(zip(self.walks, sizes, strict=True))
        ]
        if part.joint == "cross":
            self.combinations = list(itertools.product(*map(range, sizes)))
        else:
            self.combinations = [tuple(min(k, size - 1) for size in sizes) for k in range(max(sizes))]
        self.trained = [(i, k) for i, size in enumerate(sizes) if size > 1 or part.group_size == 1 for k in range(size)]
        self.texts: list[list[Completion]] = []

    def answer(self, pick: Sequence[int]) -> str:
        """Return the team's answer with these texts."""
        answer, texts = "", dict(self.walks[0].texts)
        for role, completions, k in zip(self.part.cast.graph.roles, self.texts, pick, strict=True):
            texts[role.name] = self.session.decode(completions[k].tokens)
            answer = answer if role.answer is None else fill_text(role.answer, texts)
        return answer

    def joint_record(self, number: int, pick: Sequence[int]) -> dict[str, Any]:
        """Build the record of a joint answer, to be scored; it is not returned."""
        turns = [
            walk.turn(self.texts[i][k], with_context=True)
            for i, (walk, k) in enumerate(zip(self.walks, pick, strict=True))
        ]
        group = group_of(self.session, self.draw)
        return self.walks[0].line(f"{group}/joint/{number}", group, turns) | {"info": {"answer": self.answer(pick)}}

    def record(self, i: int, k: int) -> dict[str, Any]:
        """Build the record of the k-th text of role i."""
        walk, completion = self.walks[i], self.texts[i][k]
        group = f"{group_of(self.session, self.draw)}/{self.part.cast.graph.roles[i].name}"
        line = walk.line(f"{group}/{k}", group, [walk.turn(completion, with_context=True)])
        return line | {"truncated": completion.finish == "length", "info": {}}
