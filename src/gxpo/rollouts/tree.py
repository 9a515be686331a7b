"""Attempts that grow as trees: initial chains, and branches that leave a chain in the middle and go on afresh."""

from __future__ import annotations

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

import torch

from gxpo.errors import ConfigError
from gxpo.forest import Forest
from gxpo.protocols import Completion, Request, Session, StreamKey, Task
from gxpo.rollouts.branching import Grove, Purse, check_counts, groves_of, kept_of
from gxpo.rollouts.build import name_draws
from gxpo.rollouts.episodes import Episode, Play
from gxpo.rollouts.grow import keyed

Decode = Callable[[Sequence[int]], str]


@dataclass(eq=False)
class _Chain:
    """One attempt: the first `kept` tokens of `base`'s, then what was sampled for it."""

    tree: int
    path: tuple[int, ...]  # which branch of which chain: the stream it is sampled under
    base: _Chain | None = None
    kept: int = 0
    done: Completion | None = None
    branches: int = 0  # chains that leave this one

    @property
    def own(self) -> list[int]:
        assert self.done is not None
        return self.done.tokens

    @property
    def tokens(self) -> list[int]:
        return [*self.prefix, *self.own]

    @property
    def prefix(self) -> list[int]:
        return self.base.tokens[: self.kept] if self.base is not None else []

    def branch(self, kept: int) -> _Chain:
        """A chain that leaves this one after `kept` tokens; it hangs on the chain that owns the last of them."""
        self.branches += 1
        return _Chain(self.tree, (*self.path, self.branches - 1), self, kept)


Point = tuple[_Chain, int]  # a branch may leave the chain after so many of its tokens


@dataclass(eq=False)
class _Grove:
    """All trees of one prompt, and what they have cost."""

    task: Task
    draw: str
    prompt: tuple[int, ...]
    chains: list[list[_Chain]]  # of each tree, in order of creation
    waiting: list[_Chain] = field(default_factory=list)
    opened: set[tuple[int, tuple[int, ...], int]] = field(default_factory=set)  # points of surprisal that were used
    spent: int = 0
    closed: bool = False  # the budget leaves no room for another branch

    def affordable(self, tokens: int, calls: int, limit: int) -> list[_Chain]:
        """The waiting chains, in order, that fit into the budgets even if each goes on as long as it may.

        Where the first of them does not fit, the grove is closed. 0: no limit.
        """
        left, more, ready = tokens - self.spent, calls - sum(map(len, self.chains)), []
        while self.waiting and (not tokens or limit - self.waiting[0].kept <= left) and (not calls or more):
            left, more = left - (limit - self.waiting[0].kept), more - 1
            ready.append(self.waiting.pop(0))
        self.closed = bool(self.waiting) and not ready
        return ready


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


