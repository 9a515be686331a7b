"""`Rollout`: the base class for rollouts of your own.

A step's attempts come in rounds. `first` returns the attempts that begin; they are played to their ends; `then` gets
the finished rounds and returns the attempts of the next one, or none to stop; `merge` makes the step's forest of all
rounds. The same code works for prompts and for environments: a sample of a prompt is an episode of one turn.

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
        return [d.attempts(self.group_size, first=self.group_size) for d in play.step_draws if d.group in wrong]

    def merge(self, rounds: Sequence[Round], play: Play) -> Forest:
        return Forest.concat([r.scored for r in rounds])
```

This attempts groups without a success once more, and trains all attempts of a task as one group. `play.step_draws` has
the step's tasks, one `Draw` for each group, and `play.draws(tasks)` adds some. `Attempts` sets prompt, random stream
and temperature; `Fork(base, turn, key, name, token)` leaves an attempt before one of its turns, or within its action
(in an environment set `forks = True`, which keeps the positions of the attempts). `after_turn` gets the attempts that
are under way after every turn, and may add some.
"""

from __future__ import annotations

from collections.abc import Callable

from gxpo.parts.protocols import Session
from gxpo.sampling.rollouts.attempts import Attempts, Draw, Episode, Fork
from gxpo.sampling.rollouts.build import Count
from gxpo.sampling.rollouts.episodes import Play
from gxpo.sampling.rollouts.graph import graph
from gxpo.sampling.rollouts.rounds import Round, Rounds
from gxpo.sampling.rollouts.team import Team, TeamPlay
from gxpo.sampling.rollouts.team_policies import TeamPolicies

__all__ = ["Attempts", "Count", "Draw", "Episode", "Fork", "Play", "Rollout", "Round", "Rounds"]


class Rollout(Rounds):
    """Base class of rollouts of your own: `group_size` attempts at each task; a subclass is a frozen dataclass."""

    team: str = (
        ""  # a part with this option works for teams, too (see `gxpo.sampling.rollouts.graph`); empty: one agent
    )

    @property
    def max_turns(self) -> int:
        """Most actions of an attempt at a prompt."""
        return graph(self.team).longest if self.team else 1

    @property
    def evaluation(self) -> Callable[[int], Team]:
        """The team's rollout for held-out tasks; AttributeError without a team: they are attempted independently."""
        if not self.team:
            raise AttributeError("held-out tasks are attempted independently")
        return lambda samples: Team(samples, self.team)

    def _play(self, session: Session) -> Play:
        if self.team:
            return TeamPlay(session, TeamPolicies(graph(self.team), "shared", ()))
        return super()._play(session)
