"""Turn-level branching of episodes: after surprising actions (ARPO), or at random among forks (PORTool)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from gxpo.base.errors import ConfigError
from gxpo.parts.functions import Formula
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.attempts import Attempts, Draw, Episode, Fork
from gxpo.sampling.rollouts.build import Count, Limit
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.tree import DROPPED, AttemptTree, Grow, Point


def surprise(turn: Mapping[str, Any], tokens: int) -> float:
    """Return the mean -log p (nats) of the first `tokens` tokens of an action; 0 for an action without tokens.

    >>> surprise({"logprob": [-1.0, -2.0, -9.0]}, 2)
    1.5
    """
    logprobs: list[float] = turn["logprob"][:tokens]
    return -sum(logprobs) / len(logprobs) if logprobs else 0.0


def branch_probability(entropy: float, start_entropy: float, probability: float, weight: float) -> float:
    """Return clip(probability + weight (now - before), 0, 1).

    >>> round(branch_probability(0.9, 0.5, 0.5, 0.5), 9)
    0.7
    """
    return min(1.0, max(0.0, probability + weight * (entropy - start_entropy)))


@part("turn_branches", stage="rollout")
@dataclass(frozen=True)
class TurnBranches(Formula, Grow):
    """`group_size` episodes of each task, of which `initial` begin at the prompt; the others leave running ones.

    After each turn `next_steps` says how many next steps every running episode takes: it goes on with the first, a
    branch leaves it for each of the others, as long as there are fewer than `group_size` and the budget holds them, and
    one without any is dropped, its tokens charged. Where all episodes of a prompt are over and there are fewer than
    `group_size`, one more begins at the prompt, in turn.

    group_size    n
    initial       N_0, or "all" of them; 0: half of `group_size`, rounded up
    next_steps    a function in `gxpo.sampling.rollouts.next_steps` by name, `file.py:function` or a function
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
    next_steps: Any = "at_surprise"
    token_budget: Limit = 0
    call_budget: Limit = 0
    options: Mapping[str, Any] = field(default_factory=dict)

    functions: ClassVar[Mapping[str, tuple[str, bool]]] = {"next_steps": ("gxpo.sampling.rollouts.next_steps", False)}
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
        return [fork for draw in play.step_draws for fork in self._branches(AttemptTree(play, draw))]

    def _branches(self, tree: AttemptTree) -> list[Fork]:
        """Return the branches after a turn; if all episodes are over, one more attempt from the prompt."""
        active = tree.play.active(tree.open)
        n_finished = sum(e.end not in (None, DROPPED) for e in tree.episodes)
        if not active:
            fits_another = n_finished < self.group_size and self.holds(tree, [Point(tree.episodes[0], 0)])
            return tree.root() if fits_another else []
        # an episode goes on with the first of its next steps; one that got none is dropped
        next_steps = Counter(self.apply(self.next_steps, [tree, active, self.group_size - n_finished]))
        for episode in active:
            if not next_steps[episode]:
                episode.end = DROPPED
        # each further step is a branch, as long as group and budget hold it
        points, n_episodes = list[Point](), n_finished + len(tree.open)
        for episode in active:
            for _ in range(next_steps[episode] - 1):
                point = Point(episode, len(episode.turns))
                if n_episodes + len(points) < self.group_size and self.holds(tree, [*points, point]):
                    points.append(point)
        return tree.forks(points)
