"""Monte Carlo tree search rollouts (DeepSearch, AlphaMath): attempts chosen by the outcomes of earlier ones."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Completion, Request, Session, Task
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.build import Count, Episode, Limit, RolloutPart, action, dotted, record, sample_within
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.search_nodes import Grower, Node, SearchTree, backed_up, depth_weight, puct, uct
from gxpo.sampling.rollouts.step_candidates import newest_turn


class Answers(Grower):
    """Answers to prompts, in pieces of `longest` tokens."""

    def __init__(self, session: Session, width: int, chunks: int) -> None:
        super().__init__(session, width)
        limit = session.sampling.max_new_tokens
        self.longest = -(-limit // chunks)
        self.most = -(-limit // self.longest)

    def plant(self, tasks: Sequence[Task]) -> list[SearchTree]:
        trees = super().plant(tasks)
        for tree in trees:
            tree.context = self.session.encode(tree.task)
        return trees

    def expand(self, batch: Sequence[tuple[SearchTree, Node]]) -> None:
        limit = self.session.sampling.max_new_tokens
        requests = [
            Request((*tree.context, *_tokens(node)), self.streams(tree, node, self.width)) for tree, node in batch
        ]
        rooms = [min(self.longest, limit - node.length) for _, node in batch]
        for (tree, node), found in zip(batch, sample_within(self.session, requests, rooms), strict=True):
            for done in found:
                ended = done.finish == "stop" or self._stopped([*_tokens(node), *done.tokens])
                full = node.length + len(done.tokens) >= limit
                node.add(done, done.logprobs, terminal=ended or full, cut=not ended)
                tree.spent += len(done.tokens)

    def _stopped(self, tokens: Sequence[int]) -> bool:
        """Whether a text that ends answers began in one piece and ended in the next."""
        stop = self.session.sampling.stop
        return bool(stop) and any(text in self.session.decode(tokens) for text in stop)

    def record(self, tree: SearchTree, leaf: Node, base: Node | None, shared: int) -> dict[str, Any]:
        way = leaf.way()[shared:]
        pieces: list[Completion] = [node.piece for node in way]
        begins = [node.length - node.tokens for node in way]
        where: dict[str, Any] = {"prompt": list(tree.context)}
        if base is not None:
            where = {"fork": {"of": self.name(tree, base), "turn": 0, "token": begins[0]}}
        finish = "length" if leaf.cut else "stop"
        turn = action(*pieces) | {"segments": [b - begins[0] for b in begins], "finish": finish, "state": tree.task.id}
        info = {"path": list(leaf.path), "tree_tokens": tree.spent}
        return record(
            tree.task, tree.group, self.name(tree, leaf), self.session.sampling,
            **where, turns=[turn], truncated=leaf.cut, info=info,
        )  # fmt: skip

    def alone(self, tree: SearchTree, node: Node) -> dict[str, Any]:
        above = _tokens(node)[: -node.tokens or None]
        turn = action(node.piece) | {"finish": "length" if node.cut else "stop", "state": tree.task.id}
        return {"prompt": [*tree.context, *above], "turns": [turn], "truncated": node.cut}


class Episodes(Grower):
    """Episodes in environments, a turn a piece: every child is a fork of its parent's episode."""

    def __init__(self, session: Session, width: int, play: Play) -> None:
        super().__init__(session, width)
        self.play, self.longest, self.most = play, session.sampling.max_new_tokens, session.episode.max_turns

    def plant(self, tasks: Sequence[Task]) -> list[SearchTree]:
        trees = super().plant(tasks)
        for tree, episode in zip(trees, self.play.start(tasks, [t.draw for t in trees], 1), strict=True):
            tree.root.piece = episode
            if episode.end is not None:  # its environment broke: the attempt is there, and counted
                tree.leaves.append(tree.root.add(episode, (), terminal=True, cut=True))
                tree.current = None
        return trees

    def expand(self, batch: Sequence[tuple[SearchTree, Node]]) -> None:
        forks = []
        for tree, node in batch:
            for key in self.streams(tree, node, self.width):
                forks.append((node.piece, node.depth, key, f"{tree.draw}/{dotted(key)}"))
        twins = self.play.fork(forks)
        self.play.turn(self.play.running(twins))
        running = set(map(id, self.play.running(twins)))
        for i, (tree, node) in enumerate(batch):
            for twin in twins[i * self.width : (i + 1) * self.width]:
                own = twin.turns[-1]
                node.add(twin, own["logprob"], terminal=id(twin) not in running, cut=twin.end != "done")
                tree.spent += len(own["action"])

    def record(self, tree: SearchTree, leaf: Node, base: Node | None, shared: int) -> dict[str, Any]:
        episode: Episode = leaf.piece
        episode.base, episode.inherited = None if base is None else base.piece, shared
        line = episode.record(dataclasses.asdict(self.session.sampling))
        line["info"] |= {"path": list(leaf.path), "tree_tokens": tree.spent}
        return line

    def alone(self, tree: SearchTree, node: Node) -> dict[str, Any]:
        return newest_turn(node.piece) | {"truncated": node.cut}


