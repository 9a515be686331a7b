"""Rounds of attempts: a step's episodes that are played together, and the base of rollouts that go through some."""

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
from gxpo.sampling.rollouts.build import Attempts, Count, Draw, Episode, RolloutPart
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.fork import Fork


@dataclass(eq=False)
class Round:
    """Attempts that were played together.

    episodes  the attempts, in the order in which they were begun
    """

    episodes: Sequence[Episode]
    play: Play = field(repr=False)

    @property
    def groups(self) -> list[str]:
        """Names of the attempts' groups, in order."""
        return list(dict.fromkeys(e.group for e in self.episodes))

    @property
    def forest(self) -> Forest:
        """The round's attempts, with the scores that they have got so far."""
        return vars(self)["scored"] if "scored" in vars(self) else self.play.recalled(self._written)

    @functools.cached_property
    def _written(self) -> Forest:
        return self.play.forest(self.episodes)

    @functools.cached_property
    def scored(self) -> Forest:
        """The round's attempts with their outcomes and verdicts."""
        return self.play.session.score(self.forest)

    def all_wrong(self, rollout: str) -> list[str]:
        """Names of the groups in which an attempt is known to be wrong and none to be right, in order. ConfigError
        where the reward gives no verdicts at all."""
        forest = self.scored
        forest.need_verdicts(f"rollout {rollout}")
        wrong = all_wrong(forest.success, forest.scored, forest.ids("group", axis="R")).tolist()
        return list(dict.fromkeys(g for g, w in zip(forest.group, wrong, strict=True) if w))


def all_wrong(success: Tensor, scored: Tensor, group: Tensor) -> Tensor:
    """[R] bool: no attempt of the trajectory's group is known to be right, and at least one is known to be wrong.

    success [R] verdicts (nan unknown), scored [R] bool, group [R] ids. An attempt that is not scored says nothing.

    >>> nan = float("nan")
    >>> success, group = torch.tensor([0., 0., 0., 1., 0., nan, nan]), torch.tensor([0, 0, 1, 1, 2, 2, 3])
    >>> all_wrong(success, success.isfinite(), group).tolist()
    [True, True, False, False, True, True, False]
    """
    known = success.isfinite() & scored
    verdict = torch.where(known, success, torch.zeros_like(success))
    return (grouped.count(group, known) > 0) & (grouped.max(verdict, group, known) <= 0)


class Rounds(RolloutPart):
    """Base of rollouts in rounds: `group_size` independent attempts at each task; see `gxpo.sampling.rollouts.base`."""

    group_size: Count

    provides = ("states",)
    forks = False  # attempts may be left before one of their turns

    def first(self, draws: Sequence[Draw], play: Play) -> Sequence[Attempts | Fork]:
        """The attempts that begin."""
        return [draw.attempts(self.group_size) for draw in draws]

    def after_turn(self, episodes: Sequence[Episode], play: Play) -> Sequence[Attempts | Fork]:
        """What joins the round after each of its turns."""
        return []

    def then(self, rounds: Sequence[Round], play: Play) -> Sequence[Attempts | Fork]:
        """The next round's attempts; none: there is no further round."""
        return []

    def merge(self, rounds: Sequence[Round], play: Play) -> Forest:
        """The step's forest. Attempts that were scored keep their scores; the others are scored afterwards."""
        return rounds[0].forest if len(rounds) == 1 else play.forest()

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        """All rounds of a step."""
        with self._play(session) as play:
            rounds: list[Round] = []
            requests = self._attempts("first", play.draws(tasks), play)
            while requests or not rounds:
                rounds.append(Round(self._played(play.begin(requests), play), play))
                requests = self._attempts("then", rounds, play)
            return self.merge(rounds, play)

    def _attempts(self, name: str, *given: Any) -> Sequence[Attempts | Fork]:
        """The requests of one of the rollout's methods; GxpoError where it gives anything else."""
        method = getattr(self, name)
        requests = method(*given)
        wrong = (
            [x for x in requests if not isinstance(x, (Attempts, Fork))]
            if isinstance(requests, (list, tuple))
            else [requests]
        )
        if wrong:
            kind = "None" if wrong[0] is None else type(wrong[0]).__name__
            where = f"{kind}" if wrong[0] is requests else f"a {type(requests).__name__} with {kind}"
            raise GxpoError(
                f"rollout {show(self)}: {name}{place_of(method)} gave {where}; it has to give a list of "
                "draw.attempts(n) and Fork(...), empty where there are none"
            )
        return requests

    def _play(self, session: Session) -> Play:
        return Play(session, restorable=self.forks)

    def _played(self, episodes: list[Episode], play: Play) -> list[Episode]:
        """These attempts and all that join them, at their ends."""
        if play.concurrent and type(self).after_turn is Rounds.after_turn:
            play.finish(episodes)
            return episodes
        while running := play.running(episodes):
            play.turn(running)
            episodes += play.begin(self._attempts("after_turn", episodes, play))
        return episodes
