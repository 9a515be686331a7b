"""Turn-level groups of a team (AT-GRPO): K candidates for every agent's turn, going on along the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Completion, Request, Session, Task
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.build import Count, first_best, group_of, name_draws, stream
from gxpo.sampling.rollouts.graph import Graph
from gxpo.sampling.rollouts.team import TeamPolicies, Teamwork, Walk


def mixed(team: Tensor, local: Tensor, alpha: float = 1.0) -> Tensor:
    """[n] alpha * team + local: the reward of each candidate. Source: AT-GRPO, arXiv 2510.11062.

    >>> mixed(torch.tensor([1., 0., 0., 1.]), torch.tensor([.5, .25, 0., 1.])).tolist()
    [1.5, 0.25, 0.0, 2.0]
    """
    return alpha * team.to(torch.float64) + local.to(torch.float64)


@part("team_cells", stage="rollout")
@dataclass(frozen=True)
class TeamCells(Teamwork):
    """At every turn of a team's attempt `group_size` candidates are sampled under one context; they are a group.

    graph, policy, frozen   see `Team`
    alpha                   weight of the team's reward beside the role's own

    A candidate is one trajectory of one turn: its prompt is all that it was sampled under, so nothing is trained twice,
    and group "s{step}/{task}/{turn}:{role}" is the cell (instance, agent, turn). Its reward is

        alpha * team + local

    team   the task's reward of what the team's answer would be if this candidate stood and nobody spoke after it; for a
           role that has no `answer` that is the answer before it, the same for all candidates, so only `local` tells
           them apart (an answer that nobody has given yet is the empty text)
    local  what the role's `local` says of it; 0 where it has none

    All rewards of a cell are there before one candidate, the first of the best, is taken and the team goes on with it:
    n agents and T rounds cost `group_size` n T samples. A role that is frozen says one thing a turn, which is not
    returned. Held-out tasks are attempted by the team as in `Team`, one sample a turn.
    """

    group_size: Count = 8
    graph: str | Graph = "solver_verifier"
    policy: Literal["shared", "per_role"] = "shared"
    frozen: list[str] = field(default_factory=list)
    alpha: float = 1.0

    @property
    def max_turns(self) -> int:
        """The most actions that a trajectory can have; `calls` are the cells of a task."""
        return 1

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        walks = [_Cells(self.cast, task, draw, session) for task, draw in zip(tasks, name_draws(tasks), strict=True)]
        grown: list[Forest] = []
        while walking := [w for w in walks if not w.stops()]:
            found = session.sample([w.request(self.group_size) for w in walking])
            cells = [(w, c) for w, c in zip(walking, found, strict=True) if not w.silent]
            best = dict.fromkeys(walking, 0)
            if cells:
                forest = self._scored(cells, session)
                grown.append(forest)
                for i, (walk, candidates) in enumerate(cells):
                    size = len(candidates)
                    best[walk] = first_best(forest.outcome[i * size : (i + 1) * size].tolist())
            for walk, candidates in zip(walking, found, strict=True):
                walk.take(candidates[best[walk]])
        if not grown:
            raise ConfigError("no team had room for an action: raise env.max_context, or lower sampling.max_new_tokens")
        return Forest.concat(grown)

    def _scored(self, cells: Sequence[tuple[_Cells, list[Completion]]], session: Session) -> Forest:
        """The candidates of these cells, with their rewards."""
        records = [r for walk, candidates in cells for r in walk.records(candidates)]
        said = [(walk, walk.heard(c)) for walk, candidates in cells for c in candidates]
        forest = session.score(Forest.from_records(records), [walk.answered(texts) for walk, texts in said])
        columns = {name: forest.components[:, i] for i, name in enumerate(forest.component_names)}
        scores = {**columns, "outcome": forest.outcome, "success": forest.success}
        local = torch.tensor(
            [walk.local(texts, {k: float(v[r]) for k, v in scores.items()}) for r, (walk, texts) in enumerate(said)],
            dtype=torch.float64,
        )
        return forest.with_rewards(
            mixed(forest.outcome, local, self.alpha), components={**columns, "team": forest.outcome, "local": local}
        )


class _Cells(Walk):
    """A walk whose every turn is a group of candidates."""

    def __init__(self, cast: TeamPolicies, task: Task, draw: str, session: Session) -> None:
        super().__init__(cast, task, session)
        self.draw = draw

    @property
    def silent(self) -> bool:
        """Whether the role that speaks next is not trained."""
        return self.role is not None and self.role.name in self.cast.frozen

    def request(self, candidates: int) -> Request:
        assert self.role is not None
        streams = (stream(self.session, self.draw, k, (), self.calls) for k in range(1 if self.silent else candidates))
        return Request(self.context, tuple(streams), policy=self.cast.of(self.role))

    def local(self, said: Mapping[str, str], scores: Mapping[str, float]) -> float:
        """The role's own reward of a text."""
        assert self.role is not None
        return 0.0 if self.role.local is None else float(self.role.local(said, scores))

    def records(self, candidates: Sequence[Completion]) -> list[dict[str, Any]]:
        """A line of `gxpo.rollouts/1` for each candidate."""
        assert self.role is not None
        group = f"{group_of(self.session, self.draw)}/{self.calls}:{self.role.name}"
        lines = []
        for k, said in enumerate(candidates):
            line = self.line(f"{group}/{k}", group, [self.turn(said, whole=True)])
            answer = self.answered(self.heard(said))
            lines.append(line | {"truncated": said.finish == "length", "info": {"answer": answer}})
        return lines