def _tokens(node: Node) -> list[int]:
    """All tokens down to a node of an answer."""
    return [t for n in node.way() for t in n.piece.tokens]


# ---------------------------------------------------------------- the part
@dataclass(frozen=True)
class Searching(RolloutPart):
    """A tree for each task, grown piece by piece until `terminals` of its ends are backed up: those are the group.

    All trees expand one node each at a time, so the engine has them together.

    terminals     attempts a task; fewer where the tree or the budget ends before
    width         children of every node that is expanded
    values        "weighted": the value of a node adds up +-1 of the terminals below it times `depth_weight`, successes
                  driving out failures (`backed_up`); its visits count the expansion that made it, too. "mean": the mean
                  of +-1. q = value / visits
    backup        of the terminals that one expansion brings: "one", a success before a failure before one that was cut,
                  of these the one of least mean -log p; the others are discarded. Or "all"
    following     where the search goes on after a terminal: "frontier", the best of all nodes without children; "root",
                  down from the root. Without a terminal it goes on with one of the new children
    selection     the score of a child: "uct", those without visits first; "uct_counted", where no visits count as one;
                  "puct", whose prior is the geometric mean of the probabilities of the piece's tokens
    exploration   c of that score. By it one is drawn, by softmax, or the first of the largest taken, if `greedy`
    floor         least of `depth_weight`
    quality, surprisal, depth   of the frontier: score = quality tanh(q of the parent) + surprisal (mean -log p of the
                  piece) + depth sqrt(depth / most), the first of the largest
    token_budget  a bound on the tokens generated for one task, 0: none; a node is expanded if all its children fit in
                  what is left even at their longest

    The verdict decides between +1 and -1 (where there is none: an outcome above 0); an unscored end counts as 0. Ends
    are scored as they come. Every attempt is a declared fork of the earlier one that it shares most with. `info`:
    "path" (which child of which child) and "tree_tokens" (generated for the task, with what was dropped). Branches that
    were sampled and did not become attempts are charged, and counted as discarded. A child is sampled under the stream
    (seed, step, task, 0, path). Under "one" successes are kept before failures: the group is better than the policy.

    Source: DeepSearch, arXiv 2509.25454, and its code ("weighted", "one", "frontier"; there `greedy`, and `width` the
    group's size unless it is set). "mean", "all", "root" is a plain search with every end scored: AlphaMath (arXiv
    2405.03553, "puct") without its value estimates at nodes, and MASPRM (arXiv 2510.24803, "uct_counted").
    """

    terminals: Count = 8
    width: Count = 4
    values: Literal["weighted", "mean"] = "weighted"
    backup: Literal["one", "all"] = "one"
    following: Literal["frontier", "root"] = "frontier"
    selection: Literal["uct", "uct_counted", "puct"] = "uct"
    exploration: Annotated[float, Ge(0)] = 2.0
    greedy: bool = False
    floor: Annotated[float, Interval(ge=0, le=1)] = 0.1
    quality: float = 0.4
    surprisal: float = 0.0
    depth: float = 0.01
    token_budget: Limit = 0

    provides = ("states", "forks")

    @property
    def by_node(self) -> bool:
        """Whether the children of each node are a group, not the attempts at a task."""
        return False

    @property
    def group_size(self) -> int:
        """Attempts a task, where tree and budget allow them all."""
        return self.terminals

    def searched(self, tasks: Sequence[Task], grower: Grower) -> Forest:
        """The trees' terminals, scored."""
        if 0 < self.token_budget < (least := self.width * grower.longest):
            raise ConfigError(
                f"rollout.token_budget={self.token_budget} does not hold one expansion of {self.width} pieces of up to "
                f"{grower.longest} tokens: raise it to {least} at least, or lower rollout.width"
            )
        trees, scores = grower.plant(tasks), _Scores()
        if ends := [(tree, leaf) for tree in trees for leaf in tree.leaves]:
            scores.note(grower.judged(ends), [leaf for _, leaf in ends])
        while batch := [(tree, tree.current) for tree in trees if tree.current is not None]:
            grower.expand(batch)
            ends = [(tree, child) for tree, node in batch for child in node.children if child.terminal]
            if ends:
                scores.note(grower.judged(ends), [leaf for _, leaf in ends])
            for tree, node in batch:
                self._settle(tree, node, grower)
        if self.by_node:
            lines = [r for tree in trees for r in _siblings(tree, grower)]
            idle = [n for tree in trees for n in tree.root.below() if not n.children and not n.visits]
            grower.session.budget.discarded += len(idle)
            return Forest.from_records(lines)
        for tree in trees:
            tips = sum(not node.children for node in tree.root.below())
            grower.session.budget.discarded += tips - len(tree.leaves)
        return scores.of(Forest.from_records([r for tree in trees for r in _records(tree, grower)]))

    # ------------------------------------------------------------ backing up
    def _settle(self, tree: SearchTree, node: Node, grower: Grower) -> None:
        """What the newest expansion says of the tree, and where it goes on."""
        ends = [child for child in node.children if child.terminal]
        if self.values == "weighted":
            for child in node.children:
                child.visits += not child.terminal
        chosen = sorted(ends, key=_preference)[:1] if self.backup == "one" else ends
        for leaf in chosen[: self.terminals - len(tree.leaves)]:
            self._back_up(leaf)
            tree.leaves.append(leaf)
        full = len(tree.leaves) >= self.terminals
        spent = tree.spent + self.width * grower.longest
        if full or (self.token_budget and spent > self.token_budget):
            tree.current = None
        elif not ends:
            tree.current = self._chosen(node.children, node, tree.draws)
        else:
            tree.current = (
                self._frontier(tree.root, grower.most)
                if self.following == "frontier"
                else self._descended(tree.root, tree.draws)
            )

    def _back_up(self, leaf: Node) -> None:
        at: Node | None = leaf
        while at is not None:
            at.visits += 1
            if self.values == "mean":
                at.value += leaf.outcome
            elif leaf.outcome:
                at.value = backed_up(at.value, leaf.outcome, depth_weight(at.depth, leaf.depth, self.floor))
            at = at.above

    # ------------------------------------------------------------ selection
    def _frontier(self, root: Node, most: int) -> Node | None:
        """The best node that has no children yet and could have some; None: there is none."""
        best, highest = None, -math.inf
        for node in root.below():
            if node.terminal or node.children or node.above is None:
                continue
            score = self.quality * math.tanh(node.above.q) + self.surprisal * node.surprise
            score += self.depth * math.sqrt(node.depth / most)
            if score > highest:
                best, highest = node, score
        return best

    def _descended(self, root: Node, draws: random.Random) -> Node | None:
        """Down from the root by `uct` to a node without children; None: everything has ended."""
        node = root
        while not root.closed:
            if not node.children:
                return node
            node.closed = all(child.closed for child in node.children)
            node = root if node.closed else self._chosen([c for c in node.children if not c.closed], node, draws)
        return None

    def _score(self, child: Node, above: Node) -> float:
        if self.selection == "puct":
            return puct(child.q, child.visits, above.visits, self.exploration, math.exp(-child.surprise))
        visits = child.visits if self.selection == "uct" else max(child.visits, 1)
        return uct(child.q, visits, above.visits, self.exploration)

    def _chosen(self, children: Sequence[Node], above: Node, draws: random.Random) -> Node:
        scores = [self._score(c, above) for c in children]
        high = max(scores)
        if self.greedy:
            return children[scores.index(high)]
        weights = [float(s == high) if math.isinf(high) else math.exp(s - high) for s in scores]
        return draws.choices(children, weights)[0]