@dataclass(frozen=True)
class Tree:
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
                  as many as there are. Of answers only
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

    trees: int = 2
    rounds: int = 1
    expansions: int = 2
    branches: int = 1
    where: Literal["step", "surprisal"] = "step"
    delimiter: str = ","
    explore: float = 0.0
    keep: int = 0
    token_budget: int = 0
    call_budget: int = 0

    provides = ("states", "forks")

    def __post_init__(self) -> None:
        least = {"trees": 1, "rounds": 0, "expansions": 1, "branches": 1, "keep": 0, "token_budget": 0}
        check_counts(self, {**least, "call_budget": 0})
        if self.where not in ("step", "surprisal"):
            raise ConfigError(f"rollout.where is 'step' or 'surprisal', not {self.where!r}")
        if not self.delimiter:
            raise ConfigError("rollout.delimiter is empty: give the text that ends a step")
        if not 0 <= self.explore <= 1:
            raise ConfigError(f"rollout.explore is {self.explore}; it is a probability, between 0 and 1")

    @property
    def group_size(self) -> int:
        """Attempts a task, where the budget and the tokens allow them all."""
        chains = 1 + self.rounds * self.expansions * self.branches
        return self.trees * (min(self.keep, chains) if self.keep else chains)

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        if session.envs is not None:
            return self._grow_episodes(tasks, session)
        limit = session.sampling.max_new_tokens
        for name, budget, size in (("token_budget", self.token_budget, limit), ("call_budget", self.call_budget, 1)):
            if 0 < budget < self.trees * size:
                raise ConfigError(
                    f"rollout.{name}={budget} does not hold the first {self.trees} chains of up to "
                    f"{limit} tokens: raise it, or lower rollout.trees or sampling.max_new_tokens"
                )
        groves = [
            _Grove(task, draw, session.encode(task), [[_Chain(t, ())] for t in range(self.trees)])
            for task, draw in zip(tasks, name_draws(tasks, Counter()), strict=True)
        ]
        self._sample([(grove, chain) for grove in groves for (chain,) in grove.chains], session)
        for number in range(self.rounds):
            growing = [grove for grove in groves if not grove.closed]
            for grove in growing:
                grove.waiting = self._planned(grove, number, session)
            while batch := [(g, c) for g in growing for c in g.affordable(self.token_budget, self.call_budget, limit)]:
                self._sample(batch, session)
                for grove, chain in batch:
                    grove.chains[chain.tree].append(chain)
        forest = Forest.from_records([record for grove in groves for record in _records(grove, session)])
        if not self.keep:
            return forest
        kept = [keep for grove in groves for keep in self._kept(grove, session)]
        session.budget.discarded += kept.count(False)
        return forest.select(torch.tensor(kept, dtype=torch.bool))

    # ------------------------------------------------------------ points
    def _planned(self, grove: _Grove, number: int, session: Session) -> list[_Chain]:
        """Branches of the next round: for each point of every tree in turn, all branches there."""
        find = self._steps if self.where == "step" else self._surprising
        points = [list(self._points(find, grove, chains, number, session)) for chains in grove.chains]
        order = [at[i] for i in range(self.expansions) for at in points if i < len(at)]
        return [chain.branch(kept) for chain, kept in order for _ in range(self.branches)]

    def _points(
        self, find: Any, grove: _Grove, chains: Sequence[_Chain], number: int, session: Session
    ) -> Iterator[Point]:
        found: Iterator[Point] = find(grove, chains, number, session)
        draws = keyed(session, grove.draw, chains[0].tree, "explore", number)
        for _ in range(self.expansions):
            if self.explore and draws.random() < self.explore:
                yield chains[0], 0
            else:
                yield from islice(found, 1)

    def _steps(self, grove: _Grove, chains: Sequence[_Chain], number: int, session: Session) -> Iterator[Point]:
        known: list[Point] = [(chains[0], 0)]
        for chain in chains:
            ends = step_ends(chain.tokens, session.decode, self.delimiter)
            known += [(chain, end) for end in ends if end > chain.kept]
        draws = keyed(session, grove.draw, chains[0].tree, "expand", number)
        for _ in range(self.expansions):
            yield known[int(draws.random() * len(known))]

    def _surprising(self, grove: _Grove, chains: Sequence[_Chain], number: int, session: Session) -> Iterator[Point]:
        known: list[tuple[float, Point]] = []
        for chain in chains:
            assert chain.done is not None
            places = enumerate(chain.done.logprobs, chain.kept)
            known += [(p, (chain, at)) for at, p in places if (chain.tree, chain.path, at) not in grove.opened]
        for _, (chain, at) in sorted(known, key=lambda found: found[0])[: self.expansions]:
            grove.opened.add((chain.tree, chain.path, at))
            yield chain, at

    # ------------------------------------------------------------ sampling
    @staticmethod
    def _sample(batch: Sequence[tuple[_Grove, _Chain]], session: Session) -> None:
        """A continuation for every chain, those with prefixes of one length together."""
        by_length: dict[int, list[tuple[_Grove, _Chain]]] = defaultdict(list)
        for grove, chain in batch:
            by_length[chain.kept].append((grove, chain))
        for kept, together in sorted(by_length.items()):
            room = dataclasses.replace(session.sampling, max_new_tokens=session.sampling.max_new_tokens - kept)
            requests = [
                Request(
                    (*grove.prompt, *chain.prefix),
                    (StreamKey(session.seed, session.step, grove.draw, chain.tree, chain.path),),
                )
                for grove, chain in together
            ]
            for (grove, chain), (completion,) in zip(together, session.sample(requests, room), strict=True):
                chain.done = completion
                grove.spent += len(completion.tokens)

    # ------------------------------------------------------------ leaves
    def _kept(self, grove: _Grove, session: Session) -> Iterator[bool]:
        for chains in grove.chains:
            chosen = self._leaves(len(chains), grove.draw, chains[0].tree, session)
            yield from (i in chosen for i in range(len(chains)))

    def _leaves(self, n: int, draw: str, tree: int, session: Session) -> set[int]:
        """Which of a tree's n chains are kept."""
        draws = keyed(session, draw, tree, "keep", 0)
        ranks = [draws.random() for _ in range(n)]
        return set(sorted(range(n), key=lambda i: ranks[i])[: self.keep or n])

    # ------------------------------------------------------------ episodes
    def _grow_episodes(self, tasks: Sequence[Task], session: Session) -> Forest:
        if self.where != "step":
            raise ConfigError(
                f"rollout.where={self.where} branches in the middle of an answer, and an environment can be taken back "
                "to the beginning of a turn only: set rollout.where=step"
            )
        purse = Purse(self.token_budget, self.call_budget, session.episode, session.sampling.max_new_tokens)
        purse.check(self.trees)
        with Play(session, restorable=True) as play:
            groves = groves_of(play, tasks, self.trees)
            play.finish(play.episodes)
            growing = list(groves)
            for number in range(self.rounds):
                waiting = {grove: self._turns(grove, number, session) for grove in growing}
                while batch := [(g, ready) for g in growing if (ready := _affordable(g, waiting[g], purse))]:
                    play.finish([new for grove, ready in batch for new in grove.fork(play, ready)])
                growing = [grove for grove in growing if not waiting[grove]]
            dropped = {e for g in groves for t in range(self.trees) for e in self._dropped(g, t, session)}
            return kept_of(play, dropped, session)

    def _turns(self, grove: Grove, number: int, session: Session) -> list[Turn]:
        """Points of the next round: for each point of every tree in turn, once for each branch there."""
        points = [self._drawn(grove, tree, number, session) for tree in range(self.trees)]
        order = [at[i] for i in range(self.expansions) for at in points if i < len(at)]
        return [point for point in order for _ in range(self.branches)]

    def _drawn(self, grove: Grove, tree: int, number: int, session: Session) -> list[Turn]:
        # before its first turn of its own a branch stands where its base stood
        known = [
            (e, turn)
            for e in grove.episodes
            if e.key.attempt == tree
            for turn in range(e.inherited + bool(e.key.path), len(e.stood))
        ]
        draws = keyed(session, grove.draw, tree, "expand", number)
        points = [known[int(draws.random() * len(known))] for _ in range(self.expansions if known else 0)]
        draws = keyed(session, grove.draw, tree, "explore", number)
        return [known[0] if self.explore and draws.random() < self.explore else point for point in points]

    def _dropped(self, grove: Grove, tree: int, session: Session) -> list[Episode]:
        chains = [e for e in grove.episodes if e.key.attempt == tree]
        kept = self._leaves(len(chains), grove.draw, tree, session)
        return [e for i, e in enumerate(chains) if i not in kept]


