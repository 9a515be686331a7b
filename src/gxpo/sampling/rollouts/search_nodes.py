"""Nodes of a tree search, their UCT and PUCT scores and backups, and the base class of what expands them."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Session, StreamKey, Task
from gxpo.sampling.rollouts.build import group_of, name_draws, random_for, stream


def backed_up(value: float, outcome: float, weight: float) -> float:
    """Return a node's value after another outcome, +1 or -1.

    Values add up within one sign; a success replaces what failures have added, and a failure leaves a success as it is,
    so their order does not matter.

    >>> backed_up(-0.5, 1.0, 0.25), backed_up(0.25, -1.0, 0.25), backed_up(0.25, 1.0, 0.25)
    (0.25, 0.25, 0.5)
    """
    if value * outcome >= 0:
        return value + weight * outcome
    return weight * outcome if outcome > 0 else value


def depth_weight(depth: int, leaf: int, floor: float) -> float:
    """Weight of an outcome at a node above its leaf, which has depth `leaf`: max((depth + 1) / (leaf + 1), floor)."""
    return max((depth + 1) / (leaf + 1), floor)


def uct(q: float, visits: int, above: int, exploration: float) -> float:
    """UCT score q + exploration * sqrt(ln(visits of the parent) / visits); infinite without visits.

    >>> round(uct(0.2, 3, 10, 2.0), 6)
    1.952174
    """
    return math.inf if visits == 0 else q + exploration * math.sqrt(math.log(max(above, 1)) / visits)


def puct(q: float, visits: int, above: int, exploration: float, prior: float) -> float:
    """PUCT score q + exploration * prior * sqrt(visits of the parent) / (1 + visits).

    >>> round(puct(0.2, 3, 16, 1.5, 0.8), 6)
    1.4
    """
    return q + exploration * prior * math.sqrt(above) / (1 + visits)


@dataclass(eq=False)
class Node:
    """A state of the search, reached by one more piece: some tokens of an answer, a turn, or a call.

    path      index of each child from the root; names the stream that the piece is sampled under
    piece     the sampled piece; None at the root
    tokens    of the piece; `length`: of all pieces down to it
    surprise  mean -log p of the piece's tokens; `total`: its sum down to here
    outcome   of a terminal: 1 success, -1 failure, 0 unknown
    """

    above: Node | None = None
    path: tuple[int, ...] = ()
    piece: Any = None
    tokens: int = 0
    length: int = 0
    surprise: float = 0.0
    total: float = 0.0
    terminal: bool = False
    is_closed: bool = False  # terminal, or all below it is closed
    is_cut: bool = False  # ended by a limit
    outcome: float = 0.0
    visits: int = 0
    value: float = 0.0
    children: list[Node] = field(default_factory=list)

    @property
    def depth(self) -> int:
        return len(self.path)

    @property
    def q(self) -> float:
        return self.value / self.visits if self.visits else 0.0

    def way(self) -> list[Node]:
        """Return the nodes from the root (left out) to this one."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None and node.above is not None:
            nodes.append(node)
            node = node.above
        return nodes[::-1]

    def below(self) -> Iterator[Node]:
        """Yield this node and all nodes below it, children in order."""
        yield self
        for child in self.children:
            yield from child.below()

    def add(self, piece: Any, logprobs: Sequence[float], *, terminal: bool, is_cut: bool) -> Node:
        """Add a child with this piece."""
        surprisal, size = -math.fsum(logprobs), len(logprobs)
        child = Node(self, (*self.path, len(self.children)), piece, size, self.length + size)
        child.surprise, child.total = surprisal / max(size, 1), self.total + surprisal
        child.terminal = child.is_closed = terminal
        child.is_cut = is_cut
        self.children.append(child)
        return child


@dataclass(eq=False)
class SearchTree:
    """The search tree of one drawn task: the node to expand next, the terminals that were backed up, the cost."""

    task: Task
    draw: str
    group: str
    draws: random.Random
    context: Any = None  # set by the grower: the prompt's ids
    root: Node = field(default_factory=Node)
    current: Node | None = None
    leaves: list[Node] = field(default_factory=list)
    n_tokens: int = 0  # tokens


class Grower:
    """Base class of growers, which sample and record the pieces of a tree.

    Answers and episodes are in `gxpo.sampling.rollouts.search`, calls of teams in `gxpo.sampling.rollouts.team_search`.
    """

    longest: int  # most tokens of a piece
    most: int  # most pieces of an attempt

    def __init__(self, session: Session, width: int) -> None:
        self.session, self.width = session, width

    def plant(self, tasks: Sequence[Task]) -> list[SearchTree]:
        """Make a tree for every draw."""
        s, trees = self.session, []
        for task, draw in zip(tasks, name_draws(tasks), strict=True):
            tree = SearchTree(task, draw, group_of(s, draw), random_for(s, draw, "search"))
            tree.current = tree.root
            trees.append(tree)
        return trees

    def streams(self, tree: SearchTree, node: Node, children: int) -> tuple[StreamKey, ...]:
        """Return the streams of the children of a node."""
        return tuple(stream(self.session, tree.draw, 0, (*node.path, k)) for k in range(children))

    def expand(self, batch: Sequence[tuple[SearchTree, Node]]) -> None:
        """Sample `width` children of every node in one call; mark terminals, and add the tokens to `spent`."""
        raise NotImplementedError

    def record(self, tree: SearchTree, leaf: Node, base: Node | None, n_shared: int) -> dict[str, Any]:
        """Build a leaf's `gxpo.rollouts/1` record; with a base, a fork after the `n_shared` pieces that both have."""
        raise NotImplementedError

    def piece_columns(self, tree: SearchTree, node: Node) -> dict[str, Any]:
        """Return the record columns of one piece alone; its prompt is all that it was sampled under."""
        raise NotImplementedError

    def score_leaves(self, leaves: Sequence[tuple[SearchTree, Node]]) -> Forest:
        """Score the attempts that end in these leaves."""
        return self.session.score(Forest.from_records([self.record(t, leaf, None, 0) for t, leaf in leaves]))

    @staticmethod
    def name(tree: SearchTree, leaf: Node) -> str:
        return f"{tree.group}/{'.'.join(map(str, (0, *leaf.path)))}"
