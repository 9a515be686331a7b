"""Self-refinement (iGRPO): the best of a few drafts is shown in the prompt of the attempts that are trained."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge

from gxpo.forest import Forest
from gxpo.registry import part
from gxpo.rollouts.again import Wording, check_template
from gxpo.rollouts.base import Count, Rollout, Round
from gxpo.rollouts.build import Attempts, Draw
from gxpo.rollouts.episodes import Play


def best_of(outcome: Sequence[float]) -> int:
    """Index of the highest outcome, the first on ties; nan (unscored) is below everything.

    >>> best_of([0.0, 1.0, 1.0])
    1
    """
    known = [-math.inf if math.isnan(x) else x for x in outcome]
    return known.index(max(known))


@part("best_draft", stage="rollout")
@dataclass(frozen=True)
class BestDraft(Rollout):
    """`n_drafts` drafts of each task are scored; the best, by outcome, goes into the prompt of `group_size` attempts.

    The attempts are the group; the context that they are trained under is the one with the draft. Drafts get no
    gradient: they are not in the forest, and are charged to `session.budget.discarded`. An attempt's info holds the
    draft's text and outcome. With `n_drafts` 0 this is independent sampling. Held-out tasks are attempted without a
    draft. In an environment the draft is an episode: its actions and what came of each.

    group_size  attempts a task, all with the same draft
    n_drafts    drafts a task; draft i has the stream (seed, step, draw, i, path (0,))
    template    where the draft goes; of a chat, in the user's last message
    """

    group_size: Count = 8
    n_drafts: Annotated[int, Ge(0)] = 4
    template: str = "{prompt}\n\nAn earlier attempt:\n{draft}\n\nCheck it, and give a better answer.\n"
    team: str = ""

    def __post_init__(self) -> None:
        check_template("rollout.template", self.template, ("prompt", "draft"))

    def first(self, draws: Sequence[Draw], play: Play) -> list[Attempts]:
        if not self.n_drafts:
            return [draw.attempts(self.group_size) for draw in draws]
        return [draw.attempts(self.n_drafts, path=(0,), label="drafts", group=f"{draw.group}/drafts") for draw in draws]

    def then(self, rounds: Sequence[Round], play: Play) -> list[Attempts]:
        if len(rounds) > 1 or not self.n_drafts:
            return []
        outcome = rounds[0].scored.outcome.tolist()
        play.session.budget.discarded += len(outcome)
        out = []
        for i, draw in enumerate(play.drawn):
            scores = outcome[i * self.n_drafts : (i + 1) * self.n_drafts]
            best = best_of(scores)
            text = play.transcript(rounds[0].episodes[i * self.n_drafts + best])
            noted = {"draft": text, "draft_outcome": None if math.isnan(scores[best]) else scores[best]}
            out.append(draw.attempts(self.group_size, wording=Wording(self.template, {"draft": text}), info=noted))
        return out

    def merge(self, rounds: Sequence[Round], play: Play) -> Forest:
        return rounds[-1].forest
