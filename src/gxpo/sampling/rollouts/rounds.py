"""Rounds of attempts within a step: the base class `Rounds`, and `Independent`, a single round."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gxpo.base.errors import GxpoError
from gxpo.forest import grouped
from gxpo.forest.forest import Forest
from gxpo.parts.definition import show
from gxpo.parts.functions import place_of
from gxpo.parts.protocols import Session, Task
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.attempts import Attempts, Draw, Episode, Fork
from gxpo.sampling.rollouts.build import Count, RolloutPart
from gxpo.sampling.rollouts.episodes import Play


@dataclass(eq=False)
class Round:
    """Attempts of a step that were played together.

    episodes  the attempts, in the order in which they were begun
    """

    episodes: Sequence[Episode]
    play: Play = field(repr=False)

    @property
    def groups(self) -> list[str]:
        """Names of the attempts' groups, each once, in order."""
        return list(dict.fromkeys(e.group for e in self.episodes))

    @property
    def forest(self) -> Forest:
        """The forest of the round's attempts, with the scores that they have so far."""
        # once `scored` is cached, its forest is returned, so that nobody reads the round without its scores
        return vars(self)["scored"] if "scored" in vars(self) else self.play.restore_scores(self._unscored)

    @functools.cached_property
    def _unscored(self) -> Forest:
        return self.play.forest(self.episodes)

    @functools.cached_property
    def scored(self) -> Forest:
        """The forest of the round's attempts with their outcomes and verdicts, scored on first access."""
        return self.play.session.score(self.forest)

    def all_wrong(self, rollout: str) -> list[str]:
        """Return the names of the groups with a known failure and no known success, in order.

        rollout  name for the ConfigError that is raised where the reward gives no verdicts at all
        """
        forest = self.scored
        forest.need_verdicts(f"rollout {rollout}")
        wrong_R = all_wrong(forest.success, forest.scored, forest.ids("group", axis="R")).tolist()
        return list(dict.fromkeys(g for g, w in zip(forest.group, wrong_R, strict=True) if w))


def all_wrong(success: Tensor, scored: Tensor, group: Tensor) -> Tensor:
    """Mark [R] the members of groups with at least one known failure and no known success.

    success [R] verdicts (nan unknown), scored [R] bool, group [R] ids. Unscored attempts do not count.

    >>> nan = float("nan")
    >>> success, group = torch.tensor([0., 0., 0., 1., 0., nan, nan]), torch.tensor([0, 0, 1, 1, 2, 2, 3])
    >>> all_wrong(success, success.isfinite(), group).tolist()
    [True, True, False, False, True, True, False]
    """
    has_verdict_R = success.isfinite() & scored
    verdict_R = torch.where(has_verdict_R, success, torch.zeros_like(success))
    return (grouped.count(group, has_verdict_R) > 0) & (grouped.max(verdict_R, group, has_verdict_R) <= 0)


class Rounds(RolloutPart):
    """Base class of rollouts in rounds: `group_size` attempts at each task; see `gxpo.sampling.rollouts.base`."""

    group_size: Count

    provides = ("states",)
    forks = False  # True: `Fork` may leave attempts, so the play keeps their positions

    def first(self, draws: Sequence[Draw], play: Play) -> Sequence[Attempts | Fork]:
        """Return the attempts of the first round."""
        return [draw.attempts(self.group_size) for draw in draws]

    def after_turn(self, episodes: Sequence[Episode], play: Play) -> Sequence[Attempts | Fork]:
        """Return the attempts that join the running round after one of its turns."""
        return []

    def then(self, rounds: Sequence[Round], play: Play) -> Sequence[Attempts | Fork]:
        """Return the attempts of the next round; an empty list ends the step."""
        return []

    def merge(self, rounds: Sequence[Round], play: Play) -> Forest:
        """Build the step's forest. Attempts that were scored keep their scores; the others are scored afterwards."""
        return rounds[0].forest if len(rounds) == 1 else play.forest()

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        """Play all rounds of a step and merge them into its forest."""
        with self._play(session) as play:
            rounds: list[Round] = []
            requests = self._attempts("first", play.draws(tasks), play)
            # a first round without attempts is still a round: `merge` may count on one
            while requests or not rounds:
                rounds.append(Round(self._play_out(play.begin(requests), play), play))
                requests = self._attempts("then", rounds, play)
            return self.merge(rounds, play)

    def _attempts(self, name: str, *arguments: Any) -> Sequence[Attempts | Fork]:
        """Call `first`, `after_turn` or `then`; GxpoError if it returns anything but a list of requests."""
        method = getattr(self, name)
        requests = method(*arguments)
        # users write these methods: an error names the method and its place, not the internals that would fail later
        misfits = (
            [x for x in requests if not isinstance(x, (Attempts, Fork))]
            if isinstance(requests, (list, tuple))
            else [requests]
        )
        if misfits:
            kind = "None" if misfits[0] is None else type(misfits[0]).__name__
            where = f"{kind}" if misfits[0] is requests else f"a {type(requests).__name__} with {kind}"
            raise GxpoError(
                f"rollout {show(self)}: {name}{place_of(method)} gave {where}; it has to give a list of "
                "draw.attempts(n) and Fork(...), empty where there are none"
            )
        return requests

    def _play(self, session: Session) -> Play:
        return Play(session, restorable=self.forks)

    def _play_out(self, episodes: list[Episode], play: Play) -> list[Episode]:
        """Play these attempts, and those that join them, to their ends; return all of them."""
        # concurrent environments have no common turns, so they are used only where nothing joins between turns
        if play.concurrent and type(self).after_turn is Rounds.after_turn:
            play.finish(episodes)
            return episodes
        while active := play.active(episodes):
            play.turn(active)
            episodes += play.begin(self._attempts("after_turn", episodes, play))
        return episodes


@part("independent", stage="rollout")
@dataclass(frozen=True)
class Independent(Rounds):
    """`group_size` samples of each task, or episodes in its environment; their group is "s{step}/{task}".

    A task drawn twice in a step makes two groups, the second "s{step}/{task}#1". A sample depends on
    (seed, step, task, attempt) and on nothing else in the batch. The forest is not scored yet, and `session.sample`
    has charged the budget. The state that an attempt acts in is the environment's, or else the task itself, the same
    for the whole group.
    """

    group_size: Count = 8
