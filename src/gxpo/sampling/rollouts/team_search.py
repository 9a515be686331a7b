"""Tree search over a team's calls (MASPRM): every role's turn is a node with several children."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Completion, Request, Session, Task
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.graph import Graph
from gxpo.sampling.rollouts.search import Searching
from gxpo.sampling.rollouts.search_nodes import Grower, Node, SearchTree
from gxpo.sampling.rollouts.team import Teamwork, Walk
from gxpo.sampling.rollouts.team_policies import TeamPolicies


class _Branch(Walk):
    """A walk that can branch."""

    def branch(self, completion: Completion) -> _Branch:
        """Return a copy of the walk that goes on with this action."""
        twin = copy.copy(self)
        twin._running_contexts = {name: context.copy() for name, context in self._running_contexts.items()}
        twin.take(completion)
        return twin


class _Call(NamedTuple):
    walk: _Branch  # after the call
    turn: dict[str, Any]


class Calls(Grower):
    """Grower of a team's calls, one a piece; a frozen role has a single child."""

    def __init__(self, session: Session, width: int, cast: TeamPolicies) -> None:
        super().__init__(session, width)
        self.cast, self.longest, self.most = cast, session.sampling.max_new_tokens, cast.graph.longest

    def plant(self, tasks: Sequence[Task]) -> list[SearchTree]:
        trees = super().plant(tasks)
        for tree in trees:
            walk = _Branch(self.cast, tree.task, self.session)
            tree.root.piece = _Call(walk, {})
            if walk.stops():  # not even the first context has room: an empty turn, so that the attempt is counted
                walk.role = self.cast.graph.roles[0]
                call = _Call(walk, walk.turn(Completion([], [], "none")))
                tree.leaves.append(tree.root.add(call, (), terminal=True, is_cut=True))
                tree.current = None
        return trees

    def expand(self, batch: Sequence[tuple[SearchTree, Node]]) -> None:
        requests = []
        for tree, node in batch:
            walk: _Branch = node.piece.walk
            assert walk.role is not None
            # a frozen role is not trained, so alternatives of its turn would be compared for nothing
            n_children = 1 if walk.role.name in self.cast.untrained else self.width
            requests.append(Request(walk.context, self.streams(tree, node, n_children), policy=self.cast.of(walk.role)))
        for (tree, node), completions in zip(batch, self.session.sample(requests), strict=True):
            walk = node.piece.walk
            for completion in completions:
                next_walk = walk.branch(completion)
                node.add(
                    _Call(next_walk, walk.turn(completion)),
                    completion.logprobs,
                    terminal=next_walk.stops(),
                    is_cut=next_walk.is_cut,
                )
                tree.n_tokens += len(completion.tokens)

    def record(self, tree: SearchTree, leaf: Node, base: Node | None, n_shared: int) -> dict[str, Any]:
        walk: _Branch = leaf.piece.walk
        turns = [node.piece.turn for node in leaf.way()[n_shared:]]
        fork = None if base is None else {"of": self.name(tree, base), "turn": n_shared - 1, "token": None}
        name = self.name(tree, leaf)
        return walk.line(name, tree.group, turns, fork, path=list(leaf.path), tree_tokens=tree.n_tokens)

    def score_leaves(self, leaves: Sequence[tuple[SearchTree, Node]]) -> Forest:
        forest = Forest.from_records([self.record(tree, leaf, None, 0) for tree, leaf in leaves])
        return self.session.score(forest, [leaf.piece.walk.answer for _, leaf in leaves])


@part("team_search", stage="rollout")
@dataclass(frozen=True)
class TeamSearch(Searching, Teamwork):
    """Tree search (`Searching`) over the calls of a team's roles; the group is the attempts of one tree.

    Attempts are scored by the team's answer, and recorded as in `Team`, each turn with its agent, policy and context.

    graph, policy, frozen_roles, paused_roles   see `Team`; a frozen role has one child instead of `width`

    Held-out tasks are attempted by the team, without search. Source: MASPRM, arXiv 2510.24803.
    """

    graph: str | Graph = "solver_verifier"
    policy: Literal["shared", "per_role"] = "shared"
    frozen_roles: list[str] = field(default_factory=list)
    paused_roles: list[str] = field(default_factory=list, kw_only=True)

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        return self.search(tasks, Calls(session, self.width, self.cast))