def _preference(leaf: Node) -> tuple[int, float]:
    """Smaller is preferred: successes, failures, those that were cut, those of unknown outcome; then the surest."""
    rank = 0 if leaf.outcome > 0 else 3 if leaf.outcome == 0 else 2 if leaf.cut else 1
    return rank, leaf.total / max(leaf.length, 1)


@part("search", stage="rollout")
@dataclass(frozen=True)
class Search(Searching):
    """`Searching` where a piece is a stretch of tokens of an answer, or a turn in an environment (taken back by
    snapshot, or by going through the actions again).

    chunks  an answer has at most so many pieces: one is `sampling.max_new_tokens` / `chunks` tokens (rounded up), and
            is a segment
    trains  "attempts": whole ones, a group for a task; "siblings": the children of a node are a group, each a
            trajectory of its piece alone, under all that it was sampled under, with its q as outcome. Children that no
            end was backed up through have no q and are discarded; a child has a verdict if it is an end
    """

    chunks: Count = 8
    trains: Literal["attempts", "siblings"] = "attempts"

    provides = ("states", "forks", "segments")

    @property
    def by_node(self) -> bool:
        """Whether the children of each node are a group."""
        return self.trains == "siblings"

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        if session.envs is None:
            return self.searched(tasks, Answers(session, self.width, self.chunks))
        with Play(session, restorable=True) as play:
            return self.searched(tasks, Episodes(session, self.width, play))


