"""A group of refinements: the best of a few drafts is shown in the prompt of the attempts that are trained."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gxpo.errors import ConfigError
from gxpo.forest import Forest
from gxpo.protocols import Request, Session, StreamKey, Task
from gxpo.rollouts.again import check_template, need_single_turn, reworded
from gxpo.rollouts.build import forest_of, name_draws, requests


def best_of(outcome: Sequence[float]) -> int:
    """Index of the highest outcome, the first on ties; nan (unscored) is below everything.

    >>> best_of([0.0, 1.0, 1.0])
    1
    """
    known = [-math.inf if math.isnan(x) else x for x in outcome]
    return known.index(max(known))


@dataclass(frozen=True)
class BestDraft:
    """`n_drafts` drafts of each task are scored; the best, by outcome, goes into the prompt of `group_size` attempts.

    The attempts are the group; the context that they are trained under is the one with the draft. Drafts get no
    gradient: they are not in the forest, and are charged to `session.budget.discarded`. An attempt's info holds the
    draft's text and outcome. With `n_drafts` 0 this is independent sampling. Held-out tasks are attempted without a
    draft.

    group_size  attempts a task, all with the same draft
    n_drafts    drafts a task; draft i has the stream (seed, step, draw, i, path (0,))
    template    where the draft goes; of a chat, in the user's last message
    """

    group_size: int = 8
    n_drafts: int = 4
    template: str = "{prompt}\n\nAn earlier attempt:\n{draft}\n\nCheck it, and give a better answer.\n"

    provides = ("states",)
    single_turn = True

    def __post_init__(self) -> None:
        if self.group_size < 1 or self.n_drafts < 0:
            raise ConfigError(
                f"rollout.group_size must be at least 1 and rollout.n_drafts at least 0, not {self.group_size!r} and "
                f"{self.n_drafts!r}"
            )
        check_template("rollout.template", self.template, ("prompt", "draft"))

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        need_single_turn(session, "best_draft", "shows drafts in the prompts")
        draws = name_draws(tasks, Counter())
        shown, drafts = self._with_drafts(tasks, draws, session) if self.n_drafts else (list(tasks), [{}] * len(tasks))
        prompts = [session.encode(task) for task in shown]
        completions = session.sample(requests(prompts, draws, self.group_size, session))
        groups = [f"s{session.step}/{draw}" for draw in draws]
        forest = forest_of(shown, groups, prompts, completions, session.sampling)
        return forest.replace(info=[dict(draft) for draft in drafts for _ in range(self.group_size)])

    def _with_drafts(
        self, tasks: Sequence[Task], draws: Sequence[str], session: Session
    ) -> tuple[list[Task], list[dict[str, Any]]]:
        """The tasks with the best draft in their prompts, and what is noted of it."""
        prompts = [session.encode(task) for task in tasks]
        asked = [
            Request(
                prompt,
                tuple(StreamKey(session.seed, session.step, draw, i, path=(0,)) for i in range(self.n_drafts)),
            )
            for prompt, draw in zip(prompts, draws, strict=True)
        ]
        sampled = session.sample(asked)
        names = [f"s{session.step}/{draw}/drafts" for draw in draws]
        outcome = session.score(forest_of(tasks, names, prompts, sampled, session.sampling)).outcome.tolist()
        session.budget.discarded += len(outcome)
        shown, notes = [], []
        for i, (task, drafts) in enumerate(zip(tasks, sampled, strict=True)):
            scores = outcome[i * self.n_drafts : (i + 1) * self.n_drafts]
            best = best_of(scores)
            text = session.decode(drafts[best].tokens)
            shown.append(reworded(task, self.template, draft=text))
            notes.append({"draft": text, "draft_outcome": None if math.isnan(scores[best]) else scores[best]})
        return shown, notes
