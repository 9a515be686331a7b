"""Turn-level groups of a team (AT-GRPO): K candidates for every role's turn; the team goes on with the best."""

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
from gxpo.sampling.rollouts.team import Teamwork, Walk
from gxpo.sampling.rollouts.team_policies import TeamPolicies


def mix_scores(team: Tensor, local: Tensor, alpha: float = 1.0) -> Tensor:
    """Reward [n] of each candidate: alpha * team + local. Source: AT-GRPO, arXiv 2510.11062.

    >>> mix_scores(torch.tensor([1., 0., 0., 1.]), torch.tensor([.5, .25, 0., 1.])).tolist()
    [1.5, 0.25, 0.0, 2.0]
    """
    return alpha * team.to(torch.float64) + local.to(torch.float64)


@part("team_cells", stage="rollout")
@dataclass(frozen=True)
class TeamCells(Teamwork):
    """Groups of `group_size` candidates under one context, at every turn of a team's attempt.

    graph, policy, frozen_roles, paused_roles   see `Team`
    alpha                   weight of the team's reward beside the role's own

    A candidate is one trajectory of one turn: its prompt is all that it was sampled under, so nothing is trained twice,
    and group "s{step}/{task}/{turn}:{role}" is the cell (instance, agent, turn). Its reward is

        alpha * team + local

    team   the task's reward of the team's answer as it would be if this candidate were the last turn. A role without
           `answer` leaves the answer as it was before (the empty text at first), the same for all candidates, so only
           `local` distinguishes them
    local  the role's `local` reward of the candidate; 0 if it has none

    All rewards of a cell are known before the team goes on with one candidate, the first of the best: n agents and T
    rounds cost `group_size` n T samples. A frozen role has one candidate a turn, which is not returned. Held-out tasks
    are attempted by the team as in `Team`, one sample a turn.
    """

    group_size: Count = 8
    graph: str | Graph = "solver_verifier"
    policy: Literal["shared", "per_role"] = "shared"
    frozen_roles: list[str] = field(default_factory=list)
    paused_roles: list[str] = field(default_factory=list, kw_only=True)
    alpha: float = 1.0

    @property
    def max_turns(self) -> int:
        """Most actions of a trajectory; `calls` is the number of a task's cells."""
        return 1

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        walks = [_Cells(self.cast, task, draw, session) for task, draw in zip(tasks, name_draws(tasks), strict=True)]
        scored_forests: list[Forest] = []
        while walking := [w for w in walks if not w.stops()]:
            # one turn of every team at once; frozen roles have a single candidate and no cell
            candidates_by_walk = session.sample([w.request(self.group_size) for w in walking])
            cells = [(w, c) for w, c in zip(walking, candidates_by_walk, strict=True) if not w.next_role_is_frozen]
            best_index = dict.fromkeys(walking, 0)
            # scored before going on, since the best candidate of each cell is the one that the next role reads
            if cells:
                forest = self._score(cells, session)
                scored_forests.append(forest)
                for i, (walk, candidates) in enumerate(cells):
                    size = len(candidates)
                    best_index[walk] = first_best(forest.outcome[i * size : (i + 1) * size].tolist())
            for walk, candidates in zip(walking, candidates_by_walk, strict=True):
                walk.take(candidates[best_index[walk]])
        if not scored_forests:
            raise ConfigError("no team had room for an action: raise env.max_context, or lower sampling.max_new_tokens")
        return Forest.concat(scored_forests)

    def _score(self, cells: Sequence[tuple[_Cells, list[Completion]]], session: Session) -> Forest:
        """Return the candidates of these cells, with their rewards."""
        records = [r for walk, candidates in cells for r in walk.records(candidates)]
        texts_by_candidate = [(walk, walk.texts_after(c)) for walk, candidates in cells for c in candidates]
        forest = session.score(
            Forest.from_records(records), [walk.answer_after(texts) for walk, texts in texts_by_candidate]
        )
        columns = {name: forest.components[:, i] for i, name in enumerate(forest.component_names)}
        scores = {**columns, "outcome": forest.outcome, "success": forest.success}
        local = torch.tensor(
            [
                walk.local(texts, {k: float(v[r]) for k, v in scores.items()})
                for r, (walk, texts) in enumerate(texts_by_candidate)
            ],
            dtype=torch.float64,
        )
        return forest.with_rewards(
            mix_scores(forest.outcome, local, self.alpha),
            components={**columns, "team": forest.outcome, "local": local},
        )


class _Cells(Walk):
    """A walk with a group of candidates at every turn."""

    def __init__(self, cast: TeamPolicies, task: Task, draw: str, session: Session) -> None:
        super().__init__(cast, task, session)
        self.draw = draw

    @property
    def next_role_is_frozen(self) -> bool:
        """True if the next role's tokens are not trained."""
        return self.role is not None and self.role.name in self.cast.untrained

    def request(self, candidates: int) -> Request:
        assert self.role is not None
        streams = (
            stream(self.session, self.draw, k, (), self.calls)
            for k in range(1 if self.next_role_is_frozen else candidates)
        )
        return Request(self.context, tuple(streams), policy=self.cast.of(self.role))

    def local(self, texts: Mapping[str, str], scores: Mapping[str, float]) -> float:
        """Return the role's own reward of its text."""
        assert self.role is not None
        return 0.0 if self.role.local is None else float(self.role.local(texts, scores))

    def records(self, candidates: Sequence[Completion]) -> list[dict[str, Any]]:
        """Build a `gxpo.rollouts/1` record for each candidate."""
        assert self.role is not None
        group = f"{group_of(self.session, self.draw)}/{self.calls}:{self.role.name}"
        lines = []
        for k, candidate in enumerate(candidates):
            line = self.line(f"{group}/{k}", group, [self.turn(candidate, with_context=True)])
            answer = self.answer_after(self.texts_after(candidate))
            lines.append(line | {"truncated": candidate.finish == "length", "info": {"answer": answer}})
        return lines
