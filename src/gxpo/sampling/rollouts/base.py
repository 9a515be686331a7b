"""`Rollout`: the base class of a rollout of one's own.

A step's attempts come in rounds. `first` says which begin; they are played to their ends; `then` sees what came, and
says which begin or go on next, until there are none; `merge` says what of all of them is the step's forest. Whatever a
rollout decides, it works for prompts and for environments: a sample of a prompt is an episode of one turn.

```python
from collections.abc import Sequence
from dataclasses import dataclass

from gxpo import Forest
from gxpo.sampling.rollouts import Attempts, Fork, Play, Rollout, Round


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

from collections.abc import Callable

from gxpo.parts.protocols import Session
from gxpo.sampling.rollouts.build import Attempts, Count, Draw, Episode
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.fork import Fork
from gxpo.sampling.rollouts.graph import graph
from gxpo.sampling.rollouts.rounds import Round, Rounds
from gxpo.sampling.rollouts.team import Team, TeamPlay, TeamPolicies

__all__ = ["Attempts", "Count", "Draw", "Episode", "Fork", "Play", "Rollout", "Round", "Rounds"]


class Rollout(Rounds):
    """`group_size` independent attempts at each task; a subclass, a frozen dataclass, says what else there is."""

    team: str = (
        ""  # a part with this option works for teams, too (see `gxpo.sampling.rollouts.graph`); empty: one agent
    )

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

    def _play(self, session: Session) -> Play:
        if self.team:
            return TeamPlay(session, TeamPolicies(graph(self.team), "shared", ()))
        return super()._play(session)
