"""Trees of attempts: the base class `Grow` with its budget, and `Tree` (Tree-GRPO, TreeRL)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Annotated, Literal, NamedTuple

from annotated_types import Interval

from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Session, Task
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.attempts import Attempts, Draw, Episode, Fork
from gxpo.sampling.rollouts.base import Rollout, Round
from gxpo.sampling.rollouts.build import Count, Limit, Text, dotted_name, random_for
from gxpo.sampling.rollouts.episodes import Play

DROPPED = "dropped"  # `Episode.end` of an attempt that is given up


class Point(NamedTuple):
    """Place at which a branch leaves an attempt: before a turn, or after so many tokens of that turn's action."""

    episode: Episode
    turn: int
    token: int = 0


@dataclass(frozen=True, eq=False)
class AttemptTree:
    """All attempts at one drawn task: those from its prompt, and the branches that leave them."""

    play: Play
    draw: Draw

    @property
    def episodes(self) -> list[Episode]:
        """All attempts, in the order in which they were begun."""
        return [e for e in self.play.episodes if e.group == self.draw.group]

    @property
    def open(self) -> list[Episode]:
        """Attempts that have not ended."""
        return [e for e in self.episodes if e.end is None]

    def cost(self) -> tuple[int, int]:
        """Return the calls of the policy and the tokens so far; inherited turns are not counted again."""
        own_turns = [turn for e in self.episodes for turn in e.turns[e.n_inherited :]]
        return len(own_turns), sum(len(turn["action"]) for turn in own_turns)

    def forks(self, points: Sequence[Point]) -> list[Fork]:
        """Build a fork at each point; the k-th one that leaves an attempt has k added to its stream's path."""
        forks_of_base, out = Counter(e.base for e in self.episodes if e.key.path), []
        # numbered by base, across rounds: no two branches share a stream or a name
        for base, turn, token in points:
            key = replace(base.key, path=(*base.key.path, forks_of_base[base]))
            forks_of_base[base] += 1
            out.append(Fork(base, turn, key, f"{self.draw.name}/{dotted_name(key)}", token))
        return out

    def root(self) -> list[Fork]:
        """Build one more attempt from the prompt, under the next attempt's stream; none if no environment began."""
        # a fork before turn 0 of any attempt whose environment began is an attempt from the prompt
        first = next((e for e in self.episodes if e.snapshots), None)
        if first is None:
            return []
        key = replace(first.key, attempt=sum(not e.key.path for e in self.episodes), path=())
        return [Fork(first, 0, key, f"{self.draw.name}/{key.attempt}")]


class Grow(Rollout):
    """Base class of rollouts whose attempts leave one another, within a budget of tokens and calls.

    A subclass chooses which attempts grow next and from where. A branch is begun only if the rest of the budget holds
    it and all that is under way, even if each of them becomes as long as it may.
    """

    token_budget: int = 0
    call_budget: int = 0

    provides = ("states", "forks")
    forks = True

    def plant(self, draws: Sequence[Draw], initial: int, play: Play) -> list[Attempts | Fork]:
        """Request `initial` attempts at each draw; ConfigError for a budget that does not hold them."""
        if self.token_budget or self.call_budget:
            self._check_budgets(initial, play)
        return [draw.attempts(initial) for draw in draws]

    def _check_budgets(self, initial: int, play: Play) -> None:
        """Raise ConfigError for a budget that can't be kept, or that the first attempts exceed."""
        if play.rules.context == "summary":
            raise ConfigError(
                "rollout.token_budget and rollout.call_budget count turns, and summaries are further calls: set "
                "env.context=full or window, or both budgets to 0"
            )
        turns, tokens = play.rules.max_turns, play.session.sampling.max_new_tokens
        for name, size in (("call_budget", 1), ("token_budget", tokens)):
            budget_needed = initial * turns * size
            if 0 < getattr(self, name) < budget_needed:
                raise ConfigError(
                    f"rollout.{name}={getattr(self, name)} does not hold the first {initial} attempts of up to "
                    f"{turns} turns of {tokens} tokens, which is {budget_needed}: raise it, or lower the number of "
                    "first attempts, env.max_turns or sampling.max_new_tokens"
                )

    def holds(self, tree: AttemptTree, ahead: Sequence[Point]) -> bool:
        """Return True if the budget holds branches at these points, each at its longest."""
        if not (self.token_budget or self.call_budget):
            return True
        calls, tokens = tree.cost()
        # whatever is under way may still take all of its turns: that much is spoken for
        under_way = [*(p.turn for p in ahead), *(len(e.turns) for e in tree.open)]
        turns = sum(tree.play.rules.max_turns - at for at in under_way)
        tokens += turns * tree.play.session.sampling.max_new_tokens - sum(p.token for p in ahead)
        return not (0 < self.call_budget < calls + turns or 0 < self.token_budget < tokens)

    def merge(self, rounds: Sequence[Round], play: Play) -> Forest:
        return grow_forest(play, {e for e in play.episodes if e.end != DROPPED})


