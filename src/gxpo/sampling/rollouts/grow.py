"""Attempts that leave one another: the tree of all attempts at a task, and the budget that it grows within."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gxpo.base.errors import ConfigError
from gxpo.forest.forest import Forest
from gxpo.sampling.rollouts.base import Rollout, Round
from gxpo.sampling.rollouts.build import Attempts, Draw, Episode, dotted
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.fork import Fork

DROPPED = "dropped"  # end of an attempt that is given up


class Point(NamedTuple):
    """Where a branch leaves an attempt: before one of its turns, or after so many tokens of that turn's action."""

    episode: Episode
    turn: int
    token: int = 0


@dataclass(frozen=True, eq=False)
class AttemptTree:
    """All attempts at one drawn task: those that begin at its prompt, and branches that leave them."""

    play: Play
    draw: Draw

    @property
    def episodes(self) -> list[Episode]:
        """In the order in which they were begun."""
        return [e for e in self.play.episodes if e.group == self.draw.group]

    @property
    def open(self) -> list[Episode]:
        """Those that go on."""
        return [e for e in self.episodes if e.end is None]

    def spent(self) -> tuple[int, int]:
        """Calls of the policy and tokens so far."""
        own = [turn for e in self.episodes for turn in e.turns[e.inherited :]]
        return len(own), sum(len(turn["action"]) for turn in own)

    def forks(self, points: Sequence[Point]) -> list[Fork]:
        """A branch at each point: the k-th that leaves an attempt has k added to the path of its stream."""
        left, out = Counter(e.base for e in self.episodes if e.key.path), []
        for base, turn, token in points:
            key = replace(base.key, path=(*base.key.path, left[base]))
            left[base] += 1
            out.append(Fork(base, turn, key, f"{self.draw.name}/{dotted(key)}", token))
        return out

    def root(self) -> list[Fork]:
        """One more attempt from the prompt, under the next attempt's stream; none where no environment began."""
        first = next((e for e in self.episodes if e.stood), None)
        if first is None:
            return []
        key = replace(first.key, attempt=sum(not e.key.path for e in self.episodes), path=())
        return [Fork(first, 0, key, f"{self.draw.name}/{key.attempt}")]


class Grow(Rollout):
    """Attempts that leave one another, within a budget of tokens and calls: the base of `Tree` and its like.

    A subclass says which attempts grow next and from where. A branch is begun where what is left of the budget holds
    it, and all that is under way, even if each goes on as long as it may.
    """

    token_budget: int = 0
    call_budget: int = 0

    provides = ("states", "forks")
    forks = True

    def plant(self, draws: Sequence[Draw], initial: int, play: Play) -> list[Attempts | Fork]:
        """`initial` attempts at each draw; a budget that does not hold them is refused."""
        if self.token_budget or self.call_budget:
            self._check(initial, play)
        return [draw.attempts(initial) for draw in draws]

    def _check(self, initial: int, play: Play) -> None:
        if play.rules.context == "summary":
            raise ConfigError(
                "rollout.token_budget and rollout.call_budget count turns, and summaries are further calls: set "
                "env.context=full or window, or both budgets to 0"
            )
        turns, tokens = play.rules.max_turns, play.session.sampling.max_new_tokens
        for name, size in (("call_budget", 1), ("token_budget", tokens)):
            needed = initial * turns * size
            if 0 < getattr(self, name) < needed:
                raise ConfigError(
                    f"rollout.{name}={getattr(self, name)} does not hold the first {initial} attempts of up to "
                    f"{turns} turns of {tokens} tokens, which is {needed}: raise it, or lower the number of first "
                    "attempts, env.max_turns or sampling.max_new_tokens"
                )

    def holds(self, tree: AttemptTree, ahead: Sequence[Point]) -> bool:
        """Whether these branches fit."""
        if not (self.token_budget or self.call_budget):
            return True
        calls, tokens = tree.spent()
        under_way = [*(p.turn for p in ahead), *(len(e.turns) for e in tree.open)]
        turns = sum(tree.play.rules.max_turns - at for at in under_way)
        tokens += turns * tree.play.session.sampling.max_new_tokens - sum(p.token for p in ahead)
        return not (0 < self.call_budget < calls + turns or 0 < self.token_budget < tokens)

    def merge(self, rounds: Sequence[Round], play: Play) -> Forest:
        return written(play, {e for e in play.episodes if e.end != DROPPED})


def written(play: Play, kept: Collection[Episode]) -> Forest:
    """The forest of the attempts that are kept; the others are counted as discarded, their tokens have been charged.

    `info` has the number of the first attempt of each one's tree, its path from there, and the tokens and (of episodes)
    the turns that were generated for it alone.
    """
    for e in play.episodes:
        own = e.turns[e.inherited :]
        e.info |= {"tree": e.key.attempt, "path": list(e.key.path), "generated": sum(len(t["action"]) for t in own)}
        if play.world:
            e.info["calls"] = len(own)
    forest, rows = play.forest(), [r for r, e in enumerate(play.episodes) if e in kept]
    play.session.budget.discarded += len(play.episodes) - len(rows)
    return forest.select(rows) if len(rows) < len(play.episodes) else forest