Turn = tuple[Episode, int]  # a branch may leave the episode before its turn of this number


def _affordable(grove: Grove, waiting: list[Turn], purse: Purse) -> list[Turn]:
    """The waiting points, in order, whose branches fit; they wait no longer."""
    ready: list[Turn] = []
    ahead = 0
    while waiting:
        episode, turn = waiting[0]
        ahead += purse.rules.max_turns - episode.stood[turn].moves
        if not purse.holds(grove, ahead):
            break
        ready.append(waiting.pop(0))
    return ready


def _records(grove: _Grove, session: Session) -> Iterator[dict[str, Any]]:
    """The trees' chains as lines of `gxpo.rollouts/1`, every chain after the one that it leaves."""
    group, task = f"s{session.step}/{grove.draw}", grove.task
    sampling = dataclasses.asdict(session.sampling)
    for chain in (chain for chains in grove.chains for chain in chains):
        done = chain.done
        assert done is not None
        record: dict[str, Any] = {
            "schema": "gxpo.rollouts/1",
            "task": task.id,
            "group": group,
            "id": _name(group, chain),
            "turns": [
                {
                    "action": done.tokens,
                    "logprob": done.logprobs,
                    "finish": done.finish,
                    "policy_version": done.policy_version,
                    "state": task.id,
                    "extras": {} if done.support is None else {"support": torch.as_tensor(done.support)},
                }
            ],
            "truncated": done.finish == "length",
            "sampling": sampling,
            "info": {"tree": chain.tree, "path": list(chain.path), "generated": len(done.tokens)},
        }
        if chain.base is not None and chain.kept:
            record["fork"] = {"of": _name(group, chain.base), "turn": 0, "token": chain.kept}
        else:
            record |= {
                "prompt": list(grove.prompt),
                "prompt_text": task.prompt if isinstance(task.prompt, str) else None,
            }
        record["reward"] = None
        yield record


def _name(group: str, chain: _Chain) -> str:
    return f"{group}/{'.'.join(map(str, (chain.tree, *chain.path)))}"