def grow_forest(play: Play, kept_episodes: Collection[Episode]) -> Forest:
    """Build the forest of the attempts to keep; the others count as discarded, their tokens have been charged.

    `info` gets "tree", the number of the first attempt of each one's tree, "path" from there, and the "generated"
    tokens and (of episodes) "calls" that were made for it alone.
    """
    for e in play.episodes:
        own_turns = e.turns[e.n_inherited :]
        e.info |= {
            "tree": e.key.attempt,
            "path": list(e.key.path),
            "generated": sum(len(t["action"]) for t in own_turns),
        }
        if play.world:
            e.info["calls"] = len(own_turns)
    forest, rows = play.forest(), [r for r, e in enumerate(play.episodes) if e in kept_episodes]
    play.session.budget.discarded += len(play.episodes) - len(rows)
    return forest.select(rows) if len(rows) < len(play.episodes) else forest


Decode = Callable[[Sequence[int]], str]


def step_ends(tokens: Sequence[int], decode: Decode, delimiter: str) -> list[int]:
    """Return the token counts before each internal step boundary, after each token that completes the delimiter.

    The last token ends no step here, because no other follows it.

    >>> step_ends([7, 3, 0, 4, 0], lambda ids: "".join(",12345678"[i] for i in ids), ",")
    [3]
    """
    ends, begin = [], 0
    for n in range(1, len(tokens)):
        # a token is a character at least, so the delimiter lies within as many tokens as it has characters
        if delimiter in decode(tokens[max(begin, n - len(delimiter)) : n]):
            ends.append(n)
            begin = n
    return ends


