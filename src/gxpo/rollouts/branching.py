"""Episodes that branch turn by turn: where an action was surprising (ARPO), or a choice among forks (PORTool)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Interval

from gxpo.errors import ConfigError
from gxpo.registry import part
from gxpo.rollouts.build import Attempts, Count, Draw, Episode, Fork, Limit, keyed
from gxpo.rollouts.episodes import Play
from gxpo.rollouts.grow import DROPPED, AttemptTree, Grow, Point, need_episodes


def surprise(turn: dict[str, object], tokens: int) -> float:
    """Mean -log p of the first `tokens` tokens of an action, nats; 0 of an action without tokens.

    >>> surprise({"logprob": [-1.0, -2.0, -9.0]}, 2)
    1.5
    """
    own: list[float] = turn["logprob"][:tokens]  # type: ignore[index]  # records are mappings of anything
    return -sum(own) / len(own) if own else 0.0


def branch_probability(now: float, before: float, probability: float, weight: float) -> float:
    """clip(probability + weight (now - before), 0, 1).

    >>> round(branch_probability(0.9, 0.5, 0.5, 0.5), 9)
    0.7
    """
    return min(1.0, max(0.0, probability + weight * (now - before)))


@part("branch_at_surprise", stage="rollout")
@dataclass(frozen=True)
class BranchAtSurprise(Grow):
    """`group_size` episodes of each task, of which `initial` begin at the prompt; the others leave running ones.

    After each turn every running episode is left, before its next turn, by up to `beam` - 1 branches, each with
    probability clip(`probability` + `weight` (H - H_first), 0, 1): H is the mean -log p (nats) of the first `tokens`
    tokens of the turn just taken, H_first that of the episode's first turn (a branch's is its base's). Where all
    episodes of a prompt are over and there are fewer than `group_size`, one more begins at the prompt, in turn.

    group_size    n
    initial       N_0; 0: half of `group_size`
    beam          copies of an episode after a turn, itself included; 1: none branches
    probability   of a branch where the surprise has not changed
    weight        of the change, per nat
    tokens        of an action that its surprise is taken of
    token_budget, call_budget  bounds on the tokens and the actions generated for a prompt, 0: none; a branch, or
                  another attempt, is begun where it fits in what is left even at its longest

    All episodes of a prompt are one group. The branch is a declared fork after the turns it shares, which are
    generated, stored and trained once; its stream is its base's with a number added to `path`. `initial` =
    `group_size`, or `beam` 1, gives independent episodes: one after the other where `initial` is smaller.

    Source: ARPO, arXiv 2507.19849, and its code. Three choices. -log p of the sampled tokens, whose expectation is the
    entropy, stands for the entropy of the ten likeliest: that is all that every engine returns. It is a mean, where the
    code sums over the 20 tokens and divides by the logarithm of the vocabulary: for 20 tokens and 151 643 entries 1.68
    times ours, for shorter actions less. The first turn's is the episode's own; the code keeps the first one that it
    ever saw in a row of the batch.
    """

    group_size: Count = 16
    initial: Limit = 0
    beam: Count = 2
    probability: Annotated[float, Interval(ge=0, le=1)] = 0.5
    weight: float = 0.2
    tokens: Count = 20
    token_budget: Limit = 0
    call_budget: Limit = 0

    requires = ("restarts",)

    def __post_init__(self) -> None:
        if self.initial > self.group_size:
            raise ConfigError(
                f"rollout.initial={self.initial} is more than rollout.group_size={self.group_size}, the number of all"
            )

    def first(self, draws: Sequence[Draw], play: Play) -> list[Attempts | Fork]:
        need_episodes(play.session, "branch_at_surprise")
        return self.plant(draws, self.initial or (self.group_size + 1) // 2, play)

    def after_turn(self, episodes: Sequence[Episode], play: Play) -> list[Attempts | Fork]:
        return [fork for draw in play.drawn for fork in self._joining(AttemptTree(play, draw))]

    def _joining(self, tree: AttemptTree) -> list[Fork]:
        """The branches of the attempts that go on; where all are over, another attempt from the prompt."""
        size, points = len(tree.episodes), list[Point]()
        if not (running := tree.play.running(tree.open)):
            another = size < self.group_size and self.holds(tree, [Point(tree.episodes[0], 0)])
            return tree.root() if another else []
        for episode in running:
            now, first = (surprise(episode.turns[i], self.tokens) for i in (-1, 0))
            likely = branch_probability(now, first, self.probability, self.weight)
            draws = keyed(tree.play.session, episode.name, len(episode.turns), "branch")
            for _ in range(self.beam - 1):
                wanted, point = draws.random() < likely, Point(episode, len(episode.turns))
                if wanted and size + len(points) < self.group_size and self.holds(tree, [*points, point]):
                    points.append(point)
        return tree.forks(points)


@part("fork_open", stage="rollout")
@dataclass(frozen=True)
class ForkOpen(Grow):
    """`group_size` attempts at each task at a time: after each turn all open ones are forked, and as many are chosen.

    `group_size` episodes begin at the prompt. After each turn every open one has `forks` possible next steps; of all
    of these, `group_size` less the episodes that are over are chosen, uniformly, and taken. An open episode of which
    none is chosen is dropped; its tokens are charged.

    Since the choice does not look at what it chooses among, only the chosen are generated: the same distribution, and
    nothing is thrown away but the turns of dropped episodes. No prompt takes more than `group_size` times the turns of
    an episode. All episodes of a prompt are one group; a fork is declared after the turns that it shares. With one
    fork, or where none is open, this is `independent`.

    Source: PORTool, arXiv 2510.26020, after summaries, which do not say how many forks there are or how they are
    chosen.
    """

    group_size: Count = 8
    forks: Count = 2

    requires = ("restarts",)

    def first(self, draws: Sequence[Draw], play: Play) -> list[Attempts | Fork]:
        need_episodes(play.session, "fork_open")
        return self.plant(draws, self.group_size, play)

    def after_turn(self, episodes: Sequence[Episode], play: Play) -> list[Attempts | Fork]:
        return [fork for draw in play.drawn for fork in self._chosen(AttemptTree(play, draw))]

    def _chosen(self, tree: AttemptTree) -> list[Fork]:
        """One branch less than there are chosen steps of each open attempt; attempts without one are dropped."""
        if not (running := tree.play.running(tree.open)):
            return []
        over = sum(e.end not in (None, DROPPED) for e in tree.episodes)
        steps = [episode for episode in running for _ in range(self.forks)]
        draws = keyed(tree.play.session, tree.draw.name, len(running[0].turns), "choose")
        taken = Counter(draws.sample(steps, min(len(steps), self.group_size - over)))
        for episode in running:
            if not taken[episode]:
                episode.end = DROPPED
        return tree.forks([Point(e, len(e.turns)) for e in running for _ in range(taken[e] - 1)])
