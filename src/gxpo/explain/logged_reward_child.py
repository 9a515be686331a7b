"""Child process that scores logged completions by a reward function, so that one that hangs can be ended."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from gxpo.base.errors import GxpoError
from gxpo.base.processes import Line
from gxpo.environments.rewards import RewardSet
from gxpo.explain.check_reward import Judge
from gxpo.parts.protocols import Task

SECONDS = 5.0  # for one completion, where the function takes single ones


class _LoggedReward:
    """A task source of logged prompts, without a verifier of its own."""

    scorer = None
    reward_default = None

    def __init__(self, tasks: Sequence[Task]) -> None:
        self.tasks = list(tasks)

    def held_out(self, n: int) -> list[Task]:
        return self.tasks[:n]


def serve(line: Line) -> None:
    """Answer (reward, trials, tasks) with the scores, null where there is none, and what went wrong."""
    while True:
        for reward, trials, tasks in line.receive():
            try:
                with RewardSet.make(reward, source=_LoggedReward(tasks), timeout=SECONDS) as rewards:  # type: ignore[arg-type]
                    scores = [score if math.isfinite(score) else None for score in Judge(rewards)(trials)]
                    message = next((rewards.messages[k] for k, n in rewards.counts.items() if n), "")
                answer = {"scores": scores, "message": message}
            except GxpoError as error:
                answer = {"error": str(error)}
            line.answer(json.dumps(answer))