@part("tree", stage="rollout")
@dataclass(frozen=True)
class Tree(Grow):
    """`trees` chains of each prompt, each expanded at `expansions` points in each of `rounds` rounds.

    A chain is an answer to a prompt, or an episode in an environment. All chains of a prompt, initial ones and
    branches, are one group "s{step}/{task}"; `info["tree"]` numbers the trees in it. A branch keeps the beginning of a
    chain, tokens and log-probs, and is a declared fork of it: what is shared is generated, stored and trained once. No
    answer is longer than `sampling.max_new_tokens`, no episode than `env.max_turns`.

    trees         M
    rounds        L
    expansions    N points a tree and round
    branches      new chains at each point
    branch_at     "step": points are drawn uniformly, with replacement, among the prompt and the ends of the tree's
                  steps; a step that ends a chain is a leaf and no point. Steps of an episode are its turns; those of
                  an answer are separated by `delimiter`.
                  "surprisal": the tree's tokens of largest -log p, each of which is drawn anew; a token once, and
                  as many as there are
    delimiter     a step of an answer ends with the token that completes it
    root_probability  probability that a branch begins at the prompt instead of at its point, which is then left for
                      later
    keep          chains kept of each tree, drawn uniformly; 0: all. The others are discarded, tokens charged
    token_budget  a bound on the tokens generated for one prompt, 0: none. A branch is begun if it fits in what is left
                  even at its longest; once one does not, the prompt is done. Initial chains have to fit
    call_budget   likewise of the calls of the policy: turns of episodes, answers

    Chain 0 of tree t is drawn from the stream (seed, step, task, t), the k-th branch of a chain from the chain's
    stream with k added to `path`: without rounds this is `independent` with `group_size` = `trees`.

    Source: Tree-GRPO, arXiv 2509.21240 ("step", M 2, N 2, L 1, 3 kept: all); TreeRL, arXiv 2506.11902 ("surprisal",
    M 6, N 2, L 1, 2 branches); `root_probability`: ROSE, arXiv 2601.05053. `keep` drops chains before anything is
    computed from them, where TreeRL's reference trains some and has values from all. The bounds and the order of
    expansions under them (the first point of every tree, then the second) are ours.
    """

    trees: Count = 2
    rounds: Limit = 1
    expansions: Count = 2
    branches: Count = 1
    branch_at: Literal["step", "surprisal"] = "step"
    delimiter: Text = "\n"
    root_probability: Annotated[float, Interval(ge=0, le=1)] = 0.0
    keep: Limit = 0
    token_budget: Limit = 0
    call_budget: Limit = 0

    @property
    def group_size(self) -> int:  # type: ignore[override]  # here it follows from the other settings
        """Attempts a task, where the budget and the tokens allow them all."""
        chains = 1 + self.rounds * self.expansions * self.branches
        return self.trees * (min(self.keep, chains) if self.keep else chains)

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        used_points: set[Point] = set()
        with Play(session, restorable=True) as play:
            draws = play.draws(tasks)
            play.finish(play.begin(self.plant(draws, self.trees, play)))
            # a round ends for a tree when its points are branched from; one that the budget cuts off is done for good
            trees = growing = [AttemptTree(play, draw) for draw in draws]
            for number in range(self.rounds):
                points_by_tree = {tree: self._plan_round(tree, number, used_points) for tree in growing}
                while forks := [
                    f for tree in growing for f in tree.forks(self._take_affordable(tree, points_by_tree[tree]))
                ]:
                    play.finish(play.begin(forks))
                growing = [tree for tree in growing if not points_by_tree[tree]]
            if not play.world:  # a prompt's samples are stored tree by tree, so that forks follow their bases
                group_order = {draw.group: i for i, draw in enumerate(draws)}
                play.episodes.sort(key=lambda e: (group_order[e.group], e.key.attempt))
            return grow_forest(
                play, {chain for tree in trees for n in range(self.trees) for chain in self._chains_to_keep(tree, n)}
            )

    def _plan_round(self, tree: AttemptTree, number: int, used_points: set[Point]) -> list[Point]:
        """Return the next round's points, the first one of every tree, then the second ones; each once a branch."""
        points = [list(self._points(tree, n, number, used_points)) for n in range(self.trees)]
        in_turn = [at[i] for i in range(self.expansions) for at in points if i < len(at)]
        return [point for point in in_turn for _ in range(self.branches)]

    def _take_affordable(self, tree: AttemptTree, points: list[Point]) -> list[Point]:
        """Take the first waiting points, in order, as long as the budget holds their branches."""
        affordable: list[Point] = []
        while points and self.holds(tree, [*affordable, points[0]]):
            affordable.append(points.pop(0))
        return affordable

    def _points(self, tree: AttemptTree, n: int, number: int, used_points: set[Point]) -> Iterator[Point]:
        """Yield the points at which tree `n` is expanded in round `number`."""
        session, name = tree.play.session, tree.draw.name
        chains = [e for e in tree.episodes if e.key.attempt == n]
        if self.branch_at == "step":
            candidates = [point for chain in chains for point in self._step_points(chain, tree.play)]
            draws = random_for(session, name, n, "expand", number)
            next_points = (candidates[int(draws.random() * len(candidates))] for _ in range(self.expansions))
        else:
            candidates = [at for at in _by_surprise(chains, tree.play) if at not in used_points]
            next_points = iter(candidates)
        # exploring has a stream of its own, so that the points do not depend on `root_probability`
        draws_to_explore = random_for(session, name, n, "explore", number)
        for _ in range(self.expansions if candidates else 0):
            if self.root_probability and draws_to_explore.random() < self.root_probability:
                yield Point(chains[0], 0)
            else:
                # a token that was not branched at stays unused, and may come in a later round
                drawn_points = list(islice(next_points, 1))
                used_points.update(drawn_points)
                yield from drawn_points

    def _step_points(self, chain: Episode, play: Play) -> list[Point]:
        """Return the points where a chain's own steps begin; those that it shares are its base's."""
        if play.world:
            return [
                Point(chain, turn) for turn in range(chain.n_inherited + bool(chain.key.path), len(chain.snapshots))
            ]
        first_points = [] if chain.key.path else [Point(chain, 0)]
        ends = step_ends(chain.action_tokens(0), play.session.decode, self.delimiter)
        return first_points + [Point(chain, 0, end) for end in ends if end > len(chain.prefix_tokens)]

    def _chains_to_keep(self, tree: AttemptTree, n: int) -> list[Episode]:
        """Draw the chains of tree `n` to keep, uniformly."""
        chains = [e for e in tree.episodes if e.key.attempt == n]
        draws = random_for(tree.play.session, tree.draw.name, n, "keep", 0)
        ranks = [draws.random() for _ in chains]
        return [chains[i] for i in sorted(range(len(chains)), key=ranks.__getitem__)[: self.keep or len(chains)]]


def _by_surprise(chains: Sequence[Episode], play: Play) -> list[Point]:
    """Return a point before every token sampled for these chains, the least likely token first."""
    scored_points: list[tuple[float, Point]] = []
    for chain in chains:
        for turn in range(chain.n_inherited, len(chain.snapshots) if play.world else 1):
            shared_tokens = len(chain.prefix_tokens) if turn == chain.n_inherited else 0
            logprobs: list[float] = chain.turns[turn]["logprob"]
            scored_points += [(logprob, Point(chain, turn, shared_tokens + i)) for i, logprob in enumerate(logprobs)]
    return [point for _, point in sorted(scored_points, key=lambda pair: pair[0])]
