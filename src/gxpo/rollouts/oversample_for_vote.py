"""More attempts than are trained, so that a majority vote has more voters (TTRL)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from gxpo.errors import ConfigError
from gxpo.forest import Forest
from gxpo.registry import part
from gxpo.rollouts.base import Count, Rollout, Round
from gxpo.rollouts.build import Attempts, Draw
from gxpo.rollouts.episodes import Play


@part("oversample_for_vote", stage="rollout")
@dataclass(frozen=True)
class OversampleForVote(Rollout):
    """TTRL's vote-then-subsample: `n_votes` attempts a task are sampled and scored, the first `group_size` returned.

    group_size  attempts that are trained
    n_votes     attempts that are sampled and vote; None: twice the group size (paper: 64 for 32)

    The scores are those among all `n_votes`; with a reward that looks at one attempt alone this only throws attempts
    away. Those are charged to `session.budget.discarded`; their tokens were charged when they were sampled. The first
    `group_size` attempts are the same, token by token, as `Independent(group_size)` samples.

    Source: TTRL (arXiv 2504.16084), `_select_top_k_per_prompt` of its code: the first, not the best.
    """

    group_size: Count = 8
    n_votes: int | None = None
    team: str = ""

    def __post_init__(self) -> None:
        if self.votes < self.group_size:
            raise ConfigError(
                f"rollout.n_votes={self.votes} must be at least rollout.group_size={self.group_size}: the attempts "
                "that are trained vote, too"
            )

    @property
    def votes(self) -> int:
        """Attempts a task."""
        return 2 * self.group_size if self.n_votes is None else self.n_votes

    def first(self, draws: Sequence[Draw], play: Play) -> list[Attempts]:
        return [draw.attempts(self.votes) for draw in draws]

    def merge(self, rounds: Sequence[Round], play: Play) -> Forest:
        kept = torch.tensor([e.key.attempt < self.group_size for e in rounds[0].episodes], dtype=torch.bool)
        play.session.budget.discarded += int((~kept).sum())
        return rounds[0].scored.select(kept)
