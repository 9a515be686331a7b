"""Episodes that branch turn by turn: where an action was surprising (ARPO), or a choice among forks (PORTool)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from gxpo.base.errors import ConfigError
from gxpo.parts.functions import Formula
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.build import Attempts, Count, Draw, Episode, Limit
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.fork import Fork
from gxpo.sampling.rollouts.grow import DROPPED, AttemptTree, Grow, Point


def surprise(turn: Mapping[str, Any], tokens: int) -> float:
    """Mean -log p of the first `tokens` tokens of an action, nats; 0 of an action without tokens.

    >>> surprise({"logprob": [-1.0, -2.0, -9.0]}, 2)
    1.5
    """
    own: list[float] = turn["logprob"][:tokens]
    return -sum(own) / len(own) if own else 0.0


def branch_probability(now: float, before: float, probability: float, weight: float) -> float:
    """clip(probability + weight (now - before), 0, 1).

    >>> round(branch_probability(0.9, 0.5, 0.5, 0.5), 9)
    0.7
    """
    return min(1.0, max(0.0, probability + weight * (now - before)))


@part("turn_branches", stage="rollout")
@dataclass(frozen=True)
class TurnBranches(Formula, Grow):
    """`group_size` episodes of each task, of which `initial` begin at the prompt; the others leave running ones.

    After each turn `choose` says how many next steps every running episode takes: it goes on with the first, a branch
    leaves it for each of the others, as long as there are fewer than `group_size` and the budget holds them, and one
    without any is dropped, its tokens charged. Where all episodes of a prompt are over and there are fewer than
    `group_size`, one more begins at the prompt, in turn.

    group_size    n
    initial       N_0, or "all" of them; 0: half of `group_size`, rounded up
    choose        a function in `gxpo.sampling.rollouts.next_steps` by name, `file.py:function` or a function
                  (`AttemptTree`, running episodes, how many of them there can be) -> an episode for each next step; its
                  keyword-only parameters are options: `rollout.beam`
    token_budget, call_budget  bounds on the tokens and the actions generated for a prompt, 0: none; a branch, or
                  another attempt, is begun where it fits in what is left even at its longest

    All episodes of a prompt are one group. The branch is a declared fork after the turns it shares, which are
    generated, stored and trained once; its stream is its base's with a number added to `path`. With one next step for
    each this gives independent episodes: one after the other where `initial` is smaller than `group_size`.

    Source: ARPO, arXiv 2507.19849, and its code ("at_surprise"); PORTool, arXiv 2510.26020, after summaries, which do
    not say how many forks there are or how they are chosen ("uniform", `initial` "all").
    """

    group_size: Count = 16
    initial: Limit | Literal["all"] = 0
    choose: Any = "at_surprise"
    token_budget: Limit = 0
    call_budget: Limit = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    functions: ClassVar[Mapping[str, tuple[str, bool]]] = {"choose": ("gxpo.sampling.rollouts.next_steps", False)}
    requires = ("restarts",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self._initial > self.group_size:
            raise ConfigError(
                f"rollout.initial={self.initial} is more than rollout.group_size={self.group_size}, the number of all"
            )

    @property
    def _initial(self) -> int:
        if isinstance(self.initial, str):
            return self.group_size
        return self.initial or (self.group_size + 1) // 2

    def first(self, draws: Sequence[Draw], play: Play) -> list[Attempts | Fork]:
        return self.plant(draws, self._initial, play)

    def after_turn(self, episodes: Sequence[Episode], play: Play) -> list[Attempts | Fork]:
        return [fork for draw in play.drawn for fork in self._joining(AttemptTree(play, draw))]

    def _joining(self, tree: AttemptTree) -> list[Fork]:
        """Branches for all next steps of an episode but its first; where all are over, another one from the prompt."""
        running = tree.play.running(tree.open)
        over = sum(e.end not in (None, DROPPED) for e in tree.episodes)
        if not running:
            another = over < self.group_size and self.holds(tree, [Point(tree.episodes[0], 0)])
            return tree.root() if another else []
        steps = Counter(self.apply(self.choose, [tree, running, self.group_size - over]))
        for episode in running:
            if not steps[episode]:
                episode.end = DROPPED
        points, size = list[Point](), over + len(tree.open)
        for episode in running:
            for _ in range(steps[episode] - 1):
                point = Point(episode, len(episode.turns))
                if size + len(points) < self.group_size and self.holds(tree, [*points, point]):
                    points.append(point)
        return tree.forks(points)
