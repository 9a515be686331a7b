"""Monte Carlo tree search rollouts (DeepSearch, AlphaMath): attempts chosen by the outcomes of earlier ones."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Interval
from torch import Tensor

from gxpo.base.errors import ConfigError
from gxpo.forest import grouped
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Completion, Request, Session, Task
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.attempts import Episode
from gxpo.sampling.rollouts.build import Count, Limit, RolloutPart, action, dotted_name, record, sample_within
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.replay_buffer import Remembers, ReplayBuffer, as_replay, side_by_side
from gxpo.sampling.rollouts.search_nodes import Grower, Node, SearchTree, backed_up, depth_weight, puct, uct
from gxpo.sampling.rollouts.step_candidates import newest_turn


class Answers(Grower):
    """Grower of answers to prompts, in pieces of `longest` tokens."""

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
        for (tree, node), completions in zip(batch, sample_within(self.session, requests, rooms), strict=True):
            for completion in completions:
                has_ended = completion.finish == "stop" or self._is_stopped([*_tokens(node), *completion.tokens])
                is_full = node.length + len(completion.tokens) >= limit
                node.add(completion, completion.logprobs, terminal=has_ended or is_full, is_cut=not has_ended)
                tree.n_tokens += len(completion.tokens)

    def _is_stopped(self, tokens: Sequence[int]) -> bool:
        """Return True if a stop string began in one piece and ended in the next."""
        stop = self.session.sampling.stop
        return bool(stop) and any(text in self.session.decode(tokens) for text in stop)

    def record(self, tree: SearchTree, leaf: Node, base: Node | None, n_shared: int) -> dict[str, Any]:
        way = leaf.way()[n_shared:]
        pieces: list[Completion] = [node.piece for node in way]
        begins = [node.length - node.tokens for node in way]
        columns: dict[str, Any] = {"prompt": list(tree.context)}
        if base is not None:
            columns = {"fork": {"of": self.name(tree, base), "turn": 0, "token": begins[0]}}
        finish = "length" if leaf.is_cut else "stop"
        turn = action(*pieces) | {"segments": [b - begins[0] for b in begins], "finish": finish, "state": tree.task.id}
        info = {"path": list(leaf.path), "tree_tokens": tree.n_tokens}
        return record(
            tree.task, tree.group, self.name(tree, leaf), self.session.sampling,
            **columns, turns=[turn], truncated=leaf.is_cut, info=info,
        )  # fmt: skip

    def piece_columns(self, tree: SearchTree, node: Node) -> dict[str, Any]:
        context_tokens = _tokens(node)[: -node.tokens or None]
        turn = action(node.piece) | {"finish": "length" if node.is_cut else "stop", "state": tree.task.id}
        return {"prompt": [*tree.context, *context_tokens], "turns": [turn], "truncated": node.is_cut}


class Episodes(Grower):
    """Grower of episodes in environments, a turn a piece: every child is a fork of its parent's episode."""

    def __init__(self, session: Session, width: int, play: Play) -> None:
        super().__init__(session, width)
        self.play, self.longest, self.most = play, session.sampling.max_new_tokens, session.episode.max_turns

    def plant(self, tasks: Sequence[Task]) -> list[SearchTree]:
        trees = super().plant(tasks)
        for tree, episode in zip(trees, self.play.start(tasks, [t.draw for t in trees], 1), strict=True):
            tree.root.piece = episode
            if episode.end is not None:  # its environment broke: the attempt is there, and counted
                tree.leaves.append(tree.root.add(episode, (), terminal=True, is_cut=True))
                tree.current = None
        return trees

    def expand(self, batch: Sequence[tuple[SearchTree, Node]]) -> None:
        forks = []
        for tree, node in batch:
            for key in self.streams(tree, node, self.width):
                forks.append((node.piece, node.depth, key, f"{tree.draw}/{dotted_name(key)}"))
        twins = self.play.fork(forks)
        self.play.turn(self.play.active(twins))
        active_ids = set(map(id, self.play.active(twins)))
        for i, (tree, node) in enumerate(batch):
            for twin in twins[i * self.width : (i + 1) * self.width]:
                newest = twin.turns[-1]
                node.add(twin, newest["logprob"], terminal=id(twin) not in active_ids, is_cut=twin.end != "done")
                tree.n_tokens += len(newest["action"])

    def record(self, tree: SearchTree, leaf: Node, base: Node | None, n_shared: int) -> dict[str, Any]:
        episode: Episode = leaf.piece
        episode.base, episode.n_inherited = None if base is None else base.piece, n_shared
        line = episode.record(dataclasses.asdict(self.session.sampling))
        line["info"] |= {"path": list(leaf.path), "tree_tokens": tree.n_tokens}
        return line

    def piece_columns(self, tree: SearchTree, node: Node) -> dict[str, Any]:
        return newest_turn(node.piece) | {"truncated": node.is_cut}


