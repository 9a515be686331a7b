"""Rollouts whose actions an engine sampled under another prompt than theirs: they stay unscored."""

from __future__ import annotations

import torch

from gxpo.forest.forest import Forest
from gxpo.parts.protocols import MISREAD

WHY = "sampled under another prompt: the engine read its pictures as other ids than the learner"


def without_misread(forest: Forest) -> Forest:
    """The forest in which every trajectory with an action of `Completion.finish` "misread" is unscored: no outcome, no
    verdict, `info["failure"]` says why. Trajectories that share such an action with it are unscored too."""
    rows = sorted(
        {r for r, how in zip(forest.step_trajectory.tolist(), forest.step_finish, strict=True) if how == MISREAD}
    )
    if not rows:
        return forest
    at = torch.tensor(rows)
    info = list(forest.info)
    for r in rows:
        info[r] = {"failure": WHY, **info[r]}
    return forest.replace(
        outcome=forest.outcome.index_fill(0, at, torch.nan),
        success=forest.success.index_fill(0, at, torch.nan),
        info=info,
    )
