"""Trees of attempts (Tree-GRPO, TreeRL): chains, and branches that leave them at random steps or surprising tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Literal

from annotated_types import Interval

from gxpo.forest.forest import Forest
from gxpo.parts.protocols import Session, Task
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.build import Count, Episode, Limit, Text, keyed
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.grow import AttemptTree, Grow, Point, written

Decode = Callable[[Sequence[int]], str]


def step_ends(tokens: Sequence[int], decode: Decode, delimiter: str) -> list[int]:
    """How many tokens stand before each place where a step ends and another follows: after a token that completes
    the delimiter, but for the last token.

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
    """`trees` chains of each prompt; in each of `rounds` rounds every tree is expanded at `expansions` points.

    A chain is an answer to a prompt, or an episode in an environment. All chains of a prompt, initial ones and
    branches, are one group "s{step}/{task}"; `info["tree"]` numbers the trees in it. A branch keeps the beginning of a
    chain, tokens and log-probs, and is a declared fork of it: what is shared is generated, stored and trained once. No
    answer is longer than `sampling.max_new_tokens`, no episode than `env.max_turns`.

    trees         M
    rounds        L
    expansions    N points a tree and round
    branches      new chains at each point
    where         "step": points are drawn uniformly, with replacement, among the prompt and the ends of the tree's
                  steps; a step that ends a chain is a leaf and no point. Steps of an episode are its turns; those of
                  an answer are separated by `delimiter`.
                  "surprisal": the tree's tokens of largest -log p, each of which is drawn anew; a token once, and
                  as many as there are
    delimiter     a step of an answer ends with the token that completes it
    explore       probability that a branch begins at the prompt instead of at its point, which is then left for later
    keep          chains kept of each tree, drawn uniformly; 0: all. The others are discarded, tokens charged
    token_budget  a bound on the tokens generated for one prompt, 0: none. A branch is begun if it fits in what is left
                  even at its longest; once one does not, the prompt is done. Initial chains have to fit
    call_budget   likewise of the calls of the policy: turns of episodes, answers

    Chain 0 of tree t is drawn from the stream (seed, step, task, t), the k-th branch of a chain from the chain's
    stream with k added to `path`: without rounds this is `independent` with `group_size` = `trees`.

    Source: Tree-GRPO, arXiv 2509.21240 ("step", M 2, N 2, L 1, 3 kept: all); TreeRL, arXiv 2506.11902 ("surprisal",
    M 6, N 2, L 1, 2 branches); `explore`: ROSE, arXiv 2601.05053. `keep` drops chains before anything is computed from
    them, where TreeRL's reference trains some and has values from all. The bounds and the order of expansions under
    them (the first point of every tree, then the second) are ours.
    """

    trees: Count = 2
    rounds: Limit = 1
    expansions: Count = 2
    branches: Count = 1
    where: Literal["step", "surprisal"] = "step"
    delimiter: Text = "\n"
    explore: Annotated[float, Interval(ge=0, le=1)] = 0.0
    keep: Limit = 0
    token_budget: Limit = 0
    call_budget: Limit = 0

    @property
    def group_size(self) -> int:  # type: ignore[override]  # here it follows from the other settings
        """Attempts a task, where the budget and the tokens allow them all."""
        chains = 1 + self.rounds * self.expansions * self.branches
        return self.trees * (min(self.keep, chains) if self.keep else chains)

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        used: set[Point] = set()
        with Play(session, restorable=True) as play:
            draws = play.draws(tasks)
            play.finish(play.begin(self.plant(draws, self.trees, play)))
            trees = growing = [AttemptTree(play, draw) for draw in draws]
            for number in range(self.rounds):
                waiting = {tree: self._planned(tree, number, used) for tree in growing}
                while forks := [f for tree in growing for f in tree.forks(self._ready(tree, waiting[tree]))]:
                    play.finish(play.begin(forks))
                growing = [tree for tree in growing if not waiting[tree]]
            if not play.world:  # samples of a prompt are stored tree by tree
                place = {draw.group: i for i, draw in enumerate(draws)}
                play.episodes.sort(key=lambda e: (place[e.group], e.key.attempt))
            return written(play, {chain for tree in trees for n in range(self.trees) for chain in self._kept(tree, n)})

    def _planned(self, tree: AttemptTree, number: int, used: set[Point]) -> list[Point]:
        """Points of the next round: for each point of every tree in turn, once for each branch there."""
        points = [list(self._points(tree, n, number, used)) for n in range(self.trees)]
        order = [at[i] for i in range(self.expansions) for at in points if i < len(at)]
        return [point for point in order for _ in range(self.branches)]

    def _ready(self, tree: AttemptTree, waiting: list[Point]) -> list[Point]:
        """The waiting points, in order, whose branches fit; they wait no longer."""
        ready: list[Point] = []
        while waiting and self.holds(tree, [*ready, waiting[0]]):
            ready.append(waiting.pop(0))
        return ready

    def _points(self, tree: AttemptTree, n: int, number: int, used: set[Point]) -> Iterator[Point]:
        session, name = tree.play.session, tree.draw.name
        chains = [e for e in tree.episodes if e.key.attempt == n]
        if self.where == "step":
            known = [point for chain in chains for point in self._steps(chain, tree.play)]
            draws = keyed(session, name, n, "expand", number)
            found = (known[int(draws.random() * len(known))] for _ in range(self.expansions))
        else:
            known = [at for at in _by_surprise(chains, tree.play) if at not in used]
            found = iter(known)
        draws_to_explore = keyed(session, name, n, "explore", number)
        for _ in range(self.expansions if known else 0):
            if self.explore and draws_to_explore.random() < self.explore:
                yield Point(chains[0], 0)
            else:
                taken = list(islice(found, 1))
                used.update(taken)
                yield from taken

    def _steps(self, chain: Episode, play: Play) -> list[Point]:
        """Where steps of a chain begin; a branch leaves to its base what it has from there."""
        if play.world:
            return [Point(chain, turn) for turn in range(chain.inherited + bool(chain.key.path), len(chain.stood))]
        first = [] if chain.key.path else [Point(chain, 0)]
        ends = step_ends(chain.whole(0), play.session.decode, self.delimiter)
        return first + [Point(chain, 0, end) for end in ends if end > len(chain.begun)]

    def _kept(self, tree: AttemptTree, n: int) -> list[Episode]:
        """The chains of a tree that are kept."""
        chains = [e for e in tree.episodes if e.key.attempt == n]
        draws = keyed(tree.play.session, tree.draw.name, n, "keep", 0)
        ranks = [draws.random() for _ in chains]
        return [chains[i] for i in sorted(range(len(chains)), key=ranks.__getitem__)[: self.keep or len(chains)]]


def _by_surprise(chains: Sequence[Episode], play: Play) -> list[Point]:
    """Before every token that was sampled for these chains, the least likely token first."""
    found: list[tuple[float, Point]] = []
    for chain in chains:
        for turn in range(chain.inherited, len(chain.stood) if play.world else 1):
            before = len(chain.begun) if turn == chain.inherited else 0
            own: list[float] = chain.turns[turn]["logprob"]
            found += [(logprob, Point(chain, turn, before + i)) for i, logprob in enumerate(own)]
    return [point for _, point in sorted(found, key=lambda pair: pair[0])]
