"""Episodes whose actions a check may refuse before they are carried out (VeriGuard)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gxpo.base.errors import ConfigError
from gxpo.base.usercode import Unusable, object_at
from gxpo.forest.forest import Forest
from gxpo.parts.functions import user_function
from gxpo.parts.protocols import Sampling, Session
from gxpo.parts.registry import part
from gxpo.sampling.rollouts.base import Count, Rollout, Round
from gxpo.sampling.rollouts.between import Guarded as GuardedEnvs
from gxpo.sampling.rollouts.between import with_component
from gxpo.sampling.rollouts.episodes import Play


@part("guarded", stage="rollout")
@dataclass(frozen=True)
class Guarded(Rollout):
    """`group_size` episodes of each task, in which actions that `check` refuses are not carried out.

    check       FILE.py:NAME, a function of (observation, action) that gives the reason of a refusal, or None
    cases       FILE.py:NAME, a list of (observation, action, whether the action is allowed) that the check is tried on
                before the run: a single wrong one refuses the run. "": none
    on_refusal  "again": the policy reads the reason and the observation once more, and has used the turn; "end": the
                episode ends and has failed

    Component "refused" is the number of an episode's refusals; nothing is paid for it unless `scoring.weights` does. A
    check that raises carries nothing out: that episode ends unscored, and is counted. Held-out tasks are guarded, too.

    Source: VeriGuard, arXiv 2510.05156.
    """

    group_size: Count = 8
    check: Any = ""
    cases: str = ""
    on_refusal: Literal["again", "end"] = "again"

    requires = ("restarts",)
    components = ("refused",)

    def check_sampling(self, sampling: Sampling) -> None:
        """Raise ConfigError for a check that can't be used, or that decides one of its cases wrongly."""
        check = user_function(self.check, "rollout.check")
        if not self.cases:
            return
        try:
            cases = object_at(self.cases)
        except Unusable as error:
            raise ConfigError(f"rollout.cases={self.cases}: {error}") from None
        for number, (observation, action, is_allowed) in enumerate(cases, 1):
            if (not check(observation, action)) != bool(is_allowed):
                decision = "allows" if is_allowed is False else "refuses"
                raise ConfigError(f"rollout.check {decision} {action!r}, against case {number} of {self.cases}")

    @property
    def evaluation(self) -> Callable[[int], Any]:
        """The rollout for held-out tasks."""
        return lambda samples: dataclasses.replace(self, group_size=samples)

    def _play(self, session: Session) -> Play:
        play = super()._play(session)
        GuardedEnvs(play.envs, user_function(self.check, "rollout.check"), self.on_refusal).stand(play)
        return play

    def merge(self, rounds: Sequence[Round], play: Play) -> Forest:
        refusals = vars(play.envs)["refusals"]  # of the `GuardedEnvs` that stands there
        refusal_counts = [float(refusals[e.name]) for e in rounds[0].episodes]
        return with_component(rounds[0].forest, "refused", refusal_counts)
