"""`Rollout`: the base class of a rollout of one's own.

A step's attempts come in rounds. `first` says which begin; they are played to their ends; `then` sees what came, and
says which begin or go on next, until there are none; `merge` says what of all of them is the step's forest. Whatever a
rollout decides, it works for prompts and for environments: a sample of a prompt is an episode of one turn.

```python
from collections.abc import Sequence
from dataclasses import dataclass

from gxpo import Forest
from gxpo.rollouts import Attempts, Fork, Play, Rollout, Round


@dataclass(frozen=True)
class OnceMore(Rollout):
    group_size: int = 8

    def then(self, rounds: Sequence[Round], play: Play) -> list[Attempts | Fork]:
        if len(rounds) > 1:
            return []
        wrong = rounds[0].all_wrong("once_more")
        return [d.attempts(self.group_size, first=self.group_size) for d in play.drawn if d.group in wrong]

    def merge(self, rounds: Sequence[Round], play: Play) -> Forest:
        return Forest.concat([r.scored for r in rounds])
```

With this groups without a success are attempted again, and all attempts are trained, as one group. `play.drawn` has the
step's tasks, one `Draw` for each group, and `play.draws(tasks)` adds some. `Attempts` says what is shown, under which
stream, at which temperature; `Fork(base, turn, key, name, token)` leaves an attempt before one of its turns, or within
its action (in an environment: `forks = True` keeps where each one stood). `after_turn` sees what is under way after
every turn, and may add attempts to it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from gxpo.forest import Forest
from gxpo.protocols import Session, Task
from gxpo.rollouts.again import groups_all_wrong
from gxpo.rollouts.build import Attempts, Count, Draw, Episode, Fork, RolloutPart
from gxpo.rollouts.episodes import Play
from gxpo.rollouts.graph import graph
from gxpo.rollouts.team import Team, TeamPlay, TeamPolicies


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
        """The round's attempts, scored only if that was asked for; the bases of forks have to be in the same round."""
        return vars(self).get("scored", self._written)

    @cached_property
    def _written(self) -> Forest:
        return self.play.forest(self.episodes)

    @cached_property
    def scored(self) -> Forest:
        """The round's attempts with their outcomes and verdicts."""
        return self.play.session.score(self._written)

    def all_wrong(self, rollout: str) -> list[str]:
        """Names of the groups in which an attempt is known to be wrong and none to be right."""
        return groups_all_wrong(self.scored, rollout)


class Rollout(RolloutPart):
    """`group_size` independent attempts at each task; a subclass, a frozen dataclass, says what else there is."""

    group_size: Count
    team: str = ""  # a part with this option works for teams, too (see `gxpo.rollouts.graph`); empty: one agent

    provides = ("states",)
    forks = False  # attempts may be left before one of their turns

    @property
    def max_turns(self) -> int:
        """The most actions that an attempt at a prompt can have."""
        return graph(self.team).longest if self.team else 1

    @property
    def evaluation(self) -> Callable[[int], Team]:
        """How held-out tasks are attempted, where a team does it."""
        if not self.team:
            raise AttributeError("held-out tasks are attempted independently")
        return lambda samples: Team(samples, self.team)

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
        """The step's forest."""
        return rounds[0].forest if len(rounds) == 1 else play.forest()

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        """All rounds of a step."""
        with self._play(session) as play:
            rounds: list[Round] = []
            asked = self.first(play.draws(tasks), play)
            while asked or not rounds:
                rounds.append(Round(self._played(play.begin(asked), play), play))
                asked = self.then(rounds, play)
            return self.merge(rounds, play)

    def _play(self, session: Session) -> Play:
        if self.team:
            return TeamPlay(session, TeamPolicies(graph(self.team), "shared", ()))
        return Play(session, restorable=self.forks)

    def _played(self, episodes: list[Episode], play: Play) -> list[Episode]:
        """These attempts and all that join them, at their ends."""
        while running := play.running(episodes):
            play.turn(running)
            episodes += play.begin(self.after_turn(episodes, play))
        return episodes