def _tokens(node: Node) -> list[int]:
    """Return all tokens of an answer down to a node."""
    return [t for n in node.way() for t in n.piece.tokens]


# ---------------------------------------------------------------- the part
@dataclass(frozen=True)
class Searching(RolloutPart):
    """Base class of tree search: each task's tree is grown until `terminals` of its ends are backed up, the group.

    All trees expand one node each at a time, in one call of the engine.

    terminals     attempts a task; fewer where the tree or the budget ends before
    width         children of every node that is expanded
    values        "weighted": the value of a node adds up +-1 of the terminals below it times `depth_weight`, successes
                  driving out failures (`backed_up`); its visits count the expansion that made it, too. "mean": the mean
                  of +-1. q = value / visits
    backup        of the terminals that one expansion brings: "one", a success before a failure before one that was cut,
                  of these the one of least mean -log p; the others are discarded. Or "all"
    resume_at     where the search goes on after a terminal: "frontier", the best of all nodes without children; "root",
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
    resume_at: Literal["frontier", "root"] = "frontier"
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
        """True if the children of each node are a group, instead of the attempts at a task."""
        return False

    @property
    def group_size(self) -> int:
        """Number of attempts at a task, if tree and budget allow them all."""
        return self.terminals

    def search(self, tasks: Sequence[Task], grower: Grower) -> Forest:
        """Grow a tree for each task, and return the scored forest of the groups."""
        if 0 < self.token_budget < (least := self.width * grower.longest):
            raise ConfigError(
                f"rollout.token_budget={self.token_budget} does not hold one expansion of {self.width} pieces of up to "
                f"{grower.longest} tokens: raise it to {least} at least, or lower rollout.width"
            )
        trees, scores = grower.plant(tasks), _Scores()
        # a tree may have an end before any expansion: an environment or context that allows no first piece
        if ends := [(tree, leaf) for tree in trees for leaf in tree.leaves]:
            scores.note(grower.score_leaves(ends), [leaf for _, leaf in ends])
        # one expansion of every tree that goes on; its ends are scored at once, because they steer the search
        while batch := [(tree, tree.current) for tree in trees if tree.current is not None]:
            grower.expand(batch)
            ends = [(tree, child) for tree, node in batch for child in node.children if child.terminal]
            if ends:
                scores.note(grower.score_leaves(ends), [leaf for _, leaf in ends])
            for tree, node in batch:
                self._settle(tree, node, grower)
        # the scores are known already, so records take them as they are and nothing is scored again
        if self.by_node:
            records = [r for tree in trees for r in _siblings(tree, grower)]
            unvisited_nodes = [n for tree in trees for n in tree.root.below() if not n.children and not n.visits]
            grower.session.budget.discarded += len(unvisited_nodes)
            return Forest.from_records(records)
        for tree in trees:
            # branches that became no attempt have been charged: they count as discarded
            tips = sum(not node.children for node in tree.root.below())
            grower.session.budget.discarded += tips - len(tree.leaves)
        return scores.of(Forest.from_records([r for tree in trees for r in _records(tree, grower)]))

    # ------------------------------------------------------------ backing up
    def _settle(self, tree: SearchTree, node: Node, grower: Grower) -> None:
        """Back up the ends of the newest expansion, and choose the node to expand next."""
        ends = [child for child in node.children if child.terminal]
        # with weighted values the expansion that made a child counts as its first visit
        if self.values == "weighted":
            for child in node.children:
                child.visits += not child.terminal
        leaves = sorted(ends, key=_preference)[:1] if self.backup == "one" else ends
        for leaf in leaves[: self.terminals - len(tree.leaves)]:
            self._back_up(leaf)
            tree.leaves.append(leaf)
        # the next expansion must fit at its longest; without a new end the search goes down from here
        is_complete = len(tree.leaves) >= self.terminals
        cost_of_next = tree.n_tokens + self.width * grower.longest
        if is_complete or (self.token_budget and cost_of_next > self.token_budget):
            tree.current = None
        elif not ends:
            tree.current = self._choose(node.children, node, tree.draws)
        else:
            tree.current = (
                self._frontier(tree.root, grower.most)
                if self.resume_at == "frontier"
                else self._descend(tree.root, tree.draws)
            )

    def _back_up(self, leaf: Node) -> None:
        """Add a leaf's outcome to all nodes from it up to the root."""
        node: Node | None = leaf
        while node is not None:
            node.visits += 1
            if self.values == "mean":
                node.value += leaf.outcome
            elif leaf.outcome:
                node.value = backed_up(node.value, leaf.outcome, depth_weight(node.depth, leaf.depth, self.floor))
            node = node.above

    # ------------------------------------------------------------ selection
    def _frontier(self, root: Node, most: int) -> Node | None:
        """Return the best node without children that could have some; None if there is none."""
        best, highest = None, -math.inf
        for node in root.below():
            if node.terminal or node.children or node.above is None:
                continue
            score = self.quality * math.tanh(node.above.q) + self.surprisal * node.surprise
            score += self.depth * math.sqrt(node.depth / most)
            if score > highest:
                best, highest = node, score
        return best

    def _descend(self, root: Node, draws: random.Random) -> Node | None:
        """Descend from the root by the children's scores to a node without children; None if everything has ended."""
        node = root
        while not root.is_closed:
            if not node.children:
                return node
            # a subtree that has ended is closed on the way, and the descent begins again
            node.is_closed = all(child.is_closed for child in node.children)
            node = root if node.is_closed else self._choose([c for c in node.children if not c.is_closed], node, draws)
        return None

    def _score(self, child: Node, above: Node) -> float:
        if self.selection == "puct":
            return puct(child.q, child.visits, above.visits, self.exploration, math.exp(-child.surprise))
        visits = child.visits if self.selection == "uct" else max(child.visits, 1)
        return uct(child.q, visits, above.visits, self.exploration)

    def _choose(self, children: Sequence[Node], above: Node, draws: random.Random) -> Node:
        # weights relative to the largest score, so that exp never overflows; infinite scores share the draw
        scores = [self._score(c, above) for c in children]
        high = max(scores)
        if self.greedy:
            return children[scores.index(high)]
        weights = [float(s == high) if math.isinf(high) else math.exp(s - high) for s in scores]
        return draws.choices(children, weights)[0]