class _Scores:
    """What the task's rewards said of each end."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[float, float, Mapping[str, float]]] = {}
        self._names: dict[str, None] = {}

    def note(self, forest: Forest, leaves: Sequence[Node]) -> None:
        """Takes the scores in, and tells the leaves how they came out."""
        self._names |= dict.fromkeys(forest.component_names)
        rows = zip(forest.id, forest.outcome.tolist(), forest.success.tolist(), forest.components.tolist(), strict=True)
        for (name, outcome, success, components), leaf in zip(rows, leaves, strict=True):
            self._rows[name] = outcome, success, dict(zip(forest.component_names, components, strict=True))
            verdict = outcome > 0 if math.isnan(success) else success >= 1
            leaf.outcome = 0.0 if math.isnan(outcome) else 1.0 if verdict else -1.0

    def of(self, forest: Forest) -> Forest:
        """The forest with the scores of its trajectories."""
        rows = [self._rows[name] for name in forest.id]

        def column(values: Sequence[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float64)

        return forest.with_rewards(
            column([outcome for outcome, _, _ in rows]),
            components={name: column([known.get(name, math.nan) for _, _, known in rows]) for name in self._names},
            success=column([success for _, success, _ in rows]),
        )


def _siblings(tree: SearchTree, grower: Grower) -> Iterator[dict[str, Any]]:
    """The nodes that were visited, each as a trajectory of its piece; those with one parent are a group."""
    for above in tree.root.below():
        group = f"{grower.name(tree, above)}."
        for node in above.children:
            if node.visits:
                verdict = None if not node.terminal or not node.outcome else node.outcome > 0
                info = {"path": list(node.path), "visits": node.visits, "tree_tokens": tree.spent}
                yield record(
                    tree.task, group, grower.name(tree, node), grower.session.sampling,
                    **grower.alone(tree, node), reward=node.q, rewards={"q": node.q}, success=verdict, info=info,
                )  # fmt: skip


def _records(tree: SearchTree, grower: Grower) -> Iterator[dict[str, Any]]:
    """The attempts in the order in which they were backed up: each leaves the earlier one that it shares most with."""
    through: dict[tuple[int, ...], Node] = {}  # the first attempt that goes through each node
    for leaf in tree.leaves:
        shared = max((n.depth for n in leaf.way() if n.path in through), default=0)
        yield grower.record(tree, leaf, through.get(leaf.path[:shared]), shared)
        for node in leaf.way():
            through.setdefault(node.path, leaf)
