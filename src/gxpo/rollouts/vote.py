"""More attempts vote than are trained: all of a group are scored together, the first of them are kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gxpo.errors import ConfigError
from gxpo.forest import Forest
from gxpo.protocols import Session, Task
from gxpo.rollouts.independent import Independent


@dataclass(frozen=True)
class Vote:
    """TTRL's vote-then-subsample: `n_votes` attempts a task are sampled and scored, the first `group_size` returned.

    group_size  attempts that are trained
    n_votes     attempts that are sampled and vote; None: twice the group size (paper: 64 for 32)

    The scores are those among all `n_votes`; with a reward that looks at one attempt alone this only throws attempts
    away. Those are charged to `session.budget.discarded`; their tokens were charged when they were sampled. The first
    `group_size` attempts are the same, token by token, as `Independent(group_size)` samples.

    Source: TTRL (arXiv 2504.16084), `_select_top_k_per_prompt` of its code: the first, not the best.
    """

    group_size: int = 8
    n_votes: int | None = None

    provides = ("states",)

    def __post_init__(self) -> None:
        if self.group_size < 1 or self.votes < self.group_size:
            raise ConfigError(
                f"rollout.n_votes={self.votes} must be at least rollout.group_size={self.group_size}, and that 1: "
                "the attempts that are trained vote, too"
            )

    @property
    def votes(self) -> int:
        """Attempts a task."""
        return 2 * self.group_size if self.n_votes is None else self.n_votes

    def grow(self, tasks: Sequence[Task], session: Session) -> Forest:
        forest = session.score(Independent(self.votes).grow(tasks, session))
        seen: Counter[str] = Counter()
        kept = []
        for group in forest.group:
            kept.append(seen[group] < self.group_size)
            seen[group] += 1
        session.budget.discarded += len(kept) - sum(kept)
        return forest.select(torch.tensor(kept, dtype=torch.bool))