def _preference(leaf: Node) -> tuple[int, float]:
    """Sort key of ends: successes, failures, cut ones, unknown outcomes; within these the least mean -log p first."""
    rank = 0 if leaf.outcome > 0 else 3 if leaf.outcome == 0 else 2 if leaf.is_cut else 1
    return rank, leaf.total / max(leaf.length, 1)


@part("search", stage="rollout")
@dataclass(frozen=True)
class Search(Searching):
    """Tree search (`Searching`) over stretches of an answer's tokens, or over turns of an environment.

    An environment is taken back by snapshot, or by carrying out the actions again.

    chunks  most pieces of an answer: one has `sampling.max_new_tokens` / `chunks` tokens (rounded up), and is a segment
    group_unit  "attempts": whole ones, a group for a task; "siblings": the children of a node are a group, each a
            trajectory of its piece alone, under all that it was sampled under, with its q as outcome. Children that no
            end was backed up through have no q and are discarded; a child has a verdict if it is an end
    """

    chunks: Count = 8
    group_unit: Literal["attempts", "siblings"] = "attempts"

    provides = ("states", "forks", "segments")

    @property
    def by_node(self) -> bool:
        """True if the children of each node are a group."""
        return self.group_unit == "siblings"

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        if session.envs is None:
            return self.search(tasks, Answers(session, self.width, self.chunks))
        with Play(session, restorable=True) as play:
            return self.search(tasks, Episodes(session, self.width, play))


class _Scores:
    """Scores of the ends by the task's rewards."""

    def __init__(self) -> None:
        self._rows: dict[str, tuple[float, float, Mapping[str, float]]] = {}
        self._names: dict[str, None] = {}

    def note(self, forest: Forest, leaves: Sequence[Node]) -> None:
        """Store the scores of a forest of ends, and set the outcomes of their leaves."""
        self._names |= dict.fromkeys(forest.component_names)
        rows = zip(forest.id, forest.outcome.tolist(), forest.success.tolist(), forest.components.tolist(), strict=True)
        for (name, outcome, success, components), leaf in zip(rows, leaves, strict=True):
            self._rows[name] = outcome, success, dict(zip(forest.component_names, components, strict=True))
            verdict = outcome > 0 if math.isnan(success) else success >= 1
            leaf.outcome = 0.0 if math.isnan(outcome) else 1.0 if verdict else -1.0

    def of(self, forest: Forest) -> Forest:
        """Return the forest with the stored scores of its trajectories."""
        rows = [self._rows[name] for name in forest.id]

        def column(values: Sequence[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float64)

        return forest.with_rewards(
            column([outcome for outcome, _, _ in rows]),
            components={
                name: column([row_components.get(name, math.nan) for _, _, row_components in rows])
                for name in self._names
            },
            success=column([success for _, success, _ in rows]),
        )


def _siblings(tree: SearchTree, grower: Grower) -> Iterator[dict[str, Any]]:
    """Yield the record of each visited node as a trajectory of its piece; those with one parent are a group."""
    for above in tree.root.below():
        group = f"{grower.name(tree, above)}."
        for node in above.children:
            if node.visits:
                verdict = None if not node.terminal or not node.outcome else node.outcome > 0
                info = {"path": list(node.path), "visits": node.visits, "tree_tokens": tree.n_tokens}
                yield record(
                    tree.task, group, grower.name(tree, node), grower.session.sampling,
                    **grower.piece_columns(tree, node), reward=node.q, rewards={"q": node.q}, success=verdict,
                    info=info,
                )  # fmt: skip


def _records(tree: SearchTree, grower: Grower) -> Iterator[dict[str, Any]]:
    """Yield the attempts' records in order of backup; each forks from the earlier one that it shares most with."""
    through: dict[tuple[int, ...], Node] = {}  # the first attempt that goes through each node
    for leaf in tree.leaves:
        n_shared = max((n.depth for n in leaf.way() if n.path in through), default=0)
        yield grower.record(tree, leaf, through.get(leaf.path[:n_shared]), n_shared)
        for node in leaf.way():
            through.setdefault(node.path, leaf)


@part("search_replay", stage="rollout")
@dataclass(frozen=True)
class SearchReplay(Remembers, Search):
    """`Search` with replay: a group without a success gets up to `replays` of the task's stored solutions.

    replays     most stored solutions that come in, the newest ones
    max_success_rate  a group's successes are stored once they have been trained on, if they are at most this share of
                      it
    max_stored  most solutions stored of a task, the newest ones; `max_tasks`: see `ReplayBuffer`

    A replayed row has origin "replay" and the log-probs and policy version that it was sampled with, and is compared.
    Source: DeepSearch, arXiv 2509.25454: between rounds, solutions of tasks that up to a quarter of the attempts solve
    are cached (`max_success_rate`), and later take the place of attempts at them, which are then sampled without a
    tree. Here the search goes on, and they come in only where it fails.
    """

    replays: Count = 1
    max_success_rate: Annotated[float, Interval(gt=0, le=1)] = 0.25
    max_stored: int = 8
    max_tasks: int = 10_000
    buffer: ReplayBuffer = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "buffer", ReplayBuffer(self.max_stored, self.max_tasks))

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        fresh = super().grow(tasks, session)
        is_right_R = fresh.success >= 1
        success_share_R = grouped.mean(is_right_R, fresh.ids("group", axis="R"), fresh.scored)
        is_rare_success_R = is_right_R & (success_share_R <= self.max_success_rate)
        if bool(is_rare_success_R.any()):
            self.buffer.hold(fresh.select(is_rare_success_R))
        # stored solutions come in only where the search found none
        failed_groups = dict.fromkeys(g for g, s in zip(fresh.group, success_share_R.tolist(), strict=True) if s == 0)
        task_of = dict(zip(fresh.group, fresh.task, strict=True))
        records = [
            as_replay(record, group=group, id=f"{group}/replay/{i}")
            for group in failed_groups
            for i, record in enumerate(self.buffer.of(task_of[group])[-self.replays :])
        ]
        return side_by_side(Forest.concat([fresh, Forest.from_records(records)])) if records else fresh
